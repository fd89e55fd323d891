"""One machine for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.machine import Machine, machine


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path) as made:
        yield made
