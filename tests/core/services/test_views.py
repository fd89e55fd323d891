"""What every face shows of a tree: rows, labels, and the line above them."""

from __future__ import annotations

import pytest
from hypothesis import given

from core.contracts.store import Event
from core.contracts.values import JsonObject
from core.kernel import events as ev
from core.kernel.replay import fold
from core.services.views import TreeRow, first_line, head, rows
from tests.core.kernel.logs import implausible_logs, log, plausible_logs

MAIN = (0, ev.LineStarted(None, {"kind": "start"}, main=True))
QUESTION: JsonObject = {
    "question": "Which size?\nPlease choose.",
    "source": "elicitation",
    "fields": [
        {
            "name": "size",
            "options": [{"value": "s", "label": "Small"}, {"value": "l", "label": "Large"}],
        }
    ],
}
VERDICT = ev.Scored("n8", 0.5, {"done": 0.5}, [], "output", "terminal", [0.0, 1.0], "v", False)


def shown(*bodies: tuple[int, ev.Body]) -> list[TreeRow]:
    return rows(fold(log(MAIN, *bodies)))


@given(plausible_logs())
def test_every_node_has_one_row_and_parents_come_first(events: list[Event]) -> None:
    tree = fold(events)
    listed = [row.node for row in rows(tree) if row.kind != "line"]
    assert sorted(listed) == sorted(tree.nodes)
    for node in tree.nodes.values():
        if node.parent_id:
            assert listed.index(node.parent_id) < listed.index(node.id)


@given(plausible_logs())
def test_every_child_line_has_one_row_of_its_own_before_its_nodes(events: list[Event]) -> None:
    tree = fold(events)
    listed = rows(tree)
    headed = [row.line for row in listed if row.kind == "line"]
    assert len(headed) == len(set(headed))
    for number in headed:
        own = [index for index, row in enumerate(listed) if row.line == number]
        assert listed[own[0]].kind == "line"


@given(plausible_logs() | implausible_logs())
def test_rows_after_a_node_are_the_rest_of_all_rows(events: list[Event]) -> None:
    tree = fold(events)
    cut = tree.seq // 2
    everything = [row for row in rows(tree) if row.kind != "line"]
    later = [row for row in rows(tree, after=cut) if row.kind != "line"]
    assert later == [row for row in everything if int(row.node[1:]) > cut]


@given(plausible_logs() | implausible_logs())
def test_a_head_can_be_shown_of_any_tree(events: list[Event]) -> None:
    shown_head = head(fold(events))
    assert shown_head.lines >= 0
    assert shown_head.steps >= 0


def test_an_empty_tree_has_no_rows() -> None:
    assert rows(fold([])) == []


def test_steps_are_named_after_what_the_agent_did() -> None:
    found = shown(
        (0, ev.Prompted("Do it.\nNow.", "task")),
        (0, ev.StepStarted("updates")),
        (0, ev.Thought("Let me look.")),
        (0, ev.ToolChanged("t1", title="ls", kind="execute", status="completed")),
        (0, ev.StepStarted("updates")),
        (0, ev.ToolChanged("t2", title="cat", status="completed")),
        (0, ev.ToolChanged("t3", kind="edit", status="completed")),
        (0, ev.StepStarted("updates")),
        (0, ev.Said("\n\nDone.\nAll of it.")),
        (0, ev.Prompted("Sure?", "nudge")),
        (0, ev.StepStarted("updates")),
        (0, ev.Thought("Hm.")),
    )
    assert [(row.label, row.detail) for row in found] == [
        ("desk · fake", ""),
        ("prompt", "Do it."),
        ("ls", "Let me look."),
        ("cat +1", ""),
        ("message", "Done."),
        ("nudge", "Sure?"),
        ("thought", "Hm."),
    ]


def test_a_question_shows_its_options_and_then_its_answer() -> None:
    asked = (0, ev.Asked(0, QUESTION))
    waiting = shown(asked)[-1]
    assert (waiting.label, waiting.detail) == ("ask_user", "Which size? [Small | Large]")
    assert waiting.state == "waiting"
    answered = shown(asked, (0, ev.Answered("n3", "accept", {"size": "s"}, "ann", "cli")))[-1]
    assert (answered.label, answered.state) == ("ask_user → s", "answered")


def test_a_question_that_died_with_its_line_was_not_answered() -> None:
    row = shown(
        (0, ev.Asked(0, QUESTION)), (0, ev.LineEnded("failed", "it died", "agent_crashed"))
    )[-1]
    assert row.state == "failed"


@pytest.mark.parametrize("outcome", ["failed", "cancelled", "interrupted"])
def test_how_a_line_ended_stands_on_its_last_node(outcome: str) -> None:
    found = shown(
        (0, ev.Prompted("Go.", "task")),
        (0, ev.StepStarted("updates")),
        (0, ev.LineEnded(outcome)),
    )
    assert [row.state for row in found] == ["done", "done", outcome]


def test_a_running_step_is_open() -> None:
    assert shown((0, ev.StepStarted("updates")))[-1].state == "open"


def test_agent_text_is_cleaned_on_its_way_to_a_row() -> None:
    found = shown(
        (0, ev.Prompted("\x1b[31mGo.", "task")),
        (0, ev.StepStarted("updates")),
        (0, ev.ToolChanged("t1", title="rm\x1b[2J\u202e")),
        (0, ev.Asked(0, {"question": "\x1b]0;x\x07Which?", "fields": []})),
    )
    text = "".join(row.label + row.detail for row in found)
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_the_head_tells_the_main_lines_reward() -> None:
    tree = fold(
        log(
            MAIN,
            (0, ev.PhaseStarted("execute")),
            (0, ev.Prompted("Go.", "task")),
            (0, ev.NoiseHeard("stdout", "x", 3)),
            (0, ev.StepStarted("updates")),
            (0, ev.StepEnded()),
            (0, ev.StepStarted("updates")),
            (0, VERDICT),
            (0, ev.RolloutEnded("scored", seconds=2.5)),
        )
    )
    shown_head = head(tree)
    assert (shown_head.task, shown_head.agent, shown_head.state) == ("desk", "fake", "scored")
    assert (shown_head.reward, shown_head.reward_range) == (0.5, (0.0, 1.0))
    assert shown_head.items == {"done": 0.5}
    assert (shown_head.steps, shown_head.noise, shown_head.seconds) == (2, 3, 2.5)
    assert shown_head.phase == "execute"
    assert not shown_head.hardened


def test_the_head_says_when_somebody_is_waited_for() -> None:
    tree = fold(log(MAIN, (0, ev.Asked(0, QUESTION))))
    assert (head(tree).state, head(tree).waiting) == ("waiting", 1)
    assert head(fold(log(MAIN))).state == "running"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("\n \n", ""),
        ("\n  one  \ntwo", "one"),
        ("x" * 200, "x" * 200),
        ("x" * 201, "x" * 199 + "…"),
    ],
)
def test_the_first_line_with_anything_on_it(text: str, line: str) -> None:
    assert first_line(text) == line
