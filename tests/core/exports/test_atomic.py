"""Files are replaced whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from core.contracts.errors import StoreError
from core.exports.atomic import write_files


def test_files_and_their_folders_are_written(tmp_path: Path) -> None:
    write_files(tmp_path / "new" / "job", {"summary.json": b"{}", "a/b/c.txt": b"c"})
    assert (tmp_path / "new" / "job" / "summary.json").read_bytes() == b"{}"
    assert (tmp_path / "new" / "job" / "a" / "b" / "c.txt").read_bytes() == b"c"


def test_an_old_file_is_replaced_and_nothing_temporary_stays(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_bytes(b"old and longer")
    write_files(tmp_path, {"summary.json": b"new"})
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
    assert (tmp_path / "summary.json").read_bytes() == b"new"


def test_whoever_has_the_old_file_open_keeps_reading_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")
    with (tmp_path / "f").open("rb") as reader:
        write_files(tmp_path, {"f": b"new"})
        assert reader.read() == b"old"


@pytest.mark.parametrize("name", ["../out", "/etc/x", "a/../../x", "", "a\0b"])
def test_a_path_that_leaves_the_folder_stops_everything(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="no path inside"):
        write_files(tmp_path / "job", {"good": b"1", name: b"2"})
    assert not (tmp_path / "job").exists()


def test_a_failed_write_leaves_the_old_file_and_no_rest(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "inside").write_bytes(b"kept")
    with pytest.raises(StoreError, match="could not be written"):
        write_files(tmp_path, {"f": b"new"})
    assert sorted(os.listdir(tmp_path)) == ["f"]
    assert (tmp_path / "f" / "inside").read_bytes() == b"kept"


def test_a_folder_that_is_a_file_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "job").write_bytes(b"")
    with pytest.raises(StoreError, match="job"):
        write_files(tmp_path / "job", {"summary.json": b"{}"})
