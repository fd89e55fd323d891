"""Logs written by earlier versions fold to what they always meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core.kernel import events as ev
from core.kernel.replay import fold
from core.services.views import head, rows
from tests.core.kernel.golden import FOLDER, read, summary_of
from tests.core.kernel.logs import check_shape, summary

GOLDEN = sorted(FOLDER.parent.glob("v*/*.jsonl"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_log_that_was_ever_written_means_what_it_meant(path: Path) -> None:
    tree = fold(read(path))
    check_shape(tree)
    assert json.loads(json.dumps(summary(tree))) == summary_of(path)
    assert rows(tree)
    assert head(tree).task == "desk"


def test_every_kind_of_event_is_in_some_golden_log() -> None:
    written = {event.kind for path in GOLDEN for event in read(path)}
    assert set(ev.KINDS) - written == set()
