"""The readiness gate: the agent never runs before the world is healthy.

Invariant: the gate ends in one of three ways. Every probe passed, or the
deadline came (NotReady names each probe that did not pass and what it last
saw), or a service died (ServiceDied, at once).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from core.contracts.environment import Check, ReadinessProbe
from core.contracts.errors import NotReady
from core.contracts.sandbox import Sandbox
from core.environments.http import NotHttp, status
from core.tasks.models import Manifest

FIRST_WAIT = 0.01
LONGEST_WAIT = 1.0
GROWTH = 1.5
TRY_SECONDS = 5.0

_ADDRESS = re.compile(r"^(?:https?://)?(?:[\w.-]*:)?(?P<port>[0-9]{1,5})(?P<path>/\S*)?$")


@dataclass(slots=True)
class Probe:
    """One check; ``attempt`` returns None when it passed, else what it saw."""

    name: str
    attempt: Callable[[], Awaitable[str | None]]
    ready: bool = False
    detail: str = "not tried yet"

    async def until_ready(self) -> None:
        wait = FIRST_WAIT
        while True:
            seen = await self.attempt()
            if seen is None:
                self.ready, self.detail = True, "ready"
                return
            self.detail = seen
            await asyncio.sleep(wait)
            wait = min(wait * GROWTH, LONGEST_WAIT)


def probes(manifest: Manifest, sandbox: Sandbox) -> tuple[Probe, ...]:
    """The manifest's probes; with none declared, one for each service."""
    spec = manifest.readiness
    found = [_http(sandbox, address) for address in spec.http]
    found += [_tcp(sandbox, address) for address in spec.tcp]
    found += [_exec(sandbox, command) for command in spec.exec]
    if not found:
        for service in manifest.services:
            address = f"localhost:{service.port}"
            path = service.health_path
            found.append(_http(sandbox, address + path) if path else _tcp(sandbox, address))
    return tuple(found)


async def wait_ready(
    found: tuple[Probe, ...],
    watch: Callable[[], Awaitable[None]],
    *,
    seconds: float,
    name: str,
    last_words: Callable[[], Mapping[str, str]],
) -> ReadinessProbe:
    """Try every probe with growing pauses until all passed or ``seconds`` are over."""
    began = time.monotonic()
    dead = asyncio.ensure_future(watch())
    passed = asyncio.gather(*(probe.until_ready() for probe in found))
    try:
        racing: set[asyncio.Future[None] | asyncio.Future[list[None]]] = {dead, passed}
        await asyncio.wait(racing, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if passed.done():
            passed.result()
            checks = tuple(Check(probe.name, probe.ready, probe.detail) for probe in found)
            return ReadinessProbe(True, checks, time.monotonic() - began)
        if dead.done():
            dead.result()
        raise _not_ready(found, seconds, name, last_words())
    finally:
        for task in (dead, passed):
            task.cancel()
        await asyncio.gather(dead, passed, return_exceptions=True)


def _not_ready(
    found: tuple[Probe, ...], seconds: float, name: str, words: Mapping[str, str]
) -> NotReady:
    missing = "; ".join(f"{probe.name}: {probe.detail}" for probe in found if not probe.ready)
    told = "".join(f"\n{service} said: {text}" for service, text in words.items() if text)
    return NotReady(
        f"not ready after {seconds:g} s: {missing}{told}",
        where=f"environment {name!r}",
        remedy="Check that each service listens where environment.toml says, or raise timeout_sec",
    )


def address_of(text: str) -> tuple[int, str]:
    """Port and path of ``http://localhost:80/x``, ``localhost:80`` or ``80``.

    Raises NotReady when there is no port in it.
    """
    match = _ADDRESS.match(text.strip())
    if match is None or not 0 < int(match["port"]) < 65536:
        raise NotReady(
            f"the readiness probe {text!r} names no port",
            where="environment.toml [environment.readiness]",
            remedy="Write http://localhost:PORT/path or localhost:PORT",
        )
    return int(match["port"]), match["path"] or "/"


def _http(sandbox: Sandbox, address: str) -> Probe:
    port, path = address_of(address)

    async def attempt() -> str | None:
        try:
            code = await status(sandbox, port, path, timeout=TRY_SECONDS)
        except ConnectionRefusedError:
            return "nothing listens there"
        except TimeoutError:
            return f"no answer within {TRY_SECONDS:g} s"
        except NotHttp as error:
            return str(error)
        return None if 200 <= code < 300 else f"HTTP status {code}"

    return Probe(f"http localhost:{port}{path}", attempt)


def _tcp(sandbox: Sandbox, address: str) -> Probe:
    port, _ = address_of(address)

    async def attempt() -> str | None:
        try:
            _, writer = await sandbox.connect(port, user="service", timeout=TRY_SECONDS)
        except ConnectionRefusedError:
            return "nothing listens there"
        except TimeoutError:
            return f"no answer within {TRY_SECONDS:g} s"
        writer.close()
        return None

    return Probe(f"tcp localhost:{port}", attempt)


def _exec(sandbox: Sandbox, command: str) -> Probe:
    async def attempt() -> str | None:
        result = await sandbox.exec(
            ["/bin/sh", "-c", command], user="service", timeout=TRY_SECONDS, cwd="/environment"
        )
        if result.ok:
            return None
        if result.timed_out:
            return f"still running after {TRY_SECONDS:g} s"
        said = (result.stderr or result.stdout).decode("utf-8", "replace").strip()[-200:]
        return f"exit code {result.exit_code}" + (f": {said}" if said else "")

    return Probe(f"exec {command}", attempt)
