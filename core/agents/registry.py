"""From the word after ``--agent`` to an ``Agent``.

Invariant: the names and their settings are data (``registry.toml``); any other
word is an ACP command line. Whatever cannot run is refused here, before a
sandbox is started, with the way out.
"""

from __future__ import annotations

import functools
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from core.agents.acp.agent import AcpAgent, AcpCommand
from core.agents.acp.turn import Deadlines, Dialect
from core.agents.acp.wire import WireOpener, wire_files
from core.agents.bench_agent.agent import BenchAgent
from core.agents.nop import NopAgent
from core.agents.oracle import OracleAgent, OracleScript
from core.agents.runtime import SYSTEM_PATH, locate
from core.contracts.agent import Agent
from core.contracts.errors import AgentNotFound, TaskError, UsageError

__all__ = ["AgentContext", "AgentEntry", "OracleScript", "entries", "resolve", "wire_files"]

_HOME = "/home/agent"


@dataclass(frozen=True, slots=True)
class AgentEntry:
    """One named agent of the registry."""

    name: str
    kind: str
    command: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    asks_by: Literal["elicitation", "permission"] = "elicitation"
    remedy: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class AgentContext:
    """What an agent may need from the rollout it is resolved for."""

    oracle: OracleScript | None = None
    script: Path | None = None
    """What ``bench-agent`` plays, unless the command names a script itself."""
    wire: WireOpener | None = None
    deadlines: Deadlines | None = None
    home: str = _HOME
    """The agent's home in the sandbox."""


@functools.cache
def entries() -> Mapping[str, AgentEntry]:
    """Every named agent, in the order of the file."""
    raw = tomllib.loads(Path(__file__).with_name("registry.toml").read_text())
    return {name: AgentEntry(name=name, **entry) for name, entry in raw.items()}


def resolve(agent: str, context: AgentContext | None = None) -> Agent:
    """The agent of this name or command line.

    ``bench-agent SCRIPT`` names its script itself. Raises AgentNotFound, naming
    the known agents, when the command is not on this machine.
    """
    context = context or AgentContext()
    words = _split(agent)
    entry = entries().get(words[0])
    if entry is None:
        return _command(AgentEntry(agent, "acp", agent), words, context)
    if entry.kind == "acp":
        return _command(entry, [*shlex.split(entry.command), *words[1:]], context)
    if entry.kind == "bench-agent":
        script = Path(words[1]) if len(words) > 1 else context.script
        return _bench_agent(script, context)
    return NopAgent() if entry.kind == "nop" else _oracle(context)


def _split(agent: str) -> list[str]:
    try:
        words = shlex.split(agent)
    except ValueError as error:
        raise UsageError(
            f"the agent's command line cannot be read: {error}",
            where=agent,
            remedy="Quote it as you would for a shell",
        ) from error
    if not words:
        raise UsageError("no agent was given", remedy=f"Known agents: {', '.join(entries())}")
    return words


def _command(entry: AgentEntry, words: list[str], context: AgentContext) -> Agent:
    runtime = locate(words)
    if runtime is None:
        known = f"known agents: {', '.join(entries())}"
        raise AgentNotFound(
            f"no agent is called {entry.name!r} and no command {words[0]!r} is on PATH",
            where=entry.command or entry.name,
            remedy=f"Install it: {entry.remedy}" if entry.remedy else f"Check the name; {known}",
        )
    env = {key: value.replace("{home}", context.home) for key, value in entry.env.items()}
    if runtime.path != SYSTEM_PATH:
        env["PATH"] = runtime.path
    return AcpAgent(
        Dialect(entry.name, entry.asks_by),
        AcpCommand(runtime.argv, runtime.mounts, env),
        deadlines=context.deadlines,
        wire=context.wire,
    )


def _bench_agent(script: Path | None, context: AgentContext) -> Agent:
    if script is None:
        raise UsageError(
            "bench-agent needs a script to play",
            remedy="Give one: --agent 'bench-agent path/to/script.toml'",
        )
    return BenchAgent(script, deadlines=context.deadlines, wire=context.wire)


def _oracle(context: AgentContext) -> Agent:
    if context.oracle is None:
        raise TaskError(
            "this task has no reference solution for the oracle to run",
            remedy="Add oracle/solve.sh to the task, or run another agent",
        )
    return OracleAgent(context.oracle)
