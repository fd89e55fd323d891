"""An ACP agent that keeps its sessions in its home. Standard library only.

Run as ``python home_agent.py [SWITCH ...]``. It knows what it was told in every
turn, says so in each answer as one JSON object, and writes a note into its home.

Switches: ``resume`` and ``load`` advertise the two ways to take a session up;
``refuse-resume`` and ``refuse-load`` answer them "method not found";
``deny-resume`` with another error; ``replay-late`` replays after the answer;
``resume-replays`` breaks the rule that resume does not; ``hang`` never acts after
the first prompt of a session that was taken up; ``keep-settings`` takes mode and
options up too; ``stubborn`` refuses to set the mode; ``lying`` accepts and ignores;
``asks-first`` wants a permission while it takes a session up.

Prompts: ``mode X`` and ``effort X`` change what is in force, ``ask X`` asks the
user, ``hush`` is never answered; anything else is remembered.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]
PORT = 47_113
SWITCHES = frozenset(sys.argv[1:])
HOME = Path(os.environ["HOME"])
EFFORTS = ("low", "high")
MODES = ("careful", "bold")


def send(message: Json) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def receive() -> Json:
    line = sys.stdin.readline()
    if not line:
        raise SystemExit(0)
    message: Json = json.loads(line)
    return message


class HomeAgent:
    """One process; knows at most one session."""

    def __init__(self) -> None:
        self.session = ""
        self.mode, self.effort = MODES[0], EFFORTS[0]
        self.history: list[str] = []
        self.taken_up = False
        self.listening = listen()

    # -- sessions ---------------------------------------------------------------

    @property
    def file(self) -> Path:
        return HOME / ".home-agent" / f"{self.session}.json"

    def settings(self) -> Json:
        modes = [{"id": item, "name": item} for item in MODES]
        efforts = [{"value": item, "name": item} for item in EFFORTS]
        effort = {"id": "effort", "name": "Effort", "type": "select"}
        return {
            "modes": {"currentModeId": self.mode, "availableModes": modes},
            "configOptions": [{**effort, "currentValue": self.effort, "options": efforts}],
        }

    def new(self) -> Json:
        self.session = f"home-{os.urandom(4).hex()}"
        self.save()
        return {"sessionId": self.session, **self.settings()}

    def save(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        kept = {"history": self.history, "mode": self.mode, "effort": self.effort}
        self.file.write_text(json.dumps(kept))

    def take_up(self, number: Any, method: str, params: Json) -> None:
        way = method.removeprefix("session/")
        if way not in SWITCHES or f"refuse-{way}" in SWITCHES:
            fail(number, -32601, f"Method not found: {method}")
            return
        self.session = params["sessionId"]
        if f"deny-{way}" in SWITCHES or not self.file.is_file():
            fail(number, -32002, f"no session {self.session}")
            return
        kept = json.loads(self.file.read_text())
        self.history, self.taken_up = kept["history"], True
        if "keep-settings" in SWITCHES:
            self.mode, self.effort = kept["mode"], kept["effort"]
        if "asks-first" in SWITCHES:
            self.history.append(self.permission())
        replays = way == "load" or "resume-replays" in SWITCHES
        late = "replay-late" in SWITCHES
        if replays and not late:
            self.replay()
        send({"id": number, "result": self.settings()})
        if replays and late:
            self.replay()

    def replay(self) -> None:
        for index, text in enumerate(self.history):
            self.update("user_message_chunk", content={"type": "text", "text": text})
            self.tool(f"replayed-{index}")
            self.say(f"replayed {text}")

    # -- turns --------------------------------------------------------------------

    def prompt(self, number: Any, text: str) -> None:
        if text == "hush":
            return
        self.update("user_message_chunk", content={"type": "text", "text": text})
        if self.taken_up and "hang" in SWITCHES:
            return
        word, _, rest = text.partition(" ")
        if word == "mode":
            self.mode = rest
            self.update("current_mode_update", currentModeId=rest)
        elif word == "effort":
            self.effort = rest
            options = self.settings()["configOptions"]
            self.update("config_option_update", configOptions=options)
        elif word == "ask":
            self.history.append(self.ask(rest))
        else:
            self.history.append(text)
        (HOME / f"note-{len(self.history)}.txt").write_text(text)
        with open("turns.txt", "a") as file:
            file.write(text + "\n")
        self.tool(f"call-{len(self.history)}")
        self.save()
        self.say(json.dumps(self.facts()))
        send({"id": number, "result": {"stopReason": "end_turn"}})

    def facts(self) -> Json:
        """What a test wants to know of this process."""
        seed = os.environ.get("BENCH_SEED", "")
        return {
            "history": self.history,
            "mode": self.mode,
            "effort": self.effort,
            "seed": seed,
            "line": os.environ.get("BENCH_LINE", ""),
            "draw": random.Random(seed).random(),
            "notes": {item.name: item.read_text() for item in sorted(HOME.glob("note-*.txt"))},
            "network": os.readlink("/proc/self/ns/net"),
            "loopback": self.listening and answers(),
        }

    def ask(self, question: str) -> str:
        params = {"sessionId": self.session, "mode": "form", "message": question}
        text = {"type": "object", "properties": {"answer": {"type": "string"}}}
        result = request("elicitation/create", {**params, "requestedSchema": text})
        return str(result.get("content", {}).get("answer", result.get("action")))

    def permission(self) -> str:
        options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
        call = {"toolCallId": "by-itself", "title": "rm -rf"}
        params = {"sessionId": self.session, "toolCall": call, "options": options}
        result = request("session/request_permission", params)
        return f"permission {result['outcome']['outcome']}"

    # -- telling ------------------------------------------------------------------

    def update(self, kind: str, **fields: Any) -> None:
        body = {"sessionUpdate": kind, **fields}
        params = {"sessionId": self.session, "update": body}
        send({"method": "session/update", "params": params})

    def say(self, text: str) -> None:
        self.update("agent_message_chunk", content={"type": "text", "text": text})

    def tool(self, call: str) -> None:
        self.update("tool_call", toolCallId=call, title="note", status="in_progress")
        self.update("tool_call_update", toolCallId=call, status="completed")


def listen() -> bool:
    """Listen on loopback for as long as this process lives."""
    server = socket.socket()
    try:
        server.bind(("127.0.0.1", PORT))
    except OSError:
        return False
    server.listen()
    _open.append(server)
    return True


_open: list[socket.socket] = []


def answers() -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", PORT), 5):
        return True
    return False


def request(method: str, params: Json) -> Json:
    """Ask the client and wait; nothing else is expected meanwhile."""
    send({"id": "ask", "method": method, "params": params})
    while (message := receive()).get("id") != "ask":
        pass
    result: Json = message["result"]
    return result


def fail(number: Any, code: int, why: str) -> None:
    send({"id": number, "error": {"code": code, "message": why}})


def initialize(number: Any) -> None:
    sessions: Json = {"resume": {}} if "resume" in SWITCHES or "refuse-resume" in SWITCHES else {}
    load = bool(SWITCHES & {"load", "refuse-load"})
    capabilities = {"loadSession": load, "sessionCapabilities": sessions}
    result = {"protocolVersion": 1, "agentCapabilities": capabilities}
    send({"id": number, "result": result})


def set_mode(agent: HomeAgent, number: Any, mode: str) -> None:
    if "stubborn" in SWITCHES:
        fail(number, -32602, f"no mode {mode}")
        return
    agent.mode = mode
    send({"id": number, "result": {}})


def set_option(agent: HomeAgent, number: Any, value: str) -> None:
    if "lying" not in SWITCHES:
        agent.effort = value
    send({"id": number, "result": {"configOptions": agent.settings()["configOptions"]}})


def main() -> None:
    agent = HomeAgent()
    while True:
        message = receive()
        method, number = message.get("method"), message.get("id")
        params: Json = message.get("params") or {}
        if method == "initialize":
            initialize(number)
        elif method == "session/new":
            send({"id": number, "result": agent.new()})
        elif method in ("session/resume", "session/load"):
            agent.take_up(number, method, params)
        elif method == "session/set_mode":
            set_mode(agent, number, params["modeId"])
        elif method == "session/set_config_option":
            set_option(agent, number, params["value"])
        elif method == "session/prompt":
            agent.prompt(number, params["prompt"][0]["text"])


if __name__ == "__main__":
    main()
