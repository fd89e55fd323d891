"""The environment a manifest declares: services and state inside one sandbox.

Invariant: state changes hands only while no service runs. ``restore`` and
``reset`` stop the services, replace the state, start them and pass the
readiness gate again; a snapshot never holds half a write, because databases are
copied through SQLite itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shlex
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import cast
from uuid import uuid4

from core.contracts.environment import (
    EnvContext,
    EnvHandle,
    EnvState,
    FileState,
    ReadinessProbe,
    StateSnapshot,
    TableState,
)
from core.contracts.errors import EnvironmentFailed, StateError
from core.contracts.sandbox import Mount, Sandbox
from core.contracts.values import JsonObject
from core.environments.files import FilesState
from core.environments.readiness import probes, wait_ready
from core.environments.services import ServiceGroup, unbroken
from core.environments.sqlite import SqliteState
from core.environments.state import HIDDEN, StateKind, StateTool, state_mounts
from core.tasks.models import Manifest

FOLDER = "/environment"
SETUP_SECONDS = 300.0
KINDS: dict[str, StateKind] = {kind.name: kind for kind in (SqliteState(), FilesState())}


def selection(manifest: Manifest, task: str, host: Mapping[str, str]) -> dict[str, str]:
    """The variables every service starts with: the chosen task, and host variables asked for."""
    chosen = {key: host[key] for key in manifest.forward_env if key in host}
    if manifest.task_selection.mechanism == "env_var":
        chosen[manifest.task_selection.key] = task
    return chosen


class ManifestEnvironment:
    """Implements ``Environment`` for one sandbox at a time.

    ``snapshots`` is the host folder for standalone snapshots (content-named
    files); without one they live in a temporary folder until teardown.
    """

    def __init__(self, manifest: Manifest, *, snapshots: Path | None = None) -> None:
        self._manifest = manifest
        self._paths = {path: spec.kind for spec in manifest.state for path in spec.paths}
        self._given = snapshots
        self._folder = snapshots
        self._services = ServiceGroup(manifest.services)
        self._sandbox: Sandbox | None = None
        self._env: dict[str, str] = {}
        self._routed: set[tuple[str, int]] = set()
        self._changing = asyncio.Lock()

    @property
    def name(self) -> str:
        return self._manifest.name

    @property
    def logs(self) -> Mapping[str, str]:
        """What each service printed, bounded."""
        return self._services.logs

    @property
    def state_paths(self) -> tuple[str, ...]:
        return tuple(self._paths)

    def urls(self) -> dict[str, str]:
        """Every service's URL as services and verifier reach it."""
        return {spec.name: f"http://localhost:{spec.port}" for spec in self._manifest.services}

    def mounts(self) -> tuple[Mount, ...]:
        fixtures = Mount(FOLDER, source=self._manifest.folder, seen_by=HIDDEN, owner="service")
        return (fixtures, *state_mounts(KINDS, self._paths))

    async def provision(self, ctx: EnvContext) -> EnvHandle:
        """Run setup when the state is fresh, start the services, open the agent's routes."""
        if not self._manifest.services:
            raise EnvironmentFailed(
                "this environment's image starts its own services, which this sandbox cannot run",
                where=f"environment {self.name!r}",
                remedy="Declare [[environment.services]], or run it with --sandbox docker",
            )
        await self._services.stop()
        self._services.close()
        self._services = ServiceGroup(self._manifest.services)
        self._sandbox = ctx.sandbox
        self._env = {**ctx.selection, "BENCH_SEED": str(ctx.seed)}
        if ctx.state == "fresh":
            await self._set_up(ctx.sandbox)
        await self._services.start(ctx.sandbox, self._env)
        return EnvHandle(await self._open_routes(ctx.sandbox))

    async def readiness(self) -> ReadinessProbe:
        return await wait_ready(
            probes(self._manifest, self._here),
            self._services.watch,
            seconds=self._manifest.readiness.timeout_sec,
            name=self.name,
            last_words=lambda: self._services.last_words,
        )

    async def watch(self) -> None:
        """Raise ServiceDied once a service ends by itself; return after teardown."""
        await self._services.watch()

    async def query(self) -> EnvState:
        tables: dict[str, tuple[TableState, ...]] = {}
        files: list[FileState] = []
        digests: dict[str, str] = {}
        for tool, paths in self._tools(self._here):
            for path, found in (await tool.query(paths)).items():
                digests[path] = found.digest
                files += found.files
                if found.tables:
                    tables[path] = found.tables
        services: dict[str, JsonObject] = {
            spec.name: {"port": spec.port, "exit_code": self._services.codes.get(spec.name)}
            for spec in self._manifest.services
        }
        return EnvState(tables, tuple(files), services, self._digest(digests))

    async def flush(self, epoch: int) -> StateSnapshot:
        states: dict[str, JsonObject] = {}
        async with self._changing:
            for tool, paths in self._tools(self._here):
                states |= await tool.flush(paths)
        digests = {path: str(state["digest"]) for path, state in states.items()}
        skipped = {path: state.get("skipped", 0) for path, state in states.items()}
        return self._record(epoch, digests, skipped, in_layer=True, states=states)

    async def snapshot(self) -> StateSnapshot:
        states: dict[str, JsonObject] = {}
        async with self._changing:
            for tool, paths in self._tools(self._here):
                for path in paths:
                    copy = await tool.export(path, self._host_folder())
                    states[path] = {
                        "digest": copy.digest,
                        "blob": copy.blob,
                        "size": copy.size,
                        "skipped": copy.skipped,
                    }
        digests = {path: str(state["digest"]) for path, state in states.items()}
        skipped = {path: state["skipped"] for path, state in states.items()}
        return self._record(0, digests, skipped, in_layer=False, states=states)

    async def restore(self, snap: StateSnapshot) -> None:
        """Put a standalone snapshot back, or prove that a layer brought this one back."""
        states = cast("dict[str, JsonObject]", snap.payload.get("states", {}))
        self._refuse_foreign(states)
        blobs = {} if snap.in_layer else await self._blobs(states)
        await self._exchange(lambda: self._put_back(snap, blobs))
        await self.readiness()

    async def _put_back(self, snap: StateSnapshot, blobs: Mapping[str, Path]) -> None:
        for tool, paths in self._tools(self._here):
            present = [path for path in paths if path in blobs]
            for path in present:
                await tool.stage(path, blobs[path])
            if not snap.in_layer:
                await tool.swap(present, [path for path in paths if path not in present])
        await self.prove(self._here, snap)

    async def prove(self, sandbox: Sandbox, snap: StateSnapshot) -> None:
        """Raise StateError unless the state in ``sandbox`` is the snapshot's, to the row."""
        digests: dict[str, str] = {}
        for tool, paths in self._tools(sandbox):
            found = await tool.digests(paths)
            digests |= {path: str(state["digest"]) for path, state in found.items()}
        if self._digest(digests) != snap.digest:
            raise StateError(
                "the state that came back is not the one that was captured",
                where=f"environment {self.name!r}, snapshot {snap.id}",
                remedy="Discard this sandbox; the snapshot itself is untouched",
            )

    async def reset(self) -> None:
        """Back to the state after setup; the services start on it as they did first."""
        await self._exchange(self._start_over)
        await self.readiness()

    async def _start_over(self) -> None:
        for tool, paths in self._tools(self._here):
            await tool.reset(paths)

    async def teardown(self) -> None:
        try:
            await self._services.stop()
        finally:
            self._services.close()
            if self._given is None and self._folder is not None:
                await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
                self._folder = None

    @property
    def _here(self) -> Sandbox:
        if self._sandbox is None:
            raise EnvironmentFailed(
                "the environment was not provisioned yet", where=f"environment {self.name!r}"
            )
        return self._sandbox

    def _tools(self, sandbox: Sandbox) -> list[tuple[StateTool, list[str]]]:
        """A tool for each kind in use, with its paths in one order."""
        kinds = sorted(set(self._paths.values()))
        return [
            (
                StateTool(sandbox, KINDS[kind]),
                sorted(path for path, own in self._paths.items() if own == kind),
            )
            for kind in kinds
        ]

    async def _set_up(self, sandbox: Sandbox) -> None:
        folders = sorted({KINDS[kind].folder(path) for path, kind in self._paths.items()})
        script = "".join(f"mkdir -p {shlex.quote(folder)}\n" for folder in folders)
        script += self._manifest.setup
        if script:
            result = await sandbox.exec(
                ["/bin/sh", "-ec", script],
                user="service",
                cwd=FOLDER,
                env=self._env,
                timeout=SETUP_SECONDS,
            )
            if not result.ok:
                said = (result.stderr or result.stdout).decode("utf-8", "replace").strip()
                why = "ran too long" if result.timed_out else f"exit code {result.exit_code}"
                raise EnvironmentFailed(
                    f"setup failed ({why}): {said[-1000:] or 'it printed nothing'}",
                    where=f"environment {self.name!r}, key setup",
                    remedy="Run the command by hand in the environment folder",
                )
        for tool, paths in self._tools(sandbox):
            await tool.keep(paths)

    async def _open_routes(self, sandbox: Sandbox) -> dict[str, str]:
        """With ``ports`` declared the agent reaches those only; else every service."""
        open_ports = set(self._manifest.ports or (spec.port for spec in self._manifest.services))
        for port in sorted(open_ports):
            if (sandbox.id, port) not in self._routed:
                await sandbox.relay.forward(port)
                self._routed.add((sandbox.id, port))
        return {
            spec.name: f"http://localhost:{spec.port}"
            for spec in self._manifest.services
            if spec.port in open_ports
        }

    async def _exchange(self, change: Callable[[], Awaitable[None]]) -> None:
        """Change the state while no service runs; they start again also after a failure.

        Once begun it is done to the end: a half-changed state would be neither.
        """

        async def work() -> None:
            async with self._changing:
                await self._services.stop()
                try:
                    await change()
                finally:
                    await self._services.start(self._here, self._env)

        await unbroken(work())

    def _record(
        self,
        epoch: int,
        digests: Mapping[str, str],
        skipped: Mapping[str, object],
        *,
        in_layer: bool,
        states: dict[str, JsonObject],
    ) -> StateSnapshot:
        missing = [
            f"{count} links or special files in {path}" for path, count in skipped.items() if count
        ]
        if not self._paths:
            missing += [
                f"service {spec.name!r} keeps its state in memory"
                for spec in self._manifest.services
            ]
        return StateSnapshot(
            id=uuid4().hex[:12],
            kind="+".join(sorted(set(self._paths.values()))) or "none",
            in_layer=in_layer,
            digest=self._digest(digests),
            epoch=epoch,
            payload={"states": cast("JsonObject", states)},
            not_captured=tuple(missing),
        )

    def _digest(self, digests: Mapping[str, str]) -> str:
        return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()

    def _refuse_foreign(self, states: Mapping[str, JsonObject]) -> None:
        if set(states) != set(self._paths):
            raise StateError(
                "this snapshot is of other state paths than the manifest declares",
                where=f"environment {self.name!r}: {sorted(states)} against {sorted(self._paths)}",
                remedy="Restore it with the manifest it was taken with",
            )

    async def _blobs(self, states: Mapping[str, JsonObject]) -> dict[str, Path]:
        """The copies on the host, each checked against its name before anything is touched."""
        found: dict[str, Path] = {}
        for path, state in states.items():
            if state["blob"] is None:
                continue
            place = self._host_folder() / str(state["blob"])
            try:
                good = await asyncio.to_thread(_hash, place) == state["blob"]
            except FileNotFoundError:
                good = False
            if not good:
                raise StateError(
                    f"the stored copy of {path} is missing or damaged",
                    where=str(place),
                    remedy="This snapshot cannot be restored; take another one",
                )
            found[path] = place
        return found

    def _host_folder(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="bench-state-"))
        return self._folder


def _hash(path: Path) -> str:
    with path.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()
