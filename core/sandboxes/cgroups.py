"""Limits of one sandbox by control groups, version 1 or 2, whichever this machine has.

A sandbox is one group of the same name in every hierarchy in use. Only
programs are inside; the holder and the inits stay out, so that a full, frozen
or starved group can still be ended.
"""

from __future__ import annotations

import functools
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from core.contracts.errors import SandboxError
from core.contracts.sandbox import Limits
from core.sandboxes.identity import is_root

TOP = "benchflow"
FREEZE_SECONDS = 2.0
_CPU_PERIOD = 100_000
_V1 = ("pids", "memory", "cpu", "freezer")


def discover() -> dict[str, Path]:
    """Controller name to the folder of its hierarchy below which we may make groups.

    That is the hierarchy's root, or for an ordinary user what was delegated: a
    folder ``benchflow`` in it that he may write, or his own group (version 2).
    The key ``freezer`` is present for version 2 as well.
    """
    found: dict[str, Path] = {}
    unified: Path | None = None
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind not in ("cgroup", "cgroup2") or " ro," in f" {left.split()[5]},":
            continue
        place = Path(left.split()[4])
        if not os.access(place, os.W_OK):
            mine = _delegated(place, kind == "cgroup2")
            if mine is None:
                continue
            place = mine
        if kind == "cgroup":
            for name in options.split(","):
                if name in _V1:
                    found[name] = place
        else:
            unified = place
    if unified is not None:
        offered = _offered(unified)
        for name in ("pids", "memory", "cpu"):
            if name in offered:
                found.setdefault(name, unified)
        found.setdefault("freezer", unified)
    return found


def _delegated(place: Path, unified: bool) -> Path | None:
    """Where an ordinary user may make a group and move himself into it, found by doing so."""
    candidates = [place] if os.access(place / TOP, os.W_OK) else []
    if unified:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::/"):
                candidates.append(place / line[4:])
    return next((candidate for candidate in candidates if _admits(candidate)), None)


def _admits(place: Path) -> bool:
    folder = place / TOP / f"probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True)
    except OSError:
        return False
    try:
        script = 'echo 0 > "$1"'
        argv = ["sh", "-c", script, "sh", str(folder / "cgroup.procs")]
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0
    finally:
        _rmdir(folder)


def _offered(unified: Path) -> list[str]:
    """Controllers whose limits we can set below ``unified``."""
    if is_root():
        return (unified / "cgroup.controllers").read_text().split()
    # Handing a controller down is refused while processes sit beside the new groups.
    return (unified / "cgroup.subtree_control").read_text().split()


_INSTEAD = {
    "pids": "processes are counted per program or user, not per sandbox",
    "memory": "memory is limited for each process alone",
    "cpu": "the share of the processor is not limited",
    "freezer": "a sandbox is frozen by stopping its processes (SIGSTOP), which they can notice",
}


def weaknesses(roots: Mapping[str, Path]) -> list[str]:
    """What does not hold, or only more weakly, without the groups that are missing."""
    missing = [name for name in _V1 if name not in roots]
    if not missing:
        return []
    how = "; ".join(_INSTEAD[name] for name in missing)
    way = "make the cgroup file systems writable"
    if not is_root():
        way = "start through `systemd-run --user --scope -p Delegate=yes`, or run as root"
    return [f"no control group for {', '.join(missing)}: {how}: {way}"]


@functools.cache
def _is_v2(root: Path) -> bool:
    return (root / "cgroup.controllers").exists()


def _write(path: Path, value: str) -> None:
    with path.open("w") as file:
        file.write(value)


class Group:
    """One sandbox's groups. Methods block briefly; call them off the loop.

    ``store`` names the store the sandbox belongs to, so that a reaper finds the
    groups of its own store and no other's.
    """

    def __init__(self, store: str, name: str, roots: Mapping[str, Path]) -> None:
        self.name = name
        self._store = store
        self._roots = dict(roots)
        self._places = {root: root / TOP / store / name for root in dict.fromkeys(roots.values())}
        self.missing = [name for name in _V1 if name not in roots]

    def _folder(self, root: Path) -> Path:
        return self._places[root]

    @property
    def folders(self) -> list[Path]:
        return list(self._places.values())

    @property
    def joins(self) -> list[str]:
        """Files a process writes ``0`` into to join."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def create(self, limits: Limits) -> None:
        """Make the groups and set their limits. Raises SandboxError when the kernel refuses."""
        try:
            for root, folder in self._places.items():
                if _is_v2(root):
                    self._open_v2(root)
                self._make(folder)
            self._limit(limits)
        except OSError as error:
            self.remove()
            raise SandboxError(
                f"cannot set limits on the sandbox: {error.strerror}",
                where=str(error.filename or self.name),
                remedy="Check that the control group file system is writable, or free some groups",
            ) from error

    @staticmethod
    def _make(folder: Path) -> None:
        try:
            folder.mkdir()
        except FileNotFoundError:
            try:
                folder.mkdir(parents=True)
            except FileNotFoundError:
                # Another sandbox removed the empty parent between two calls.
                folder.mkdir(parents=True)

    def _open_v2(self, root: Path) -> None:
        wanted = [name for name in ("pids", "memory", "cpu") if self._roots.get(name) == root]
        place = root / TOP / self._store
        place.mkdir(parents=True, exist_ok=True)
        for folder in (root, root / TOP, place):
            if wanted:
                _write(folder / "cgroup.subtree_control", " ".join(f"+{name}" for name in wanted))

    def _limit(self, limits: Limits) -> None:
        memory = limits.memory_mb << 20
        quota = max(1000, int(limits.cpus * _CPU_PERIOD))
        if root := self._roots.get("pids"):
            _write(self._folder(root) / "pids.max", str(limits.processes))
        if root := self._roots.get("memory"):
            folder = self._folder(root)
            if _is_v2(root):
                _write(folder / "memory.max", str(memory))
                if (folder / "memory.swap.max").exists():
                    _write(folder / "memory.swap.max", "0")
            else:
                _write(folder / "memory.limit_in_bytes", str(memory))
                if (folder / "memory.memsw.limit_in_bytes").exists():
                    _write(folder / "memory.memsw.limit_in_bytes", str(memory))
        if root := self._roots.get("cpu"):
            folder = self._folder(root)
            if _is_v2(root):
                _write(folder / "cpu.max", f"{quota} {_CPU_PERIOD}")
            else:
                _write(folder / "cpu.cfs_period_us", str(_CPU_PERIOD))
                _write(folder / "cpu.cfs_quota_us", str(quota))

    @property
    def can_freeze(self) -> bool:
        return "freezer" in self._roots

    def freeze(self, timeout: float = FREEZE_SECONDS) -> None:
        """Stop all programs. Raises SandboxError, thawed again, when they do not stop in time."""
        root = self._roots.get("freezer")
        if root is None:
            raise SandboxError(
                "this machine cannot freeze a sandbox",
                where="no freezer control group",
                remedy="Mount the freezer hierarchy or cgroup2, or retire the sandbox instead",
            )
        folder = self._folder(root)
        until = time.monotonic() + timeout
        pause = 0.0002
        # The kernel offers no event for "frozen" in version 1; it takes well under a millisecond.
        while not self._frozen(folder):
            if time.monotonic() > until:
                self.thaw()
                raise SandboxError(
                    f"the sandbox did not freeze within {timeout:g} s",
                    where=str(folder),
                    remedy="Look for a program that hangs in the kernel (state D)",
                )
            time.sleep(pause)
            pause = min(pause * 2, 0.01)

    def _frozen(self, folder: Path) -> bool:
        if (folder / "cgroup.freeze").exists():
            _write(folder / "cgroup.freeze", "1")
            return "frozen 1" in (folder / "cgroup.events").read_text()
        _write(folder / "freezer.state", "FROZEN")
        return (folder / "freezer.state").read_text().strip() == "FROZEN"

    def thaw(self) -> None:
        root = self._roots.get("freezer")
        if root is None:
            return
        folder = self._folder(root)
        try:
            if (folder / "cgroup.freeze").exists():
                _write(folder / "cgroup.freeze", "0")
            else:
                _write(folder / "freezer.state", "THAWED")
        except FileNotFoundError:
            return

    def members(self) -> set[int]:
        """Pids, in our own namespace, of the programs still inside."""
        pids: set[int] = set()
        for folder in self.folders:
            try:
                pids.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
            except FileNotFoundError:
                continue
        return pids

    def remove(self, timeout: float = 5.0) -> bool:
        """Remove the groups; False while a process that will not end is still inside."""
        until = time.monotonic() + timeout
        left = self.folders
        while left:
            left = [folder for folder in left if not _rmdir(folder)]
            if left and time.monotonic() > until:
                return False
            if left:
                # An ended process leaves its group a moment after it was reaped; no event says so.
                time.sleep(0.002)
        for folder in self.folders:
            # Only when this was the last sandbox of the store, or of the machine.
            if _rmdir(folder.parent):
                _rmdir(folder.parent.parent)
        return True


def names(store: str, roots: Mapping[str, Path]) -> set[str]:
    """Names of all groups of a store that exist in any hierarchy."""
    found: set[str] = set()
    for root in roots.values():
        place = root / TOP / store
        if place.is_dir():
            found.update(item.name for item in place.iterdir() if item.is_dir())
    return found


def _rmdir(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
