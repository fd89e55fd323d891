"""The front matter of ``task.md``, key by key.

Keys that this version reads but does not act on are declared too: a package
that is valid elsewhere is valid here, and a typing mistake is still a fault.
"""

from __future__ import annotations

import re
from typing import Final

from core.tasks.shapes import (
    Choice,
    Either,
    Flag,
    Free,
    FreeMap,
    ListOf,
    MapOf,
    Number,
    Table,
    Text,
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")

NAME = Text(
    "a name or org/name of letters, digits, '.', '_' and '-'", lambda t: bool(_NAME.fullmatch(t))
)
FILLED = Text("text that is not empty", lambda t: bool(t.strip()))
TEXTS = ListOf(Text())
PAIRS = MapOf(Text())
SECONDS = Number(above=0)
ACCOUNT = Either(((str, Text()), (int, Number(low=0, whole=True))))
NETWORK = Choice(("public", "no-network", "allowlist", "denylist"))

_ARTIFACT = Table(
    {"source": FILLED, "destination": Text(), "exclude": TEXTS, "service": Text()},
    required=("source",),
)
ARTIFACTS = ListOf(Either(((str, FILLED), (dict, _ARTIFACT))))

_HEALTHCHECK = Table(
    {
        "command": FILLED,
        "interval_sec": SECONDS,
        "timeout_sec": SECONDS,
        "start_period_sec": Number(low=0),
        "start_interval_sec": SECONDS,
        "retries": Number(low=0, whole=True),
    },
    required=("command",),
)
_MCP_SERVER = Table(
    {
        "name": FILLED,
        "transport": Choice(("stdio", "sse", "streamable-http")),
        "url": Text(),
        "command": Text(),
        "args": TEXTS,
        "cwd": Text(),
        "env": PAIRS,
        "headers": PAIRS,
        "tools": TEXTS,
        "include_tags": TEXTS,
        "exclude_tags": TEXTS,
    },
    required=("name",),
)
_SETUP_COMMAND = Table(
    {
        "command": FILLED,
        "timeout_sec": SECONDS,
        "cwd": Text(),
        "env": PAIRS,
        "user": ACCOUNT,
        "service": Text(),
        "host_lock": Text(),
        "capture_dir": Text(),
    },
    required=("command",),
)
SANDBOX = Table(
    {
        "docker_image": FILLED,
        "os": Choice(("linux", "windows")),
        "cpus": Number(above=0),
        "memory_mb": Number(low=16, whole=True),
        "storage_mb": Number(low=1, whole=True),
        "gpus": Number(low=0, whole=True),
        "gpu_types": TEXTS,
        "tpu": FreeMap(),
        "network_mode": NETWORK,
        "allowed_hosts": TEXTS,
        "blocked_hosts": TEXTS,
        "blocked_urls": TEXTS,
        "allow_internet": Flag(),
        "memory": Text("a size like 2G or 512M", lambda t: mebibytes(t) is not None),
        "storage": Text("a size like 10G", lambda t: mebibytes(t) is not None),
        "env": PAIRS,
        "workdir": Text("an absolute path without '..'", lambda t: is_absolute(t)),
        "mcp_servers": ListOf(_MCP_SERVER),
        "healthcheck": _HEALTHCHECK,
        "setup_commands": ListOf(Either(((str, FILLED), (dict, _SETUP_COMMAND)))),
        "skills_dir": Text(),
        "build_timeout_sec": SECONDS,
        "bugswarm_image_tag": Text(),
    },
    older={"image": "docker_image"},
)
AGENT = Table(
    {
        "timeout_sec": SECONDS,
        "user": ACCOUNT,
        "network_mode": NETWORK,
        "allowed_hosts": TEXTS,
        "prompt_prefix": Text(),
    }
)
_JUDGE = Table(
    {
        "model": Text(),
        "rubric_path": Text(),
        "input_dir": Text(),
        "input_type": Text(),
        "context": Text(),
    }
)
VERIFIER = Table(
    {
        "type": Choice(("test-script", "llm-judge")),
        "script": FILLED,
        "timeout_sec": SECONDS,
        "env": PAIRS,
        "user": ACCOUNT,
        "network_mode": NETWORK,
        "allowed_hosts": TEXTS,
        "service": Text(),
        "sandbox_mode": Choice(("fork", "separate", "shared")),
        "sandbox": SANDBOX,
        "reward_range": ListOf(Number()),
        "pytest_plugins": TEXTS,
        "judge": _JUDGE,
        "memory": Table({"expected_skills": TEXTS}),
        "hardening": Table({"cleanup_conftests": Flag()}),
    }
)
_STEP = Table(
    {
        "name": FILLED,
        "agent": AGENT,
        "verifier": VERIFIER,
        "min_reward": Either(((int, Number()), (float, Number()), (dict, MapOf(Number())))),
        "healthcheck": _HEALTHCHECK,
        "artifacts": ARTIFACTS,
    },
    required=("name",),
)
_ROLE = Table(
    {
        "agent": Text(),
        "model": Text(),
        "reasoning_effort": Text(),
        "env": PAIRS,
        "timeout_sec": SECONDS,
        "idle_timeout_sec": SECONDS,
        "skills_dir": Text(),
        "capabilities": TEXTS,
    }
)
_TURN = Either(((str, FILLED), (dict, Table({"role": FILLED, "prompt": Text()}))))
_SCENE = Table(
    {"name": FILLED, "roles": TEXTS, "turns": ListOf(_TURN), "skills_dir": Text()},
)
_IDENTITY = Table(
    {
        "name": NAME,
        "version": Text(),
        "description": Text(),
        "authors": ListOf(Table({"name": FILLED, "email": Text()}, required=("name",))),
        "keywords": TEXTS,
    }
)
USER = Table(
    {
        "model": FILLED,
        "stop_rule": Text(),
        "persona": Text(),
        "private_facts": PAIRS,
        "answers": ListOf(Table({"when": FILLED, "answer": FILLED}, required=("when", "answer"))),
        "nudges": ListOf(FILLED),
        "tools": TEXTS,
    }
)
_BENCHFLOW = Table(
    {
        "document_version": Text(),
        "asking": Table(
            {
                "expected": Choice(("required", "forbidden", "optional")),
                "weight": Number(low=0, high=1),
            }
        ),
        "environment": Table({"manifest": FILLED}),
        "prompt": FreeMap(),
        "nudges": FreeMap(),
        "teams": Free(),
        "agent_policy": FreeMap(),
        "runtime_policy": FreeMap(),
        "verifier": FreeMap(),
        "evidence": FreeMap(),
        "authoring": FreeMap(),
        "provenance": FreeMap(),
        "compatibility": FreeMap(),
        "compat": FreeMap(),
    }
)
FRONT_MATTER: Final = Table(
    {
        "schema_version": Text(),
        "name": NAME,
        "image": FILLED,
        "profile": Text(),
        "profiles": TEXTS,
        "task": _IDENTITY,
        "metadata": FreeMap(),
        "agent": AGENT,
        "verifier": Either(((str, FILLED), (dict, VERIFIER))),
        "sandbox": SANDBOX,
        "oracle": Either(
            (
                (str, FILLED),
                (dict, Table({"script": FILLED, "env": PAIRS, "timeout_sec": SECONDS})),
            )
        ),
        "source": Text(),
        "artifacts": ARTIFACTS,
        "steps": ListOf(_STEP),
        "multi_step_reward_strategy": Choice(("mean", "final")),
        "reward": FreeMap(),
        "agents": Table({"roles": MapOf(_ROLE)}),
        "scenes": ListOf(_SCENE),
        "user": USER,
        "benchflow": _BENCHFLOW,
    },
    older={"version": "schema_version", "solution": "oracle"},
    refused={
        "environment": "Rename it to 'sandbox'; the world is declared in environment.toml",
        "instruction": "Write the instruction below the front matter",
    },
)


def is_absolute(path: str) -> bool:
    """An absolute path that names one place: no ``..``, no empty part, not ``/`` itself."""
    parts = path.split("/")
    return path.startswith("/") and len(path) > 1 and not {"..", ".", ""} & set(parts[1:])


def mebibytes(size: str) -> int | None:
    """``2G`` or ``512M`` in MiB, None when it is no such size."""
    found = re.fullmatch(r"(\d{1,9})\s*([MG])i?B?", size.strip(), re.IGNORECASE)
    if not found:
        return None
    return int(found.group(1)) * (1024 if found.group(2).upper() == "G" else 1)
