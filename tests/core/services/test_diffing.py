"""Two states of a world compared: rows by key, files by content, nothing invented."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core.contracts.environment import TableState
from core.contracts.values import JsonValue
from core.services.diffing import (
    TEXT_LINES,
    FileChange,
    FileEntry,
    WorldState,
    diff_files,
    diff_states,
    diff_tables,
    wanted_texts,
    with_text,
)

DB = "/state/desk.db"


def table(
    *rows: tuple[JsonValue, ...],
    name: str = "orders",
    columns: tuple[str, ...] = ("id", "status"),
    key: tuple[str, ...] = ("id",),
    hidden: int = 0,
) -> TableState:
    """``hidden`` rows exist that were not read."""
    return TableState(name, columns, key, rows, len(rows) + hidden, truncated=hidden > 0)


def entry(mark: str = "aa", size: int = 3, mode: int = 0o644) -> FileEntry:
    return FileEntry("file", size, mode, mark)


def test_rows_are_matched_by_key_and_only_differing_columns_are_told() -> None:
    before = table((1, "open"), (2, "open"), (3, "open"))
    after = table((1, "open"), (2, "closed"), (4, "new"))
    (change,) = diff_tables({DB: (before,)}, {DB: (after,)})
    assert [(row.change, row.key, row.before, row.after) for row in change.rows] == [
        ("changed", {"id": 2}, {"status": "open"}, {"status": "closed"}),
        ("removed", {"id": 3}, {"id": 3, "status": "open"}, {}),
        ("added", {"id": 4}, {}, {"id": 4, "status": "new"}),
    ]
    assert (change.rows_before, change.rows_after, change.partial) == (3, 3, False)


def test_equal_tables_are_not_mentioned() -> None:
    assert diff_tables({DB: (table((1, "a")),)}, {DB: (table((1, "a")),)}) == []


def test_whole_numbers_fractions_and_truths_are_told_apart() -> None:
    (change,) = diff_tables({DB: (table((1, 1), (2, 1)),)}, {DB: (table((1, 1.0), (2, True)),)})
    assert [row.key for row in change.rows] == [{"id": 1}, {"id": 2}]


def test_tagged_cells_are_compared_by_content() -> None:
    blob: JsonValue = {"$bytes": "00", "size": 1, "sha256": "x"}
    same: JsonValue = {"sha256": "x", "size": 1, "$bytes": "00"}
    other: JsonValue = {"$bytes": "00", "size": 9000, "sha256": "y"}
    assert diff_tables({DB: (table((1, blob)),)}, {DB: (table((1, same)),)}) == []
    (change,) = diff_tables({DB: (table((1, blob)),)}, {DB: (table((1, other)),)})
    assert change.rows[0].change == "changed"


def test_rows_without_a_key_are_counted() -> None:
    before = table(("a",), ("a",), ("b",), columns=("word",), key=())
    after = table(("a",), ("b",), ("b",), ("b",), columns=("word",), key=())
    (change,) = diff_tables({DB: (before,)}, {DB: (after,)})
    assert [(row.change, row.key, row.times) for row in change.rows] == [
        ("removed", {"word": "a"}, 1),
        ("added", {"word": "b"}, 2),
    ]


def test_a_key_that_repeats_falls_back_to_whole_rows() -> None:
    before = table((None, "a"), (None, "b"))
    after = table((None, "a"), (None, "c"))
    (change,) = diff_tables({DB: (before,)}, {DB: (after,)})
    assert [(row.change, row.before or row.after) for row in change.rows] == [
        ("removed", {"id": None, "status": "b"}),
        ("added", {"id": None, "status": "c"}),
    ]


def test_a_row_that_one_side_did_not_read_is_neither_added_nor_removed() -> None:
    whole = table((1, "a"), (2, "b"), (3, "c"))
    cut = table((1, "x"), hidden=2)
    (forth,) = diff_tables({DB: (whole,)}, {DB: (cut,)})
    (back,) = diff_tables({DB: (cut,)}, {DB: (whole,)})
    for change in (forth, back):
        assert [row.change for row in change.rows] == ["changed"]
        assert change.partial


def test_columns_and_tables_that_come_and_go_are_told() -> None:
    before = table((1, "a"))
    after = table((1, "a", 5), columns=("id", "status", "cents"))
    (change,) = diff_tables({DB: (before,)}, {DB: (after,)})
    assert (change.columns_added, change.columns_removed) == (("cents",), ())
    assert change.rows[0].after == {"cents": 5}
    (gone,) = diff_tables({DB: (before,)}, {DB: ()})
    assert (gone.change, [row.change for row in gone.rows]) == ("removed", ["removed"])
    (new,) = diff_tables({}, {DB: (table(name="empty"),)})
    assert (new.change, new.rows) == ("added", ())


rows = st.dictionaries(
    st.integers(0, 12), st.none() | st.integers(-2, 2) | st.text("ab", max_size=2), max_size=8
)


@given(rows, rows)
def test_the_changes_of_a_table_lead_from_one_state_to_the_other(
    old: dict[int, JsonValue], new: dict[int, JsonValue]
) -> None:
    found = diff_tables({DB: (table(*sorted(old.items())),)}, {DB: (table(*sorted(new.items())),)})
    state = dict(old)
    for change in found:
        for row in change.rows:
            key = row.key["id"]
            assert isinstance(key, int)
            if row.change == "removed":
                del state[key]
            else:
                state[key] = row.after["status"]
    assert state == new
    assert bool(found) == (old != new)


# -- files ---------------------------------------------------------------------


def test_files_differ_by_content_mode_and_kind() -> None:
    before = {"/w/a": entry("1"), "/w/b": entry("1"), "/w/c": entry("1"), "/w/d": entry("1")}
    after = {
        "/w/a": entry("1"),
        "/w/b": entry("2"),
        "/w/c": entry("1", mode=0o755),
        "/w/d": FileEntry("link", 0, 0, "/etc/passwd"),
        "/w/e": entry("3"),
    }
    changes = diff_files(before, after)
    assert [(item.path, item.change) for item in changes] == [
        ("/w/b", "changed"),
        ("/w/c", "changed"),
        ("/w/d", "changed"),
        ("/w/e", "added"),
    ]
    assert wanted_texts(changes) == ["/w/b", "/w/e"]
    assert with_text(changes[1], None, None).note == "only its mode differs"
    assert with_text(changes[2], None, None).note == "a link or a special file"


def test_text_is_shown_as_a_unified_difference() -> None:
    change = FileChange("/w/a", "changed", entry("1"), entry("2"))
    told = with_text(change, b"one\ntwo\n", b"one\nthree\n")
    assert told.text.splitlines() == [
        "--- a/w/a",
        "+++ b/w/a",
        "@@ -1,2 +1,2 @@",
        " one",
        "-two",
        "+three",
    ]
    assert told.note == ""


def test_bytes_that_are_no_text_and_long_differences_are_noted() -> None:
    change = FileChange("/w/a", "changed", entry("1"), entry("2"))
    assert with_text(change, b"\xff\xfe", b"x").note == "not text"
    assert with_text(change, b"a\0b", b"x").note == "not text"
    long = with_text(change, b"", b"\n".join(b"%d" % n for n in range(2 * TEXT_LINES)))
    assert len(long.text.splitlines()) == TEXT_LINES
    assert "left out" in long.note
    big = FileChange("/w/a", "changed", entry("1", size=10**7), entry("2"))
    assert with_text(big, b"", b"").note.startswith("longer than")


def test_services_and_what_was_not_read_are_told() -> None:
    a = WorldState("r:n1", {}, {}, {"desk": {"exit_code": None}}, ("r:n1: a socket",))
    b = WorldState("r:n2", {}, {}, {"desk": {"exit_code": 1}})
    found = diff_states(a, b)
    assert [(item.service, item.after) for item in found.services] == [("desk", {"exit_code": 1})]
    assert found.not_read == ("r:n1: a socket",)
    assert not found.same
    assert diff_states(a, a).same
