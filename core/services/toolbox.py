"""What the services are given to work with; only the composition root fills it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from core.contracts.agent import Agent
from core.contracts.environment import Environment
from core.contracts.images import ImageStore
from core.contracts.reward import Reward
from core.contracts.sandbox import SandboxProvider
from core.contracts.store import Bundles, Ownership, Store
from core.contracts.user import UserModel
from core.kernel.spec import Forker
from core.kernel.world import Deadlines
from core.services.config import RolloutConfig
from core.tasks.models import Manifest, Task


@dataclass(frozen=True, slots=True)
class Toolbox:
    """Providers by name and the makers of everything a rollout needs."""

    store: Store
    bundles: Bundles
    home: Path
    """The store's folder; live files of a rollout lie under ``home/live/<id>``."""
    sandboxes: Mapping[str, Callable[[Mapping[str, str]], SandboxProvider]]
    """Name to a maker, which is given the labels to put on everything it makes."""
    load_task: Callable[[Path], Task]
    new_id: Callable[[], str]
    """A fresh rollout id: short, unique, sorts by time."""
    make_agent: Callable[[RolloutConfig, Task, Path], Agent]
    """Given the folder for the agent's raw traffic."""
    make_user: Callable[[RolloutConfig, Task, Store, Ownership], UserModel]
    make_reward: Callable[[Task, Agent, Forker], Reward]
    make_environment: Callable[[Manifest], Environment]
    fsck: Callable[[], Awaitable[list[str]]]
    """Compare the store with the sealed folders; the problems found."""
    reindex: Callable[[Path], Awaitable[int]]
    """Rebuild rows from sealed folders; how many rollouts."""
    deadlines: Deadlines
    images: Mapping[str, ImageStore] = field(default_factory=dict)
    """Sandbox name to what it stores on disk; a provider without it is left alone by gc."""
