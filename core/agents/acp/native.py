"""How a session goes on in another process: what is kept of it, and how it is taken up.

Invariant: a session is taken up with the mode and the options that were in force
when it was captured, or not at all. Its history is in the agent's home, which
travels with the sandbox; here is only its name. Protocol: ACP v1 session/resume
(no replay), session/load (replays), session/set_mode, session/set_config_option.
``session/fork`` is not used: it would keep both sessions in one process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from core.agents.acp.forms import as_object, as_text
from core.agents.acp.link import METHOD_NOT_FOUND, AcpLink, RpcError
from core.contracts.errors import CheckpointError
from core.contracts.values import JsonObject, JsonValue

RESUME, LOAD = "session/resume", "session/load"
_SET_MODE, _SET_OPTION = "session/set_mode", "session/set_config_option"
_PASSES = 2
"""Setting one option may set another back; after this many rounds it is given up."""

_STANDING = frozenset(
    {
        "available_commands_update",
        "config_option_update",
        "current_mode_update",
        "session_info_update",
    }
)

Call: TypeAlias = tuple[str, JsonObject]


def ways(capabilities: JsonObject) -> tuple[str, ...]:
    """The calls by which this agent says that it takes a session up again, best first."""
    sessions = as_object(capabilities.get("sessionCapabilities"))
    found = [RESUME] if isinstance(sessions.get("resume"), dict) else []
    return (*found, LOAD) if capabilities.get("loadSession") is True else tuple(found)


def is_standing(raw: JsonValue) -> bool:
    """Whether this update says how things stand. All others are history in a replay."""
    return as_object(raw).get("sessionUpdate") in _STANDING


def check_rest(name: str, ways: tuple[str, ...], *, turn: bool, ask: bool, over: bool) -> None:
    """Raises CheckpointError saying why this session cannot be captured now, or ever."""
    faults = (
        (turn, "is in the middle of a turn", "Capture it at the turn's end"),
        (ask, "waits for an answer", "Capture it at the turn's end"),
        (over, "has ended", "Branch from an earlier node"),
        (not ways, "can neither resume nor load a session", "Branch from the root"),
    )
    for fault, what, remedy in faults:
        if fault:
            raise CheckpointError(f"agent {name} {what}", remedy=remedy)


@dataclass(slots=True)
class Settings:
    """The mode and the options in force, as far as the agent told them."""

    mode: str = ""
    options: dict[str, str | bool] = field(default_factory=dict)

    def read_answer(self, answer: JsonObject) -> None:
        """From the answer that opened or changed the session."""
        mode = as_text(as_object(answer.get("modes")).get("currentModeId"))
        self.mode = mode or self.mode
        self._read_options(answer.get("configOptions"))

    def read_update(self, raw: JsonValue) -> None:
        """From a ``session/update``; most of them say nothing about settings."""
        if not isinstance(raw, dict):
            return
        if raw.get("sessionUpdate") == "current_mode_update":
            self.mode = as_text(raw.get("currentModeId")) or self.mode
        elif raw.get("sessionUpdate") == "config_option_update":
            self._read_options(raw.get("configOptions"))

    def calls(self, wanted: Settings, session: str) -> list[Call]:
        """What to ask the agent for until ``wanted`` is in force."""
        calls: list[Call] = []
        if wanted.mode and wanted.mode != self.mode:
            calls.append((_SET_MODE, {"sessionId": session, "modeId": wanted.mode}))
        for name, value in wanted.options.items():
            if self.options.get(name) != value:
                params: JsonObject = {"sessionId": session, "configId": name, "value": value}
                kind: JsonObject = {"type": "boolean"} if isinstance(value, bool) else {}
                calls.append((_SET_OPTION, params | kind))
        return calls

    def done(self, call: Call, answer: JsonObject) -> None:
        """The agent accepted the call."""
        method, params = call
        if method == _SET_MODE:
            self.mode = as_text(params.get("modeId"))
        elif "configOptions" not in answer:
            self._read_value(params.get("configId"), params.get("value"))
        self.read_answer(answer)

    def _read_options(self, raw: JsonValue) -> None:
        for item in raw if isinstance(raw, list) else []:
            option = as_object(item)
            self._read_value(option.get("id"), option.get("currentValue"))

    def _read_value(self, name: JsonValue, value: JsonValue) -> None:
        if isinstance(name, str) and isinstance(value, str | bool):
            self.options[name] = value


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a session: its name, how it is taken up, and what was in force."""

    session: str
    cwd: str
    ways: tuple[str, ...]
    settings: Settings

    def to_json(self) -> JsonObject:
        options: JsonObject = dict(self.settings.options)
        return {
            "session": self.session,
            "cwd": self.cwd,
            "ways": list(self.ways),
            "mode": self.settings.mode,
            "options": options,
        }

    @classmethod
    def from_json(cls, state: Mapping[str, JsonValue]) -> Kept:
        """Raises CheckpointError when this is no session of an ACP agent."""
        names, options = state.get("ways"), as_object(state.get("options"))
        kept = cls(
            session=as_text(state.get("session")),
            cwd=as_text(state.get("cwd")),
            ways=tuple(str(item) for item in names) if isinstance(names, list) else (),
            settings=Settings(as_text(state.get("mode"))),
        )
        for name, value in options.items():
            kept.settings._read_value(name, value)
        if not (kept.session and kept.cwd and kept.ways):
            raise CheckpointError(
                "a captured session names no session id, folder or way to take it up",
                remedy="Branch from another node",
            )
        return kept


async def take_up(link: AcpLink, kept: Kept, limit: float) -> tuple[str, JsonObject]:
    """Have the agent go on with the session; the call that did it, and its answer.

    A call that is not there although it was promised is passed over for the next
    one. Raises CheckpointError naming every call that was refused.
    """
    params: JsonObject = {"sessionId": kept.session, "cwd": kept.cwd, "mcpServers": []}
    refused: list[str] = []
    for way in kept.ways:
        try:
            return way, as_object(await link.request(way, params, limit))
        except RpcError as error:
            refused.append(f"{way}: {error.what} ({error.code})")
            if error.code != METHOD_NOT_FOUND:
                break
    raise CheckpointError(
        f"agent {link.name} advertises that it takes sessions up again, but refused",
        where="; ".join(refused),
        remedy="Branch from the root, or use another version of the agent",
    )


async def put_in_force(link: AcpLink, kept: Kept, settings: Settings, limit: float) -> None:
    """Ask for the captured mode and options where the agent does not say it has them.

    Raises CheckpointError naming what the agent would not set: a fork under another
    mode is another agent.
    """
    for _ in range(_PASSES):
        for call in settings.calls(kept.settings, kept.session):
            try:
                answer = await link.request(*call, limit)
            except RpcError as error:
                raise _not_set(link, call, f"{error.what} ({error.code})") from error
            settings.done(call, as_object(answer))
    for call in settings.calls(kept.settings, kept.session):
        raise _not_set(link, call, "it accepted the call, but says that another is in force")


def _not_set(link: AcpLink, call: Call, why: str) -> CheckpointError:
    method, params = call
    what = params.get("configId") or "the mode"
    value = params.get("value", params.get("modeId"))
    return CheckpointError(
        f"agent {link.name} would not set {what} to {value!r} again in a fork",
        where=f"{method}: {why}",
        remedy="Branch from the root, or use another version of the agent",
    )
