"""What must hold beyond the shape of a single key: between keys, and between files."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from core.tasks.build import ORACLE_SCRIPT, VERIFIER_SCRIPT, FrontMatter
from core.tasks.located import Faults, Located
from core.tasks.models import AskingSpec, Manifest, SandboxNeeds
from core.tasks.view import View

_NO_EFFECT_MEANT = frozenset(
    {"metadata", "schema_version", "document_version", "source", "prompts"}
)
"""Keys that describe: nobody expects them to change a run."""

RESERVED_WORKDIRS = ("/dev", "/environment", "/logs", "/oracle", "/proc", "/sys", "/verifier")


def check_instruction(instruction: str, faults: Faults, *, body_line: int) -> None:
    if not instruction.strip():
        faults.add(
            "",
            body_line,
            "has no instruction",
            "Write what the agent is asked below the front matter",
        )


def check_scripts(folder: Path, front: FrontMatter, root: Located, faults: Faults) -> None:
    """The verifier's script must be there; the oracle's only when it is named."""
    verifier = front.table("verifier").text("script", VERIFIER_SCRIPT)
    line = root.line_of("verifier", "script") or root.line_of("verifier")
    problem = script_problem(folder, verifier)
    if (
        problem
        and root.find("verifier", "script") is None
        and (folder / "tests" / "test.sh").is_file()
    ):
        problem = (
            "lacks verifier/test.sh; tests/test.sh is the older place",
            "Rename tests/ to verifier/",
        )
    if problem:
        faults.add("verifier.script", line, *problem)
    named = front.table("oracle").text("script")
    if named and (problem := script_problem(folder, named)):
        line = root.line_of("oracle", "script") or root.line_of("oracle")
        faults.add("oracle.script", line, *problem)


def script_problem(folder: Path, script: str) -> tuple[str, str] | None:
    """Why a script of the package cannot be used, and what to do; None when it can."""
    parts = script.removeprefix("./").split("/")
    if script.startswith("/") or ".." in parts or "\0" in script:
        return f"{script!r} does not stay inside the package", "Give a path relative to the package"
    if len(parts) < 2:
        return f"{script!r} has no folder of its own", "Move it into a folder, such as verifier/"
    if parts[0] == "environment":
        return (
            f"{script!r} lies in environment/, which becomes the world",
            "Move it into a folder that no agent sees, such as verifier/",
        )
    path = folder / script
    if not path.is_file():
        return f"{script!r} does not exist", f"Write {script}, or name the script that scores"
    real = os.path.realpath(path)
    if not real.startswith(os.path.realpath(folder) + os.sep):
        return f"{script!r} is a link that leaves the package", "Copy the file into the package"
    return None


def oracle_script(folder: Path, front: FrontMatter) -> str | None:
    named = front.table("oracle").text("script")
    if named:
        return named
    return ORACLE_SCRIPT if (folder / ORACLE_SCRIPT).is_file() else None


def check_verifier(root: Located, faults: Faults) -> None:
    kind = root.find("verifier", "type")
    if kind is not None and kind.value == "llm-judge":
        faults.add(
            "verifier.type",
            kind.line,
            "asks for a model as judge, which this version does not run",
            "Score with a script: type: test-script",
        )
    bounds = root.find("verifier", "reward_range")
    if bounds is None or not isinstance(bounds.value, list):
        return
    numbers = [item.value for item in bounds.value if isinstance(item.value, int | float)]
    if len(bounds.value) != 2 or len(numbers) != 2 or not numbers[0] < numbers[1]:
        faults.add(
            "verifier.reward_range",
            bounds.line,
            "must be two numbers, the lower one first",
            "Write it as [0.0, 1.0]",
        )


def check_asking(asking: AskingSpec, root: Located, faults: Faults) -> None:
    if asking.weight > 0 and asking.expected == "optional":
        faults.add(
            "benchflow.asking.weight",
            root.line_of("benchflow", "asking", "weight"),
            "weighs asking, yet asking is optional here",
            "Set expected to required or forbidden, or the weight to 0",
        )


def check_answers(root: Located, faults: Faults) -> None:
    """An answer whose words hold an earlier answer's words is never reached."""
    entries = root.find("user", "answers")
    if entries is None or not isinstance(entries.value, list):
        return
    earlier: list[tuple[int, str]] = []
    for index, entry in enumerate(entries.value):
        when = entry.find("when")
        if when is None or not when.written.strip():
            continue
        words = " ".join(when.written.casefold().split())
        taken = next((number for number, known in earlier if known in words), None)
        if taken is not None:
            faults.add(
                f"user.answers[{index}].when",
                when.line,
                f"can never be reached: answers[{taken}] takes every question that holds it",
                "Put the longer one first, or remove it",
            )
        earlier.append((index, words))


def check_scenes(front: FrontMatter, root: Located, faults: Faults) -> None:
    """A turn may only name a role that is declared."""
    roles = sorted(front.table("agents").table("roles").data)
    scenes = root.find("scenes")
    if not roles or scenes is None or not isinstance(scenes.value, list):
        return
    for index, scene in enumerate(scenes.value):
        turns = scene.find("turns")
        for number, turn in enumerate(
            turns.value if turns is not None and isinstance(turns.value, list) else []
        ):
            role = turn.find("role") or turn
            if isinstance(role.value, str) and role.value not in roles:
                close = difflib.get_close_matches(role.value, roles, n=1)
                faults.add(
                    f"scenes[{index}].turns[{number}].role",
                    role.line,
                    f"names the role {role.value!r}, which agents.roles lacks",
                    f"Did you mean {close[0]!r}?" if close else "Known roles: " + ", ".join(roles),
                )


def check_workdir(sandbox: SandboxNeeds, root: Located, faults: Faults) -> None:
    for top in RESERVED_WORKDIRS:
        if sandbox.workdir == top or sandbox.workdir.startswith(top + "/"):
            faults.add(
                "sandbox.workdir",
                root.line_of("sandbox", "workdir"),
                f"lies in {top}, which the framework uses",
                "Choose another folder, such as /workspace",
            )


def check_world(manifest: Manifest, sandbox: SandboxNeeds, faults: Faults) -> None:
    """State must lie where the agent's view does not reach: not around or in its workdir."""
    for spec in manifest.state:
        for path in spec.paths:
            folder = path if spec.kind == "files" else path.rsplit("/", 1)[0]
            inside = f"{folder}/".startswith(f"{sandbox.workdir}/")
            around = f"{sandbox.workdir}/".startswith(f"{folder}/")
            if folder and (inside or around):
                faults.add(
                    "environment.state",
                    None,
                    f"keeps {path} where the agent works ({sandbox.workdir})",
                    "Give the state a folder of its own, such as /data",
                )


def declared_manifest(front: FrontMatter) -> str:
    return front.table("benchflow").table("environment").text("manifest")


def unused(extra: View, *, depth: int = 2) -> tuple[str, ...]:
    """Dotted keys of ``extra``, for telling a person what has no effect."""
    found: list[str] = []
    for name, value in extra.data.items():
        if name in _NO_EFFECT_MEANT:
            continue
        if isinstance(value, dict) and value and depth > 1:
            inner = unused(View(value), depth=depth - 1)
            found += [f"{name}.{key}" for key in inner]
        else:
            found.append(name)
    return tuple(found)
