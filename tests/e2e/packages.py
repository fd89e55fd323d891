"""Small task packages and agent scripts, written where a test wants them."""

from __future__ import annotations

import json
from pathlib import Path

PASSES = "echo 1 > /logs/verifier/reward.txt"


def write_task(
    folder: Path,
    *,
    verifier: str = PASSES,
    manifest: str = "",
    front: str = "",
    instruction: str = "Do it.",
    oracle: str = "true",
) -> Path:
    """A package whose verifier passes whatever the agent did."""
    for name in ("verifier", "oracle"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "verifier" / "test.sh").write_text(verifier + "\n")
    (folder / "oracle" / "solve.sh").write_text(oracle + "\n")
    world = ""
    if manifest:
        (folder / "environment").mkdir(exist_ok=True)
        (folder / "environment" / "environment.toml").write_text(manifest)
        world = "benchflow:\n  environment:\n    manifest: environment/environment.toml\n"
    (folder / "task.md").write_text(
        f'---\nschema_version: "1.3"\ntask:\n  name: test/{folder.name}\n{front}{world}---\n'
        f"{instruction}\n"
    )
    return folder


def service(command: str, *, name: str = "one", port: int = 8090, health: str = "") -> str:
    lines = ["[[environment.services]]", f'name = "{name}"', f"command = {json.dumps(command)}"]
    lines += [f"port = {port}"] + ([f'health_path = "{health}"'] if health else [])
    return "\n".join(lines) + "\n"


def world(*services: str, readiness: str = "timeout_sec = 2") -> str:
    return (
        '[environment]\nname = "small"\nowns_lifecycle = false\n\n'
        + "\n".join(services)
        + f"\n[environment.readiness]\n{readiness}\n"
    )


def write_script(path: Path, *turns: list[str]) -> Path:
    """A bench-agent script: each turn a list of the inside of ``[[turn.step]]`` tables."""
    text = ""
    for steps in turns:
        text += "[[turn]]\n" + "".join(f"[[turn.step]]\n{step}\n" for step in steps)
    path.write_text(text)
    return path


ASKS = """ask = { question = "Which colour?", options = [
    { value = "r", label = "Red" }, { value = "b", label = "Blue" } ], free_text = "Other" }
save = "answer" """
