"""``bench-agent``: a small ACP agent that plays a script. Standard library only.

It runs by itself inside a sandbox, one thread for the protocol and one per
running tool. Protocol: ACP v1, and three calls of our own, ``_bench/snapshot``,
``_bench/restore`` and ``_bench/continue``. ``conversation.py`` is what it does,
``script.py`` how a script is written.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections import deque

from core.agents.bench_agent.conversation import Conversation, Refused
from core.agents.bench_agent.script import Script, ScriptError, check_script, read_script
from core.agents.bench_agent.tools import Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

PARSE_ERROR, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32601, -32602


class Program:
    """Reads requests from stdin, keeps the conversations, writes to stdout."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._sessions: dict[str, Conversation] = {}
        self._forms = False
        self._next_id = 1
        self._waiting: dict[int, Conversation] = {}
        self._finished: deque[tuple[Conversation, Job]] = deque()
        self._wake_read, self._wake_write = os.pipe()

    # -- what a conversation needs (its Client) ---------------------------------

    @property
    def forms(self) -> bool:
        """Whether the client shows forms (``elicitation/create``)."""
        return self._forms

    def send(self, message: Json) -> None:
        """Write one JSON-RPC message."""
        line = json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")) + "\n"
        data = line.encode()
        while data:
            data = data[os.write(1, data) :]

    def request(self, method: str, params: Json, conversation: Conversation) -> None:
        """Ask the client; the answer goes to ``conversation.answered``."""
        number, self._next_id = self._next_id, self._next_id + 1
        self._waiting[number] = conversation
        self.send({"id": number, "method": method, "params": params})

    def job_done(self, conversation: Conversation, job: Job) -> None:
        """Called from a tool's thread: hand the result to the protocol's thread."""
        self._finished.append((conversation, job))
        os.write(self._wake_write, b"x")

    # -- the loop -----------------------------------------------------------------

    def run(self) -> None:
        """Serve until stdin ends."""
        pending = b""
        while True:
            ready, _, _ = select.select([0, self._wake_read], [], [])
            if self._wake_read in ready:
                os.read(self._wake_read, 1)
                conversation, job = self._finished.popleft()
                conversation.job_done(job)
            if 0 not in ready:
                continue
            chunk = os.read(0, 1 << 16)
            if not chunk:
                break
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                if line.strip():
                    self._receive(line)
        for conversation in self._sessions.values():
            conversation.stop_tool()

    def _receive(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            self.send({"id": None, "error": {"code": PARSE_ERROR, "message": "not a JSON object"}})
            return
        if "method" not in message:
            conversation = self._waiting.pop(message.get("id", 0), None)
            if conversation is not None:
                conversation.answered(message.get("result") or {})
        elif "id" not in message:
            self._notified(message["method"], message.get("params") or {})
        else:
            self._serve(message["id"], message["method"], message.get("params") or {})

    def _notified(self, method: str, params: Json) -> None:
        conversation = self._sessions.get(str(params.get("sessionId")))
        if method == "session/cancel" and conversation is not None:
            self._waiting = {n: c for n, c in self._waiting.items() if c is not conversation}
            conversation.cancel()

    def _serve(self, number: Any, method: str, params: Json) -> None:
        try:
            result = self._answer(number, method, params)
        except Refused as error:
            detail = {"code": error.code, "message": str(error)}
            self.send({"id": number, "error": detail})
            return
        if result is not None:
            self.send({"id": number, "result": result})

    def _answer(self, number: Any, method: str, params: Json) -> Json | None:
        """The result, or None where the end of a turn will bring it."""
        if method == "initialize":
            return self._initialize(params)
        if method == "session/new":
            return self._new(params)
        if method == "_bench/restore":
            return self._restore(params)
        if method == "session/resume":
            return self._resume(params)
        conversation = self._sessions.get(str(params.get("sessionId")))
        if conversation is None and method in ("session/prompt", "_bench/snapshot"):
            raise Refused(INVALID_PARAMS, f"no session {params.get('sessionId')!r}")
        if conversation is not None and method == "session/prompt":
            conversation.prompt(number, _prompt_text(params))
            return None
        if conversation is not None and method == "_bench/snapshot":
            return {"state": conversation.snapshot()}
        if conversation is not None and method == "_bench/continue":
            conversation.take_up(number)
            return None
        raise Refused(METHOD_NOT_FOUND, f"Method not found: {method}")

    def _initialize(self, params: Json) -> Json:
        capabilities = params.get("clientCapabilities") or {}
        self._forms = "form" in (capabilities.get("elicitation") or {})
        return {
            "protocolVersion": 1,
            "agentInfo": {"name": "bench-agent", "version": "1"},
            "agentCapabilities": {
                "loadSession": False,
                "sessionCapabilities": {"resume": {}},
                "_meta": {"bench": {"snapshot": True}},
            },
            "authMethods": [],
        }

    def _new(self, params: Json) -> Json:
        session = f"bench-{os.urandom(6).hex()}"
        self._sessions[session] = Conversation(self, self._script, session, str(params["cwd"]))
        return {"sessionId": session}

    def _restore(self, params: Json) -> Json:
        conversation = Conversation.restored(
            self, self._script, params["state"], params.get("seed")
        )
        self._sessions[conversation.session] = conversation
        return {"sessionId": conversation.session}

    def _resume(self, params: Json) -> Json:
        session = str(params.get("sessionId"))
        if not _is_session_id(session):
            raise Refused(INVALID_PARAMS, f"no session {session!r}")
        self._sessions[session] = Conversation.resumed(
            self, self._script, session, str(params["cwd"])
        )
        return {}


def _prompt_text(params: Json) -> str:
    blocks = params.get("prompt") or []
    return "\n".join(block.get("text", "") for block in blocks if block.get("type") == "text")


def _is_session_id(text: str) -> bool:
    """Whether it may become part of a file's name."""
    return len(text) <= 64 and text.isascii() and text.replace("-", "a").isalnum()


def main() -> None:
    """Play the script named by the first argument; exit code 2 when it cannot be read.

    A second argument is the same script as JSON: the reader of TOML is a quarter of
    this agent's start.
    """
    path, *parsed = sys.argv[1:] or [""]
    try:
        script = check_script(json.loads(parsed[0])) if parsed else _read(path)
    except (OSError, ValueError, ScriptError) as error:
        sys.stderr.write(f"bench-agent: {path or 'no script given'}: {error}\n")
        raise SystemExit(2) from error
    Program(script).run()


def _read(path: str) -> Script:
    with open(path, encoding="utf-8") as file:
        return read_script(file.read())
