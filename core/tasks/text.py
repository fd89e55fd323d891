"""Read one small text file of a package, whatever bytes it really holds."""

from __future__ import annotations

import stat
from pathlib import Path

from core.tasks.located import MAX_TEXT, Unreadable


def read_text(path: Path, *, limit: int = MAX_TEXT) -> str:
    """The file's text: UTF-8, byte order mark dropped, line ends as ``\\n``.

    Raises Unreadable for a file that is missing, too big, not regular (a FIFO
    would block for ever), or not UTF-8 text.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable(None, "is not a regular file", "Put a plain text file there")
        if status.st_size > limit:
            raise Unreadable(
                None,
                f"is {status.st_size:,} bytes long; at most {limit:,} are read",
                "Move large data into files beside it",
            )
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        raise Unreadable(None, "does not exist", f"Write {path.name}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise Unreadable(None, f"cannot be read: {reason}", "Check its permissions") from error
    return decode_text(data[:limit])


def decode_text(data: bytes) -> str:
    """Bytes of a text file to text. Raises Unreadable, naming the first bad line."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable(
            line,
            f"is not UTF-8 text: byte 0x{data[error.start]:02x}",
            "Save the file as UTF-8",
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise Unreadable(line, "holds a NUL character", "Save the file as plain text")
    return text.replace("\r\n", "\n").replace("\r", "\n")
