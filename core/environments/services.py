"""Services: started, watched and stopped by the framework, each with a bounded log.

Invariant: a service that ends while nobody asked it to is noticed by event, and
``watch`` of its group raises ServiceDied with its exit code and last words.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping, Sequence

from core.contracts.errors import NotReady, ServiceDied
from core.contracts.sandbox import Process, Sandbox
from core.tasks.models import ServiceSpec

LOG_HEAD = 16 << 10
LOG_TAIL = 48 << 10
LAST_LINES = 8
STOP_SECONDS = 10.0


async def unbroken(work: Coroutine[None, None, None]) -> None:
    """Run ``work``, which bounds itself, to its end even when the caller is cancelled."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # the cancellation is what the caller is told
        raise


class ServiceLog:
    """What a service printed: the beginning and the end, never more than 64 KB."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._cut = 0

    def feed(self, data: bytes) -> None:
        room = LOG_HEAD - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        extra = len(self._tail) - LOG_TAIL
        if extra > 0:
            del self._tail[:extra]
            self._cut += extra

    @property
    def text(self) -> str:
        gap = f"\n[{self._cut} bytes left out]\n".encode() if self._cut else b""
        return (bytes(self._head) + gap + bytes(self._tail)).decode("utf-8", "replace")

    @property
    def last_words(self) -> str:
        """The last lines, for an error message."""
        return "\n".join(self.text.strip().splitlines()[-LAST_LINES:])


class Service:
    """One running service. ``ended`` is done once its process is gone."""

    def __init__(self, spec: ServiceSpec, process: Process, log: ServiceLog) -> None:
        self.spec = spec
        self.log = log
        self._process = process
        self._drains = [
            asyncio.create_task(self._drain(process.stdout)),
            asyncio.create_task(self._drain(process.stderr)),
        ]
        self.ended: asyncio.Task[int] = asyncio.create_task(self._wait())

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def died(self) -> ServiceDied:
        words = self.log.last_words
        return ServiceDied(
            f"service {self.spec.name!r} ended with exit code {self.returncode}"
            + (f"; its last words: {words}" if words else "; it printed nothing"),
            where=f"command: {self.spec.command}",
            remedy="A service must stay in the foreground; run its command by hand to see why",
        )

    async def stop(self) -> None:
        """End the process and everything it started, at once.

        A service gets no time to write: what was sealed or copied before must
        still be the state afterwards.
        """
        async with asyncio.timeout(STOP_SECONDS):
            await self._process.kill(grace=0.0)
        tasks = [*self._drains, self.ended]
        await asyncio.wait(tasks, timeout=1.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait(self) -> int:
        code = await self._process.wait()
        # The last words may still be in the pipe; a grandchild may hold it open for ever.
        await asyncio.wait(self._drains, timeout=0.5)
        return code

    async def _drain(self, stream: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await stream.read(1 << 16):
                self.log.feed(data)


class ServiceGroup:
    """All services of one environment in one sandbox."""

    def __init__(self, specs: Sequence[ServiceSpec]) -> None:
        self._specs = tuple(specs)
        self._running: list[Service] = []
        self._logs = {spec.name: ServiceLog() for spec in specs}
        self._stopping = False
        self._death: asyncio.Event = asyncio.Event()
        self._dead: Service | None = None

    @property
    def logs(self) -> Mapping[str, str]:
        return {name: log.text for name, log in self._logs.items()}

    @property
    def last_words(self) -> Mapping[str, str]:
        return {name: log.last_words for name, log in self._logs.items()}

    @property
    def codes(self) -> Mapping[str, int | None]:
        """Exit code by name; None while it runs or before it ran."""
        return {service.spec.name: service.returncode for service in self._running}

    async def start(self, sandbox: Sandbox, env: Mapping[str, str]) -> None:
        """Start all of them. Raises NotReady when a port is already taken inside."""
        self._stopping, self._dead = False, None
        self._death.clear()
        for spec in self._specs:
            await _refuse_taken_port(sandbox, spec)
        for spec in self._specs:
            process = await sandbox.spawn(
                ["/bin/sh", "-c", spec.command],
                user="service",
                cwd="/environment",
                env={**env, **spec.env},
            )
            service = Service(spec, process, self._logs[spec.name])
            service.ended.add_done_callback(self._on_end)
            self._running.append(service)

    async def stop(self) -> None:
        """End all of them; a cancelled caller leaves none behind."""
        await unbroken(self._stop())

    async def _stop(self) -> None:
        self._stopping = True
        running, self._running = self._running, []
        results = await asyncio.gather(
            *(service.stop() for service in running), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def watch(self) -> None:
        """Raise ServiceDied once a service ends by itself; else wait until cancelled."""
        await self._death.wait()
        if self._dead is not None:
            raise self._dead.died()

    def close(self) -> None:
        """Nothing can die any more: watchers return."""
        self._death.set()

    def _on_end(self, ended: asyncio.Task[int]) -> None:
        if self._stopping or ended.cancelled() or self._dead is not None:
            return
        self._dead = next((one for one in self._running if one.ended is ended), None)
        if self._dead is not None:
            self._death.set()


async def _refuse_taken_port(sandbox: Sandbox, spec: ServiceSpec) -> None:
    try:
        _, writer = await sandbox.connect(spec.port, user="service", timeout=2.0)
    except (OSError, TimeoutError):
        return
    writer.close()
    raise NotReady(
        f"port {spec.port} is already taken in the sandbox before service {spec.name!r} starts",
        where=f"command: {spec.command}",
        remedy="Give each service its own port, and start no server in setup",
    )
