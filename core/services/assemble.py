"""Task + config -> what the kernel runs. The wiring diagram of one rollout."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from core.agents.permissions import decide
from core.contracts.agent import (
    Agent,
    AskUser,
    PermissionAsked,
    PermissionDecision,
)
from core.contracts.errors import ConfigError, StoreError
from core.contracts.reward import Reward
from core.contracts.sandbox import Limits, Mount, SandboxProvider, SandboxSpec
from core.contracts.store import Event, EventDraft, NewRequest, Ownership, Recorder
from core.contracts.values import JsonObject, JsonValue
from core.environments.manifest import selection
from core.kernel.finish import finish
from core.kernel.replay import fold
from core.kernel.rollout import RolloutFacts
from core.kernel.spec import Forker, ForkPoint, LineContext, PermissionContext
from core.kernel.tree import Tree
from core.kernel.world import WorldPlan
from core.rewards.script import verifier_mounts
from core.services.config import RolloutConfig
from core.services.toolbox import Toolbox
from core.tasks.models import Task
from core.tasks.needs import shortfalls
from core.tasks.variables import fill_in
from core.users.form import ask_to_json

_WITHDRAW_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A task and its agent, resolved and checked, before anything has started."""

    task: Task
    config: RolloutConfig
    agent: Agent
    facts: RolloutFacts
    plan: WorldPlan


def prepare(
    tools: Toolbox, task: Task, config: RolloutConfig, agent: Agent, provider: SandboxProvider
) -> Prepared:
    """Lower a task and a config to facts, a world plan and an agent.

    Raises ConfigError where the task asks for what no run here would give it.
    """
    _refuse_unmet(task)
    manifest = task.manifest
    make = None if manifest is None else (lambda: tools.make_environment(manifest))
    plan = WorldPlan(
        provider=provider,
        spec=_sandbox_spec(tools, task, agent),
        environment=make,
        selection=selection(manifest, task.name, os.environ) if manifest else {},
        deadlines=tools.deadlines,
    )
    facts = RolloutFacts(
        task=task.name,
        task_digest=task.digest,
        agent=agent.name,
        sandbox=config.sandbox,
        user=config.user,
        config=config.to_json(),
        seed=config.seed,
    )
    return Prepared(task, config, agent, facts, plan)


def filled(task: Task, *, oracle: bool) -> Task:
    """The task with the host's variables in the values that name them; those of the
    reference solution only where it runs.

    Raises ConfigError naming a variable that is not set and has no default.
    """
    host = os.environ
    return replace(
        task,
        sandbox=replace(task.sandbox, env=fill_in(task.sandbox.env, host, where="sandbox.env")),
        verifier=replace(task.verifier, env=fill_in(task.verifier.env, host, where="verifier.env")),
        oracle_env=fill_in(task.oracle_env, host, where="oracle.env") if oracle else {},
    )


def _refuse_unmet(task: Task) -> None:
    blocking = [item for item in shortfalls(task) if item.blocking]
    if blocking:
        first = blocking[0]
        raise ConfigError(
            f"{task.name} asks for {first.key}, which no sandbox here gives: {first.why}",
            where=str(task.folder / "task.md"),
            remedy="Take it out of the task, or run it where it is given",
        )


def line_context(
    tools: Toolbox,
    prepared: Prepared,
    recorder: Recorder,
    on_fork_point: Callable[[ForkPoint], Awaitable[None]] | None = None,
) -> LineContext:
    """What the lines of this rollout share, bound to its recorder."""
    own = recorder.ownership
    task, config, agent = prepared.task, prepared.config, prepared.agent
    instruction = "\n\n".join(filter(None, (task.agent.prompt_prefix, task.instruction)))

    def reward(forker: Forker) -> Reward:
        return tools.make_reward(task, agent, forker)

    return LineContext(
        rollout=own.rollout,
        agent=agent,
        user=tools.make_user(config, task, tools.store, own),
        reward=reward,
        permissions=_permission_policy(tools, config, own),
        recorder=recorder,
        deliver=_deliver(tools, recorder, own),
        tree=lambda: load_tree(tools, own.rollout),
        instruction=instruction,
        agent_seconds=config.timeout or task.agent.timeout_sec,
        ask_seconds=config.ask_timeout if config.user == "human" else None,
        ask_form=_form,
        at_questions=True,
        at_turns=True,
        at_root=config.policy.root > 1,
        on_fork_point=on_fork_point,
    )


async def load_tree(tools: Toolbox, rollout: str, *, whole: bool = False) -> Tree:
    """The tree as committed so far, read in pages.

    Values above 64 KB come as previews unless ``whole``.
    """
    tree = Tree()
    while True:
        batch = await tools.store.log.read(rollout, after=tree.seq, limit=5000, whole=whole)
        fold(batch, tree)
        if len(batch) < 5000:
            return tree


def _deliver(
    tools: Toolbox, recorder: Recorder, own: Ownership
) -> Callable[[str, EventDraft], Awaitable[tuple[Event, ...]]]:
    async def deliver(request: str, draft: EventDraft) -> tuple[Event, ...]:
        await recorder.commit()
        events = await tools.store.requests.deliver(own, request, draft)
        notice = getattr(recorder, "notice", None)
        if notice is not None:
            notice(draft)
        return events

    return deliver


def _permission_policy(
    tools: Toolbox, config: RolloutConfig, own: Ownership
) -> Callable[[PermissionAsked, PermissionContext], Awaitable[PermissionDecision]]:
    async def settle(asked: PermissionAsked, where: PermissionContext) -> PermissionDecision:
        decision = decide(config.permissions, asked)
        if decision is not None:
            return decision
        return await _ask_a_person(tools, own, asked, where)

    return settle


async def _ask_a_person(
    tools: Toolbox, own: Ownership, asked: PermissionAsked, where: PermissionContext
) -> PermissionDecision:
    """A security request in the inbox; it is never a question of the tree."""
    options: list[JsonValue] = [
        {"value": item.value, "label": item.label, "kind": item.kind} for item in asked.options
    ]
    question: JsonObject = {
        "question": asked.title,
        "source": "permission",
        "fields": [{"name": "option", "title": asked.title, "kind": "choice", "options": options}],
    }
    tree = await load_tree(tools, own.rollout)
    leaf = tree.lines[where.line].leaf_id if where.line in tree.lines else tree.root_id
    opened = await tools.store.requests.open(
        own,
        NewRequest(
            rollout=own.rollout,
            line=where.line,
            node=leaf,
            ask_index=where.index,
            kind="permission",
            question=question,
            default={"action": "cancel", "content": {}},
        ),
    )
    try:
        settled = await tools.store.requests.wait(opened.id)
    except asyncio.CancelledError:
        await finish(_withdraw(tools, own, where.line))
        raise
    content = (settled.answer or {}).get("content")
    chosen = content.get("option") if isinstance(content, dict) else None
    return PermissionDecision(
        str(chosen) if chosen is not None else None, policy="ask", actor=settled.actor or ""
    )


async def _withdraw(tools: Toolbox, own: Ownership, line: int) -> None:
    """Nobody waits any more: a person must not answer into the void."""
    with contextlib.suppress(StoreError, TimeoutError):
        async with asyncio.timeout(_WITHDRAW_SECONDS):
            await tools.store.requests.withdraw(own, line=line)


def _form(ask: AskUser) -> JsonObject:
    return ask_to_json(ask)


def _sandbox_spec(tools: Toolbox, task: Task, agent: Agent) -> SandboxSpec:
    mounts: list[Mount] = [*agent.mounts(), *verifier_mounts()]
    if task.manifest is not None:
        mounts.extend(tools.make_environment(task.manifest).mounts())
    workspace = task.folder / "environment" / "workspace"
    if workspace.is_dir():
        mounts.append(Mount(task.sandbox.workdir, seed=workspace))
    return SandboxSpec(
        name=task.name,
        workdir=task.sandbox.workdir,
        mounts=tuple(mounts),
        env=dict(task.sandbox.env),
        limits=Limits(memory_mb=task.sandbox.memory_mb, cpus=task.sandbox.cpus),
    )
