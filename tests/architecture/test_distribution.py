"""What is installed is one complete, typed package that lives beside anybody's ``core``."""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import benchflow_workbench as bf
from tests.architecture.distribution import (
    Built,
    Installed,
    build,
    foreigner,
    install,
    pip,
    remove_foreigner,
)
from tests.architecture.repository import (
    CODE_FOLDERS,
    pyproject,
    run,
)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("distribution")]
PACKAGE = "benchflow_workbench"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(built.wheel, tmp_path_factory.mktemp("installed"))


@pytest.fixture
def beside_foreigner(installed: Installed) -> Iterator[Installed]:
    foreigner(installed.site)
    yield installed
    remove_foreigner(installed.site)


def wheel_names(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def shipped(built: Built, folders: tuple[str, ...]) -> set[str]:
    return {name for name in built.tracked if name.split("/")[0] in folders}


def test_the_wheel_holds_the_tracked_files_and_the_generated_three(built: Built) -> None:
    names = [name for name in wheel_names(built.wheel) if ".dist-info/" not in name]
    generated = {f"{PACKAGE}/{name}" for name in ("__init__.py", "__main__.py", "py.typed")}
    nested = {
        f"{PACKAGE}/{name}" for name in shipped(built, (*CODE_FOLDERS, "templates", "static"))
    }
    assert sorted(names) == sorted(nested | generated)


def test_the_wheel_has_one_top_level_name(built: Built) -> None:
    tops = {name.split("/")[0] for name in wheel_names(built.wheel)}
    assert tops == {PACKAGE, f"{PACKAGE}-{bf.__version__}.dist-info"}


def test_the_sdist_holds_the_tracked_files_of_its_folders(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {m.name.split("/", 1)[1] for m in archive.getmembers() if m.isfile()}
    listed = set(pyproject()["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"])
    expected = {name for name in built.tracked if {name, name.split("/")[0]} & listed}
    assert names == expected | {"pyproject.toml", "PKG-INFO", ".gitignore"}


def test_the_wheel_is_the_same_through_the_sdist(built: Built) -> None:
    digests = {
        hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (built.wheel, built.wheel_through_sdist)
    }
    assert len(digests) == 1


@pytest.mark.parametrize("name", CODE_FOLDERS)
def test_installed_no_flat_name_is_taken(installed: Installed, name: str) -> None:
    code = f"try:\n    import {name}\nexcept ModuleNotFoundError:\n    print('free')"
    assert installed.run(code).strip() == "free"


def test_installed_both_commands_and_the_module_answer(installed: Installed) -> None:
    for command in (
        [installed.bench, "--help"],
        [installed.root / "bin/benchflow-workbench", "--help"],
        [installed.python, "-m", PACKAGE, "--help"],
        [installed.python, "-I", "-m", PACKAGE, "--help"],
    ):
        assert "Usage" in run(command, cwd=installed.elsewhere).stdout


def test_one_version_everywhere(installed: Installed) -> None:
    code = f"""
import importlib.metadata as metadata
import {PACKAGE} as bf
from {PACKAGE}.core import __version__ as inside
print(metadata.version("benchflow-workbench"), bf.__version__, inside)
"""
    versions = set(installed.run(code).split())
    versions.add(run([installed.bench, "--version"], cwd=installed.elsewhere).stdout.split()[-1])
    assert versions == {bf.__version__}


def test_every_installed_module_imports(installed: Installed) -> None:
    code = f"""
import importlib, pathlib
import {PACKAGE}
root = pathlib.Path({PACKAGE}.__file__).parent
count = 0
for path in sorted(root.rglob("*.py")):
    parts = path.relative_to(root).with_suffix("").parts
    if "migrations" in parts or parts[-1].startswith("__"):
        continue
    importlib.import_module(".".join(({PACKAGE!r}, *parts)))
    count += 1
import sys
print(count, *sorted({{"app", "core", "tui", "web"}} & set(sys.modules)))
"""
    count, *flat = installed.run(code).split()
    assert int(count) > 50
    assert flat == []


@pytest.mark.parametrize("order", ["import core, app", f"import {PACKAGE} as bf; bf.Sandbox"])
def test_a_foreign_core_and_ours_live_in_one_process(
    beside_foreigner: Installed, order: str
) -> None:
    code = f"""
{order}
import core, app
import {PACKAGE} as bf
print(core.OWNER, app.OWNER, bf.Sandbox.__module__, sep="|")
"""
    owners = beside_foreigner.run(code).strip().split("|")
    assert owners == ["foreign core", "foreign app", f"{PACKAGE}.core.contracts.sandbox"]


def test_beside_a_foreign_core_the_command_works(beside_foreigner: Installed) -> None:
    assert "Usage" in run([beside_foreigner.bench, "--help"], cwd=beside_foreigner.elsewhere).stdout


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_pool_takes_our_values_beside_a_foreign_core(
    beside_foreigner: Installed, method: str
) -> None:
    script = beside_foreigner.elsewhere / f"pool_{method}.py"
    script.write_text(
        f"""
import multiprocessing
import {PACKAGE} as bf

def name(option):
    return option.label

if __name__ == "__main__":
    with multiprocessing.get_context({method!r}).Pool(1) as pool:
        print(pool.map(name, [bf.Option("a", "first")]))
"""
    )
    done = run([beside_foreigner.python, script], cwd=beside_foreigner.elsewhere)
    assert done.stdout.strip() == "['first']"


def test_a_bare_child_takes_a_pickled_value(beside_foreigner: Installed) -> None:
    code = f"""
import pickle, subprocess, sys
import {PACKAGE} as bf
child = "import pickle, sys; print(pickle.load(sys.stdin.buffer).label)"
data = pickle.dumps(bf.Option("a", "first"))
print(subprocess.run([sys.executable, "-c", child], input=data, capture_output=True).stdout)
"""
    assert "first" in beside_foreigner.run(code)


USER_SCRIPT = f"""
import {PACKAGE} as bf

option = bf.Option("a", "first")
reveal_type(option.label)
reveal_type(bf.StopReason.END_TURN)
reveal_type(bf.run)
bf.run("a path")
bf.Option(1, "first")
bf.no_such_name
"""


def test_a_users_type_checker_sees_our_types(installed: Installed, tmp_path: Path) -> None:
    script = tmp_path / "user.py"
    script.write_text(USER_SCRIPT)
    cache = f"--cache-dir={tmp_path / 'cache'}"
    done = run(
        [
            *(sys.executable, "-m", "mypy", "--strict", cache),
            *("--python-executable", installed.python, script),
        ],
        cwd=tmp_path,
        check=False,
    )
    output = done.stdout
    assert 'Revealed type is "str"' in output
    assert "StopReason.END_TURN" in output
    assert 'Argument 1 to "Option" has incompatible type "int"' in output
    assert 'has no attribute "no_such_name"' in output
    assert "RolloutConfig) -> " in output
    assert 'Argument 1 to "run" has incompatible type "str"' in output
    assert "Found 4 errors in 1 file" in output, output


def test_uninstalling_leaves_nothing(built: Built, tmp_path: Path) -> None:
    installed = install(built.wheel, tmp_path)
    run([installed.bench, "--help"], cwd=installed.elsewhere)
    assert any(installed.site.glob("benchflow*"))
    pip(installed, "uninstall", "--quiet", "--yes", "benchflow-workbench")
    assert list(installed.site.glob("*benchflow*")) == []
    assert not installed.bench.exists()
    assert not (installed.root / "bin/benchflow-workbench").exists()


def test_installed_the_store_migrates_and_lists(installed: Installed, tmp_path: Path) -> None:
    command = [installed.bench, "ls", "--json"]
    env = {"BENCH_HOME": str(tmp_path / "home")}
    output = run(command, cwd=installed.elsewhere, env=env).stdout
    assert json.loads(output) == []
    assert list((tmp_path / "home").glob("*"))


def test_installed_the_agents_are_still_data(installed: Installed) -> None:
    code = f"""
from {PACKAGE}.core.agents.registry import entries
print(*entries())
"""
    assert {"oracle", "nop", "bench-agent"} <= set(installed.run(code).split())
