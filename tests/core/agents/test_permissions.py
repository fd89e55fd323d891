from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.agents.permissions import PermissionPolicy, decide
from core.contracts.agent import Option, PermissionAsked

KINDS = ("allow_once", "allow_always", "reject_once", "reject_always", "", "vendor")


def asked(*kinds: str) -> PermissionAsked:
    return PermissionAsked("Run it?", tuple(Option(kind, kind, kind=kind) for kind in kinds), None)


@pytest.mark.parametrize(
    ("policy", "kinds", "chosen"),
    [
        ("auto", ("reject_once", "allow_always", "allow_once"), "allow_once"),
        ("auto", ("reject_once", "allow_always"), "allow_always"),
        ("auto", ("reject_once", "vendor"), "vendor"),
        ("auto", ("reject_once", "reject_always"), None),
        ("auto", (), None),
        ("deny", ("allow_once", "reject_always", "reject_once"), "reject_once"),
        ("deny", ("allow_once", "reject_always"), "reject_always"),
        ("deny", ("allow_once",), None),
    ],
)
def test_the_policy_picks_by_kind_not_by_position(
    policy: PermissionPolicy, kinds: tuple[str, ...], chosen: str | None
) -> None:
    decision = decide(policy, asked(*kinds))
    assert decision is not None
    assert (decision.option, decision.policy) == (chosen, policy)


def test_ask_leaves_it_to_a_person() -> None:
    assert decide("ask", asked("allow_once")) is None


@given(st.lists(st.sampled_from(KINDS), max_size=6))
def test_auto_never_refuses_and_deny_never_allows(kinds: list[str]) -> None:
    allowed, denied = decide("auto", asked(*kinds)), decide("deny", asked(*kinds))
    assert allowed is not None
    assert denied is not None
    assert allowed.option is None or not allowed.option.startswith("reject")
    assert denied.option is None or denied.option.startswith("reject")
