"""A sandbox that is a temporary folder: commands run as plain host processes.

It keeps the parts of the contract that an agent needs: read-only mounts are
found by translating arguments, the workdir and the home are folders, exec kills
its whole group, and a process's ``kill`` proves that nothing of its group lives.
What needs isolation (network, snapshots, freezing) it refuses.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from core.contracts.errors import SandboxError, SandboxLost
from core.contracts.sandbox import (
    Compartment,
    Endpoint,
    ExecResult,
    Relay,
    Sandbox,
    SandboxImage,
    SandboxSpec,
)


class HostProcess:
    """A process in a group of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise ValueError("the process needs three pipes")
        self.stdin = process.stdin
        self.stdout = process.stdout
        self.stderr = process.stderr

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        return await self._process.wait()

    async def kill(self, *, grace: float = 2.0) -> int:
        self.stdin.close()
        for sign, seconds in ((None, grace), (signal.SIGTERM, grace), (signal.SIGKILL, 10.0)):
            if sign is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, sign)
            try:
                async with asyncio.timeout(seconds):
                    code = await self._process.wait()
                    while group_lives(self.pid):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                    return code
            except TimeoutError:
                continue
        raise SandboxLost(f"process group {self.pid} cannot be killed")


def group_lives(group: int) -> bool:
    """Whether any process of this group is more than a zombie. /proc has no events to wait on."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] not in ("Z", "X"):
                return True
    return False


class HostSandbox:
    """Runs commands in ``folder/workspace`` with ``folder/home`` as home."""

    def __init__(self, folder: Path, spec: SandboxSpec | None = None) -> None:
        self.folder = folder
        self.workdir = folder / "workspace"
        self.home = folder / "home"
        for path in (self.workdir, self.home):
            path.mkdir(parents=True, exist_ok=True)
        base = spec or SandboxSpec("host")
        self.spec = SandboxSpec(
            base.name, str(self.workdir), str(self.home), base.mounts, base.env, base.limits
        )
        self.processes: list[HostProcess] = []

    @property
    def id(self) -> str:
        return f"host-{self.folder.name}"

    @property
    def relay(self) -> Relay:
        self._refuse("a relay")

    async def exec(
        self,
        argv: Sequence[str],
        *,
        user: Compartment = "agent",
        timeout: float,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        began = time.monotonic()
        process = await self.spawn(argv, user=user, cwd=cwd, env=env)
        process.stdin.write(stdin)
        process.stdin.close()
        timed_out = False
        reading = asyncio.gather(process.stdout.read(), process.stderr.read())
        try:
            out, err = await asyncio.wait_for(asyncio.shield(reading), timeout)
        except TimeoutError:
            timed_out = True
            await process.kill(grace=0.0)
            out, err = await reading
        except asyncio.CancelledError:
            await process.kill(grace=0.0)
            raise
        code = await process.wait()
        return ExecResult(code, out, err, time.monotonic() - began, timed_out, len(out), len(err))

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        user: Compartment = "agent",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> HostProcess:
        process = await asyncio.create_subprocess_exec(
            *map(self.real, argv),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=cwd or self.spec.workdir,
            env={
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "HOME": self.spec.home,
                **self.spec.env,
                **(env or {}),
            },
            start_new_session=True,
        )
        started = HostProcess(process)
        self.processes.append(started)
        return started

    def real(self, argument: str) -> str:
        """The argument with the targets of mounts replaced by links to their sources."""
        moved = [m for m in self.spec.mounts if m.source and m.target != str(m.source)]
        for mount in moved:
            if mount.source is not None:
                self._link(mount.target, mount.source)
        for top in {"/" + mount.target.split("/")[1] for mount in moved}:
            argument = argument.replace(top, f"{self.folder}/root{top}")
        return argument

    def _link(self, target: str, source: Path) -> None:
        path = Path(str(self.folder / "root") + target)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_symlink():
            path.symlink_to(source)

    async def upload(self, local: Path, remote: str, *, user: Compartment = "agent") -> None:
        if await asyncio.to_thread(local.is_dir):
            await asyncio.to_thread(shutil.copytree, local, remote, dirs_exist_ok=True)
        else:
            await asyncio.to_thread(shutil.copy, local, remote)

    async def download(self, remote: str, local: Path, *, user: Compartment = "agent") -> None:
        await self.upload(Path(remote), str(local))

    async def expose_port(self, port: int, *, user: Compartment = "service") -> Endpoint:
        return Endpoint("127.0.0.1", port)

    async def connect(
        self, port: int, *, user: Compartment = "service", timeout: float = 5.0
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), timeout)

    async def freeze(self) -> None:
        self._refuse("freezing")

    async def thaw(self) -> None:
        self._refuse("freezing")

    async def snapshot(self, *, retire: bool = False) -> SandboxImage:
        self._refuse("snapshots")

    async def fork(self, image: SandboxImage, n: int = 1) -> list[Sandbox]:
        self._refuse("forks")

    async def restore(self, image: SandboxImage) -> None:
        self._refuse("snapshots")

    async def teardown(self) -> None:
        for process in self.processes:
            await process.kill(grace=0.0)

    def _refuse(self, what: str) -> NoReturn:
        raise SandboxError(f"a host folder has no isolation and so gives no {what}")
