"""RolloutView: one finished rollout as the files are written from it. Pure.

It holds derived values only (trajectories, the newest verdicts, times), so
that the writers never walk the tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from core.contracts.errors import VerifierError
from core.contracts.reward import VerifyResult
from core.contracts.store import RolloutRecord
from core.contracts.values import JsonObject
from core.exports.timing import timing
from core.kernel.trajectory import Trajectory, trajectory
from core.kernel.tree import Line, Tree


@dataclass(frozen=True, slots=True)
class LineView:
    """One line: its trajectory from the root, its verdict, how it ended."""

    number: int
    trajectory: Trajectory
    steps: tuple[str, ...]
    """Ids of the step nodes on its path, in order."""
    verdict: VerifyResult | None
    scored_at: float | None
    logs: Mapping[str, str]
    """What the verifier printed and wrote, by file name."""
    parent: str | None
    continuation: JsonObject
    fidelity: str
    origin: str
    assisted: bool
    attempt: int
    outcome: str | None
    stop_reason: str | None
    error: str | None
    error_category: str | None
    usage: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RolloutView:
    """``main`` is the line whose leaf is the rollout's reward; None before any line began."""

    record: RolloutRecord
    main: LineView | None
    others: tuple[LineView, ...]
    timing: JsonObject
    noise: Mapping[str, int]
    error: str | None
    error_category: str | None

    @property
    def verifier_failed(self) -> bool:
        return is_verifier_error(self.error_category)


def rollout_view(
    tree: Tree, record: RolloutRecord, *, slot_wait: float | None = None
) -> RolloutView:
    """The view of a tree; ``record`` gives what the log does not hold (name, job, model)."""
    lines = {number: _line(tree, line) for number, line in sorted(tree.lines.items())}
    main = lines.get(tree.main)
    error, category = tree.error, tree.error_category
    if error is None and main is not None:
        error, category = main.error, main.error_category
    return RolloutView(
        record=record,
        main=main,
        others=tuple(view for number, view in lines.items() if number != tree.main),
        timing=timing(tree, tree.main_line, slot_wait=slot_wait),
        noise=dict(tree.noise),
        error=error if error is not None else record.error,
        error_category=category if error is not None else record.error_category,
    )


def _line(tree: Tree, line: Line) -> LineView:
    leaf = tree.nodes[line.leaf_id]
    own = leaf.line == line.number  # else nothing happened on it yet: the leaf is its parent
    verdict = tree.verdict_of(line)
    unscored = leaf.unscored if own else None
    logs: Mapping[str, str] = verdict.result.logs if verdict is not None else {}
    if verdict is None and unscored is not None:
        logs = {name: text for name, text in unscored.logs.items() if isinstance(text, str)}
    return LineView(
        number=line.number,
        trajectory=trajectory(tree, line.leaf_id, line=line.number),
        steps=tuple(node.id for node in leaf.path if node.kind == "step"),
        verdict=verdict.result if verdict is not None else None,
        scored_at=verdict.at if verdict is not None else None,
        logs=logs,
        parent=line.parent_id,
        continuation=line.continuation,
        fidelity=line.fidelity,
        origin=line.origin,
        assisted=line.assisted,
        attempt=line.attempt,
        outcome=line.outcome,
        stop_reason=line.stop_reason,
        error=line.error,
        error_category=line.error_category,
        usage=dict(line.usage),
    )


def is_verifier_error(category: str | None) -> bool:
    """Whether an error's category belongs to the scoring, by the error tree."""
    kinds: list[type[VerifierError]] = [VerifierError, *VerifierError.__subclasses__()]
    return category in {kind.category for kind in kinds}
