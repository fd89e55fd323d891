"""An agent that is a command speaking ACP on its stdin and stdout.

Invariant: a session that could not be opened leaves no process, and the error
carries the agent's own last words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from core.agents.acp.session import AcpSession
from core.agents.acp.turn import Deadlines, Dialect
from core.agents.acp.wire import WireOpener
from core.contracts.agent import AgentCapabilities, Role, Session, SessionSnapshot
from core.contracts.errors import CheckpointError
from core.contracts.sandbox import Mount, Process, Sandbox
from core.contracts.values import Fidelity


@dataclass(frozen=True, slots=True)
class AcpCommand:
    """What to run in the sandbox, and what must be mounted for it."""

    argv: tuple[str, ...]
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


class AcpAgent:
    """Connects sessions with one ACP command."""

    def __init__(
        self,
        dialect: Dialect,
        command: AcpCommand,
        *,
        deadlines: Deadlines | None = None,
        wire: WireOpener | None = None,
    ) -> None:
        self._dialect = dialect
        self._command = command
        self._deadlines = deadlines or Deadlines()
        self._wire = wire

    @property
    def name(self) -> str:
        return self._dialect.name

    def capabilities(self) -> AgentCapabilities:
        """ACP gives no session state away, so a fork has nothing to restore."""
        return AgentCapabilities(Fidelity.NONE, Fidelity.NONE, asks=True, step_rule="updates")

    def mounts(self) -> tuple[Mount, ...]:
        return self._command.mounts

    async def connect(self, sandbox: Sandbox, role: Role) -> Session:
        """Start the command in the sandbox's workdir and open a session there."""
        process = await self._spawn(sandbox, role)
        wire = self._wire(sandbox.id) if self._wire else None
        session = AcpSession(process, self._dialect, deadlines=self._deadlines, wire=wire)
        await session.open(sandbox.spec.workdir)
        return session

    async def restore(self, sandbox: Sandbox, role: Role, snapshot: SessionSnapshot) -> Session:
        """Always raises CheckpointError."""
        raise CheckpointError(
            f"agent {self.name} cannot be restored from a {snapshot.agent} snapshot",
            remedy="Start a new session with connect",
        )

    async def _spawn(self, sandbox: Sandbox, role: Role) -> Process:
        env = {**self._command.env, **role.env}
        return await sandbox.spawn(
            self._command.argv, user="agent", cwd=sandbox.spec.workdir, env=env
        )
