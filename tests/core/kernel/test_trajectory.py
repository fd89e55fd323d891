"""A trajectory: one path, whatever else grew in the tree."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.contracts.store import Event
from core.kernel import events as ev
from core.kernel.replay import fold
from core.kernel.trajectory import (
    AskItem,
    Item,
    PermissionItem,
    PromptItem,
    TextItem,
    ToolItem,
    trajectory,
)
from core.kernel.tree import Tree
from tests.core.kernel.logs import log, number, plausible_logs

MAIN = (0, ev.LineStarted(None, {"kind": "start"}, main=True))
ASK = ev.Asked(0, {"question": "Which?", "source": "elicitation", "fields": []})


def renumbered(events: Sequence[Event], after: int) -> list[Event]:
    """The same happenings as later rows of another log."""
    drafts = [
        ev.encode(ev.decode(event.kind, event.version, event.payload), line=event.line)
        for event in events
    ]
    return number(drafts, after=after)


@given(plausible_logs(), st.data())
def test_what_other_lines_do_later_never_changes_it(
    events: list[Event], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(2, len(events)))
    before = fold(events[:cut])
    leaf = data.draw(st.sampled_from(sorted(before.nodes)))
    own = before.nodes[leaf].line
    others = [event for event in events[cut:] if event.line != own]
    seen = trajectory(before, leaf)
    after = fold(renumbered(others, cut), fold(events[:cut]))
    assert trajectory(after, leaf) == seen


@given(plausible_logs(), st.data())
def test_it_is_the_path_from_the_root_and_nothing_else(
    events: list[Event], data: st.DataObject
) -> None:
    tree = fold(events)
    leaf = data.draw(st.sampled_from(sorted(tree.nodes)))
    path = [node.id for node in tree.nodes[leaf].path]
    visited = [item.node for item in trajectory(tree, leaf).items]
    assert sorted(visited, key=path.index) == visited
    assert set(visited) <= set(path)


def everything() -> Tree:
    return fold(
        log(
            MAIN,
            (0, ev.Prompted("Go.", "task", turn=1)),
            (0, ev.StepStarted("updates")),
            (0, ev.Thought("hm")),
            (0, ev.ToolChanged("t1", title="rm", status="pending")),
            (0, ev.PermissionSettled("rm", [], "yes", "auto", "auto", "t1")),
            (0, ev.ToolChanged("t1", status="completed", raw_output=1)),
            (0, ev.Said("gone")),
            (0, ev.StepEnded()),
            (0, ASK),
            (0, ev.Answered("n11", "accept", {"size": "small"}, "ann", "cli", 2.0)),
            (0, ev.StepStarted("updates")),
            (0, ev.Said("small")),
            (0, ev.StepEnded()),
            (0, ev.Prompted("More.", "nudge", "sim", "user-model", turn=2)),
            (1, ev.LineStarted("n11", {"kind": "answer", "action": "decline", "actor": "ben"})),
            (1, ev.StepStarted("updates")),
            (1, ev.Said("then not")),
        )
    )


def words(items: Sequence[Item]) -> list[str]:
    found: list[str] = []
    for item in items:
        match item:
            case PromptItem(text=text, origin=origin, turn=turn):
                found.append(f"{origin} {turn}: {text}")
            case TextItem(kind=kind, text=text):
                found.append(f"{kind}: {text}")
            case ToolItem(call=call):
                found.append(f"tool: {call.title} {call.status}")
            case PermissionItem(permission=permission):
                found.append(f"permission: {permission.chosen}")
            case AskItem(answer=answer):
                found.append(f"ask: {answer.label if answer else 'waits'}")
    return found


def test_everything_is_told_in_the_order_it_happened() -> None:
    tree = everything()
    told = trajectory(tree, tree.lines[0].leaf_id)
    assert words(told.items) == [
        "task 1: Go.",
        "thought: hm",
        "tool: rm completed",
        "permission: yes",
        "message: gone",
        "ask: small",
        "message: small",
        "nudge 2: More.",
    ]
    assert told.prompts == ("Go.", "More.")
    assert (told.rollout, told.line, told.reward) == ("r1", 0, None)


def test_a_childs_answer_is_its_continuation() -> None:
    tree = everything()
    told = trajectory(tree, tree.lines[1].leaf_id)
    assert words(told.items)[-2:] == ["ask: decline", "message: then not"]
    (ask,) = [item for item in told.items if isinstance(item, AskItem)]
    assert ask.answer is not None
    assert (ask.answer.actor, ask.answer.via) == ("ben", "branch")


def test_a_resample_keeps_the_answer_of_the_line_it_resamples() -> None:
    tree = fold(
        log(
            MAIN,
            (0, ASK),
            (0, ev.Answered("n3", "accept", {"size": "small"}, "ann", "cli")),
            (1, ev.LineStarted("n3", {"kind": "resample"})),
            (1, ev.StepStarted("updates")),
        )
    )
    assert words(trajectory(tree, tree.lines[1].leaf_id).items) == ["ask: small"]


def test_a_trajectory_that_ends_at_a_question_does_not_know_its_answer_if_it_waits() -> None:
    tree = fold(log(MAIN, (0, ASK)))
    assert words(trajectory(tree, "n3").items) == ["ask: waits"]


def test_its_reward_is_the_leafs_own() -> None:
    verdict = ev.Scored("n3", 0.5, {}, [], "output", "terminal", [0.0, 1.0], "v", True)
    tree = fold(log(MAIN, (0, ev.Prompted("Go.", "task")), (0, verdict), (0, ASK)))
    assert trajectory(tree, "n3").reward == 0.5
    assert trajectory(tree, "n5").reward is None


def test_a_node_that_is_not_in_the_tree_is_an_error() -> None:
    with pytest.raises(KeyError, match="n99"):
        trajectory(everything(), "n99")


def test_the_root_alone_tells_nothing() -> None:
    assert trajectory(everything(), "n1").items == ()
