"""What a task asks for that a sandbox without images and network does not give.

Nothing a package declares is dropped in silence: what would make the result
wrong is ``blocking``; the rest is worth telling before a run. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.tasks.models import Manifest, Task
from core.tasks.package import unused_keys


@dataclass(frozen=True, slots=True)
class Shortfall:
    """``key`` as a person finds it in the file; ``blocking`` when a run would mislead."""

    key: str
    why: str
    blocking: bool


def shortfalls(task: Task, *, images: bool = False, network: bool = False) -> tuple[Shortfall, ...]:
    """Everything the task asks for and would not get; blocking ones first.

    ``images`` and ``network`` say what the chosen sandbox can do.
    """
    found = [*_of_sandbox(task, images=images, network=network)]
    if task.manifest is not None:
        found += _of_world(task.manifest, images=images)
    if "steps" in task.extra:
        found.append(Shortfall("steps", "its steps are not run one by one", True))
    if task.artifacts:
        found.append(Shortfall("artifacts", "no files are copied out of the sandbox", False))
    blocked = {item.key for item in found}
    found += [
        Shortfall(key, "it is read and has no effect", False)
        for key in unused_keys(task)
        if key not in blocked
    ]
    return tuple(sorted(found, key=lambda item: not item.blocking))


def _of_sandbox(task: Task, *, images: bool, network: bool) -> list[Shortfall]:
    sandbox, found = task.sandbox, []
    if sandbox.setup_commands:
        found.append(Shortfall("sandbox.setup_commands", "they are not run", True))
    if sandbox.docker_image and not images:
        why = f"the programs of the image {sandbox.docker_image} are not there, only this machine's"
        found.append(Shortfall("sandbox.docker_image", why, False))
    if (task.folder / "environment" / "Dockerfile").is_file() and not images:
        why = "it is not built; only environment/workspace is laid out"
        found.append(Shortfall("environment/Dockerfile", why, False))
    if sandbox.network_mode != "no-network" and not network:
        why = f"there is no network, though it asks for {sandbox.network_mode}"
        found.append(Shortfall("sandbox.network_mode", why, False))
    return found


def _of_world(manifest: Manifest, *, images: bool) -> list[Shortfall]:
    found: list[Shortfall] = []
    if manifest.owns_lifecycle and not images:
        why = f"the image {manifest.image} would start the world, and no image is run"
        found.append(Shortfall("environment.owns_lifecycle", why, True))
    elif (manifest.image or manifest.base_image) and not images:
        why = "its services' programs are not there unless this machine has them"
        key = "environment.image" if manifest.image else "environment.base_image"
        found.append(Shortfall(key, why, False))
    if manifest.isolation == "persistent":
        why = "every rollout begins with a fresh state"
        found.append(Shortfall("environment.isolation", why, True))
    return found
