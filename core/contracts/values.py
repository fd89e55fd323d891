"""Small value types that more than one contract speaks."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = "dict[str, JsonValue]"


class Fidelity(StrEnum):
    """How a child's agent session was rebuilt, best first."""

    EXACT = "exact"
    NATIVE = "native"
    REPLAYED = "replayed"
    TRANSCRIPT = "transcript"
    NONE = "none"


class StopReason(StrEnum):
    """Why a turn ended. The first five are ACP v1's own words; the rest are ours."""

    END_TURN = "end_turn"
    MAX_TOKENS = "max_tokens"
    MAX_TURN_REQUESTS = "max_turn_requests"
    REFUSAL = "refusal"
    CANCELLED = "cancelled"
    CRASHED = "crashed"
    TIMEOUT = "timeout"


class Outcome(StrEnum):
    """How a phase, a line or a rollout ended. ``scored`` is the only success."""

    SCORED = "scored"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    OK = "ok"


class Phase(StrEnum):
    """The rollout lifecycle, in order."""

    SETUP = "setup"
    SANDBOX = "sandbox"
    ENVIRONMENT = "environment"
    READINESS = "readiness"
    CONNECT = "connect"
    EXECUTE = "execute"
    QUIESCE = "quiesce"
    VERIFY = "verify"
    TEARDOWN = "teardown"
