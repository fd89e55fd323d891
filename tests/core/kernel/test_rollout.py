"""The lifecycle of a rollout: order, outcomes, and that nothing stays behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from core.contracts.errors import (
    AgentCrashed,
    BenchFlowError,
    Fenced,
    NotReady,
    RewardMissing,
    SandboxLost,
    SandboxUnavailable,
    ServiceDied,
    SnapshotError,
    StateError,
    StoreFull,
)
from core.contracts.values import Outcome
from core.kernel.rollout import Takeover
from core.kernel.spec import LineResult, Stop
from tests.fakes.kernel_agent import Turn, asking, crashing, endless, helpful
from tests.fakes.kernel_points import Points
from tests.fakes.kernel_rollout import SHORT, Case, make_case

PLACES: list[tuple[str, Turn, int]] = [
    ("sandbox.start", helpful, 1),
    ("provision", helpful, 1),
    ("ready", helpful, 1),
    ("connect", helpful, 1),
    ("prompt", endless, 1),
    ("user.answer", asking, 1),
    ("user.after_turn", helpful, 1),
    ("session.close", helpful, 1),
    ("drain", helpful, 1),
    ("flush", helpful, 1),
    ("environment.teardown", helpful, 1),
    ("snapshot", helpful, 1),
    ("fork", helpful, 1),
    ("provision.fork", helpful, 1),
    ("score", helpful, 1),
]
"""Every place before the verdict where a rollout can be when it is ended."""

RUN_STOP = Stop("run", "ann", "cli")


def started(case: Case) -> asyncio.Task[LineResult]:
    return asyncio.create_task(case.run.run())


async def test_happy_path_writes_the_phases_in_order_and_leaves_nothing() -> None:
    case = make_case()
    result = await case.run.run()

    assert result.outcome is Outcome.SCORED
    assert result.verdict is not None
    assert result.verdict.reward == 1.0
    assert list(case.phases().items()) == [
        ("sandbox", "ok"),
        ("environment", "ok"),
        ("readiness", "ok"),
        ("connect", "ok"),
        ("execute", "ok"),
        ("quiesce", "ok"),
        ("verify", "ok"),
        ("teardown", "ok"),
    ]
    kinds = [kind for kind in case.kinds() if not kind.startswith("phase_")]
    assert kinds == [
        "rollout_started",
        "line_started",
        "prompted",
        "step_started",
        "thought",
        "tool_changed",
        "tool_changed",
        "step_ended",
        "step_started",
        "said",
        "step_ended",
        "turn_ended",
        "scored",
        "line_ended",
        "rollout_ended",
    ]
    assert case.left_behind() == []


async def test_the_agent_is_never_connected_before_the_world_is_ready() -> None:
    case = make_case()
    await case.run.run()
    seen = case.points.seen
    assert seen.index("sandbox.start") < seen.index("provision") < seen.index("ready")
    assert seen.index("ready") < seen.index("connect") < seen.index("prompt")


async def test_the_verdict_is_in_the_log_before_teardown_starts() -> None:
    case = make_case(points=Points(hold={"sandbox.teardown"}))
    running = started(case)
    await case.points.reached("sandbox.teardown")
    case.points.release("sandbox.teardown")
    await running
    kinds = case.kinds()
    teardown = [
        event.seq
        for event in case.recorder.events
        if event.kind == "phase_started" and event.payload["phase"] == "teardown"
    ]
    assert kinds.index("scored") + 1 < kinds.index("line_ended") + 1 < teardown[0]


async def test_a_task_without_environment_runs_and_is_scored() -> None:
    case = make_case(environment=False)
    result = await case.run.run()
    assert result.outcome is Outcome.SCORED
    assert "provision" not in case.points.seen
    assert case.left_behind() == []


@pytest.mark.parametrize(("place", "turn", "times"), PLACES)
async def test_a_person_can_cancel_the_run_in_every_phase(
    place: str, turn: Turn, times: int
) -> None:
    case = make_case(turn, points=Points(hold={place}))
    running = started(case)
    await case.points.reached(place, times=times)
    case.run.stop(RUN_STOP)
    case.points.release(place)
    result = await running

    assert result.outcome is Outcome.CANCELLED
    tree = case.tree()
    assert tree.outcome == "cancelled"
    assert all(line.outcome == "cancelled" for line in tree.lines.values())
    assert tree.main_leaf is None or tree.main_leaf.verdict is None
    assert not any(node.open for node in tree.nodes.values())
    assert case.left_behind() == []


@pytest.mark.parametrize(("place", "turn", "times"), PLACES)
async def test_an_interrupt_in_every_phase_is_recorded_and_raised(
    place: str, turn: Turn, times: int
) -> None:
    case = make_case(turn, points=Points(hold={place}))
    running = started(case)
    await case.points.reached(place, times=times)
    running.cancel()
    case.points.release(place)
    with pytest.raises(asyncio.CancelledError):
        await running

    tree = case.tree()
    assert tree.outcome == "interrupted"
    assert all(line.outcome == "interrupted" for line in tree.lines.values())
    assert not any(node.open for node in tree.nodes.values())
    assert case.left_behind() == []


@pytest.mark.parametrize("presses", [1, 2, 3])
async def test_an_interrupt_during_teardown_keeps_the_result_and_finishes(presses: int) -> None:
    case = make_case(points=Points(hold={"sandbox.teardown"}))
    running = started(case)
    await case.points.reached("sandbox.teardown", times=1)
    case.points.release("sandbox.teardown")
    await case.points.reached("sandbox.teardown", times=2)
    for _ in range(presses):
        running.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await running
    tree = case.tree()
    assert tree.outcome == "scored"
    assert tree.main_leaf is not None
    assert tree.main_leaf.verdict is not None
    assert case.left_behind() == []


async def test_impatient_interrupts_still_end_in_a_record_and_a_clean_machine() -> None:
    case = make_case(endless, points=Points(hold={"session.close"}))
    running = started(case)
    await case.points.reached("prompt")
    running.cancel()
    await case.points.reached("session.close")
    for _ in range(3):
        running.cancel()
        await asyncio.sleep(0)
    case.points.release("session.close")
    with pytest.raises(asyncio.CancelledError):
        await running
    assert case.tree().outcome == "interrupted"
    assert case.left_behind() == []


async def test_a_cancel_after_the_verdict_changes_nothing() -> None:
    case = make_case(points=Points(hold={"discard"}))
    running = started(case)
    await case.points.reached("discard")
    case.run.stop(RUN_STOP)
    case.points.release("discard")
    result = await running
    assert result.outcome is Outcome.SCORED
    tree = case.tree()
    assert tree.outcome == "scored"
    assert tree.lines[0].outcome == "scored"
    assert case.left_behind() == []


async def test_an_interrupt_after_the_verdict_keeps_it() -> None:
    case = make_case(points=Points(hold={"discard"}))
    running = started(case)
    await case.points.reached("discard")
    running.cancel()
    await asyncio.sleep(0)
    case.points.release("discard")
    with pytest.raises(asyncio.CancelledError):
        await running
    tree = case.tree()
    assert tree.outcome == "scored"
    assert tree.lines[0].outcome == "scored"
    assert case.left_behind() == []


async def test_a_stop_before_the_run_begins_starts_no_sandbox() -> None:
    case = make_case()
    case.run.stop(RUN_STOP)
    result = await case.run.run()
    assert result.outcome is Outcome.CANCELLED
    assert "sandbox.start" not in case.points.seen
    assert case.tree().outcome == "cancelled"


async def test_a_turn_stop_does_not_weaken_a_run_stop() -> None:
    case = make_case(endless)
    running = started(case)
    await case.points.reached("prompt")
    case.run.stop(RUN_STOP)
    case.run.stop(Stop("turn", "ben", "cli"))
    assert (await running).outcome is Outcome.CANCELLED
    assert case.left_behind() == []


FAILURES: list[tuple[str, Turn, BenchFlowError]] = [
    ("sandbox.start", helpful, SandboxUnavailable("no user namespaces", remedy="Use root")),
    ("provision", helpful, StateError("the seed is missing")),
    ("ready", helpful, NotReady("desk never became healthy")),
    ("watch", endless, ServiceDied("desk ended with code 1")),
    ("user.answer", asking, StateError("the user model broke")),
    ("flush", helpful, StateError("the database is locked")),
    ("snapshot", helpful, SnapshotError("no space left")),
    ("fork", helpful, SandboxLost("the holder died")),
    ("ready.fork", helpful, NotReady("desk never became healthy in the fork")),
    ("score", helpful, RewardMissing("the verifier wrote no reward")),
]


@pytest.mark.parametrize(("place", "turn", "error"), FAILURES)
async def test_a_failure_anywhere_is_a_typed_outcome_without_a_reward(
    place: str, turn: Turn, error: BenchFlowError
) -> None:
    case = make_case(turn, points=Points(fail={place: error}))
    result = await case.run.run()

    assert result.outcome is Outcome.FAILED
    assert result.verdict is None
    assert result.error == str(error)
    assert result.error_category == error.category
    assert result.infrastructure is error.infrastructure
    tree = case.tree()
    assert (tree.outcome, tree.error_category) == ("failed", error.category)
    assert all(node.verdict is None for node in tree.nodes.values())
    assert not any(node.open for node in tree.nodes.values())
    assert "failed" in case.phases().values()
    assert case.left_behind() == []


async def test_a_crashed_agent_leaves_its_partial_trajectory() -> None:
    case = make_case(crashing)
    result = await case.run.run()
    assert (result.outcome, result.error_category) == (Outcome.FAILED, AgentCrashed.category)
    leaf = case.tree().main_leaf
    assert leaf is not None
    assert leaf.message == "Half a tho"
    assert "score" not in case.points.seen
    assert case.left_behind() == []


async def test_a_service_that_dies_ends_the_running_turn() -> None:
    points = Points(fail={"watch": ServiceDied("desk ended with code 1")})
    case = make_case(endless, points=points)
    result = await case.run.run()
    assert result.error_category == "service_died"
    assert case.phases()["execute"] == "failed"


@pytest.mark.parametrize(
    ("place", "phase", "category", "tiny"),
    [
        ("sandbox.start", "sandbox", "sandbox", replace(SHORT, sandbox=0.01)),
        ("provision", "environment", "environment", replace(SHORT, environment=0.01)),
        ("ready", "readiness", "environment", replace(SHORT, readiness=0.01)),
        ("connect", "connect", "agent_timeout", replace(SHORT, connect=0.01)),
        ("snapshot", "quiesce", "sandbox", replace(SHORT, quiesce=0.01)),
        ("score", "verify", "verifier_timeout", replace(SHORT, verify=0.01)),
        ("provision.fork", "verify", "environment", replace(SHORT, environment=0.01)),
    ],
)
async def test_a_phase_that_hangs_ends_in_its_own_error(
    place: str, phase: str, category: str, tiny: object
) -> None:
    assert isinstance(tiny, type(SHORT))
    case = make_case(points=Points(hold={place}), deadlines=tiny)
    result = await case.run.run()
    assert result.outcome is Outcome.FAILED
    assert result.error_category == category
    assert result.error is not None
    assert "0.01 s" in result.error
    assert case.phases()[phase] == "failed"
    assert case.left_behind() == []


async def test_a_session_that_cannot_be_closed_is_bounded_and_not_scored() -> None:
    tiny = replace(SHORT, settle=0.01)
    case = make_case(points=Points(hold={"session.close"}), deadlines=tiny)
    result = await case.run.run()
    assert (result.outcome, result.error_category) == (Outcome.FAILED, "sandbox_lost")
    assert result.infrastructure
    assert "score" not in case.points.seen
    assert not case.provider.alive
    assert case.tree().outcome == "failed"


async def test_a_session_that_cannot_be_closed_does_not_hide_why_the_turn_failed() -> None:
    tiny = replace(SHORT, settle=0.01)
    case = make_case(crashing, points=Points(hold={"session.close"}), deadlines=tiny)
    result = await case.run.run()
    assert result.error_category == "agent_crashed"


@pytest.mark.parametrize("place", ["environment.teardown", "sandbox.teardown"])
async def test_a_teardown_that_hangs_is_bounded_and_the_failure_stays(place: str) -> None:
    tiny = replace(SHORT, teardown=0.01)
    case = make_case(crashing, points=Points(hold={place}), deadlines=tiny)
    result = await case.run.run()
    assert result.error_category == "agent_crashed"
    tree = case.tree()
    assert tree.error_category == "agent_crashed"
    assert "teardown_problem" in tree.session
    assert case.phases()["teardown"] == "failed"
    if place == "environment.teardown":
        assert not case.provider.alive


async def test_a_teardown_that_fails_keeps_the_verdict() -> None:
    points = Points(fail={"sandbox.teardown": SandboxLost("the holder does not answer")})
    case = make_case(points=points)
    result = await case.run.run()
    assert points.seen.count("sandbox.teardown") == 2
    assert result.outcome is Outcome.SCORED
    tree = case.tree()
    assert tree.outcome == "scored"
    assert tree.main_leaf is not None
    assert tree.main_leaf.verdict is not None
    assert "teardown_problem" in tree.session


async def test_a_frozen_state_that_cannot_be_discarded_keeps_the_verdict() -> None:
    case = make_case(points=Points(fail={"discard": SnapshotError("the layer is busy")}))
    result = await case.run.run()
    assert result.outcome is Outcome.SCORED
    tree = case.tree()
    assert tree.main_leaf is not None
    assert tree.main_leaf.verdict is not None
    assert "teardown_problem" in tree.session


@pytest.mark.parametrize(
    "kind", ["line_started", "prompted", "said", "asked", "turn_ended", "scored", "line_ended"]
)
async def test_a_fenced_run_stops_writing_and_tears_down(kind: str) -> None:
    case = make_case(asking)
    case.recorder.fence_at = kind
    with pytest.raises(Fenced):
        await case.run.run()
    assert kind not in case.kinds()
    assert "rollout_ended" not in case.kinds()
    assert case.left_behind() == []
    if kind in ("line_started", "prompted", "scored", "line_ended"):
        assert case.recorder.refused == 0


@pytest.mark.parametrize("kind", ["phase_started", "prompted", "said", "scored", "rollout_ended"])
async def test_a_store_that_breaks_still_leaves_a_clean_machine(kind: str) -> None:
    case = make_case()
    case.recorder.fence_at = kind
    case.recorder.fence_with = StoreFull("no space left on the store's disk")
    with pytest.raises(StoreFull):
        await case.run.run()
    assert case.left_behind() == []


async def test_an_interrupt_of_a_fenced_run_is_still_an_interrupt() -> None:
    case = make_case(endless)
    running = started(case)
    await case.points.reached("prompt")
    case.recorder.fence_at = "line_ended"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert case.left_behind() == []


async def test_a_programming_error_is_recorded_torn_down_and_raised() -> None:
    case = make_case(points=Points(fail={"provision": ZeroDivisionError("a bug")}))
    with pytest.raises(ZeroDivisionError):
        await case.run.run()
    tree = case.tree()
    assert (tree.outcome, tree.error_category) == ("failed", "internal")
    assert case.left_behind() == []


async def test_an_environment_that_cannot_be_made_leaves_no_sandbox() -> None:
    case = make_case(environment_error=StateError("the manifest names no state"))
    result = await case.run.run()
    assert (result.outcome, result.error_category) == (Outcome.FAILED, "state")
    assert case.left_behind() == []


async def test_a_takeover_continues_the_log_on_a_new_main_line() -> None:
    first = make_case(endless)
    running = started(first)
    await first.points.reached("prompt")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    before = len(first.recorder.events)

    second = make_case(takeover=Takeover(1, "resumed"), events=first.recorder.events)
    result = await second.run.run()
    assert result.outcome is Outcome.SCORED
    tree = second.tree()
    assert second.recorder.events[before].kind == "owner_changed"
    assert (tree.main, tree.attempt, tree.outcome) == (1, 2, "scored")
    assert tree.lines[1].parent_id == tree.root_id
    assert tree.lines[0].outcome == "interrupted"
    assert second.left_behind() == []


async def test_the_lines_of_earlier_owners_count_against_a_budget() -> None:
    assert make_case().run.children.made == 1
    assert make_case(takeover=Takeover(3, "resumed")).run.children.made == 4


async def test_a_verifier_that_hung_is_noted_so_that_a_later_score_repairs_its_line() -> None:
    case = make_case(points=Points(hold={"score"}), deadlines=replace(SHORT, verify=0.01))
    await case.run.run()
    leaf = case.tree().main_leaf
    assert leaf is not None
    assert leaf.unscored is not None
    assert leaf.unscored.error_category == "verifier_timeout"
