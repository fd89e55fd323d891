"""Every durable effect of the store, taken away or cut off by kill -9, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from core.store.effects import NAMES
from tests.faults.store_checker import (
    Runner,
    check_acks,
    check_ended,
    lose_power,
    runner,
    weak_commits,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def script() -> Iterator[Runner]:
    with runner() as made:
        yield made


def test_the_script_uses_every_effect_and_survives_a_power_loss(
    script: Runner, tmp_path: Path
) -> None:
    log = tmp_path / "effects"
    run = script.run(tmp_path, BENCH_EFFECTS_LOG=str(log))
    assert run.status == 0, run.output
    used = {line.split('"')[1] for line in log.read_text().splitlines()} - {"write", "mkdir"}
    assert used == set(NAMES)
    assert weak_commits(log) == []
    lose_power(log)
    assert check_acks(tmp_path, run.acks) + check_ended(tmp_path) == []


POINTS = [f"{name}:{moment}" for name in NAMES for moment in ("before", "after")]
AGAIN = [
    point + ":2"
    for point in POINTS
    if point.startswith(("fsync.", "commit.events", "commit.finish", "commit.seal", "rename.b"))
    and "bundle_out" not in point
]
"""What also happens a second time, with something there already."""


@pytest.mark.parametrize("point", [*POINTS, *AGAIN])
def test_a_kill_at_an_effect_loses_nothing_and_doubles_nothing(
    script: Runner, tmp_path: Path, point: str
) -> None:
    killed = script.run(tmp_path, BENCH_FAILPOINT=point)
    assert killed.status == -9, killed.output
    assert check_acks(tmp_path, killed.acks) == []
    again = script.run(tmp_path)
    assert again.status == 0, again.output
    assert check_acks(tmp_path, killed.acks + again.acks) + check_ended(tmp_path) == []


@pytest.mark.parametrize("name", NAMES)
def test_an_effect_that_is_missing_is_noticed(script: Runner, tmp_path: Path, name: str) -> None:
    log = tmp_path / "effects"
    run = script.run(tmp_path, BENCH_FAILPOINT=f"{name}:skip", BENCH_EFFECTS_LOG=str(log))
    noticed = run.status != 0
    if not noticed:
        lose_power(log)
        noticed = bool(check_acks(tmp_path, run.acks) or check_ended(tmp_path))
    assert noticed
