"""Stored images: what a sandbox provider keeps on disk, for the garbage collector.

Apart from ``SandboxProvider``: a provider whose images live elsewhere need not have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredLayer:
    id: str
    bytes: int
    inodes: int
    in_use: bool
    """Something that runs stands on it."""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """A frozen state. ``labels`` name the store and the engine that made it."""

    id: str
    labels: Mapping[str, str]
    layers: tuple[str, ...]
    """Lowest first; others may stand on the same ones."""
    used_at: float
    """Unix seconds of its making or last fork."""


@dataclass(frozen=True, slots=True)
class Inventory:
    images: tuple[StoredImage, ...]
    layers: tuple[StoredLayer, ...]


class ImageStore(Protocol):
    """One provider's images on disk."""

    async def inventory(self) -> Inventory: ...

    async def drop(self, image: StoredImage) -> None:
        """Delete it for good. Layers that others need stay. Safe to call twice."""
        ...
