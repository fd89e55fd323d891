"""RolloutConfig: Han's C. One frozen value that a run, its record and its repeat share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, TypeAlias, cast

from core.contracts.errors import UsageError
from core.contracts.values import JsonObject, JsonValue
from core.services.policy import BranchPolicy, parse_policy

UserKind: TypeAlias = Literal["scripted", "auto", "human"]
PermissionKind: TypeAlias = Literal["auto", "ask", "deny"]

USERS: tuple[UserKind, ...] = ("scripted", "auto", "human")
PERMISSIONS: tuple[PermissionKind, ...] = ("auto", "ask", "deny")


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """How to run one task, or every task of a folder. Saved inside each result.

    Raises UsageError when a value cannot be used; the message names the field.
    """

    path: str
    """A task package, or a folder of them."""
    agent: str = "oracle"
    """A name from the registry, or any ACP command line."""
    agent_script: str | None = None
    """What `bench-agent` plays; default: the task's `agents/default.toml`."""
    model: str | None = None
    sandbox: str = "local"
    user: UserKind = "scripted"
    answers: tuple[str, ...] = ()
    """The scripted user's answers, in order of the questions, instead of the task's."""
    auto_policy: str = "first"
    permissions: PermissionKind = "auto"
    jobs_dir: str = "jobs"
    job: str | None = None
    repeats: int = 1
    concurrency: int = 1
    timeout: float | None = None
    """The agent's seconds; None means the task's own limit."""
    ask_timeout: float | None = None
    """Seconds a person has for an answer before its default is taken; None: no deadline."""
    turn_end_timeout: float | None = 30.0
    """Seconds a person has for a nudge after a turn before it is accepted; 0: none."""
    seed: int = 0
    branch: str | None = None
    """Where the rollout branches by itself: ``asks=all,depth=2,children=4,root=8,budget=20``."""

    def __post_init__(self) -> None:
        _one_of("user", self.user, USERS)
        _one_of("permissions", self.permissions, PERMISSIONS)
        _at_least("repeats", self.repeats, 1)
        _at_least("concurrency", self.concurrency, 1)
        parse_policy(self.branch)
        for name in ("timeout", "ask_timeout"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(
                    f"{name} is {value:g}", remedy="Give a number of seconds above 0, or leave it"
                )

    def to_json(self) -> JsonObject:
        values: JsonObject = {}
        for item in fields(self):
            value = getattr(self, item.name)
            values[item.name] = list(value) if isinstance(value, tuple) else value
        return values

    @classmethod
    def from_json(cls, data: JsonObject) -> RolloutConfig:
        """The config that a record saved; keys of other versions are ignored."""
        known = {item.name for item in fields(cls)}
        values: dict[str, JsonValue] = {key: data[key] for key in data if key in known}
        answers = values.pop("answers", None)
        config = cls(**values)  # type: ignore[arg-type]
        if isinstance(answers, list):
            return replace_answers(config, tuple(cast("list[str]", answers)))
        return config

    @property
    def policy(self) -> BranchPolicy:
        return parse_policy(self.branch)

    @property
    def folder(self) -> Path:
        return Path(self.path)


def replace_answers(config: RolloutConfig, answers: tuple[str, ...]) -> RolloutConfig:
    """The same config with other scripted answers."""
    values = {item.name: getattr(config, item.name) for item in fields(config)}
    values["answers"] = answers
    return RolloutConfig(**values)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{name} is {value!r}", remedy=f"Use one of {', '.join(allowed)}")


def _at_least(name: str, value: int, low: int) -> None:
    if value < low:
        raise UsageError(f"{name} is {value}", remedy=f"Use {low} or more")
