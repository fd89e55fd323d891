"""A folder as state, handled where it lives: a script run beside the services.

Runs by file path in the service compartment with nothing but the standard
library, so it imports none of our modules. Regular files and folders are the
state; links and special files are counted and left out, and an archive entry
that is anything else is refused.

    python3 files_inside.py VERB JSON

prints one line of JSON. ``export`` prints that line and then a tar stream;
``stage`` reads one from stdin. Exit code 3 means ``{"error": ...}``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

CHUNK = 1 << 20
INCOMING = ".benchflow-incoming"


class StateFault(Exception):
    """Told to the caller as one sentence."""


def walk(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Everything below ``root`` by relative path, in one order, never through a link."""
    pending = [""]
    while pending:
        here = pending.pop()
        with os.scandir(root / here) as entries:
            found = sorted(entries, key=lambda entry: entry.name, reverse=True)
        for entry in reversed(found):
            if not here and entry.name == INCOMING:
                continue
            yield f"{here}{entry.name}", entry.stat(follow_symlinks=False)
        pending += [
            f"{here}{entry.name}/" for entry in found if entry.is_dir(follow_symlinks=False)
        ]


def file_digest(path: Path) -> str:
    with path.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def listed(path: Path) -> dict[str, Any]:
    """The folder's files with their hashes, and one hash over names, modes and content."""
    if path.exists() and not path.is_dir():
        raise StateFault(f"{path} is a file; state of kind files is a folder")
    files: list[dict[str, Any]] = []
    skipped = 0
    whole = hashlib.sha256()
    for name, info in sorted(walk(path)) if path.is_dir() else ():
        if stat.S_ISREG(info.st_mode):
            content = file_digest(path / name)
            files.append({"path": name, "size": info.st_size, "digest": content})
            mode = "x" if info.st_mode & stat.S_IXUSR else "f"
            whole.update(f"{mode}\0{name}\0{content}\n".encode("utf-8", "surrogateescape"))
        elif stat.S_ISDIR(info.st_mode):
            whole.update(f"d\0{name}\n".encode("utf-8", "surrogateescape"))
        else:
            skipped += 1
    return {
        "path": str(path),
        "present": path.is_dir(),
        "digest": whole.hexdigest(),
        "skipped": skipped,
        "files": files,
    }


def verb_digest(args: dict[str, Any]) -> dict[str, Any]:
    states = [listed(Path(path)) for path in args["paths"]]
    for state in states:
        del state["files"]
    return {"states": states}


def verb_query(args: dict[str, Any]) -> dict[str, Any]:
    """Files of every folder, at most ``rows`` each; the digest covers all of them."""
    states = [listed(Path(path)) for path in args["paths"]]
    for state in states:
        state["file_count"] = len(state["files"])
        state["files"] = [
            {
                **item,
                "path": item["path"]
                .encode("utf-8", "surrogateescape")
                .decode("utf-8", "backslashreplace"),
            }
            for item in state["files"][: int(args["rows"])]
        ]
    return {"states": states}


def export(path: Path, begin: Callable[[dict[str, Any]], BinaryIO]) -> None:
    """Write the folder as tar: same content, same bytes."""
    found = listed(path)
    del found["files"]
    target = begin(found)
    if not path.is_dir():
        return
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name, info in walk(path):
            entry = tarfile.TarInfo(name)
            if stat.S_ISDIR(info.st_mode):
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
            elif stat.S_ISREG(info.st_mode):
                entry.size = info.st_size
                entry.mode = 0o755 if info.st_mode & stat.S_IXUSR else 0o644
                with (path / name).open("rb") as data:
                    archive.addfile(entry, data)


def stage(path: Path, data: BinaryIO) -> None:
    """Unpack beside the live files, inside the same folder so that a swap only renames."""
    path.mkdir(parents=True, exist_ok=True)
    incoming = path / INCOMING
    shutil.rmtree(incoming, ignore_errors=True)
    incoming.mkdir()
    with tarfile.open(fileobj=data, mode="r|") as archive:
        for entry in archive:
            unpack(archive, entry, incoming)


def unpack(archive: tarfile.TarFile, entry: tarfile.TarInfo, root: Path) -> None:
    name = PurePosixPath(entry.name)
    if name.is_absolute() or ".." in name.parts or not (entry.isreg() or entry.isdir()):
        raise StateFault(f"the archive holds {entry.name!r}, which is no plain file or folder")
    place = root / name
    if entry.isdir():
        place.mkdir(parents=True, exist_ok=True)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    content = archive.extractfile(entry)
    if content is None:
        raise StateFault(f"the archive's {entry.name!r} has no content")
    with place.open("xb") as target:
        shutil.copyfileobj(content, target, CHUNK)
    place.chmod(entry.mode & 0o755)


def verb_swap(args: dict[str, Any]) -> dict[str, Any]:
    """Make each staged folder the content; the folder itself may be a mount, so it stays."""
    for path in map(Path, [*args["paths"], *args["absent"]]):
        incoming = path / INCOMING
        if not path.is_dir():
            continue
        for child in path.iterdir():
            if child != incoming:
                if child.is_dir() and not child.is_symlink():
                    shutil.rmtree(child)
                else:
                    child.unlink()
        if incoming.is_dir():
            for child in incoming.iterdir():
                child.rename(path / child.name)
            incoming.rmdir()
    return {}


def kept_at(args: dict[str, Any], path: str) -> Path:
    return Path(args["folder"]) / (hashlib.sha256(path.encode()).hexdigest()[:16] + ".tar")


def verb_keep(args: dict[str, Any]) -> dict[str, Any]:
    """Keep what is there now as the state that ``reset`` goes back to."""
    for path in args["paths"]:
        place = kept_at(args, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("wb") as target:
            export(Path(path), lambda _, target=target: target)  # type: ignore[misc]
        if not place.stat().st_size:
            place.unlink()
    return {}


def verb_reset(args: dict[str, Any]) -> dict[str, Any]:
    present = [path for path in args["paths"] if kept_at(args, path).is_file()]
    for path in present:
        with kept_at(args, path).open("rb") as data:
            stage(Path(path), data)
    absent = [path for path in args["paths"] if path not in present]
    return verb_swap({"paths": present, "absent": absent})


def verb_export(args: dict[str, Any]) -> None:
    def begin(header: dict[str, Any]) -> BinaryIO:
        print(json.dumps(header), flush=True)
        return sys.stdout.buffer

    export(Path(args["paths"][0]), begin)


def verb_stage(args: dict[str, Any]) -> dict[str, Any]:
    stage(Path(args["paths"][0]), sys.stdin.buffer)
    return {}


VERBS: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
    "flush": verb_digest,
    "digest": verb_digest,
    "query": verb_query,
    "export": verb_export,
    "stage": verb_stage,
    "swap": verb_swap,
    "keep": verb_keep,
    "reset": verb_reset,
}


def main(argv: list[str]) -> int:
    try:
        answer = VERBS[argv[1]](json.loads(argv[2]))
    except (StateFault, OSError, tarfile.TarError) as error:
        print(json.dumps({"error": str(error)}))
        return 3
    if answer is not None:
        print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
