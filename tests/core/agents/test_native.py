"""A session goes on in another process, as it was at the turn's end, or is refused."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.agents.acp.native import LOAD, RESUME, Kept, Settings, ways
from core.agents.acp.turn import Deadlines
from core.contracts.agent import PermissionAsked, PermissionDecision, Role, SessionSnapshot
from core.contracts.errors import AgentTimeout, CheckpointError
from core.contracts.values import Fidelity, JsonObject, JsonValue
from tests.core.agents.helpers import Asked, WireLog
from tests.core.agents.home_sessions import Talk, box, home_agent
from tests.fakes.host_sandbox import HostSandbox, group_lives


async def captured(sandbox: HostSandbox, *switches: str, turns: tuple[str, ...]) -> SessionSnapshot:
    """What the end of these turns gives; the session is over afterwards."""
    talk = Talk(await home_agent(*switches).connect(sandbox, Role()))
    for text in turns:
        await talk.tell(text)
    snapshot = await talk.session.snapshot()
    await talk.close()
    return snapshot


@pytest.mark.parametrize("way", ["resume", "load"])
async def test_another_process_knows_what_the_first_was_told(tmp_path: Path, way: str) -> None:
    sandbox = box(tmp_path)
    snapshot = await captured(sandbox, way, turns=("one", "two"))
    assert (snapshot.fidelity, snapshot.pending_ask, snapshot.steps) == (
        Fidelity.NATIVE,
        False,
        2,
    )
    talk = Talk(await home_agent(way).restore(sandbox, Role(seed=5, line=3), snapshot))
    assert talk.session.id == snapshot.state["session"]
    facts = await talk.tell("three")
    await talk.close()
    assert facts["history"] == ["one", "two", "three"]
    assert (facts["seed"], facts["line"]) == ("5", "3")


@pytest.mark.parametrize(
    ("switches", "method", "count"),
    [
        (("resume",), RESUME, 0),
        (("load",), LOAD, 8),
        (("load", "replay-late"), LOAD, 8),
        (("resume", "resume-replays"), RESUME, 8),
        (("resume", "load"), RESUME, 0),
    ],
)
async def test_what_is_replayed_is_counted_and_never_reported(
    tmp_path: Path, switches: tuple[str, ...], method: str, count: int
) -> None:
    sandbox = box(tmp_path)
    snapshot = await captured(sandbox, *switches, turns=("one", "two"))
    patient = Deadlines(silence=0.5)
    agent = home_agent(*switches, deadlines=patient)
    talk = Talk(await agent.restore(sandbox, Role(), snapshot))
    await talk.tell("three")
    await talk.close()
    assert talk.restored == [{"method": method, "replayed_updates": count}]
    assert not [item for item in talk.updates if "replayed " in str(item)]
    assert len(talk.texts) == 1


async def test_a_call_that_is_promised_but_not_there_gives_way_to_the_other(
    tmp_path: Path,
) -> None:
    sandbox = box(tmp_path)
    snapshot = await captured(sandbox, "refuse-resume", "load", turns=("one",))
    talk = Talk(await home_agent("refuse-resume", "load").restore(sandbox, Role(), snapshot))
    assert (await talk.tell("two"))["history"] == ["one", "two"]
    await talk.close()
    assert talk.restored == [{"method": LOAD, "replayed_updates": 4}]


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        (("refuse-resume",), r"session/resume: Method not found: session/resume \(-32601\)"),
        (("refuse-resume", "refuse-load"), r"session/resume.*; session/load.*\(-32601\)"),
        (("resume", "deny-resume", "load"), r"session/resume: no session home-\w+ \(-32002\)\)"),
        (("resume", "stubborn"), r"would not set the mode to 'bold' again .*no mode bold"),
        (("resume", "lying"), r"would not set effort to 'high' again .*another is in force"),
    ],
)
async def test_a_refused_session_is_named_and_leaves_no_process(
    tmp_path: Path, switches: tuple[str, ...], words: str
) -> None:
    sandbox = box(tmp_path)
    snapshot = await captured(sandbox, *switches, turns=("mode bold", "effort high"))
    with pytest.raises(CheckpointError, match=words):
        await home_agent(*switches).restore(sandbox, Role(), snapshot)
    assert not group_lives(sandbox.processes[-1].pid)


async def test_mode_and_options_are_put_back_where_the_agent_forgot_them(tmp_path: Path) -> None:
    sandbox, wire = box(tmp_path), WireLog()
    snapshot = await captured(sandbox, "resume", turns=("mode bold", "effort high"))
    talk = Talk(await home_agent("resume", wire=wire).restore(sandbox, Role(), snapshot))
    facts = await talk.tell("go")
    again = await talk.session.snapshot()
    await talk.close()
    assert (facts["mode"], facts["effort"]) == ("bold", "high")
    assert methods(wire) == [
        "initialize",
        "session/resume",
        "session/set_mode",
        "session/set_config_option",
        "session/prompt",
    ]
    assert again.state == snapshot.state


async def test_settings_that_came_back_by_themselves_are_not_set_again(tmp_path: Path) -> None:
    sandbox, wire = box(tmp_path), WireLog()
    switches = ("load", "keep-settings")
    snapshot = await captured(sandbox, *switches, turns=("mode bold", "effort high"))
    talk = Talk(await home_agent(*switches, wire=wire).restore(sandbox, Role(), snapshot))
    facts = await talk.tell("go")
    await talk.close()
    assert (facts["mode"], facts["effort"]) == ("bold", "high")
    assert methods(wire) == ["initialize", "session/load", "session/prompt"]


async def test_a_first_prompt_that_nothing_follows_is_no_result_of_the_agent(
    tmp_path: Path,
) -> None:
    sandbox = box(tmp_path)
    snapshot = await captured(sandbox, "resume", turns=("one",))
    hurry = Deadlines(restored_update=0.3)
    session = await home_agent("resume", "hang", deadlines=hurry).restore(sandbox, Role(), snapshot)
    with pytest.raises(CheckpointError, match=r"did nothing for 0\.3 s after the first prompt"):
        await session.prompt("two")
    await session.close()


async def test_a_second_prompt_in_a_fork_has_the_usual_deadlines(tmp_path: Path) -> None:
    sandbox = box(tmp_path)
    snapshot = await captured(sandbox, "resume", turns=("one",))
    limits = Deadlines(restored_update=30.0, first_update=0.3)
    talk = Talk(await home_agent("resume", deadlines=limits).restore(sandbox, Role(), snapshot))
    await talk.tell("two")
    with pytest.raises(AgentTimeout, match=r"no sign of life for 0\.3 s after a prompt"):
        await talk.session.prompt("hush")
    await talk.close()


async def test_nothing_is_permitted_before_the_first_prompt(tmp_path: Path) -> None:
    async def allow(asked: PermissionAsked) -> PermissionDecision:
        return PermissionDecision(asked.options[0].value, policy="test")

    sandbox = box(tmp_path)
    switches = ("resume", "asks-first")
    snapshot = await captured(sandbox, *switches, turns=("one",))
    session = await home_agent(*switches).restore(sandbox, Role(), snapshot)
    session.on_permission(allow)
    talk = Talk(session)
    assert (await talk.tell("two"))["history"] == ["one", "permission cancelled", "two"]
    await talk.close()


async def test_a_session_is_captured_at_rest_only(tmp_path: Path) -> None:
    talk = Talk(await home_agent("resume").connect(box(tmp_path), Role()))
    asked = Asked()
    talk.session.on_ask_user(asked.on_ask)
    turn = asyncio.create_task(talk.session.prompt("ask Why?"))
    await asked.questions.get()
    with pytest.raises(CheckpointError, match="in the middle of a turn"):
        await talk.session.snapshot()
    await talk.session.cancel()
    await turn
    await talk.close()
    with pytest.raises(CheckpointError, match="has ended"):
        await talk.session.snapshot()


async def test_an_agent_that_keeps_nothing_says_so(tmp_path: Path) -> None:
    talk = Talk(await home_agent().connect(box(tmp_path), Role()))
    await talk.tell("one")
    with pytest.raises(CheckpointError, match="can neither resume nor load a session"):
        await talk.session.snapshot()
    await talk.close()


async def test_only_its_own_sessions_are_taken_up(tmp_path: Path) -> None:
    sandbox = box(tmp_path)
    snapshot = await captured(sandbox, "resume", turns=("one",))
    for other in (
        dataclasses.replace(snapshot, agent="other"),
        dataclasses.replace(snapshot, fidelity=Fidelity.EXACT),
    ):
        with pytest.raises(CheckpointError, match="cannot take up a session of"):
            await home_agent("resume").restore(sandbox, Role(), other)
    broken = dataclasses.replace(snapshot, state={"session": "x", "cwd": "/"})
    with pytest.raises(CheckpointError, match="names no session id, folder or way"):
        await home_agent("resume").restore(sandbox, Role(), broken)
    assert len(sandbox.processes) == 1


async def test_a_cancelled_restore_leaves_no_process(tmp_path: Path) -> None:
    sandbox = box(tmp_path)
    snapshot = await captured(sandbox, "load", "replay-late", turns=("one",))
    patient = Deadlines(silence=1000.0, replay=1000.0)
    agent = home_agent("load", "replay-late", deadlines=patient)
    restoring = asyncio.create_task(agent.restore(sandbox, Role(), snapshot))
    async with asyncio.timeout(20):
        while len(sandbox.processes) < 2:  # noqa: ASYNC110 - a process has no start event
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)
    assert not restoring.done()
    restoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await restoring
    assert not group_lives(sandbox.processes[1].pid)


def methods(wire: WireLog) -> list[str]:
    """What was sent to the agent, in order."""
    return [json.loads(line)["method"] for way, line in wire.lines if way == "out"]


# -- settings, without any process --------------------------------------------------

NAMES = st.sampled_from(["mode", "model", "effort", "web"])
SETTINGS = st.builds(
    Settings,
    st.sampled_from(["", "careful", "bold"]),
    st.dictionaries(NAMES, st.sampled_from(["low", "high", True, False])),
)


@given(SETTINGS, SETTINGS)
def test_an_agent_that_obeys_ends_up_with_the_captured_settings(
    now: Settings, wanted: Settings
) -> None:
    for call in now.calls(wanted, "s"):
        now.done(call, {})
    assert not now.calls(wanted, "s")
    assert now.options | wanted.options == now.options
    assert now.mode == (wanted.mode or now.mode)


@given(SETTINGS, st.lists(st.sampled_from([RESUME, LOAD]), min_size=1, unique=True))
def test_what_is_kept_of_a_session_survives_the_log(settings: Settings, how: list[str]) -> None:
    kept = Kept("s1", "/workspace", tuple(how), settings)
    state: JsonObject = json.loads(json.dumps(kept.to_json()))
    assert Kept.from_json(state) == kept


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({}, ()),
        ({"loadSession": True}, (LOAD,)),
        ({"loadSession": "yes"}, ()),
        ({"sessionCapabilities": {"resume": {}}}, (RESUME,)),
        ({"sessionCapabilities": {"resume": None}}, ()),
        ({"sessionCapabilities": {"resume": {}}, "loadSession": True}, (RESUME, LOAD)),
        ({"sessionCapabilities": {"fork": {}}}, ()),
    ],
)
def test_resume_is_preferred_and_fork_is_not_used(
    capabilities: JsonObject, expected: tuple[str, ...]
) -> None:
    assert ways(capabilities) == expected


def test_an_unrelated_update_changes_no_setting() -> None:
    settings = Settings("bold", {"effort": "high"})
    unrelated: list[JsonValue] = [
        {"sessionUpdate": "plan", "currentModeId": "x"},
        {"configOptions": [{"id": "effort", "currentValue": "low"}]},
        {"sessionUpdate": "config_option_update", "configOptions": [{"id": 1}, "x"]},
        {"sessionUpdate": "current_mode_update", "currentModeId": None},
        None,
        7,
    ]
    for raw in unrelated:
        settings.read_update(raw)
    assert settings == Settings("bold", {"effort": "high"})
