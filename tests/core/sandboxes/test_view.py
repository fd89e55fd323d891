"""What the agent can see and do: an allow-list, walked for canaries."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core.contracts.sandbox import Mount, Sandbox, SandboxSpec
from core.sandboxes.local import LocalProvider

pytestmark = pytest.mark.sandbox

CANARY = "canary-7c1f9e"

WALK = r"""
import os, sys
mark = bytes(reversed(sys.argv[1].encode()))
found, seen = [], 0
skip = {'/usr', '/dev', *sys.argv[2:]}
def look(path):
    global seen
    for top, folders, files in os.walk(path):
        folders[:] = [f for f in folders if os.path.join(top, f) not in skip]
        if top.count('/') > 9: folders[:] = []
        for name in folders + files:
            full = os.path.join(top, name)
            if mark in os.fsencode(full): found.append(full)
            try:
                if os.path.islink(full):
                    if mark in os.fsencode(os.readlink(full)): found.append(full)
                    continue
                if not os.path.isfile(full): continue
                fd = os.open(full, os.O_RDONLY | os.O_NONBLOCK)
            except OSError: continue
            try:
                seen += 1
                if mark in os.read(fd, 1 << 20): found.append(full)
            except OSError: pass
            finally: os.close(fd)
look('/')
print(seen, found)
"""


@pytest.fixture
async def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sandbox]:
    monkeypatch.setenv("ENGINE_SECRET", CANARY)
    monkeypatch.setenv(f"NAME_{CANARY.replace('-', '_')}", CANARY)
    store = tmp_path / f"store-{CANARY}"
    (tmp_path / f"task-{CANARY}" / "verifier").mkdir(parents=True)
    hidden = tmp_path / f"task-{CANARY}" / "verifier" / "test.sh"
    hidden.write_text(CANARY)
    spec = SandboxSpec(
        f"name-{CANARY}",
        mounts=(
            Mount("/srv/state", seen_by=frozenset({"service", "verifier"}), owner="service"),
            Mount("/fixtures", source=hidden.parent, seen_by=frozenset({"service"})),
        ),
        labels={"task": CANARY},
    )
    made = await LocalProvider(store, {"engine": CANARY}).start(spec)
    await made.exec(
        ["sh", "-c", f"echo {CANARY} > /srv/state/{CANARY}"], user="service", timeout=20
    )
    await made.exec(["sh", "-c", f"echo {CANARY} > /tmp/{CANARY}"], user="service", timeout=20)
    await made.spawn(["sleep", "60"], user="service", env={"S": CANARY})
    yield made
    await made.teardown()


async def test_the_agent_finds_no_canary_anywhere(sandbox: Sandbox) -> None:
    import sys

    argv = ["python3", "-I", "-c", WALK, CANARY[::-1], sys.base_prefix]
    done = await sandbox.exec(argv, timeout=100)
    assert done.ok, done.stderr
    count, _, found = done.stdout.decode().partition(" ")
    assert found.strip() == "[]"
    assert int(count) > 100
    # The same walk does find it where it may be seen.
    done = await sandbox.exec(argv, timeout=100, user="service")
    assert CANARY in done.stdout.decode()


async def test_the_agent_sees_only_system_runtime_workspace_and_home(sandbox: Sandbox) -> None:
    done = await sandbox.exec(
        ["sh", "-c", "ls /; ls -A /etc /home /run /var; ls -A /workspace /home/agent /tmp"],
        timeout=20,
    )
    lines = done.stdout.decode().split()
    for path in (
        "boot",
        "srv",
        "mnt",
        "media",
        "opt",
        "sys",
        "work",
        "shadow",
        "machine-id",
        "apt",
    ):
        assert path not in lines
    done = await sandbox.exec(
        ["sh", "-c", "ls /proc | grep -c '^[0-9]'; cat /proc/self/cgroup"], timeout=20
    )
    count, *cgroups = done.stdout.decode().split()
    assert int(count) <= 5
    assert all(line.endswith(":/") for line in cgroups if "name=" not in line), cgroups


async def test_programs_hold_no_privilege(sandbox: Sandbox) -> None:
    script = "grep -E '^(Uid|Cap|NoNewPrivs)' /proc/self/status; ls /proc/self/fd"
    done = await sandbox.exec(["sh", "-c", script], timeout=20)
    text = done.stdout.decode()
    assert "Uid:\t61000\t61000\t61000\t61000" in text
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert f"{name}:\t0000000000000000" in text
    assert "NoNewPrivs:\t1" in text
    assert text.split()[-4:] == ["0", "1", "2", "3"]  # 3 is ls reading the folder
    verifier = (
        await sandbox.exec(["sh", "-c", script], timeout=20, user="verifier")
    ).stdout.decode()
    assert "CapBnd:\t000000000000000b" in verifier
    assert "CapEff:\t000000000000000b" in verifier


@pytest.mark.parametrize(
    "attempt",
    [
        "mount -t tmpfs none /workspace",
        "touch /usr/x",
        "touch /etc/x",
        "touch /x",
        "mknod /workspace/disk b 254 0",
        "chown root /workspace",
        "kill -9 1; kill -0 1",
        "cat /proc/1/environ",
        "ls /proc/1/root/",
        "ls /proc/1/fd/",
        "echo 1 > /proc/sys/kernel/core_pattern",
        "su -c true",
        "cp /usr/bin/id /workspace/id && chmod u+s /workspace/id && /workspace/id -u | grep -x 0",
        "python3 -c \"import socket; socket.create_connection(('192.0.2.1', 80), 3)\"",
        "python3 -c \"import socket; socket.create_connection(('169.254.169.254', 80), 3)\"",
        "python3 -c \"import socket; socket.getaddrinfo('example.com', 80)\"",
        "test $(wc -l < /proc/net/route) -gt 1",
        "test $(grep -c : /proc/net/dev) -gt 1",
        "ls /dev/vda || ls /dev/sda || ls /dev/mem",
    ],
)
async def test_an_attempt_to_get_out_fails(sandbox: Sandbox, attempt: str) -> None:
    if attempt.startswith("kill -9 1") and os.geteuid() != 0:
        pytest.skip("an ordinary user may send signal 0 to what is his own outside")
    done = await sandbox.exec(["sh", "-c", attempt], timeout=20)
    assert not done.ok, done


async def test_the_agent_cannot_trace_or_signal_other_compartments(sandbox: Sandbox) -> None:
    mine = await sandbox.spawn(["sleep", "60"])
    done = await sandbox.exec(
        ["sh", "-c", "for p in $(seq 1 40); do kill -9 $p 2>/dev/null; done; ls /proc"], timeout=20
    )
    assert mine.returncode is None
    assert b"sleep" not in done.stdout
    done = await sandbox.exec(["sh", "-c", "kill -9 -1; exit 0"], timeout=20, user="verifier")
    assert mine.returncode is None
    assert await mine.kill(grace=0) == -9


async def test_a_file_is_bounded_in_size(tmp_path: Path) -> None:
    from core.contracts.sandbox import Limits

    sandbox = await LocalProvider(tmp_path).start(SandboxSpec("small", limits=Limits(file_mb=1)))
    try:
        done = await sandbox.exec(["sh", "-c", "head -c 3000000 /dev/zero > big"], timeout=20)
        assert not done.ok
        done = await sandbox.exec(["stat", "-c", "%s", "big"], timeout=20)
        assert int(done.stdout) <= 1 << 20
    finally:
        await sandbox.teardown()
