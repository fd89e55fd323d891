"""``nop``: the agent that does nothing. It shows what a task gives for free.

Invariant: a turn ends at once and leaves the world as it was.
"""

from __future__ import annotations

from core.agents.local import LocalSession
from core.agents.stream import UpdateStream
from core.contracts.agent import AgentCapabilities, Role, Session, SessionSnapshot
from core.contracts.sandbox import Mount, Sandbox
from core.contracts.values import Fidelity, StopReason


class NopAgent:
    """Ends every turn at once."""

    name = "nop"

    def capabilities(self) -> AgentCapabilities:
        return AgentCapabilities(Fidelity.NONE, Fidelity.EXACT, asks=False, step_rule="command")

    def mounts(self) -> tuple[Mount, ...]:
        return ()

    async def connect(self, sandbox: Sandbox, role: Role) -> Session:
        return LocalSession(self.name, _do_nothing)

    async def restore(self, sandbox: Sandbox, role: Role, snapshot: SessionSnapshot) -> Session:
        return LocalSession(self.name, _do_nothing)


async def _do_nothing(text: str, stream: UpdateStream) -> StopReason:
    return StopReason.END_TURN
