"""The fast tests also pass on the installed wheel, where every import has another root."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.architecture.distribution import build, install
from tests.architecture.repository import ROOT, load_script, run, tracked_files

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("suite_on_wheel")]


def nest_tests(target: Path) -> None:
    """The tests with the prefix of the wheel; those of this folder need a checkout."""
    nest = load_script("wheel.py").nest
    for name in tracked_files():
        if not name.startswith(("tests/", "examples/", "docs/")) or name.startswith(
            "tests/architecture/"
        ):
            continue
        goal = target / name
        goal.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, goal)
        if name.startswith("tests/") and name.endswith(".py"):
            goal.write_bytes(nest(goal.read_bytes(), name))
    shutil.copy(ROOT / "pyproject.toml", target)


@pytest.mark.timeout(900)
def test_the_fast_tests_pass_on_the_wheel(tmp_path: Path) -> None:
    installed = install(build(tmp_path / "built").wheel, tmp_path)
    nest_tests(tmp_path / "suite")
    done = run(
        [
            *(installed.python, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-m", "not slow and not sandbox", "tests/core"),
            # These start a child that imports by the checkout's flat names.
            *("-k", "not killed_owner and not loads_no_heavy_library"),
        ],
        cwd=tmp_path / "suite",
        check=False,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
