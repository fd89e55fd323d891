"""Numbers and lists on the pages are those of the program."""

from __future__ import annotations

import re
from dataclasses import fields

import benchflow_workbench as bf
from core.agents.acp.turn import Deadlines as AgentDeadlines
from core.contracts.values import Outcome, Phase
from core.kernel.checkpoint import DRAIN_SECONDS
from core.kernel.steps import TEXT_LIMIT
from core.kernel.world import Deadlines
from core.services.config import RolloutConfig
from core.services.engine import BEAT_SECONDS, LINES_AT_ONCE
from core.store.engines import LEASE_SECONDS
from core.store.payload import LIMIT
from core.users.auto import POLICIES
from tests.architecture.pages import every_command
from tests.architecture.repository import ROOT


def page(name: str) -> str:
    return " ".join((ROOT / "docs" / name).read_text("utf-8").split())


def rows(name: str) -> dict[str, list[str]]:
    """The cells of every table row of a page that begins with a word in code."""
    text = (ROOT / "docs" / name).read_text("utf-8")
    found = re.findall(r"^\| `([^`]+)` \|(.*)\|$", text, re.MULTILINE)
    return {first: [cell.strip() for cell in rest.split("|")] for first, rest in found}


def test_phases_and_their_limits_are_on_the_page_of_the_rollout() -> None:
    told = rows("rollout.md")
    limits = Deadlines()
    bounded = {item.name for item in fields(Deadlines)} & {phase.value for phase in Phase}
    assert len(bounded) > 5
    assert {phase.value for phase in Phase} - set(told) == {Phase.SETUP.value}
    wrong = [name for name in bounded if f"{getattr(limits, name):g} s" not in told[name][-1]]
    assert wrong == []


def test_every_outcome_of_a_rollout_is_on_its_page() -> None:
    assert {item.value for item in Outcome} - {Outcome.OK.value} <= set(rows("rollout.md"))


def test_an_agents_deadlines_are_on_its_page() -> None:
    limits, text = AgentDeadlines(), page("agent-session.md")
    assert f"{limits.first_update:g} s to the first one of a turn, {limits.idle:g} s" in text
    assert f"{limits.silence * 1000:g} ms without a late update" in text
    assert f"at the latest after {limits.late:g} s" in text


def test_the_stores_numbers_are_on_its_page() -> None:
    text = page("store.md")
    assert f"says every {BEAT_SECONDS:g} s that it lives" in text
    assert f"its lease of {LEASE_SECONDS:g} s ran out" in text
    assert f"payloads above {LIMIT // 1024} KB" in text


def test_numbers_of_limits_and_decisions_are_the_programs() -> None:
    assert f"up to {LINES_AT_ONCE} run at once" in page("limits.md")
    assert f"at {TEXT_LIMIT:,} characters" in page("decisions.md")
    assert f"after {DRAIN_SECONDS:g} s without a drain" in page("relay.md")


def test_defaults_of_a_run_are_on_the_page_of_the_command_line() -> None:
    told = rows("cli.md")
    defaults = {item.name: item.default for item in fields(RolloutConfig)}
    wrong = []
    for option in every_command()["run"].params:
        default = defaults.get(str(option.name))
        if isinstance(default, int | float | str):
            text = default if isinstance(default, str) else f"{default:g}"
            if told[option.opts[0]][0].strip("`") != text:
                wrong.append(f"{option.opts[0]} is {text}")
    assert wrong == []
    assert told["--agent"]


def test_names_on_the_python_page_are_public() -> None:
    names = set(re.findall(r"\bbf\.(\w+)", (ROOT / "docs/python.md").read_text("utf-8")))
    assert names - set(bf.__all__) - {"__all__"} == set()
    assert len(names) > 5
    assert all(f"`{word}`" in page("python.md") for word in POLICIES)
