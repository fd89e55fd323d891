"""What is on disk: frozen layers, images made of them, and the folders of sandboxes.

    layers/<id>/fs        a frozen file state, the delta to its parent layer
    layers/<id>/refs/     one empty file per thing that still needs it
    images/<id>.json      what a snapshot handed out
    sandboxes/<id>/       owner.json first, then upper, work, merged, view
    trash/                renamed here, then deleted

A layer goes when its last reference does, and then lets go of its parent. All
changes of references happen under one file lock, so several engines may share
a store. Every function blocks; call them off the loop.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from core.contracts.errors import SandboxError, SnapshotError
from core.sandboxes.seeds import Seed, digest_of, plant

MAX_LAYERS = 200
"""The kernel takes one page of mount options; deeper chains must be flattened first."""
KEEP_SEEDS = 16
"""Seed layers that nobody uses are kept for the next sandbox, up to this many."""


def new_id(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(6)}"


def process_start(pid: int) -> int:
    """Start time of a process in clock ticks since boot; -1 when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    return int(stat.rpartition(")")[2].split()[19])


def _own_name(prefix: str) -> str:
    pid = os.getpid()
    return f"{prefix}-{pid}-{process_start(pid)}-{secrets.token_hex(6)}"


def _maker_lives(name: str) -> bool:
    _, pid, start, _ = name.split("-")
    return process_start(int(pid)) == int(start)


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class LayerStore:
    """Layers under one root folder, which only its owner can enter."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.layers = self.root / "layers"
        self.images = self.root / "images"
        self.sandboxes = self.root / "sandboxes"
        self._trash = self.root / "trash"
        self.tag = hashlib.sha256(str(self.root).encode()).hexdigest()[:8]
        """Names this store where several share one space, as in control groups."""
        self._seen: dict[tuple[int, ...], str] = {}

    def open(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        for folder in (self.layers, self.images, self.sandboxes, self._trash):
            folder.mkdir(mode=0o700, exist_ok=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def base(self, seeds: Sequence[Seed]) -> str:
        """The lowest layer for these seeds, made now or found from before."""
        layer = "b" + digest_of(seeds, self._seen)[:15]
        if (self.layers / layer).is_dir():
            return layer
        made = self.layers / _own_name("tmp")
        try:
            (made / "refs").mkdir(parents=True)
            for seed in seeds:
                plant(seed, made / "fs")
            self._describe(made, None)
            with self._locked():
                if (self.layers / layer).is_dir():
                    self._discard_now(made)
                else:
                    made.rename(self.layers / layer)
        except OSError as error:
            self._discard_now(made)
            raise SandboxError(
                f"cannot lay out the sandbox's first files: {error.strerror}",
                where=str(error.filename or made),
                remedy="Check free space and that the seed folder can be read",
            ) from error
        return layer

    def _describe(self, folder: Path, parent: str | None) -> None:
        text = json.dumps({"parent": parent, "boot_id": boot_id()})
        (folder / "layer.json").write_text(text)

    def parent(self, layer: str) -> str | None:
        parent: str | None = json.loads((self.layers / layer / "layer.json").read_text())["parent"]
        return parent

    def hold(self, layer: str, ref: str) -> None:
        """Keep ``layer`` until ``drop``. Raises SnapshotError when it is already gone."""
        with self._locked():
            try:
                (self.layers / layer / "refs" / ref).touch()
            except FileNotFoundError as error:
                raise SnapshotError(
                    "a frozen file state is gone",
                    where=str(self.layers / layer),
                    remedy="It was discarded; choose another node, or run the rollout again",
                ) from error

    def drop(self, layer: str, ref: str) -> None:
        """Let go of ``layer``; what nobody needs any more is deleted."""
        with self._locked():
            refs = self.layers / layer / "refs"
            (refs / ref).unlink(missing_ok=True)
            gone = self._collect(layer)
        for folder in gone:
            self.delete(folder)

    def _collect(self, start: str | None) -> list[Path]:
        gone: list[Path] = []
        layer = start
        while layer is not None:
            refs = self.layers / layer / "refs"
            if not refs.is_dir() or any(refs.iterdir()):
                break
            if layer.startswith("b"):
                gone.extend(self._old_seeds())
                break
            parent = self.parent(layer)
            gone.append(self._to_trash(self.layers / layer))
            if parent is not None:
                (self.layers / parent / "refs" / f"layer-{layer}").unlink(missing_ok=True)
            layer = parent
        return gone

    def _old_seeds(self) -> list[Path]:
        unused = [
            path
            for path in self.layers.glob("b*")
            if (path / "refs").is_dir() and not any((path / "refs").iterdir())
        ]
        unused.sort(key=lambda path: (path / "refs").stat().st_mtime, reverse=True)
        return [self._to_trash(path) for path in unused[KEEP_SEEDS:]]

    def freeze_in_place(self, upper: Path, parent: str, ref: str) -> str:
        """Turn an upper that nobody mounts any more into a layer, without copying."""
        return self._add(lambda place: upper.rename(place), parent, ref)

    def copy(self, upper: Path, parent: str, ref: str) -> str:
        """A layer that equals ``upper``, marks of deletion included; clones where it can."""

        def clone(place: Path) -> None:
            argv = ["cp", "-a", "--reflink=auto", "--", str(upper), str(place)]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode:
                raise OSError(done.returncode, done.stderr.strip()[-500:], str(upper))

        return self._add(clone, parent, ref)

    def _add(self, fill: _Fill, parent: str, ref: str) -> str:
        layer = new_id("l")
        made = self.layers / _own_name("tmp")
        try:
            (made / "refs").mkdir(parents=True)
            (made / "refs" / ref).touch()
            self._describe(made, parent)
            fill(made / "fs")
            with self._locked():
                (self.layers / parent / "refs" / f"layer-{layer}").touch()
                made.rename(self.layers / layer)
        except OSError as error:
            self._discard_now(made)
            raise SnapshotError(
                f"the sandbox's files could not be captured: {error.strerror}",
                where=str(error.filename or made),
                remedy="Check free space in the store",
            ) from error
        return layer

    def save_image(self, image: str, layers: Sequence[str], labels: Mapping[str, str]) -> None:
        record = {"layers": list(layers), "labels": dict(labels)}
        write_json(self.images / f"{image}.json", record)

    def forget_image(self, image: str, layers: Sequence[str]) -> None:
        (self.images / f"{image}.json").unlink(missing_ok=True)
        if layers:
            self.drop(layers[-1], f"image-{image}")

    def delete(self, folder: Path) -> None:
        """Delete a folder, whatever a program left in it; first out of sight, then for good."""
        if folder.parent != self._trash:
            if not folder.exists():
                return
            folder = self._to_trash(folder)
        shutil.rmtree(folder, ignore_errors=False)

    def _to_trash(self, folder: Path) -> Path:
        place = self._trash / _own_name("del")
        folder.rename(place)
        return place

    def _discard_now(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    def unfinished(self) -> list[Path]:
        """Half-made layers, and deletions under way, of engines that are dead."""
        found = [*self.layers.glob("tmp-*"), *self._trash.glob("del-*")]
        return [path for path in found if not _maker_lives(path.name)]


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    _Fill = Callable[[Path], object]


def write_json(path: Path, record: Mapping[str, object]) -> None:
    """Write a record so that a reader sees all of it or nothing."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    temporary.write_text(json.dumps(record))
    temporary.rename(path)


def disk_bytes(folder: Path) -> int:
    """Bytes on disk below ``folder``, links not followed."""
    total = 0
    pending = [folder]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                total += entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry.path))
    return total
