"""An agent that goes wrong in the way its argument names."""

from __future__ import annotations

import json
import os
import sys

SAY = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "I began."}}


def send(message: dict[str, object]) -> None:
    os.write(1, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def prompt(mode: str) -> str:
    send({"method": "session/update", "params": {"sessionId": "one", "update": SAY}})
    if mode == "dies":
        sys.stderr.write("out of luck\n")
        sys.stderr.flush()
        os._exit(3)
    if mode == "garbage":
        os.write(1, b"\x00\xff not a message\n{half a mess\n" * 3)
    return "end_turn"


def main(mode: str) -> None:
    if mode == "mute":
        os._exit(4)
    for line in sys.stdin:
        request = json.loads(line)
        method = request.get("method")
        if method == "initialize":
            result: dict[str, object] = {"protocolVersion": 1, "agentCapabilities": {}}
        elif method == "session/new":
            result = {"sessionId": "one"}
        elif method == "session/prompt":
            result = {"stopReason": prompt(mode)}
        else:
            continue
        send({"id": request["id"], "result": result})


main(sys.argv[1])
