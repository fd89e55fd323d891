"""Sessions with the agent that keeps them in its home."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.agents.acp.agent import AcpAgent, AcpCommand
from core.agents.acp.turn import Deadlines, Dialect
from core.contracts.agent import MessageText, OtherUpdate, Session, SessionUpdate
from core.contracts.sandbox import SandboxSpec
from core.contracts.values import JsonObject, StopReason
from tests.core.agents.helpers import WireLog
from tests.fakes.host_sandbox import HostSandbox

HOME_AGENT = Path(__file__).parents[2] / "data" / "agents" / "home_agent.py"


def home_agent(
    *switches: str, wire: WireLog | None = None, deadlines: Deadlines | None = None
) -> AcpAgent:
    """The agent as any other command, on the host."""
    command = AcpCommand((sys.executable, "-I", "-S", str(HOME_AGENT), *switches))
    opener = (lambda _: wire) if wire is not None else None
    return AcpAgent(Dialect("home"), command, deadlines=deadlines, wire=opener)


def box(folder: Path) -> HostSandbox:
    return HostSandbox(folder, SandboxSpec("home"))


class Talk:
    """A session whose updates are read all along."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.updates: list[SessionUpdate] = []
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for update in self.session.updates():
            self.updates.append(update)

    async def tell(self, text: str) -> Mapping[str, Any]:
        """Prompt, and what the agent then knows."""
        assert await self.session.prompt(text) is StopReason.END_TURN
        await self.session.settle()
        facts: dict[str, Any] = json.loads(self.texts[-1])
        return facts

    @property
    def texts(self) -> list[str]:
        return [item.text for item in self.updates if isinstance(item, MessageText)]

    @property
    def restored(self) -> list[JsonObject]:
        """The records of a session that was taken up."""
        return [
            item.payload
            for item in self.updates
            if isinstance(item, OtherUpdate) and item.name == "session_restored"
        ]

    async def close(self) -> None:
        await self.session.close()
        await self._reader
