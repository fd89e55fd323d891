"""Builds wheel and sdist from what git knows, and installs them where only they are."""

from __future__ import annotations

import shutil
import sys
import sysconfig
import tarfile
from dataclasses import dataclass
from pathlib import Path

from tests.architecture.repository import copy_tracked, run, tracked_files


@dataclass(frozen=True, slots=True)
class Built:
    """``tracked`` is what git knew when the copy was made that all three were built from."""

    tracked: tuple[str, ...]
    wheel: Path
    sdist: Path
    wheel_through_sdist: Path


@dataclass(frozen=True, slots=True)
class Installed:
    """An empty environment that holds one wheel; ``elsewhere`` is a folder to run from."""

    root: Path
    elsewhere: Path

    @property
    def python(self) -> Path:
        return self.root / "bin/python"

    @property
    def bench(self) -> Path:
        return self.root / "bin/bench"

    @property
    def site(self) -> Path:
        (folder,) = self.root.glob("lib/python*/site-packages")
        return folder

    def run(self, code: str) -> str:
        """What a fresh interpreter of this environment prints, from another folder."""
        return run([self.python, "-c", code], cwd=self.elsewhere).stdout


def hatch(folder: Path, target: str) -> Path:
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", "dist"]
    run(command, cwd=folder, env={"TMPDIR": str(scratch)})
    assert list(scratch.iterdir()) == [], "the build left something behind"
    scratch.rmdir()
    (made,) = (folder / "dist").glob("*.whl" if target == "wheel" else "*.tar.gz")
    return made


def build(folder: Path) -> Built:
    """Build both from a copy of the checkout, and a second wheel from the sdist."""
    tracked = tuple(tracked_files())
    checkout = copy_tracked(folder / "checkout", tracked)
    wheel, sdist = hatch(checkout, "wheel"), hatch(checkout, "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return Built(tracked, wheel, sdist, hatch(unpacked, "wheel"))


def install(wheel: Path, folder: Path) -> Installed:
    """Install without dependencies; those of this environment are lent by one path line."""
    root = folder / "venv"
    run([sys.executable, "-m", "venv", "--without-pip", root])
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    installed = Installed(root, elsewhere)
    pip(installed, "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    lent = sysconfig.get_path("purelib")
    (installed.site / "lent-dependencies.pth").write_text(f"{lent}\n")
    return installed


def pip(installed: Installed, *arguments: str) -> None:
    """This environment's pip, acting on the other one."""
    command = [sys.executable, "-m", "pip", "--python", installed.python, *arguments]
    run(command, cwd=installed.elsewhere, env={"PIP_DISABLE_PIP_VERSION_CHECK": "1"})


def foreigner(site: Path) -> None:
    """Another distribution that ships top-level ``core`` and ``app``, as many projects do."""
    for name in ("core", "app"):
        (site / name).mkdir()
        (site / name / "__init__.py").write_text(f"OWNER = 'foreign {name}'\n")


def remove_foreigner(site: Path) -> None:
    for name in ("core", "app"):
        shutil.rmtree(site / name)
