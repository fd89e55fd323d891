"""What of the host a command needs in the sandbox, and no more."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from core.agents.runtime import SYSTEM_PATH, interpreter, locate


def program(path: Path, text: str = "#!/bin/sh\necho hi\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def targets(argv: list[str]) -> list[str]:
    runtime = locate(argv)
    assert runtime is not None
    for mount in runtime.mounts:
        assert mount.source is not None
        assert mount.source.exists()
    return [mount.target for mount in runtime.mounts]


def test_a_system_command_needs_no_mount() -> None:
    runtime = locate(["sh", "-c", "true"])
    assert runtime is not None
    assert runtime.mounts == ()
    assert runtime.path == SYSTEM_PATH


def test_a_lone_script_is_mounted_alone_and_its_folder_is_on_path(tmp_path: Path) -> None:
    script = program(tmp_path / "tools" / "agent")
    (tmp_path / "tools" / "secret").touch()
    runtime = locate([str(script)])
    assert runtime is not None
    assert [mount.target for mount in runtime.mounts] == [str(script)]
    assert runtime.path.split(":")[0] == str(tmp_path / "tools")


def test_a_program_of_a_virtual_environment_brings_it_and_its_base(tmp_path: Path) -> None:
    base = tmp_path / "python"
    python = program(base / "bin" / "python3.11")
    (base / "lib" / "python3.11").mkdir(parents=True)
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text(f"home = {base / 'bin'}\n")
    (venv / "bin" / "python").symlink_to(python)
    agent = program(venv / "bin" / "agent", f"#!{venv}/bin/python\n")
    assert targets([str(agent)]) == sorted([str(base), str(venv)])
    runtime = locate([str(venv / "bin" / "python"), "-m", "agent"])
    assert runtime is not None
    assert runtime.argv[0] == str(venv / "bin" / "python")


def test_a_link_outside_leads_to_the_virtual_environment(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    agent = program(venv / "bin" / "agent")
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\n")
    link = tmp_path / "bin" / "agent"
    link.parent.mkdir()
    link.symlink_to(os.path.relpath(agent, link.parent))
    runtime = locate([str(link)])
    assert runtime is not None
    assert runtime.argv == (str(agent),)
    assert targets([str(link)]) == [str(venv)]


def test_a_node_program_brings_the_folder_its_packages_share_and_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = program(tmp_path / "node" / "bin" / "node")
    modules = tmp_path / "app" / "node_modules"
    main = program(modules / "@org" / "agent" / "dist" / "main.js", "#!/usr/bin/env node\n")
    (modules / "@org" / "agent" / "package.json").write_text("{}")
    (modules / ".bin").mkdir()
    (modules / ".bin" / "agent").symlink_to("../@org/agent/dist/main.js")
    monkeypatch.setenv("PATH", f"{modules}/.bin:{node.parent}:/usr/bin:/bin")
    runtime = locate(["agent", "--acp"])
    assert runtime is not None
    assert runtime.argv == (str(main), "--acp")
    assert targets(["agent"]) == sorted([str(modules), str(node)])
    assert str(node.parent) in runtime.path.split(":")


def test_arguments_that_are_files_are_mounted_and_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    runtime = locate(["sh", "config.toml", "--config=config.toml", "folder", "no-such-file"])
    assert runtime is not None
    config = str(tmp_path / "config.toml")
    assert runtime.argv[1:] == (config, f"--config={config}", "folder", "no-such-file")
    assert [mount.target for mount in runtime.mounts] == [config]


def test_a_package_file_far_above_is_not_a_reason_to_mount_everything(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text("{}")
    script = program(tmp_path / "a" / "b" / "c" / "d" / "agent")
    assert targets([str(script)]) == [str(script)]


def test_a_command_that_is_not_there_is_none() -> None:
    assert locate(["no-such-agent-anywhere"]) is None
    assert interpreter("/no/such/python") is None


def test_links_that_go_round_in_circles_end(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.symlink_to(two)
    two.symlink_to(one)
    assert locate([str(one)]) is None


def test_our_own_interpreter_is_found_with_its_library() -> None:
    found = interpreter(sys.executable)
    assert found is not None
    assert Path(found.argv[0]).resolve() == Path(sys.executable).resolve()


def test_a_version_managers_shim_leads_to_the_program_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, tools = tmp_path / "manager", tmp_path / "tools"
    real = manager / "versions" / "1" / "bin" / "agent"
    for place, text in (
        (real, "#!/bin/sh\necho real\n"),
        (manager / "shims" / "agent", "#!/bin/sh\nexec pyenv exec agent\n"),
        (tools / "pyenv", f"#!/bin/sh\necho {real}\n"),
    ):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(0o755)
    monkeypatch.setenv("PATH", f"{manager / 'shims'}:{tools}:/usr/bin:/bin")
    runtime = locate(["agent"])
    assert runtime is not None
    assert runtime.argv == (str(real),)
    assert [mount.target for mount in runtime.mounts] == [str(real)]
