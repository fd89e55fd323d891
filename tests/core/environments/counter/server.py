"""A world for tests: counts in SQLite with one connection kept open, and in a folder.

    server.py PORT DATABASE FOLDER

POST /add adds a row and a file, GET /count says how many rows its own
connection sees, GET /env what it was started with, POST /die ends it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import TCPServer


class Counter(BaseHTTPRequestHandler):
    database: sqlite3.Connection
    folder: Path

    def do_GET(self) -> None:
        if self.path == "/env":
            raw = Path("/proc/self/environ").read_bytes().decode()
            self.answer(dict(item.split("=", 1) for item in raw.split("\0") if item))
        else:
            self.answer(self.database.execute("SELECT count(*) FROM rows").fetchone()[0])

    def do_POST(self) -> None:
        if self.path == "/die":
            print("told to die", flush=True)
            os._exit(7)
        made = self.database.execute("INSERT INTO rows (text) VALUES ('added')").lastrowid
        (self.folder / f"{made}.txt").write_text("added")
        self.answer(made)

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


def main(port: str, database: str, folder: str) -> None:
    Counter.database = sqlite3.connect(database, isolation_level=None)
    Counter.database.execute("PRAGMA journal_mode = WAL")
    Counter.database.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, text)")
    Counter.folder = Path(folder)
    Counter.folder.mkdir(exist_ok=True)
    with Server(("127.0.0.1", int(port)), Counter) as server:
        print("counter listens", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
