"""From checked front matter and prompts to the parts of a Task. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from core.contracts.values import JsonObject, JsonValue
from core.tasks.body import Prompts
from core.tasks.models import (
    AgentNeeds,
    AskingSpec,
    SandboxNeeds,
    ScriptedAnswer,
    UserSpec,
    VerifierSpec,
)
from core.tasks.task_keys import mebibytes
from core.tasks.view import View

VERIFIER_SCRIPT = "verifier/test.sh"
ORACLE_SCRIPT = "oracle/solve.sh"

_ACTED_ON: Mapping[str, tuple[str, ...]] = {
    "agent": ("timeout_sec", "prompt_prefix"),
    "verifier": ("script", "timeout_sec", "env", "reward_range", "sandbox_mode", "type"),
    "sandbox": (
        "workdir", "cpus", "memory_mb", "memory", "storage_mb", "storage", "docker_image",
        "network_mode", "allow_internet", "env",
    ),
    "task": ("name", "version", "description", "keywords"),
    "user": ("model", "persona", "private_facts", "answers", "nudges"),
    "benchflow": ("asking", "environment"),
    "oracle": ("script", "env", "timeout_sec"),
}  # fmt: skip
_SHORTHANDS = ("name", "image")


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """The front matter with its shorthands written out."""

    data: Mapping[str, JsonValue]

    def table(self, name: str) -> View:
        return View(self.data).table(name)

    def text(self, name: str) -> str:
        return View(self.data).text(name)


def expand(read: JsonObject) -> FrontMatter:
    """``name``, ``image``, ``verifier: verifier/`` and ``oracle: oracle/`` written out."""
    data = dict(read)
    for name, default in (("verifier", VERIFIER_SCRIPT), ("oracle", ORACLE_SCRIPT)):
        value = data.get(name)
        if isinstance(value, str):
            data[name] = {"script": _script_in(value, default.rsplit("/", 1)[1])}
    view = View(data)
    if "name" in data:
        data["task"] = {"name": view.text("name"), **view.table("task").rest()}
    if "image" in data:
        data["sandbox"] = {"docker_image": view.text("image"), **view.table("sandbox").rest()}
    return FrontMatter(data)


def _script_in(value: str, script: str) -> str:
    """A folder stands for the usual script inside it."""
    bare = value.removeprefix("./")
    if bare.endswith("/") or "." not in bare.rsplit("/", 1)[-1]:
        return f"{bare.rstrip('/')}/{script}"
    return bare


def agent_needs(view: View) -> AgentNeeds:
    timeout = view.number("timeout_sec", 0.0)
    return AgentNeeds(timeout or None, view.text("prompt_prefix"))


def verifier_spec(view: View) -> VerifierSpec:
    usual = VerifierSpec()
    bounds = [float(item) for item in view.items("reward_range") if isinstance(item, int | float)]
    return VerifierSpec(
        script=view.text("script", usual.script).removeprefix("./"),
        timeout_sec=view.number("timeout_sec", usual.timeout_sec),
        env=view.pairs("env"),
        reward_range=(bounds[0], bounds[1]) if len(bounds) == 2 else usual.reward_range,
        sandbox_mode="shared" if view.text("sandbox_mode") == "shared" else "fork",
    )


def sandbox_needs(view: View) -> SandboxNeeds:
    usual = SandboxNeeds()
    network = "public" if view.flag("allow_internet", False) else usual.network_mode
    return SandboxNeeds(
        workdir=view.text("workdir", usual.workdir),
        cpus=view.number("cpus", usual.cpus),
        memory_mb=view.whole("memory_mb", mebibytes(view.text("memory")) or usual.memory_mb),
        storage_mb=view.whole("storage_mb", mebibytes(view.text("storage")) or usual.storage_mb),
        docker_image=view.text("docker_image") or None,
        network_mode=view.text("network_mode", network),
        env=view.pairs("env"),
        setup_commands=_commands(view),
    )


def _commands(view: View) -> tuple[str, ...]:
    found = (
        item
        if isinstance(item, str)
        else View(item if isinstance(item, dict) else {}).text("command")
        for item in view.items("setup_commands")
    )
    return tuple(command for command in found if command)


def user_spec(view: View, prompts: Prompts) -> UserSpec:
    """The persona of the body (or its side file) wins over the key."""
    spec = UserSpec(
        persona=view.text("persona"),
        private_facts=view.pairs("private_facts"),
        answers=tuple(
            ScriptedAnswer(item.text("when"), item.text("answer"))
            for item in view.tables("answers")
        ),
        nudges=view.texts("nudges"),
    )
    return replace(
        spec,
        model=view.text("model", spec.model),
        persona=spec.persona if prompts.persona is None else prompts.persona,
    )


def asking_spec(view: View) -> AskingSpec:
    expected = view.text("expected")
    weight = view.number("weight", 0.0)
    if expected == "required":
        return AskingSpec("required", weight)
    if expected == "forbidden":
        return AskingSpec("forbidden", weight)
    return AskingSpec("optional", weight)


def artifact_sources(view: View) -> tuple[str, ...]:
    found = (
        item
        if isinstance(item, str)
        else View(item if isinstance(item, dict) else {}).text("source")
        for item in view.items("artifacts")
    )
    return tuple(source for source in found if source)


def not_acted_on(front: FrontMatter, prompts: Prompts) -> JsonObject:
    """Every key that was read and is not used, nested as in the file."""
    extra: JsonObject = {}
    for name, value in front.data.items():
        if name in _SHORTHANDS:
            continue
        if name in _ACTED_ON:
            rest = front.table(name).rest(*_ACTED_ON[name])
            if name == "sandbox":
                rest = _plain_commands_left_out(rest)
            if rest:
                extra[name] = rest
        elif name != "artifacts" or any(isinstance(item, dict) for item in _items(value)):
            extra[name] = value
    named: JsonObject = {
        kind: dict(texts)
        for kind, texts in (("roles", prompts.roles), ("scenes", prompts.scenes))
        if texts
    }
    if named:
        extra["prompts"] = named
    return extra


def _items(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _plain_commands_left_out(rest: JsonObject) -> JsonObject:
    """Set-up commands given as plain text are acted on whole."""
    if all(isinstance(item, str) for item in _items(rest.get("setup_commands"))):
        return {key: value for key, value in rest.items() if key != "setup_commands"}
    return rest
