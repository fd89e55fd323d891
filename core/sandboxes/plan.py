"""From a specification to what each compartment sees: slots on the layer, and view plans.

Pure apart from looking at which system folders this host has.
"""

from __future__ import annotations

import functools
import os
import posixpath
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from core.contracts.errors import SandboxError
from core.contracts.sandbox import Compartment, Mount, SandboxSpec
from core.sandboxes.identity import UIDS, owner
from core.sandboxes.seeds import Seed

if TYPE_CHECKING:
    from core.sandboxes.views import ViewPlan

COMPARTMENTS: tuple[Compartment, ...] = get_args(Compartment)
_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_RESERVED = (*_SYSTEM, "dev", "proc", "sys", "etc")
_ETC_BINDS = (
    "alternatives",
    "ld.so.cache",
    "ssl/certs",
    "ssl/openssl.cnf",
    "localtime",
    "mime.types",
)
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a holder must know about one sandbox's files."""

    seeds: tuple[Seed, ...]
    views: dict[str, ViewPlan]


def slot(target: str) -> str:
    """The name of a writable path's folder on the layer."""
    return target.strip("/").replace("%", "%25").replace("/", "%2F")


def all_mounts(spec: SandboxSpec) -> tuple[Mount, ...]:
    """The declared mounts, checked, with workspace and home added where they are not declared."""
    mounts = [replace(item, target=_clean(item.target)) for item in spec.mounts]
    declared = {item.target for item in mounts}
    if len(declared) != len(mounts):
        twice = sorted(t for t in declared if sum(item.target == t for item in mounts) > 1)
        raise SandboxError(
            f"mounted twice: {', '.join(twice)}", where=spec.name, remedy="Give each path one mount"
        )
    workdir, home = _clean(spec.workdir), _clean(spec.home)
    if workdir not in declared:
        mounts.append(Mount(workdir))
    if home not in declared and home != workdir:
        mounts.append(Mount(home, seen_by=frozenset({"agent", "verifier"})))
    for item in mounts:
        for path in (item.source, item.seed):
            if path is not None and not path.exists():
                raise SandboxError(
                    f"nothing to mount on {item.target}",
                    where=str(path),
                    remedy="Check that the path exists on this machine",
                )
    return tuple(sorted(mounts, key=lambda item: item.target.count("/")))


def _clean(target: str) -> str:
    clean = posixpath.normpath(target)
    first = clean.strip("/").split("/")[0]
    if not target.startswith("/") or clean in ("/", "//") or ".." in target.split("/"):
        problem = "is not an absolute path below /"
    elif first in _RESERVED or clean == "/tmp":
        problem = "is a system folder of every sandbox"
    else:
        return clean
    raise SandboxError(
        f"mount target {target!r} {problem}",
        remedy="Choose a path such as /workspace, /srv/data or /opt/tool",
    )


def make(spec: SandboxSpec) -> Plan:
    """Lay the whole sandbox out. Raises SandboxError for a mount that cannot be."""
    mounts = all_mounts(spec)
    seeds = [
        Seed(slot(item.target), owner(item.owner), 0o755, item.seed)
        for item in mounts
        if item.source is None
    ]
    for user in COMPARTMENTS:
        seeds.append(Seed(f"tmp%2F{user}", owner(user), 0o1777, None))
    return Plan(tuple(seeds), {user: _view(user, spec, mounts) for user in COMPARTMENTS})


@functools.cache
def _prefix() -> str:
    """Where this interpreter's own files are, which every view has."""
    return os.path.realpath(sys.base_prefix)


@functools.cache
def _host() -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str, bool], ...]]:
    """Links and read-only binds of what every view has of this machine; looked up once."""
    links: list[tuple[str, str]] = [("var/tmp", "../tmp"), ("var/run", "../run")]
    binds: list[tuple[str, str, bool]] = []
    for name in _SYSTEM:
        path = Path("/", name)
        if path.is_symlink():
            links.append((name, os.readlink(path)))
        elif path.is_dir():
            binds.append((name, f"/{name}", False))
    for name in _ETC_BINDS:
        if Path("/etc", name).exists():
            binds.append((f"etc/{name}", os.path.realpath(f"/etc/{name}"), False))
    prefix = _prefix()
    if not prefix.startswith("/usr"):
        binds.append((prefix.strip("/"), prefix, False))
    return tuple(links), tuple(binds)


def _view(user: Compartment, spec: SandboxSpec, mounts: Sequence[Mount]) -> ViewPlan:
    links, system = _host()
    binds = [*system, ("tmp", f"merged/tmp%2F{user}", True)]
    for item in mounts:
        if user not in item.seen_by:
            continue
        if item.source is not None:
            binds.append((item.target.strip("/"), os.path.realpath(item.source), False))
        else:
            binds.append((item.target.strip("/"), f"merged/{slot(item.target)}", True))
    # Parents first: whatever lies on top of a path must be mounted after it.
    binds.sort(key=lambda bind: bind[0].count("/"))
    return {
        "files": _etc(spec),
        "links": list(links),
        "folders": [("run", 0o755), ("var", 0o755), ("etc", 0o755)],
        "binds": binds,
    }


def _etc(spec: SandboxSpec) -> list[tuple[str, bytes]]:
    users = [("root", 0, "/tmp"), ("agent", UIDS["agent"], spec.home)]
    users += [("service", UIDS["service"], "/tmp"), ("nobody", 65534, "/nonexistent")]
    passwd = "".join(f"{name}:x:{uid}:{uid}:{name}:{home}:/bin/sh\n" for name, uid, home in users)
    group = "".join(f"{name}:x:{uid}:\n" for name, uid, _ in users)
    return [
        ("etc/passwd", passwd.encode()),
        ("etc/group", group.encode()),
        ("etc/hosts", b"127.0.0.1 localhost\n"),
        ("etc/hostname", b"sandbox\n"),
        ("etc/resolv.conf", b""),
        ("etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files\n"),
    ]


def working_folder(spec: SandboxSpec, user: Compartment) -> str:
    """The workspace where the compartment sees it, else the root."""
    workdir = _clean(spec.workdir)
    hidden = any(
        _clean(item.target) == workdir and user not in item.seen_by for item in spec.mounts
    )
    return "/" if hidden else workdir


def environment(spec: SandboxSpec, user: Compartment) -> dict[str, str]:
    """What every program of a compartment starts with; nothing of the engine's own."""
    home = spec.home if user == "agent" else "/tmp"
    name = "root" if user == "verifier" else user
    prefix = _prefix()
    search = SEARCH_PATH if prefix.startswith("/usr") else f"{SEARCH_PATH}:{prefix}/bin"
    return {
        "PATH": search,
        "HOME": home,
        "USER": name,
        "LOGNAME": name,
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        **spec.env,
    }
