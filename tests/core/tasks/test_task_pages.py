"""The pages about tasks and results: their examples work, and they name every key."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from core.exports.timing import timing
from core.kernel.events import PhaseEnded
from core.tasks.manifest import parse_manifest
from core.tasks.manifest_keys import ENVIRONMENT
from core.tasks.package import load_task, read_package
from core.tasks.shapes import ListOf, Table
from core.tasks.task_keys import FRONT_MATTER
from core.users.scripted import ScriptedUser
from tests.contracts.user_suite import CHOICE, FORM, place, turn_end
from tests.core.exports.export_helpers import started, whole_run

DOCS = Path(__file__).parents[3] / "docs"


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text("utf-8")


def example(name: str, file: str) -> str:
    """The fenced block of a page that is labelled with that file's name."""
    (found,) = re.findall(rf"^```\w+ {re.escape(file)}\n(.*?)^```$", page(name), re.M | re.S)
    assert isinstance(found, str)
    return found


def written(folder: Path, name: str, manifest: str | None = None) -> Path:
    root = folder / "refund"
    (root / "verifier").mkdir(parents=True)
    (root / "verifier" / "test.sh").write_text("true\n")
    (root / "task.md").write_text(example(name, "task.md"))
    if manifest is not None:
        (root / "environment").mkdir()
        (root / "environment" / "environment.toml").write_text(manifest)
    return root


def test_the_task_page_and_the_manifest_page_make_one_package(tmp_path: Path) -> None:
    reading = read_package(written(tmp_path, "task", example("manifest", "environment.toml")))
    assert reading.faults == ()
    task = reading.task
    assert task is not None
    assert task.name == "desk/refund"
    assert task.asking.expected == "required"
    assert task.manifest is not None
    assert task.manifest.services[0].env == {"MODE": "strict"}


async def test_the_scripted_user_of_the_page_answers_as_the_page_says(tmp_path: Path) -> None:
    user = ScriptedUser(load_task(written(tmp_path, "user-model")).user)
    assert (await user.answer(CHOICE, place())).content == {"remedy": "replace"}
    sent = replace(FORM, question="How should it be sent?")
    told = (await user.answer(sent, place())).content
    assert told == {"speed": "fast", "gift": False, "copies": 1}
    assert (await user.after_turn(turn_end(1))) is not None


@pytest.mark.parametrize("name", sorted(FRONT_MATTER.keys))
def test_the_task_page_names_every_key_of_the_front_matter(name: str) -> None:
    assert re.search(rf"`{name}\b", page("task")), name


def test_the_manifest_page_names_every_key() -> None:
    text = page("manifest")
    names = set(ENVIRONMENT.keys)
    for shape in ENVIRONMENT.keys.values():
        inner = shape.item if isinstance(shape, ListOf) else shape
        if isinstance(inner, Table):
            names |= set(inner.keys)
    assert {name for name in names if f"`{name}" not in text} == set()


def test_the_manifest_example_has_no_faults_by_itself() -> None:
    text = example("manifest", "environment.toml")
    assert parse_manifest(text.encode(), "environment.toml", Path("/p")).faults == ()


def test_the_files_page_shows_real_records() -> None:
    known = {"user_message", "agent_thought", "agent_message", "ask_user", "tool_call"}
    records = [json.loads(line) for line in example("files", "acp_trajectory.jsonl").splitlines()]
    assert {record["type"] for record in records} == known
    assert all("node" in record for record in records)


def test_the_files_page_names_every_timing_key() -> None:
    log = started()
    for phase in ("setup", "sandbox", "environment", "readiness", "teardown"):
        log.add(PhaseEnded(phase, 1.0, "ok"), line=99)  # no such line: the rollout's own
    tree = log.tree()
    keys = set(timing(tree, tree.main_line, slot_wait=0.0)) | set(
        timing(whole_run(), whole_run().main_line)
    )
    assert {key for key in keys if f"`{key}`" not in page("files")} == set()
    assert len(keys) > 12
