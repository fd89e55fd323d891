"""What every sandbox provider must do, written against the contract alone.

A provider's test module subclasses ``SandboxSuite`` and gives a ``provider``
fixture. ``spec`` may be overridden where a provider needs more (an image).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core.contracts.errors import BenchFlowError, SandboxError
from core.contracts.sandbox import Captured, Limits, Mount, Sandbox, SandboxProvider, SandboxSpec

SERVE = (
    "import http.server as h\n"
    "class H(h.BaseHTTPRequestHandler):\n"
    "  protocol_version='HTTP/1.1'\n"
    "  def do_GET(s):\n"
    "    s.send_response(200); s.send_header('Content-Length','5'); s.end_headers()\n"
    "    s.wfile.write(b'hello')\n"
    "  def do_POST(s):\n"
    "    d=s.rfile.read(int(s.headers['Content-Length']))\n"
    "    s.send_response(200); s.send_header('Content-Length',str(len(d))); s.end_headers()\n"
    "    s.wfile.write(d)\n"
    "  def log_message(s,*a): pass\n"
    "srv=h.ThreadingHTTPServer(('127.0.0.1',8000),H)\n"
    "print('up',flush=True); srv.serve_forever()\n"
)
FETCH = "import urllib.request as u; print(u.urlopen('http://localhost:9000/').read().decode())"


async def sh(sandbox: Sandbox, script: str, *, user: str = "agent", timeout: float = 20) -> str:
    """Run a script that must succeed; its output."""
    done = await sandbox.exec(["sh", "-c", script], user=user, timeout=timeout)  # type: ignore[arg-type]
    assert done.ok, (script, done)
    return done.stdout.decode()


class SandboxSuite:
    @pytest.fixture
    def spec(self) -> SandboxSpec:
        return SandboxSpec("suite", limits=Limits(processes=64, memory_mb=256, output_bytes=2000))

    @pytest.fixture
    async def sandbox(self, provider: SandboxProvider, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        made = await provider.start(spec)
        yield made
        await made.teardown()

    async def test_the_probe_says_what_it_found(self, provider: SandboxProvider) -> None:
        found = await provider.probe()
        assert found.available
        assert found.provider == provider.name

    async def test_exec_gives_output_code_and_signal(self, sandbox: Sandbox) -> None:
        done = await sandbox.exec(
            ["sh", "-c", "cat; echo err >&2; exit 3"], timeout=10, stdin=b"in put"
        )
        assert (done.exit_code, done.stdout, done.stderr) == (3, b"in put", b"err\n")
        killed = await sandbox.exec(["sh", "-c", "kill -TERM $$"], timeout=10)
        assert killed.exit_code == -15

    async def test_exec_takes_folder_and_environment(self, sandbox: Sandbox) -> None:
        done = await sandbox.exec(
            ["sh", "-c", 'pwd; echo "$COLOUR $HOME"'], cwd="/tmp", env={"COLOUR": "red"}, timeout=10
        )
        assert done.stdout == b"/tmp\nred /home/agent\n"

    async def test_the_engines_environment_stays_outside(
        self, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SECRET_KEY", "canary-in-env")
        assert "canary-in-env" not in await sh(
            sandbox, "env; cat /proc/*/environ 2>&1 | tr '\\0' ' '"
        )

    async def test_a_missing_command_is_an_error_that_names_it(self, sandbox: Sandbox) -> None:
        with pytest.raises(SandboxError, match="no-such-command"):
            await sandbox.exec(["no-such-command"], timeout=10)
        with pytest.raises(SandboxError, match="/no/folder"):
            await sandbox.spawn(["true"], cwd="/no/folder")

    async def test_a_timeout_kills_everything_the_command_started(self, sandbox: Sandbox) -> None:
        script = (
            "(setsid sh -c 'sleep 1.5; touch /workspace/alive' &) ; "
            "setsid sh -c '(sleep 1.5; touch /workspace/alive) &' ; sleep 60"
        )
        done = await sandbox.exec(["sh", "-c", script], timeout=0.5)
        assert done.timed_out
        assert done.exit_code < 0
        await asyncio.sleep(2)
        assert await sh(sandbox, "ls /workspace") == ""

    async def test_cancelling_an_exec_kills_its_command(self, sandbox: Sandbox) -> None:
        task = asyncio.create_task(
            sandbox.exec(
                ["sh", "-c", "touch started; trap '' TERM; sleep 1.5; touch alive"], timeout=60
            )
        )
        await sh(sandbox, "until [ -e started ]; do sleep 0.01; done")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(2)
        assert await sh(sandbox, "ls") == "started\n"

    async def test_long_output_keeps_head_and_tail_and_is_counted(self, sandbox: Sandbox) -> None:
        done = await sandbox.exec(
            ["sh", "-c", "echo HEAD; head -c 50000000 /dev/zero | tr '\\0' x; echo TAIL"],
            timeout=60,
        )
        assert done.stdout_bytes == 50_000_010
        assert done.stdout.startswith(b"HEAD\nxxx")
        assert done.stdout.endswith(b"xxxTAIL\n")
        assert len(done.stdout) < 2100

    async def test_spawned_programs_talk_by_pipes(self, sandbox: Sandbox) -> None:
        program = await sandbox.spawn(["cat"])
        assert program.returncode is None
        big = b"x" * 3_000_000 + b"\n"
        program.stdin.write(big)
        got = await asyncio.wait_for(program.stdout.readexactly(len(big)), 20)
        assert got == big
        program.stdin.close()
        assert await asyncio.wait_for(program.wait(), 10) == 0
        assert await program.stdout.read() == b""

    async def test_kill_asks_first_and_forces_then(self, sandbox: Sandbox) -> None:
        polite = await sandbox.spawn(
            ["sh", "-c", "trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done"]
        )
        await polite.stdout.readline()
        assert await polite.kill(grace=4) == 7
        stubborn = await sandbox.spawn(
            ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"]
        )
        await stubborn.stdout.readline()
        assert await stubborn.kill(grace=0.4) == -9
        assert await stubborn.kill() == -9
        assert await stubborn.wait() == -9

    async def test_kill_lets_a_program_end_at_the_end_of_its_input(self, sandbox: Sandbox) -> None:
        program = await sandbox.spawn(["sh", "-c", "cat; exit 5"])
        assert await program.kill(grace=5) == 5

    async def test_files_go_in_and_come_out(self, sandbox: Sandbox, tmp_path: Path) -> None:
        source = tmp_path / "in"
        (source / "sub" / "empty").mkdir(parents=True)
        (source / "sub" / "run.sh").write_bytes(b"#!/bin/sh\necho ran\n")
        (source / "sub" / "run.sh").chmod(0o755)
        (source / "link").symlink_to("sub/run.sh")
        await sandbox.upload(source, "/workspace/got")
        assert await sh(sandbox, "./got/sub/run.sh; ./got/link; stat -c %U got/sub") == (
            "ran\nran\nagent\n"
        )
        await sh(sandbox, "ln -s /etc/passwd got/out; mkfifo got/pipe")
        await sandbox.download("/workspace/got", tmp_path / "out")
        names = sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*"))
        assert names == ["sub", "sub/empty", "sub/run.sh"]
        assert (tmp_path / "out/sub/run.sh").read_bytes() == b"#!/bin/sh\necho ran\n"
        await sandbox.upload(source / "sub" / "run.sh", "/workspace/one")
        await sandbox.download("/workspace/one", tmp_path / "one")
        assert (tmp_path / "one").stat().st_mode & 0o777 == 0o755

    async def test_unsafe_transfers_are_refused(self, sandbox: Sandbox, tmp_path: Path) -> None:
        source = tmp_path / "in"
        source.mkdir()
        (source / "passwords").symlink_to("/etc/passwd")
        with pytest.raises(SandboxError, match="leads out"):
            await sandbox.upload(source, "/workspace/got")
        with pytest.raises(BenchFlowError, match="nothing"):
            await sandbox.upload(tmp_path / "none", "/workspace/got")
        with pytest.raises(SandboxError, match="No such file"):
            await sandbox.download("/workspace/none", tmp_path / "x")
        await sh(sandbox, "ln -s /etc/passwd steal")
        with pytest.raises(SandboxError, match="not a regular file"):
            await sandbox.download("/workspace/steal", tmp_path / "x")
        assert not (tmp_path / "x").exists()

    async def test_a_planted_link_does_not_divert_an_upload(
        self, sandbox: Sandbox, tmp_path: Path
    ) -> None:
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "file").write_text("new")
        await sh(sandbox, "echo old > precious; mkdir d; ln -s ../precious d/file")
        await sandbox.upload(tmp_path / "in", "/workspace/d")
        assert await sh(sandbox, "cat precious d/file") == "old\nnew"

    async def test_agent_reaches_services_only_by_routes(self, sandbox: Sandbox) -> None:
        service = await sandbox.spawn(["python3", "-c", SERVE], user="service", cwd="/tmp")
        await service.stdout.readline()
        probe = (
            "import socket,sys\nfor p in (8000,9000):\n"
            "  s=socket.socket(); s.settimeout(2)\n  print(s.connect_ex(('127.0.0.1',p)))"
        )
        done = await sandbox.exec(["python3", "-c", probe], timeout=20)
        assert done.stdout.split() == [b"111", b"111"]
        await sandbox.relay.forward(9000, target=8000)
        done = await sandbox.exec(["python3", "-c", FETCH], timeout=20)
        assert done.stdout == b"hello\n", done
        done = await sandbox.exec(
            ["python3", "-c", FETCH.replace("9000", "8000")], timeout=20, user="verifier"
        )
        assert done.stdout == b"hello\n", done
        assert sandbox.relay.in_flight == 0

    async def test_a_route_to_nothing_refuses_at_once(self, sandbox: Sandbox) -> None:
        await sandbox.relay.forward(9000, target=8000)
        done = await sandbox.exec(["python3", "-c", FETCH], timeout=20)
        assert not done.timed_out
        assert b"Connection" in done.stderr or b"RemoteDisconnected" in done.stderr

    async def test_a_port_is_reachable_from_the_engine(self, sandbox: Sandbox) -> None:
        service = await sandbox.spawn(["python3", "-c", SERVE], user="service", cwd="/tmp")
        await service.stdout.readline()
        reader, writer = await sandbox.connect(8000)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        assert (await reader.read()).endswith(b"hello")
        writer.close()
        end = await sandbox.expose_port(8000)
        reader, writer = await asyncio.open_connection(end.host, end.port)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        assert (await reader.read()).endswith(b"hello")
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await sandbox.connect(8001)

    async def test_a_retired_snapshot_forks_into_equal_worlds(
        self, provider: SandboxProvider, sandbox: Sandbox
    ) -> None:
        await sh(
            sandbox,
            "mkdir -p d/e; echo 1 > d/a; echo 2 > d/b; echo 3 > d/e/c; chmod 640 d/a; ln -s a d/l; "
            "echo home > ~/h; echo t > /tmp/t",
        )
        image = await sandbox.snapshot(retire=True)
        assert Captured.FILES in image.captured
        assert image.spec == sandbox.spec
        with pytest.raises(SandboxError, match="retired"):
            await sandbox.exec(["true"], timeout=5)
        one, two = await provider.fork(image, 2)
        try:
            look = "cat d/a d/b d/e/c d/l ~/h /tmp/t; stat -c %a d/a"
            assert await sh(one, look) == "1\n2\n3\n1\nhome\nt\n640\n"
            await sh(one, "rm -r d/e; mv d/b d/B; chmod 600 d/a; echo x > d/e")
            assert await sh(two, look) == "1\n2\n3\n1\nhome\nt\n640\n"
            # What was deleted, renamed and replaced stays so one generation further.
            second = await one.snapshot(retire=True)
            (child,) = await provider.fork(second)
            try:
                assert await sh(child, "cat d/e d/B; ls d; stat -c %a d/a") == (
                    "x\n2\nB\na\ne\nl\n600\n"
                )
            finally:
                await child.teardown()
                await provider.discard(second)
        finally:
            await one.teardown()
            await two.teardown()
            await provider.discard(image)

    async def test_eight_children_change_the_same_files_and_none_sees_another(
        self, provider: SandboxProvider, sandbox: Sandbox
    ) -> None:
        await sh(sandbox, "for i in 1 2 3 4 5; do echo base > f$i; done; mkdir d; echo x > d/x")
        image = await sandbox.snapshot(retire=True)
        children = await provider.fork(image, 8)
        try:

            async def change(number: int, child: Sandbox) -> None:
                await sh(
                    child,
                    f"echo {number} >> f1; rm f2; mv f3 g{number}; chmod {number}00 f4; mv d e; "
                    f"ln -sf t{number} f5",
                )

            await asyncio.gather(*(change(n, child) for n, child in enumerate(children)))
            for number, child in enumerate(children):
                look = "cat f1; ls; stat -c %a f4; cat e/x; readlink f5"
                assert await sh(child, look) == (
                    f"base\n{number}\ne\nf1\nf4\nf5\ng{number}\n"
                    f"{f'{number}00' if number else 0}\nx\nt{number}\n"
                )
            (untouched,) = await provider.fork(image)
            children.append(untouched)
            assert await sh(untouched, "cat f*; ls d") == "base\n" * 5 + "x\n"
            assert len({child.id for child in children}) == 9
        finally:
            await asyncio.gather(*(child.teardown() for child in children))
            await provider.discard(image)

    async def test_a_live_parent_goes_on_and_children_do_not_see_it(
        self, provider: SandboxProvider, sandbox: Sandbox
    ) -> None:
        await sh(sandbox, "mkdir d; echo 1 > d/a; echo 2 > b")
        base = await sandbox.snapshot()
        await sh(sandbox, "rm -r d; mkdir d; echo new > d/n; rm b")
        program = await sandbox.spawn(["cat"])
        image = await sandbox.snapshot()
        program.stdin.write(b"still here\n")
        assert await asyncio.wait_for(program.stdout.readline(), 10) == b"still here\n"
        await sh(sandbox, "echo later > later")
        old, new = (*await provider.fork(base), *await sandbox.fork(image))
        try:
            assert await sh(old, "ls . d") == ".:\nb\nd\n\nd:\na\n"
            assert await sh(new, "ls . d") == ".:\nd\n\nd:\nn\n"
        finally:
            await old.teardown()
            await new.teardown()
            await provider.discard(base)
            await provider.discard(image)

    async def test_restore_puts_the_same_sandbox_back(
        self, provider: SandboxProvider, sandbox: Sandbox
    ) -> None:
        await sh(sandbox, "echo before > f")
        image = await sandbox.snapshot()
        await sandbox.relay.forward(9000, target=8000)
        program = await sandbox.spawn(["sleep", "60"])
        await sh(sandbox, "echo after > f; echo more > g")
        name = sandbox.id
        await sandbox.restore(image)
        assert sandbox.id == name
        assert await sh(sandbox, "cat f; ls") == "before\nf\n"
        with pytest.raises(BenchFlowError):
            await program.wait()
        service = await sandbox.spawn(["python3", "-c", SERVE], user="service", cwd="/tmp")
        await service.stdout.readline()
        assert (await sandbox.exec(["python3", "-c", FETCH], timeout=20)).stdout == b"hello\n"
        await provider.discard(image)

    async def test_a_frozen_sandbox_stands_still(self, sandbox: Sandbox) -> None:
        program = await sandbox.spawn(["sh", "-c", "while read x; do echo $x; done"])
        await sandbox.freeze()
        program.stdin.write(b"a\n")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(program.stdout.readline(), 0.3)
        await sandbox.thaw()
        assert await asyncio.wait_for(program.stdout.readline(), 10) == b"a\n"

    async def test_a_frozen_sandbox_can_be_torn_down(
        self, provider: SandboxProvider, spec: SandboxSpec
    ) -> None:
        sandbox = await provider.start(spec)
        await sandbox.spawn(["sleep", "60"])
        await sandbox.freeze()
        await asyncio.wait_for(sandbox.teardown(), 20)

    async def test_a_fork_bomb_hits_its_limit_and_commands_still_run(
        self, sandbox: Sandbox
    ) -> None:
        bomb = await sandbox.spawn(
            ["python3", "-c", "import os\nwhile 1:\n  try: os.fork()\n  except OSError: pass"]
        )
        done = await sandbox.exec(["echo", "alive"], timeout=30)
        assert done.stdout == b"alive\n"
        assert await asyncio.wait_for(bomb.kill(grace=0), 30) == -9

    async def test_a_memory_bomb_is_killed(self, sandbox: Sandbox) -> None:
        done = await sandbox.exec(
            ["python3", "-c", "x=[]\nwhile 1: x.append(bytearray(10_000_000))"], timeout=60
        )
        assert not done.timed_out
        assert done.exit_code in (-9, 1)
        assert await sh(sandbox, "echo fine") == "fine\n"

    async def test_mounts_are_seen_only_by_whom_they_name(
        self, provider: SandboxProvider, spec: SandboxSpec, tmp_path: Path
    ) -> None:
        (tmp_path / "seed").mkdir()
        (tmp_path / "seed" / "s").write_text("seeded")
        (tmp_path / "tool").mkdir()
        (tmp_path / "tool" / "t").write_text("tool")
        hidden = frozenset({"service", "verifier"})
        mounts = (
            Mount("/workspace", seed=tmp_path / "seed"),
            Mount("/srv/state", seen_by=hidden, owner="service"),  # type: ignore[arg-type]
            Mount("/workspace/inner", seen_by=hidden, owner="service"),  # type: ignore[arg-type]
            Mount("/opt/tool", source=tmp_path / "tool"),
        )
        sandbox = await provider.start(dataclasses.replace(spec, mounts=mounts))
        try:
            await sh(sandbox, "echo v > /srv/state/db; echo i > /workspace/inner/i", user="service")
            assert await sh(sandbox, "cat s /opt/tool/t; ls -A inner; ls -A /srv 2>&1 || true") == (
                "seededtoolls: cannot access '/srv': No such file or directory\n"
            )
            assert await sh(sandbox, "cat /srv/state/db inner/i", user="verifier") == "v\ni\n"
            done = await sandbox.exec(["touch", "/opt/tool/x"], timeout=10, user="verifier")
            assert b"Read-only" in done.stderr
            assert await sh(sandbox, "echo mine >> s; cat s") == "seededmine\n"
            assert (tmp_path / "seed" / "s").read_text() == "seeded"
        finally:
            await sandbox.teardown()

    async def test_teardown_twice_is_as_good_as_once(
        self, provider: SandboxProvider, spec: SandboxSpec
    ) -> None:
        sandbox = await provider.start(spec)
        program = await sandbox.spawn(["sleep", "60"])
        await sandbox.teardown()
        await sandbox.teardown()
        with pytest.raises(BenchFlowError):
            await program.wait()
        with pytest.raises(SandboxError):
            await sandbox.exec(["true"], timeout=5)
