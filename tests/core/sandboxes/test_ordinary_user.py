"""The same provider for an ordinary user, in a process that is one (as root we can become one)."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.core.sandboxes.helpers import descendants

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(os.geteuid() != 0, reason="the other tests of this folder do this already"),
]
ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534
BECOME = [
    "setpriv",
    f"--reuid={NOBODY}",
    f"--regid={NOBODY}",
    "--clear-groups",
]


CAN_RUN = """
import os, sys, pytest, pytest_asyncio
sys.exit(str(sys.version_info[:2]) != sys.argv[1] or not os.access(sys._base_executable, os.X_OK))
"""


def environment(home: Path) -> dict[str, str]:
    packages = [str(ROOT), *site.getsitepackages()]
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "PYTHONPATH": ":".join(packages),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(home / "hypothesis"),
        "HOME": str(home),
    }


@cache
def python() -> str:
    """An interpreter of our version that an ordinary user may run; skips without one."""
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv (util-linux) to become an ordinary user")
    home = Path("/tmp")
    for name in (sys.executable, "/usr/bin/python3"):
        check = [*BECOME, name, "-c", CAN_RUN, str(sys.version_info[:2])]
        done = subprocess.run(check, env=environment(home), cwd="/", check=False, timeout=60)
        if done.returncode == 0:
            return name
    pytest.skip("an ordinary user can run no Python of this version here, or not read the checkout")


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder of the ordinary user; root's own temporary folders are closed to him."""
    with tempfile.TemporaryDirectory() as name:
        os.chown(name, NOBODY, NOBODY)
        yield Path(name)


def as_user(argv: list[str], home: Path, *, timeout: float) -> subprocess.CompletedProcess[str]:
    if subprocess.run([*BECOME, "unshare", "-U", "true"], check=False).returncode:
        pytest.skip("this machine denies user namespaces to an ordinary user")
    return subprocess.run(
        [*BECOME, python(), *argv],
        env=environment(home),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


SMALL = """
import asyncio, sys
from pathlib import Path
from core.contracts.sandbox import Mount, SandboxSpec
from core.sandboxes.local import LocalProvider

async def main():
    provider = LocalProvider(Path(sys.argv[1]))
    found = await provider.probe()
    print(found.rung, any("no control group" in reason for reason in found.reasons))
    hidden = Mount("/srv/state", seen_by=frozenset({"service", "verifier"}), owner="service")
    sandbox = await provider.start(SandboxSpec("small", mounts=(hidden,)))
    service = await sandbox.spawn(["sleep", "60"], user="service")
    await sandbox.exec(["sh", "-c", "echo s > /srv/state/s"], user="service", timeout=20)
    script = (
        "id -u; id -un; ls /srv /proc/1/root /proc/1/fd 2>/dev/null; cat /proc/[0-9]*/comm; "
        "mkdir -m 0 shut; echo 1 > n"
    )
    done = await sandbox.exec(["sh", "-c", script], timeout=20)
    print(done.stdout.decode().split())
    image = await sandbox.snapshot()
    (child,) = await provider.fork(image)
    print((await child.exec(["sh", "-c", "cat n; stat -c %a shut"], timeout=20)).stdout.split())
    print((await child.exec(["cat", "/srv/state/s"], user="verifier", timeout=20)).stdout)
    print(service.returncode)
    await child.teardown()
    await sandbox.teardown()
    await provider.discard(image)
    print(list((Path(sys.argv[1]) / "sandboxes").iterdir()))

asyncio.run(main())
"""


def test_an_ordinary_user_runs_and_forks_without_seeing_what_is_hidden(home: Path) -> None:
    done = as_user(["-c", SMALL, str(home / "store")], home, timeout=60)
    assert done.returncode == 0, done.stderr
    rung, seen, forked, state, service, left = done.stdout.splitlines()
    assert rung.startswith("overlay-user ")
    # Its own init, the shell, and cat: no service, no engine.
    assert seen.startswith("['61000', 'agent', 'python")
    assert "sleep" not in seen
    assert forked == "[b'1', b'0']"
    assert state == "b's\\n'"
    assert service == "None"
    assert left == "[]"
    assert descendants(os.getpid()) == set()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("which", [["-m", "not slow"], ["-k", "TestCopy"]])
def test_every_test_of_the_provider_holds_for_an_ordinary_user(
    home: Path, which: list[str]
) -> None:
    folder = Path(__file__).parent
    argv = ["-m", "pytest", str(folder), "-q", "-p", "no:cacheprovider", *which]
    done = as_user([*argv, f"--basetemp={home / 'base'}"], home, timeout=580)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert "passed" in done.stdout


DENIED = """
import asyncio, ctypes, os, sys
from pathlib import Path
libc = ctypes.CDLL(None, use_errno=True)
up, go = os.pipe(), os.pipe()
child = os.fork()
if child:
    os.read(up[0], 1)
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{child}/{name}").write_text("0 0 70000")
    os.write(go[1], b"x")
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
assert libc.unshare(0x10000000) == 0
os.write(up[1], b"x")
os.read(go[0], 1)
Path("/proc/sys/user/max_user_namespaces").write_text("0")
os.setgroups([]); os.setgid(65534); os.setuid(65534)
from core.contracts.errors import SandboxUnavailable
from core.sandboxes.local import LocalProvider
async def main():
    provider = LocalProvider(Path(sys.argv[1]))
    try:
        await provider.require()
    except SandboxUnavailable as error:
        print(error)
    print((await provider.probe()).available)
asyncio.run(main())
"""


def test_a_machine_that_denies_user_namespaces_says_what_to_enable(home: Path) -> None:
    name = python()
    done = subprocess.run(
        [name, "-c", DENIED, str(home / "store")],
        env=environment(home),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "PermissionError" in done.stderr:
        pytest.skip("this root cannot make a user namespace with many accounts")
    assert "denies user namespaces" in done.stdout, done.stderr
    assert "sysctl -w user.max_user_namespaces=10000" in done.stdout
    assert done.stdout.endswith("False\n")
