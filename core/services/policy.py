"""Automatic branching: ``--branch asks=all,depth=2,children=4,root=8,budget=20``. Pure.

``asks``     ``all``, or how many options to try at each question (its own line's answer counts)
``depth``    how many forks deep children may branch again (1)
``children`` at most this many lines from one point (8)
``root``     a group of that many lines that share everything before the agent
``budget``   at most this many lines in the whole rollout (64)
"""

from __future__ import annotations

from dataclasses import dataclass

from core.contracts.errors import UsageError

_KEYS = ("asks", "depth", "children", "root", "budget")


@dataclass(frozen=True, slots=True)
class BranchPolicy:
    """Where a rollout branches by itself. All zero: nowhere."""

    asks: int = 0
    """Options tried at each question; -1 means all of them."""
    depth: int = 1
    children: int = 8
    root: int = 0
    budget: int = 64

    @property
    def active(self) -> bool:
        return self.asks != 0 or self.root > 1


def parse_policy(text: str | None) -> BranchPolicy:
    """The policy that a person typed. Raises UsageError naming the key and what it takes."""
    if not text:
        return BranchPolicy()
    values: dict[str, int] = {}
    for part in text.split(","):
        key, mark, value = part.strip().partition("=")
        if key not in _KEYS or not mark:
            raise UsageError(
                f"{part.strip()!r} is no branching rule",
                where="--branch",
                remedy=f"Use key=value with {', '.join(_KEYS)}, joined by commas",
            )
        if key == "asks" and value == "all":
            values[key] = -1
            continue
        if not value.isdecimal() or (int(value) == 0 and key != "root"):
            raise UsageError(
                f"{key} is {value!r}",
                where="--branch",
                remedy=f"Give {key} a whole number above 0"
                + (" or `all`" if key == "asks" else ""),
            )
        values[key] = int(value)
    return BranchPolicy(**values)


def wanted_at_ask(policy: BranchPolicy, options: int, *, depth: int, lines: int) -> int:
    """How many children to start at a question with that many options other than
    the one its own line took. ``lines`` is how many the rollout has already."""
    if policy.asks == 0 or depth >= policy.depth:
        return 0
    wanted = options if policy.asks < 0 else min(options, policy.asks - 1)
    return max(0, min(wanted, policy.children, policy.budget - lines))


def wanted_at_root(policy: BranchPolicy, *, lines: int) -> int:
    """How many lines to start beside the main one."""
    return max(0, min(policy.root - 1, policy.budget - lines))
