"""The support desk run straight on the host: its service, a client, and its check.

Nothing here stands in for a part of the product: these are the files of the
example, run without the engine around them.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples" / "support-desk"
TICKET, RIGHT, OTHER = 1042, 5518, 5512
AMOUNT = 6090


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class DeskOnHost:
    """One fresh desk in a folder, and what an agent could do to it."""

    def __init__(self, folder: Path) -> None:
        self.database = folder / "state" / "desk.db"
        self.workdir = folder / "workspace"
        self.logs = folder / "logs"
        for path in (self.database.parent, self.workdir, self.logs):
            path.mkdir()
        self.port = free_port()
        self._service = EXAMPLE / "environment" / "service" / "desk.py"

    def __enter__(self) -> DeskOnHost:
        python, database = [sys.executable, "-I"], str(self.database)
        seed = str(self._service.with_name("seed.py"))
        subprocess.run([*python, seed, database], check=True, timeout=20)
        self._process = subprocess.Popen(
            [*python, str(self._service), database, str(self.port)], stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        assert select.select([self._process.stdout], [], [], 20)[0], "the desk never spoke"
        assert b"listens" in self._process.stdout.readline()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate(timeout=20)

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON answer; a refusal raises HTTPError with the answer as its text."""
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, data=data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return {"status": error.code, **json.load(error)}

    def refund(self, order: int, amount: int, reason: str = "damaged_on_arrival") -> Any:
        body = {"order_id": order, "ticket_id": TICKET, "amount_cents": amount, "reason": reason}
        return self.call("POST", "/refunds", body)

    def replace(self, order: int) -> Any:
        return self.call("POST", "/replacements", {"order_id": order, "ticket_id": TICKET})

    def note(self, text: str, ticket: int = TICKET) -> Any:
        return self.call("POST", f"/tickets/{ticket}/notes", {"body": text})

    def reply(self, text: str, ticket: int = TICKET) -> Any:
        return self.call("POST", f"/tickets/{ticket}/replies", {"body": text})

    def resolve(self, ticket: int = TICKET) -> Any:
        return self.call("PATCH", f"/tickets/{ticket}", {"status": "resolved"})

    def report(self, **fields: Any) -> None:
        right = {"ticket": TICKET, "order": RIGHT, "action": "refund", "amount_cents": AMOUNT}
        (self.workdir / "report.json").write_text(json.dumps(right | fields))

    def write_up(self, *, order: int = RIGHT, amount: int = AMOUNT) -> None:
        """Everything around the payment, done right."""
        self.note(f"Refunded {amount / 100:.2f} on order {order}.")
        self.reply("We are sorry, your money is on its way.")
        self.resolve()
        self.report(order=order, amount_cents=amount)

    def settle(self, *, order: int = RIGHT, amount: int = AMOUNT) -> None:
        self.refund(order, amount)
        self.write_up(order=order, amount=amount)

    def verdict(self) -> dict[str, Any]:
        """What the verifier's check writes to reward.json."""
        subprocess.run(
            [
                *(sys.executable, "-I", str(EXAMPLE / "verifier" / "check.py")),
                *("--seed", str(self._service.with_name("seed.sql"))),
                *("--database", str(self.database)),
                *("--workdir", str(self.workdir)),
                *("--logs", str(self.logs)),
            ],
            check=True,
            capture_output=True,
            timeout=30,
        )
        found = json.loads((self.logs / "reward.json").read_text())
        assert isinstance(found, dict)
        return found
