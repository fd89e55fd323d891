"""What every agent and its sessions must do, whichever it is.

A test module subclasses ``AgentSuite`` and says which agent plays, and which
stop reason and updates its plain turn gives.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core.contracts.agent import (
    Agent,
    Answer,
    AskUser,
    PermissionAsked,
    PermissionDecision,
    Role,
    Session,
    SessionUpdate,
)
from core.contracts.errors import AgentError, CheckpointError, UsageError
from core.contracts.sandbox import Sandbox
from core.contracts.values import Fidelity, StopReason


async def accept_first(ask: AskUser) -> Answer:
    field = ask.choice or ask.fields[0]
    value = ask.options[0].value if ask.options else "text"
    return Answer("accept", {field.name: value}, actor="suite")


async def allow_first(asked: PermissionAsked) -> PermissionDecision:
    return PermissionDecision(asked.options[0].value if asked.options else None, policy="suite")


class AgentSuite:
    """Subclasses give ``agent`` and ``sandbox``."""

    silent = False
    """Whether a plain turn reports nothing at all."""
    captured = True
    """Whether a session at rest can be captured; where the agent only might, as it says."""

    @pytest.fixture
    def agent(self, tmp_path: Path) -> Agent:
        raise NotImplementedError

    @pytest.fixture
    def sandbox(self, agent: Agent, tmp_path: Path) -> Sandbox:
        raise NotImplementedError

    @pytest.fixture
    async def session(self, agent: Agent, sandbox: Sandbox) -> AsyncIterator[Session]:
        session = await agent.connect(sandbox, Role())
        session.on_ask_user(accept_first)
        session.on_permission(allow_first)
        yield session
        await session.close()

    @pytest.fixture
    async def seen(self, session: Session) -> AsyncIterator[list[SessionUpdate]]:
        seen: list[SessionUpdate] = []

        async def read() -> None:
            async for update in session.updates():
                seen.append(update)

        reader = asyncio.create_task(read())
        yield seen
        await session.close()
        await asyncio.wait_for(reader, 10)

    async def test_it_has_a_name_and_says_what_it_can(self, agent: Agent) -> None:
        capabilities = agent.capabilities()
        assert agent.name
        assert capabilities.step_rule in ("proxy", "updates", "command")

    async def test_mounts_are_absolute_and_seen_by_the_agent_only(self, agent: Agent) -> None:
        for mount in agent.mounts():
            assert mount.target.startswith("/")
            assert mount.seen_by == frozenset({"agent"})
            assert mount.source is not None
            assert mount.source.exists()

    async def test_a_turn_ends_and_its_updates_are_all_there_when_it_does(
        self, session: Session, seen: list[SessionUpdate]
    ) -> None:
        assert session.id
        assert await session.prompt("hello") is StopReason.END_TURN
        await session.settle()
        assert bool(seen) is not self.silent
        count = len(seen)
        await asyncio.sleep(0.2)
        assert len(seen) == count

    async def test_a_second_prompt_runs_in_the_same_session(
        self, session: Session, seen: list[SessionUpdate]
    ) -> None:
        await session.prompt("hello")
        first = session.id
        assert await session.prompt("and again") is StopReason.END_TURN
        assert session.id == first

    async def test_settle_returns_when_nobody_reads(self, session: Session) -> None:
        await session.prompt("hello")
        await asyncio.wait_for(session.settle(), 5)

    async def test_cancel_at_rest_does_nothing(
        self, session: Session, seen: list[SessionUpdate]
    ) -> None:
        await session.cancel()
        assert await session.prompt("hello") is StopReason.END_TURN

    async def test_close_twice_gives_the_same_answer_and_ends_the_updates(
        self, session: Session, seen: list[SessionUpdate]
    ) -> None:
        await session.prompt("hello")
        assert await session.close() == await session.close()
        with pytest.raises(AgentError):
            await session.prompt("after the end")

    async def test_a_snapshot_at_rest_can_be_restored_where_the_agent_promises_it(
        self, agent: Agent, sandbox: Sandbox, session: Session, seen: list[SessionUpdate]
    ) -> None:
        await session.prompt("hello")
        if not self.captured or agent.capabilities().at_turn is Fidelity.NONE:
            with pytest.raises(CheckpointError):
                await session.snapshot()
            return
        snapshot = await session.snapshot()
        assert snapshot.agent == agent.name
        assert snapshot.fidelity is agent.capabilities().at_turn
        assert not snapshot.pending_ask
        restored = await agent.restore(sandbox, Role(seed=1), snapshot)
        restored.on_ask_user(accept_first)
        try:
            assert await restored.prompt("go on") is StopReason.END_TURN
        finally:
            await restored.close()


class SlowTurnSuite(AgentSuite):
    """For agents that have a turn which only a cancel ends."""

    slow_prompt: str

    async def test_cancel_ends_a_running_turn(
        self, session: Session, seen: list[SessionUpdate]
    ) -> None:
        turn = asyncio.create_task(session.prompt(self.slow_prompt))
        async with asyncio.timeout(20):
            while not seen:  # noqa: ASYNC110 - the reader is the fixture's
                await asyncio.sleep(0.01)
            with pytest.raises(UsageError):
                await session.prompt("at the same time")
            await session.cancel()
            assert await turn is StopReason.CANCELLED
