"""Where the time went: ``timing.json``, with upstream's keys for what we measure.

Seconds, each rounded by itself; some overlap, so they do not add up to
``total``. A key is absent when that phase never ended: a 0 would be a lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from core.contracts.values import JsonObject, Phase
from core.kernel.tree import Line, PhaseTime, Tree


def timing(tree: Tree, line: Line | None, *, slot_wait: float | None = None) -> JsonObject:
    """Times of the rollout's own phases and of one line's (the main one's)."""
    own = _by_phase(tree.phases)
    lines = _by_phase(line.phases if line is not None else [])
    times: JsonObject = {}
    _put(times, "slot_wait", slot_wait)
    _put(times, "setup", _seconds(own, Phase.SETUP))
    _put(times, "sandbox_ready", _seconds(own, Phase.SANDBOX))
    _put(times, "environment_setup", _seconds(own, Phase.ENVIRONMENT, Phase.READINESS))
    _put(times, "readiness", _seconds(own, Phase.READINESS))
    _put(times, "acp_connect", _seconds(lines, Phase.CONNECT))
    _put(times, "agent_setup", _seconds(lines, Phase.CONNECT))
    _agent_times(times, lines.get(Phase.EXECUTE))
    if (quiesce := lines.get(Phase.QUIESCE)) is not None:
        times["harden_before_verify"] = {**_parts(quiesce), "total": round(quiesce.seconds, 3)}
    _put(times, "verifier", _seconds(lines, Phase.VERIFY))
    if Phase.VERIFY in lines:
        _put(times, "agent_stop_to_reward", _seconds(lines, Phase.QUIESCE, Phase.VERIFY))
    _put(times, "cleanup", _seconds({**own, **lines}, Phase.TEARDOWN))
    _put(times, "total", tree.seconds)
    return times


def _agent_times(times: JsonObject, execute: PhaseTime | None) -> None:
    if execute is None:
        return
    _put(times, "agent_execution", execute.seconds)
    human = execute.parts.get("human_wait")
    if isinstance(human, int | float):
        _put(times, "human_wait", human)
        _put(times, "agent_without_human_wait", max(0.0, execute.seconds - human))


def _by_phase(phases: Iterable[PhaseTime]) -> dict[str, PhaseTime]:
    """The last time each phase ended; earlier ones belong to earlier attempts."""
    return {item.phase: item for item in phases}


def _seconds(phases: Mapping[str, PhaseTime], *names: Phase) -> float | None:
    found = [phases[name].seconds for name in names if name in phases]
    return sum(found) if found else None


def _parts(phase: PhaseTime) -> JsonObject:
    return {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in phase.parts.items()
    }


def _put(times: JsonObject, name: str, seconds: float | None) -> None:
    if seconds is not None:
        times[name] = round(seconds, 3)
