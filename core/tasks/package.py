"""A task package on disk to a Task.

Everything wrong in the package is found in one reading, over ``task.md``, the
manifest and the files themselves; a Task exists only when nothing is wrong.
Blocking (it reads and hashes every file): call it from a thread.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from core.contracts.errors import Fault, TaskError
from core.tasks import build, rules
from core.tasks.body import Document, Prompts, read_prompts, split_document
from core.tasks.files import list_files, package_digest
from core.tasks.located import Faults, Located, Unreadable
from core.tasks.manifest import parse_manifest
from core.tasks.models import AskingSpec, Manifest, Task
from core.tasks.task_keys import FRONT_MATTER
from core.tasks.text import read_text
from core.tasks.view import View
from core.tasks.yaml_source import read_yaml

MANIFEST_PLACES = (
    "environment/environment.toml",
    "environment.toml",
    "environment/environment.yaml",
    "environment.yaml",
)


@dataclass(frozen=True, slots=True)
class Reading:
    """``task`` is None exactly when there are faults."""

    task: Task | None
    faults: tuple[Fault, ...]


def load_task(path: Path) -> Task:
    """The task of a package folder (or of its ``task.md``). Raises TaskError with all faults."""
    reading = read_package(path)
    if reading.task is None:
        count = len(reading.faults)
        raise TaskError(
            f"this task package has {count} fault{'s' if count != 1 else ''}",
            where=str(path),
            remedy="Mend them and run `bench tasks check` on it",
            faults=reading.faults,
        )
    return reading.task


def unused_keys(task: Task) -> tuple[str, ...]:
    """Keys of the package that this version reads but does not act on."""
    return rules.unused(View(task.extra))


def folder_word(task_name: str) -> str:
    """A task's name as one part of a folder name: the last part of ``org/name``."""
    last = task_name.rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip(".-")[:80] or "task"


def read_package(path: Path) -> Reading:
    """Everything about a package: its Task, or all its faults."""
    folder = path.parent if path.name == "task.md" else path
    package = Faults(str(folder))
    if not folder.is_dir():
        package.add_beside("", "is not a folder", "Give the folder that holds task.md")
        return Reading(None, tuple(package.items))
    text = Faults(f"{folder}/task.md")
    parts = _read_document(folder, text)
    files = list_files(folder, package)
    world = Faults(str(folder))
    manifest, beside = _read_manifest(folder, parts, text, world)
    if parts is not None and manifest is not None:
        rules.check_world(manifest, build.sandbox_needs(parts.front.table("sandbox")), world)
    digest = package_digest(folder, files, package, beside=beside)
    faults = (*text.items, *world.items, *package.items)
    if faults or parts is None:
        return Reading(None, faults)
    return Reading(_task(folder, digest, parts, manifest), ())


@dataclass(frozen=True, slots=True)
class _Parts:
    root: Located
    front: build.FrontMatter
    prompts: Prompts


def _read_document(folder: Path, faults: Faults) -> _Parts | None:
    try:
        document = split_document(read_text(folder / "task.md"))
        root = read_yaml(document.front_matter, first_line=document.front_line)
    except Unreadable as error:
        remedy = error.remedy
        if (folder / "task.toml").is_file() and not (folder / "task.md").exists():
            remedy = "This is an older package (task.toml); write its task.md"
        faults.add("", error.line, error.problem, remedy)
        return None
    front = build.expand(FRONT_MATTER.table(root, "", faults) or {})
    prompts = _with_side_files(folder, read_prompts(document, faults), faults)
    parts = _Parts(root, front, prompts)
    _check(folder, document, parts, faults)
    return parts


def _check(folder: Path, document: Document, parts: _Parts, faults: Faults) -> None:
    root, front = parts.root, parts.front
    rules.check_instruction(parts.prompts.instruction, faults, body_line=document.body_line)
    rules.check_scripts(folder, front, root, faults)
    rules.check_verifier(root, faults)
    rules.check_asking(_asking(front), root, faults)
    rules.check_answers(root, faults)
    rules.check_scenes(front, root, faults)
    rules.check_workdir(build.sandbox_needs(front.table("sandbox")), root, faults)


def _asking(front: build.FrontMatter) -> AskingSpec:
    return build.asking_spec(front.table("benchflow").table("asking"))


def _with_side_files(folder: Path, prompts: Prompts, faults: Faults) -> Prompts:
    """``prompts/role.<n>.md``, ``scene.<n>.md`` and ``user-persona.md`` win over headings."""
    roles, scenes = dict(prompts.roles), dict(prompts.scenes)
    persona = prompts.persona
    for file in _side_files(folder):
        kind, _, name = file.name.removesuffix(".md").partition(".")
        try:
            text = read_text(file).strip()
        except Unreadable as error:
            where = Faults(f"{folder}/prompts/{file.name}")
            where.add("", error.line, error.problem, error.remedy)
            faults.items += where.items
            continue
        if kind == "role" and name:
            roles[name] = text
        elif kind == "scene" and name:
            scenes[name] = text
        elif file.name == "user-persona.md":
            persona = text
    return replace(prompts, roles=roles, scenes=scenes, persona=persona)


def _side_files(folder: Path) -> Iterator[Path]:
    try:
        names = sorted(os.listdir(folder / "prompts"))
    except OSError:
        return
    yield from (folder / "prompts" / name for name in names if name.endswith(".md"))


def _read_manifest(
    folder: Path, parts: _Parts | None, text: Faults, world: Faults
) -> tuple[Manifest | None, dict[str, bytes]]:
    """The manifest and, when it lies beside the package, its bytes by name."""
    declared = rules.declared_manifest(parts.front) if parts is not None else ""
    place = declared or next((p for p in MANIFEST_PLACES if (folder / p).is_file()), "")
    if not place:
        return None, {}
    problem = _place_problem(folder, place)
    if problem:
        line = parts.root.line_of("benchflow", "environment", "manifest") if parts else None
        text.add("benchflow.environment.manifest", line, *problem)
        return None, {}
    world.file = f"{folder}/{place}"
    try:
        data = read_text(folder / place).encode()
    except Unreadable as error:
        world.add("", error.line, error.problem, error.remedy)
        return None, {}
    reading = parse_manifest(data, world.file, Path(os.path.realpath(folder / "environment")))
    world.items += reading.faults
    return reading.manifest, {} if _inside(folder, place) else {place: data}


def _place_problem(folder: Path, place: str) -> tuple[str, str] | None:
    """A manifest may be shared by a benchmark: in the package, or in the folder around it."""
    remedy = "Give a path relative to the package, at most one folder above it"
    if place.startswith("/") or "\0" in place or not place.endswith((".toml", ".yaml", ".yml")):
        return f"{place!r} is no relative path of a .toml or .yaml file", remedy
    around = os.path.realpath(folder / "..")
    if not os.path.realpath(folder / place).startswith(around.rstrip("/") + "/"):
        return f"{place!r} leads out of the benchmark's folder", remedy
    if not (folder / place).is_file():
        return f"{place!r} does not exist", "Write it, or name the file that is there"
    return None


def _inside(folder: Path, place: str) -> bool:
    return os.path.realpath(folder / place).startswith(os.path.realpath(folder) + os.sep)


def _task(folder: Path, digest: str, parts: _Parts, manifest: Manifest | None) -> Task:
    front = parts.front
    identity, oracle = front.table("task"), front.table("oracle")
    root = Path(os.path.realpath(folder))
    return Task(
        name=identity.text("name", root.name),
        folder=root,
        digest=digest,
        instruction=parts.prompts.instruction,
        version=identity.text("version"),
        description=identity.text("description"),
        keywords=identity.texts("keywords"),
        agent=build.agent_needs(front.table("agent")),
        sandbox=build.sandbox_needs(front.table("sandbox")),
        verifier=build.verifier_spec(front.table("verifier")),
        user=build.user_spec(front.table("user"), parts.prompts),
        asking=_asking(front),
        oracle=rules.oracle_script(folder, front),
        oracle_timeout_sec=oracle.number("timeout_sec", 600.0),
        oracle_env=oracle.pairs("env"),
        manifest=manifest,
        artifacts=build.artifact_sources(View(front.data)),
        extra=build.not_acted_on(front, parts.prompts),
    )
