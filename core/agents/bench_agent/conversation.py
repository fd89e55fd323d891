"""One session of ``bench-agent``. Standard library only.

Invariant: all that a session knows is ``state``, one JSON object, so at rest or
while a question waits it can be taken out and put into another process. What is
not in it is only what runs (a tool's thread) and whom to answer.
"""

from __future__ import annotations

import json
import os

from core.agents.bench_agent.script import Script, ScriptError, Step, fill, holds
from core.agents.bench_agent.tools import Job, http_call, write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    Json = dict[str, Any]

    class Client(Protocol):
        """The other side, as far as a conversation speaks to it."""

        @property
        def forms(self) -> bool: ...

        def send(self, message: Json) -> None: ...

        def request(self, method: str, params: Json, conversation: Conversation) -> None: ...

        def job_done(self, conversation: Conversation, job: Job) -> None: ...


VERSION = 1
INVALID_PARAMS, INTERNAL_ERROR, BUSY = -32602, -32603, -32001
_CHOICE, _OTHER = "answer", "other"


class Refused(Exception):
    """A request that is answered with an error object."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Conversation:
    """Plays the script's turns, one prompt at a time."""

    def __init__(self, client: Client, script: Script, session: str, cwd: str) -> None:
        self._client = client
        self._script = script
        self._reply_to: Any = None
        self._job: Job | None = None
        # The tag lives in memory only: a session that has it is this one, restored exactly.
        self.state: Json = {
            "version": VERSION,
            "session": session,
            "cwd": cwd,
            "variables": {
                "tag": os.urandom(8).hex(),
                "seed": int(os.environ.get("BENCH_SEED", "0")),
                "prompt": "",
                "turn": 0,
            },
            "turns": 0,
            "position": 0,
            "active": False,
            "pending": None,
            "calls": 0,
            "messages": 0,
        }

    @classmethod
    def restored(
        cls, client: Client, script: Script, state: Json, seed: int | None
    ) -> Conversation:
        """A session from a snapshot, with a seed of its own where one is given."""
        if not isinstance(state, dict) or state.get("version") != VERSION:
            raise Refused(INVALID_PARAMS, f"not a session state of version {VERSION}")
        conversation = cls(client, script, state["session"], state["cwd"])
        conversation.state = _copy(state)
        if seed is not None:
            conversation.state["variables"]["seed"] = seed
        return conversation

    @classmethod
    def resumed(cls, client: Client, script: Script, session: str, cwd: str) -> Conversation:
        """A session from its file, as the end of its last turn left it; the tag is a new one."""
        conversation = cls(client, script, session, cwd)
        tag = conversation.state["variables"]["tag"]
        try:
            with open(_session_file(session), encoding="utf-8") as file:
                conversation.state = json.load(file)
        except (OSError, ValueError) as error:
            raise Refused(INVALID_PARAMS, f"no session {session!r}: {error}") from error
        conversation.state["variables"]["tag"] = tag
        return conversation

    @property
    def session(self) -> str:
        return str(self.state["session"])

    # -- turns ----------------------------------------------------------------------

    def prompt(self, number: Any, text: str) -> None:
        """Begin the next turn; request ``number`` is answered at its end."""
        if self.state["active"]:
            raise Refused(BUSY, "a turn is running")
        variables = self.state["variables"]
        variables["prompt"] = text
        variables["turn"] = self.state["turns"] + 1
        self.state.update(active=True, position=0, pending=None)
        self._reply_to = number
        self._advance()

    def take_up(self, number: Any) -> None:
        """Raise the pending question again; request ``number`` is answered at the turn's end."""
        if not self.state["active"] or self.state["pending"] is None or self._reply_to is not None:
            raise Refused(INVALID_PARAMS, "no question is pending to go on from")
        self._reply_to = number
        self._raise_question()

    def snapshot(self) -> Json:
        """Everything this session knows. Refused while a tool runs."""
        if self._job is not None:
            raise Refused(BUSY, "a tool is running; ask again when it is done")
        return _copy(self.state)

    def cancel(self) -> None:
        """End the running turn, and the tool in it."""
        if self.state["active"]:
            self.stop_tool()
            call = f"call-{self.state['calls']}"
            status = {"toolCallId": call, "status": "failed"}
            if self.state["calls"]:
                self._update({"sessionUpdate": "tool_call_update", **status})
            self._finish("cancelled")

    def stop_tool(self) -> None:
        """Kill what runs; its result is never reported."""
        if self._job is not None:
            self._job.stop()
            self._job = None

    def _advance(self) -> None:
        steps = self._script.steps(self.state["turns"])
        try:
            while self.state["position"] < len(steps):
                step = steps[self.state["position"]]
                if holds(step.when, self.state["variables"]) and not self._play(step):
                    return
                self.state["position"] += 1
        except ScriptError as error:
            self._end({"error": {"code": INTERNAL_ERROR, "message": f"script: {error}"}})
            return
        self._finish("end_turn")

    def _finish(self, stop_reason: str) -> None:
        self._end({"result": {"stopReason": stop_reason}})

    def _end(self, answer: Json) -> None:
        self.state.update(active=False, pending=None, turns=self.state["turns"] + 1)
        self._save()
        number, self._reply_to = self._reply_to, None
        if number is not None:
            self._client.send({"id": number, **answer})

    # -- steps ----------------------------------------------------------------------

    def _play(self, step: Step) -> bool:
        """Do one step; False where its end comes later."""
        value = fill(step.value, self.state["variables"], self._script.names)
        if step.kind in ("say", "think"):
            self._speak(step.kind, value)
            return True
        self.state["calls"] += 1
        if step.kind == "write":
            self._write(step, value)
            return True
        if step.kind == "ask":
            self._ask(step, value)
        else:
            self._start(step, value)
        return False

    def _speak(self, kind: str, text: str) -> None:
        self.state["messages"] += 1
        name = "agent_message_chunk" if kind == "say" else "agent_thought_chunk"
        message = f"message-{self.state['messages']}"
        content = {"type": "text", "text": str(text)}
        self._update({"sessionUpdate": name, "messageId": message, "content": content})

    def _write(self, step: Step, value: Json) -> None:
        self._open_call(step.title or f"Write {value['path']}", "edit", value)
        try:
            path = write_file(self.state["cwd"], value["path"], value["text"])
            self._close_call({"path": path}, failed=False)
        except OSError as error:
            self._close_call({"error": str(error)}, failed=True)

    def _start(self, step: Step, value: Any) -> None:
        if step.kind == "run":
            cwd = self.state["cwd"]
            self._open_call(step.title or value, "execute", {"command": value})
            self._job = Job(lambda job: job.shell(value, cwd, step.timeout), self._report)
            return
        title = step.title or f"{value['method'].upper()} {value['url']}"
        self._open_call(title, "fetch", value)
        self._job = Job(lambda _: http_call(value, step.timeout), self._report)

    def _report(self, job: Job) -> None:
        self._client.job_done(self, job)

    def job_done(self, job: Job) -> None:
        """A tool ended: report it, keep its result, go on."""
        if job is not self._job:
            return
        self._job = None
        result = job.result
        failed = (
            bool(result.get("exit_code")) or "error" in result or result.get("timed_out", False)
        )
        self._close_call(result, failed=failed)
        self._keep(result)
        self._advance()

    def _keep(self, result: Any) -> None:
        """Save the result of the step at hand, and step on."""
        step = self._script.steps(self.state["turns"])[self.state["position"]]
        if step.save:
            self.state["variables"][step.save] = result
        self.state["position"] += 1

    # -- questions --------------------------------------------------------------------

    def _ask(self, step: Step, value: Json) -> None:
        self._open_call(step.title or value["question"], "other", value)
        options = [
            item if isinstance(item, dict) else {"value": item} for item in value.get("options", [])
        ]
        self.state["pending"] = {**value, "options": options, "call": f"call-{self.state['calls']}"}
        self._raise_question()

    def _raise_question(self) -> None:
        pending = self.state["pending"]
        if self._client.forms:
            params = {"mode": "form", "message": pending["question"]}
            params |= {"requestedSchema": _form(pending), "toolCallId": pending["call"]}
            self._client.request("elicitation/create", {"sessionId": self.session, **params}, self)
            return
        call = {"toolCallId": pending["call"], "title": pending["question"]}
        options = [
            {
                "optionId": item["value"],
                "name": item.get("label", item["value"]),
                "kind": "allow_once",
            }
            for item in pending["options"]
        ]
        params = {"sessionId": self.session, "toolCall": call, "options": options}
        self._client.request("session/request_permission", params, self)

    def answered(self, result: Json) -> None:
        """The user's answer: keep it and go on."""
        if self.state["pending"] is None:
            return
        self.state["pending"] = None
        answer = _read_answer(result)
        self._close_call(answer, failed=answer["action"] != "accept")
        self._keep(answer)
        self._advance()

    # -- telling ----------------------------------------------------------------------

    def _open_call(self, title: str, kind: str, raw_input: Any) -> None:
        call = {"toolCallId": f"call-{self.state['calls']}", "title": title, "kind": kind}
        status = {"status": "in_progress", "rawInput": raw_input}
        self._update({"sessionUpdate": "tool_call", **call, **status})

    def _close_call(self, raw_output: Any, *, failed: bool) -> None:
        status = "failed" if failed else "completed"
        call = f"call-{self.state['calls']}"
        update = {"sessionUpdate": "tool_call_update", "toolCallId": call, "status": status}
        self._update({**update, "rawOutput": raw_output})

    def _update(self, update: Json) -> None:
        params = {"sessionId": self.session, "update": update}
        self._client.send({"method": "session/update", "params": params})

    def _save(self) -> None:
        """Keep the session for ``session/resume``; without a home there is nothing to resume."""
        kept = {**self.state, "variables": {**self.state["variables"], "tag": ""}}
        path = _session_file(self.session)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path + ".new", "w", encoding="utf-8") as file:
                json.dump(kept, file)
            os.replace(path + ".new", path)
        except OSError:
            return


def _copy(state: Json) -> Json:
    """A state is JSON, and so is its copy."""
    copied: Json = json.loads(json.dumps(state))
    return copied


def _session_file(session: str) -> str:
    home = os.environ.get("HOME") or "/nonexistent"
    return os.path.join(home, ".bench-agent", f"{session}.json")


def _form(pending: Json) -> Json:
    """The form of a question: its options, and a line of free text where it allows that."""
    properties: Json = {}
    other = pending.get("free_text")
    if pending["options"]:
        choices = [
            {
                "const": item["value"],
                "title": item.get("label", item["value"]),
                **({"description": item["description"]} if item.get("description") else {}),
            }
            for item in pending["options"]
        ]
        properties[_CHOICE] = {"type": "string", "oneOf": choices}
        if "default" in pending:
            properties[_CHOICE]["default"] = pending["default"]
    if other or not properties:
        title = {"title": other} if isinstance(other, str) else {}
        properties[_OTHER] = {"type": "string", **title}
    required = [] if len(properties) > 1 else list(properties)
    return {"type": "object", "properties": properties, "required": required}


def _read_answer(result: Json) -> Json:
    """The answer of either way to ask, as ``{action, value}``."""
    outcome = result.get("outcome")
    if isinstance(outcome, dict):
        chosen = outcome.get("optionId")
        return {"action": "accept" if chosen is not None else "cancel", "value": chosen or ""}
    content = result.get("content") or {}
    value = content.get(_OTHER) or content.get(_CHOICE) or ""
    return {"action": result.get("action", "cancel"), "value": value}
