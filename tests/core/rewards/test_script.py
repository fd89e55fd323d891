"""The script verifier in a real sandbox: every way a verifier can end, and planted traps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from core.contracts.errors import (
    RewardInvalid,
    RewardMissing,
    TaskError,
    VerifierCrashed,
    VerifierError,
    VerifierTimeout,
)
from core.contracts.reward import RolloutNode, VerifyResult
from core.contracts.sandbox import Sandbox, SandboxSpec
from core.rewards.script import ScriptVerifier, verifier_mounts
from core.sandboxes.local import LocalProvider
from core.tasks.models import Task, VerifierSpec
from tests.core.rewards.nodes import chain

pytestmark = pytest.mark.sandbox

Scorer = Callable[..., Any]
OK = "echo 1 > /logs/verifier/reward.txt"


def task(tmp_path: Path, script: str, files: Mapping[str, str], **spec: Any) -> Task:
    folder = tmp_path / "task"
    (folder / "verifier").mkdir(parents=True, exist_ok=True)
    for name, text in {"test.sh": script, **files}.items():
        (folder / "verifier" / name).write_text(text)
    verifier = VerifierSpec(**({"timeout_sec": 30.0} | spec))
    return Task("org/t", folder, "digest", "Do it.", verifier=verifier)


@pytest.fixture
def score(tmp_path: Path) -> Scorer:
    """Run a verifier script in a sandbox in which an agent ran a command before."""

    @asynccontextmanager
    async def sandbox(left_behind: str) -> AsyncIterator[Sandbox]:
        provider = LocalProvider(tmp_path / "sandboxes", {"store": "tests", "engine": "tests"})
        parent = await provider.start(SandboxSpec(name="t", mounts=verifier_mounts()))
        try:
            if left_behind:
                await parent.exec(
                    ["bash", "-c", left_behind], user="agent", cwd="/workspace", timeout=20
                )
            (child,) = await provider.fork(await parent.snapshot())
        finally:
            await parent.teardown()
        try:
            yield child
        finally:
            await child.teardown()

    async def run(
        script: str,
        *,
        left_behind: str = "",
        files: Mapping[str, str] | None = None,
        services: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> VerifyResult:
        def fork(node: RolloutNode) -> AbstractAsyncContextManager[Sandbox]:
            return sandbox(left_behind)

        verifier = ScriptVerifier(
            task(tmp_path, script, files or {}, **spec),
            fork,
            trajectory=lambda node: f'{{"leaf": "{node.id}"}}\n'.encode(),
            services=services,
            state_paths=("/state/a.db", "/state/b.db"),
        )
        return await verifier.score(chain("root", "prompt"))

    return run


async def test_the_reward_the_items_and_what_was_printed_come_back(score: Scorer) -> None:
    result = await score(
        'echo looking; echo hm >&2; echo \'{"reward": 0.50, "items": {"a": 1}}\''
        " > /logs/verifier/reward.json; echo why > /logs/verifier/details.txt"
    )
    assert (result.reward, result.raw, result.items) == (0.5, "0.50", {"a": 1.0})
    assert result.logs["test-stdout.txt"] == "looking\n"
    assert result.logs["test-stderr.txt"] == "hm\n"
    assert result.logs["details.txt"] == "why\n"
    assert result.hardened
    assert len(result.verifier_digest) == 64


async def test_it_runs_in_the_workdir_and_is_told_where_things_are(score: Scorer) -> None:
    result = await score(
        f"pwd; cat made.txt; env | grep ^BENCH_; cat $BENCH_TRAJECTORY; echo $MINE; {OK}",
        left_behind="echo by the agent > made.txt",
        services={"my-desk": "http://localhost:8080"},
        env={"MINE": "from the task"},
    )
    printed = result.logs["test-stdout.txt"].splitlines()
    assert printed[:2] == ["/workspace", "by the agent"]
    assert {
        "BENCH_SERVICE_MY_DESK=http://localhost:8080",
        "BENCH_STATE_PATHS=/state/a.db:/state/b.db",
        "BENCH_WORKDIR=/workspace",
        "BENCH_TASK=org/t",
        '{"leaf": "n2"}',
        "from the task",
    } <= set(printed)


@pytest.mark.parametrize(
    ("script", "error", "text"),
    [
        ("exit 3", VerifierCrashed, "exit code 3"),
        ("echo no such module >&2; exit 1", VerifierCrashed, "no such module"),
        ("true", RewardMissing, "wrote no reward"),
        ("> /logs/verifier/reward.txt", RewardMissing, "wrote no reward"),
        ("rm -r /logs/verifier", RewardMissing, "wrote no reward"),
        ("echo nan > /logs/verifier/reward.txt", RewardInvalid, "no decimal number"),
        ("echo 2 > /logs/verifier/reward.txt", RewardInvalid, "outside the declared range"),
        (f"{OK}; echo '{{\"reward\": 0}}' > /logs/verifier/reward.json", RewardInvalid, "disagree"),
        ("ln -s /etc/passwd /logs/verifier/reward.txt", RewardMissing, "wrote no reward"),
        ("kill -9 $$", VerifierCrashed, "exit code"),
    ],
)
async def test_every_bad_end_is_typed_and_none_is_a_zero(
    score: Scorer, script: str, error: type[VerifierError], text: str
) -> None:
    with pytest.raises(error, match=text) as caught:
        await score(f"echo started; {script}")
    assert caught.value.logs["test-stdout.txt"] == "started\n"


async def test_a_verifier_that_hangs_is_killed_and_what_it_printed_is_kept(score: Scorer) -> None:
    with pytest.raises(VerifierTimeout, match="within 1 s") as caught:
        await score("echo started; (setsid sleep 60 &) ; sleep 60", timeout_sec=1.0)
    assert caught.value.logs["test-stdout.txt"] == "started\n"


async def test_a_reward_written_before_a_hang_does_not_count(score: Scorer) -> None:
    with pytest.raises(VerifierTimeout):
        await score(f"{OK}; sleep 60", timeout_sec=1.0)


async def test_a_nonzero_exit_is_fine_when_a_reward_was_written(score: Scorer) -> None:
    assert (await score(f"{OK}; exit 5")).reward == 1.0


async def test_logs_are_bounded_in_size_and_number(score: Scorer) -> None:
    result = await score(
        f"{OK}; head -c 3000000 /dev/zero | tr '\\0' x | tee /logs/verifier/big.txt;"
        " for i in $(seq 100); do echo $i > /logs/verifier/f$i.txt; done"
    )
    assert result.reward == 1.0
    assert len(result.logs) <= 40
    assert all(len(text) < 70_000 for text in result.logs.values())
    assert "bytes left out" in result.logs["test-stdout.txt"]


TRAP = "import os; open('/logs/verifier/reward.txt', 'w').write('1'); os._exit(0)"


@pytest.mark.parametrize(
    "left_behind",
    [
        f'echo "{TRAP}" > json.py',
        f'echo "{TRAP}" > sitecustomize.py; cp sitecustomize.py usercustomize.py',
        "mkdir -p ~/.local/bin; echo 'echo 1 > /logs/verifier/reward.txt' > ~/.local/bin/python3;"
        " chmod +x ~/.local/bin/python3; cp ~/.local/bin/python3 .",
        "d=~/.local/lib/python3.11/site-packages; mkdir -p $d;"
        f' echo "{TRAP}" > $d/usercustomize.py; echo "import usercustomize" > $d/a.pth',
        "echo 'echo 1 > /logs/verifier/reward.txt; exit 0' | tee ~/.bashrc ~/.bash_profile"
        " ~/.profile > .bashrc",
        f'echo "{TRAP}" > conftest.py; printf "[pytest]\\naddopts = -p conftest\\n" > pytest.ini',
        "mkdir -p /logs/verifier /tmp/logs; echo 1 > /logs/verifier/reward.txt",
        "(while :; do echo 1 > /logs/verifier/reward.txt; done) > /dev/null 2>&1 & true",
        "git init -q . 2> /dev/null; mkdir -p .git/hooks;"
        " echo 'echo 1 > /logs/verifier/reward.txt' > .git/hooks/post-checkout",
        f'echo "{TRAP}" > check.py; mkdir helper; echo "{TRAP}" > helper/__init__.py',
    ],
    ids=["module", "custom", "path", "user site", "rc", "conftest", "write", "loop", "git", "own"],
)
async def test_nothing_an_agent_left_is_run_by_the_verifier(
    score: Scorer, left_behind: str
) -> None:
    result = await score(
        'python3 -c "import json, helper; print(helper.NAME)" && python3 /verifier/check.py',
        left_behind=left_behind,
        files={
            "check.py": "import json, helper\n"
            "open('/logs/verifier/reward.txt', 'w').write(json.dumps(0.25))\n",
            "helper.py": "NAME = 'the real helper'\n",
        },
    )
    assert (result.raw, result.reward) == ("0.25", 0.25)
    assert result.logs["test-stdout.txt"] == "the real helper\n"


async def test_hidden_files_and_logs_are_not_in_the_agents_view(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path / "sandboxes", {"store": "tests", "engine": "tests"})
    sandbox = await provider.start(SandboxSpec(name="t", mounts=verifier_mounts()))
    try:
        for path in ("/verifier", "/logs"):
            assert not (await sandbox.exec(["ls", path], user="agent", timeout=10)).ok
            inside = await sandbox.exec(["ls", "-A", path], user="verifier", timeout=10)
            assert (inside.exit_code, inside.stdout) == (0, b"")
    finally:
        await sandbox.teardown()


async def test_a_cancelled_scoring_gives_its_fork_back(score: Scorer) -> None:
    scoring = asyncio.create_task(score("sleep 60"))
    await asyncio.sleep(1.0)
    scoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scoring


def test_the_digest_follows_files_and_settings(tmp_path: Path) -> None:
    def digest(script: str, **spec: Any) -> str:
        def never(node: RolloutNode) -> AbstractAsyncContextManager[Sandbox]:
            raise AssertionError("a digest needs no sandbox")

        made = task(tmp_path, script, {}, **spec)
        return ScriptVerifier(made, never, trajectory=lambda node: b"").digest

    one = digest(OK)
    assert digest(OK) == one
    assert digest(OK + " ") != one
    assert digest(OK, timeout_sec=31.0) != one


def test_a_missing_verifier_folder_is_a_task_error(tmp_path: Path) -> None:
    def never(node: RolloutNode) -> AbstractAsyncContextManager[Sandbox]:
        raise AssertionError("a digest needs no sandbox")

    missing = Task("org/t", tmp_path / "nothing", "digest", "Do it.")
    with pytest.raises(TaskError, match="folder is missing"):
        _ = ScriptVerifier(missing, never, trajectory=lambda node: b"").digest
