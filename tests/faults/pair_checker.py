"""What must hold after processes around a rollout were killed: read straight from the files."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.contracts.store import Event
from core.kernel.replay import fold
from core.kernel.tree import Tree

FINAL = ("scored", "failed", "cancelled", "interrupted")


@dataclass(frozen=True, slots=True)
class Act:
    """One act of the person: what they were told about it before anybody died."""

    what: str
    key: str
    request: str
    text: str
    acknowledged: bool
    refused: str


@dataclass
class Story:
    """The store after one iteration, and what the processes noted."""

    folder: Path
    acts: list[Act]
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def problems(self) -> list[str]:
        """Every broken promise, in words."""
        self.rows = {
            name: self._select(name) for name in ("rollout", "event", "request", "command")
        }
        if not self.rows["rollout"]:
            return [f"{act}: there is no rollout" for act in self.acts if act.acknowledged]
        found = [*self._rollout(), *self._log()]
        if not found:
            for act in self.acts:
                found += [f"{act}: {problem}" for problem in self._act(act)]
        return found + self._left()

    def _select(self, table: str) -> list[dict[str, Any]]:
        conn = sqlite3.connect(self.folder / "home" / "store.db")
        try:
            cursor = conn.execute(f"SELECT * FROM {table}")
            names = [item[0] for item in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]
        finally:
            conn.close()

    @property
    def record(self) -> dict[str, Any]:
        (record,) = self.rows["rollout"]
        return record

    def _rollout(self) -> list[str]:
        record, found = self.record, []
        if record["state"] not in FINAL:
            found.append(f"the rollout is {record['state']}")
        if record["owner"] is not None:
            found.append(f"it is still owned by {record['owner']}")
        if record["head_seq"] and not record["sealed"]:
            found.append("its log is not sealed")
        if record["sealed"] and not (Path(record["folder"]) / "result.json").is_file():
            found.append("it is sealed and has no result.json")
        return found

    def _log(self) -> list[str]:
        events = sorted(self.rows["event"], key=lambda row: int(row["seq"]))
        found = []
        if [row["seq"] for row in events] != list(range(1, len(events) + 1)):
            found.append(f"the log's numbers are {[row['seq'] for row in events]}")
        if self.record["head_seq"] != len(events):
            found.append(f"head_seq is {self.record['head_seq']} of {len(events)} events")
        counted: dict[tuple[int, int], list[int]] = {}
        for row in events:
            counted.setdefault((row["line"], row["attempt"]), []).append(row["line_seq"])
        for key, numbers in counted.items():
            if numbers != list(range(1, len(numbers) + 1)):
                found.append(f"line {key} is numbered {numbers}")
        if [row["term"] for row in events] != sorted(row["term"] for row in events):
            found.append("a fenced owner wrote after its heir")
        tree = self.tree() if events and not found else None
        if tree is not None and tree.outcome != self.record["state"]:
            found.append(f"the log says {tree.outcome}, the row {self.record['state']}")
        return found

    def tree(self) -> Tree:
        rows = sorted(self.rows["event"], key=lambda row: int(row["seq"]))
        return fold(
            Event(
                rollout=row["rollout"],
                seq=row["seq"],
                term=row["term"],
                attempt=row["attempt"],
                line=row["line"],
                line_seq=row["line_seq"],
                kind=row["kind"],
                version=row["version"],
                at=row["at"],
                payload=json.loads(row["payload"]),
            )
            for row in rows
        )

    def events(self, kind: str, **values: object) -> list[dict[str, Any]]:
        """The payloads of this kind that hold these values, each with its ``attempt``."""
        found = []
        for row in self.rows["event"]:
            body = json.loads(row["payload"])
            if row["kind"] == kind and all(body.get(k) == v for k, v in values.items()):
                found.append({**body, "attempt": row["attempt"]})
        return found

    def _act(self, act: Act) -> list[str]:
        match act.what:
            case "answer":
                return self._answer(act)
            case "nudge":
                return self._nudge(act)
            case _:
                return self._cancel(act)

    def _answer(self, act: Act) -> list[str]:
        (row,) = [row for row in self.rows["request"] if row["id"] == act.request]
        told = [*self.events("answered", actor=act.key), *self.events("prompted", actor=act.key)]
        mine = row["idem_key"] == act.key
        if act.refused and (mine or told):
            return ["was refused and is there"]
        if not mine:
            return ["was acknowledged and is lost"] if act.acknowledged else []
        attempts = [event["attempt"] for event in told]
        found = []
        if len(set(attempts)) != len(attempts):
            found.append(f"was told to the agent twice: {told}")
        if row["state"] == "delivered" and not told and row["kind"] == "ask_user":
            found.append("was delivered and is in no event")
        if row["state"] not in ("answered", "delivered"):
            found.append(f"its request is {row['state']}")
        if self.record["state"] == "scored" and self._last_asked(row) and not told:
            found.append("the scored agent never heard it")
        return found

    def _last_asked(self, row: dict[str, Any]) -> bool:
        """Whether the line that was scored asked exactly this, and was not stopped there."""
        stopped = self.events("cancel_requested", scope="turn")
        asked = self.events("asked", ask_index=row["ask_index"])
        last = max((event["attempt"] for event in asked), default=0)
        question = row["kind"] == "ask_user"
        return question and not stopped and last == self.record["attempt"] == row["attempt"]

    def _command(self, act: Act) -> dict[str, Any] | None:
        rows = [row for row in self.rows["command"] if row["idem_key"] == act.key]
        assert len(rows) <= 1
        return rows[0] if rows else None

    def _nudge(self, act: Act) -> list[str]:
        command = self._command(act)
        accepted = self.events("nudge_accepted", actor=act.key)
        given = self.events("prompted", actor=act.key)
        found = []
        if len(accepted) > 1 or len(given) > 1:
            found.append(f"was done twice: {accepted} {given}")
        if act.refused and (accepted or given):
            found.append("was refused and done")
        if act.acknowledged and (len(accepted) != 1 or not command or command["state"] != "done"):
            found.append(f"was acknowledged and is not in the log: {command}")
        if accepted and not given and self.record["state"] == "scored":
            found.append("was accepted, and the scored agent never heard it")
        if given and not accepted:
            found.append("was given to the agent and never accepted")
        return found

    def _cancel(self, act: Act) -> list[str]:
        command = self._command(act)
        asked = self.events("cancel_requested", actor=act.key)
        found = []
        if len(asked) > 1:
            found.append("was done twice")
        if act.refused and asked:
            found.append("was refused and done")
        if act.acknowledged and (len(asked) != 1 or not command or command["state"] != "done"):
            found.append(f"was acknowledged and is not in the log: {command}")
        return found

    def _left(self) -> list[str]:
        open_requests = [row["id"] for row in self.rows["request"] if row["state"] == "open"]
        return [f"request {item} is still open" for item in open_requests]


def read_acts(output: Path) -> list[Act]:
    """The person's acts in order, each with what they were told."""
    tried: dict[str, dict[str, Any]] = {}
    for line in output.read_text().splitlines() if output.exists() else []:
        try:
            note = json.loads(line)
        except ValueError:
            continue
        if not isinstance(note, dict):
            continue
        if note.get("note") == "try":
            tried[note["key"]] = note
        elif note.get("note") in ("acknowledged", "refused"):
            tried[note["key"]][note["note"]] = note.get("why", True)
    return [
        Act(
            what=note["what"],
            key=key,
            request=note.get("request", ""),
            text=note.get("text", ""),
            acknowledged=bool(note.get("acknowledged")),
            refused=str(note.get("refused", "")),
        )
        for key, note in tried.items()
    ]
