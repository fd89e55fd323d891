"""The local provider keeps the sandbox contract, on every rung that this machine can be made
to offer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from core.sandboxes.local import LocalProvider
from core.sandboxes.rung import Btrfs, Copy, Overlay, Reflink
from tests.contracts.sandbox_suite import SandboxSuite
from tests.core.sandboxes.disks import disk

pytestmark = pytest.mark.sandbox
LABELS = {"engine": "test"}


class TestOverlay(SandboxSuite):
    @pytest.fixture
    def provider(self, tmp_path: Path) -> LocalProvider:
        return LocalProvider(tmp_path / "store", LABELS, rung=Overlay())


@pytest.mark.slow
class TestCopy(SandboxSuite):
    @pytest.fixture
    def provider(self, tmp_path: Path) -> LocalProvider:
        return LocalProvider(tmp_path / "store", LABELS, rung=Copy())


@pytest.fixture(scope="module")
def xfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with disk("xfs", tmp_path_factory.mktemp("xfs"), 600) as place:
        yield place


@pytest.fixture(scope="module")
def btrfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with disk("btrfs", tmp_path_factory.mktemp("btrfs"), 600) as place:
        yield place


@pytest.mark.slow
class TestOverlayOnXfs(SandboxSuite):
    @pytest.fixture
    def provider(self, xfs: Path) -> LocalProvider:
        return LocalProvider(xfs / "store", LABELS, rung=Overlay())


@pytest.mark.slow
class TestReflink(SandboxSuite):
    @pytest.fixture
    def provider(self, xfs: Path) -> LocalProvider:
        return LocalProvider(xfs / "store", LABELS, rung=Reflink())


@pytest.mark.slow
class TestBtrfs(SandboxSuite):
    @pytest.fixture
    def provider(self, btrfs: Path) -> LocalProvider:
        return LocalProvider(btrfs / "store", LABELS, rung=Btrfs())
