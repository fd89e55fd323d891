"""The tables of ``environment.toml``, key by key.

Upstream's ``[environment]`` table in full, and ours beside it: a service's
``env``, ``setup``, ``readiness.exec``, several state tables, and
``[verifier] hidden_from_agent``. Other top-level tables belong to others.
"""

from __future__ import annotations

import re
from typing import Final

from core.tasks.shapes import Choice, Either, Flag, ListOf, Number, Table, Text
from core.tasks.task_keys import FILLED, PAIRS, SECONDS, TEXTS, is_absolute

_SERVICE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

PORT = Number(low=1, high=65535, whole=True)
VARIABLE = Text("the name of a variable", lambda t: bool(_VARIABLE.fullmatch(t)))
LOCAL_URL = Text(
    "a URL like http://localhost:PORT/path", lambda t: local_port(t, scheme="http") is not None
)
LOCAL_PORT = Text("a port, or localhost:PORT", lambda t: local_port(t, scheme="tcp") is not None)

_STATE = Table(
    {
        "kind": Choice(("sqlite", "files")),
        "paths": ListOf(Text("an absolute path without '..'", is_absolute)),
    },
    required=("paths",),
)
_SERVICE = Table(
    {
        "name": Text(
            "a name of letters, digits, '.', '_' and '-'",
            lambda t: bool(_SERVICE_NAME.fullmatch(t)),
        ),
        "command": FILLED,
        "port": PORT,
        "health_path": Text("a path that begins with '/'", lambda t: t.startswith("/")),
        "env": PAIRS,
    },
    required=("name", "command", "port"),
)
ENVIRONMENT: Final = Table(
    {
        "name": FILLED,
        "image": FILLED,
        "base_image": FILLED,
        "owns_lifecycle": Flag(),
        "isolation": Choice(("per_task", "persistent")),
        "keep_alive": Flag(),
        "ports": ListOf(PORT),
        "services": ListOf(_SERVICE),
        "setup": Text(),
        "task_selection": Table(
            {
                "mechanism": Choice(("env_var", "image")),
                "key": VARIABLE,
                "inject_into": Choice(("entrypoint", "exec")),
            }
        ),
        "readiness": Table(
            {
                "http": ListOf(LOCAL_URL),
                "tcp": ListOf(Either(((int, PORT), (str, LOCAL_PORT)))),
                "exec": ListOf(FILLED),
                "timeout_sec": SECONDS,
            }
        ),
        "forward_env": Table({"keys": ListOf(VARIABLE)}),
        "state": Either(((dict, _STATE), (list, ListOf(_STATE)))),
    },
    required=("name",),
)
VERIFIER_HINTS: Final = Table({"hidden_from_agent": TEXTS, "kind": Text()})


def local_port(place: str, *, scheme: str) -> int | None:
    """The port of ``http://localhost:PORT/...`` or ``localhost:PORT``; None if it is neither."""
    prefix = r"http://" if scheme == "http" else r"(?:tcp://)?"
    tail = r"(?:[/?#]\S*)?" if scheme == "http" else ""
    found = re.fullmatch(rf"{prefix}(?:localhost|127\.0\.0\.1):(\d{{1,5}}){tail}", place)
    if not found:
        return None
    port = int(found.group(1))
    return port if 1 <= port <= 65535 else None
