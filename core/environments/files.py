"""Folders of plain files as state. The folder itself is the mount."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from core.contracts.environment import FileState
from core.contracts.values import JsonObject
from core.environments.state import Found


class FilesState:
    """State kind ``files``: each path is one folder, rolled back as a whole."""

    name = "files"
    script = Path(__file__).with_name("files_inside.py")

    def folder(self, path: str) -> str:
        return path.rstrip("/")

    def read(self, answer: JsonObject) -> Found:
        root = str(answer["path"]).rstrip("/")
        files = cast("list[JsonObject]", answer["files"])
        return Found(
            str(answer["digest"]),
            files=tuple(
                FileState(f"{root}/{item['path']}", cast(int, item["size"]), str(item["digest"]))
                for item in files
            ),
        )
