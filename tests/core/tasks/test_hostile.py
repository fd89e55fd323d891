"""Whatever a package holds, reading it ends in faults, soon, and never in a traceback."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.contracts.errors import Fault
from core.tasks.check import check_task
from core.tasks.files import MAX_BYTES
from core.tasks.located import MAX_DEPTH, MAX_NODES, Located, Unreadable
from core.tasks.manifest import parse_manifest
from core.tasks.package import load_task
from core.tasks.toml_source import read_toml
from core.tasks.yaml_source import read_yaml
from tests.core.tasks.packages import BODY, FRONT, only, package, text

BOMB = "".join(
    f"{name}: &{name} [{', '.join(['*' + below] * 9) if below else 'x'}]\n"
    for below, name in zip(["", *"abcdefgh"], "abcdefghi", strict=True)
)


def with_task_file(folder: Path, data: bytes) -> list[Fault]:
    root = package(folder)
    (root / "task.md").write_bytes(data)
    return check_task(root)


@pytest.mark.parametrize(
    ("data", "line", "says"),
    [
        (b"x" * 10_000_000, None, "10,000,000 bytes"),
        (b"", 1, "front matter"),
        (b"no front matter\n", 1, "front matter"),
        (b"---\na: 1\n", 1, "never ends"),
        (b"---\nagent: \xff\n---\nhi\n", 2, "UTF-8"),
        (b"---\nagent: {}\n---\nhi\0there\n", 4, "NUL"),
        ("---\nname: a\n---\nhi\n".encode("utf-16"), 1, "UTF-8"),
        (b"---\nagent:\n\ttimeout_sec: 1\n---\nhi\n", 3, "not valid YAML"),
        (b"---\nname: a: b\n---\nhi\n", 2, "not valid YAML"),
        (b"---\nname: \x07\n---\nhi\n", 2, "character YAML forbids"),
        (b"---\n- a\n- b\n---\nhi\n", 2, "must be a mapping"),
        (b"---\nname: a\nname: b\n---\nhi\n", 3, "twice"),
        (b"---\n<<: {name: a}\n---\nhi\n", 2, "merge key"),
        (b"---\n? [a]\n: b\n---\nhi\n", 2, "as a key"),
        (b"---\nname: !!python/object/apply:os.system [id]\n---\nhi\n", 2, "YAML tag"),
        (b"---\nmetadata: &a [*a]\n---\nhi\n", 2, "before its anchor is complete"),
        (b"---\nmetadata: " + b"[" * 5000 + b"\n---\nhi\n", 2, "levels deep"),
        (b"---\nmetadata: " + b"{a: " * 5000 + b"\n---\nhi\n", 2, "levels deep"),
        (b"---\nagent: {timeout_sec: 1" + b"0" * 5000 + b"}\n---\nhi\n", 2, "no number"),
        (b"---\n" + b"#" * 300_000 + b"\n---\nhi\n", 1, "300,000 characters"),
        (b"---\nmetadata: {a: b}\n...\n--- {c: d}\n---\nhi\n", 4, "second YAML document"),
    ],
    ids=lambda value: str(value)[:24] if isinstance(value, str) else "",
)
def test_a_hostile_task_file_is_one_clear_fault(
    tmp_path: Path, data: bytes, line: int | None, says: str
) -> None:
    found = only(with_task_file(tmp_path, data))
    assert found.file.endswith("task.md")
    assert found.line == line
    assert says in str(found)


def test_aliases_count_as_often_as_they_are_used() -> None:
    with pytest.raises(Unreadable, match="aliases count"):
        read_yaml(BOMB)


def test_a_plain_alias_is_fine_and_has_its_own_line() -> None:
    root = read_yaml("a: &x {k: 1}\nb: *x\n")
    assert root.plain() == {"a": {"k": 1}, "b": {"k": 1}}
    assert root.line_of("b") == 2


@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_and_a_byte_order_mark_change_nothing(
    tmp_path: Path, ends: bytes, mark: bytes
) -> None:
    root = package(tmp_path)
    plain = load_task(root)
    data = mark + text().encode().replace(b"\n", ends)
    (root / "task.md").write_bytes(data)
    again = load_task(root)
    assert (again.instruction, again.name) == (plain.instruction, plain.name)


@pytest.mark.parametrize(
    "data",
    [
        b"x = " + b"[" * 20_000,
        b"a = " + b"{b = " * 20_000,
        b"a" + b".a" * 20_000 + b" = 1",
        b"[" + b"a." * 20_000 + b"a]",
        b"x = {" + b'"a" . ' * 20_000 + b"a = 1}",
        b"[environment]\nname = 1" + b"0" * 5000,
        b"[environment]\nname = nan\n",
        b"[environment]\nx = [" + b"1," * (MAX_NODES + 1) + b"]",
        b"\xff\xfe[\0e\0",
        b"y" * 2_000_000,
    ],
    ids=[
        "arrays",
        "tables",
        "dotted",
        "header",
        "quoted",
        "digits",
        "nan",
        "wide",
        "utf16",
        "long",
    ],
)
def test_a_hostile_manifest_is_one_clear_fault(tmp_path: Path, data: bytes) -> None:
    found = check_task(package(tmp_path, files={"environment/environment.toml": data}))
    assert only(found).file.endswith("environment.toml")


def test_a_link_that_leaves_the_package_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("key")
    root = package(tmp_path)
    (root / "environment").mkdir()
    (root / "environment" / "notes").symlink_to(tmp_path / "secret")
    found = only(check_task(root))
    assert found.file == f"{root}/environment/notes"
    assert "leaves the package" in found.problem


def test_a_verifier_that_is_a_link_out_is_a_fault_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "test.sh").write_text("echo 1")
    root = package(tmp_path, script=False)
    (root / "verifier").mkdir()
    (root / "verifier" / "test.sh").symlink_to(tmp_path / "test.sh")
    assert {fault.key for fault in check_task(root)} == {"verifier.script", ""}


def test_links_inside_and_loops_of_links_are_walked_once(tmp_path: Path) -> None:
    root = package(tmp_path, files={"environment/data/a.txt": "a"})
    (root / "environment" / "data" / "again").symlink_to("..")
    (root / "environment" / "b.txt").symlink_to("data/a.txt")
    assert check_task(root) == []


def test_a_pipe_a_socket_and_a_sparse_giant_never_block(tmp_path: Path) -> None:
    root = package(tmp_path)
    os.mkfifo(root / "verifier" / "pipe")
    found = only(check_task(root))
    assert found.file.endswith("verifier/pipe")
    os.unlink(root / "verifier" / "pipe")
    with (root / "big").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert "4 GiB" in only(check_task(root)).problem


@pytest.mark.parametrize("name", ["task.md", "environment/environment.toml"])
def test_a_pipe_in_place_of_a_text_file_never_blocks(tmp_path: Path, name: str) -> None:
    root = package(tmp_path, files={"environment/x": ""})
    (root / name).unlink(missing_ok=True)
    os.mkfifo(root / name)
    assert any("regular file" in f.problem or "neither" in f.problem for f in check_task(root))


def test_a_folder_in_place_of_the_task_file_is_a_fault(tmp_path: Path) -> None:
    root = package(tmp_path)
    (root / "task.md").unlink()
    (root / "task.md").mkdir()
    assert "not a regular file" in only(check_task(root)).problem


def test_a_socket_is_no_file_of_a_package(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = package(tmp_path)
    here = os.getcwd()
    os.chdir(root)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("s")
            assert "neither a file" in only(check_task(root)).problem
    finally:
        os.chdir(here)


def test_a_file_name_that_is_not_utf8_is_named_safely(tmp_path: Path) -> None:
    root = package(tmp_path)
    try:
        (root / os.fsdecode(b"bad\xff")).write_text("")
    except OSError:
        pytest.skip("this file system takes no such name")
    found = only(check_task(root))
    assert found.file.encode("utf-8")
    assert "not UTF-8" in found.problem


def _depth(node: Located) -> int:
    children: list[Located] = []
    if isinstance(node.value, dict):
        children = list(node.value.values())
    elif isinstance(node.value, list):
        children = node.value
    return 1 + max(map(_depth, children), default=0)


yaml_like = st.text(alphabet="ab:-[]{}&*!|>'\"#%?,\n \t01.~<", max_size=80)


@given(st.one_of(st.text(), yaml_like))
@settings(max_examples=300)
def test_any_text_is_a_value_or_one_refusal_with_a_line_inside_it(source: str) -> None:
    for read in (read_yaml, read_toml):
        try:
            root = read(source)
        except Unreadable as error:
            refused = error
        else:
            assert _depth(root) <= MAX_DEPTH + 2
            continue
        assert refused.problem
        assert refused.remedy
        assert refused.line is None or 1 <= refused.line <= source.count("\n") + 2


@given(st.binary(max_size=200))
def test_any_bytes_are_a_manifest_or_faults(data: bytes) -> None:
    reading = parse_manifest(data, "environment.toml", Path("/p"))
    assert reading.faults or reading.manifest is not None


keys = st.sampled_from(
    ["agent", "verifier", "sandbox", "user", "benchflow", "scenes", "steps", "task", "oracle"]
)
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.just("a/b"))
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["timeout_sec", "script", "env", "answers", "when", "answer", "asking", "turns",
                 "role", "name", "reward_range", "environment", "manifest", "setup_commands"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=10,
)  # fmt: skip


@given(st.dictionaries(keys, trees, max_size=5))
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_front_matter_gives_a_task_or_faults_that_say_what_to_do(
    tmp_path: Path, front: dict[str, object]
) -> None:
    import json

    root = package(tmp_path)
    (root / "task.md").write_text(f"---\n{json.dumps(front)}\n---\n{BODY}\n")
    found = check_task(root)
    for fault in found:
        assert fault.problem
        assert fault.remedy
        assert fault.line is None or 1 <= fault.line <= 4
    if not found:
        assert load_task(root).instruction == BODY


@given(st.text())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_body_is_an_instruction_or_a_fault(tmp_path: Path, body: str) -> None:
    root = package(tmp_path)
    data = f"---\n{FRONT}---\n{body}".encode("utf-8", "surrogatepass")
    (root / "task.md").write_bytes(data)
    found = check_task(root)
    if not found:
        assert load_task(root).instruction.strip()
