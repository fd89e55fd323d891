"""Control groups: limits are written, freezing is proven, nothing stays."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.contracts.errors import SandboxError
from core.contracts.sandbox import Limits
from core.sandboxes.cgroups import TOP, Group, discover, names

pytestmark = pytest.mark.sandbox
needs_groups = pytest.mark.skipif(
    not {"pids", "memory", "freezer"} <= set(discover()),
    reason="no control groups may be made here",
)
LIMITS = Limits(processes=7, memory_mb=64, cpus=0.5)


def hierarchies() -> list[dict[str, Path]]:
    """Every way this machine can run a group: what is found, and the freezers one by one."""
    found = discover()
    ways = [found] if found else []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        place = Path(left.split()[4])
        if right.startswith("cgroup2 ") and os.access(place, os.W_OK):
            ways.append({"freezer": place})
    return ways


@pytest.fixture(params=range(len(hierarchies())))
def group(request: pytest.FixtureRequest) -> Iterator[Group]:
    made = Group("test" + secrets.token_hex(3), "one", hierarchies()[request.param])
    made.create(LIMITS)
    yield made
    made.thaw()
    made.remove()


def join(group: Group, argv: list[str]) -> subprocess.Popen[bytes]:
    script = "".join(f"echo 0 > {path}; " for path in group.joins) + 'exec "$@"'
    return subprocess.Popen(["sh", "-c", script, "sh", *argv], stdout=subprocess.PIPE)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_frozen_group_stands_still_and_can_be_thawed(group: Group) -> None:
    program = join(group, ["sh", "-c", "echo up; while :; do :; done"])
    assert program.stdout is not None
    assert program.stdout.readline() == b"up\n"
    assert program.pid in group.members()
    group.freeze()
    before = Path(f"/proc/{program.pid}/stat").read_text().split()[13:15]
    assert state_of(program.pid) in "DST"
    assert Path(f"/proc/{program.pid}/stat").read_text().split()[13:15] == before
    group.thaw()
    program.kill()
    program.wait()
    program.stdout.close()
    assert group.remove()


def test_a_group_in_use_is_not_removed(group: Group) -> None:
    program = join(group, ["sleep", "60"])
    while program.pid not in group.members():
        pass
    assert not group.remove(timeout=0.05)
    program.kill()
    program.wait()
    assert program.stdout is not None
    program.stdout.close()
    assert group.remove()
    assert all(not folder.exists() for folder in group.folders)


@needs_groups
def test_limits_reach_the_kernel() -> None:
    found = discover()
    group = Group("test" + secrets.token_hex(3), "limits", found)
    group.create(LIMITS)
    try:
        texts = [
            (folder / name).read_text().strip()
            for folder in group.folders
            for name in ("pids.max", "memory.limit_in_bytes", "memory.max", "cpu.cfs_quota_us")
            if (folder / name).exists()
        ]
        assert "7" in texts
        assert str(64 << 20) in texts
    finally:
        assert group.remove()


@needs_groups
def test_stores_do_not_see_each_others_groups() -> None:
    found = discover()
    store = "test" + secrets.token_hex(3)
    group = Group(store, "mine", found)
    group.create(LIMITS)
    try:
        assert names(store, found) == {"mine"}
        assert names(store + "x", found) == set()
    finally:
        assert group.remove()
    assert not any((root / TOP / store).exists() for root in found.values())


def test_a_machine_without_a_freezer_says_so() -> None:
    group = Group("test", "none", {})
    assert group.missing == ["pids", "memory", "cpu", "freezer"]
    with pytest.raises(SandboxError, match="freeze"):
        group.freeze()
