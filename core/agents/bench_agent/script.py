"""A script for ``bench-agent``: TOML to checked steps. Pure, standard library only.

    [[turn]]                                 # the first prompt; the second prompt
    [[turn.step]]                            # plays the second turn, and so on; the
    think = "I should look first"            # last turn is played again after that
    [[turn.step]]
    say = "Looking at {prompt}"
    [[turn.step]]
    run = "ls -l"                            # shell command in the workdir
    save = "listing"                         # {listing.exit_code}, .stdout, .stderr
    [[turn.step]]
    call = { method = "GET", url = "http://localhost:8000/orders/7" }   # and json = {...}
    save = "order"                           # {order.status}, {order.body.total}
    [[turn.step]]
    ask = { question = "Refund it?", options = ["yes", "no"], free_text = "Something else" }
    save = "answer"                          # {answer.value}, {answer.action}
    [[turn.step]]
    when = "answer.value == 'yes' and order.status == 200"
    write = { path = "decision.txt", text = "refund {order.body.id}" }

An option is a string or ``{ value, label, description }``; ``ask`` takes a
``default``. Templates: ``{name}`` or ``{name.key.0}`` where the name is saved by
some step, or one of tag, seed, prompt, turn; all other braces stay as they are.
A string that is one template keeps the value's type. Invariant: a condition is
only ``a == b``, ``!=``, ``in``, ``not in``, joined by ``and``: nothing is evaluated.
"""

from __future__ import annotations

import json
import re

# ``typing`` and ``dataclasses`` would double the time this agent takes to start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BUILT_IN = ("tag", "seed", "prompt", "turn")
KINDS = ("say", "think", "run", "write", "call", "ask")
_EXTRA = {"save", "when", "timeout", "title"}
_SHAPES: dict[str, tuple[type, frozenset[str], frozenset[str]]] = {
    "say": (str, frozenset(), frozenset()),
    "think": (str, frozenset(), frozenset()),
    "run": (str, frozenset(), frozenset()),
    "write": (dict, frozenset({"path", "text"}), frozenset()),
    "call": (dict, frozenset({"method", "url"}), frozenset({"json", "headers"})),
    "ask": (dict, frozenset({"question"}), frozenset({"options", "free_text", "default"})),
}
"""Step kind to its value's type, the keys it needs, and those it may have."""

_TEMPLATE = r"(?<!\$)\{([A-Za-z_]\w*)((?:\.[\w-]+)*)\}"
_TOKEN = (
    r"\s*(?:(?P<string>'[^']*'|\"[^\"]*\")|(?P<number>-?\d+(?:\.\d+)?)"
    r"|(?P<mark>==|!=|\[|\]|,)|(?P<word>[A-Za-z_][\w.-]*))"
)


class ScriptError(Exception):
    """A script cannot be read, or a step of it cannot be played; says which and why."""


class Step:
    """One step. ``value`` is what stood behind its kind, not yet filled in."""

    def __init__(
        self, kind: str, value: Any, save: str, when: str, timeout: float, title: str
    ) -> None:
        self.kind = kind
        self.value = value
        self.save = save
        self.when = when
        self.timeout = timeout
        self.title = title


class Script:
    """Checked turns; ``names`` are those that a template may start with."""

    def __init__(self, turns: tuple[tuple[Step, ...], ...], names: frozenset[str]) -> None:
        self.turns = turns
        self.names = names

    def steps(self, turn: int) -> tuple[Step, ...]:
        """The steps of the ``turn``-th prompt, counted from 0."""
        return self.turns[min(turn, len(self.turns) - 1)]


def read_script(text: str) -> Script:
    """Parse and check a whole script. Raises ScriptError with every fault in it."""
    return check_script(parse_script(text))


def parse_script(text: str) -> dict[str, Any]:
    """What the TOML says, unchecked. Raises ScriptError where it is none."""
    import tomllib  # here, for a light start

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScriptError(f"not TOML: {error}") from error


def check_script(raw: dict[str, Any]) -> Script:
    """A parsed script as steps. Raises ScriptError with every fault in it."""
    faults = [f"unknown key {key!r}; allowed: turn" for key in raw if key != "turn"]
    turns = raw.get("turn")
    if not isinstance(turns, list) or not turns:
        raise ScriptError("; ".join([*faults, "no [[turn]]; add one with [[turn.step]] entries"]))
    read: list[tuple[Step, ...]] = []
    for number, turn in enumerate(turns, 1):
        entries = turn.get("step", []) if isinstance(turn, dict) else []
        steps = [_step(entry, f"turn {number} step {i}", faults) for i, entry in _counted(entries)]
        read.append(tuple(step for step in steps if step is not None))
    if faults:
        raise ScriptError("; ".join(faults))
    saved = {step.save for turn in read for step in turn if step.save}
    return Script(tuple(read), frozenset({*saved, *BUILT_IN}))


def _counted(entries: object) -> list[tuple[int, object]]:
    return list(enumerate(entries, 1)) if isinstance(entries, list) else [(1, entries)]


def _step(entry: object, where: str, faults: list[str]) -> Step | None:
    if not isinstance(entry, dict):
        faults.append(f"{where}: not a table")
        return None
    kinds = [kind for kind in KINDS if kind in entry]
    if len(kinds) != 1:
        faults.append(f"{where}: needs exactly one of {', '.join(KINDS)}")
        return None
    kind = kinds[0]
    before = len(faults)
    for key in entry.keys() - _EXTRA - {kind}:
        faults.append(f"{where}: unknown key {key!r}; allowed: {', '.join(sorted(_EXTRA))}")
    _check_value(kind, entry[kind], where, faults)
    for key in _EXTRA & entry.keys():
        wanted = (int, float) if key == "timeout" else str
        if not isinstance(entry[key], wanted):
            faults.append(f"{where}: {key} must be {'seconds' if key == 'timeout' else 'text'}")
    when = str(entry.get("when", ""))
    try:
        holds(when, {})
    except ScriptError as error:
        faults.append(f"{where}: {error}")
    if len(faults) > before:
        return None
    limit = float(entry.get("timeout", 60.0))
    return Step(kind, entry[kind], entry.get("save", ""), when, limit, entry.get("title", ""))


def _check_value(kind: str, value: object, where: str, faults: list[str]) -> None:
    shape, needed, optional = _SHAPES[kind]
    if not isinstance(value, shape):
        wanted = "text" if shape is str else f"a table with {', '.join(sorted(needed))}"
        faults.append(f"{where}: {kind} must be {wanted}")
        return
    if isinstance(value, dict):
        for key in sorted(needed - value.keys()):
            faults.append(f"{where}: {kind} lacks {key!r}")
        for key in sorted(value.keys() - needed - optional):
            faults.append(f"{where}: {kind} has an unknown key {key!r}")


def fill(value: Any, variables: dict[str, Any], names: frozenset[str]) -> Any:
    """The value with its templates replaced. Raises ScriptError for a path that is not there."""
    if isinstance(value, dict):
        return {key: fill(item, variables, names) for key, item in value.items()}
    if isinstance(value, list):
        return [fill(item, variables, names) for item in value]
    if not isinstance(value, str) or "{" not in value:
        return value
    whole = re.fullmatch(_TEMPLATE, value)
    if whole and whole[1] in names:
        return _look_up(whole[1] + whole[2], variables)
    return re.sub(_TEMPLATE, lambda match: _fill_one(match, variables, names), value)


def _fill_one(match: re.Match[str], variables: dict[str, Any], names: frozenset[str]) -> str:
    if match[1] not in names:
        return match[0]
    value = _look_up(match[1] + match[2], variables)
    return value if isinstance(value, str) else json.dumps(value)


def _look_up(path: str, variables: dict[str, Any]) -> Any:
    value: Any = variables
    for part in path.split("."):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise ScriptError(f"nothing is saved as {path!r}")
    return value


def holds(when: str, variables: dict[str, Any]) -> bool:
    """Whether a condition is true; an empty one is. A name not saved is null."""
    tokens = _tokens(when)
    if not tokens:
        return True
    result = True
    while True:
        left = _operand(tokens, variables)
        operator = tokens.pop(0) if tokens else ""
        if operator == "not" and tokens[:1] == ["in"]:
            operator = "not " + tokens.pop(0)
        result = _compare(left, operator, _operand(tokens, variables), when) and result
        if not tokens:
            return result
        if tokens.pop(0) != "and":
            raise ScriptError(f"cannot read the condition {when!r}: expected 'and'")


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = re.compile(_TOKEN).match(text, position)
        if match is None:
            raise ScriptError(f"cannot read the condition {text!r} from column {position + 1} on")
        tokens.append(match[match.lastgroup or 0])
        position = match.end()
    return tokens


def _operand(tokens: list[str], variables: dict[str, Any]) -> Any:
    token = tokens.pop(0) if tokens else ""
    if token == "[":
        items: list[Any] = []
        while tokens and tokens[0] != "]":
            items.append(_operand(tokens, variables))
            if tokens[:1] == [","]:
                tokens.pop(0)
        if not tokens:
            raise ScriptError("a list in a condition lacks its closing bracket")
        tokens.pop(0)
        return items
    if token[:1] in ("'", '"'):
        return token[1:-1]
    if token[:1].isdigit() or token[:1] == "-":
        return float(token) if "." in token else int(token)
    if token in ("true", "false"):
        return token == "true"
    if not token or not (token[0].isalpha() or token[0] == "_"):
        raise ScriptError(f"a condition lacks a value before {token or 'its end'!r}")
    try:
        return _look_up(token, variables)
    except ScriptError:
        return None


def _compare(left: Any, operator: str, right: Any, when: str) -> bool:
    if operator in ("==", "!="):
        return bool(left == right) is (operator == "==")
    if operator in ("in", "not in"):
        inside = isinstance(right, list | dict) and left in list(right)
        if isinstance(right, str):
            inside = isinstance(left, str) and left in right
        return inside is (operator == "in")
    raise ScriptError(f"cannot read the condition {when!r}: expected ==, !=, in or not in")
