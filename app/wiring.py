"""The composition root: settings become tools. Nobody else builds a provider or a store.

Providers are imported when they are first made, so that a command pays only
for what it uses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from app.settings import Settings
from core.contracts.agent import Agent
from core.contracts.environment import Environment
from core.contracts.reward import Reward, RolloutNode
from core.contracts.sandbox import SandboxProvider
from core.contracts.store import Ownership, Store
from core.contracts.user import UserModel
from core.kernel.spec import Forker
from core.kernel.tree import Node
from core.kernel.world import Deadlines
from core.services.config import RolloutConfig
from core.services.toolbox import Toolbox
from core.tasks.models import Manifest, Task
from core.tasks.package import load_task


@asynccontextmanager
async def open_tools(settings: Settings) -> AsyncIterator[Toolbox]:
    """The toolbox of this process, its store open; closed on the way out."""
    from core.sandboxes.inventory import LocalImages
    from core.store.bundles import FolderBundles
    from core.store.ids import new_id
    from core.store.sql import SqlStore

    store = SqlStore(settings.home, settings.database_url)
    await store.open()
    try:
        yield Toolbox(
            store=store,
            bundles=FolderBundles(store),
            home=settings.home,
            sandboxes={"local": lambda labels: _local(settings, labels)},
            load_task=load_task,
            new_id=new_id,
            make_agent=make_agent,
            make_user=make_user,
            make_reward=make_reward,
            make_environment=make_environment,
            fsck=store.fsck,
            reindex=store.reindex,
            deadlines=Deadlines(),
            images={"local": LocalImages(settings.home / "sandboxes")},
        )
    finally:
        await store.close()


def _local(settings: Settings, labels: Mapping[str, str]) -> SandboxProvider:
    from core.sandboxes.local import LocalProvider

    return LocalProvider(settings.home / "sandboxes", labels)


def make_agent(config: RolloutConfig, task: Task, live: Path) -> Agent:
    """The agent that the config names, its raw traffic recorded under ``live``."""
    from core.agents.registry import AgentContext, OracleScript, resolve, wire_files

    oracle = None
    if task.oracle is not None:
        script = task.folder / task.oracle
        oracle = OracleScript(script, task.oracle_timeout_sec, task.oracle_env)
    return resolve(
        config.agent,
        AgentContext(oracle=oracle, script=_agent_script(config, task), wire=wire_files(live)),
    )


def _agent_script(config: RolloutConfig, task: Task) -> Path | None:
    """What bench-agent plays: the script given, else the task's own default."""
    if config.agent_script is not None:
        return Path(config.agent_script)
    default = task.folder / "agents" / "default.toml"
    return default if default.is_file() else None


def make_user(config: RolloutConfig, task: Task, store: Store, own: Ownership) -> UserModel:
    """The user model that the config names."""
    if config.user == "human":
        from core.users.human import HumanUser

        return HumanUser(store.requests, own, turn_seconds=config.turn_end_timeout)
    if config.user == "auto":
        from core.users.auto import AutoUser, auto_policy

        return AutoUser(auto_policy(config.auto_policy))
    from core.users.scripted import ScriptedUser

    return ScriptedUser(task.user, config.answers)


def make_environment(manifest: Manifest) -> Environment:
    from core.environments.manifest import ManifestEnvironment

    return ManifestEnvironment(manifest)


def make_reward(task: Task, agent: Agent, fork: Forker) -> Reward:
    """The task's verifier in a fork, and the action space where the agent can ask."""
    from core.environments.manifest import ManifestEnvironment
    from core.rewards.compose import ComposedReward
    from core.rewards.script import ScriptVerifier
    from core.rewards.spaces import AskingReward

    world = ManifestEnvironment(task.manifest) if task.manifest else None
    script = ScriptVerifier(
        task,
        fork,
        trajectory=_trajectory_lines,
        services=world.urls() if world else None,
        state_paths=world.state_paths if world else (),
    )
    return ComposedReward(script, AskingReward(task.asking, applies=agent.capabilities().asks))


def _trajectory_lines(node: RolloutNode) -> bytes:
    from core.exports.folder import trajectory_lines

    assert isinstance(node, Node)
    return trajectory_lines(node)
