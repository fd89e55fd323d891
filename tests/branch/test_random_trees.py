"""Random trees of write, snapshot, fork, restore and discard, beside a model in memory."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from core.contracts.sandbox import Sandbox, SandboxImage, SandboxSpec
from core.sandboxes.local import LocalProvider
from tests.branch.rungs import BEST, OTHERS, make_rung, place_for

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLES = int(os.environ.get("BENCH_EXAMPLES", "9"))

Entry = tuple[str, int, str]
"""Kind (``d`` or ``f``), mode, and a file's text."""
Files = dict[str, Entry]
Op = tuple[str, str, str]
"""What to do, to which path, and with what."""

APPLY = """
import json, os, shutil, stat, sys
for what, path, extra in json.loads(sys.argv[1]):
    if what in 'wa':
        with open(path, what) as file:
            file.write(extra)
    elif what == 'mkdir':
        os.mkdir(path)
    elif what == 'chmod':
        os.chmod(path, int(extra, 8))
    elif what == 'rename':
        os.rename(path, extra)
    elif os.path.isdir(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
found = {}
for place, folders, files in os.walk('.'):
    for name in folders + files:
        path = os.path.join(place, name)[2:]
        info = os.lstat(path)
        folder = stat.S_ISDIR(info.st_mode)
        text = '' if folder else open(path).read()
        found[path] = ['d' if folder else 'f', stat.S_IMODE(info.st_mode), text]
print(json.dumps(found))
"""

# Few names: what one world does must fall on what another one has.
FOLDERS = ["d", "e"]
PATHS = ["a", "b", *(f"{folder}/{name}" for folder in FOLDERS for name in "ab"), *FOLDERS]


def apply(files: Files, op: Op) -> bool:
    """Do it to the model; False, and nothing done, where a file system would refuse."""
    what, path, extra = op
    entry = files.get(path)
    kind = entry[0] if entry else ""
    match what:
        case "w" | "a":
            return _write(files, path, extra, kind, append=what == "a")
        case "mkdir":
            if kind or not _parent(files, path):
                return False
            files[path] = ("d", 0o755, "")
        case "chmod":
            if entry is None:
                return False
            files[path] = (kind, int(extra, 8), entry[2])
        case "rename":
            return _rename(files, path, extra)
        case _:
            if not kind:
                return False
            for name in [path, *_below(files, path)]:
                del files[name]
    return True


def _write(files: Files, path: str, text: str, kind: str, *, append: bool) -> bool:
    if kind == "d" or not _parent(files, path):
        return False
    _, mode, before = files.get(path, ("f", 0o644, ""))
    files[path] = ("f", mode, before + text if append else text)
    return True


def _rename(files: Files, path: str, target: str) -> bool:
    if path not in files or not _parent(files, target) or target.startswith(f"{path}/"):
        return False
    over = files.get(target)
    if path == target or (over and (over[0] == "d" or files[path][0] == "d")):
        return False
    for name in [path, *_below(files, path)]:
        files[target + name[len(path) :]] = files.pop(name)
    return True


def _parent(files: Files, path: str) -> bool:
    above = path.rpartition("/")[0]
    return not above or files.get(above, ("",))[0] == "d"


def _below(files: Files, path: str) -> list[str]:
    return [name for name in files if name.startswith(f"{path}/")]


@dataclass(eq=False)
class Live:
    sandbox: Sandbox
    files: Files


@dataclass(eq=False)
class Frozen:
    image: SandboxImage
    files: Files


OPS = st.one_of(
    st.tuples(
        st.sampled_from(["w", "a"]),
        st.sampled_from(PATHS),
        st.text("xyz\n", min_size=1, max_size=5),
    ),
    st.tuples(st.just("mkdir"), st.sampled_from([*FOLDERS, "d/e"]), st.just("")),
    st.tuples(st.just("chmod"), st.sampled_from(PATHS), st.sampled_from(["700", "755", "744"])),
    st.tuples(st.just("rename"), st.sampled_from(PATHS), st.sampled_from(PATHS)),
    st.tuples(st.just("delete"), st.sampled_from(PATHS), st.just("")),
)
SOME_OPS = st.lists(OPS, min_size=4, max_size=16)


class RandomTrees(RuleBasedStateMachine):
    """Every sandbox and every image has a model of its own; nothing ever leaks between them."""

    live = Bundle("live")
    frozen = Bundle("frozen")

    def __init__(self, root: Path, rung: str) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.provider = LocalProvider(root, rung=make_rung(rung), flatten_at=3)
        self.runner.run(self.provider.__aenter__())
        self.sandboxes: list[Live] = []
        self.images: list[Frozen] = []

    def teardown(self) -> None:
        try:
            for frozen in self.images:
                self.check(self.forked(frozen))
        finally:
            for one in self.sandboxes:
                self.runner.run(one.sandbox.teardown())
            for frozen in self.images:
                self.runner.run(self.provider.discard(frozen.image))
            self.runner.run(self.provider.__aexit__())
            self.runner.close()
        left = [path.name for path in self.provider.store.layers.glob("[!b]*")]
        assert left == []

    def forked(self, frozen: Frozen) -> Live:
        (sandbox,) = self.runner.run(self.provider.fork(frozen.image))
        made = Live(sandbox, dict(frozen.files))
        self.sandboxes.append(made)
        return made

    def check(self, one: Live, ops: list[Op] | None = None) -> None:
        argv = ["python3", "-I", "-S", "-c", APPLY, json.dumps(ops or [])]
        done = self.runner.run(one.sandbox.exec(argv, timeout=30))
        assert done.ok, done.stderr.decode()
        found = {path: tuple(entry) for path, entry in json.loads(done.stdout).items()}
        assert found == one.files

    @initialize(target=live)
    def first(self) -> Live:
        return self.start()

    @rule(target=live)
    def another(self) -> Live:
        return self.start()

    def start(self) -> Live:
        one = Live(self.runner.run(self.provider.start(SandboxSpec("random"))), {})
        self.sandboxes.append(one)
        return one

    @rule(one=live, ops=SOME_OPS)
    def write(self, one: Live, ops: list[Op]) -> None:
        if one in self.sandboxes:
            self.change(one, ops)

    def change(self, one: Live, ops: list[Op]) -> None:
        self.check(one, [op for op in ops if apply(one.files, op)])

    @rule(target=frozen, one=live, ops=SOME_OPS)
    def snapshot_and_go_on(self, one: Live, ops: list[Op]) -> object:
        if one not in self.sandboxes:
            return multiple()
        frozen = self.freeze(one, retire=False)
        self.change(one, ops)
        return frozen

    @precondition(lambda self: len(self.sandboxes) > 1)
    @rule(target=frozen, one=consumes(live))
    def snapshot_and_give_up(self, one: Live) -> object:
        if one not in self.sandboxes:
            return multiple()
        frozen = self.freeze(one, retire=True)
        self.end(one)
        return frozen

    def freeze(self, one: Live, *, retire: bool) -> Frozen:
        image = self.runner.run(one.sandbox.snapshot(retire=retire))
        frozen = Frozen(image, dict(one.files))
        self.images.append(frozen)
        return frozen

    @rule(target=live, frozen=frozen, ops=SOME_OPS)
    def fork(self, frozen: Frozen, ops: list[Op]) -> object:
        if frozen not in self.images:
            return multiple()
        made = self.forked(frozen)
        self.check(made)
        self.change(made, ops)
        return made

    @rule(one=live, frozen=frozen)
    def restore(self, one: Live, frozen: Frozen) -> None:
        if one in self.sandboxes and frozen in self.images:
            self.runner.run(one.sandbox.restore(frozen.image))
            one.files = dict(frozen.files)
            self.check(one)

    @precondition(lambda self: len(self.images) > 2)
    @rule(frozen=consumes(frozen))
    def discard(self, frozen: Frozen) -> None:
        if frozen in self.images:
            self.runner.run(self.provider.discard(frozen.image))
            self.images.remove(frozen)

    @precondition(lambda self: len(self.sandboxes) > 2)
    @rule(one=consumes(live))
    def tear_down(self, one: Live) -> None:
        if one in self.sandboxes:
            self.end(one)

    def end(self, one: Live) -> None:
        self.runner.run(one.sandbox.teardown())
        self.sandboxes.remove(one)


@pytest.mark.parametrize("rung", [BEST, *OTHERS])
def test_no_world_ever_holds_what_was_done_in_another(tmp_path: Path, rung: str) -> None:
    numbers = itertools.count()
    with place_for(rung, tmp_path) as place:

        class OnThisRung(RandomTrees):
            def __init__(self) -> None:
                super().__init__(place / str(next(numbers)), rung)

        run_state_machine_as_test(
            OnThisRung,
            settings=settings(
                max_examples=EXAMPLES if rung == BEST else max(1, EXAMPLES // 3),
                stateful_step_count=15,
                deadline=None,
                database=None,
                # Real sandboxes are too slow to shrink with: the steps are printed as found.
                phases=[Phase.generate],
                print_blob=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
