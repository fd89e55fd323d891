"""Check the final state of the desk, row by row, against expectations.json.

The database before is rebuilt from the seed; every row that differs must be one
the task asked for, and every new row must have its entry in the audit log.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sqlite3
import stat
from collections import Counter
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Tables = dict[str, dict[Any, Row]]

ADDABLE = ("refunds", "replacements", "notes", "replies", "audit_log")
REPORT_LIMIT = 64 << 10


def tables(connection: sqlite3.Connection) -> Tables:
    connection.row_factory = sqlite3.Row
    names = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    )
    return {
        name: {row["id"]: dict(row) for row in connection.execute(f'SELECT * FROM "{name}"')}
        for (name,) in names.fetchall()
    }


def before(seed: Path) -> Tables:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(seed.read_text(encoding="utf-8"))
        return tables(connection)


def after(database: Path) -> Tables:
    uri = f"{database.absolute().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=10)) as connection:
        return tables(connection)


def changes(old: Tables, new: Tables) -> tuple[dict[str, Any], dict[str, list[Row]], list[str]]:
    """Changed cells by table and key, added rows by table, and what must never happen."""
    changed: dict[str, Any] = {}
    added: dict[str, list[Row]] = {}
    wrong = [f"table {name} is new or gone" for name in set(old) ^ set(new)]
    for name in sorted(set(old) & set(new)):
        wrong += [f"{name} {key} was deleted" for key in old[name].keys() - new[name].keys()]
        for key, row in new[name].items():
            if key not in old[name]:
                added.setdefault(name, []).append(row)
                continue
            cells = {
                column: row[column] for column in row if row[column] != old[name][key].get(column)
            }
            if cells:
                changed.setdefault(name, {})[str(key)] = cells
    wrong += [f"{name} has a new row" for name in added if name not in ADDABLE]
    return changed, added, wrong


def fits(expected: Any, found: Any) -> bool:
    """Equal, where "*" stands for any value that is there."""
    if expected == "*":
        return found is not None
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(
            fits(expected[key], found[key]) for key in expected
        )
    return type(expected) is type(found) and expected == found


def payments_fit(expected: list[Row], found: list[Row]) -> bool:
    bare = [
        {key: value for key, value in row.items() if key not in ("id", "created_at")}
        for row in found
    ]
    return bare == expected


def audit_fits(added: dict[str, list[Row]], changed: dict[str, Any]) -> bool:
    """Each new row, and each ticket's last status, has exactly its entry in the log."""
    log = added.get("audit_log", [])
    rows = Counter((entry["action"], entry["target"]) for entry in log)
    wanted: Counter[tuple[str, str]] = Counter()
    for table, action, target in (
        ("refunds", "refund.create", "order"),
        ("replacements", "replacement.create", "order"),
        ("notes", "note.create", "ticket"),
        ("replies", "reply.create", "ticket"),
    ):
        for row in added.get(table, []):
            wanted[action, f"{target}:{row[f'{target}_id']}"] += 1
    settled = {f"ticket:{key}" for key in changed.get("tickets", {})}
    steps = {entry["target"] for entry in log if entry["action"] == "ticket.status"}
    if settled - steps:
        return False
    acts = Counter({act: count for act, count in rows.items() if act[0] != "ticket.status"})
    return acts == wanted


def note_fits(notes: list[Row], ticket: int, names: list[list[str]]) -> bool:
    """All notes are on the ticket, and one of them names the order and the amount."""
    return all(note["ticket_id"] == ticket for note in notes) and any(
        all(any(word in note["body"] for word in words) for words in names) for note in notes
    )


def report_fits(path: Path, expected: Row) -> bool:
    """The report is a plain file, not a link to somewhere the agent could not read."""
    try:
        info = path.lstat()
        if not stat.S_ISREG(info.st_mode) or info.st_size > REPORT_LIMIT:
            return False
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with open(descriptor, encoding="utf-8") as file:
            return fits(expected, json.loads(file.read(REPORT_LIMIT)))
    except (OSError, ValueError, RecursionError):
        return False


def check(seed: Path, database: Path, workdir: Path, expected: Row) -> dict[str, bool]:
    changed, added, wrong = changes(before(seed), after(database))
    replies = added.get("replies", [])
    for problem in wrong:
        print(problem)
    return {
        "records": not wrong and fits(expected["changed"], changed),
        "refund": payments_fit(expected["refunds"], added.get("refunds", [])),
        "replacement": payments_fit(expected["replacements"], added.get("replacements", [])),
        "note": note_fits(added.get("notes", []), expected["ticket"], expected["note_names"]),
        "reply": bool(replies) and all(row["ticket_id"] == expected["ticket"] for row in replies),
        "audit": audit_fits(added, changed),
        "report": report_fits(workdir / "report.json", expected["report"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    here = Path(__file__).parent
    parser.add_argument("--seed", type=Path, default=Path("/environment/service/seed.sql"))
    parser.add_argument(
        "--database", type=Path, default=Path(os.environ.get("BENCH_STATE_PATHS", "/state/desk.db"))
    )
    parser.add_argument(
        "--workdir", type=Path, default=Path(os.environ.get("BENCH_WORKDIR", "/workspace"))
    )
    parser.add_argument(
        "--logs", type=Path, default=Path(os.environ.get("BENCH_LOGS", "/logs/verifier"))
    )
    args = parser.parse_args()
    expected = json.loads((here / "expectations.json").read_text(encoding="utf-8"))
    found = check(args.seed, args.database, args.workdir, expected)
    for name, good in found.items():
        print(f"{'ok  ' if good else 'FAIL'} {name}")
    verdict = {
        "reward": 1.0 if all(found.values()) else 0.0,
        "items": {name: 1.0 if good else 0.0 for name, good in found.items()},
    }
    (args.logs / "reward.json").write_text(json.dumps(verdict, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
