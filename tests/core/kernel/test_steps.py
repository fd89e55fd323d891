"""Cutting a stream of updates into steps."""

from __future__ import annotations

import itertools
from typing import Literal, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.contracts.agent import (
    MessageText,
    Noise,
    OtherUpdate,
    SessionUpdate,
    ThoughtText,
    ToolUpdate,
    UsageUpdate,
)
from core.kernel import events as ev
from core.kernel.steps import TEXT_LIMIT, Stepper

Rule: TypeAlias = Literal["proxy", "updates", "command"]
RULES: tuple[Rule, ...] = ("proxy", "updates", "command")

UPDATES: st.SearchStrategy[SessionUpdate] = st.one_of(
    st.builds(MessageText, st.text(max_size=5)),
    st.builds(ThoughtText, st.text(max_size=5)),
    st.builds(
        ToolUpdate,
        st.sampled_from(["t1", "t2", "t3"]),
        status=st.sampled_from([None, "pending", "in_progress", "completed", "failed"]),
    ),
    st.builds(UsageUpdate, used=st.integers(0, 9)),
    st.builds(OtherUpdate, st.just("plan"), st.just({})),
    st.builds(Noise, st.just("stdout"), st.text(max_size=5)),
)
STREAMS = st.lists(UPDATES | st.just("boundary") | st.just("flush"), max_size=40)


def cut(rule: Rule, stream: list[SessionUpdate | str]) -> list[ev.Body]:
    """The events of a stream in which a boundary or a flush is a word."""
    stepper = Stepper(rule)
    out: list[ev.Body] = []
    for item in stream:
        if item == "boundary":
            out += stepper.boundary()
        elif item == "flush":
            out += stepper.flush()
        else:
            assert not isinstance(item, str)
            out += stepper.feed(item)
    return out + stepper.boundary()


def kinds(rule: Rule, *stream: SessionUpdate) -> list[str]:
    return [body.KIND for body in cut(rule, list(stream))]


def said(*stream: SessionUpdate) -> list[str]:
    return [body.text for body in cut("updates", list(stream)) if isinstance(body, ev.Said)]


def done(call: str) -> ToolUpdate:
    return ToolUpdate(call, status="completed")


@given(st.sampled_from(RULES), STREAMS)
def test_no_character_is_lost_added_or_moved(rule: Rule, stream: list[SessionUpdate | str]) -> None:
    events = cut(rule, stream)
    for kind, update in ((ev.Said, MessageText), (ev.Thought, ThoughtText)):
        given_text = "".join(item.text for item in stream if isinstance(item, update))
        kept = "".join(body.text for body in events if isinstance(body, kind))
        assert kept == given_text


@given(st.sampled_from(RULES), STREAMS)
def test_steps_open_and_close_in_turn_and_hold_all_text(
    rule: Rule, stream: list[SessionUpdate | str]
) -> None:
    is_open = False
    for body in cut(rule, stream):
        if isinstance(body, ev.StepStarted):
            assert not is_open
            assert body.rule == rule
            is_open = True
        elif isinstance(body, ev.StepEnded):
            assert is_open
            is_open = False
        elif isinstance(body, ev.Said | ev.Thought):
            assert is_open
            assert body.text
    assert not is_open


@given(st.sampled_from(RULES), STREAMS)
def test_every_call_begins_inside_a_step(rule: Rule, stream: list[SessionUpdate | str]) -> None:
    is_open = False
    known: set[str] = set()
    for body in cut(rule, stream):
        if isinstance(body, ev.StepStarted | ev.StepEnded):
            is_open = isinstance(body, ev.StepStarted)
        elif isinstance(body, ev.ToolChanged):
            assert is_open or body.tool_call_id in known
            known.add(body.tool_call_id)


@given(st.sampled_from(RULES), STREAMS)
def test_tool_changes_and_facts_keep_their_order(
    rule: Rule, stream: list[SessionUpdate | str]
) -> None:
    came = [
        ("tool", item.tool_call_id, item.status)
        if isinstance(item, ToolUpdate)
        else ("usage", str(item.used), None)
        for item in stream
        if isinstance(item, ToolUpdate | UsageUpdate)
    ]
    went = [
        ("tool", body.tool_call_id, body.status)
        if isinstance(body, ev.ToolChanged)
        else ("usage", str(body.used), None)
        for body in cut(rule, stream)
        if isinstance(body, ev.ToolChanged | ev.UsageChanged)
    ]
    assert went == came


@given(st.sampled_from(RULES), STREAMS)
def test_a_step_is_never_empty(rule: Rule, stream: list[SessionUpdate | str]) -> None:
    events = [body for body in cut(rule, stream) if not isinstance(body, ev.NoiseHeard)]
    for before, after in itertools.pairwise(events):
        assert not (isinstance(before, ev.StepStarted) and isinstance(after, ev.StepEnded))


def test_updates_rule_starts_a_step_at_text_after_a_result() -> None:
    assert kinds(
        "updates",
        ThoughtText("hm"),
        ToolUpdate("t1", status="pending"),
        done("t1"),
        MessageText("so"),
        ToolUpdate("t2", status="pending"),
    ) == [
        "step_started",
        "thought",
        "tool_changed",
        "tool_changed",
        "step_ended",
        "step_started",
        "said",
        "tool_changed",
        "step_ended",
    ]


def test_updates_rule_keeps_text_before_a_result_in_its_step() -> None:
    assert kinds("updates", MessageText("a"), ToolUpdate("t1"), MessageText("b")) == [
        "step_started",
        "said",
        "tool_changed",
        "said",
        "step_ended",
    ]


def test_updates_rule_keeps_calls_made_together_in_one_step() -> None:
    stream: list[SessionUpdate] = [
        ToolUpdate("t1"),
        ToolUpdate("t2"),
        done("t1"),
        done("t2"),
        ToolUpdate("t3"),
    ]
    assert kinds("updates", *stream).count("step_started") == 1


def test_a_failed_call_is_a_result_too() -> None:
    stream: list[SessionUpdate] = [ToolUpdate("t1", status="failed"), MessageText("oh")]
    assert kinds("updates", *stream).count("step_started") == 2


def test_command_rule_makes_each_call_a_step() -> None:
    assert kinds("command", ToolUpdate("t1"), done("t1"), ToolUpdate("t2"), done("t2")) == [
        "step_started",
        "tool_changed",
        "tool_changed",
        "step_ended",
        "step_started",
        "tool_changed",
        "tool_changed",
        "step_ended",
    ]


def test_proxy_rule_draws_no_boundary_of_its_own() -> None:
    stream: list[SessionUpdate] = [
        ToolUpdate("t1"),
        done("t1"),
        MessageText("so"),
        ToolUpdate("t2"),
    ]
    assert kinds("proxy", *stream).count("step_started") == 1


def test_a_result_that_comes_after_its_step_ended_opens_no_other() -> None:
    stepper = Stepper("updates")
    stepper.feed(ToolUpdate("t1", status="pending"))
    stepper.boundary()
    assert [body.KIND for body in stepper.feed(done("t1"))] == ["tool_changed"]
    assert [body.KIND for body in stepper.feed(MessageText("so"))] == ["step_started"]


@pytest.mark.parametrize("update", [MessageText(""), ThoughtText("")])
def test_empty_text_is_nothing(update: SessionUpdate) -> None:
    assert cut("updates", [update]) == []


def test_a_message_in_a_thousand_pieces_is_one_event() -> None:
    assert said(*[MessageText("x")] * 1000) == ["x" * 1000]


def test_text_is_let_go_before_it_grows_beyond_its_limit() -> None:
    piece = "x" * (TEXT_LIMIT // 2)
    assert [len(text) for text in said(*[MessageText(piece)] * 5)] == [
        TEXT_LIMIT,
        TEXT_LIMIT,
        TEXT_LIMIT // 2,
    ]


def test_one_huge_piece_becomes_events_of_bounded_size() -> None:
    text = "x" * (TEXT_LIMIT * 3 + 1)
    pieces = said(MessageText(text))
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= TEXT_LIMIT


def test_a_flush_lets_go_of_held_text_inside_the_same_step() -> None:
    stepper = Stepper("updates")
    stepper.feed(MessageText("a"))
    assert stepper.holding
    assert stepper.flush() == [ev.Said("a")]
    assert not stepper.holding
    assert stepper.flush() == []
    assert stepper.feed(MessageText("b")) == []
    assert stepper.boundary() == [ev.Said("b"), ev.StepEnded()]


def test_noise_is_cut_and_belongs_to_no_step() -> None:
    (noise,) = cut("updates", [Noise("stderr", "x" * 9000)])
    assert isinstance(noise, ev.NoiseHeard)
    assert len(noise.sample) == 500


def test_an_unset_field_stays_unset() -> None:
    bodies = cut("updates", [ToolUpdate("t1", title="ls", content=({"a": 1},))])
    assert ev.ToolChanged("t1", title="ls", content=[{"a": 1}]) in bodies
