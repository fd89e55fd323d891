"""Settings: environment variables, read once, frozen. The command line overrides them."""

from __future__ import annotations

import getpass
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """``home`` is the store's folder; ``actor`` is the name a person acts under."""

    home: Path
    database_url: str | None
    jobs_dir: str
    actor: str


def read_settings() -> Settings:
    """BENCH_HOME, BENCH_DATABASE_URL, BENCH_JOBS_DIR, BENCH_ACTOR, or their defaults."""
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    home = os.environ.get("BENCH_HOME") or os.path.join(data, "benchflow-workbench")
    return Settings(
        home=Path(home).absolute(),
        database_url=os.environ.get("BENCH_DATABASE_URL") or None,
        jobs_dir=os.environ.get("BENCH_JOBS_DIR") or "jobs",
        actor=os.environ.get("BENCH_ACTOR") or _login(),
    )


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"
