"""The manifest environment in a real sandbox."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core.contracts.environment import EnvContext
from core.contracts.errors import EnvironmentFailed, NotReady, ServiceDied, StateError
from core.contracts.sandbox import Sandbox
from core.environments.manifest import ManifestEnvironment, selection
from core.tasks.models import Manifest, ServiceSpec, TaskSelectionSpec
from tests.contracts.environment_suite import EnvironmentSuite, RunningWorld
from tests.core.environments.worlds import (
    PORT,
    ask,
    counter_manifest,
    one_service,
    provider,
    running,
    started,
)

pytestmark = pytest.mark.sandbox


async def add(sandbox: Sandbox) -> None:
    await ask(sandbox, "POST", "/add")


async def count(sandbox: Sandbox) -> int:
    return int(await ask(sandbox, "GET", "/count"))


class TestManifestEnvironment(EnvironmentSuite):
    @pytest.fixture
    async def world(self, tmp_path: Path) -> AsyncIterator[RunningWorld]:
        manifest = counter_manifest()
        environment = ManifestEnvironment(manifest)
        async with running(tmp_path, environment) as sandbox:
            yield RunningWorld(
                provider=provider(tmp_path),
                sandbox=sandbox,
                environment=environment,
                another=lambda: ManifestEnvironment(manifest),
                add=add,
                count=count,
                url=f"http://localhost:{PORT}",
            )


async def test_the_chosen_task_and_forwarded_variables_reach_the_service_process(
    tmp_path: Path,
) -> None:
    manifest = counter_manifest(
        forward_env=("TOKEN", "UNSET"), task_selection=TaskSelectionSpec(key="CHOSEN")
    )
    chosen = selection(manifest, "org/task", {"TOKEN": "t", "OTHER": "o"})
    assert chosen == {"TOKEN": "t", "CHOSEN": "org/task"}
    environment = ManifestEnvironment(manifest)
    async with running(tmp_path, environment, selection=chosen, seed=5) as sandbox:
        env = await ask(sandbox, "GET", "/env")
    assert (env["CHOSEN"], env["TOKEN"], env["BENCH_SEED"]) == ("org/task", "t", "5")


async def test_setup_runs_when_the_state_is_fresh_and_not_in_a_fork(tmp_path: Path) -> None:
    manifest = counter_manifest(setup="echo made >> /state/files/setup.txt")
    environment = ManifestEnvironment(manifest)
    async with running(tmp_path, environment) as sandbox:
        await environment.flush(1)
        image = await sandbox.snapshot()
        (child,) = await provider(tmp_path).fork(image)
        again = ManifestEnvironment(manifest)
        try:
            await again.provision(EnvContext(child, state="restored"))
            await again.readiness()
            shown = await child.exec(["cat", "/state/files/setup.txt"], user="verifier", timeout=10)
            assert shown.stdout == b"made\n"
            await add(child)
            await again.reset()
            assert await count(child) == 0
        finally:
            await again.teardown()
            await child.teardown()


async def test_a_failing_setup_says_what_it_printed(tmp_path: Path) -> None:
    environment = ManifestEnvironment(counter_manifest(setup="echo no seed file >&2; exit 4"))
    async with started(tmp_path, environment) as sandbox:
        with pytest.raises(EnvironmentFailed, match=r"exit code 4.*no seed file"):
            await environment.provision(EnvContext(sandbox))


HANG = "import socket,time; s=socket.create_server(('127.0.0.1',8090)); time.sleep(60)"
CLOSE = "import socket\ns=socket.create_server(('127.0.0.1',8090))\nwhile 1: s.accept()[0].close()"
SHOUT = (
    "import socket\ns=socket.create_server(('127.0.0.1',8090))\n"
    "while 1:\n c=s.accept()[0]\n c.sendall(b'220 mail ready\\r\\n')\n c.close()"
)
HTTP = (
    "import http.server as h\nclass H(h.BaseHTTPRequestHandler):\n"
    " def do_GET(s):\n  s.send_error(500 if s.path == '/health' else 200)\n"
    " def log_message(s, *a): pass\n"
    "h.HTTPServer.server_bind = __import__('socketserver').TCPServer.server_bind\n"
    "h.HTTPServer(('127.0.0.1',8090),H).serve_forever()"
)


@pytest.mark.parametrize(
    ("program", "readiness", "seen"),
    [
        ("import time; time.sleep(60)", {}, "nothing listens there"),
        (HANG, {}, "http localhost:8090/health: no answer"),
        (CLOSE, {}, "closed the connection without an answer"),
        (SHOUT, {}, "does not speak HTTP"),
        (HTTP, {}, "HTTP status 500"),
        (HTTP, {"http": ("http://localhost:8091/x",)}, "localhost:8091/x: nothing listens"),
        (HTTP, {"tcp": ("localhost:8090", "8092")}, "tcp localhost:8092: nothing listens"),
        (HTTP, {"exec": ("true", "echo gone >&2; exit 3")}, "exit code 3: gone"),
    ],
)
async def test_what_is_not_ready_is_named_with_what_was_seen(
    tmp_path: Path, program: str, readiness: dict[str, tuple[str, ...]], seen: str
) -> None:
    seconds = 7.0 if program is HANG else 1.0
    command = f'echo I am here; exec python3 -I -c "{program}"'
    environment = ManifestEnvironment(one_service(command, seconds=seconds, **readiness))
    async with started(tmp_path, environment) as sandbox:
        await environment.provision(EnvContext(sandbox))
        with pytest.raises(NotReady) as caught:
            await environment.readiness()
    assert seen in caught.value.what
    assert "I am here" in caught.value.what


async def test_a_service_that_dies_ends_the_wait_with_its_last_words(tmp_path: Path) -> None:
    environment = ManifestEnvironment(one_service("echo no such table >&2; exit 9", seconds=100))
    async with started(tmp_path, environment) as sandbox:
        await environment.provision(EnvContext(sandbox))
        async with asyncio.timeout(20):
            with pytest.raises(ServiceDied, match=r"exit code 9; its last words: no such table"):
                await environment.readiness()


async def test_a_port_that_is_taken_is_told_before_the_service_starts(tmp_path: Path) -> None:
    environment = ManifestEnvironment(counter_manifest())
    async with started(tmp_path, environment) as sandbox:
        squatter = await sandbox.spawn(["python3", "-I", "-c", CLOSE], user="service")
        try:
            async with asyncio.timeout(20):
                while True:
                    try:
                        _, writer = await sandbox.connect(PORT, user="service")
                        writer.close()
                        break
                    except ConnectionRefusedError:
                        await asyncio.sleep(0.02)
            with pytest.raises(NotReady, match="port 8090 is already taken"):
                await environment.provision(EnvContext(sandbox))
        finally:
            await squatter.kill()


async def test_two_services_on_one_port_end_in_the_death_of_the_second(tmp_path: Path) -> None:
    twins = tuple(
        ServiceSpec(name, f'exec python3 -I -c "{HANG}"', PORT) for name in ("one", "two")
    )
    manifest = dataclasses.replace(one_service("x", seconds=100), services=twins)
    environment = ManifestEnvironment(manifest)
    async with started(tmp_path, environment) as sandbox:
        await environment.provision(EnvContext(sandbox))
        async with asyncio.timeout(20):
            with pytest.raises(ServiceDied, match="Address already in use"):
                await environment.readiness()


async def test_a_death_during_the_run_is_noticed_by_event(tmp_path: Path) -> None:
    environment = ManifestEnvironment(counter_manifest())
    async with running(tmp_path, environment) as sandbox:
        watcher = asyncio.create_task(environment.watch())
        with pytest.raises(ValueError, match="Expecting value"):
            await ask(sandbox, "POST", "/die")
        async with asyncio.timeout(20):
            died = r"(?s)'counter' ended with exit code 7.*told to die"
            with pytest.raises(ServiceDied, match=died):
                await watcher


async def test_stopping_for_a_restore_is_no_death_and_teardown_lets_watchers_go(
    tmp_path: Path,
) -> None:
    environment = ManifestEnvironment(counter_manifest())
    async with running(tmp_path, environment):
        watcher = asyncio.create_task(environment.watch())
        await environment.restore(await environment.snapshot())
        await environment.reset()
        assert not watcher.done()
        await environment.teardown()
        async with asyncio.timeout(20):
            await watcher


async def test_a_damaged_copy_is_refused_before_a_service_stops(tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    environment = ManifestEnvironment(counter_manifest(), snapshots=copies)
    async with running(tmp_path, environment) as sandbox:
        snap = await environment.snapshot()
        for path in copies.iterdir():
            path.write_bytes(path.read_bytes()[:-1])
        await add(sandbox)
        with pytest.raises(StateError, match="missing or damaged"):
            await environment.restore(snap)
        assert await count(sandbox) == 1
    assert copies.is_dir()


async def test_a_query_shows_tables_files_and_services(tmp_path: Path) -> None:
    environment = ManifestEnvironment(counter_manifest())
    async with running(tmp_path, environment) as sandbox:
        await add(sandbox)
        state = await environment.query()
    (table,) = state.tables["/state/c.db"]
    assert (table.name, table.key, table.rows) == ("rows", ("id",), ((1, "added"),))
    assert [file.path for file in state.files] == ["/state/files/1.txt"]
    assert state.services == {"counter": {"port": PORT, "exit_code": None}}


async def test_a_service_without_state_says_that_nothing_was_captured(tmp_path: Path) -> None:
    environment = ManifestEnvironment(one_service(f'exec python3 -I -c "{CLOSE}"', tcp=("8090",)))
    async with running(tmp_path, environment):
        snap = await environment.snapshot()
        sealed = await environment.flush(3)
    assert snap.not_captured == ("service 'small' keeps its state in memory",)
    assert sealed.not_captured == snap.not_captured
    assert snap.kind == "none"


async def test_links_in_a_state_folder_are_told_as_not_captured(tmp_path: Path) -> None:
    environment = ManifestEnvironment(counter_manifest())
    async with running(tmp_path, environment) as sandbox:
        await sandbox.exec(["ln", "-s", "/etc", "/state/files/l"], user="service", timeout=10)
        snap = await environment.snapshot()
    assert snap.not_captured == ("1 links or special files in /state/files",)


async def test_only_declared_ports_are_open_to_the_agent(tmp_path: Path) -> None:
    manifest = counter_manifest(ports=(PORT + 1,))
    environment = ManifestEnvironment(manifest)
    async with started(tmp_path, environment) as sandbox:
        handle = await environment.provision(EnvContext(sandbox))
        await environment.readiness()
        assert handle.services == {}
        with pytest.raises(ConnectionRefusedError):
            await sandbox.connect(PORT, user="agent")


async def test_an_image_that_owns_its_services_is_refused_with_the_way_out(tmp_path: Path) -> None:
    environment = ManifestEnvironment(
        Manifest(name="big", folder=tmp_path, image="big:1", owns_lifecycle=True)
    )
    async with started(tmp_path, environment) as sandbox:
        with pytest.raises(EnvironmentFailed, match="--sandbox docker"):
            await environment.provision(EnvContext(sandbox))


async def test_a_cancelled_wait_for_readiness_leaves_services_that_teardown_ends(
    tmp_path: Path,
) -> None:
    environment = ManifestEnvironment(one_service("sleep 60", seconds=100))
    async with started(tmp_path, environment) as sandbox:
        await environment.provision(EnvContext(sandbox))
        task = asyncio.create_task(environment.readiness())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await environment.teardown()
        left = await sandbox.exec(["ps", "ax"], user="service", timeout=10)
        assert b"sleep 60" not in left.stdout


async def test_a_services_log_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    noise = (
        "echo first; i=0; while [ $i -lt 3000 ]; do echo line $i of much noise; i=$((i+1)); done"
    )
    environment = ManifestEnvironment(
        one_service(f'{noise}; echo last; exec python3 -I -c "{CLOSE}"', seconds=20, tcp=("8090",))
    )
    async with running(tmp_path, environment):
        log = environment.logs["small"]
    assert log.startswith("first")
    assert log.rstrip().endswith("last")
    assert "bytes left out" in log
    assert len(log) < 70_000
