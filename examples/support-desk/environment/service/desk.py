"""The support desk: a small HTTP service over SQLite in WAL mode.

    desk.py DATABASE PORT

``seed.py`` makes the database.

Every change is one transaction that also writes the audit log, so a row
without its audit entry was not made by this service.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

REASONS = ("damaged_on_arrival", "not_delivered", "wrong_item", "goodwill")
STATUSES = ("open", "pending", "resolved")
CONTACT = ("email", "phone", "address")
BODY_LIMIT = 64 << 10

Reply = tuple[int, Any]
Handler = Callable[[sqlite3.Connection, int, dict[str, Any]], Any]


class Refused(Exception):
    """A request that cannot be done: an HTTP status and one sentence."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextlib.contextmanager
def opened(database: str) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(database, timeout=10, isolation_level=None)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys = ON")
    try:
        yield connection
    finally:
        connection.close()


def one(db: sqlite3.Connection, table: str, key: int) -> dict[str, Any]:
    row = db.execute(f"SELECT * FROM {table} WHERE id = ?", (key,)).fetchone()
    if row is None:
        raise Refused(404, f"there is no {table[:-1]} {key}")
    return dict(row)


def many(db: sqlite3.Connection, query: str, *values: object) -> list[dict[str, Any]]:
    return [dict(row) for row in db.execute(query, values)]


def insert(db: sqlite3.Connection, table: str, **values: object) -> dict[str, Any]:
    names = ", ".join(values)
    marks = ", ".join("?" * len(values))
    cursor = db.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(values.values()))
    return one(db, table, int(cursor.lastrowid or 0))


def audit(db: sqlite3.Connection, action: str, target: str, **detail: object) -> None:
    db.execute(
        "INSERT INTO audit_log (action, target, detail, at) VALUES (?, ?, ?, ?)",
        (action, target, json.dumps(detail, sort_keys=True), now()),
    )


def whole(body: dict[str, Any], name: str) -> int:
    value = body.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused(400, f"{name} must be a whole number")
    return value


def text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value.strip():
        raise Refused(400, f"{name} must be text that is not empty")
    return value


def list_tickets(db: sqlite3.Connection, _: int, query: dict[str, Any]) -> Any:
    fields = "id, customer_id, subject, status, opened_at"
    if "status" in query:
        return many(db, f"SELECT {fields} FROM tickets WHERE status = ?", query["status"])
    return many(db, f"SELECT {fields} FROM tickets")


def get_ticket(db: sqlite3.Connection, key: int, _: dict[str, Any]) -> Any:
    ticket = one(db, "tickets", key)
    ticket["notes"] = many(db, "SELECT body, created_at FROM notes WHERE ticket_id = ?", key)
    ticket["replies"] = many(db, "SELECT body, created_at FROM replies WHERE ticket_id = ?", key)
    return ticket


def get_customer(db: sqlite3.Connection, key: int, _: dict[str, Any]) -> Any:
    return one(db, "customers", key)


def list_orders(db: sqlite3.Connection, key: int, _: dict[str, Any]) -> Any:
    one(db, "customers", key)
    return many(db, "SELECT * FROM orders WHERE customer_id = ? ORDER BY id", key)


def get_order(db: sqlite3.Connection, key: int, _: dict[str, Any]) -> Any:
    return one(db, "orders", key)


def list_refunds(db: sqlite3.Connection, key: int, _: dict[str, Any]) -> Any:
    one(db, "orders", key)
    return many(db, "SELECT * FROM refunds WHERE order_id = ?", key)


def claim(db: sqlite3.Connection, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The order and ticket of a refund or replacement, which belong to one customer."""
    order = one(db, "orders", whole(body, "order_id"))
    ticket = one(db, "tickets", whole(body, "ticket_id"))
    if order["customer_id"] != ticket["customer_id"]:
        raise Refused(409, f"order {order['id']} is not an order of that ticket's customer")
    return order, ticket


def add_refund(db: sqlite3.Connection, _: int, body: dict[str, Any]) -> Any:
    order, ticket = claim(db, body)
    amount, reason = whole(body, "amount_cents"), text(body, "reason")
    if reason not in REASONS:
        raise Refused(400, f"reason must be one of {', '.join(REASONS)}")
    paid = order["item_cents"] + order["shipping_cents"] + order["gift_wrap_cents"]
    spent = sum(refund["amount_cents"] for refund in list_refunds(db, order["id"], {}))
    if not 0 < amount <= paid - spent:
        raise Refused(409, f"amount_cents must be 1 to {paid - spent} for order {order['id']}")
    made = insert(
        db,
        "refunds",
        order_id=order["id"],
        ticket_id=ticket["id"],
        amount_cents=amount,
        reason=reason,
        created_at=now(),
    )
    db.execute("UPDATE orders SET status = 'refunded' WHERE id = ?", (order["id"],))
    audit(db, "refund.create", f"order:{order['id']}", amount_cents=amount, reason=reason)
    return made


def add_replacement(db: sqlite3.Connection, _: int, body: dict[str, Any]) -> Any:
    order, ticket = claim(db, body)
    made = insert(
        db, "replacements", order_id=order["id"], ticket_id=ticket["id"], created_at=now()
    )
    db.execute("UPDATE orders SET status = 'replaced' WHERE id = ?", (order["id"],))
    audit(db, "replacement.create", f"order:{order['id']}")
    return made


def add_note(db: sqlite3.Connection, key: int, body: dict[str, Any]) -> Any:
    one(db, "tickets", key)
    made = insert(db, "notes", ticket_id=key, body=text(body, "body"), created_at=now())
    audit(db, "note.create", f"ticket:{key}")
    return made


def add_reply(db: sqlite3.Connection, key: int, body: dict[str, Any]) -> Any:
    one(db, "tickets", key)
    made = insert(db, "replies", ticket_id=key, body=text(body, "body"), created_at=now())
    audit(db, "reply.create", f"ticket:{key}")
    return made


def set_status(db: sqlite3.Connection, key: int, body: dict[str, Any]) -> Any:
    one(db, "tickets", key)
    status = text(body, "status")
    if status not in STATUSES:
        raise Refused(400, f"status must be one of {', '.join(STATUSES)}")
    resolved = now() if status == "resolved" else None
    db.execute(
        "UPDATE tickets SET status = ?, resolved_at = ? WHERE id = ?", (status, resolved, key)
    )
    audit(db, "ticket.status", f"ticket:{key}", status=status)
    return get_ticket(db, key, {})


def set_contact(db: sqlite3.Connection, key: int, body: dict[str, Any]) -> Any:
    one(db, "customers", key)
    changes = {name: text(body, name) for name in CONTACT if name in body}
    if not changes:
        raise Refused(400, f"give at least one of {', '.join(CONTACT)}")
    for name, value in changes.items():
        db.execute(f"UPDATE customers SET {name} = ? WHERE id = ?", (value, key))
    audit(db, "customer.update", f"customer:{key}", **changes)
    return one(db, "customers", key)


def health(db: sqlite3.Connection, _: int, __: dict[str, Any]) -> Any:
    tickets = db.execute("SELECT count(*) FROM tickets").fetchone()[0]
    return {"ok": True, "tickets": tickets, "task": os.environ.get("BENCHFLOW_TASK_ID", "")}


ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", r"/health", health),
    ("GET", r"/tickets", list_tickets),
    ("GET", r"/tickets/(\d+)", get_ticket),
    ("GET", r"/customers/(\d+)", get_customer),
    ("GET", r"/customers/(\d+)/orders", list_orders),
    ("GET", r"/orders/(\d+)", get_order),
    ("GET", r"/orders/(\d+)/refunds", list_refunds),
    ("POST", r"/refunds", add_refund),
    ("POST", r"/replacements", add_replacement),
    ("POST", r"/tickets/(\d+)/notes", add_note),
    ("POST", r"/tickets/(\d+)/replies", add_reply),
    ("PATCH", r"/tickets/(\d+)", set_status),
    ("PATCH", r"/customers/(\d+)", set_contact),
)


def answer(database: str, method: str, target: str, raw: bytes) -> Reply:
    parts = urlsplit(target)
    found = [
        (verb, handler, match)
        for verb, pattern, handler in ROUTES
        if (match := re.fullmatch(pattern, parts.path))
    ]
    if not found:
        return 404, {"error": f"there is nothing at {parts.path}"}
    chosen = next(((handler, match) for verb, handler, match in found if verb == method), None)
    if chosen is None:
        return 405, {"error": f"{parts.path} takes {', '.join(verb for verb, _, _ in found)}"}
    handler, match = chosen
    try:
        body = parsed(raw) if method != "GET" else first_values(parts.query)
        with opened(database) as db:
            db.execute("BEGIN" if method == "GET" else "BEGIN IMMEDIATE")
            made = handler(db, int(match[1]) if match.groups() else 0, body)
            db.execute("COMMIT")
    except Refused as refused:
        return refused.status, {"error": str(refused)}
    return (201 if method == "POST" else 200), made


def parsed(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw or b"null")
    except ValueError as error:
        raise Refused(400, f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object")
    return body


def first_values(query: str) -> dict[str, Any]:
    return {name: values[0] for name, values in parse_qs(query).items()}


class Desk(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    database = ""

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if length > BODY_LIMIT:
            self.close_connection = True
            self.reply(413, {"error": f"a body may have {BODY_LIMIT} bytes"})
            return
        self.reply(*answer(self.database, self.command, self.path, self.rfile.read(length)))

    do_POST = do_PATCH = do_GET

    def reply(self, status: int, content: Any) -> None:
        raw = json.dumps(content, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:
        print(format % args, flush=True)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        # The HTTP class would look the host's name up here, which may wait for a resolver.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", int(self.server_address[1])


def serve(database: str, port: int) -> None:
    Desk.database = database
    with Server(("127.0.0.1", port), Desk) as server:
        print(f"desk listens on {port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    serve(sys.argv[1], int(sys.argv[2]))
