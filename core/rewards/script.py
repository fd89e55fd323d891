"""The script verifier: a task's own check, run in a fresh fork.

Invariant: the hidden files exist only in a fork that no agent ever ran in, the
reward is read from a path no agent ever had, and the script's surroundings are
pinned so that nothing left in the workspace is run by accident.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path, PurePosixPath

from core.contracts.errors import (
    SandboxError,
    SandboxLost,
    TaskError,
    VerifierCrashed,
    VerifierError,
    VerifierTimeout,
)
from core.contracts.reward import RolloutNode, VerifyResult
from core.contracts.sandbox import ExecResult, Mount, Sandbox
from core.rewards.reader import JSON, TEXT, read_reward
from core.tasks.models import Task

HIDDEN = "/verifier"
LOGS = "/logs"
PINNED = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": f"{LOGS}/home",
    "TMPDIR": f"{LOGS}/tmp",
    # With the safe path Python takes no module from the working folder, which the
    # agent wrote; the verifier's own modules come from its own folder.
    "PYTHONSAFEPATH": "1",
    "PYTHONPATH": HIDDEN,
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHOME": "",
    "PYTHONSTARTUP": "",
    "BASH_ENV": "",
    "ENV": "",
    "LD_PRELOAD": "",
    "LD_LIBRARY_PATH": "",
    "GIT_CONFIG_NOSYSTEM": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "LC_ALL": "C.UTF-8",
}
LOG_BYTES = 64 << 10
LOG_FILES = 32

Fork = Callable[[RolloutNode], AbstractAsyncContextManager[Sandbox]]


def verifier_mounts() -> tuple[Mount, ...]:
    """What a sandbox must declare so that a fork of it can verify: empty until then."""
    return (
        Mount(HIDDEN, seen_by=frozenset({"verifier"}), owner="verifier"),
        Mount(LOGS, seen_by=frozenset({"verifier"}), owner="verifier"),
    )


class ScriptVerifier:
    """Implements ``Reward`` with the task's verifier script.

    ``fork`` gives a sandbox on the node's frozen state, its services ready;
    ``trajectory`` gives the node's path as JSON lines; ``services`` are the
    services' URLs and ``state_paths`` the files they keep.
    """

    def __init__(
        self,
        task: Task,
        fork: Fork,
        *,
        trajectory: Callable[[RolloutNode], bytes],
        services: Mapping[str, str] | None = None,
        state_paths: Sequence[str] = (),
    ) -> None:
        self._task = task
        self._fork = fork
        self._trajectory = trajectory
        self._services = dict(services or {})
        self._state_paths = tuple(state_paths)
        first, *rest = PurePosixPath(task.verifier.script).parts
        self._folder = task.folder / first if rest else task.folder
        self._script = f"{HIDDEN}/{'/'.join(rest) or first}"
        self._digest: str | None = None

    @property
    def digest(self) -> str:
        """Over the verifier's files and settings, as they were when first asked for."""
        if self._digest is None:
            self._digest = _folder_digest(self._folder, repr(self._task.verifier))
        return self._digest

    async def score(self, node: RolloutNode) -> VerifyResult:
        digest = await asyncio.to_thread(lambda: self.digest)
        async with self._fork(node) as sandbox:
            with tempfile.TemporaryDirectory(prefix="bench-verify-") as name:
                result = await self._run(sandbox, node, Path(name))
                found = await _written(sandbox, Path(name) / "out")
        logs = _logs(result, found)
        try:
            return self._verdict(result, found, logs, digest)
        except VerifierError as error:
            error.logs = logs
            raise

    async def _run(self, sandbox: Sandbox, node: RolloutNode, scratch: Path) -> ExecResult:
        await asyncio.to_thread(_lay_out, scratch / "logs", self._trajectory(node))
        await sandbox.upload(self._folder, HIDDEN, user="verifier")
        await sandbox.upload(scratch / "logs", LOGS, user="verifier")
        return await sandbox.exec(
            ["bash", self._script],
            user="verifier",
            cwd=sandbox.spec.workdir,
            env=self._env(sandbox),
            timeout=self._task.verifier.timeout_sec,
        )

    def _env(self, sandbox: Sandbox) -> dict[str, str]:
        """The pinned surroundings, then what the task sets, then where things are."""
        places = {
            "BENCH_TASK": self._task.name,
            "BENCH_WORKDIR": sandbox.spec.workdir,
            "BENCH_LOGS": f"{LOGS}/verifier",
            "BENCH_TRAJECTORY": f"{LOGS}/agent/acp_trajectory.jsonl",
            "BENCH_STATE_PATHS": ":".join(self._state_paths),
        }
        for service, url in self._services.items():
            places[f"BENCH_SERVICE_{_shell_name(service)}"] = url
        return {**PINNED, **self._task.verifier.env, **places}

    def _verdict(
        self, result: ExecResult, found: Mapping[str, bytes], logs: Mapping[str, str], digest: str
    ) -> VerifyResult:
        spec = self._task.verifier
        if result.timed_out:
            raise VerifierTimeout(
                f"the verifier did not end within {spec.timeout_sec:g} s and was killed",
                where=spec.script,
                remedy="Raise verifier.timeout_sec, or find what it waits for in test-stdout.txt",
            )
        text, document = found.get(TEXT), found.get(JSON)
        if result.exit_code != 0 and not (text or document):
            raise VerifierCrashed(
                f"the verifier ended with exit code {result.exit_code} and wrote no reward"
                + _last_line(result.stderr or result.stdout),
                where=spec.script,
                remedy="Its output is in test-stdout.txt and test-stderr.txt",
            )
        reading = read_reward(text, document, span=spec.reward_range)
        return VerifyResult(
            reward=reading.reward,
            items=reading.items,
            events=reading.events,
            range=spec.reward_range,
            raw=reading.raw,
            verifier_digest=digest,
            hardened=spec.sandbox_mode == "fork",
            logs=logs,
        )


def _shell_name(name: str) -> str:
    return "".join(char if char.isalnum() else "_" for char in name.upper())


def _lay_out(logs: Path, trajectory: bytes) -> None:
    for name in ("agent", "verifier", "home", "tmp"):
        (logs / name).mkdir(parents=True)
    (logs / "agent" / "acp_trajectory.jsonl").write_bytes(trajectory)


async def _written(sandbox: Sandbox, place: Path) -> dict[str, bytes]:
    """What the script wrote; a script that removed its own folder wrote nothing."""
    try:
        await sandbox.download(f"{LOGS}/verifier", place, user="verifier")
    except SandboxLost:
        raise
    except SandboxError as error:
        return {"collect-error.txt": str(error).encode()}
    return await asyncio.to_thread(_collect, place)


def _collect(folder: Path) -> dict[str, bytes]:
    """The files the verifier wrote, each bounded; the reward files first."""
    if not folder.is_dir():
        return {}
    names = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    names.sort(key=lambda name: str(name) not in (TEXT, JSON))
    found = {}
    for name in names[:LOG_FILES]:
        with (folder / name).open("rb") as data:
            found[str(name)] = data.read((1 << 20) + 1)
    return found


def _logs(result: ExecResult, found: Mapping[str, bytes]) -> dict[str, str]:
    raw = {"test-stdout.txt": result.stdout, "test-stderr.txt": result.stderr, **found}
    return {name: _bounded(data) for name, data in raw.items()}


def _bounded(data: bytes) -> str:
    if len(data) > LOG_BYTES:
        half = LOG_BYTES // 2
        cut = f"\n[{len(data) - LOG_BYTES} bytes left out]\n".encode()
        data = data[:half] + cut + data[-half:]
    return data.decode("utf-8", "replace")


def _last_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return f": {lines[-1][:300]}" if lines else ""


def _folder_digest(folder: Path, settings: str) -> str:
    whole = hashlib.sha256(settings.encode())
    if not folder.is_dir():
        raise TaskError(
            "the verifier's folder is missing",
            where=str(folder),
            remedy="Put the check at verifier/test.sh, or set verifier.script",
        )
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if "__pycache__" in path.parts:
            continue
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        whole.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return whole.hexdigest()
