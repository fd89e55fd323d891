"""Rows that lines write, delete, rename and update, and a count of every call.

    marks.py PORT DATABASE CALLS

POST /sql/NAME runs one of the fixed statements with the body as its argument.
The file CALLS gets a line per call, so that a fork shows which calls its line made.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import TCPServer

STATEMENTS = {
    "insert": "INSERT INTO marks (key, value) VALUES ('own', ?)",
    "update": "UPDATE marks SET value = ? WHERE key = 'shared'",
    "rename": "UPDATE marks SET key = ? WHERE key = 'old'",
    "delete": "DELETE FROM marks WHERE key = 'doomed' AND ? != ''",
}


class Marks(BaseHTTPRequestHandler):
    database: sqlite3.Connection
    calls: str

    def do_GET(self) -> None:
        if self.path == "/calls":
            self.answer(os.getpid())
            return
        rows = self.database.execute("SELECT key, value FROM marks ORDER BY key, value")
        self.answer({"pid": os.getpid(), "rows": rows.fetchall()})

    def do_POST(self) -> None:
        name = self.path.rpartition("/")[2]
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        with open(self.calls, "a") as file:
            file.write(f"{name} {json.loads(text)}\n")
        done = self.database.execute(STATEMENTS[name], (json.loads(text),))
        self.answer({"pid": os.getpid(), "changed": done.rowcount})

    def answer(self, content: object) -> None:
        raw = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(HTTPServer):
    def server_bind(self) -> None:
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", int(self.server_address[1])


def main(port: str, database: str, calls: str) -> None:
    Marks.calls = calls
    Marks.database = sqlite3.connect(database, isolation_level=None)
    Marks.database.execute("PRAGMA journal_mode = WAL")
    Marks.database.execute("CREATE TABLE IF NOT EXISTS marks (key, value)")
    if not Marks.database.execute("SELECT count(*) FROM marks").fetchone()[0]:
        rows = [("shared", "first"), ("old", "kept"), ("doomed", "gone soon")]
        Marks.database.executemany("INSERT INTO marks VALUES (?, ?)", rows)
    with Server(("127.0.0.1", int(port)), Marks) as server:
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
