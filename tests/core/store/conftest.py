from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core.store.sql import SqlStore
from tests.core.store.helpers import Clock, opened


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[SqlStore]:
    async with opened(tmp_path / "store", clock=clock) as made:
        yield made
