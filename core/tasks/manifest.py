"""``environment.toml`` to Manifest: shapes first, then what only holds between keys.

A manifest is built even from a faulty file as far as it goes, so that the
rules over both files still find their faults; nobody runs one that has any.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from core.contracts.errors import Fault
from core.tasks.located import Faults, Located, Unreadable
from core.tasks.manifest_keys import ENVIRONMENT, VERIFIER_HINTS, local_port
from core.tasks.models import (
    Manifest,
    ReadinessSpec,
    ServiceSpec,
    StateSpec,
    TaskSelectionSpec,
)
from core.tasks.text import decode_text
from core.tasks.toml_source import read_toml
from core.tasks.view import View
from core.tasks.yaml_source import read_yaml

SYSTEM_FOLDERS = (
    "/bin", "/boot", "/dev", "/environment", "/etc", "/lib", "/lib32", "/lib64", "/logs",
    "/oracle", "/proc", "/root", "/run", "/sbin", "/sys", "/tmp", "/usr", "/verifier",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ManifestReading:
    """``manifest`` is None when the file is not even a table."""

    manifest: Manifest | None
    faults: tuple[Fault, ...]


def parse_manifest(data: bytes, file: str, folder: Path) -> ManifestReading:
    """Read a manifest's bytes. ``file`` is its name for people, and says TOML or YAML."""
    faults = Faults(file)
    try:
        text = decode_text(data)
        root = read_yaml(text) if file.endswith((".yaml", ".yml")) else read_toml(text)
    except Unreadable as error:
        faults.add("", error.line, error.problem, error.remedy)
        return ManifestReading(None, tuple(faults.items))
    manifest = _read(root, folder, faults)
    return ManifestReading(manifest, tuple(faults.items))


def _read(root: Located, folder: Path, faults: Faults) -> Manifest | None:
    table = root.find("environment")
    if table is None:
        faults.add("environment", None, "is missing", "Begin with a table [environment]")
        return None
    read = ENVIRONMENT.table(table, "environment", faults)
    hints = root.find("verifier")
    hidden = VERIFIER_HINTS.table(hints, "verifier", faults) if hints is not None else None
    if read is None:
        return None
    manifest = _build(View(read), View(hidden or {}), folder)
    _check_services(table, faults)
    _check_lifecycle(manifest, table, faults)
    _check_readiness(manifest, table, faults)
    _check_state(table, faults)
    return manifest


def _build(env: View, hints: View, folder: Path) -> Manifest:
    services = tuple(_service(view) for view in env.tables("services"))
    image = env.text("image") or None
    # Upstream's default is "the image starts them"; it can only hold where an image is given.
    owns = env.flag("owns_lifecycle", image is not None and not services)
    return Manifest(
        name=env.text("name"),
        folder=folder,
        image=image,
        base_image=env.text("base_image") or None,
        owns_lifecycle=owns,
        isolation=_isolation(env.text("isolation")),
        keep_alive=env.flag("keep_alive", True),
        ports=tuple(port for port in env.items("ports") if isinstance(port, int)),
        services=services,
        setup=env.text("setup"),
        task_selection=_selection(env.table("task_selection")),
        readiness=_readiness(env.table("readiness")),
        state=_states(env),
        forward_env=env.table("forward_env").texts("keys"),
        hidden_from_agent=hints.texts("hidden_from_agent"),
    )


def _isolation(word: str) -> Literal["per_task", "persistent"]:
    return "persistent" if word == "persistent" else "per_task"


def _service(view: View) -> ServiceSpec:
    return ServiceSpec(
        name=view.text("name"),
        command=view.text("command"),
        port=view.whole("port", 0),
        health_path=view.text("health_path", "/health"),
        env=view.pairs("env"),
    )


def _selection(view: View) -> TaskSelectionSpec:
    return TaskSelectionSpec(
        mechanism="image" if view.text("mechanism") == "image" else "env_var",
        key=view.text("key", "BENCHFLOW_TASK_ID"),
        inject_into="exec" if view.text("inject_into") == "exec" else "entrypoint",
    )


def _readiness(view: View) -> ReadinessSpec:
    tcp = [f"localhost:{item}" if isinstance(item, int) else item for item in view.items("tcp")]
    return ReadinessSpec(
        http=view.texts("http"),
        tcp=tuple(_place(item) for item in tcp if isinstance(item, str)),
        exec=view.texts("exec"),
        timeout_sec=view.number("timeout_sec", 120.0),
    )


def _place(item: str) -> str:
    """One form for a TCP probe, ``localhost:PORT``."""
    port = local_port(item, scheme="tcp")
    return f"localhost:{port}" if port else item


def _states(env: View) -> tuple[StateSpec, ...]:
    tables = env.tables("state") or [env.table("state")]
    return tuple(
        StateSpec("files" if view.text("kind") == "files" else "sqlite", view.texts("paths"))
        for view in tables
        if view.texts("paths")
    )


def _entries(table: Located, *path: str) -> list[Located]:
    found = table.find(*path)
    return found.value if found is not None and isinstance(found.value, list) else []


def _check_services(table: Located, faults: Faults) -> None:
    names: set[str] = set()
    ports: dict[int, str] = {}
    for index, service in enumerate(_entries(table, "services")):
        key = f"environment.services[{index}]"
        name, port = service.find("name"), service.find("port")
        if name is not None and name.written in names:
            faults.add(
                f"{key}.name",
                name.line,
                f"names a second service {name.written!r}",
                "Give each service a name of its own",
            )
        if port is not None and isinstance(port.value, int):
            if port.value in ports:
                faults.add(
                    f"{key}.port",
                    port.line,
                    f"uses port {port.value}, which {ports[port.value]!r} already has",
                    "Give each service a port of its own",
                )
            ports.setdefault(port.value, name.written if name else f"services[{index}]")
        if name is not None:
            names.add(name.written)


def _check_lifecycle(manifest: Manifest, table: Located, faults: Faults) -> None:
    where = table.line_of("owns_lifecycle") or table.line
    if manifest.image and manifest.base_image:
        faults.add(
            "environment.base_image",
            table.line_of("base_image"),
            "is given beside 'image'",
            "Keep 'image' for a ready world, or 'base_image' for one that tasks build upon",
        )
    if manifest.owns_lifecycle and manifest.services:
        faults.add(
            "environment.owns_lifecycle",
            where,
            "says that the image starts the services, yet services are listed",
            "Set it to false, or remove the services",
        )
    if manifest.owns_lifecycle and not manifest.image:
        faults.add(
            "environment.owns_lifecycle",
            where,
            "says that the image starts the services, but no image is named",
            "Name the image, or list the services with owns_lifecycle = false",
        )
    if not (manifest.owns_lifecycle or manifest.services or manifest.state or manifest.setup):
        faults.add(
            "environment",
            table.line,
            "declares no world: no services, no state, no image that starts them",
            "Add [[environment.services]], or name an image with owns_lifecycle = true",
        )


def _check_readiness(manifest: Manifest, table: Located, faults: Faults) -> None:
    declared = {service.port for service in manifest.services} | set(manifest.ports)
    if manifest.owns_lifecycle and not declared:
        return  # only the image knows its ports
    known = ", ".join(str(port) for port in sorted(declared)) or "none"
    for kind in ("http", "tcp"):
        for index, probe in enumerate(_entries(table, "readiness", kind)):
            port = local_port(
                f"localhost:{probe.value}" if isinstance(probe.value, int) else probe.written,
                scheme=kind,
            )
            if port is not None and port not in declared:
                faults.add(
                    f"environment.readiness.{kind}[{index}]",
                    probe.line,
                    f"waits for port {port}, which nothing declares (declared: {known})",
                    "Use a service's port, or add it to environment.ports",
                )


def _check_state(table: Located, faults: Faults) -> None:
    state = table.find("state")
    if state is None:
        return
    several = isinstance(state.value, list)
    entries = state.value if isinstance(state.value, list) else [state]
    seen: set[str] = set()
    for index, entry in enumerate(entries):
        key = f"environment.state[{index}]" if several else "environment.state"
        paths = entry.find("paths")
        if paths is None or not isinstance(paths.value, list):
            continue
        if not paths.value:
            faults.add(f"{key}.paths", paths.line, "is empty", "Name the files that are the state")
        for number, item in enumerate(paths.value):
            if isinstance(item.value, str):
                problem = _state_problem(item.value, entry.find("kind"), seen)
                seen.add(item.value)
                if problem:
                    faults.add(f"{key}.paths[{number}]", item.line, *problem)


def _state_problem(path: str, kind: Located | None, seen: set[str]) -> tuple[str, str] | None:
    files = kind is not None and kind.value == "files"
    folder = path if files else path.rsplit("/", 1)[0]
    if path in seen:
        return f"names {path} twice", "Name each path once"
    if not path.startswith("/"):
        return None  # the shape said so already
    if not folder:
        return f"puts {path} into the root folder", "Give the state a folder, such as /data"
    if any(folder == top or folder.startswith(top + "/") for top in SYSTEM_FOLDERS):
        return f"puts {path} into a folder of the system", "Give the state a folder, such as /data"
    return None
