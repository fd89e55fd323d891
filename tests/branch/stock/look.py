"""What is in a copy of the ledger: ``look.py DATABASE FILE`` prints one line of JSON.

``look.py backup DATABASE FILE`` first copies the database by SQLite's own backup
and then reads the file: two captures one after the other, each right by itself.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys


def keys_of(database: sqlite3.Connection) -> list[str]:
    return [row[0] for row in database.execute("SELECT key FROM entries ORDER BY id")]


def main(words: list[str]) -> None:
    backup = words[0] == "backup"
    path, lines = words[-2:]
    found: dict[str, object] = {}
    try:
        with sqlite3.connect(path) as database:
            if backup:
                copy = sqlite3.connect(":memory:")
                database.backup(copy)
                found["rows"] = keys_of(copy)
            else:
                found["sound"] = database.execute("PRAGMA quick_check").fetchone()[0]
                found["rows"] = keys_of(database)
    except sqlite3.Error as error:
        found["error"] = str(error)
    found["lines"] = []
    if os.path.exists(lines):
        with open(lines) as file:
            found["lines"] = file.read().split()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
