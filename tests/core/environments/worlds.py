"""Real sandboxes with small manifests in them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from core.contracts.environment import EnvContext
from core.contracts.sandbox import Sandbox, SandboxProvider, SandboxSpec
from core.environments.manifest import ManifestEnvironment
from core.sandboxes.local import LocalProvider
from core.tasks.models import Manifest, ReadinessSpec, ServiceSpec, StateSpec

COUNTER = Path(__file__).parent / "counter"
PORT = 8090
LABELS = {"store": "tests", "engine": "tests"}


def provider(root: Path) -> SandboxProvider:
    return LocalProvider(root / "sandboxes", LABELS)


def counter_manifest(**changes: Any) -> Manifest:
    """The counter over a database and a folder inside the database's folder."""
    fields: dict[str, Any] = {
        "name": "counter",
        "folder": COUNTER,
        "services": (
            ServiceSpec(
                "counter", f"exec python3 server.py {PORT} /state/c.db /state/files", PORT, "/count"
            ),
        ),
        "readiness": ReadinessSpec(timeout_sec=20),
        "state": (StateSpec("sqlite", ("/state/c.db",)), StateSpec("files", ("/state/files",))),
    }
    return Manifest(**(fields | changes))


def one_service(command: str, *, seconds: float = 1.0, **readiness: Any) -> Manifest:
    """A manifest of one stateless service with the given command."""
    return Manifest(
        name="small",
        folder=COUNTER,
        services=(ServiceSpec("small", command, PORT),),
        readiness=ReadinessSpec(timeout_sec=seconds, **readiness),
    )


@asynccontextmanager
async def started(root: Path, environment: ManifestEnvironment) -> AsyncIterator[Sandbox]:
    """A sandbox with the environment's mounts, nothing running in it yet."""
    spec = SandboxSpec(name="world", mounts=environment.mounts())
    sandbox = await provider(root).start(spec)
    try:
        yield sandbox
    finally:
        try:
            await environment.teardown()
        finally:
            await sandbox.teardown()


@asynccontextmanager
async def running(
    root: Path, environment: ManifestEnvironment, **context: Any
) -> AsyncIterator[Sandbox]:
    """The same, provisioned and ready."""
    async with started(root, environment) as sandbox:
        await environment.provision(EnvContext(sandbox, **context))
        await environment.readiness()
        yield sandbox


async def ask(sandbox: Sandbox, method: str, path: str, port: int = PORT) -> Any:
    """One request to a service from beside it."""
    reader, writer = await sandbox.connect(port, user="service", timeout=10)
    try:
        async with asyncio.timeout(20):
            head = f"{method} {path} HTTP/1.0\r\nContent-Length: 0\r\n\r\n"
            writer.write(head.encode())
            await writer.drain()
            raw = await reader.read()
    finally:
        writer.close()
    return json.loads(raw.partition(b"\r\n\r\n")[2])
