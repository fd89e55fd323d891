"""List folders, and read files of them, where they lie: sent over stdin, run in a fork.

Standard library only, since it runs inside; it imports none of our modules. Prints
one line of JSON; a path that is not UTF-8 keeps its bytes as surrogates.

    python3 -I -S - list '{"roots": ["/workspace"], "files": 20000}'
    python3 -I -S - read '{"paths": ["/workspace/a.txt"], "bytes": 100000}'
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def listed(roots: list[str], limit: int) -> dict[str, Any]:
    """Every file and link below the roots: [path, kind, size, mode, digest or target]."""
    entries: list[list[Any]] = []
    unread: list[str] = []
    left_out = 0
    for root in roots:
        for folder, folders, names in os.walk(
            root, onerror=lambda error: unread.append(str(error))
        ):
            folders.sort()
            links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
            for name in sorted(names + links):
                if len(entries) >= limit:
                    left_out += 1
                    continue
                path = os.path.join(folder, name)
                try:
                    entries.append(entry(path))
                except OSError as error:
                    unread.append(f"{path}: {error.strerror}")
    return {"entries": entries, "left_out": left_out, "unread": unread[:20]}


def entry(path: str) -> list[Any]:
    info = os.lstat(path)
    mode = stat.S_IMODE(info.st_mode)
    if stat.S_ISLNK(info.st_mode):
        return [path, "link", 0, 0, os.readlink(path)]
    if not stat.S_ISREG(info.st_mode):
        return [path, "special", 0, mode, ""]
    with open(path, "rb") as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
    return [path, "file", info.st_size, mode, digest]


def contents(paths: list[str], limit: int) -> dict[str, Any]:
    """What stands in files, as base64, at most ``limit`` bytes of each."""
    found = {}
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as data:
            found[path] = base64.b64encode(data.read(limit)).decode("ascii")
    return {"contents": found}


def main() -> None:
    verb, args = sys.argv[1], json.loads(sys.argv[2])
    if verb == "list":
        answer = listed(args["roots"], args["files"])
    else:
        answer = contents(args["paths"], args["bytes"])
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
