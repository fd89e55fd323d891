"""What is on disk: frozen layers, images made of them, and the folders of sandboxes.

    layers/<id>/fs        a frozen file state: a tree, or the delta to its parent layer
    layers/<id>/refs/     one empty file per thing that still needs it
    layers/<id>/synced    there once the whole layer is known to be on the disk
    layers/f<x>           the whole state that the chain up to layer l<x> shows, in one layer
    images/<id>.json      what a snapshot handed out
    sandboxes/<id>/       owner.json first, then its files and mount points
    trash/                renamed here, then deleted

A layer goes when its last reference does, and then lets go of its parent. All
changes of references happen under one file lock, so several engines may share
a store. Every function blocks; call them off the loop.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from core.contracts.errors import SandboxError, SnapshotError, StoreFull
from core.sandboxes import trees
from core.sandboxes.identity import is_root
from core.sandboxes.seeds import Seed, digest_of, plant

KEEP_SEEDS = 16
"""Seed layers that nobody uses are kept for the next sandbox, up to this many."""
MIN_FREE = 64 << 20
"""Bytes that must be free in the store beside what is about to be written."""
MIN_INODES = 1000


def new_id(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(6)}"


def process_start(pid: int) -> int:
    """Start time of a process in clock ticks since boot; -1 when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    return int(stat.rpartition(")")[2].split()[19])


def own_name(prefix: str) -> str:
    """A name that tells who made it, so that a reaper knows when nobody works on it any more."""
    pid = os.getpid()
    return f"{prefix}-{pid}-{process_start(pid)}-{secrets.token_hex(6)}"


def _maker_lives(name: str) -> bool:
    _, pid, start, _ = name.split("-")
    return process_start(int(pid)) == int(start)


@functools.cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _flat(layer: str) -> str | None:
    return f"f{layer[1:]}" if layer.startswith("l") else None


def _gone(layer: Path) -> SnapshotError:
    return SnapshotError(
        "a frozen file state is gone",
        where=str(layer),
        remedy="It was discarded; choose another node, or run the rollout again",
    )


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
        self.trees: trees.Trees = trees.Folders(user=not is_root())
        self.format = "overlay"

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
        layer = "b" + digest_of(seeds, self.format, self._seen)[:15]
        if self._whole(layer):
            return layer
        made = self.draft()
        try:
            (made / "refs").mkdir(parents=True)
            self.trees.make(made / "fs")
            for seed in seeds:
                plant(seed, made / "fs")
            self._describe(made, None)
            with self._locked():
                if self._whole(layer):
                    self.discard_draft(made)
                else:
                    if (self.layers / layer).is_dir():
                        # From before the machine went down; what stood on it is as doubtful.
                        self._to_trash(self.layers / layer)
                    made.rename(self.layers / layer)
        except OSError as error:
            self.discard_draft(made)
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

    def _whole(self, layer: str) -> bool:
        """Whether a layer is there and cannot have lost files when the machine went down."""
        folder = self.layers / layer
        if (folder / "synced").exists():
            return True
        try:
            made: object = json.loads((folder / "layer.json").read_text())["boot_id"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return False
        return made == boot_id()

    def check(self, layers: Sequence[str]) -> None:
        """Raises SnapshotError for a chain of which a layer is gone, or may be damaged."""
        for layer in layers:
            if not (self.layers / layer).is_dir():
                raise _gone(self.layers / layer)
            if not self._whole(layer):
                raise SnapshotError(
                    "a frozen file state may be damaged: the machine went down before it was "
                    "known to be on the disk",
                    where=str(self.layers / layer),
                    remedy="Branch from another node, or run the rollout again",
                )

    def sync(self) -> None:
        """Wait until every layer there is now is on the disk, and mark it so."""
        waiting = [
            folder
            for folder in self.layers.iterdir()
            if not folder.name.startswith("tmp-")
            and not (folder / "synced").exists()
            and self._whole(folder.name)
        ]
        if not waiting:
            return
        trees.sync(self.root)
        for folder in waiting:
            with contextlib.suppress(FileNotFoundError):
                (folder / "synced").touch()

    def check_room(self, need: int = 0) -> None:
        """Raises StoreFull when ``need`` more bytes would leave too little free."""
        info = os.statvfs(self.root)
        free = info.f_bavail * info.f_frsize
        if free < need + MIN_FREE:
            what = f"{free >> 20} MB are free, {(need + MIN_FREE) >> 20} MB are needed"
        elif info.f_files and info.f_favail < MIN_INODES:
            what = f"only {info.f_favail} more files can be made"
        else:
            return
        raise StoreFull(
            f"the disk of the sandboxes is full: {what}",
            where=str(self.root),
            remedy="Free space there, or drop stored states with `bench gc`",
        )

    def hold(self, layer: str, ref: str) -> None:
        """Keep ``layer`` until ``drop``. Raises SnapshotError when it is already gone."""
        with self._locked():
            try:
                (self.layers / layer / "refs" / ref).touch()
            except FileNotFoundError as error:
                raise _gone(self.layers / layer) from error

    def drop(self, layer: str, ref: str) -> None:
        """Let go of ``layer``; what nobody needs any more is deleted."""
        with self._locked():
            refs = self.layers / layer / "refs"
            (refs / ref).unlink(missing_ok=True)
            gone = self._collect(layer)
        for folder in gone:
            self.delete(folder)

    def _collect(self, start: str) -> list[Path]:
        gone: list[Path] = []
        pending = [start]
        while pending:
            layer = pending.pop()
            refs = self.layers / layer / "refs"
            if not refs.is_dir() or any(refs.iterdir()):
                continue
            if layer.startswith("b"):
                gone.extend(self._old_seeds())
                continue
            parent = self.parent(layer)
            gone.append(self._to_trash(self.layers / layer))
            for other, ref in ((parent, f"layer-{layer}"), (_flat(layer), f"flat-{layer}")):
                if other is not None:
                    (self.layers / other / "refs" / ref).unlink(missing_ok=True)
                    pending.append(other)
        return gone

    def _old_seeds(self) -> list[Path]:
        unused = [
            path
            for path in self.layers.glob("b*")
            if (path / "refs").is_dir() and not any((path / "refs").iterdir())
        ]
        unused.sort(key=lambda path: (path / "refs").stat().st_mtime, reverse=True)
        return [self._to_trash(path) for path in unused[KEEP_SEEDS:]]

    def freeze_in_place(self, files: Path, parent: str | None, ref: str) -> str:
        """Turn files that nobody mounts any more into a layer, without copying."""
        return self._add(lambda place: files.rename(place), parent, ref)

    @functools.cached_property
    def clones(self) -> bool:
        """Whether a copy of a file on this disk costs no bytes."""
        return trees.clones(self.root)

    def copy(self, files: Path, parent: str | None, ref: str, size: int) -> str:
        """A layer that equals ``files``, marks of deletion included; clones where it can.

        Raises StoreFull, before anything is written, when ``size`` bytes do not fit.
        """
        self.check_room(0 if self.clones else size)
        return self._add(lambda place: self.trees.copy(files, place), parent, ref)

    def _add(self, fill: _Fill, parent: str | None, ref: str) -> str:
        layer = new_id("l")
        made = self.draft()
        try:
            (made / "refs").mkdir(parents=True)
            (made / "refs" / ref).touch()
            self._describe(made, parent)
            fill(made / "fs")
            with self._locked():
                if parent is not None:
                    (self.layers / parent / "refs" / f"layer-{layer}").touch()
                made.rename(self.layers / layer)
        except OSError as error:
            self.discard_draft(made)
            raise SnapshotError(
                f"the sandbox's files could not be captured: {error.strerror}",
                where=str(error.filename or made),
                remedy="Check free space in the store; `bench gc` drops stored states",
            ) from error
        return layer

    def draft(self) -> Path:
        """Where a layer is made before it gets its name; a reaper knows it by its maker."""
        return self.layers / own_name("tmp")

    def add_flat(self, made: Path, top: str) -> None:
        """Name a draft as the whole state up to ``top``; it lives as long as that, or longer."""
        (made / "refs").mkdir()
        (made / "refs" / f"flat-{top}").touch()
        self._describe(made, None)
        with self._locked():
            place = self.layers / str(_flat(top))
            if not place.exists() and (self.layers / top).is_dir():
                made.rename(place)

    def shorten(self, layers: Sequence[str]) -> tuple[str, ...]:
        """The same state by the shortest chain there is."""
        for index in range(len(layers) - 1, 0, -1):
            flat = _flat(layers[index])
            if flat is not None and self._whole(flat):
                return (flat, *layers[index + 1 :])
        return tuple(layers)

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
        trees.remove(folder)

    def _to_trash(self, folder: Path) -> Path:
        place = self._trash / own_name("del")
        folder.rename(place)
        return place

    def discard_draft(self, folder: Path) -> None:
        """Best effort; a reaper finds what stays."""
        if folder.exists():
            with contextlib.suppress(OSError):
                trees.remove(folder)

    def let_go(self) -> list[str]:
        """Drop what dead engines kept for as long as they lived; a line per layer."""
        stale = [ref for ref in self.layers.glob("*/refs/flatten-*") if not _maker_lives(ref.name)]
        for ref in stale:
            self.drop(ref.parent.parent.name, ref.name)
        return [f"hold on layer {ref.parent.parent.name}" for ref in stale]

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
