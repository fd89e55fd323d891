"""The one table of verbs. Command line, API, TUI keys and page keys are read from it.

``when`` says on which rollouts a verb makes sense; ``key`` is the key that both
screens use for it; a verb without a key is not tied to what is selected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Role: TypeAlias = Literal["viewer", "answerer", "voter", "author", "admin"]
When: TypeAlias = Literal["any", "live", "finished", "none"]


@dataclass(frozen=True, slots=True)
class Verb:
    name: str
    label: str
    help: str
    """One sentence, imperative; the command line's help."""
    role: Role
    when: When
    key: str = ""


_TABLE = (
    Verb("run", "Run", "Run a task, or every task of a folder.", "author", "none"),
    Verb("show", "Open", "Show a rollout's tree.", "viewer", "any", "enter"),
    Verb("ls", "Rollouts", "List rollouts, newest first.", "viewer", "none"),
    Verb("answer", "Answer", "Answer a waiting question.", "answerer", "live", "a"),
    Verb("nudge", "Nudge", "Send the agent a follow-up.", "author", "live", "n"),
    Verb("cancel", "Cancel", "End a rollout, or only its running turn.", "author", "live", "x"),
    Verb("branch", "Branch", "Start other ways on from a node.", "author", "any", "b"),
    Verb("score", "Score", "Run the verifier on stored nodes of a rollout.", "author", "any", "s"),
    Verb(
        "rescore",
        "Re-score",
        "Run the (edited) verifier on every stored leaf of a job or rollout.",
        "author",
        "any",
    ),
    Verb(
        "diff",
        "Compare worlds",
        "Show how files, tables and services differ between two nodes.",
        "viewer",
        "any",
        "d",
    ),
    Verb("shell", "Shell", "Open a shell in a throw-away fork of a node.", "author", "any", "t"),
    Verb(
        "rewind",
        "Rewind",
        "Go on from an earlier node; that line becomes the main one.",
        "author",
        "any",
        "w",
    ),
    Verb("restore", "Make main", "Make another line the main one.", "author", "finished", "m"),
    Verb("pause", "Pause", "Stop a rollout where it stands, clocks too.", "author", "live", "p"),
    Verb("unpause", "Go on", "Let a paused rollout go on.", "author", "live", "u"),
    Verb("resume", "Resume", "Run an interrupted rollout again.", "author", "finished"),
    Verb("check", "Check", "Find every fault of a task package.", "author", "none"),
    Verb("reap", "Reap", "Clean up after engines that died.", "admin", "none"),
    Verb("gc", "Make room", "Drop stored states until they fit a budget.", "admin", "none"),
    Verb("doctor", "Doctor", "Say what this machine can do.", "viewer", "none"),
)

VERBS: dict[str, Verb] = {verb.name: verb for verb in _TABLE}
