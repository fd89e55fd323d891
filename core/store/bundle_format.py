"""The sealed bundle on disk: numbered segments with a hash chain, files, a manifest.

    manifest.json            format, program, the rollout's row, chain head, every file's hash
    segments/000001.jsonl    events, at most 5,000 or 4 MB; each line carries the running chain
    blobs/<sha256>           payloads that the events name
    ...                      the files in upstream's folder shape

Invariant: a segment that was sealed once keeps its name and its bytes; a later
seal of a longer log adds segments. The chain of a line is the SHA-256 of the
chain before it and the line without its chain.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import cast

from core.contracts.errors import BundleCorrupt, StoreError, UsageError
from core.contracts.store import SealedFile
from core.contracts.values import JsonObject
from core.store import payload

FORMAT = 1
MANIFEST = "manifest.json"
SEGMENT_EVENTS = 5000
SEGMENT_BYTES = 4 * 1024 * 1024
_OURS = ("segments", "blobs", MANIFEST)
_CHAIN = ',"chain":"'
_TAIL = len(_CHAIN) + 64 + len('"}')


@dataclass(frozen=True, slots=True)
class Segment:
    path: str
    last: int
    """``seq`` of its last event."""
    chain: str
    """Chain of its last line."""


@dataclass(frozen=True, slots=True)
class Manifest:
    program: str
    rollout: JsonObject
    segments: tuple[Segment, ...]
    files: tuple[SealedFile, ...]

    @property
    def events(self) -> int:
        return self.segments[-1].last if self.segments else 0


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event as its row holds it; ``text`` is the payload's JSON with blob markers."""

    rollout: str
    seq: int
    term: int
    attempt: int
    line: int
    line_seq: int
    kind: str
    version: int
    at: float
    text: str
    blobs: int


def chain_start(rollout: str) -> str:
    return hashlib.sha256(f"bundle {FORMAT} {rollout}".encode()).hexdigest()


def link(chain: str, event: StoredEvent) -> tuple[str, str]:
    """The next chain and the line of an event."""
    head = payload.dump(
        {
            "seq": event.seq,
            "term": event.term,
            "attempt": event.attempt,
            "line": event.line,
            "line_seq": event.line_seq,
            "kind": event.kind,
            "version": event.version,
            "at": event.at,
            "blobs": event.blobs,
        }
    )
    body = f'{head[:-1]},"payload":{event.text}'
    chain = hashlib.sha256((chain + body).encode()).hexdigest()
    return chain, f'{body}{_CHAIN}{chain}"}}\n'


def read_line(rollout: str, line: str) -> tuple[StoredEvent, str]:
    """An event and its chain. Raises ValueError for a line that we did not write."""
    body = cast(JsonObject, json.loads(line))
    text = line[line.index(',"payload":') + len(',"payload":') : -_TAIL]
    numbers = {
        name: _whole(body[name])
        for name in ("seq", "term", "attempt", "line", "line_seq", "version", "blobs")
    }
    event = StoredEvent(
        rollout=rollout, kind=str(body["kind"]), at=float(str(body["at"])), text=text, **numbers
    )
    return event, str(body["chain"])


def _whole(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is not a whole number")
    return value


def manifest_bytes(manifest: Manifest) -> bytes:
    body: JsonObject = {
        "format": FORMAT,
        "program": manifest.program,
        "rollout": manifest.rollout,
        "events": manifest.events,
        "chain": manifest.segments[-1].chain if manifest.segments else "",
        "segments": [{"path": s.path, "last": s.last, "chain": s.chain} for s in manifest.segments],
        "files": [{"path": f.path, "sha256": f.sha256, "size": f.size} for f in manifest.files],
    }
    return (json.dumps(payload.clean(body), indent=1, ensure_ascii=False) + "\n").encode()


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """The manifest and its digest. Raises BundleCorrupt, also where there is none."""
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
        body = json.loads(data)
        if body["format"] != FORMAT:
            raise StoreError(
                f"the bundle has format {body['format']}, this program reads {FORMAT}",
                where=str(path),
                remedy="Update benchflow-workbench",
            )
        manifest = Manifest(
            program=str(body["program"]),
            rollout={**body["rollout"]},
            segments=tuple(
                Segment(str(s["path"]), _whole(s["last"]), str(s["chain"]))
                for s in body["segments"]
            ),
            files=tuple(
                SealedFile(str(f["path"]), str(f["sha256"]), _whole(f["size"]))
                for f in body["files"]
            ),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleCorrupt(
            f"this is no sealed bundle: {error}",
            where=str(path),
            remedy="Seal the rollout again, or take the folder from a backup",
        ) from error
    return manifest, hashlib.sha256(data).hexdigest()


def checked_paths(files: Mapping[str, bytes]) -> None:
    """Raise UsageError for a path that would leave the bundle or overwrite its own parts."""
    for path in files:
        parts = PurePosixPath(path).parts
        plain = "/".join(parts) == path and parts and "\0" not in path
        if not plain or parts[0] in _OURS or {"..", "."} & set(parts) or path.startswith("/"):
            raise UsageError(
                f"{path!r} cannot be a file of a sealed bundle",
                remedy="Use a relative path without '..', outside segments/ and blobs/",
            )


def read_events(folder: Path, manifest: Manifest) -> Iterator[StoredEvent]:
    """All events in order, each checked against the chain. Raises BundleCorrupt."""
    rollout = str(manifest.rollout.get("id"))
    chain, seq = chain_start(rollout), 0
    for segment in manifest.segments:
        where = f"{folder / segment.path}"
        try:
            lines = (folder / segment.path).read_text().split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise BundleCorrupt(f"a segment cannot be read: {error}", where=where) from error
        for line in lines[:-1]:
            try:
                event, claimed = read_line(rollout, line)
            except (ValueError, KeyError, TypeError) as error:
                raise BundleCorrupt(f"event {seq + 1} is damaged: {error}", where=where) from error
            chain, again = link(chain, event)
            seq += 1
            if claimed != chain or again != line + "\n" or event.seq != seq:
                raise BundleCorrupt(f"event {seq} breaks the chain", where=where)
            yield event
        if lines[-1] or (seq, chain) != (segment.last, segment.chain):
            raise BundleCorrupt(
                f"a segment ends at event {seq}, the manifest says {segment.last}", where=where
            )


def verify_folder(folder: Path) -> list[str]:
    """Everything wrong with a bundle, in plain words; blocking."""
    try:
        manifest, _ = read_manifest(folder)
    except StoreError as error:
        return [str(error)]
    problems = []
    listed = {file.path: file for file in manifest.files}
    for file in manifest.files:
        problems += _check_file(folder, file)
    present = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()} - {
        MANIFEST
    }
    problems += [f"{path}: not in the manifest" for path in sorted(present - set(listed))]
    problems += [
        f"{segment.path}: a segment without a hash"
        for segment in manifest.segments
        if segment.path not in listed
    ]
    try:
        for event in read_events(folder, manifest):
            for digest in payload.digests(payload.load(event.text)) if event.blobs else ():
                if f"blobs/{digest}" not in listed:
                    problems.append(f"event {event.seq}: its blob {digest[:12]} is missing")
    except BundleCorrupt as error:
        problems.append(str(error))
    return problems


def _check_file(folder: Path, file: SealedFile) -> list[str]:
    path = folder / file.path
    if ".." in PurePosixPath(file.path).parts or os.path.isabs(file.path) or path.is_symlink():
        return [f"{file.path}: leads out of the bundle"]
    try:
        data = path.read_bytes()
    except OSError as error:
        return [f"{file.path}: {error.strerror or error}"]
    if len(data) != file.size:
        return [f"{file.path}: {len(data)} bytes, the manifest says {file.size}"]
    if hashlib.sha256(data).hexdigest() != file.sha256:
        return [f"{file.path}: does not match its hash"]
    return []
