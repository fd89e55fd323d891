"""Sealing: the log and the files of a rollout become one folder that proves itself.

Invariant: a bundle is built beside its place, forced to the disk and put there by
a rename inside the fenced transaction that records its hash. A crash at any
point leaves the old bundle, the new one, or a state that the next ``seal`` repairs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import secrets
import shutil
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, RowMapping, select, update

from core import __version__
from core.contracts.errors import BundleCorrupt, StoreError
from core.contracts.store import Ownership, RolloutRecord, SealedFile, SealResult
from core.contracts.values import JsonObject, JsonValue
from core.store import bundle_format, effects, payload
from core.store.append import bump, check_owner
from core.store.blobs import FileBlobs, file_trouble
from core.store.bundle_format import MANIFEST, Manifest, Segment, StoredEvent
from core.store.log import read_rows
from core.store.sql import SqlStore
from core.store.tables import ROLLOUT

_TRIES = 5
_PAGE = 1000
_VOLATILE = ("owner", "lease_until", "sealed", "revision", "waiting", "folder")
"""Fields of the row that are not part of what is sealed."""


class FolderBundles:
    """Implements ``Bundles`` for a store."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def seal(self, own: Ownership, folder: str, files: Mapping[str, bytes]) -> SealResult:
        bundle_format.checked_paths(files)
        for _ in range(_TRIES):
            await self._store.events.flush(own)
            record = await self._store.rollouts.get(own.rollout)
            builder = _Builder(Path(folder), own.rollout, self._store.files)
            try:
                result = await self._build(builder, record, files)
                placed = await self._store.database.write(
                    "seal",
                    partial(_place, own=own, builder=builder, result=result),
                    durable=True,
                    topics=("", own.rollout),
                )
            except OSError as error:
                raise file_trouble(error, builder.target) from error
            finally:
                await asyncio.shield(asyncio.to_thread(builder.discard))
            if placed:
                return result
        raise StoreError(
            "the log kept growing while it was sealed",
            where=f"rollout {own.rollout}",
            remedy="Stop what still records, then seal again",
        )

    async def verify(self, folder: str) -> list[str]:
        return await asyncio.to_thread(bundle_format.verify_folder, Path(folder))

    async def _build(
        self, builder: _Builder, record: RolloutRecord, files: Mapping[str, bytes]
    ) -> SealResult:
        await asyncio.to_thread(builder.begin)
        while rows := await self._store.database.read(
            partial(read_rows, rollout=record.id, after=builder.events, limit=_PAGE)
        ):
            await asyncio.to_thread(builder.add, rows)
        return await asyncio.to_thread(builder.finish, record, files)


class _Builder:
    """A bundle being written beside its place; blocking."""

    def __init__(self, target: Path, rollout: str, blobs: FileBlobs) -> None:
        self.target = target = target.absolute()
        mark = secrets.token_hex(4)
        self.temporary = target.with_name(f".{target.name}.{mark}.tmp")
        self.trash = target.with_name(f".{target.name}.{mark}.old")
        self.events = 0
        self._blobs = blobs
        self._chain = bundle_format.chain_start(rollout)
        self._sealed_ends: set[int] = set()
        self._sealed_last = 0
        self._lines: list[bytes] = []
        self._size = 0
        self._segments: list[Segment] = []
        self._files: list[SealedFile] = []
        self._digests: set[str] = set()

    def begin(self) -> None:
        effects.make_folders(self.target.parent)
        self._repair()
        self.temporary.mkdir()
        try:
            manifest, _ = bundle_format.read_manifest(self.target)
        except BundleCorrupt:
            return
        self._sealed_ends = {segment.last for segment in manifest.segments}
        self._sealed_last = manifest.events

    def _repair(self) -> None:
        """Clear what a crash left, putting back an old bundle whose successor never came."""
        beside = self.target.parent
        for old in beside.glob(f".{self.target.name}.*.old"):
            if not self.target.exists():
                effects.rename(old, self.target, "bundle_out")
            else:
                shutil.rmtree(old)
        for left in beside.glob(f".{self.target.name}.*.tmp"):
            shutil.rmtree(left)

    def add(self, rows: Iterable[RowMapping]) -> None:
        for row in rows:
            event = stored_event(row)
            if event.blobs:
                self._digests |= payload.digests(payload.load(event.text))
            self._chain, line = bundle_format.link(self._chain, event)
            self._lines.append(line.encode())
            self._size += len(self._lines[-1])
            self.events = event.seq
            if self._ends_here():
                self._end_segment()

    def _ends_here(self) -> bool:
        # What was sealed before keeps its borders, so that its bytes stay the same.
        if self.events <= self._sealed_last:
            return self.events in self._sealed_ends
        return (
            len(self._lines) >= bundle_format.SEGMENT_EVENTS
            or self._size >= bundle_format.SEGMENT_BYTES
        )

    def _end_segment(self) -> None:
        path = f"segments/{len(self._segments) + 1:06d}.jsonl"
        self._write(path, b"".join(self._lines), "segment")
        self._segments.append(Segment(path, self.events, self._chain))
        self._lines, self._size = [], 0

    def finish(self, record: RolloutRecord, files: Mapping[str, bytes]) -> SealResult:
        if self._lines:
            self._end_segment()
        for digest in sorted(self._digests):
            self._write(f"blobs/{digest}", self._blobs.take(digest), "bundle_file")
        for path, data in sorted(files.items()):
            self._write(path, data, "bundle_file")
        manifest = Manifest(__version__, _facts(record), tuple(self._segments), tuple(self._files))
        data = bundle_format.manifest_bytes(manifest)
        effects.write_file(self.temporary / MANIFEST, [data], "manifest")
        for folder in sorted(path for path in self.temporary.rglob("*") if path.is_dir()):
            effects.fsync_folder(folder, "bundle_folder")
        effects.fsync_folder(self.temporary, "bundle_folder")
        digest = hashlib.sha256(data).hexdigest()
        return SealResult(str(self.target), digest, tuple(self._files), self.events)

    def _write(self, path: str, data: bytes, name: str) -> None:
        place = self.temporary / path
        place.parent.mkdir(parents=True, exist_ok=True)
        effects.write_file(place, [data], name)
        self._files.append(SealedFile(path, hashlib.sha256(data).hexdigest(), len(data)))

    def put_in_place(self) -> None:
        if self.target.exists():
            effects.rename(self.target, self.trash, "bundle_out")
        effects.rename(self.temporary, self.target, "bundle_in")
        effects.fsync_folder(self.target.parent, "bundle_parent")

    def discard(self) -> None:
        """Remove what is not the bundle; put the old one back if the new one did not come."""
        if self.trash.exists() and not self.target.exists():
            effects.rename(self.trash, self.target, "bundle_out")
        for left in (self.temporary, self.trash):
            shutil.rmtree(left, ignore_errors=True)


def _place(conn: Connection, own: Ownership, builder: _Builder, result: SealResult) -> bool:
    """Swap the folder and record its hash behind the fence; False when the log has grown."""
    check_owner(conn, own)
    head = conn.execute(select(ROLLOUT.c.head_seq).where(ROLLOUT.c.id == own.rollout)).scalar_one()
    if head != result.events:
        return False
    builder.put_in_place()
    conn.execute(
        update(ROLLOUT)
        .where(ROLLOUT.c.id == own.rollout)
        .values(sealed=result.digest, folder=result.folder, revision=bump(conn))
    )
    return True


def stored_event(row: RowMapping) -> StoredEvent:
    fields = dict(row)
    fields["text"] = fields.pop("payload")
    return StoredEvent(**fields)


def _facts(record: RolloutRecord) -> JsonObject:
    facts: dict[str, JsonValue] = {
        field.name: getattr(record, field.name)
        for field in dataclasses.fields(record)
        if field.name not in _VOLATILE
    }
    return {**facts, "state": record.state.value}
