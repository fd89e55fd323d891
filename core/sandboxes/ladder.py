"""Which rung a store uses: the best one whose toy works, tried from the top.

What was found is kept beside the store until the machine restarts. A store
that holds images stays on the rung that made them as long as it works.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from core.contracts.errors import BenchFlowError
from core.sandboxes.layers import boot_id, write_json
from core.sandboxes.rung import Btrfs, Copy, Overlay, Reflink, Rung

RECORD = "rung.json"


@dataclass(frozen=True, slots=True)
class Choice:
    """The rung, or None where no rung works; and why better ones were passed over."""

    rung: Rung | None
    passed: tuple[str, ...]


def rungs() -> list[Rung]:
    """Best first."""
    return [Btrfs(), Overlay(), Reflink(), Copy()]


def named(name: str) -> Rung | None:
    return next((rung for rung in rungs() if rung.name == name), None)


class Ladder:
    """Remembers, for this process, what worked on which file system."""

    _known: dict[tuple[object, ...], Choice] = {}  # noqa: RUF012 (one machine, one answer)

    def __init__(self, root: Path, only: Rung | None) -> None:
        self._root = root
        self._only = only

    def recall(self) -> Choice | None:
        """What is known without trying, if anything. Blocks briefly."""
        if self._only is not None:
            reasons = self._only.obstacles(self._root)
            return Choice(None, tuple(reasons)) if reasons else Choice(self._only, ())
        found = self._read()
        if found is None and (known := self._known.get(self._key())) is not None:
            found = self._keep(known)
        return found

    async def climb(self, toy: Callable[[Rung], Awaitable[None]]) -> Choice:
        """Try rung after rung until a toy works. ``toy`` raises when its rung does not."""
        passed: list[str] = []
        for rung in self._candidates():
            reasons = await asyncio.to_thread(rung.obstacles, self._root)
            if not reasons:
                try:
                    await toy(rung)
                except (BenchFlowError, OSError, TimeoutError) as error:
                    reasons = [f"a toy sandbox could not be made: {error}"]
            if not reasons:
                return self._keep(Choice(rung, tuple(passed)))
            if self._only is not None:
                return Choice(None, tuple(reasons))
            passed.extend(f"{rung.name}: {reason}" for reason in reasons)
        return Choice(None, tuple(passed))

    def _candidates(self) -> Sequence[Rung]:
        if self._only is not None:
            return [self._only]
        used = self._used()
        return sorted(rungs(), key=lambda rung: rung.name != used)

    def _key(self) -> tuple[object, ...]:
        place = self._root
        while not place.exists():
            place = place.parent
        return place.stat().st_dev, os.geteuid(), self._used()

    def _used(self) -> str | None:
        """The rung of the images that this store holds."""
        try:
            if not any(item.suffix == ".json" for item in (self._root / "images").iterdir()):
                return None
            record = json.loads((self._root / RECORD).read_text())
            return str(record["rung"]) if isinstance(record, dict) else None
        except (OSError, ValueError, KeyError):
            return None

    def _read(self) -> Choice | None:
        try:
            record = json.loads((self._root / RECORD).read_text())
            if (record["boot_id"], record["euid"]) != (boot_id(), os.geteuid()):
                return None
            rung = named(str(record["rung"]))
            return Choice(rung, tuple(map(str, record["passed"]))) if rung else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _keep(self, choice: Choice) -> Choice:
        if self._only is None and choice.rung is not None:
            self._known[self._key()] = choice
            record: dict[str, object] = {"boot_id": boot_id(), "euid": os.geteuid()}
            record |= {"rung": choice.rung.name, "passed": list(choice.passed)}
            self._root.mkdir(parents=True, exist_ok=True)
            write_json(self._root / RECORD, record)
        return choice
