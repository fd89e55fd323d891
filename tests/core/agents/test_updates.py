from __future__ import annotations

import pytest
from hypothesis import given

from core.agents.acp.updates import read_update, read_usage
from core.contracts.agent import (
    MessageText,
    Noise,
    OtherUpdate,
    SessionUpdate,
    ThoughtText,
    ToolUpdate,
    UsageUpdate,
)
from core.contracts.values import JsonObject, JsonValue
from tests.core.agents.test_forms import JSON

TEXT: JsonObject = {"type": "text", "text": "hi"}
IMAGE: JsonObject = {"sessionUpdate": "agent_message_chunk", "content": {"type": "image"}}
PLAN: JsonObject = {"sessionUpdate": "plan", "entries": []}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            {"sessionUpdate": "agent_message_chunk", "content": TEXT, "messageId": "m"},
            MessageText("hi", "m"),
        ),
        ({"sessionUpdate": "agent_thought_chunk", "content": TEXT}, ThoughtText("hi")),
        (
            {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": ""}},
            None,
        ),
        (IMAGE, OtherUpdate("agent_message_chunk", IMAGE)),
        (
            {
                "sessionUpdate": "tool_call",
                "toolCallId": "t",
                "title": "Run",
                "kind": "execute",
                "status": "pending",
                "rawInput": {"command": "ls"},
                "content": [{"type": "content"}, "no object"],
                "locations": [{"path": "/a"}],
            },
            ToolUpdate(
                "t",
                "Run",
                "execute",
                "pending",
                {"command": "ls"},
                content=({"type": "content"},),
                locations=({"path": "/a"},),
            ),
        ),
        (
            {"sessionUpdate": "tool_call_update", "toolCallId": "t", "rawOutput": 0},
            ToolUpdate("t", raw_output=0),
        ),
        (
            {"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": {"amount": 10**400}},
            UsageUpdate(1, 2),
        ),
        (PLAN, OtherUpdate("plan", PLAN)),
    ],
)
def test_each_kind_becomes_its_type(raw: JsonValue, expected: SessionUpdate | None) -> None:
    assert read_update(raw) == expected


@pytest.mark.parametrize("raw", [None, 3, [], {}, {"sessionUpdate": "tool_call"}])
def test_what_has_no_shape_is_noise(raw: JsonValue) -> None:
    assert isinstance(read_update(raw), Noise)


def test_usage_needs_a_count() -> None:
    assert read_usage({"inputTokens": "many"}) is None
    assert read_usage({"inputTokens": 5, "outputTokens": True}) == UsageUpdate(input_tokens=5)


@given(JSON)
def test_no_update_however_broken_makes_us_fail(raw: JsonValue) -> None:
    read_update(raw)
    for kind in ("agent_message_chunk", "tool_call", "usage_update", "vendor"):
        read_update({"sessionUpdate": kind, "content": raw, "toolCallId": "t", "cost": raw})
