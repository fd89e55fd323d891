"""The tools of ``bench-agent``: a shell command and an HTTP call, each in a thread.

Standard library only. Invariant: a result is handed over by waking the one
thread that speaks the protocol, and stopping a tool ends its process group.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from typing import Any

KEEP = 64 << 10
"""Characters kept of each output: half from the head, half from the tail."""


class Job:
    """One tool call that runs beside the protocol."""

    def __init__(self, work: Callable[[Job], dict[str, Any]], done: Callable[[Job], None]) -> None:
        import threading  # here, for a light start

        self.result: dict[str, Any] = {}
        self._stopped = False
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, args=(work, done), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it; its result is never reported."""
        self._stopped = True
        if self._process is not None:
            _kill(self._process)

    @property
    def stopped(self) -> bool:
        return self._stopped

    def shell(self, command: str, cwd: str, timeout: float) -> dict[str, Any]:
        """Run ``sh -c`` to its end, or kill its process group past ``timeout`` seconds."""
        import subprocess  # here, for a light start

        self._process = process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        if self._stopped:
            _kill(process)
        timed_out = False
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
            _kill(process)
            out, err = process.communicate()
        result = {"exit_code": process.returncode, "stdout": _text(out), "stderr": _text(err)}
        return {**result, "timed_out": True} if timed_out else result

    def _run(self, work: Callable[[Job], dict[str, Any]], done: Callable[[Job], None]) -> None:
        try:
            self.result = work(self)
        except OSError as error:
            self.result = {"error": str(error)}
        done(self)


def http_call(call: dict[str, Any], timeout: float) -> dict[str, Any]:
    """One HTTP exchange. An unreachable service is a result with status 0 and an error."""
    import http.client  # here, for a light start
    from urllib.parse import urlsplit

    url = urlsplit(call["url"])
    maker = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    body = json.dumps(call["json"]) if "json" in call else None
    headers = {"content-type": "application/json"} if body is not None else {}
    connection = maker(url.hostname or "localhost", url.port, timeout=timeout)
    try:
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        connection.request(
            call["method"].upper(), target, body, {**headers, **call.get("headers", {})}
        )
        response = connection.getresponse()
        return {"status": response.status, "body": _body(response.read())}
    except (OSError, http.client.HTTPException) as error:
        return {"status": 0, "body": None, "error": f"{type(error).__name__}: {error}"}
    finally:
        connection.close()


def write_file(folder: str, path: str, text: str) -> str:
    """Write a file under ``folder`` (or at an absolute path); gives the path written."""
    target = os.path.join(folder, path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "w", encoding="utf-8") as file:
        file.write(text)
    return target


def _kill(process: subprocess.Popen[bytes]) -> None:
    import signal

    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _body(raw: bytes) -> Any:
    text = raw.decode("utf-8", errors="replace")
    try:
        return json.loads(text)
    except ValueError:
        return text


def _text(raw: bytes) -> str:
    text = raw.decode("utf-8", errors="replace")
    if len(text) <= KEEP:
        return text
    half = KEEP // 2
    return f"{text[:half]}\n[{len(text) - KEEP} characters left out]\n{text[-half:]}"
