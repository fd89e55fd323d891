"""Eight children of one question: really at once, each in a world of its own.

One run is made for all tests here, since it is the expensive part; each test
looks at another side of what it left.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from core.contracts.environment import EnvContext, EnvHandle
from core.contracts.sandbox import Sandbox, SandboxImage, SandboxProvider
from core.contracts.store import Event
from core.environments.manifest import ManifestEnvironment
from core.kernel.branch import checkpoint_of
from core.kernel.tree import Node, Tree
from core.sandboxes.local import LocalProvider
from core.tasks.models import Manifest
from tests.branch.bench import EIGHT, bench
from tests.branch.frozen import Files, files_holding, frozen_digests, rows_of, workspace_of
from tests.branch.standin import FrontProvider
from tests.core.sandboxes.helpers import with_argument

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("eight children"),
]

CHILDREN = [f"o{number}" for number in range(1, 9)]
DATABASE = "/state/marks.db"
ROWS = "SELECT key, value FROM marks ORDER BY key, value"


class Barrier:
    """Outside the sandboxes: opens only when all eight are connected at once."""

    def __init__(self) -> None:
        self.waiting: set[str] = set()
        self.opened = asyncio.Event()
        self.agents: set[int] = set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = (await reader.readline()).decode().strip()
        self.waiting.add(name)
        if len(self.waiting) == len(CHILDREN):
            self.agents = with_argument("/opt/bench-agent/script.toml")
            self.opened.set()
        try:
            await asyncio.wait_for(self.opened.wait(), 100)
        finally:
            self.waiting.discard(name)
        writer.write(b"go")
        await writer.drain()


@dataclass
class Found:
    """What one run left, read while its store was open."""

    tree: Tree
    events: list[Event]
    opened: bool
    agents: set[int]
    asked: Node
    leaves: dict[str, Node]
    """Answer to the leaf of the line that got it."""
    files: dict[str, Files] = field(default_factory=dict)
    rows: dict[str, list[list[object]]] = field(default_factory=dict)
    calls: dict[str, list[str]] = field(default_factory=dict)
    layers_before: dict[str, str] = field(default_factory=dict)
    layers_after: dict[str, str] = field(default_factory=dict)
    tag_in_files: list[str] = field(default_factory=list)
    """Files of the question's checkpoint that hold the agent's tag."""

    @property
    def tag(self) -> str:
        return said(self.leaves["main"])["tag"]


async def look_at_all(found: Found, provider: SandboxProvider) -> None:
    images = {"asked": checkpoint_of(found.tree, found.asked.id).image}
    images |= {
        name: checkpoint_of(found.tree, leaf.id).image for name, leaf in found.leaves.items()
    }
    for name, image in images.items():
        found.files[name] = await workspace_of(provider, image)
        found.rows[name] = await rows_of(provider, image, DATABASE, ROWS)
        found.calls[name] = await calls_of(provider, image)


async def calls_of(provider: SandboxProvider, image: SandboxImage) -> list[str]:
    (fork,) = await provider.fork(image)
    try:
        done = await fork.exec(["cat", "/state/calls.txt"], user="verifier", timeout=60)
        return done.stdout.decode().splitlines()
    finally:
        await fork.teardown()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return asyncio.run(run_eight(tmp_path_factory.mktemp("eight")))


async def run_eight(root: Path) -> Found:
    barrier = Barrier()
    before: dict[str, str] = {}
    layers = root / "home" / "sandboxes" / "layers"

    class Barred(ManifestEnvironment):
        async def provision(self, ctx: EnvContext) -> EnvHandle:
            await ctx.sandbox.relay.serve(9000, barrier)
            return await super().provision(ctx)

    def environment(manifest: Manifest) -> ManifestEnvironment:
        return Barred(manifest)

    async def at(step: str, sandbox: Sandbox) -> None:
        if step == "captured":
            before.update(
                {
                    name: digest
                    for name, digest in frozen_digests(layers).items()
                    if name not in before
                }
            )

    def front(real: LocalProvider) -> SandboxProvider:
        return FrontProvider(real, at=at)

    async with bench(root, front=front, environment=environment) as made:
        record, tree = await made.run(EIGHT, answers=("main",), branch="asks=all,children=8")
        (asked,) = [node for node in tree.nodes.values() if node.kind == "ask"]
        leaves = {
            str(line.continuation.get("label", "main")): tree.nodes[line.leaf_id]
            for line in tree.lines.values()
        }
        events = list(await made.tools.store.log.read(record.id, whole=True, limit=100_000))
        found = Found(
            tree,
            events,
            barrier.opened.is_set(),
            barrier.agents,
            asked,
            leaves,
            layers_before=before,
        )
        await look_at_all(found, made.provider)
        found.layers_after = frozen_digests(layers)
        for layer in checkpoint_of(tree, asked.id).image.layers:
            found.tag_in_files += files_holding(layers / layer, found.tag)
    return found


def said(leaf: Node) -> dict[str, str]:
    """What the agent said of itself at its end: tag, seed and pid namespace."""
    match = re.search(
        r"tag=(?P<tag>[0-9a-f]{16}) seed=(?P<seed>\d+) space=(?P<space>\S+)", leaf.message
    )
    assert match, leaf.message
    return match.groupdict()


def test_all_eight_were_connected_at_the_same_time(found: Found) -> None:
    assert found.opened
    assert set(found.leaves) == {"main", *CHILDREN}
    assert {line.outcome for line in found.tree.lines.values()} == {"scored"}


def test_each_child_holds_its_own_marks_and_nobody_elses(found: Found) -> None:
    for name in CHILDREN:
        number = name[1].replace("8", "0")
        assert found.files[name] == {
            "shared": (f"0o60{number}", f"first\n{name}\n"),
            f"own-{name}": ("0o644", f"{name}\n"),
            f"moved-{name}": ("0o644", "kept\n"),
            f"folder-{name}": ("0o700", None),
            f"folder-{name}/in": ("0o644", "in\nmore\n"),
        }
        assert found.rows[name] == [[name, "kept"], ["own", name], ["shared", name]]


def test_the_parent_is_untouched(found: Found) -> None:
    as_asked = {
        "shared": ("0o644", "first\n"),
        "old": ("0o644", "kept\n"),
        "doomed": ("0o644", "gone\n"),
        "d": ("0o755", None),
        "d/in": ("0o644", "in\n"),
    }
    rows = [["doomed", "gone soon"], ["old", "kept"], ["shared", "before"]]
    for name in ("asked", "main"):
        assert found.files[name] == as_asked
        assert found.rows[name] == rows


def test_frozen_layers_are_what_they_were_when_they_were_frozen(found: Found) -> None:
    kept = found.layers_before.keys() & found.layers_after.keys()
    assert len(kept) >= 10
    assert {one: found.layers_after[one] for one in kept} == {
        one: found.layers_before[one] for one in kept
    }


def test_every_child_is_the_very_agent_that_asked(found: Found) -> None:
    """Its tag was made from chance at its start and told nobody."""
    assert {said(leaf)["tag"] for leaf in found.leaves.values()} == {found.tag}
    assert {line.fidelity for line in found.tree.lines.values() if line.number} == {"exact"}


def test_the_tag_travelled_in_the_session_alone(found: Found) -> None:
    assert found.tag_in_files == []
    answered = next(event.seq for event in found.events if event.kind == "answered")
    holding = {
        event.kind
        for event in found.events
        if event.seq < answered and found.tag in json.dumps(event.payload)
    }
    assert holding == {"checkpointed"}


def test_nothing_before_the_question_is_done_again(found: Found) -> None:
    before = ["update before"]
    assert found.calls["asked"] == before
    assert found.calls["main"] == before
    for name in CHILDREN:
        own = [f"{verb} {name}" for verb in ("insert", "update", "rename", "delete")]
        assert found.calls[name] == before + own
    prompts = [node for node in found.tree.nodes.values() if node.kind == "prompt"]
    assert len(prompts) == 1


def test_processes_and_seeds_differ(found: Found) -> None:
    told = [said(leaf) for leaf in found.leaves.values()]
    assert len({one["seed"] for one in told}) == len(told)
    assert len({one["space"] for one in told}) == len(told)
    assert len(found.agents) >= len(CHILDREN)
