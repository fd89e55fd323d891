"""Nothing a package asks for is dropped in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.tasks.needs import shortfalls
from core.tasks.package import load_task
from tests.core.tasks.packages import FRONT, package

IMAGE_WORLD = '[environment]\nname = "d"\nimage = "x:1"\n'
BASE_WORLD = (
    '[environment]\nname = "d"\nbase_image = "x:1"\n'
    '[[environment.services]]\nname = "a"\ncommand = "b"\nport = 1\n'
)


def test_a_task_that_asks_for_nothing_more_has_no_shortfall(tmp_path: Path) -> None:
    assert shortfalls(load_task(package(tmp_path))) == ()


@pytest.mark.parametrize(
    ("front", "manifest", "key", "blocking"),
    [
        ("sandbox: {setup_commands: [make]}\n", None, "sandbox.setup_commands", True),
        ("sandbox: {docker_image: x}\n", None, "sandbox.docker_image", False),
        ("sandbox: {network_mode: public}\n", None, "sandbox.network_mode", False),
        ("steps: [{name: one}]\n", None, "steps", True),
        ("artifacts: [out.md]\n", None, "artifacts", False),
        ("user: {stop_rule: satisfied}\n", None, "user.stop_rule", False),
        (FRONT, IMAGE_WORLD, "environment.owns_lifecycle", True),
        (FRONT, BASE_WORLD, "environment.base_image", False),
        (
            FRONT,
            '[environment]\nname = "d"\nsetup = "a"\nisolation = "persistent"\n',
            "environment.isolation",
            True,
        ),
    ],
)
def test_what_is_not_given_is_named_once(
    tmp_path: Path, front: str, manifest: str | None, key: str, blocking: bool
) -> None:
    (found,) = shortfalls(load_task(package(tmp_path, front, manifest=manifest)))
    assert (found.key, found.blocking) == (key, blocking)
    assert found.why


def test_a_sandbox_that_runs_images_has_fewer(tmp_path: Path) -> None:
    front = "sandbox: {docker_image: x, network_mode: public}\n"
    files = {"environment/Dockerfile": "FROM x\n"}
    task = load_task(package(tmp_path, front, manifest=IMAGE_WORLD, files=files))
    assert len(shortfalls(task)) == 4
    assert shortfalls(task, images=True, network=True) == ()


def test_what_would_mislead_comes_first(tmp_path: Path) -> None:
    front = "artifacts: [a]\nsandbox: {setup_commands: [make]}\n"
    first, second = shortfalls(load_task(package(tmp_path, front)))
    assert first.blocking
    assert not second.blocking
