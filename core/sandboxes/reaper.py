"""Remove what a dead engine left: processes, control groups, files, references.

Nothing is guessed from names: every sandbox has an owner file, written before
anything else of it existed, and the caller says which labels still live.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from core.sandboxes.cgroups import Group, names
from core.sandboxes.layers import LayerStore, boot_id, process_start, write_json

OWNER = "owner.json"


def write_owner(folder: Path, labels: Mapping[str, str], layer: str) -> None:
    write_json(
        folder / OWNER,
        {
            "labels": dict(labels),
            "layer": layer,
            "pid": os.getpid(),
            "pid_start": process_start(os.getpid()),
            "boot_id": boot_id(),
        },
    )


def reap(
    store: LayerStore,
    roots: Mapping[str, Path],
    mine: frozenset[str],
    is_live: Callable[[Mapping[str, str]], bool],
) -> list[str]:
    """One line per thing removed. ``mine`` are sandboxes of this very process. Blocks."""
    removed: list[str] = []
    for folder in sorted(store.sandboxes.iterdir()):
        owner = _read(folder / OWNER)
        if folder.name in mine or is_live(_labels(owner)) or _too_young(folder, owner):
            continue
        removed.extend(_reap_sandbox(store, roots, folder, owner))
    for record in sorted(store.images.glob("i*.json")):
        image = _read(record)
        if is_live({**_labels(image), "image": record.stem}):
            continue
        layers = image.get("layers")
        store.forget_image(record.stem, layers if isinstance(layers, list) else [])
        removed.append(f"image {record.stem}")
    # A folder comes before its groups and goes after them: a group without one is nobody's.
    groups = names(store.tag, roots)
    known = {folder.name for folder in store.sandboxes.iterdir()}
    for name in sorted(groups - known - mine):
        if Group(store.tag, name, roots).remove():
            removed.append(f"control groups of sandbox {name}")
    removed.extend(store.let_go())
    for folder in store.unfinished():
        store.delete(folder)
        removed.append(f"unfinished work {folder.name}")
    return removed


def _read(path: Path) -> dict[str, object]:
    try:
        record: dict[str, object] = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return record


def _labels(record: Mapping[str, object]) -> dict[str, str]:
    labels = record.get("labels")
    return {str(k): str(v) for k, v in labels.items()} if isinstance(labels, dict) else {}


def _too_young(folder: Path, owner: Mapping[str, object]) -> bool:
    """A folder whose owner file another engine may be about to write."""
    return not owner and time.time() - folder.stat().st_mtime < 60


def _reap_sandbox(
    store: LayerStore, roots: Mapping[str, Path], folder: Path, owner: Mapping[str, object]
) -> list[str]:
    removed: list[str] = []
    group = Group(store.tag, folder.name, roots)
    for pid in group.members():
        try:
            os.kill(pid, signal.SIGKILL)
            removed.append(f"process {pid} of sandbox {folder.name}")
        except ProcessLookupError:
            continue
    group.thaw()
    if any(place.exists() for place in group.folders):
        if not group.remove():
            return [*removed, f"sandbox {folder.name}: a process does not end, try again later"]
        removed.append(f"control groups of sandbox {folder.name}")
    layer = owner.get("layer")
    if isinstance(layer, str):
        store.drop(layer, f"sandbox-{folder.name}")
    store.delete(folder)
    removed.append(f"sandbox {folder.name}")
    return removed
