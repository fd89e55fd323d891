"""Sessions with the misbehaving agent, and a reader that keeps what it saw."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from core.agents.acp.agent import AcpAgent, AcpCommand
from core.agents.acp.session import AcpSession
from core.agents.acp.turn import Deadlines, Dialect
from core.agents.acp.wire import Direction
from core.contracts.agent import (
    Answer,
    AskUser,
    MessageText,
    Noise,
    PermissionAsked,
    PermissionDecision,
    Role,
    Session,
    SessionUpdate,
)
from core.contracts.sandbox import SandboxSpec
from tests.fakes.host_sandbox import HostSandbox

ROGUE = Path(__file__).with_name("rogue_agent.py")


@dataclass
class WireLog:
    """Keeps the raw traffic in memory."""

    lines: list[tuple[Direction, bytes]] = field(default_factory=list)
    closed: bool = False

    def __call__(self, direction: Direction, line: bytes) -> None:
        self.lines.append((direction, line))

    def close(self) -> None:
        self.closed = True


@dataclass
class Seen:
    """A session, and everything its one reader has read."""

    session: Session
    sandbox: HostSandbox
    wire: WireLog
    updates: list[SessionUpdate] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        return [item.text for item in self.updates if isinstance(item, MessageText)]

    @property
    def noise(self) -> list[Noise]:
        return [item for item in self.updates if isinstance(item, Noise)]

    _spoken: asyncio.Event = field(default_factory=asyncio.Event)

    async def spoken(self) -> None:
        """Wait until the agent said something."""
        async with asyncio.timeout(20):
            await self._spoken.wait()

    async def read(self) -> None:
        async for update in self.session.updates():
            self.updates.append(update)
            if isinstance(update, MessageText):
                self._spoken.set()


def rogue(
    mode: str, wire: WireLog | None = None, deadlines: Deadlines | None = None, **dialect: str
) -> AcpAgent:
    """The misbehaving agent as any other command."""
    kind = Dialect("rogue", "permission") if dialect else Dialect("rogue")
    argv = (sys.executable, "-I", "-S", str(ROGUE), mode)
    opener: Callable[[str], WireLog] | None = (lambda _: wire) if wire is not None else None
    return AcpAgent(kind, AcpCommand(argv), deadlines=deadlines, wire=opener)


@asynccontextmanager
async def talking_to(
    folder: Path,
    mode: str,
    *,
    deadlines: Deadlines | None = None,
    asks_by: str | None = None,
) -> AsyncIterator[Seen]:
    """A session with the misbehaving agent whose updates are read all along."""
    wire = WireLog()
    dialect = {"asks_by": asks_by} if asks_by else {}
    agent = rogue(mode, wire, deadlines, **dialect)
    sandbox = HostSandbox(folder, SandboxSpec("rogue", mounts=agent.mounts()))
    session = await agent.connect(sandbox, Role())
    seen = Seen(session, sandbox, wire)
    reader = asyncio.create_task(seen.read())
    try:
        yield seen
    finally:
        await session.close()
        await reader


def acp(seen: Seen) -> AcpSession:
    """The session as what it is."""
    assert isinstance(seen.session, AcpSession)
    return seen.session


class Asked:
    """A handler that keeps what it was asked and waits until it is told the answer."""

    def __init__(self) -> None:
        self.questions: asyncio.Queue[AskUser] = asyncio.Queue()
        self.permissions: asyncio.Queue[PermissionAsked] = asyncio.Queue()
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.cancelled = 0

    async def on_ask(self, ask: AskUser) -> Answer:
        self.questions.put_nowait(ask)
        try:
            return await asyncio.shield(self.answer)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def on_permission(self, asked: PermissionAsked) -> PermissionDecision:
        self.permissions.put_nowait(asked)
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        raise AssertionError("nothing settles this future")
