"""A capture that meets a full disk fails cleanly: said, undone, and the rollout goes on."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from core.contracts.errors import CheckpointError
from core.kernel.branch import checkpoint_of
from tests.branch.bench import HERE, bench

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(120)]


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    place = folder / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    made = subprocess.run(mount, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"this machine mounts no tmpfs: {made.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize(
    ("script", "options", "said"),
    [
        # Noticed before anything is copied.
        pytest.param("big", "size=105m", "disk of the sandboxes is full", id="bytes"),
        # Noticed by nobody until the copy runs out of inodes.
        pytest.param("many", "size=400m,nr_inodes=5500", "could not be captured", id="inodes"),
    ],
)
async def test_a_question_that_cannot_be_captured_is_asked_all_the_same(
    tmp_path: Path, script: str, options: str, said: str
) -> None:
    with small_disk(tmp_path, options) as disk:
        async with bench(tmp_path, sandboxes=disk / "store") as made:
            agent = HERE / "scripts" / f"{script}.toml"
            record, tree = await made.run(HERE / "ways", agent_script=str(agent), answers=("x",))
            assert (record.state.value, record.reward) == ("scored", 0.5), record.error
            (asked,) = [node for node in tree.nodes.values() if node.kind == "ask"]
            assert asked.answer is not None
            assert asked.checkpoint is None
            problem = str(tree.session["checkpoint_problem"]["error"])
            assert said in problem
            assert "bench gc" in problem
            with pytest.raises(CheckpointError, match="nothing was captured"):
                checkpoint_of(tree, asked.id)
        left = [path.name for path in (disk / "store" / "layers").iterdir()]
        assert not [name for name in left if name.startswith("tmp-")]
        assert list((disk / "store" / "sandboxes").iterdir()) == []
