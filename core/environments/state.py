"""State kinds: how one kind of state is sealed, copied and put back.

A kind is a script that runs beside the services (nothing of the state passes
through a path the agent sees) plus the reading of what that script reports.
Invariant: a failure inside is a StateError here; there is no half answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from core.contracts.environment import FileState, TableState
from core.contracts.errors import StateError
from core.contracts.sandbox import Compartment, Mount, Process, Sandbox
from core.contracts.values import JsonObject, JsonValue

SCRIPTS = "/benchflow/state"
BASELINE = "/benchflow/baseline"
QUERY_BYTES = 4 << 20
QUERY_ROWS = 2000
CHUNK = 1 << 20
SERVICE: frozenset[Compartment] = frozenset({"service"})
HIDDEN: frozenset[Compartment] = frozenset({"service", "verifier"})
"""Who sees the state: everybody but the agent."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a query saw of one state path."""

    digest: str
    tables: tuple[TableState, ...] = ()
    files: tuple[FileState, ...] = ()


@dataclass(frozen=True, slots=True)
class Exported:
    """A copy on the host. ``blob`` is its file name, None when there was no state."""

    digest: str
    blob: str | None
    size: int
    skipped: int = 0
    """Links and special files, which a copy cannot hold."""


class StateKind(Protocol):
    """One kind of state (sqlite, files, ...)."""

    @property
    def name(self) -> str: ...

    @property
    def script(self) -> Path:
        """Standard-library script that does the work inside."""
        ...

    def folder(self, path: str) -> str:
        """The folder that must be a writable mount for a state path."""
        ...

    def read(self, answer: JsonObject) -> Found:
        """One entry of the script's ``query`` answer."""
        ...


class StateTool:
    """Runs one kind's script in the service compartment of one sandbox.

    ``seconds`` bounds each call; copying a large state counts in it.
    """

    def __init__(self, sandbox: Sandbox, kind: StateKind, *, seconds: float = 120.0) -> None:
        self._sandbox = sandbox
        self._kind = kind
        self._seconds = seconds

    async def flush(self, paths: Sequence[str]) -> dict[str, JsonObject]:
        """Make the files safe to capture; path to what was found there."""
        return _by_path(await self._call("flush", {"paths": list(paths)}))

    async def digests(self, paths: Sequence[str]) -> dict[str, JsonObject]:
        return _by_path(await self._call("digest", {"paths": list(paths)}))

    async def query(self, paths: Sequence[str]) -> dict[str, Found]:
        args: JsonObject = {"paths": list(paths), "rows": QUERY_ROWS, "bytes": QUERY_BYTES}
        answer = await self._call("query", args)
        return {path: self._kind.read(item) for path, item in _by_path(answer).items()}

    async def keep(self, paths: Sequence[str]) -> None:
        await self._call("keep", {"paths": list(paths), "folder": BASELINE})

    async def reset(self, paths: Sequence[str]) -> None:
        await self._call("reset", {"paths": list(paths), "folder": BASELINE})

    async def swap(self, present: Sequence[str], absent: Sequence[str]) -> None:
        """Make what was staged the state. Only while no service runs."""
        await self._call("swap", {"paths": list(present), "absent": list(absent)})

    async def export(self, path: str, into: Path) -> Exported:
        """Copy one state to a content-named file in ``into`` on the host."""
        async with self._running("export", {"paths": [path]}) as process:
            header = _answer(await process.stdout.readline(), self._where("export"))
            digest, skipped = str(header["digest"]), header.get("skipped", 0)
            count = skipped if isinstance(skipped, int) else 0
            if not header["present"]:
                return Exported(digest, None, 0, count)
            blob, size = await _save(process.stdout, into)
            if await process.wait() != 0:
                raise self._failed("export", await process.stderr.read(4096))
            return Exported(digest, blob, size, count)

    async def stage(self, path: str, source: Path) -> None:
        """Send one copy back in, beside the live state."""
        async with self._running("stage", {"paths": [path]}) as process:
            with contextlib.suppress(ConnectionError):  # its answer says why it stopped reading
                with source.open("rb") as data:
                    while chunk := await asyncio.to_thread(data.read, CHUNK):
                        process.stdin.write(chunk)
                        await process.stdin.drain()
                process.stdin.close()
            _answer(await process.stdout.readline(), self._where("stage"))
            await process.wait()

    async def _call(self, verb: str, args: JsonObject) -> JsonObject:
        async with self._running(verb, args) as process:
            process.stdin.close()
            raw = bytearray()
            while chunk := await process.stdout.read(CHUNK):
                raw += chunk
                if len(raw) > 4 * QUERY_BYTES:
                    raise self._failed(verb, b"its answer is too long")
            await process.wait()
            if not raw.strip():
                raise self._failed(verb, await process.stderr.read(4096))
            return _answer(bytes(raw), self._where(verb))

    @contextlib.asynccontextmanager
    async def _running(self, verb: str, args: JsonObject) -> AsyncIterator[Process]:
        argv = ["python3", "-I", "-S", f"{SCRIPTS}/{self._kind.name}.py", verb, json.dumps(args)]
        try:
            async with asyncio.timeout(self._seconds):
                process = await self._sandbox.spawn(argv, user="service")
                try:
                    yield process
                finally:
                    await process.kill(grace=0.0)
        except TimeoutError as error:
            raise StateError(
                f"the state could not be worked on within {self._seconds:g} s",
                where=self._where(verb),
                remedy="Look for a service that holds its database locked",
            ) from error

    def _where(self, verb: str) -> str:
        return f"{self._kind.name} {verb} in sandbox {self._sandbox.id}"

    def _failed(self, verb: str, stderr: bytes) -> StateError:
        text = stderr.decode("utf-8", "replace").strip().splitlines()
        return StateError(
            f"the state script gave no answer: {text[-1] if text else 'it ended silently'}",
            where=self._where(verb),
            remedy="The services' view needs python3 for this kind of state",
        )


def state_mounts(kinds: Mapping[str, StateKind], paths: Mapping[str, str]) -> tuple[Mount, ...]:
    """Mounts for the scripts, the kept baseline and each state folder.

    ``paths`` maps a state path to the name of its kind. A folder inside another
    one of them needs no mount of its own.
    """
    folders = {kinds[name].folder(path) for path, name in paths.items()}
    outer = [one for one in sorted(folders) if not any(_inside(one, other) for other in folders)]
    mounts = [Mount(one, seen_by=HIDDEN, owner="service") for one in outer]
    for name in sorted(set(paths.values())):
        target = f"{SCRIPTS}/{name}.py"
        mounts.append(Mount(target, source=kinds[name].script, seen_by=SERVICE))
    if paths:
        mounts.append(Mount(BASELINE, seen_by=SERVICE, owner="service"))
    return tuple(mounts)


def _inside(path: str, other: str) -> bool:
    return path != other and path.startswith(other.rstrip("/") + "/")


def _by_path(answer: JsonObject) -> dict[str, JsonObject]:
    states = cast("list[JsonObject]", answer.get("states", []))
    return {str(item["path"]): item for item in states}


def _answer(line: bytes, where: str) -> JsonObject:
    try:
        answer: JsonValue = json.loads(line)
    except ValueError as error:
        raise StateError("the state script's answer is no JSON", where=where) from error
    if not isinstance(answer, dict):
        raise StateError("the state script's answer is no object", where=where)
    if "error" in answer:
        raise StateError(
            str(answer["error"]),
            where=where,
            remedy="Check the state paths in environment.toml and what the service does to them",
        )
    return answer


async def _save(data: asyncio.StreamReader, into: Path) -> tuple[str, int]:
    """Stream to a file named by its content; a reader never sees half of one."""
    await asyncio.to_thread(into.mkdir, parents=True, exist_ok=True, mode=0o700)
    digest, size = hashlib.sha256(), 0
    descriptor, name = await asyncio.to_thread(tempfile.mkstemp, dir=into, prefix="tmp-")
    try:
        with os.fdopen(descriptor, "wb") as target:
            while chunk := await data.read(CHUNK):
                digest.update(chunk)
                size += len(chunk)
                await asyncio.to_thread(target.write, chunk)
        await asyncio.to_thread(os.replace, name, into / digest.hexdigest())
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    return digest.hexdigest(), size
