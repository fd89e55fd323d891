"""A foreign agent's sessions forked at a turn's end, in the real local sandbox."""

from __future__ import annotations

import asyncio
import dataclasses
import shlex
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from core.agents.registry import resolve
from core.contracts.agent import Agent, Role, SessionSnapshot
from core.contracts.sandbox import Mount, Sandbox, SandboxImage, SandboxSpec
from core.sandboxes.local import LocalProvider
from tests.core.agents.home_sessions import HOME_AGENT, Talk

pytestmark = [pytest.mark.sandbox]

ROLE = Role(seed=11, line=0)


def agent(*switches: str) -> Agent:
    words = [sys.executable, "-I", "-S", str(HOME_AGENT), *switches]
    return resolve(shlex.join(words))


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[LocalProvider]:
    async with LocalProvider(tmp_path / "sandboxes") as provider:
        found = await provider.probe()
        if not found.available:
            pytest.skip("; ".join(found.reasons))
        yield provider


@dataclasses.dataclass
class Fork:
    """A captured turn's end, and the parent that lives on."""

    provider: LocalProvider
    agent: Agent
    parent: Talk
    box: Sandbox
    image: SandboxImage
    state: SessionSnapshot

    async def child(self, text: str, line: int) -> Mapping[str, Any]:
        """One fork's answer to one prompt; everything of it is gone afterwards."""
        (box,) = await self.provider.fork(self.image, 1)
        try:
            role = Role(seed=100 + line, line=line)
            talk = Talk(await self.agent.restore(box, role, self.state))
            facts = await talk.tell(text)
            files = await box.exec(["cat", "turns.txt"], timeout=20)
            await talk.close()
            return {**facts, "said": talk.texts, "files": files.stdout.decode()}
        finally:
            await box.teardown()


@pytest.fixture(params=[("resume",), ("load",)], ids=["resume", "load"])
async def fork(request: pytest.FixtureRequest, provider: LocalProvider) -> AsyncIterator[Fork]:
    kind = agent(*request.param)
    box = await provider.start(SandboxSpec("fork", mounts=(*kind.mounts(), Mount("/workspace"))))
    parent = Talk(await kind.connect(box, ROLE))
    await parent.tell("the code is 7")
    await parent.tell("mode bold")
    state = await parent.session.snapshot()
    yield Fork(provider, kind, parent, box, await box.snapshot(), state)
    await parent.close()
    await box.teardown()


async def test_children_know_the_parents_turns_and_nothing_of_each_other(fork: Fork) -> None:
    one, two = await asyncio.gather(fork.child("left", 1), fork.child("right", 2))
    after = await fork.parent.tell("straight on")
    for facts, word in ((one, "left"), (two, "right"), (after, "straight on")):
        assert facts["history"] == ["the code is 7", word]
        assert facts["notes"] == {"note-1.txt": "mode bold", "note-2.txt": word}
        assert facts["mode"] == "bold"
    assert one["files"] == "the code is 7\nmode bold\nleft\n"
    assert two["files"] == "the code is 7\nmode bold\nright\n"
    files = await fork.box.exec(["cat", "turns.txt"], timeout=20)
    assert files.stdout == b"the code is 7\nmode bold\nstraight on\n"
    assert [len(one["said"]), len(two["said"])] == [1, 1]


async def test_children_have_seeds_lines_and_a_loopback_of_their_own(fork: Fork) -> None:
    parent = await fork.parent.tell("where")
    one, two = await asyncio.gather(fork.child("where", 1), fork.child("where", 2))
    everyone = (parent, one, two)
    assert [facts["line"] for facts in everyone] == ["0", "1", "2"]
    assert [facts["seed"] for facts in everyone] == ["11", "101", "102"]
    assert len({facts["draw"] for facts in everyone}) == 3
    assert len({facts["network"] for facts in everyone}) == 3
    assert [facts["loopback"] for facts in everyone] == [True, True, True]


async def test_a_child_of_a_child_goes_on_from_there(fork: Fork) -> None:
    (box,) = await fork.provider.fork(fork.image, 1)
    child = Talk(await fork.agent.restore(box, Role(seed=1, line=1), fork.state))
    await child.tell("deeper")
    state = await child.session.snapshot()
    below = dataclasses.replace(fork, image=await box.snapshot(), state=state)
    facts = await below.child("deepest", 2)
    await child.close()
    await box.teardown()
    assert facts["history"] == ["the code is 7", "deeper", "deepest"]
    assert facts["mode"] == "bold"
