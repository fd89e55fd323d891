from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.agents.bench_agent.script import ScriptError, fill, holds, read_script

NAMES = frozenset({"order", "prompt", "tag"})
VARIABLES = {"order": {"id": 7, "lines": [{"sku": "A-1"}], "open": True}, "prompt": "hi"}


def test_a_script_keeps_its_turns_and_plays_the_last_one_again() -> None:
    script = read_script(
        """
        [[turn]]
        [[turn.step]]
        say = "one"
        [[turn]]
        [[turn.step]]
        run = "true"
        save = "out"
        timeout = 5
        """
    )
    assert [step.kind for step in script.steps(0)] == ["say"]
    assert script.steps(1) == script.steps(7)
    assert script.steps(1)[0].timeout == 5.0
    assert script.names == {"tag", "seed", "prompt", "turn", "out"}


def test_every_fault_is_told_at_once_with_its_place() -> None:
    text = """
    extra = 1
    [[turn]]
    [[turn.step]]
    say = 3
    [[turn.step]]
    call = { url = "http://x", body = 1 }
    [[turn.step]]
    say = "a"
    run = "b"
    [[turn.step]]
    say = "a"
    when = "a = b"
    [[turn.step]]
    say = "a"
    timeout = "soon"
    """
    with pytest.raises(ScriptError) as caught:
        read_script(text)
    said = str(caught.value)
    for part in (
        "unknown key 'extra'",
        "turn 1 step 1: say must be text",
        "turn 1 step 2: call lacks 'method'",
        "turn 1 step 2: call has an unknown key 'body'",
        "turn 1 step 3: needs exactly one of",
        "turn 1 step 4: cannot read the condition",
        "turn 1 step 5: timeout must be seconds",
    ):
        assert part in said


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("{order.id}", 7),
        ("no {order.id}!", "no 7!"),
        ("{order.lines.0.sku} {order.open}", "A-1 true"),
        ("{order.lines}", [{"sku": "A-1"}]),
        ("awk '{print}' ${order} {unknown.x} {}", "awk '{print}' ${order} {unknown.x} {}"),
        ({"id": "{order.id}", "keep": [1, "{prompt}"]}, {"id": 7, "keep": [1, "hi"]}),
        (5, 5),
    ],
)
def test_templates_fill_only_known_names_and_keep_types(text: object, filled: object) -> None:
    assert fill(text, VARIABLES, NAMES) == filled


@pytest.mark.parametrize("text", ["{order.nope}", "a {order.lines.5}", "{tag}"])
def test_a_known_name_without_that_value_is_an_error(text: str) -> None:
    with pytest.raises(ScriptError, match="nothing is saved as"):
        fill(text, VARIABLES, NAMES)


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("", True),
        ("order.id == 7", True),
        ("order.id != 7", False),
        ("order.id == '7'", False),
        ("order.id in [1, 7]", True),
        ("order.id not in [1, 7,]", False),
        ("'h' in prompt", True),
        ('prompt in ["hi", "ho"] and order.open == true', True),
        ("prompt == 'hi' and order.id == -1.5", False),
        ("missing.thing == 'x'", False),
        ("missing != 'x'", True),
        ("'sku' in order.lines.0", True),
        ("1 in order.id", False),
    ],
)
def test_conditions_compare_and_nothing_else(when: str, expected: bool) -> None:
    assert holds(when, VARIABLES) is expected


@pytest.mark.parametrize(
    "when",
    ["order.id", "== 7", "a == ", "a == 1 or b == 2", "f(1) == 2", "a in [1", "a == 1 and", "\\"],
)
def test_a_condition_that_is_no_comparison_is_an_error(when: str) -> None:
    with pytest.raises(ScriptError):
        holds(when, VARIABLES)


@given(st.text(max_size=40))
def test_no_condition_however_strange_does_more_than_compare_or_refuse(when: str) -> None:
    with contextlib.suppress(ScriptError):
        assert holds(when, VARIABLES) in (True, False)


@given(st.text(max_size=40))
def test_text_without_known_names_stays_as_it_is(text: str) -> None:
    if not re.search(r"\{(order|prompt|tag)", text):
        assert fill(text, VARIABLES, NAMES) == text
