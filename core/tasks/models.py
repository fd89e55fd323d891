"""Task and Manifest as the rest of the engine sees them: parsed, checked, frozen.

Reading a package is in ``package.py`` (task.md) and ``manifest.py``
(environment.toml); nothing here touches a disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from core.contracts.values import JsonObject


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """One service the framework starts. ``command`` runs by ``sh -c`` in the service view."""

    name: str
    command: str
    port: int
    health_path: str = "/health"
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadinessSpec:
    """Probes that all must pass before the agent runs; ports are the services' own."""

    http: tuple[str, ...] = ()
    tcp: tuple[str, ...] = ()
    exec: tuple[str, ...] = ()
    timeout_sec: float = 120.0


@dataclass(frozen=True, slots=True)
class TaskSelectionSpec:
    mechanism: Literal["env_var", "image"] = "env_var"
    key: str = "BENCHFLOW_TASK_ID"
    inject_into: Literal["entrypoint", "exec"] = "entrypoint"


@dataclass(frozen=True, slots=True)
class StateSpec:
    """What is rolled back. Paths are absolute; their folders are mounts the agent lacks."""

    kind: Literal["sqlite", "files"]
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The environment, from ``environment.toml``. ``folder`` is the ``environment/`` folder."""

    name: str
    folder: Path
    image: str | None = None
    base_image: str | None = None
    owns_lifecycle: bool = False
    isolation: Literal["per_task", "persistent"] = "per_task"
    keep_alive: bool = True
    ports: tuple[int, ...] = ()
    services: tuple[ServiceSpec, ...] = ()
    setup: str = ""
    """Run once by ``sh -c`` in the service view when the state is fresh."""
    task_selection: TaskSelectionSpec = TaskSelectionSpec()
    readiness: ReadinessSpec = ReadinessSpec()
    state: tuple[StateSpec, ...] = ()
    forward_env: tuple[str, ...] = ()
    hidden_from_agent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifierSpec:
    """How a task is scored. ``script`` is relative to the package."""

    script: str = "verifier/test.sh"
    timeout_sec: float = 600.0
    env: Mapping[str, str] = field(default_factory=dict)
    reward_range: tuple[float, float] = (0.0, 1.0)
    sandbox_mode: Literal["fork", "shared"] = "fork"


@dataclass(frozen=True, slots=True)
class AskingSpec:
    """Whether asking the user is right here, and what it weighs in the reward.

    reward = output * (1 - weight * (1 - action)), where action is 1 when the agent
    did as ``expected`` says: not asking costs its share, asking alone earns nothing.
    """

    expected: Literal["required", "forbidden", "optional"] = "optional"
    weight: float = 0.0


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """The scripted user's answer to a question whose text holds ``when`` (any case)."""

    when: str
    answer: str


@dataclass(frozen=True, slots=True)
class UserSpec:
    """The task's user: what a scripted or simulated user knows and says."""

    model: str = "scripted"
    persona: str = ""
    private_facts: Mapping[str, str] = field(default_factory=dict)
    answers: tuple[ScriptedAnswer, ...] = ()
    nudges: tuple[str, ...] = ()
    """Follow-ups after the first, second, ... turn."""


@dataclass(frozen=True, slots=True)
class SandboxNeeds:
    workdir: str = "/workspace"
    cpus: float = 1.0
    memory_mb: int = 2048
    storage_mb: int = 10240
    docker_image: str | None = None
    network_mode: str = "no-network"
    env: Mapping[str, str] = field(default_factory=dict)
    setup_commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentNeeds:
    timeout_sec: float | None = None
    prompt_prefix: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """Han's T: one package. ``digest`` covers every file that changes what is run or scored."""

    name: str
    folder: Path
    digest: str
    instruction: str
    version: str = ""
    description: str = ""
    keywords: tuple[str, ...] = ()
    agent: AgentNeeds = AgentNeeds()
    sandbox: SandboxNeeds = SandboxNeeds()
    verifier: VerifierSpec = VerifierSpec()
    user: UserSpec = UserSpec()
    asking: AskingSpec = AskingSpec()
    oracle: str | None = None
    """Script relative to the package, None when there is no reference solution."""
    oracle_timeout_sec: float = 600.0
    oracle_env: Mapping[str, str] = field(default_factory=dict)
    manifest: Manifest | None = None
    artifacts: tuple[str, ...] = ()
    extra: JsonObject = field(default_factory=dict)
    """Known sections that this version reads but does not act on (roles, scenes, ...)."""
