"""Each import contract of pyproject.toml breaks when somebody plants the import it forbids."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.architecture.repository import CODE_FOLDERS, ROOT, pyproject, run

LINT = Path(sys.executable).with_name("lint-imports")

PLANTED = [
    ("top", {"tui/planted.py": "import web"}),
    ("top", {"web/planted.py": "from tui import something"}),
    ("top", {"tui/planted.py": "import app"}),
    ("top", {"core/kernel/planted.py": "def f():\n    import app"}),
    ("top", {"core/services/planted.py": "if False:\n    from web import page"}),
    ("core", {"core/contracts/planted.py": "from core.kernel import tree"}),
    ("core", {"core/kernel/planted.py": "from core.tasks import models"}),
    ("core", {"core/kernel/planted.py": "def f():\n    import core.store"}),
    ("core", {"core/store/planted.py": "from core.services import planted"}),
    ("core", {"core/brand_new/__init__.py": ""}),
    (
        "cycles",
        {
            "core/users/planted.py": "from core.jobs import planted",
            "core/jobs/planted.py": "def f():\n    from core.users import planted",
        },
    ),
    ("pure", {"core/kernel/planted.py": "import sqlmodel"}),
    ("pure", {"core/kernel/planted.py": "def f():\n    from numpy import mean"}),
    ("pure", {"core/contracts/planted.py": "import docker.errors"}),
    ("face", {"core/services/planted.py": "import benchflow_workbench"}),
    ("face", {"app/planted.py": "from benchflow_workbench import Sandbox"}),
    ("screens", {"tui/planted.py": "from core.store import ids"}),
    ("screens", {"web/planted.py": "def f():\n    from core.sandboxes import local"}),
    ("ui-libraries", {"core/services/planted.py": "import textual.app"}),
    ("ui-libraries", {"core/jobs/planted.py": "def f():\n    import rich"}),
    ("tables", {"core/jobs/planted.py": "from core.store import tables"}),
    ("tables", {"core/services/planted.py": "from core.store.tables import RolloutRow"}),
]


def lint(folder: Path, contract: str) -> tuple[int, str]:
    done = run([LINT, "--no-cache", "--no-logo", "--contract", contract], cwd=folder, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("contracts") / "checkout"
    folder.mkdir()
    for name in CODE_FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def identifiers() -> list[str]:
    return [contract["id"] for contract in pyproject()["tool"]["importlinter"]["contracts"]]


def test_every_contract_has_a_planted_import() -> None:
    assert {contract for contract, _ in PLANTED} == set(identifiers())


def test_the_checkout_keeps_every_contract(pristine: Path) -> None:
    done = run([LINT, "--no-cache", "--no-logo"], cwd=pristine, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("contract", "files"), PLANTED)
def test_a_planted_import_breaks_its_contract(
    pristine: Path, tmp_path: Path, contract: str, files: dict[str, str]
) -> None:
    folder = shutil.copytree(pristine, tmp_path / "checkout")
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n")
    code, output = lint(folder, contract)
    assert code == 1, output
    assert "Contracts: 0 kept, 1 broken." in output or "brand_new" in output
