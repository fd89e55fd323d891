"""Replay: a list of events becomes a tree, and one more event changes it.

The only way a tree is made; UI, export and resume all go through it. Pure and
total on every prefix of a log: an event that refers to something unknown is
ignored rather than guessed about, since a log is never edited.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from core.contracts.errors import StoreError
from core.contracts.reward import Granularity, RewardEvent, Space, ToolCall, VerifyResult
from core.contracts.store import Event
from core.contracts.user import Nudge
from core.contracts.values import JsonObject
from core.kernel import events as ev
from core.kernel.tree import (
    Block,
    CheckpointMark,
    GivenAnswer,
    Line,
    Node,
    NodeKind,
    Permission,
    PhaseTime,
    Tree,
    Unscored,
    Verdict,
)


def fold(events: Iterable[Event], tree: Tree | None = None) -> Tree:
    """The tree that these events describe, continuing ``tree`` if one is given.

    Raises StoreError when the sequence has a gap, since every event after one
    would be read wrongly.
    """
    tree = tree if tree is not None else Tree()
    for event in events:
        apply(tree, event)
    return tree


def apply(tree: Tree, event: Event) -> None:
    """Change ``tree`` by the next event of its log. O(1) but where a line starts or ends."""
    if event.seq != tree.seq + 1:
        raise StoreError(
            f"the log jumps from event {tree.seq} to {event.seq}",
            where=f"rollout {event.rollout}",
            remedy="Run `bench store fsck`",
        )
    tree.seq = event.seq
    tree.term = event.term
    body = ev.decode(event.kind, event.version, event.payload)
    if isinstance(body, ev.RolloutStarted):
        _start_rollout(tree, event, body)
        return
    if not tree.root_id:
        raise StoreError(
            f"the log begins with a {event.kind!r} event",
            where=f"rollout {event.rollout}",
            remedy="Run `bench store fsck`",
        )
    if _apply_to_rollout(tree, event, body) or _apply_to_node(tree, event, body):
        return
    line = tree.lines.get(event.line)
    if line is not None:
        _apply_to_line(tree, line, event, body)
    elif isinstance(body, ev.PhaseStarted):
        tree.phase = body.phase
    elif isinstance(body, ev.PhaseEnded):
        tree.phases.append(_phase_time(body))


def _apply_to_rollout(tree: Tree, event: Event, body: ev.Body) -> bool:
    """Facts of the rollout as a whole; False for an event that is about something else."""
    match body:
        case ev.LineStarted():
            _start_line(tree, event, body)
        case ev.RolloutEnded():
            tree.outcome, tree.error = body.outcome, body.error
            tree.error_category, tree.seconds = body.error_category, body.seconds
            tree.ended_at, tree.paused, tree.before = event.at, False, None
        case ev.MainLineSet():
            _set_main(tree, body, event.seq)
        case ev.Reopened():
            tree.before = (tree.outcome, tree.error, tree.error_category)
            tree.ended_at = tree.outcome = tree.stop = None
        case ev.NudgeAccepted():
            tree.nudges[body.nudge] = Nudge(body.text, body.actor, body.via, id=body.nudge)
        case ev.CancelRequested():
            tree.stop = body.actor if body.scope == "run" else tree.stop
        case ev.OwnerChanged():
            _take_over(tree, event, body)
        case ev.Paused() | ev.Unpaused():
            tree.paused = isinstance(body, ev.Paused)
        case _:
            return False
    return True


def _apply_to_node(tree: Tree, event: Event, body: ev.Body) -> bool:
    """Verdicts and checkpoints; False for an event that is about something else."""
    match body:
        case ev.Scored():
            _score(tree, event, body)
        case ev.ScoringFailed():
            if body.node in tree.nodes:
                failed = Unscored(body.error, body.error_category, body.logs)
                tree.nodes[body.node].unscored = failed
        case ev.Checkpointed():
            node = tree.nodes.get(body.node)
            if node is not None:
                node.checkpoint = CheckpointMark(body.checkpoint, body.consistency, body.record)
                node.dropped = ""
        case ev.CheckpointDropped():
            _drop(tree, body)
        case _:
            return False
    return True


def _take_over(tree: Tree, event: Event, body: ev.OwnerChanged) -> None:
    """Whatever the dead owner had running ended with it."""
    tree.stop, tree.paused, tree.phases = None, False, []
    tree.ended_at = tree.outcome = tree.error = tree.error_category = tree.seconds = None
    for line in tree.lines.values():
        if line.outcome is None:
            _close_step(tree, line, event)
            line.outcome, line.error, line.error_category = "interrupted", body.why, "interrupted"
            line.ended_at = event.at
            _close_all(tree, line)


def _set_main(tree: Tree, body: ev.MainLineSet, seq: int) -> None:
    line = tree.lines.get(body.main)
    if line is None:
        return
    tree.main, tree.before = body.main, None
    if body.why == "restore":
        # Chosen by a person who had seen the outcomes.
        line.selected = True
        line.assisted_at = line.assisted_at or seq


def _drop(tree: Tree, body: ev.CheckpointDropped) -> None:
    node = tree.nodes.get(body.node)
    if node is not None and node.checkpoint and node.checkpoint.id == body.checkpoint:
        node.checkpoint, node.dropped = None, body.why


def _start_rollout(tree: Tree, event: Event, body: ev.RolloutStarted) -> None:
    if tree.root_id:
        return
    tree.rollout = event.rollout
    tree.task, tree.task_digest = body.task, body.task_digest
    tree.agent, tree.sandbox, tree.user = body.agent, body.sandbox, body.user
    tree.config = body.config
    tree.started_at = event.at
    tree.root_id = f"n{event.seq}"
    tree.nodes[tree.root_id] = Node(
        tree, tree.root_id, event.seq, event.at, "root", line=0, parent_id=None
    )


def _start_line(tree: Tree, event: Event, body: ev.LineStarted) -> None:
    # A line starts once: a second start could make two lines each other's ancestors.
    if event.line in tree.lines:
        return
    parent = body.parent if body.parent in tree.nodes else tree.root_id
    fork = tree.nodes[parent]
    inherited = tree.lines.get(fork.line) if parent != tree.root_id else None
    helped = body.assisted or (inherited is not None and inherited.assisted_by(fork.seq))
    tree.lines[event.line] = Line(
        number=event.line,
        attempt=event.attempt,
        parent_id=parent,
        continuation=body.continuation,
        fidelity=body.fidelity,
        origin=body.origin,
        seed=body.seed,
        assisted_at=event.seq if helped else None,
        leaf_id=parent,
        started_at=event.at,
        asks=sum(node.kind == "ask" for node in fork.path),
        turns=fork.turn,
        mark=event.seq,
    )
    if body.main:
        tree.main, tree.before = event.line, None
        tree.attempt = event.attempt


def _apply_to_line(tree: Tree, line: Line, event: Event, body: ev.Body) -> None:
    match body:
        case ev.Prompted():
            _close_step(tree, line, event)
            node = _grow(tree, line, event, "prompt")
            node.text, node.origin, node.actor = body.text, body.origin, body.actor
            node.role, node.turn = body.role, body.turn
            tree.nudges.pop(body.nudge, None)
            line.turns = max(line.turns, body.turn)
            if body.origin == "nudge" and body.via != "user-model" and not line.assisted:
                line.assisted_at = event.seq
        case ev.StepStarted():
            _close_step(tree, line, event)
            node = _grow(tree, line, event, "step")
            node.rule, node.role, node.scene, node.open = body.rule, body.role, body.scene, True
            node.turn = line.turns
            line.step_id = node.id
        case ev.StepEnded():
            _close_step(tree, line, event)
        case ev.Said():
            _text(tree, line, "message", body.text)
        case ev.Thought():
            _text(tree, line, "thought", body.text)
        case ev.ToolChanged():
            _tool(tree, line, body)
        case ev.Asked():
            _close_step(tree, line, event)
            node = _grow(tree, line, event, "ask")
            node.ask_index, node.question, node.open = body.ask_index, body.question, True
            node.turn = line.turns
            line.asks = body.ask_index + 1
        case ev.Answered():
            _answer(tree, line, event, body)
        case ev.PermissionSettled():
            _permission(tree, line, body)
        case _:
            _line_facts(tree, line, event, body)


def _line_facts(tree: Tree, line: Line, event: Event, body: ev.Body) -> None:
    match body:
        case ev.PhaseStarted():
            line.phase = body.phase
        case ev.PhaseEnded():
            line.phases.append(_phase_time(body))
        case ev.TurnEnded():
            _close_step(tree, line, event)
            line.stop_reason = body.stop_reason
        case ev.LineEnded():
            _close_step(tree, line, event)
            line.outcome, line.error = body.outcome, body.error
            line.error_category, line.ended_at = body.error_category, event.at
            _close_all(tree, line)
        case ev.UsageChanged():
            line.usage.update(event.payload)
        case ev.SessionChanged():
            tree.session[body.name] = body.payload
        case ev.NoiseHeard():
            tree.noise[body.channel] = tree.noise.get(body.channel, 0) + body.count
        case _:
            pass


def _grow(tree: Tree, line: Line, event: Event, kind: NodeKind) -> Node:
    node = Node(tree, f"n{event.seq}", event.seq, event.at, kind, line.number, line.leaf_id)
    tree.nodes[node.id] = node
    tree.nodes[line.leaf_id].child_ids.append(node.id)
    line.leaf_id, line.mark = node.id, event.seq
    return node


def _close_step(tree: Tree, line: Line, event: Event) -> None:
    if line.step_id is not None:
        step = tree.nodes[line.step_id]
        step.open, step.ended_at = False, event.at
        line.step_id = None


def _close_all(tree: Tree, line: Line) -> None:
    """Nothing of a line that ended goes on or waits, its older questions included."""
    node: Node | None = tree.nodes[line.leaf_id]
    while node is not None and node.line == line.number:
        node.open = False
        node = node.parent


def _step(tree: Tree, line: Line) -> Node | None:
    return tree.nodes[line.step_id] if line.step_id else None


def _text(tree: Tree, line: Line, kind: str, text: str) -> None:
    step = _step(tree, line)
    if step is None:
        return
    last = step.blocks[-1] if step.blocks else None
    if last is not None and last.kind == kind:
        step.blocks[-1] = Block(last.kind, last.text + text)
    elif kind == "thought":
        step.blocks.append(Block("thought", text))
    else:
        step.blocks.append(Block("message", text))


def _tool(tree: Tree, line: Line, body: ev.ToolChanged) -> None:
    known = tree.find_tool(line.number, body.tool_call_id)
    before = known or tree.tool_call(line.number, body.tool_call_id)
    after = ToolCall(
        tool_call_id=body.tool_call_id,
        title=body.title if body.title is not None else before.title,
        kind=body.kind if body.kind is not None else before.kind,
        status=body.status if body.status is not None else before.status,
        raw_input=body.raw_input if body.raw_input is not None else before.raw_input,
        raw_output=body.raw_output if body.raw_output is not None else before.raw_output,
        content=tuple(body.content) if body.content is not None else before.content,
    )
    history = tree.tools.setdefault((line.number, body.tool_call_id), [])
    if history and history[-1][0] == line.mark:
        history.pop()
    history.append((line.mark, after))
    step = _step(tree, line)
    if known is None and step is not None:
        step.blocks.append(Block("tool", ref=body.tool_call_id))


def _answer(tree: Tree, line: Line, event: Event, body: ev.Answered) -> None:
    node = tree.nodes.get(body.node)
    if node is not None and node.line == event.line:
        node.answer = GivenAnswer(body.action, body.content, body.actor, body.via, body.seconds)
        node.open, node.ended_at = False, event.at
        line.mark = event.seq


def _permission(tree: Tree, line: Line, body: ev.PermissionSettled) -> None:
    step = _step(tree, line)
    if step is not None:
        step.blocks.append(Block("permission", ref=str(len(tree.permissions))))
    tree.permissions.append(
        Permission(
            body.title,
            tuple(body.options),
            body.chosen,
            body.policy,
            body.actor,
            body.tool_call_id,
        )
    )


def _score(tree: Tree, event: Event, body: ev.Scored) -> None:
    node = tree.nodes.get(body.node)
    if node is None:
        return
    result = VerifyResult(
        reward=body.reward,
        items={name: cast(float, value) for name, value in body.items.items()},
        events=tuple(_reward_event(item) for item in body.events),
        space=cast(Space, body.space),
        granularity=cast(Granularity, body.granularity),
        range=(body.range[0], body.range[1]),
        raw=body.raw,
        verifier_digest=body.verifier_digest,
        hardened=body.hardened,
        logs={name: text for name, text in body.logs.items() if isinstance(text, str)},
    )
    _repair(tree, node)
    node.verdicts.append(Verdict(len(node.verdicts) + 1, result, body.seconds, event.at))


def _repair(tree: Tree, node: Node) -> None:
    """A line that failed only because its leaf could not be scored has its verdict now."""
    failed, node.unscored = node.unscored, None
    line = tree.lines.get(node.line)
    if failed is None or line is None or line.leaf_id != node.id:
        return
    if line.outcome == "failed" and line.error_category == failed.error_category:
        line.outcome, line.error, line.error_category = "scored", None, None


def _reward_event(item: JsonObject) -> RewardEvent:
    return RewardEvent(
        source=str(item.get("source", "")),
        value=cast(float, item.get("value", 0.0)),
        space=cast(Space, item.get("space", "output")),
        granularity=cast(Granularity, item.get("granularity", "terminal")),
        node=cast("str | None", item.get("node")),
        reason=str(item.get("reason", "")),
    )


def _phase_time(body: ev.PhaseEnded) -> PhaseTime:
    return PhaseTime(body.phase, body.seconds, body.outcome, body.error, body.parts)
