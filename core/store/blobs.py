"""Blobs: content-addressed files beside the database, for payloads a row should not hold.

Invariant: a blob is whole or absent under its name (temporary file, fsync,
rename, fsync of the folder), and it is there before the row that names it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path
from typing import cast

from core.contracts.errors import BundleCorrupt, NotFound, StoreError, StoreFull
from core.contracts.values import JsonObject
from core.store import effects, payload
from core.store.database import Database

_FULL_ERRNOS = (28, 122)
"""ENOSPC, EDQUOT."""


class FileBlobs:
    """Implements ``Blobs`` in ``<store>/blobs/<2 hex>/<sha256>``."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder = folder
        self._database = database

    async def write(self, data: bytes) -> str:
        return await self._database.file_work(lambda: self.put(data))

    async def read(self, digest: str) -> bytes:
        return await self._database.file_work(lambda: self.take(digest))

    async def split(self, text: str) -> tuple[str, int]:
        """Move the big values of a payload's JSON into blobs (``payload.split``)."""
        return await self._database.file_work(lambda: payload.split(text, self.put))

    async def expand(self, text: str) -> JsonObject:
        """The whole payload of a row that was split."""
        return await self._database.file_work(
            lambda: cast(JsonObject, payload.expand(payload.load(text), self.take))
        )

    def path(self, digest: str) -> Path:
        if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise NotFound(f"{digest!r} is not the name of a blob", where=str(self.folder))
        return self.folder / digest[:2] / digest

    def put(self, data: bytes) -> str:
        """Blocking ``write``."""
        digest = hashlib.sha256(data).hexdigest()
        path = self.path(digest)
        if path.exists():
            return digest
        temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
        try:
            effects.make_folders(path.parent, 0o700)
            effects.write_file(temporary, [data], "blob")
            effects.rename(temporary, path, "blob")
            effects.fsync_folder(path.parent, "blob_folder")
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise file_trouble(error, path) from error
        return digest

    def take(self, digest: str) -> bytes:
        """Blocking ``read``."""
        path = self.path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise NotFound(
                f"blob {digest[:12]} is not in the store",
                where=str(path),
                remedy="Run `bench store fsck` on this store",
            ) from error
        except OSError as error:
            raise file_trouble(error, path) from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise BundleCorrupt(
                f"blob {digest[:12]} does not match its hash",
                where=str(path),
                remedy="Restore the file from a sealed bundle or a backup",
            )
        return data


def file_trouble(error: OSError, path: Path) -> StoreError:
    """A file failure in our words: no space is StoreFull, all else a StoreError."""
    if error.errno in _FULL_ERRNOS:
        return StoreFull(
            "no space is left",
            where=os.fspath(path),
            remedy="Free space, then run the command again; what was recorded is kept",
        )
    return StoreError(
        f"a file of the store cannot be used: {error.strerror or error}", where=os.fspath(path)
    )
