"""A stock service: every POST /add is a row, a line in a file, and one more in memory.

    ledger.py PORT DATABASE FILE

It knows nothing of whoever captures it: ordinary threads, an ordinary database
in WAL mode, an ordinary file. GET /count answers from memory alone.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer


class Ledger(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body leave together
    database: str
    lines: str
    count = 0
    counting = threading.Lock()

    def setup(self) -> None:
        super().setup()
        self.connection_to_database = sqlite3.connect(self.database, isolation_level=None)
        self.connection_to_database.execute("PRAGMA busy_timeout = 10000")

    def finish(self) -> None:
        super().finish()
        self.connection_to_database.close()

    def do_GET(self) -> None:
        self.answer(str(Ledger.count))

    def do_POST(self) -> None:
        key = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.connection_to_database.execute("INSERT INTO entries (key) VALUES (?)", (key,))
        with open(self.lines, "a") as file:
            file.write(f"{key}\n")
        with Ledger.counting:
            Ledger.count += 1
        self.answer(key)

    def answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", int(self.server_address[1])


def main(port: str, database: str, lines: str) -> None:
    Ledger.database, Ledger.lines = database, lines
    os.makedirs(os.path.dirname(lines), exist_ok=True)
    with sqlite3.connect(database) as first:
        first.execute("PRAGMA journal_mode = WAL")
        first.execute("CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, key)")
        Ledger.count = first.execute("SELECT count(*) FROM entries").fetchone()[0]
    with Server(("127.0.0.1", int(port)), Ledger) as server:
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
