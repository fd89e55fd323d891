"""One line: questions, nudges, the agent's time, and stops inside a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.contracts.agent import Noise, UsageUpdate
from core.contracts.errors import AgentCrashed, AgentTimeout
from core.contracts.user import Nudge
from core.contracts.values import Outcome, StopReason
from core.kernel import events as ev
from core.kernel.spec import LineResult, Stop
from core.kernel.trajectory import AskItem, TextItem, ToolItem, trajectory
from core.kernel.tree import Tree
from tests.fakes.kernel_agent import FakeSession, Turn, asking, endless, helpful, question
from tests.fakes.kernel_points import Points
from tests.fakes.kernel_rollout import SHORT, Case, make_case

TURN_STOP = Stop("turn", "ann", "cli")


def started(case: Case) -> asyncio.Task[LineResult]:
    return asyncio.create_task(case.run.run())


def texts(tree: Tree) -> str:
    leaf = tree.main_leaf
    assert leaf is not None
    items = trajectory(tree, leaf.id).items
    return "".join(item.text for item in items if isinstance(item, TextItem))


async def test_a_question_closes_its_step_and_its_answer_opens_the_next() -> None:
    case = make_case(asking)
    await case.run.run()
    kinds = case.kinds()
    between = kinds[kinds.index("prompted") : kinds.index("turn_ended")]
    assert between == [
        "prompted",
        "step_started",
        "said",
        "step_ended",
        "asked",
        "answered",
        "step_started",
        "said",
        "step_ended",
    ]
    (answered,) = case.bodies("answered")
    assert isinstance(answered, ev.Answered)
    assert (answered.action, answered.content) == ("accept", {"size": "s"})
    ask = case.tree().nodes[answered.node]
    assert ask.answer is not None
    assert not ask.open


async def test_the_user_is_told_where_in_the_tree_it_is_asked() -> None:
    async def twice(session: FakeSession, prompt: str) -> StopReason:
        await session.ask(question("first"))
        await session.ask(question("second"))
        return StopReason.END_TURN

    case = make_case(twice)
    await case.run.run()
    tree = case.tree()
    asks = [node for node in tree.root.subtree if node.kind == "ask"]
    assert [(item.node, item.ask_index) for item in case.user.asked] == [
        (asks[0].id, 0),
        (asks[1].id, 1),
    ]
    assert {item.rollout for item in case.user.asked} == {"r1"}


async def test_an_answer_to_a_stored_request_is_delivered_with_its_event() -> None:
    case = make_case(asking, request="q1")
    await case.run.run()
    assert case.delivered == ["q1"]
    assert case.kinds().count("answered") == 1


async def test_a_nudge_to_a_stored_request_is_delivered_with_its_prompt() -> None:
    case = make_case(nudges=[Nudge("More.", "ann", via="cli", request="q2")])
    await case.run.run()
    assert case.delivered == ["q2"]
    assert case.kinds().count("prompted") == 2


async def test_two_questions_at_once_are_both_answered_and_lose_nothing() -> None:
    async def both(session: FakeSession, prompt: str) -> StopReason:
        await session.say("before ")
        await asyncio.gather(session.ask(question("one")), session.ask(question("two")))
        await session.say("after")
        return StopReason.END_TURN

    case = make_case(both)
    result = await case.run.run()
    assert result.outcome is Outcome.SCORED
    tree = case.tree()
    asks = [node for node in tree.nodes.values() if node.kind == "ask"]
    assert [node.ask_index for node in asks] == [0, 1]
    assert all(node.answer is not None for node in asks)
    assert texts(tree) == "before after"


async def test_questions_left_open_by_a_crash_wait_no_longer() -> None:
    async def both_then_die(session: FakeSession, prompt: str) -> StopReason:
        session.later(session.ask(question("one")))
        session.later(session.ask(question("two")))
        await case.points.reached("user.answer", times=2)
        raise AgentCrashed("the agent ended")

    case = make_case(both_then_die, points=Points(hold={"user.answer"}))
    result = await case.run.run()
    assert result.error_category == "agent_crashed"
    assert [node.id for node in case.tree().nodes.values() if node.open] == []
    assert case.left_behind() == []


async def test_the_user_models_nudge_is_the_next_prompt_and_does_not_assist() -> None:
    case = make_case(nudges=[Nudge("Go on.", "simulated")])
    await case.run.run()
    tree = case.tree()
    assert case.agent.sessions[0].prompts == ["Do the task.", "Go on."]
    prompts = [node for node in tree.root.subtree if node.kind == "prompt"]
    assert [(node.origin, node.turn) for node in prompts] == [("task", 1), ("nudge", 2)]
    assert not tree.lines[0].assisted
    assert [turn.turn for turn in case.user.turns] == [1, 2]
    assert [turn.message for turn in case.user.turns] == ["Done.", "Done."]


async def test_a_persons_nudge_while_the_agent_works_is_the_next_prompt_and_assists() -> None:
    case = make_case(points=Points(hold={"prompt"}))
    running = started(case)
    await case.points.reached("prompt")
    assert case.run.line is not None
    case.run.line.nudges.put(Nudge("Look again.", "ann", via="cli"))
    case.points.release("prompt")
    result = await running
    assert result.outcome is Outcome.SCORED
    assert case.agent.sessions[0].prompts == ["Do the task.", "Look again."]
    assert case.tree().lines[0].assisted


async def test_a_persons_nudge_ends_the_wait_for_the_user_model() -> None:
    case = make_case(points=Points(hold={"user.after_turn"}))
    running = started(case)
    await case.points.reached("user.after_turn")
    assert case.run.line is not None
    case.run.line.nudges.put(Nudge("Look again.", "ann", via="cli"))
    await case.points.reached("user.after_turn", times=2)
    case.points.release("user.after_turn")
    await running
    assert case.agent.sessions[0].prompts == ["Do the task.", "Look again."]


async def test_no_more_turns_are_run_than_allowed() -> None:
    nudges = [Nudge(f"{number}", "simulated") for number in range(5)]
    case = make_case(nudges=nudges, max_turns=3)
    result = await case.run.run()
    assert result.outcome is Outcome.SCORED
    assert len(case.agent.sessions[0].prompts) == 3


async def test_what_comes_between_two_turns_does_not_swallow_the_next_turns_text() -> None:
    async def second(session: FakeSession, prompt: str) -> StopReason:
        await session.say("more")
        return StopReason.END_TURN

    points = Points(hold={"user.after_turn"})
    case = make_case(helpful, second, points=points, nudges=[Nudge("Go on.", "simulated")])
    running = started(case)
    await points.reached("user.after_turn")
    await case.agent.sessions[0].say("late ")
    await case.agent.sessions[0].settle()
    points.release("user.after_turn")
    await running
    assert texts(case.tree()) == "Let me look.Done.late more"


@pytest.mark.parametrize("ticks", range(0, 24, 2))
async def test_what_comes_just_as_a_turn_ends_does_not_swallow_the_next_turns_text(
    ticks: int,
) -> None:
    late: list[asyncio.Task[None]] = []

    async def first(session: FakeSession, prompt: str) -> StopReason:
        async def straggle() -> None:
            for _ in range(ticks):
                await asyncio.sleep(0)
            await session.say("late ")

        await session.say("first ")
        late.append(asyncio.create_task(straggle()))
        return StopReason.END_TURN

    async def second(session: FakeSession, prompt: str) -> StopReason:
        await late[0]
        await session.say("more")
        return StopReason.END_TURN

    case = make_case(first, second, nudges=[Nudge("Go on.", "simulated")])
    await case.run.run()
    assert texts(case.tree()) == "first late more"


async def test_the_agents_time_up_ends_the_turn_and_what_it_left_is_scored() -> None:
    case = make_case(endless, agent_seconds=0.02)
    result = await case.run.run()
    assert result.outcome is Outcome.SCORED
    assert result.verdict is not None
    assert result.error_category == "agent_timeout"
    (turn,) = case.bodies("turn_ended")
    assert isinstance(turn, ev.TurnEnded)
    assert turn.stop_reason == "timeout"
    assert case.phases()["execute"] == "failed"
    assert "cancel" in case.points.seen
    assert case.user.turns == []
    assert case.left_behind() == []


async def test_the_agents_time_is_one_for_all_its_turns() -> None:
    async def half(session: FakeSession, prompt: str) -> StopReason:
        await asyncio.sleep(0.06)
        return StopReason.END_TURN

    nudges = [Nudge(f"{number}", "simulated") for number in range(10)]
    case = make_case(half, nudges=nudges, agent_seconds=0.1)
    result = await case.run.run()
    assert result.error_category == "agent_timeout"
    assert len(case.agent.sessions[0].prompts) == 2


async def test_the_agents_time_stands_still_while_its_user_thinks() -> None:
    case = make_case(asking, points=Points(hold={"user.answer"}), agent_seconds=0.2)
    running = started(case)
    await case.points.reached("user.answer")
    await asyncio.sleep(0.3)
    case.points.release("user.answer")
    result = await running
    assert (result.outcome, result.error) == (Outcome.SCORED, None)
    execute = next(item for item in case.tree().lines[0].phases if item.phase == "execute")
    waited = execute.parts["human_wait"]
    assert isinstance(waited, float)
    assert waited > 0.2


async def test_an_agent_that_ignores_time_up_is_left_to_the_sandbox() -> None:
    case = make_case(endless, agent_seconds=0.02, deaf=True, deadlines=replace(SHORT, settle=0.05))
    result = await case.run.run()
    assert (result.outcome, result.error_category) == (Outcome.SCORED, "agent_timeout")
    assert case.left_behind() == []


async def test_a_stopped_turn_is_cancelled_and_what_it_left_is_scored() -> None:
    case = make_case(endless)
    running = started(case)
    await case.points.reached("prompt")
    case.run.stop(TURN_STOP)
    result = await running
    assert result.outcome is Outcome.SCORED
    (turn,) = case.bodies("turn_ended")
    assert isinstance(turn, ev.TurnEnded)
    assert turn.stop_reason == "cancelled"
    assert texts(case.tree()) == "Working."
    assert [end.stop_reason for end in case.user.turns] == [StopReason.CANCELLED]


async def test_an_agent_that_ignores_a_stop_is_bounded_and_still_scored() -> None:
    case = make_case(endless, deaf=True, deadlines=replace(SHORT, settle=0.05))
    running = started(case)
    await case.points.reached("prompt")
    case.run.stop(TURN_STOP)
    result = await running
    assert result.outcome is Outcome.SCORED
    assert case.left_behind() == []


async def test_a_stopped_turn_settles_its_open_question_as_cancelled() -> None:
    case = make_case(asking, points=Points(hold={"user.answer"}))
    running = started(case)
    await case.points.reached("user.answer")
    case.run.stop(TURN_STOP)
    result = await running
    assert result.outcome is Outcome.SCORED
    (answered,) = case.bodies("answered")
    assert isinstance(answered, ev.Answered)
    assert answered.action == "cancel"
    assert not any(node.open for node in case.tree().nodes.values())


async def test_a_stop_between_turns_accepts_the_turn() -> None:
    case = make_case(points=Points(hold={"user.after_turn"}))
    running = started(case)
    await case.points.reached("user.after_turn")
    case.run.stop(TURN_STOP)
    assert (await running).outcome is Outcome.SCORED
    assert case.left_behind() == []


async def test_a_nudge_after_a_stopped_turn_starts_the_next() -> None:
    case = make_case(endless, helpful)
    running = started(case)
    await case.points.reached("prompt")
    assert case.run.line is not None
    case.run.line.nudges.put(Nudge("Do it otherwise.", "ann", via="cli"))
    case.run.stop(TURN_STOP)
    result = await running
    assert result.outcome is Outcome.SCORED
    assert case.agent.sessions[0].prompts == ["Do the task.", "Do it otherwise."]


async def test_a_permission_is_recorded_and_is_no_question() -> None:
    async def permitted(session: FakeSession, prompt: str) -> StopReason:
        await session.say("May I?")
        decision = await session.permit("rm -rf build")
        assert decision.option == "yes"
        return StopReason.END_TURN

    case = make_case(permitted)
    await case.run.run()
    tree = case.tree()
    assert [item.title for item in tree.permissions] == ["rm -rf build"]
    assert not any(node.kind == "ask" for node in tree.nodes.values())


async def test_noise_and_usage_are_kept_beside_the_steps() -> None:
    async def noisy(session: FakeSession, prompt: str) -> StopReason:
        await session.emit(Noise("stdout", "npm WARN"), Noise("stdout", "npm WARN"))
        await session.emit(UsageUpdate(used=10, cost=0.5))
        await session.say("Done.")
        return StopReason.END_TURN

    case = make_case(noisy)
    await case.run.run()
    tree = case.tree()
    assert tree.noise == {"stdout": 2}
    assert tree.lines[0].usage == {"used": 10, "cost": 0.5}
    assert sum(node.kind == "step" for node in tree.nodes.values()) == 1


Act: TypeAlias = tuple[Literal["say", "think", "call", "ask", "permit", "pause"], str]
ACTS = st.tuples(
    st.sampled_from(["say", "think", "call", "ask", "permit", "pause"]),
    st.text("ab \n", min_size=1, max_size=4),
)


def playing(acts: Sequence[tuple[str, str]], heard: list[tuple[str, str]], turn: int) -> Turn:
    async def play(session: FakeSession, prompt: str) -> StopReason:
        for number, (act, text) in enumerate(acts):
            name = f"{turn}.{number}"
            if act == "say":
                await session.say(text)
                heard.append(("message", text))
            elif act == "think":
                await session.think(text)
                heard.append(("thought", text))
            elif act == "call":
                await session.call(name, f"call {name}")
                heard.append(("tool", name))
            elif act == "ask":
                await session.ask(question(name))
                heard.append(("ask", name))
            elif act == "permit":
                await session.permit(name)
            else:
                await asyncio.sleep(0)
        return StopReason.END_TURN

    return play


def told(tree: Tree) -> list[tuple[str, str]]:
    """The main line's trajectory as an agent would tell it, texts of a kind joined."""
    leaf = tree.main_leaf
    assert leaf is not None
    found: list[tuple[str, str]] = []
    for item in trajectory(tree, leaf.id).items:
        if isinstance(item, TextItem):
            found.append((item.kind, item.text))
        elif isinstance(item, ToolItem):
            found.append(("tool", item.call.tool_call_id))
        elif isinstance(item, AskItem):
            found.append(("ask", str(item.question["question"])))
    return joined(found)


def joined(items: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    merged: list[tuple[str, str]] = []
    for kind, text in items:
        if merged and merged[-1][0] == kind and kind in ("message", "thought"):
            merged[-1] = (kind, merged[-1][1] + text)
        else:
            merged.append((kind, text))
    return merged


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(ACTS, max_size=6), min_size=1, max_size=3))
def test_the_tree_tells_exactly_what_the_agent_did_in_its_order(
    turns: list[list[tuple[str, str]]],
) -> None:
    async def live() -> None:
        heard: list[tuple[str, str]] = []
        plays = [playing(acts, heard, number) for number, acts in enumerate(turns)]
        nudges = [Nudge("Go on.", "simulated") for _ in turns[1:]]
        case = make_case(*plays, nudges=nudges)
        result = await case.run.run()
        assert result.outcome is Outcome.SCORED
        assert told(case.tree()) == joined(heard)
        assert case.left_behind() == []

    asyncio.run(live())


async def test_a_turn_that_the_session_gives_up_is_ended_in_the_log_and_scored() -> None:
    async def silent(session: FakeSession, prompt: str) -> StopReason:
        await session.say("Half a")
        raise AgentTimeout("the agent did nothing for 600 s")

    case = make_case(silent)
    result = await case.run.run()
    assert (result.outcome, result.error_category) == (Outcome.SCORED, "agent_timeout")
    (ended,) = case.bodies("turn_ended")
    assert isinstance(ended, ev.TurnEnded)
    assert ended.stop_reason == StopReason.TIMEOUT
    assert texts(case.tree()) == "Half a"
    assert case.left_behind() == []
