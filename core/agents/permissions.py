"""The policy for security requests: auto, ask, deny.

Invariant: a permission never reaches the user model as a question, and
``auto`` never picks a refusal while something can be allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from core.contracts.agent import Option, PermissionAsked, PermissionDecision

PermissionPolicy: TypeAlias = Literal["auto", "ask", "deny"]

_ORDER: dict[str, tuple[str, ...]] = {
    "auto": ("allow_once", "allow_always"),
    "deny": ("reject_once", "reject_always"),
}


def decide(policy: PermissionPolicy, asked: PermissionAsked) -> PermissionDecision | None:
    """What the policy says, or None where a person has to decide.

    ``auto`` allows this once before it allows for ever; where nothing allows,
    it takes the first option that is no refusal, else cancels. ``deny`` refuses
    once before for ever, else cancels.
    """
    if policy == "ask":
        return None
    chosen = _first(asked.options, _ORDER[policy])
    if chosen is None and policy == "auto":
        chosen = next((item for item in asked.options if not _refuses(item)), None)
    return PermissionDecision(chosen.value if chosen else None, policy=policy, actor="policy")


def _first(options: Sequence[Option], kinds: Sequence[str]) -> Option | None:
    for kind in kinds:
        for option in options:
            if option.kind == kind:
                return option
    return None


def _refuses(option: Option) -> bool:
    return option.kind.startswith("reject")
