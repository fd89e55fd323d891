"""Make docs/pictures/demo.svg again: a real demo, caught in a terminal while its tree grows.

    .venv/bin/python .ci/picture.py

Runs ``bench demo`` in a tmux of its own, keeps the last frame in which a line
still ran, and draws exactly that text in exactly those colours. Needs tmux.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/pictures/demo.svg"
COLUMNS, LINES = 100, 16
SECONDS = 60.0
STEP = 0.05


def main() -> int:
    if shutil.which("tmux") is None:
        print("tmux is missing. Run: apt-get install -y tmux", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        frame = live_frame(Path(folder))
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(to_svg(frame, "make demo"), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}")
    return 0


def live_frame(folder: Path) -> str:
    """The last frame of a demo with a child line that was still running, colours included."""
    tmux = ["tmux", "-S", str(folder / "socket")]
    demo = f"{ROOT}/.venv/bin/bench demo --jobs-dir {folder}/jobs; sleep 1"
    size = ["-x", str(COLUMNS), "-y", str(LINES)]
    environment = os.environ | {"BENCH_HOME": f"{folder}/home", "TERM": "xterm-256color"}
    subprocess.run([*tmux, "new-session", "-d", *size, demo], check=True, env=environment)
    best, until = "", time.monotonic() + SECONDS
    while time.monotonic() < until:
        seen = subprocess.run(
            [*tmux, "capture-pane", "-e", "-p"], capture_output=True, text=True, check=False
        )
        if seen.returncode != 0:
            break
        if is_live(seen.stdout):
            best = seen.stdout
        time.sleep(STEP)
    else:
        subprocess.run([*tmux, "kill-server"], check=False)
    if not best:
        raise SystemExit("no frame showed a running line; run `make demo` and see why")
    return best


def is_live(frame: str) -> bool:
    """Whether a whole tree is on screen with a line that still works for its reward."""
    text = Text.from_ansi(frame).plain
    return "◆ n1" in text and re.search(r"├─ line \d.*\)  \(running\)", text) is not None


def to_svg(frame: str, title: str) -> str:
    """The frame as a picture that loads nothing from elsewhere."""
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, legacy_windows=False
    )
    lines = frame.rstrip().splitlines()
    first = next(at for at, line in enumerate(lines) if "◆" in line)
    for line in lines[first:]:
        console.print(Text.from_ansi(line), no_wrap=True, crop=True, highlight=False)
    svg = console.export_svg(title=title, unique_id="demo")
    return re.sub(r"\s*@font-face \{.*?\}\n", "\n", svg, flags=re.DOTALL)


if __name__ == "__main__":
    sys.exit(main())
