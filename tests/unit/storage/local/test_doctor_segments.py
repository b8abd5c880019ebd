"""Damage in segments and indexes is found, named with file and position, and does not hide the rest."""

import os
import shutil
from pathlib import Path

import pytest

from headrace.storage.local.disk import Disk
from headrace.storage.local.doctor import examine, plan, repair
from headrace.storage.local.engine import LocalEngine, LocalSettings
from headrace.storage.local.segment import segment_path
from tests.data_directories import (
    append,
    contents,
    flip,
    only,
    row_of,
    segments,
    where,
)


def test_a_damaged_block_is_named_with_the_offsets_lost_and_the_rest_is_examined(data: Path) -> None:
    damaged = segments(data)[1]
    flip(damaged, 32 + 64 + 100)

    report = examine(data)

    problem = only(row_of(report, "orders").problems)
    assert where(problem) == (str(damaged), 32)
    assert "checksum" in problem.what
    assert not problem.repairable
    assert row_of(report, "other").problems == []
    assert row_of(report, "other").next_offset == 80
    assert report.problems == []


def test_blocks_behind_a_damaged_one_are_still_verified(tmp_path: Path) -> None:
    root = tmp_path / "data"
    for _ in range(5):
        engine = LocalEngine(root, settings=LocalSettings(journal_file_bytes=1 << 16))
        append(engine, "orders", 3)
        engine.close()
    (segment,) = segments(root)
    block = (segment.stat().st_size - 32) // 5
    for number, position in ((1, 0), (3, 80)):  # one without a header that says where it ends, one with
        flip(segment, 32 + number * block + position)

    first, second = row_of(examine(root), "orders").problems

    assert where(first) == (str(segment), 32 + block)
    assert first.what.endswith("offsets 3 to 5 are lost with it")
    assert where(second) == (str(segment), 32 + 3 * block)
    assert second.what.endswith("offsets 9 to 11 are lost with it")


@pytest.mark.parametrize(("position", "reported"), [(0, 0), (9, 4), (20, 4)])
def test_a_damaged_segment_header_is_named(data: Path, position: int, reported: int) -> None:
    segment = segments(data)[1]
    flip(segment, position)

    assert where(only(row_of(examine(data), "orders").problems)) == (str(segment), reported)


def test_a_segment_of_another_log_is_named(data: Path) -> None:
    shutil.copy(segments(data, "other")[1], segments(data)[1])

    problem = row_of(examine(data), "orders").problems[0]

    assert where(problem) == (str(segments(data)[1]), 12)


def test_a_missing_segment_leaves_a_hole_in_front_of_the_next(data: Path) -> None:
    _, gone, following, *_ = segments(data)
    for path in gone.parent.glob(gone.stem + ".*"):
        path.unlink()

    problem = only(row_of(examine(data), "orders").problems)

    assert where(problem) == (str(following), 32)
    assert problem.what == f"offsets {int(gone.stem)} to {int(following.stem) - 1} are missing in front of this block"


def test_offsets_that_two_segments_hold_are_named(data: Path) -> None:
    _, second, third, *_ = segments(data)
    with second.open("ab") as file:
        file.write(third.read_bytes()[32:])

    problem = only([problem for problem in row_of(examine(data), "orders").problems if not problem.repairable])

    assert where(problem) == (str(third), 32)
    assert problem.what.startswith(f"offset {int(third.stem)} comes again")


def test_a_missing_last_segment_is_named(data: Path) -> None:
    last = segments(data)[-1]
    last.unlink()

    problem = only(row_of(examine(data), "orders").problems)

    assert where(problem) == (str(last), 0)


def test_a_last_segment_cut_inside_a_block_is_named_at_that_block(data: Path) -> None:
    last = segments(data)[-1]
    os.truncate(last, last.stat().st_size - 1)

    assert where(only(row_of(examine(data), "orders").problems)) == (str(last), 32)


def test_a_last_segment_cut_between_blocks_is_named_where_it_ends(data: Path) -> None:
    last = segments(data)[-1]
    os.truncate(last, 32)

    problem = only(row_of(examine(data), "orders").problems)

    assert where(problem) == (str(last), 32)
    assert "bytes were stored" in problem.what


def test_bytes_behind_what_was_stored_are_named(data: Path) -> None:
    last = segments(data)[-1]
    length = last.stat().st_size
    with last.open("ab") as file:
        file.write(bytes(16))

    assert where(only(row_of(examine(data), "orders").problems)) == (str(last), length)


def test_what_was_flushed_behind_the_checkpoint_is_no_problem_while_the_journal_has_it(crashed: Path) -> None:
    with segments(crashed)[-1].open("ab") as file:
        file.write(b"half a block")
    segment_path(segments(crashed)[0].parent, 90).write_bytes(b"HRSG")

    assert examine(crashed).is_clean


def test_a_segment_that_nothing_accounts_for_is_named(data: Path) -> None:
    stray = segment_path(segments(data)[0].parent, 500)
    stray.write_bytes(b"HRSG")

    assert only(row_of(examine(data), "orders").problems).file == str(stray)


def test_a_disk_that_cannot_read_a_block_is_a_problem_of_that_file_only(data: Path) -> None:
    class Scratched(Disk):
        def open_to_read(self, path: Path) -> int:
            if path == segments(data)[1]:
                raise OSError(5, "Input/output error", str(path))
            return super().open_to_read(path)

    report = examine(data, Scratched())

    problem = only(report.all_problems())
    assert problem.file == str(segments(data)[1])
    assert "Input/output error" in problem.what


def test_missing_and_wrong_indexes_are_named_and_rebuilt(data: Path) -> None:
    index = segments(data)[0].with_suffix(".idx")
    times = segments(data)[1].with_suffix(".tix")
    before = contents(data)
    index.unlink()
    flip(times, 40)

    report = examine(data)

    missing, wrong = row_of(report, "orders").problems
    assert (where(missing), missing.repairable) == ((str(index), 0), True)
    assert (where(wrong), wrong.repairable) == ((str(times), 40), True)
    assert repair(data, report) == plan(report)
    assert examine(data).is_clean
    assert contents(data) == before


def test_indexes_of_a_damaged_segment_are_left_alone(data: Path) -> None:
    segment = segments(data)[0]
    flip(segment, 200)
    segment.with_suffix(".idx").unlink()

    report = examine(data)

    assert plan(report) == []
    assert not segment.with_suffix(".idx").exists()
