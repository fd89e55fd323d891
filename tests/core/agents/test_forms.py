"""The shapes of real agents' forms, and what goes back to them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.agents.acp.forms import (
    elicitation_ask,
    elicitation_reply,
    permission_ask,
    permission_asked,
    permission_reply,
)
from core.contracts.agent import Answer, AskField, Option
from core.contracts.values import JsonObject, JsonValue


def form(
    properties: JsonObject, message: str = "", required: list[JsonValue] | None = None
) -> JsonObject:
    schema: JsonObject = {"type": "object", "properties": properties}
    if required is not None:
        schema["required"] = required
    return {"sessionId": "s", "mode": "form", "message": message, "requestedSchema": schema}


CLAUDE = form(
    {
        "question_0": {
            "type": "string",
            "title": "Which database?",
            "oneOf": [
                {"const": "pg", "title": "PostgreSQL", "description": "a server"},
                {"const": "sqlite", "title": "SQLite"},
            ],
        },
        "question_0_custom": {"type": "string", "title": "Other"},
    },
    "Please answer",
)
KIMI = form(
    {"q0": {"type": "string", "enum": ["yes", "no"], "enumNames": ["Yes!", "No!"]}},
    "Shall I go on?",
    ["q0"],
)
VIBE: JsonObject = {
    "sessionId": "s",
    "message": "The agent needs your input",
    "requestedSchema": {
        "properties": {"q0": {"description": "Which port?", "type": "string", "enum": ["80", "81"]}}
    },
}
CODEX = form(
    {
        "db": {"type": "string", "title": "Pick one", "oneOf": [{"const": "a"}, {"const": "b"}]},
        "db_note": {"type": "string"},
    }
)


@pytest.mark.parametrize(
    ("params", "question", "values"),
    [
        (CLAUDE, "Please answer\nWhich database?", ["pg", "sqlite"]),
        (KIMI, "Shall I go on?", ["yes", "no"]),
        (VIBE, "The agent needs your input\nWhich port?", ["80", "81"]),
        (CODEX, "Pick one", ["a", "b"]),
    ],
)
def test_question_and_options_are_found_in_every_agents_shape(
    params: JsonObject, question: str, values: list[str]
) -> None:
    ask = elicitation_ask(params)
    assert ask.question == question
    assert [option.value for option in ask.options] == values
    assert ask.native == params


def test_fields_keep_title_description_default_and_whether_they_are_needed() -> None:
    ask = elicitation_ask(CLAUDE)
    assert ask.fields[0].options[0] == Option("pg", "PostgreSQL", "a server")
    assert ask.fields[1] == AskField("question_0_custom", "Other", "text")
    assert elicitation_ask(KIMI).fields[0].required
    assert elicitation_ask(KIMI).options[0].label == "Yes!"


def test_every_kind_of_field_is_read_and_answered_in_its_own_type() -> None:
    ask = elicitation_ask(
        form(
            {
                "count": {"type": "integer", "default": 2},
                "rate": {"type": "number"},
                "sure": {"type": "boolean"},
                "name": {"type": "string"},
                "tags": {"type": "array", "items": {"anyOf": [{"const": "x"}, {"const": "y"}]}},
                "level": {"type": "integer", "enum": [1, 2]},
                "flag": {"enum": [True, False]},
            },
            "Fill in",
        )
    )
    kinds = [item.kind for item in ask.fields]
    assert kinds == ["integer", "number", "boolean", "text", "multi", "choice", "choice"]
    assert ask.fields[0].default == 2
    answer = Answer(
        "accept",
        {
            "count": "3",
            "rate": "0.5",
            "sure": "yes",
            "name": "5",
            "tags": "x",
            "level": "2",
            "flag": "true",
            "not_in_the_form": 1,
        },
    )
    assert elicitation_reply(ask, answer) == {
        "action": "accept",
        "content": {
            "count": 3,
            "rate": 0.5,
            "sure": True,
            "name": "5",
            "tags": ["x"],
            "level": 2,
            "flag": True,
        },
    }


def test_an_answer_that_does_not_fit_goes_as_it_is() -> None:
    ask = elicitation_ask(form({"n": {"type": "integer"}, "c": {"enum": ["a"]}}))
    answer = Answer("accept", {"n": "many", "c": "z"})
    assert elicitation_reply(ask, answer)["content"] == {"n": "many", "c": "z"}


@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_refusals_carry_no_content(action: str) -> None:
    ask = elicitation_ask(KIMI)
    answer = Answer("decline" if action == "decline" else "cancel", {"q0": "yes"})
    assert elicitation_reply(ask, answer) == {"action": action}


def test_a_permission_keeps_kinds_we_do_not_know_and_drops_what_is_no_option() -> None:
    params: JsonObject = {
        "toolCall": {"toolCallId": "t", "title": "rm -rf"},
        "options": [
            {"optionId": "a", "name": "Allow", "kind": "allow_once"},
            {"optionId": "w", "kind": "whatever"},
            {"name": "no id"},
            "text",
        ],
    }
    asked = permission_asked(params)
    assert asked.title == "rm -rf"
    assert asked.tool_call_id == "t"
    assert asked.options == (
        Option("a", "Allow", kind="allow_once"),
        Option("w", "w", kind="whatever"),
    )
    ask = permission_ask(asked)
    assert (ask.source, ask.options) == ("permission", asked.options)


def test_a_permission_without_a_choice_is_cancelled() -> None:
    assert permission_reply(None) == {"outcome": {"outcome": "cancelled"}}
    assert permission_reply("a") == {"outcome": {"outcome": "selected", "optionId": "a"}}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "enum", "oneOf", "const", "title", "items", "properties", "q"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON, JSON, JSON)
def test_no_form_however_broken_makes_us_fail(
    schema: JsonValue, message: JsonValue, call: JsonValue
) -> None:
    ask = elicitation_ask({"requestedSchema": schema, "message": message, "toolCallId": call})
    content: dict[str, JsonValue] = {item.name: "x" for item in ask.fields}
    elicitation_reply(ask, Answer("accept", content))
    permission_ask(permission_asked({"toolCall": call, "options": schema}))
