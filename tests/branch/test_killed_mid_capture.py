"""kill -9 of the engine at each step of a capture: a whole checkpoint or none, and no debris."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from core.contracts.store import RolloutState
from core.contracts.values import Outcome
from core.kernel.branch import checkpoint_of
from core.services import acts, reaping
from core.services.branching import BranchRequest
from core.services.jobs import rerun
from tests.branch.bench import Bench, bench
from tests.branch.frozen import workspace_of
from tests.core.sandboxes.helpers import groups, until

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(300)]

DOOMED = Path(__file__).with_name("doomed.py")
BEFORE_THE_RECORD = (
    "fence",
    "drain",
    "session",
    "flush",
    "flushed",
    "capture",
    "frozen",
    "captured",
    "lifted",
)


async def run_until_killed(root: Path, point: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(DOOMED), str(root), point, stderr=asyncio.subprocess.PIPE
    )
    _, said = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == -9, said.decode()


def mounted_anywhere(root: Path) -> set[str]:
    """Processes, of any namespace, that see a mount of ours."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(root) in (entry / "mountinfo").read_text():
                found.add(entry.name)
        except OSError:
            continue
    return found


async def nothing_left(root: Path) -> None:
    store = root / "home" / "sandboxes"
    await until(lambda: not mounted_anywhere(store))
    assert groups(store) == set()
    assert list((store / "sandboxes").iterdir()) == []
    assert list((store / "trash").iterdir()) == []
    assert list((store / "layers").glob("tmp-*")) == []
    for record in (store / "images").glob("i*.json"):
        layers = json.loads(record.read_text())["layers"]
        assert all((store / "layers" / layer).is_dir() for layer in layers)


async def the_rollout(made: Bench) -> str:
    (record,) = await made.tools.store.rollouts.select()
    assert record.state is RolloutState.INTERRUPTED
    return record.id


@pytest.mark.parametrize("point", BEFORE_THE_RECORD)
async def test_killed_before_the_record_there_is_no_checkpoint(tmp_path: Path, point: str) -> None:
    await run_until_killed(tmp_path, point)
    async with bench(tmp_path) as made:
        await reaping.reap(made.engine)
        await nothing_left(tmp_path)
        record = await made.tools.store.rollouts.get(await the_rollout(made))
        tree = await made.tree(record)
        assert [node.id for node in tree.nodes.values() if node.checkpoint] == []
        assert sum(node.kind == "ask" for node in tree.nodes.values()) == 1
        result = await rerun(made.engine, record, "its engine was killed")
        assert result.outcome is Outcome.SCORED
        tree = await made.tree(record)
        (asked,) = [node for node in tree.nodes.values() if node.kind == "ask" and node.checkpoint]
        assert checkpoint_of(tree, asked.id).consistency == "quiesced"
    await nothing_left(tmp_path)


async def test_killed_after_the_record_the_checkpoint_is_whole(tmp_path: Path) -> None:
    await run_until_killed(tmp_path, "recorded")
    async with bench(tmp_path) as made:
        await reaping.reap(made.engine)
        await nothing_left(tmp_path)
        rollout = await the_rollout(made)
        tree = await made.tree(await made.tools.store.rollouts.get(rollout))
        (asked,) = [node for node in tree.nodes.values() if node.kind == "ask"]
        files = await workspace_of(made.provider, checkpoint_of(tree, asked.id).image)
        assert files["shared"] == ("0o644", "first\n")
        request = BranchRequest(asked.id, answers=("main", "main"))
        done = await acts.branch(made.engine, rollout, request, actor="ann", via="test")
        assert done["lines"] == [1, 2]
        tree = await made.tree(await made.tools.store.rollouts.get(rollout))
        assert [tree.lines[number].outcome for number in (1, 2)] == ["scored", "scored"]
    await nothing_left(tmp_path)
