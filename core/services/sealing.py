"""From an ended log to its folder: files in upstream's shape beside the sealed segments."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from core.contracts.store import Ownership, RolloutRecord, SealResult
from core.exports.atomic import write_files
from core.exports.folder import rollout_files
from core.exports.job import job_files
from core.exports.view import rollout_view
from core.kernel.tree import Tree
from core.services.assemble import load_tree
from core.services.config import RolloutConfig
from core.services.toolbox import Toolbox

_WIRE_BYTES = 8 << 20
"""Of each raw protocol log; the rest of it is in the events anyway."""


async def seal(tools: Toolbox, own: Ownership) -> SealResult:
    """Write the rollout's folder from its log. Doing it again gives an equal or longer one."""
    tree = await load_tree(tools, own.rollout, whole=True)
    record = await tools.store.rollouts.get(own.rollout)
    live = tools.home / "live" / own.rollout
    files = await asyncio.to_thread(_files, tree, record, live)
    return await tools.bundles.seal(own, record.folder, files)


def _files(tree: Tree, record: RolloutRecord, live: Path) -> dict[str, bytes]:
    files = rollout_files(rollout_view(tree, record)) if tree.root_id else {}
    return files | _wire_logs(live)


def write_job_files(
    folder: Path,
    job: str,
    config: RolloutConfig,
    records: Sequence[RolloutRecord],
    full_reward: Mapping[str, float],
) -> None:
    """``summary.json`` and ``results.jsonl`` of a job. ``full_reward`` is a pass, by rollout.

    Blocking: call it from a thread.
    """
    write_files(folder, job_files(job, config.to_json(), records, full_reward=full_reward))


def _wire_logs(live: Path) -> dict[str, bytes]:
    if not live.is_dir():
        return {}
    found = {}
    for path in sorted(live.glob("acp-*.log")):
        with path.open("rb") as data:
            found[f"agent/{path.name}"] = data.read(_WIRE_BYTES)
    return found
