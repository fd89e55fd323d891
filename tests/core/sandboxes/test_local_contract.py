"""The local provider keeps the sandbox contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.sandboxes.local import LocalProvider
from tests.contracts.sandbox_suite import SandboxSuite

pytestmark = pytest.mark.sandbox


class TestLocalProvider(SandboxSuite):
    @pytest.fixture
    def provider(self, tmp_path: Path) -> LocalProvider:
        return LocalProvider(tmp_path / "store", {"engine": "test"})
