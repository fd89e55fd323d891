"""What the local provider stores: images, the layers they stand on, and their sizes.

Reading takes no lock: an image that comes or goes meanwhile is simply not, or no
longer, there. Dropping goes through the layer store, which keeps every layer that
another image or a running sandbox still needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from pathlib import Path

from core.contracts.images import Inventory, StoredImage, StoredLayer
from core.sandboxes.layers import LayerStore

_IN_USE = ("sandbox-", "flatten-")


class LocalImages:
    """Implements ``ImageStore`` on the folder of a local provider."""

    def __init__(self, root: Path) -> None:
        self._store = LayerStore(root)

    async def inventory(self) -> Inventory:
        return await asyncio.to_thread(self._inventory)

    async def drop(self, image: StoredImage) -> None:
        """Moved to the trash, then deleted; layers that others need stay."""
        await asyncio.to_thread(self._drop, image)

    def _drop(self, image: StoredImage) -> None:
        self._store.open()
        self._store.forget_image(image.id, image.layers)

    def _inventory(self) -> Inventory:
        folders = {
            path.name: path
            for path in _entries(self._store.layers)
            if not path.name.startswith("tmp-")
        }
        used = _used(folders)
        layers = []
        for name, folder in sorted(folders.items()):
            size, inodes = _measure(folder)
            layers.append(StoredLayer(name, size, inodes, name in used))
        images = [
            image
            for path in sorted(_entries(self._store.images))
            if path.suffix == ".json" and (image := _image(path, folders)) is not None
        ]
        return Inventory(tuple(images), tuple(layers))


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def _image(path: Path, folders: dict[str, Path]) -> StoredImage | None:
    try:
        record = json.loads(path.read_text())
        made = path.stat().st_mtime
    except (FileNotFoundError, ValueError):
        return None
    layers = tuple(str(item) for item in record.get("layers", []))
    labels = {str(key): str(value) for key, value in record.get("labels", {}).items()}
    # Each fork takes and leaves a reference, which dates the folder of references.
    used = [made]
    if layers and layers[-1] in folders:
        with contextlib.suppress(FileNotFoundError):
            used.append((folders[layers[-1]] / "refs").stat().st_mtime)
    return StoredImage(path.stem, labels, layers, max(used))


def _used(folders: dict[str, Path]) -> set[str]:
    """Layers that something running stands on, with all below them."""
    used: set[str] = set()
    for name, folder in folders.items():
        refs = [ref.name for ref in _entries(folder / "refs")]
        if any(ref.startswith(_IN_USE) for ref in refs):
            layer: str | None = name
            while layer is not None and layer not in used:
                used.add(layer)
                layer = _parent(folders.get(layer))
    return used


def _parent(folder: Path | None) -> str | None:
    if folder is None:
        return None
    try:
        parent = json.loads((folder / "layer.json").read_text())["parent"]
    except (FileNotFoundError, ValueError, KeyError):
        return None
    return str(parent) if parent is not None else None


def _measure(folder: Path) -> tuple[int, int]:
    """Bytes on disk and inodes below a folder; what vanishes meanwhile counts for nothing.

    A file with several names counts once in each layer that has it.
    """
    size = inodes = 0
    pending = [str(folder)]
    seen: set[int] = set()
    while pending:
        try:
            entries = os.scandir(pending.pop())
        except OSError:
            continue
        with entries:
            for entry in entries:
                try:
                    info = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if info.st_ino in seen:
                    continue
                seen.add(info.st_ino)
                size += info.st_blocks * 512
                inodes += 1
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return size, inodes
