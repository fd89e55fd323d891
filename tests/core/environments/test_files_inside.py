"""A folder as state: same content, same digest; nothing but plain files goes in or out."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.core.environments.scripts import FILES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "world"
    (root / "sub" / "empty").mkdir(parents=True)
    (root / "a.txt").write_text("a")
    (root / "sub" / "b.bin").write_bytes(bytes(range(256)))
    (root / "sub" / "run.sh").write_text("#!/bin/sh\n")
    (root / "sub" / "run.sh").chmod(0o755)
    return root


def test_the_digest_covers_names_content_mode_and_empty_folders(folder: Path) -> None:
    seen = {FILES.digest(folder)}
    (folder / "a.txt").write_text("b")
    seen.add(FILES.digest(folder))
    (folder / "a.txt").rename(folder / "c.txt")
    seen.add(FILES.digest(folder))
    (folder / "c.txt").chmod(0o755)
    seen.add(FILES.digest(folder))
    (folder / "sub" / "empty").rmdir()
    seen.add(FILES.digest(folder))
    assert len(seen) == 5


def test_the_digest_does_not_cover_times(folder: Path) -> None:
    before = FILES.digest(folder)
    os.utime(folder / "a.txt", (0, 0))
    assert FILES.digest(folder) == before


def test_what_is_exported_comes_back_to_the_byte(folder: Path) -> None:
    header, copy = FILES.run("export", paths=[str(folder)])
    assert header["digest"] == FILES.digest(folder)
    assert FILES.run("export", paths=[str(folder)])[1] == copy
    (folder / "a.txt").unlink()
    (folder / "a.txt").mkdir()
    (folder / "sub" / "b.bin").write_text("changed")
    (folder / "new").write_text("new")
    (folder / "link").symlink_to("/etc/passwd")
    FILES.restore(folder, copy)
    assert FILES.digest(folder) == header["digest"]
    assert not (folder / "link").is_symlink()
    assert (folder / "sub" / "run.sh").stat().st_mode & 0o100


def test_links_are_counted_never_followed_and_never_exported(folder: Path) -> None:
    (folder / "passwd").symlink_to("/etc/passwd")
    (folder / "up").symlink_to("/")
    os.mkfifo(folder / "pipe")
    header, copy = FILES.run("export", paths=[str(folder)])
    assert header["skipped"] == 3
    with tarfile.open(fileobj=io.BytesIO(copy)) as archive:
        assert {entry.name for entry in archive} == {
            "a.txt", "sub", "sub/empty", "sub/b.bin", "sub/run.sh",
        }  # fmt: skip


def hostile(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, link
        archive.addfile(entry)
    return raw.getvalue()


@pytest.mark.parametrize(
    "archive",
    [
        hostile("../out"),
        hostile("/tmp/out"),
        hostile("a/../../out"),
        hostile("link", tarfile.SYMTYPE, "/etc"),
        hostile("hard", tarfile.LNKTYPE, "a.txt"),
        hostile("pipe", tarfile.FIFOTYPE),
        hostile("dev", tarfile.CHRTYPE),
        b"no archive" * 100,
    ],
)
def test_an_archive_with_anything_else_is_refused_and_nothing_replaced(
    folder: Path, archive: bytes
) -> None:
    before = FILES.digest(folder)
    assert "error" in FILES.restore(folder, archive)
    assert FILES.digest(folder) == before
    assert not (folder.parent / "out").exists()


def test_reset_goes_back_to_what_was_kept_and_empties_what_was_absent(
    folder: Path, tmp_path: Path
) -> None:
    later = tmp_path / "later"
    args: dict[str, Any] = {"paths": [str(folder), str(later)], "folder": str(tmp_path / "kept")}
    before = FILES.digest(folder)
    FILES.run("keep", **args)
    (folder / "a.txt").unlink()
    later.mkdir()
    (later / "x").write_text("x")
    FILES.run("reset", **args)
    assert FILES.digest(folder) == before
    assert not list(later.iterdir())


def test_a_query_is_bounded_while_the_digest_covers_all(folder: Path) -> None:
    answer, _ = FILES.run("query", paths=[str(folder)], rows=1, bytes=1)
    (state,) = answer["states"]
    assert (len(state["files"]), state["file_count"]) == (1, 3)
    assert state["digest"] == FILES.digest(folder)


def test_a_plain_file_where_a_folder_belongs_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    answer, _ = FILES.run("digest", paths=[str(tmp_path / "file")])
    assert "is a folder" in answer["error"]
