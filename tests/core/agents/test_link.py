"""What only a process under our control can show: the order of death and last words."""

from __future__ import annotations

import asyncio
import json
from typing import cast

import pytest

from core.agents.acp.link import AcpLink, RequestHandler
from core.contracts.agent import Noise
from core.contracts.errors import AgentCrashed
from core.contracts.sandbox import Process
from core.contracts.values import JsonObject


class Stdin:
    """Takes everything."""

    def write(self, data: bytes) -> None:
        return None

    async def drain(self) -> None:
        return None

    def close(self) -> None:
        return None


class Dying:
    """A process that is dead at once, and whose pipes end when the test says so."""

    def __init__(self) -> None:
        self.stdin = Stdin()
        self.stdout = asyncio.StreamReader()
        self.stderr = asyncio.StreamReader()
        self.returncode = 9

    async def wait(self) -> int:
        return 9

    async def kill(self, *, grace: float = 2.0) -> int:
        for pipe in (self.stdout, self.stderr):
            pipe.feed_eof()
        return 9


class Nobody:
    """Takes what comes and serves nothing."""

    async def on_notification(self, method: str, params: JsonObject, size: int) -> None:
        return None

    async def on_noise(self, noise: Noise) -> None:
        return None

    def request_handler(self, method: str) -> RequestHandler | None:
        return None

    def on_failure(self, error: Exception) -> None:
        raise error


async def started() -> tuple[Dying, AcpLink, asyncio.Task[object]]:
    process = Dying()
    link = AcpLink(cast(Process, process), Nobody(), name="dying")
    link.start()
    call = asyncio.create_task(_call(link))
    for _ in range(5):
        await asyncio.sleep(0)
    return process, link, call


async def _call(link: AcpLink) -> object:
    return await link.request("session/prompt", {}, 10.0)


async def test_an_answer_still_in_the_pipe_counts_though_the_agent_is_dead() -> None:
    process, link, call = await started()
    answer = {"jsonrpc": "2.0", "id": 1, "result": "done"}
    process.stdout.feed_data(json.dumps(answer).encode() + b"\n")
    assert await call == "done"
    await link.close(0.1)


async def test_last_words_still_in_the_pipe_are_part_of_the_reason() -> None:
    process, link, call = await started()
    process.stderr.feed_data(b"the real reason\n")
    process.stderr.feed_eof()
    process.stdout.feed_eof()
    with pytest.raises(AgentCrashed, match=r"exit code 9.*the real reason"):
        await call
    assert (await link.close(0.1)).stderr_tail == "the real reason\n"


async def test_a_pipe_that_a_grandchild_keeps_open_does_not_hide_the_death() -> None:
    _, link, call = await started()
    with pytest.raises(AgentCrashed, match="exit code 9"):
        await call
    with pytest.raises(AgentCrashed):
        await link.request("anything", {}, 10.0)
    await link.close(0.1)
