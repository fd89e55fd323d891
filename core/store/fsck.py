"""Checking a store against its bundles, and rebuilding rows from them.

Invariant: neither deletes anything a person or an agent made; ``reindex`` replaces
rows only where the bundle holds more than the database.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, RowMapping, delete, func, insert, select, update

from core.contracts.errors import BundleCorrupt, NotFound, StoreError
from core.contracts.store import RolloutState
from core.store import bundle_format, payload, sqlite
from core.store.append import bump
from core.store.blobs import FileBlobs
from core.store.bundle_format import Manifest, StoredEvent
from core.store.database import Database
from core.store.tables import EVENT, JOB, REQUEST, ROLLOUT

_BATCH = 500
_DIGEST = re.compile(r"[0-9a-f]{64}")


async def fsck(database: Database, blobs: FileBlobs) -> list[str]:
    """Everything that does not agree, a sentence each; empty when all is well."""
    problems = await database.read(sqlite.check_integrity) if database.is_sqlite else []
    problems += await database.read(_check_log)
    rollouts = await database.read(
        lambda conn: conn.execute(select(ROLLOUT).order_by(ROLLOUT.c.id)).mappings().all()
    )
    for row in rollouts:
        problems += await asyncio.to_thread(_check_bundle, row)
    folders = {Path(row["folder"]).parent for row in rollouts}
    problems += await asyncio.to_thread(_leftovers, folders, blobs.folder)
    named = await database.read(_named_blobs)
    return problems + await asyncio.to_thread(_check_blobs, named, blobs)


def _check_log(conn: Connection) -> list[str]:
    """``seq`` and ``line_seq`` gapless, the row's head equal to the log's."""
    problems = []
    count = func.count(EVENT.c.seq)
    logs = (
        select(ROLLOUT.c.id, ROLLOUT.c.head_seq, count.label("n"), func.max(EVENT.c.seq).label("m"))
        .join(EVENT, EVENT.c.rollout == ROLLOUT.c.id, isouter=True)
        .group_by(ROLLOUT.c.id, ROLLOUT.c.head_seq)
    )
    for row in conn.execute(logs):
        if not row.head_seq == row.n == (row.m or 0):
            problems.append(
                f"rollout {row.id}: its row says {row.head_seq} events, "
                f"its log holds {row.n} up to number {row.m or 0}"
            )
    lines = (
        select(EVENT.c.rollout, EVENT.c.line, EVENT.c.attempt)
        .group_by(EVENT.c.rollout, EVENT.c.line, EVENT.c.attempt)
        .having(func.max(EVENT.c.line_seq) != count)
    )
    for row in conn.execute(lines):
        problems.append(f"rollout {row.rollout}: line {row.line} has a gap in its events")
    known = select(ROLLOUT.c.id)
    for name in (EVENT, REQUEST):
        strays = conn.execute(
            select(name.c.rollout).where(name.c.rollout.not_in(known)).distinct()
        ).scalars()
        problems += [f"{name.name} rows of an unknown rollout {stray}" for stray in strays]
    return problems


def _check_bundle(row: RowMapping) -> list[str]:
    if row["owner"] is not None:
        # Somebody works on it and may be replacing its folder this moment.
        return []
    name, folder = f"rollout {row['id']}", Path(row["folder"])
    if row["sealed"] is None:
        if RolloutState(row["state"]).final:
            return [f"{name}: ended but not sealed; `bench reap` seals it"]
        return []
    try:
        manifest, digest = bundle_format.read_manifest(folder)
    except StoreError as error:
        return [f"{name}: {error}"]
    problems = [f"{name}: {problem}" for problem in bundle_format.verify_folder(folder)]
    if digest != row["sealed"]:
        problems.append(f"{name}: {folder} is not the bundle that the store recorded")
    if manifest.events != row["head_seq"]:
        problems.append(
            f"{name}: sealed with {manifest.events} of {row['head_seq']} events; seal it again"
        )
    return problems


def _leftovers(folders: set[Path], blobs: Path) -> list[str]:
    found = [
        path
        for folder in folders
        for pattern in (".*.tmp", ".*.old")
        for path in folder.glob(pattern)
    ]
    found += blobs.glob("*/.*.tmp")
    return [f"{path}: left by a crash, safe to remove" for path in sorted(found)]


def _named_blobs(conn: Connection) -> tuple[set[str], set[str]]:
    """Blobs that split payloads need, and every digest that occurs anywhere in the log."""
    needed: set[str] = set()
    mentioned: set[str] = set()
    for text, count in conn.execute(select(EVENT.c.payload, EVENT.c.blobs)).yield_per(_BATCH):
        mentioned.update(_DIGEST.findall(text))
        if count:
            needed |= payload.digests(payload.load(text))
    return needed, mentioned


def _check_blobs(named: tuple[set[str], set[str]], blobs: FileBlobs) -> list[str]:
    needed, mentioned = named
    problems = []
    for digest in sorted(needed):
        try:
            blobs.take(digest)
        except StoreError as error:
            problems.append(str(error))
    for path in sorted(blobs.folder.glob("??/*")):
        if _DIGEST.fullmatch(path.name) and path.name not in needed | mentioned:
            problems.append(f"{path}: a blob that no event names, safe to remove")
    return problems


async def reindex(database: Database, blobs: FileBlobs, folder: Path) -> int:
    """Rebuild rollout and event rows from every bundle under ``folder``; how many changed.

    Raises BundleCorrupt at the end, naming the damaged ones; whole ones are in by then.
    """
    manifests = await asyncio.to_thread(
        lambda: sorted(folder.absolute().rglob(bundle_format.MANIFEST))
    )
    if not manifests:
        raise NotFound("there is no sealed rollout in this folder", where=str(folder))
    changed, damaged = 0, []
    for path in manifests:
        problems = await asyncio.to_thread(bundle_format.verify_folder, path.parent)
        if problems:
            damaged.append(f"{path.parent}: {problems[0]}")
            continue
        changed += await _restore(database, blobs, path.parent)
    if damaged:
        raise BundleCorrupt(
            f"{len(damaged)} of {len(manifests)} bundles are damaged: " + "; ".join(damaged),
            where=str(folder),
            remedy="Take them from a backup; the others are in the store",
        )
    return changed


async def _restore(database: Database, blobs: FileBlobs, folder: Path) -> int:
    manifest, digest = await asyncio.to_thread(bundle_format.read_manifest, folder)
    events = await asyncio.to_thread(lambda: list(bundle_format.read_events(folder, manifest)))
    for file in manifest.files:
        if file.path.startswith("blobs/"):
            data = await asyncio.to_thread((folder / file.path).read_bytes)
            await blobs.write(data)
    work = partial(_restore_rows, manifest=manifest, digest=digest, folder=folder, events=events)
    return await database.write("reindex", work, durable=True, topics=("",))


def _restore_rows(
    conn: Connection, manifest: Manifest, digest: str, folder: Path, events: list[StoredEvent]
) -> int:
    rollout = str(manifest.rollout["id"])
    row = conn.execute(select(ROLLOUT).where(ROLLOUT.c.id == rollout)).mappings().one_or_none()
    if row is not None and (row["owner"] is not None or row["head_seq"] > len(events)):
        return 0
    place = {"sealed": digest, "folder": str(folder)}
    if row is not None and row["head_seq"] == len(events):
        if row["sealed"] == digest and row["folder"] == str(folder):
            return 0
        conn.execute(
            update(ROLLOUT).where(ROLLOUT.c.id == rollout).values(**place, revision=bump(conn))
        )
        return 1
    conn.execute(delete(EVENT).where(EVENT.c.rollout == rollout))
    conn.execute(delete(ROLLOUT).where(ROLLOUT.c.id == rollout))
    conn.execute(insert(ROLLOUT).values({**_row(manifest), **place, "revision": bump(conn)}))
    for start in range(0, len(events), _BATCH):
        conn.execute(insert(EVENT), [_event_row(event) for event in events[start : start + _BATCH]])
    _restore_job(conn, str(manifest.rollout["job"]), folder)
    return 1


def _row(manifest: Manifest) -> Mapping[str, object]:
    facts = manifest.rollout
    known = {name: facts[name] for name in ROLLOUT.c.keys() if name in facts}  # noqa: SIM118
    fixed = {"owner": None, "lease_until": 0.0, "waiting": 0, "head_seq": manifest.events}
    return {**known, **fixed, "config": payload.dump(facts["config"])}


def _event_row(event: StoredEvent) -> Mapping[str, object]:
    row = {name: getattr(event, name) for name in EVENT.c.keys() if name != "payload"}  # noqa: SIM118
    return {**row, "payload": event.text}


def _restore_job(conn: Connection, job: str, folder: Path) -> None:
    if conn.execute(select(JOB.c.id).where(JOB.c.id == job)).first() is not None:
        return
    created = conn.execute(
        select(func.min(ROLLOUT.c.created_at)).where(ROLLOUT.c.job == job)
    ).scalar_one()
    conn.execute(
        insert(JOB).values(
            id=job,
            folder=str(folder.parent),
            config="{}",
            revision=bump(conn),
            created_at=created,
            ended_at=created,
        )
    )
