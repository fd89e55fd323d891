"""``oracle``: runs the task's own reference solution. It shows that a task can be solved.

Invariant: the script runs as the agent's user in the agent's view, and its
folder is mounted only for this agent. A script that fails is a recorded fact
about the task, not an error of ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from core.agents.local import LocalSession, TurnRunner
from core.agents.stream import UpdateStream
from core.contracts.agent import (
    AgentCapabilities,
    Role,
    Session,
    SessionSnapshot,
    ToolUpdate,
)
from core.contracts.errors import AgentTimeout, ExecTimeout, TaskError
from core.contracts.sandbox import ExecResult, Mount, Sandbox
from core.contracts.values import Fidelity, JsonObject, StopReason

FOLDER = "/oracle"


@dataclass(frozen=True, slots=True)
class OracleScript:
    """The reference solution: a script on the host, and how to run it."""

    path: Path
    timeout: float = 600.0
    env: Mapping[str, str] = field(default_factory=dict)


class OracleAgent:
    """Runs the script once per prompt."""

    name = "oracle"

    def __init__(self, script: OracleScript) -> None:
        if not script.path.is_file():
            raise TaskError(
                "the task's oracle script does not exist",
                where=str(script.path),
                remedy="Add oracle/solve.sh to the task, or run another agent",
            )
        self._script = script

    def capabilities(self) -> AgentCapabilities:
        return AgentCapabilities(Fidelity.NONE, Fidelity.EXACT, asks=False, step_rule="command")

    def mounts(self) -> tuple[Mount, ...]:
        """The script's whole folder: it may use files beside it."""
        folder = self._script.path.resolve().parent
        return (Mount(FOLDER, source=folder, seen_by=frozenset({"agent"})),)

    async def connect(self, sandbox: Sandbox, role: Role) -> Session:
        return LocalSession(self.name, _runner(sandbox, role, self._script))

    async def restore(self, sandbox: Sandbox, role: Role, snapshot: SessionSnapshot) -> Session:
        return LocalSession(self.name, _runner(sandbox, role, self._script))


def _runner(sandbox: Sandbox, role: Role, script: OracleScript) -> TurnRunner:
    argv = _argv(script.path)
    calls = itertools.count(1)

    async def run(text: str, stream: UpdateStream) -> StopReason:
        call = f"oracle-{next(calls)}"
        command: JsonObject = {"command": " ".join(argv)}
        title = f"oracle/{script.path.name}"
        await stream.put(ToolUpdate(call, title, "execute", "in_progress", raw_input=command))
        try:
            result = await sandbox.exec(
                argv,
                user="agent",
                timeout=script.timeout,
                cwd=sandbox.spec.workdir,
                env={**script.env, **role.variables},
            )
        except ExecTimeout as error:
            raise _too_slow(script) from error
        status = "completed" if result.ok else "failed"
        await stream.put(ToolUpdate(call, status=status, raw_output=_output(result)))
        if result.timed_out:
            raise _too_slow(script)
        return StopReason.END_TURN

    return run


def _argv(path: Path) -> list[str]:
    """Through its interpreter, since the executable bit often gets lost in a checkout."""
    target = f"{FOLDER}/{path.name}"
    with path.open("rb") as file:
        first = file.readline(256).decode("utf-8", errors="replace").strip()
    interpreter = first.removeprefix("#!").split() if first.startswith("#!") else []
    return [*(interpreter or ["/bin/sh"]), target]


def _output(result: ExecResult) -> JsonObject:
    return {
        "exit_code": result.exit_code,
        "stdout": result.stdout.decode("utf-8", errors="replace"),
        "stderr": result.stderr.decode("utf-8", errors="replace"),
        "seconds": round(result.seconds, 3),
        "timed_out": result.timed_out,
    }


def _too_slow(script: OracleScript) -> AgentTimeout:
    return AgentTimeout(
        f"the oracle ran longer than {script.timeout:g} s",
        where=str(script.path),
        remedy="Raise the oracle's timeout in task.md, or make the script faster",
    )
