"""Three processes around one rollout, each run on demand: ``run`` hosts it, ``act`` is a
person on it from outside, ``mend`` comes after somebody was killed.

``serve ROLE`` reads one line ``[folder, seed, real, output]`` of stdin at a time, forks (it has
paid for the imports), says ``pid N``, and when that child has ended ``status S``. A child
writes a line for each act before it tries it and when it was acknowledged or refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import benchflow_workbench  # noqa: F401  (claims this checkout's folders)
from app.settings import Settings
from app.wiring import open_tools
from core.contracts.agent import Agent
from core.contracts.errors import BenchFlowError, NotFound
from core.contracts.reward import Reward, RolloutNode, VerifyResult
from core.contracts.store import RequestRecord, RolloutRecord, RolloutState
from core.contracts.values import StopReason
from core.kernel.spec import Forker
from core.services import acts, reaping
from core.services.config import RolloutConfig
from core.services.engine import Engine, engine
from core.services.jobs import plan, rerun, run_job
from core.services.toolbox import Toolbox
from core.tasks.models import Task
from tests.fakes.kernel_agent import FakeAgent, FakeSession, question
from tests.fakes.kernel_points import Points
from tests.fakes.kernel_world import FakeProvider

ASK_SECONDS = 0.5
TURN_END_SECONDS = 0.15
SCRIPT = """
[[turn]]
[[turn.step]]
say = "First."
[[turn.step]]
ask = { question = "Which size?", options = ["s", "l"], free_text = "Other" }
[[turn.step]]
run = "sleep 0.05"
[[turn.step]]
ask = { question = "Which colour?", options = ["r", "b"], free_text = "Other" }
[[turn]]
[[turn.step]]
say = "Told: {prompt}"
[[turn.step]]
run = "sleep 0.05"
"""


async def asking(session: FakeSession, prompt: str) -> StopReason:
    await session.say("First.")
    await session.ask(question("Which size?"))
    await asyncio.sleep(0.03)
    await session.call("t1", "ls")
    await session.ask(question("Which colour?"))
    return StopReason.END_TURN


async def told(session: FakeSession, prompt: str) -> StopReason:
    await session.say(f"Told: {prompt}")
    await asyncio.sleep(0.05)
    return StopReason.END_TURN


class Half:
    """Scores in memory."""

    digest = "half"

    async def score(self, node: RolloutNode) -> VerifyResult:
        await asyncio.sleep(0.01)
        return VerifyResult(reward=0.5, verifier_digest="half", hardened=True)


def _fake_agent(config: RolloutConfig, task: Task, live: Path) -> Agent:
    return FakeAgent(Points(), [asking, told])


def _fake_reward(task: Task, agent: Agent, fork: Forker) -> Reward:
    return Half()


@asynccontextmanager
async def tools_of(folder: Path, real: bool) -> AsyncIterator[Toolbox]:
    """The product's own tools; unless ``real`` its sandbox and agent live in this process."""
    async with open_tools(Settings(folder / "home", None, str(folder / "jobs"), "ann")) as tools:
        yield (
            tools
            if real
            else replace(
                tools,
                sandboxes={"local": lambda labels: FakeProvider(Points())},
                make_agent=_fake_agent,
                make_reward=_fake_reward,
            )
        )


def config_of(folder: Path) -> RolloutConfig:
    return RolloutConfig(
        path=str(folder / "task"),
        agent="bench-agent",
        agent_script=str(folder / "script.toml"),
        user="human",
        ask_timeout=ASK_SECONDS,
        turn_end_timeout=TURN_END_SECONDS,
        jobs_dir=str(folder / "jobs"),
    )


async def run(folder: Path, seed: int, real: bool) -> None:
    """Process A."""
    async with tools_of(folder, real) as tools, engine(tools) as host:
        report = await run_job(host, plan(tools, config_of(folder)))
        note("ended", {"outcome": report.rollouts[0].result.outcome.value})


async def act(folder: Path, seed: int, real: bool) -> None:
    """Process B: answers, nudges and cancels until the rollout has ended."""
    async with tools_of(folder, real) as tools, engine(tools) as host:
        await Person(host, random.Random(seed)).live()


async def mend(folder: Path, seed: int, real: bool) -> None:
    """Process C: reaps, resumes, or both. Whatever it does, the rollout is final after it."""
    chance = random.Random(seed)
    async with tools_of(folder, real) as tools, engine(tools) as host:
        record = await newest(tools)
        if record is None or chance.random() < 0.6 or record.state.final:
            note("reaped", {"lines": list(await reaping.reap(host))})
        record = await newest(tools)
        if record is None:
            return
        if record.state is not RolloutState.SCORED and chance.random() < 0.6:
            result = await rerun(host, record, "run again by the test")
            note("resumed", {"outcome": result.outcome.value})
        note("reaped", {"lines": list(await reaping.reap(host))})


async def newest(tools: Toolbox) -> RolloutRecord | None:
    try:
        return await tools.store.rollouts.get("last")
    except NotFound:
        return None


class Person:
    """Acts at random on the newest rollout, each act with a key and an actor of its own."""

    def __init__(self, host: Engine, chance: random.Random) -> None:
        self._host = host
        self._chance = chance
        self._number = 0

    async def live(self) -> None:
        store, revision = self._host.tools.store, 0
        end = time.monotonic() + 20
        while time.monotonic() < end:
            record = await newest(self._host.tools)
            if record is not None:
                if record.state.final:
                    return
                await self._one_act(record)
                if any(item.id == record.id for item in await store.rollouts.orphans()):
                    # The next one of us to claim it ends it: sometimes that is this person.
                    if self._chance.random() < 0.5:
                        await self._cancel(record, "run")
                    return
            revision = await store.changed(revision, timeout=self._chance.uniform(0, 0.04))
        raise SystemExit("the rollout did not end")

    async def _one_act(self, record: RolloutRecord) -> None:
        number = self._chance.random()
        waiting = await self._host.tools.store.requests.select(rollout=record.id)
        if waiting and number < 0.6:
            await self._answer(self._chance.choice(waiting))
        elif number < 0.68 and self._number < 6:
            await self._nudge(record)
        elif number > 0.985:
            await self._cancel(record, "turn")
        elif number > 0.975:
            await self._cancel(record, "run")

    async def _answer(self, request: RequestRecord) -> None:
        key = self._key()
        text = self._chance.choice(["decline", "cancel"] + [f"words of {key}"] * 4)
        if request.kind == "ask_user":
            text = self._chance.choice(["1", "2"])

        async def do() -> None:
            await acts.answer(
                self._host.tools, request.id, text, actor=key, via="test", idem_key=key
            )

        await self._try("answer", key, {"request": request.id, "text": text}, do)

    async def _nudge(self, record: RolloutRecord) -> None:
        key = self._key()

        async def do() -> None:
            await acts.nudge(
                self._host, record.id, f"words of {key}", actor=key, via="test", idem_key=key
            )

        await self._try("nudge", key, {}, do)

    async def _cancel(self, record: RolloutRecord, scope: str) -> None:
        key = self._key()

        async def do() -> None:
            await acts.cancel(
                self._host, record.id, scope=scope, actor=key, via="test", idem_key=key
            )

        await self._try("cancel", key, {"scope": scope}, do)

    def _key(self) -> str:
        self._number += 1
        return f"act{self._number}"

    async def _try(self, what: str, key: str, more: dict[str, str], do: object) -> None:
        assert callable(do)
        note("try", {"what": what, "key": key, **more})
        for _ in range(1 + (self._chance.random() < 0.3)):
            try:
                await do()
            except BenchFlowError as error:
                note("refused", {"key": key, "why": error.category, "text": str(error)})
                return
            note("acknowledged", {"key": key})


LAZY = """
    core.agents.acp.agent core.agents.acp.session core.agents.registry core.rewards.compose
    core.rewards.script core.rewards.spaces core.sandboxes.inventory core.sandboxes.local
    core.store.bundles core.store.ids core.store.sql core.users.human"""
"""What the product imports when it is first used; here once for all forks."""

ROLES = {"run": run, "act": act, "mend": mend}


def note(what: str, more: dict[str, object]) -> None:
    """One line, handed to the kernel at once: it outlives this process."""
    os.write(1, (json.dumps({"note": what, **more}) + "\n").encode())


def serve(role: str) -> None:
    for module in LAZY.split():
        importlib.import_module(module)
    for line in sys.stdin:
        folder, seed, real, output = json.loads(line)
        child = os.fork()
        if child == 0:
            out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(out, 1)
            os.dup2(out, 2)
            with contextlib.suppress(KeyboardInterrupt):
                asyncio.run(ROLES[role](Path(folder), seed, real))
            os._exit(0)
        print("pid", child, flush=True)
        _, status = os.waitpid(child, 0)
        print("status", os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
