"""A shell in a node, driven through a terminal as a person drives it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.machine import ROOT, Machine
from tests.e2e.test_nodes import leaf, run_colours, tree

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


class Typist:
    """One command on a terminal of its own, and who types at it."""

    def __init__(self, bench: Machine, *words: str) -> None:
        self.outer, inner = pty.openpty()
        self.resize(24, 200)

        def own_terminal() -> None:
            os.setsid()
            fcntl.ioctl(inner, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchflow_workbench", *words],
            cwd=ROOT,
            env={**bench.env(), "TERM": "dumb"},
            stdin=inner,
            stdout=inner,
            stderr=inner,
            preexec_fn=own_terminal,
        )
        os.close(inner)
        self.seen = ""

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.outer, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.outer, text.encode())

    def until(self, pattern: str, seconds: float = 60) -> re.Match[str]:
        """What is printed from here on, up to the first match."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = re.search(pattern, self.seen)
            if found:
                self.seen = self.seen[found.end() :]
                return found
            if select.select([self.outer], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.outer, 4096).decode(errors="replace")
                except OSError:
                    break
        raise AssertionError(f"no {pattern!r} in {self.seen!r}")

    def run(self, command: str) -> str:
        """One command's output; its echo and the next prompt are not part of it."""
        self.type(f"{command}; echo :$?:\r")
        self.until(r"echo :\$\?:\r\n")
        return self.until(r"(?s)(.*?):\d+:\r\n.*?\] \S+\$ ").group(1).replace("\r\n", "\n")


@contextmanager
def typist(bench: Machine, *words: str) -> Iterator[Typist]:
    made = Typist(bench, *words)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.terminate()
        made.process.wait(30)
        os.close(made.outer)


def test_a_shell_is_in_the_node_and_leaves_nothing(bench: Machine) -> None:
    run_colours(bench)
    side = leaf(bench, 1)
    with typist(bench, "shell", "last", side) as person:
        person.until(rf"\[\S+:{side} agent\] \S+\$ ")
        assert person.run("cat colour.txt") == "r\n"
        assert person.run("stty size") == "24 200\n"
        person.resize(40, 220)
        person.type("true\r")
        person.until(r"\$ ")
        assert person.run("stty size") == "40 220\n"
        person.run("echo changed > colour.txt")
        person.type("sh -c 'echo be''gun; exec sleep 100'\r")
        person.until(r"begun\r\n")
        person.type("\x03")
        person.until(r"\$ ")
        assert person.run("test -t 0 && echo a terminal") == "a terminal\n"
        person.type("exit 7\r")
        assert person.process.wait(60) == 7
    assert bench.left_behind() == []
    rollout = tree(bench)["id"]
    found = bench.json("diff", f"{rollout}:{side}", f"{rollout}:{leaf(bench, 0)}")
    (change,) = [item for item in found["files"] if item["path"].endswith("colour.txt")]
    assert change["text"].splitlines()[-2:] == ["-r", "+b"]


def test_a_shell_that_is_killed_leaves_nothing(bench: Machine) -> None:
    run_colours(bench)
    with typist(bench, "shell", "last", "--as", "verifier") as person:
        person.until(r"verifier\] \S+# ")
        person.type("sleep 100 & sleep 100\r")
        person.until(r"sleep 100\r\n")
        person.process.terminate()
        assert person.process.wait(60) == 130
    assert bench.left_behind() == []


def test_a_node_that_cannot_be_forked_opens_no_shell(bench: Machine) -> None:
    run_colours(bench)
    done = bench.run("shell", "last", "n1")
    assert done.returncode == 1
    assert b"nothing was captured at node n1" in done.stderr
