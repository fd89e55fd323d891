"""``bench-agent`` as an ``Agent``: the one whose sessions can be forked exactly.

Invariant: a snapshot is everything the session knows, so a restored one goes on
as the original would have, with the same pending question.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from core.agents.acp.forms import as_object
from core.agents.acp.link import RpcError
from core.agents.acp.session import AcpSession
from core.agents.acp.turn import Deadlines, Dialect
from core.agents.acp.wire import WireOpener
from core.agents.bench_agent import program
from core.agents.bench_agent.script import ScriptError, check_script, parse_script
from core.agents.runtime import interpreter
from core.contracts.agent import AgentCapabilities, Role, Session, SessionSnapshot
from core.contracts.errors import AgentNotFound, CheckpointError, ConfigError
from core.contracts.sandbox import Mount, Sandbox
from core.contracts.values import Fidelity, StopReason

NAME = "bench-agent"
ROOT = "/opt/bench-agent"
SCRIPT = f"{ROOT}/script.toml"
_MAX_ARGUMENT = 100_000
"""Linux takes 128 KiB; json.dumps gives ASCII, so these are bytes."""


class BenchSession(AcpSession):
    """An ACP session that can also hand out and take back its whole state."""

    async def restore(self, snapshot: SessionSnapshot, seed: int) -> None:
        """Put a snapshot's state into this new process."""
        await self._connect("_bench/restore", {"state": snapshot.state, "seed": seed})

    async def snapshot(self) -> SessionSnapshot:
        """The session at rest or at a question. Raises CheckpointError while a tool runs."""
        params = {"sessionId": self.id}
        try:
            answer = await self._link.request(
                "_bench/snapshot", dict(params), self._deadlines.extension
            )
        except RpcError as error:
            raise CheckpointError(
                f"agent {NAME} cannot be captured now: {error.what}",
                remedy="Capture at a question or at the end of a turn",
            ) from error
        state = as_object(as_object(answer).get("state"))
        steps = state.get("calls")
        return SessionSnapshot(
            agent=NAME,
            fidelity=Fidelity.EXACT,
            state=state,
            pending_ask=state.get("pending") is not None,
            steps=steps if isinstance(steps, int) else 0,
        )

    async def resume_turn(self) -> StopReason:
        """Raise the pending question again and run the turn to its end."""
        return await self._run_turn("_bench/continue", {"sessionId": self.id})


class BenchAgent:
    """Plays a script inside the sandbox, over real ACP."""

    name = NAME

    def __init__(
        self,
        script: Path,
        *,
        deadlines: Deadlines | None = None,
        wire: WireOpener | None = None,
    ) -> None:
        try:
            parsed = parse_script(script.read_text(encoding="utf-8"))
            check_script(parsed)
        except (OSError, UnicodeDecodeError, ScriptError) as error:
            raise ConfigError(
                f"the script for {NAME} cannot be played: {error}",
                where=str(script),
                remedy="See the page on agents for how a script is written",
            ) from error
        python = interpreter(sys.executable)
        if python is None:
            raise AgentNotFound("no Python interpreter was found for bench-agent")
        self._script = script.resolve()
        self._as_json = json.dumps(parsed, separators=(",", ":"), default=str)
        self._python = python
        self._deadlines = deadlines or Deadlines()
        self._wire = wire

    def capabilities(self) -> AgentCapabilities:
        return AgentCapabilities(Fidelity.EXACT, Fidelity.EXACT, asks=True, step_rule="updates")

    def mounts(self) -> tuple[Mount, ...]:
        """Its own few files, the script, and the interpreter where the system has none."""
        package = f"{ROOT}/{__package__.replace('.', '/')}"
        here = Path(__file__).resolve().parent
        return (
            *self._python.mounts,
            Mount(package, source=here, seen_by=frozenset({"agent"})),
            Mount(SCRIPT, source=self._script, seen_by=frozenset({"agent"})),
        )

    async def connect(self, sandbox: Sandbox, role: Role) -> Session:
        session = await self._start(sandbox, role)
        await session.open(sandbox.spec.workdir)
        return session

    async def restore(self, sandbox: Sandbox, role: Role, snapshot: SessionSnapshot) -> Session:
        """A new process that goes on from the snapshot, with ``role.seed`` as its seed."""
        session = await self._start(sandbox, role)
        await session.restore(snapshot, role.seed)
        return session

    async def _start(self, sandbox: Sandbox, role: Role) -> BenchSession:
        process = await sandbox.spawn(
            self.command(),
            user="agent",
            cwd=sandbox.spec.workdir,
            env=role.variables,
        )
        wire = self._wire(sandbox.id) if self._wire else None
        return BenchSession(process, Dialect(NAME), deadlines=self._deadlines, wire=wire)

    def command(self) -> list[str]:
        """What runs in the sandbox."""
        # Isolated and without site: nothing in the workdir or the home can get in between.
        start = f"import sys; sys.path.insert(0, {ROOT!r}); "
        # Importing the program here too leaves its bytecode beside it; the sandbox's copy is
        # read-only and could not keep any.
        start += f"from {program.__name__} import main; main()"
        command = [*self._python.argv, "-I", "-S", "-c", start, SCRIPT]
        return [*command, self._as_json] if len(self._as_json) <= _MAX_ARGUMENT else command
