"""Keep a ledger busy: ``load.py PORT THREADS PREFIX``, run where the agent lives.

Each thread posts keys of its own over one kept connection, one after the other,
and prints ``key sent acknowledged`` in seconds of the machine's monotonic clock.
"""

from __future__ import annotations

import http.client
import os
import sys
import threading
import time


def post(port: int, prefix: str) -> None:
    connection = http.client.HTTPConnection("localhost", port)
    number = 0
    while True:
        key = f"{prefix}-{number}"
        number += 1
        sent = time.monotonic()
        connection.request("POST", "/add", key)
        answer = connection.getresponse()
        if answer.read().decode() != key:
            raise SystemExit(f"{key} was not acknowledged")
        os.write(1, f"{key} {sent:.9f} {time.monotonic():.9f}\n".encode())


def main(port: str, threads: str, prefix: str) -> None:
    for index in range(int(threads)):
        threading.Thread(target=post, args=(int(port), f"{prefix}{index}")).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
