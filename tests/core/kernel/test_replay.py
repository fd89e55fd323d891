"""Folding a log: deterministic, total on every prefix, and the same in any pieces."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.contracts.errors import StoreError
from core.contracts.store import Event
from core.contracts.values import JsonObject
from core.kernel import events as ev
from core.kernel.replay import fold
from core.kernel.trajectory import trajectory
from core.kernel.tree import Tree
from core.services.views import rows
from tests.core.kernel.logs import (
    ROOT,
    check_shape,
    implausible_logs,
    log,
    number,
    plausible_logs,
    summary,
    told,
)

LOGS = plausible_logs() | implausible_logs()
MAIN = (0, ev.LineStarted(None, {"kind": "start"}, main=True))


@given(LOGS)
def test_the_same_log_gives_the_same_tree(events: list[Event]) -> None:
    assert summary(fold(events)) == summary(fold(events))


@given(LOGS, st.data())
def test_every_prefix_folds_to_a_whole_tree(events: list[Event], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(events)))
    tree = fold(events[:cut])
    check_shape(tree)
    assert tree.seq == cut
    rows(tree)


@given(LOGS, st.data())
def test_in_two_pieces_as_at_once(events: list[Event], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(events)))
    begun = fold(events[:cut])
    assert summary(fold(events[cut:], begun)) == summary(fold(events))


@given(plausible_logs(), st.data())
def test_a_gap_is_an_error_that_names_both_sides(events: list[Event], data: st.DataObject) -> None:
    if len(events) < 3:
        return
    lost = data.draw(st.integers(1, len(events) - 2))
    with pytest.raises(StoreError, match=f"jumps from event {lost} to {lost + 2}"):
        fold(events[:lost] + events[lost + 1 :])


def test_an_event_twice_is_an_error() -> None:
    events = log(MAIN)
    with pytest.raises(StoreError, match="jumps from event 2 to 2"):
        fold([*events, events[-1]])


def test_a_log_that_does_not_begin_with_its_root_is_an_error() -> None:
    with pytest.raises(StoreError, match="begins with a 'said' event"):
        fold(number([ev.encode(ev.Said("hello"))]))


def test_a_kind_or_version_of_a_later_program_is_an_error() -> None:
    events = log(MAIN, (0, ev.Said("hello")))
    with pytest.raises(StoreError, match="newer than this program"):
        fold([*events[:-1], dataclasses.replace(events[-1], kind="teleported")])
    with pytest.raises(StoreError, match="newer than this program"):
        fold([*events[:-1], dataclasses.replace(events[-1], version=99)])


def test_keys_of_a_later_program_are_ignored() -> None:
    events = log(MAIN, (0, ev.StepStarted("updates")), (0, ev.Said("hello")))
    later = [
        dataclasses.replace(event, payload={**event.payload, "mood": "sunny"}) for event in events
    ]
    assert summary(fold(later)) == summary(fold(events))


def test_a_second_root_changes_nothing() -> None:
    tree = fold(log(MAIN, (0, ev.Prompted("Go.", "task")), (0, ROOT)))
    check_shape(tree)
    assert tree.root_id == "n1"


def test_lines_that_seem_to_grow_from_each_other_do_not_loop() -> None:
    tree = fold(
        log(
            MAIN,
            (0, ev.Prompted("a", "task")),
            (1, ev.LineStarted("n3", {"kind": "resample"})),
            (1, ev.Prompted("b", "nudge")),
            (0, ev.LineStarted("n5", {"kind": "resample"})),
            (0, ev.ToolChanged("t1", title="ls")),
        )
    )
    check_shape(tree)


# -- what the events mean --------------------------------------------------------


def asked(text: str = "Which?") -> JsonObject:
    return {"question": text, "source": "elicitation", "fields": []}


def branched() -> list[Event]:
    """A question asked by a tool, answered on its own line, then forked with another answer."""
    return log(
        MAIN,
        (0, ev.Prompted("Go.", "task")),
        (0, ev.StepStarted("updates")),
        (0, ev.ToolChanged("t1", title="ask_user", status="pending")),
        (0, ev.StepEnded()),
        (0, ev.Asked(0, asked(), "t1")),
        (0, ev.Answered("n7", "accept", {"size": "small"}, "ann", "cli")),
        (0, ev.ToolChanged("t1", status="completed", raw_output="small")),
        (0, ev.StepStarted("updates")),
        (0, ev.Said("Small it is.")),
        (0, ev.StepEnded()),
        (
            1,
            ev.LineStarted(
                "n7", {"kind": "answer", "action": "accept", "content": {"size": "large"}}
            ),
        ),
    )


def test_a_child_does_not_know_what_its_parent_learnt_after_the_fork() -> None:
    tree = fold(branched())
    assert told(tree, tree.lines[1].leaf_id)[:2] == ["prompt Go.", "tool t1 completed small"]
    later = number(
        [
            ev.encode(ev.StepStarted("updates"), line=1),
            ev.encode(ev.Said("Large it is."), line=1),
        ],
        after=tree.seq,
    )
    fold(later, tree)
    assert told(tree, tree.lines[1].leaf_id) == [
        "prompt Go.",
        "tool t1 pending None",
        "ask 0 large",
        "message Large it is.",
    ]


def test_each_line_has_its_own_result_of_the_call_it_forked_at() -> None:
    tree = fold(branched())
    later = number(
        [
            ev.encode(ev.ToolChanged("t1", status="completed", raw_output="large"), line=1),
            ev.encode(ev.StepStarted("updates"), line=1),
            ev.encode(ev.Said("Large it is."), line=1),
        ],
        after=tree.seq,
    )
    fold(later, tree)
    assert "tool t1 completed small" in told(tree, tree.lines[0].leaf_id)
    assert "tool t1 completed large" in told(tree, tree.lines[1].leaf_id)
    assert tree.tool_call(0, "t1").raw_output == "small"
    assert tree.tool_call(1, "t1").raw_output == "large"
    assert tree.tool_call(1, "t1").title == "ask_user"
    assert len([node for node in tree.nodes.values() if node.tool_calls]) == 1


def test_a_child_of_a_finished_step_knows_its_results() -> None:
    tree = fold(
        log(
            MAIN,
            (0, ev.StepStarted("updates")),
            (0, ev.ToolChanged("t1", title="ls", status="pending")),
            (0, ev.ToolChanged("t1", status="completed", raw_output="a b")),
            (0, ev.StepEnded()),
            (1, ev.LineStarted("n3", {"kind": "resample"})),
            (1, ev.StepStarted("updates")),
        )
    )
    assert told(tree, "n8") == ["tool t1 completed a b"]


def test_an_unknown_tool_call_is_pending_and_nameless() -> None:
    call = fold(log(MAIN)).tool_call(0, "nowhere")
    assert (call.title, call.status) == ("", "pending")


def test_a_nudge_by_a_person_assists_its_line_and_what_forks_after_it() -> None:
    tree = fold(
        log(
            MAIN,
            (0, ev.Prompted("Go.", "task", via="task")),
            (0, ev.Prompted("Look again.", "nudge", "ann", "cli")),
            (1, ev.LineStarted("n3", {"kind": "resample"})),
            (2, ev.LineStarted("n4", {"kind": "resample"})),
            (2, ev.Prompted("More.", "nudge", "sim", "user-model")),
            (3, ev.LineStarted("n7", {"kind": "resample"})),
            (4, ev.LineStarted("n3", {"kind": "edit"}, assisted=True)),
            (4, ev.Prompted("x", "task")),
            (5, ev.LineStarted("n10", {"kind": "resample"})),
        )
    )
    assisted = {number: line.assisted for number, line in tree.lines.items()}
    assert assisted == {0: True, 1: False, 2: True, 3: True, 4: True, 5: True}
    assert not trajectory(tree, "n3").assisted
    assert trajectory(tree, "n4").assisted


def test_a_child_counts_its_turns_from_the_node_it_grew_from() -> None:
    tree = fold(
        log(
            MAIN,
            (0, ev.Prompted("Go.", "task", turn=1)),
            (0, ev.Prompted("More.", "nudge", "sim", "user-model", turn=2)),
            (1, ev.LineStarted("n3", {"kind": "resample"})),
        )
    )
    assert (tree.lines[0].turns, tree.lines[1].turns) == (2, 1)


def test_a_nudge_by_the_user_model_does_not_assist() -> None:
    tree = fold(log(MAIN, (0, ev.Prompted("More.", "nudge", "sim", "user-model"))))
    assert not tree.lines[0].assisted


def test_the_newest_verdict_counts_and_all_are_kept() -> None:
    def verdict(reward: float) -> ev.Scored:
        return ev.Scored("n3", reward, {}, [], "output", "terminal", [0.0, 1.0], "v", True)

    tree = fold(log(MAIN, (0, ev.Prompted("Go.", "task")), (0, verdict(0.0)), (0, verdict(1.0))))
    node = tree.nodes["n3"]
    assert [(item.number, item.result.reward) for item in node.verdicts] == [(1, 0.0), (2, 1.0)]
    assert node.verdict is not None
    assert node.verdict.result.reward == 1.0
    assert trajectory(tree, "n3").reward == 1.0


def test_a_verdict_on_a_node_that_is_not_there_is_ignored() -> None:
    verdict = ev.Scored("n99", 1.0, {}, [], "output", "terminal", [0.0, 1.0], "v", True)
    tree = fold(log(MAIN, (0, verdict)))
    assert all(node.verdict is None for node in tree.nodes.values())


def test_a_verifier_that_failed_leaves_why_until_there_is_a_verdict() -> None:
    failed = ev.ScoringFailed("n3", "it wrote nothing", "reward_missing", {"stdout": "hm"})
    scored = ev.Scored("n3", 1.0, {}, [], "output", "terminal", [0.0, 1.0], "v", True)
    events = log(MAIN, (0, ev.Prompted("Go.", "task")), (0, failed), (0, scored))
    before = fold(events[:-1]).nodes["n3"]
    assert before.unscored is not None
    assert before.unscored.error_category == "reward_missing"
    assert before.verdict is None
    assert fold(events).nodes["n3"].unscored is None


def test_another_line_becomes_the_main_one_only_if_it_exists() -> None:
    start = (1, ev.LineStarted("n1", {"kind": "resample"}))
    switched = fold(log(MAIN, start, (1, ev.MainLineSet(1, "restore", "ann"))))
    assert switched.main == 1
    assert fold(log(MAIN, start, (1, ev.MainLineSet(7, "restore")))).main == 0


def test_a_new_attempt_is_the_main_line_and_a_branch_is_not() -> None:
    first = log(MAIN, (0, ev.Prompted("Go.", "task")), (1, ev.LineStarted("n3", {})))
    assert fold(first).main == 0
    again = number(
        [
            ev.encode(ev.OwnerChanged("engine-2", "its owner died"), line=2),
            ev.encode(ev.LineStarted(None, {"kind": "attempt"}, main=True), line=2),
        ],
        after=len(first),
        attempt=2,
    )
    tree = fold([*first, *again])
    assert (tree.main, tree.attempt) == (2, 2)
    assert tree.lines[2].parent_id == tree.root_id
    assert (tree.lines[0].attempt, tree.lines[2].attempt) == (1, 2)


def test_taking_over_clears_how_it_had_ended() -> None:
    ended = ev.RolloutEnded("interrupted", "Ctrl-C", "interrupted", 3.0)
    tree = fold(log(MAIN, (0, ended), (0, ev.OwnerChanged("engine-2", "resumed"))))
    assert (tree.outcome, tree.error, tree.error_category) == (None, None, None)
    assert (tree.ended_at, tree.seconds) == (None, None)


def test_a_line_that_ends_leaves_nothing_open() -> None:
    tree = fold(
        log(
            MAIN,
            (0, ev.Asked(0, asked("one"))),
            (0, ev.Asked(1, asked("two"))),
            (0, ev.StepStarted("updates")),
            (1, ev.LineStarted("n3", {"kind": "resample"})),
            (1, ev.Asked(1, asked("three"))),
            (0, ev.LineEnded("failed", "the agent died", "agent_crashed")),
        )
    )
    assert {node.id for node in tree.nodes.values() if node.open} == {"n7"}


def test_an_answer_settles_only_a_question_of_its_own_line() -> None:
    answered = ev.Answered("n3", "accept", {"a": 1}, "ann", "cli")
    tree = fold(
        log(
            MAIN,
            (0, ev.Asked(0, asked())),
            (1, ev.LineStarted("n3", {"kind": "resample"})),
            (1, answered),
        )
    )
    assert tree.nodes["n3"].open
    assert tree.nodes["n3"].answer is None


def test_text_of_one_kind_is_joined_and_order_is_kept() -> None:
    tree = fold(
        log(
            MAIN,
            (0, ev.StepStarted("updates")),
            (0, ev.Thought("a")),
            (0, ev.Thought("b")),
            (0, ev.Said("c")),
            (0, ev.ToolChanged("t1", title="ls")),
            (0, ev.Said("d")),
        )
    )
    blocks = [(block.kind, block.text, block.ref) for block in tree.nodes["n3"].blocks]
    assert blocks == [
        ("thought", "ab", ""),
        ("message", "c", ""),
        ("tool", "", "t1"),
        ("message", "d", ""),
    ]


def deep(depth: int) -> Tree:
    """One line of ``depth`` steps, each with a tool call."""
    bodies: list[tuple[int, ev.Body]] = [MAIN]
    for step in range(depth):
        bodies += [
            (0, ev.StepStarted("updates")),
            (0, ev.ToolChanged(f"t{step}", title="ls", status="completed")),
            (0, ev.StepEnded()),
        ]
    return fold(log(*bodies))


def test_a_tree_three_thousand_deep_can_be_walked() -> None:
    tree = deep(3000)
    leaf = tree.main_leaf
    assert leaf is not None
    assert len(leaf.path) == 3001
    assert len(list(tree.root.subtree)) == 3001
    assert len(trajectory(tree, leaf.id).items) == 3000
    assert len(rows(tree)) == 3001


def test_a_thousand_forks_of_forks_can_be_walked() -> None:
    count = 1000
    bodies: list[tuple[int, ev.Body]] = [MAIN, (0, ev.Prompted("0", "task"))]
    for line in range(1, count):
        bodies.append((line, ev.LineStarted(f"n{2 * line + 1}", {"kind": "resample"})))
        bodies.append((line, ev.Prompted(str(line), "nudge", via="user-model")))
    tree = fold(log(*bodies))
    assert len(tree.ancestry(count - 1)) == count
    assert len(tree.nodes[tree.lines[count - 1].leaf_id].path) == count + 1
    assert max(row.depth for row in rows(tree)) == count - 1


def test_a_rollout_that_grows_keeps_how_it_had_ended_until_its_main_line_moves() -> None:
    grown: list[tuple[int, ev.Body]] = [
        (0, ev.LineStarted(None, {"kind": "start"}, main=True)),
        (0, ev.RolloutEnded("failed", "it broke", "agent_crashed")),
        (0, ev.Reopened("engine-2", "ann", "branch")),
    ]
    assert fold(log(*grown)).before == ("failed", "it broke", "agent_crashed")
    moved = (1, ev.LineStarted(None, {"kind": "resample"}, main=True))
    assert fold(log(*grown, moved)).before is None
    assert fold(log(*grown, (0, ev.RolloutEnded("failed")))).before is None
