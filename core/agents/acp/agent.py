"""An agent that is a command speaking ACP on its stdin and stdout.

Invariant: a session that could not be opened leaves no process, and the error
carries the agent's own last words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from core.agents.acp.native import Kept
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
        """The best any ACP agent can give. Whether this one can, its session says."""
        return AgentCapabilities(Fidelity.NONE, Fidelity.NATIVE, asks=True, step_rule="updates")

    def mounts(self) -> tuple[Mount, ...]:
        return self._command.mounts

    async def connect(self, sandbox: Sandbox, role: Role) -> Session:
        """Start the command in the sandbox's workdir and open a session there."""
        session = await self._start(sandbox, role)
        await session.open(sandbox.spec.workdir)
        return session

    async def restore(self, sandbox: Sandbox, role: Role, snapshot: SessionSnapshot) -> Session:
        """A new process that takes the captured session up from the home in the sandbox.

        Raises CheckpointError when the agent refuses, or would run under other settings.
        """
        if snapshot.agent != self.name or snapshot.fidelity is not Fidelity.NATIVE:
            raise CheckpointError(
                f"agent {self.name} cannot take up a session of {snapshot.agent} "
                f"({snapshot.fidelity})",
                remedy="Branch with the agent that the rollout ran with",
            )
        kept = Kept.from_json(snapshot.state)
        session = await self._start(sandbox, role)
        await session.take_up(kept)
        return session

    async def _start(self, sandbox: Sandbox, role: Role) -> AcpSession:
        process = await self._spawn(sandbox, role)
        wire = self._wire(sandbox.id) if self._wire else None
        return AcpSession(process, self._dialect, deadlines=self._deadlines, wire=wire)

    async def _spawn(self, sandbox: Sandbox, role: Role) -> Process:
        env = {**self._command.env, **role.variables}
        return await sandbox.spawn(
            self._command.argv, user="agent", cwd=sandbox.spec.workdir, env=env
        )
