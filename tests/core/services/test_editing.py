"""An edited history: what the new session is told, from where, in which world."""

from __future__ import annotations

import json

import pytest

from core.contracts.errors import CheckpointError, UsageError
from core.contracts.values import Fidelity
from core.kernel import events as ev
from core.kernel.backup import continuation_key
from core.kernel.branch import check_fork, fidelity_of
from core.kernel.replay import fold
from core.kernel.tree import Tree
from core.services.branching import BranchRequest
from core.services.editing import Edit, edited, read_edit
from tests.core.kernel.golden import QUESTION
from tests.core.kernel.logs import log
from tests.core.services.test_scoring import captured


def history() -> Tree:
    """Prompt n3, a step n4 with a message and two calls, an ask n10 (stored), a step n13."""
    return fold(
        log(
            (0, ev.LineStarted(None, {"kind": "start"}, main=True)),
            (0, ev.Prompted("Refund the order.", "task", "task", "task")),
            (0, ev.StepStarted("updates")),
            (0, ev.Thought("Which one?")),
            (0, ev.Said("I look. ")),
            (0, ev.ToolChanged("t1", "GET /orders", "fetch", "completed", {"q": 1}, ["A-17"])),
            (0, ev.ToolChanged("t2", "GET /stock", "fetch", "completed", None, "empty")),
            (0, ev.Said("I have to ask.")),
            (0, ev.Asked(0, QUESTION)),
            (0, captured("n10")),
            (0, ev.Answered("n10", "accept", {"order": "A-17"}, "ann", "cli")),
            (0, ev.StepStarted("updates")),
            (0, ev.Said("Refunded A-17.")),
            (0, ev.StepEnded()),
            (0, ev.TurnEnded("end_turn", 1, 1.0)),
        )
    )


def told(edit: Edit) -> str:
    return edited(history(), edit, actor="ann", via="cli")[2].text


def test_a_message_is_replaced_and_nothing_after_it_is_told() -> None:
    text = told(Edit("n13", "message", "Refunded A-21."))
    assert "[you said]\nRefunded A-21." in text
    assert "Refunded A-17." not in text
    assert "[user]\nRefund the order." in text
    assert 'result: ["A-17"]' in text
    assert "Which of the two orders?\n[user answered]\nA-17" in text
    assert text.endswith("Go on from here.")
    assert "up to n10 of this history" in text, "the world is older than the edited message"


def test_thoughts_are_not_told() -> None:
    assert "Which one?" not in told(Edit("n13", "message", "x"))


def test_the_last_result_of_a_step_is_replaced_and_what_followed_it_is_gone() -> None:
    tree = history()
    with pytest.raises(CheckpointError, match="no state is stored at n4 or before"):
        edited(tree, Edit("n4", "tool_result", "3 left"), actor="", via="")
    tree.nodes["n1"].checkpoint = tree.nodes["n10"].checkpoint
    _, _, way = edited(tree, Edit("n4", "tool_result", "3 left"), actor="", via="")
    assert "[tool] GET /stock\nresult: 3 left" in way.text
    assert "I look. " in way.text
    assert "I have to ask." not in way.text


def test_an_edited_prompt_takes_the_place_of_the_prompt_itself() -> None:
    tree = history()
    tree.nodes["n1"].checkpoint = tree.nodes["n10"].checkpoint
    node, _, way = edited(tree, Edit("n3", "prompt", "Replace the order."), actor="", via="")
    assert (node.id, way.text) == ("n1", "Replace the order.")


def test_the_child_is_a_persons_choice_and_told_a_transcript() -> None:
    tree = history()
    node, checkpoint, way = edited(tree, Edit("n13", "message", "x"), actor="ann", via="cli")
    assert (way.origin, way.actor, node.id, checkpoint.node) == ("human", "ann", "n13", "n10")
    assert fidelity_of(checkpoint, node, way.kind) is Fidelity.TRANSCRIPT
    check_fork(checkpoint, node, [way])
    saved = way.to_json()
    assert saved["edit"] == {"node": "n13", "role": "message", "text": "x"}
    assert "text" not in saved, "the whole history is in the tree already"
    other = edited(tree, Edit("n13", "message", "y"), actor="ann", via="cli")[2]
    assert continuation_key(saved) != continuation_key(other.to_json())


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (Edit("n99", "message", "x"), "no node 'n99'"),
        (Edit("n10", "message", "x"), "has no message to edit"),
        (Edit("n13", "tool_result", "x"), "has no tool result to edit"),
        (Edit("n13", "prompt", "x"), "has no prompt to edit"),
    ],
)
def test_what_a_node_does_not_have_cannot_be_edited(edit: Edit, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        edited(history(), edit, actor="", via="")


def test_an_edit_is_read_from_json_or_toml_and_travels_whole() -> None:
    wanted = Edit("n4", "message", "Hello")
    assert read_edit(json.dumps(wanted.to_json()), "e.json") == wanted
    assert read_edit('node = "n4"\nrole = "message"\ntext = "Hello"', "e.toml") == wanted
    request = BranchRequest("", edit=wanted)
    assert BranchRequest.from_json(request.to_json()) == request


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "cannot be read"),
        ("[]", "needs 'node'"),
        ('{"node": "n1", "role": "message"}', "needs 'text'"),
        ('{"node": "n1", "role": "thought", "text": "x"}', "cannot be 'thought'"),
    ],
)
def test_a_file_that_is_no_edit_is_refused(text: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        read_edit(text, "edit.json")
