"""The smallest ACP agent: standard library only, writes the greeting and says so."""

from __future__ import annotations

import json
import sys


def send(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


for line in sys.stdin:
    request = json.loads(line)
    method, params = request.get("method"), request.get("params", {})
    if method == "initialize":
        result: dict[str, object] = {"protocolVersion": 1, "agentCapabilities": {}}
    elif method == "session/new":
        result = {"sessionId": "one"}
    elif method == "session/prompt":
        with open("greeting.txt", "w") as file:
            file.write("hello, world\n")
        update = {
            "sessionUpdate": "agent_message_chunk",
            "content": {"type": "text", "text": "I wrote the greeting."},
        }
        send({"method": "session/update", "params": {"sessionId": "one", "update": update}})
        result = {"stopReason": "end_turn"}
    else:
        continue
    send({"id": request["id"], "result": result})
