"""A torn journal is told from a damaged one: the first is cut, the second never."""

import os
import zlib
from pathlib import Path

import pytest

from headrace.storage.local.doctor import examine, plan, repair
from headrace.storage.local.engine import LocalEngine
from tests.data_directories import (
    SETTINGS,
    flip,
    journal_in_use,
    only,
    row_of,
    segments,
    where,
)


def test_a_torn_tail_is_named_where_the_last_whole_commit_ends_and_is_cut(crashed: Path) -> None:
    path, last, _ = journal_in_use(crashed)
    flip(path, last + 45)

    report = examine(crashed)

    problem = only(report.problems)
    assert (where(problem), problem.repairable) == ((str(path), last), True)
    assert report.journal.replayed_commits == 2
    assert row_of(report, "orders").next_offset == 90
    done = repair(crashed, report)
    assert done == plan(report)
    assert f"{path} from byte {last} on" in done[0]
    assert not any(path.read_bytes()[last:])
    assert examine(crashed).is_clean
    engine = LocalEngine(crashed, settings=SETTINGS)
    assert engine.log("orders").next_offset == 90
    engine.close()


def test_a_damaged_commit_with_stored_ones_behind_it_is_corruption_and_never_cut(crashed: Path) -> None:
    path, last, start = journal_in_use(crashed)
    flip(path, start + 45)

    report = examine(crashed)

    problem = only(report.problems)
    assert (where(problem), problem.repairable) == ((str(path), start), False)
    assert plan(report) == []
    assert row_of(report, "orders").next_offset == 80
    assert last > start


def test_a_damaged_journal_header_is_named_and_its_commits_still_count(crashed: Path) -> None:
    path, _, _ = journal_in_use(crashed)
    flip(path, 20)

    report = examine(crashed)

    problem = only(report.problems)
    assert (where(problem), problem.repairable) == ((str(path), 0), False)
    assert report.journal.replayed_commits == 3


def test_a_journal_of_an_unknown_version_is_named(crashed: Path) -> None:
    path, _, _ = journal_in_use(crashed)
    raw = bytearray(path.read_bytes())
    raw[8] = 9
    raw[4:8] = zlib.crc32(raw[8:32]).to_bytes(4, "little")
    path.write_bytes(raw)

    assert (str(path), 8) in [where(problem) for problem in examine(crashed).problems]


def test_a_journal_file_that_the_checkpoint_needs_and_is_gone_is_a_problem(crashed: Path) -> None:
    path, _, _ = journal_in_use(crashed)
    path.unlink()

    assert "is missing" in only(examine(crashed).problems).what


def test_with_a_damaged_checkpoint_the_segments_are_verified_all_the_same(data: Path) -> None:
    checkpoint = data / "journal" / "checkpoint.json"
    flip(checkpoint, checkpoint.read_bytes().index(b"next_id") + 10)
    flip(segments(data)[1], 32 + 80)

    report = examine(data)

    assert report.problems[0].file == str(checkpoint)
    assert where(only(row_of(report, "orders").problems)) == (str(segments(data)[1]), 32)
    assert row_of(report, "other").next_offset == 80
    assert plan(report) == []


@pytest.mark.parametrize("cut", ["inside the last commit", "in front of the checkpoint"])
def test_a_journal_file_that_was_cut_is_no_torn_tail(crashed: Path, cut: str) -> None:
    path, last, checkpoint = journal_in_use(crashed)
    length = last + 50 if cut.startswith("inside") else checkpoint // 4096 * 4096
    os.truncate(path, length)

    report = examine(crashed)

    problem = only(report.problems)
    assert (where(problem), problem.repairable) == ((str(path), length), False)
    assert plan(report) == []
