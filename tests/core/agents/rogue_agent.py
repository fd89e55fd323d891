"""An ACP agent that misbehaves in one named way. Standard library only.

Run as ``python rogue_agent.py MODE``. Without a special mode it is a plain,
well-behaved agent: it echoes the prompt. Each mode is one function below.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
SESSION = "rogue-1"


def raw(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def send(message: Json) -> None:
    raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def update(kind: str, session: str = SESSION, /, **fields: Any) -> None:
    body = {"sessionUpdate": kind, **fields}
    send({"method": "session/update", "params": {"sessionId": session, "update": body}})


def say(text: str) -> None:
    update("agent_message_chunk", content={"type": "text", "text": text})


def end(number: Any, reason: str = "end_turn") -> None:
    send({"id": number, "result": {"stopReason": reason}})


def receive() -> Json:
    line = sys.stdin.buffer.readline()
    if not line:
        raise SystemExit(0)
    message: Json = json.loads(line)
    return message


def ask(number: Any, message: str = "Which?") -> None:
    choice = {
        "type": "string",
        "oneOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}],
    }
    schema = {"type": "object", "properties": {"q": choice}, "required": ["q"]}
    params = {"sessionId": SESSION, "mode": "form", "message": message, "requestedSchema": schema}
    send({"id": number, "method": "elicitation/create", "params": params})


def permit(number: Any, kinds: tuple[str, ...] = ("allow_once", "reject_once")) -> None:
    options = [{"optionId": kind, "name": kind, "kind": kind} for kind in kinds]
    call = {"toolCallId": "t1", "title": "Run it"}
    params = {"sessionId": SESSION, "toolCall": call, "options": options}
    send({"id": number, "method": "session/request_permission", "params": params})


def answer_of(number: Any) -> Json:
    while True:
        message = receive()
        if message.get("id") == number and "method" not in message:
            return message


# -- how a prompt is answered, by mode ------------------------------------------------


def plain(number: Any, text: str) -> None:
    say(text)
    end(number)


def garbage(number: Any, text: str) -> None:
    raw(b"npm warn deprecated thing@1.0\n\n\xff\xfe\x00 not text\n{broken json\n")
    say("before")
    raw(b'progress 10%{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"rogue-1",')
    raw(b'"update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text",')
    raw(b'"text":"glued"}}}} done\n')
    say("after")
    end(number)


def not_objects(number: Any, text: str) -> None:
    raw(b'"text"\n42\n[1]\nnull\ntrue\n')
    raw(b"[" * 200_000 + b"\n")
    raw(b"9" * 10_000 + b"\n")
    say("alive")
    end(number)


def meta(number: Any, text: str) -> None:
    params = {
        "sessionId": SESSION,
        "_meta": {"sessionId": "other", "session_id": "other", "update": {"sessionUpdate": "x"}},
        "update": {
            "sessionUpdate": "agent_message_chunk",
            "content": {"type": "text", "text": "the real text", "_meta": {"text": "wrong"}},
            "_meta": {"content": {"type": "text", "text": "wrong"}},
        },
    }
    send({"method": "session/update", "params": params})
    choice = {"type": "string", "enum": ["a"]}
    params = {
        "sessionId": SESSION,
        "_meta": {"message": "wrong", "mode": "url"},
        "message": "the real question",
        "requestedSchema": {"type": "object", "properties": {"q": choice}},
    }
    send({"id": 1, "method": "elicitation/create", "params": params})
    say(answer_of(1)["result"]["content"]["q"])
    end(number)


def unknown_kinds(number: Any, text: str) -> None:
    update("compaction_update", detail={"tokens": 5})
    update("tool_call", toolCallId="t1", title="T", kind="teleport", status="pending")
    update("tool_call_update")
    send({"method": "session/update", "params": {"sessionId": SESSION, "update": "text"}})
    send({"method": "vendor/notice", "params": {"a": 1}})
    permit(1, ("allow_forever_and_ever", "reject_once"))
    say(json.dumps(answer_of(1)["result"]))
    end(number)


def stamps_end(number: Any, text: str) -> None:
    with open("stamp", "w") as file:
        file.write(str(time.monotonic()))
    end(number)


def many_updates(number: Any, text: str) -> None:
    for i in range(int(text)):
        say(str(i))
    end(number)


def late_updates(number: Any, text: str) -> None:
    end(number)
    for i in range(3):
        time.sleep(0.03)
        say(f"late {i}")


def chatters_after(number: Any, text: str) -> None:
    end(number)
    while True:
        time.sleep(0.01)
        say("more")


def dies(number: Any, text: str) -> None:
    say("about to die")
    sys.stderr.write("Traceback: out of memory\n")
    sys.stderr.flush()
    os._exit(137)


def silent(number: Any, text: str) -> None:
    """Never says anything more, and reads on."""


def ignores_cancel(number: Any, text: str) -> None:
    say("working")
    while True:
        receive()


def cancel_says_end_turn(number: Any, text: str) -> None:
    say("working")
    while receive().get("method") != "session/cancel":
        pass
    end(number)


def waits_for_cancel(number: Any, text: str) -> None:
    say("working")
    if text == "wait":
        while receive().get("method") != "session/cancel":
            pass
    end(number, "cancelled" if text == "wait" else "end_turn")


def cancel_says_error(number: Any, text: str) -> None:
    say("working")
    while receive().get("method") != "session/cancel":
        pass
    send({"id": number, "error": {"code": -32603, "message": "aborted"}})


def second_stop_reason(number: Any, text: str) -> None:
    if text == "first":
        cancel_says_end_turn(number, text)
        return
    end(int(number) - 1, "refusal")
    end("nonsense", "refusal")
    say("second")
    end(number, "max_tokens")


def long_line(number: Any, text: str) -> None:
    say("x" * int(text))
    end(number)


def endless_line(number: Any, text: str) -> None:
    say("before")
    while True:
        raw(b"x" * (1 << 20))


def much_stderr(number: Any, text: str) -> None:
    sys.stderr.write("e" * (1 << 20) + "\nthe end of it\n")
    sys.stderr.flush()
    say("not blocked")
    end(number)


def two_permissions(number: Any, text: str) -> None:
    permit("p1", ("allow_once", "reject_once"))
    permit("p2", ("reject_once", "allow_always"))
    seen: dict[str, str] = {}
    while len(seen) < 2:
        message = receive()
        seen[message["id"]] = message["result"]["outcome"].get("optionId", "cancelled")
    say(json.dumps(seen, sort_keys=True))
    end(number)


def asks(number: Any, text: str) -> None:
    ask(1, text)
    say(json.dumps(answer_of(1)["result"]))
    end(number)


def open_asks_then_cancel(number: Any, text: str) -> None:
    ask(1)
    permit(2)
    order: list[str] = []
    while "session/cancel" not in order:
        message = receive()
        if "method" in message:
            order.append(message["method"])
        else:
            order.append(json.dumps(message["result"]))
    say(json.dumps(order))
    end(number, "cancelled")


def withdraws_ask(number: Any, text: str) -> None:
    ask(1)
    send({"method": "$/cancel_request", "params": {"requestId": 1}})
    code = answer_of(1)["error"]["code"]
    ask(2)
    if text == "late":
        time.sleep(0.3)
    send({"method": "$/cancel_request", "params": {"requestId": 2}})
    say(json.dumps([code, answer_of(2)["error"]["code"]]))
    end(number)


def private_method(number: Any, text: str) -> None:
    send({"id": 1, "method": "_session/elicitation", "params": {}})
    first = answer_of(1)["error"]["code"]
    send({"id": None, "method": "fs/read_text_file", "params": {"path": "/etc/passwd"}})
    second = answer_of(None)["error"]["code"]
    send({"id": 3, "method": "elicitation/create", "params": {"mode": "url", "message": "x"}})
    third = answer_of(3)["error"]["code"]
    say(json.dumps([first, second, third]))
    end(number)


def floods_requests(number: Any, text: str) -> None:
    for i in range(5_000):
        send({"id": i, "method": "vendor/unknown", "params": {"pad": "p" * 100}})
    for _ in range(5_000):
        receive()
    say("flooded")
    end(number)


def refuses(number: Any, text: str) -> None:
    send({"id": number, "error": {"code": -32000, "message": "auth required", "data": "log in"}})


def no_stop_reason(number: Any, text: str) -> None:
    send({"id": number, "result": {}})


def strange_stop_reason(number: Any, text: str) -> None:
    end(number, "coffee_break")


def surrogates(number: Any, text: str) -> None:
    raw(b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"rogue-1","update":')
    raw(b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a\\ud800b"}}}}\n')
    raw(b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"rogue-1","update":')
    raw(b'{"sessionUpdate":"usage_update","used":NaN,"size":10}}}\n')
    end(number)


def closes_stdin(number: Any, text: str) -> None:
    os.close(0)
    say("deaf")
    end(number)
    while True:
        time.sleep(1)


def usage(number: Any, text: str) -> None:
    update("usage_update", used=10, size=100, cost={"amount": 0.5, "currency": "USD"})
    result = {"stopReason": "end_turn", "usage": {"inputTokens": 7, "outputTokens": 3}}
    send({"id": number, "result": result})


def grandchild(number: Any, text: str) -> None:
    child = subprocess.Popen(["sleep", "1000"])
    say(str(child.pid))
    end(number)


def survives_eof(number: Any, text: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    plain(number, text)


# -- the loop -----------------------------------------------------------------------


def initialize(mode: str, number: Any) -> None:
    result: Any = {"protocolVersion": 1, "agentCapabilities": {}}
    if mode == "version_two":
        result = {"protocolVersion": 2}
    if mode == "bad_initialize":
        result = "hello"
    if mode == "banner":
        raw(b"kimi has retired; see the website\n")
        raise SystemExit(0)
    if mode == "dies_at_start":
        sys.stderr.write("config: unknown approval_policy\n")
        raise SystemExit(1)
    if mode != "mute_initialize":
        send({"id": number, "result": result})


def new_session(mode: str, number: Any) -> None:
    if mode == "early_updates":
        update("agent_message_chunk", content={"type": "text", "text": "early"})
        update("agent_message_chunk", "someone-else", content={"type": "text", "text": "foreign"})
    if mode == "no_session_id":
        send({"id": number, "result": {}})
    elif mode == "refuses_session":
        send({"id": number, "error": {"code": -32000, "message": "Authentication required"}})
    elif mode != "mute_new":
        send({"id": number, "result": {"sessionId": SESSION}})


def main() -> None:
    mode = sys.argv[1] if len(sys.argv) > 1 else "plain"
    found: Callable[[Any, str], None] = globals().get(mode, plain)
    while True:
        message = receive()
        method = message.get("method")
        if method == "initialize":
            initialize(mode, message["id"])
        elif method == "session/new":
            new_session(mode, message["id"])
        elif method == "session/prompt":
            found(message["id"], message["params"]["prompt"][0]["text"])


def survive() -> None:
    """Lives on after stdin ended, as some agents do."""
    try:
        main()
    except SystemExit:
        while True:
            time.sleep(1)


if __name__ == "__main__":
    if sys.argv[1:] == ["survives_eof"]:
        survive()
    else:
        main()
