"""Start one of our own modules in a bare interpreter: no site packages, no environment.

Whatever the first folder on the path is called, the child finds it as an open
descriptor, so that no command line names a folder of the host.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_BOOT = (
    "import sys; sys.path.insert(0, '/dev/fd/' + sys.argv[1]); "
    "__import__(sys.argv[2], fromlist=['main']).main()"
)
# The folder from which our own package can be imported, in a checkout and when installed.
_ROOT = Path(__file__).resolve().parents[len(__name__.split(".")) - 1]


def open_place() -> int:
    """A descriptor for the child; pass it on, then close it."""
    return os.open(_ROOT, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def command(module: str, place: int, *more: str) -> list[str]:
    """The command that runs ``main`` of a module of this package; it reads ``more`` itself."""
    interpreter = getattr(sys, "_base_executable", None) or sys.executable
    return [interpreter, "-I", "-S", "-c", _BOOT, str(place), f"{__package__}.{module}", *more]
