"""Damage in group files and tables is found and named with file and position."""

import json
from pathlib import Path

import pytest

from headrace.storage.group_state import WORK, GroupState, Pending
from headrace.storage.local.doctor import examine
from headrace.storage.local.group_files import encode_pending, encode_progress
from tests.data_directories import (
    flip,
    only,
    row_of,
    where,
)


def _rewrite_group(root: Path, state: GroupState, seq: int = 0) -> Path:
    """Put other files, valid as such and as old unless told otherwise, in place of those of the group `work`."""
    directory = root / "queues" / "orders" / "consumers" / state.name
    before = json.loads((directory / "state.json").read_bytes())
    group_id, seq = before["id"], seq or before["seq"]
    (directory / "state.json").write_bytes(encode_progress("orders", group_id, state, seq))
    (directory / "pel.log").write_bytes(encode_pending(group_id, state, seq))
    return directory


def _work_group() -> GroupState:
    state = GroupState("work", WORK, "", 2)
    state.cursor = 10
    return state


@pytest.mark.parametrize(("name", "position", "reported"), [("state.json", 12, 0), ("pel.log", 40, 4)])
def test_a_damaged_group_file_is_named(data: Path, name: str, position: int, reported: int) -> None:
    path = data / "queues" / "orders" / "consumers" / "work" / name
    raw = bytearray(path.read_bytes())
    raw[position] = ord("7") if raw[position] != ord("7") else ord("8")
    path.write_bytes(raw)

    report = examine(data)

    problem = only(row_of(report, "orders").problems)
    assert problem.file == str(path)
    assert problem.position == reported
    assert row_of(report, "orders").groups[0].mode == "unreadable"
    assert row_of(report, "other").problems == []


def test_a_missing_state_is_named(data: Path) -> None:
    path = data / "queues" / "orders" / "consumers" / "work" / "state.json"
    path.unlink()

    assert where(only(row_of(examine(data), "orders").problems)) == (str(path), 0)


def test_a_committed_offset_past_the_cursor_is_named(data: Path) -> None:
    state = _work_group()
    state.cursor = 1
    directory = _rewrite_group(data, state)

    problem = only(row_of(examine(data), "orders").problems)

    assert problem.file == str(directory / "state.json")
    assert "past the cursor" in problem.what


def test_settled_ranges_that_do_not_lie_behind_the_committed_offset_are_named(data: Path) -> None:
    state = _work_group()
    state.add_settled(1, 4)
    directory = _rewrite_group(data, state)

    problem = only(row_of(examine(data), "orders").problems)

    assert problem.file == str(directory / "state.json")
    assert "settled range 1..4" in problem.what


def test_a_pending_entry_of_a_message_that_does_not_exist_is_named_where_it_stands(data: Path) -> None:
    state = _work_group()
    state.pending = {5: Pending(1, 0, "ann"), 4000: Pending(1, 0, "ann")}
    directory = _rewrite_group(data, state)

    problem = only(row_of(examine(data), "orders").problems)

    assert where(problem) == (str(directory / "pel.log"), 32 + 24)
    assert "offset 4000 is pending" in problem.what


def test_a_pending_entry_of_a_settled_message_is_named(data: Path) -> None:
    state = _work_group()
    state.pending = {1: Pending(1, 0, "ann")}
    directory = _rewrite_group(data, state)

    assert where(only(row_of(examine(data), "orders").problems)) == (str(directory / "pel.log"), 32)


def test_group_files_that_are_older_than_the_checkpoint_says_are_named(data: Path) -> None:
    directory = _rewrite_group(data, _work_group(), seq=1)

    problem = only(row_of(examine(data), "orders").problems)

    assert problem.file == str(directory / "state.json")
    assert "it is an old version, as of commit 1" in problem.what


def test_a_pending_list_that_is_missing_is_named(data: Path) -> None:
    path = data / "queues" / "orders" / "consumers" / "work" / "pel.log"
    path.unlink()

    assert only(row_of(examine(data), "orders").problems).file == str(path)


def test_group_files_that_are_ahead_of_the_journal_are_named(data: Path) -> None:
    directory = _rewrite_group(data, _work_group(), seq=(1 << 63) - 1)

    files = [problem.file for problem in row_of(examine(data), "orders").problems]

    assert files == [str(directory / "state.json"), str(directory / "pel.log")]


def test_damaged_tables_are_named(data: Path) -> None:
    definitions = data / "config" / "queues.json"
    (retained,) = (data / "state").glob("retained.*.kv")
    definitions.write_bytes(definitions.read_bytes().replace(b"classic", b"klassic"))
    flip(retained, 21)

    report = examine(data)

    assert [where(problem) for problem in report.problems] == [(str(definitions), 0), (str(retained), 8)]
    assert len(report.queues) == 2
