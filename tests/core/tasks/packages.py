"""Write task packages for tests: a whole one by default, any part replaced."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from core.contracts.errors import Fault
from core.tasks.check import check_task

FRONT = """\
schema_version: "1.3"
task:
  name: desk/refund
"""
BODY = "Settle the customer's complaint."


def text(front: str = FRONT, body: str = BODY) -> str:
    return f"---\n{textwrap.dedent(front)}---\n\n{textwrap.dedent(body)}\n"


def package(
    folder: Path,
    front: str = FRONT,
    body: str = BODY,
    *,
    manifest: str | None = None,
    script: bool = True,
    files: Mapping[str, str | bytes] | None = None,
) -> Path:
    """A package below ``folder``; returns its path."""
    root = folder / "refund"
    root.mkdir(parents=True, exist_ok=True)
    (root / "task.md").write_text(text(front, body), encoding="utf-8")
    parts: dict[str, str | bytes] = {}
    if script:
        parts["verifier/test.sh"] = "echo 1 > /logs/verifier/reward.txt\n"
    if manifest is not None:
        parts["environment/environment.toml"] = textwrap.dedent(manifest)
    for name, content in {**parts, **(files or {})}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def faults(folder: Path, front: str = FRONT, body: str = BODY, **more: object) -> list[Fault]:
    return check_task(package(folder, front, body, **more))  # type: ignore[arg-type]


def only(found: list[Fault]) -> Fault:
    """The one fault there is; a test that expects one must not pass for another."""
    assert len(found) == 1, "\n".join(map(str, found))
    return found[0]
