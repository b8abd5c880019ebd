"""Examining a directory changes nothing and says all; repairing it does what it said and nothing else."""

import os
import shutil
from pathlib import Path

import pytest

from headrace.errors import Corrupt, Refused, Unavailable
from headrace.storage.api import Commit
from headrace.storage.local.doctor import examine, plan, repair
from headrace.storage.local.engine import LocalEngine
from tests.data_directories import (
    SETTINGS,
    append,
    commit,
    flip,
    journal_in_use,
    only,
    row_of,
    segments,
    snapshot,
)


def test_a_sound_directory_has_a_row_per_queue_and_no_problems(data: Path) -> None:
    report = examine(data)

    assert report.is_clean
    orders = row_of(report, "orders")
    assert (orders.first_offset, orders.next_offset, orders.messages) == (0, 80, 80)
    assert orders.segments == len(segments(data)) > 2
    assert orders.size_bytes == sum(path.stat().st_size for path in segments(data))
    (group,) = orders.groups
    assert (group.name, group.mode, group.committed, group.cursor, group.pending) == ("work", "work", 2, 10, 7)
    (audit,) = row_of(report, "other").groups
    assert (audit.mode, audit.committed, audit.cursor) == ("stream", 7, 7)


def test_commits_that_only_the_journal_has_are_counted_and_shown_as_they_will_be(crashed: Path) -> None:
    report = examine(crashed)

    assert report.is_clean
    assert (report.journal.replayed_commits, report.journal.replayed_messages) == (3, 15)
    assert row_of(report, "orders").next_offset == 95


def test_a_directory_that_was_never_written_to_is_clean(tmp_path: Path) -> None:
    LocalEngine(tmp_path / "data").close()

    report = examine(tmp_path / "data")

    assert report.is_clean
    assert report.queues == []


def test_queues_with_any_name_are_found(tmp_path: Path) -> None:
    root = tmp_path / "data"
    engine = LocalEngine(root, settings=SETTINGS)
    names = ["$queue/a/b", "Ünïcode #", "x" * 255, "É" * 127, ".."]
    for name in names:
        append(engine, name, 1)
    engine.close()

    report = examine(root)

    assert report.is_clean
    assert sorted(row.name for row in report.queues) == sorted(names)


def test_an_examination_changes_not_a_byte_even_of_a_damaged_directory(crashed: Path) -> None:
    path, last, _ = journal_in_use(crashed)
    flip(path, last + 45)
    flip(path, 20)
    flip(segments(crashed)[1], 200)
    segments(crashed)[0].with_suffix(".idx").unlink()
    (crashed / "config" / "queues.json.tmp").write_bytes(b"{")
    before = snapshot(crashed)

    report = examine(crashed)

    assert len(report.all_problems()) == 5
    assert snapshot(crashed) == before


def test_an_examination_needs_no_permission_to_write(data: Path) -> None:
    (data / "LOCK").unlink()

    examine(data)

    assert not (data / "LOCK").exists()


def test_progress_ends_at_the_number_of_bytes_there_are(data: Path) -> None:
    seen: list[tuple[int, int]] = []

    examine(data, progress=lambda done, total: seen.append((done, total)))

    total = sum(path.stat().st_size for path in data.rglob("*") if path.suffix in (".seg", ".jnl"))
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)


def test_a_directory_that_a_broker_has_open_is_refused_with_the_process_named(data: Path) -> None:
    engine = LocalEngine(data, settings=SETTINGS)
    try:
        with pytest.raises(Unavailable, match=f"in use by process {os.getpid()} "):
            examine(data)
    finally:
        engine.close()


def test_no_broker_starts_while_a_directory_is_examined(data: Path) -> None:
    def start(done: int, total: int) -> None:
        with pytest.raises(Unavailable, match="is in use by"):
            LocalEngine(data)

    examine(data, progress=start)


def test_a_path_that_is_no_data_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is not a directory"):
        examine(tmp_path / "nothing")
    with pytest.raises(Refused, match="no journal/"):
        examine(tmp_path)


def _left_overs(root: Path) -> list[Path]:
    """Everything a crash may leave behind."""
    files = [
        root / "journal" / "checkpoint.json.tmp",
        root / "queues" / "orders" / "consumers" / "work" / "pel.log.tmp",
        root / "queues" / "orders" / "segments" / f"{999:020d}.idx",
        root / "state" / "retained.77.kv",
    ]
    trash = [root / "queues" / ".trash-9", root / "queues" / "orders" / "consumers" / ".trash-8"]
    for directory in trash:
        (directory / "segments").mkdir(parents=True)
        (directory / "segments" / "x.seg").write_bytes(b"x")
    for path in files:
        path.write_bytes(b"x")
    return [*files, *trash]


def test_left_overs_are_named_and_removed_and_nothing_else_is(data: Path) -> None:
    before = {path for path in data.rglob("*") if path.name != "LOCK"}
    left = _left_overs(data)

    report = examine(data)

    assert sorted(problem.file for problem in report.all_problems()) == sorted(map(str, left))
    assert all(problem.repairable for problem in report.all_problems())
    assert repair(data, report) == plan(report)
    assert {path for path in data.rglob("*") if path.name != "LOCK"} == before
    assert examine(data).is_clean


def test_a_directory_that_belongs_to_no_queue_is_named_and_never_removed(data: Path) -> None:
    stray = Path(shutil.copytree(data / "queues" / "other", data / "queues" / "forgotten"))

    report = examine(data)

    problem = only(report.problems)
    assert (problem.file, problem.repairable) == (str(stray), False)
    assert "'forgotten'" in problem.what
    assert plan(report) == []


def test_a_directory_that_the_journal_is_about_to_drop_is_no_problem(tmp_path: Path, data: Path) -> None:
    left = Path(shutil.copytree(data, tmp_path / "left"))
    engine = LocalEngine(data, settings=SETTINGS)
    changes = Commit()
    changes.drop("other")
    changes.delete_group("orders", "work")
    commit(engine, changes)
    shutil.copytree(data / "journal", left / "journal", dirs_exist_ok=True)
    engine.close()

    report = examine(left)

    assert report.is_clean
    assert [row.name for row in report.queues] == ["orders"]
    assert row_of(report, "orders").groups == []


def test_nothing_is_repaired_in_a_directory_that_changed_since_it_was_examined(crashed: Path) -> None:
    path, last, _ = journal_in_use(crashed)
    flip(path, last + 45)
    report = examine(crashed)
    engine = LocalEngine(crashed, settings=SETTINGS)
    append(engine, "orders", 1)
    engine.close()
    before = snapshot(crashed)

    with pytest.raises(Unavailable, match="has changed since it was examined"):
        repair(crashed, report)

    after = snapshot(crashed)
    assert {name for name in after if after[name] != before[name]} <= {str(crashed / "LOCK")}


def test_a_directory_in_use_is_not_repaired(data: Path) -> None:
    (data / "config" / "queues.json.tmp").write_bytes(b"{")
    report = examine(data)
    engine = LocalEngine(data, settings=SETTINGS)
    try:
        with pytest.raises(Unavailable, match="is in use by process"):
            repair(data, report)
    finally:
        engine.close()
    assert (data / "config" / "queues.json.tmp").exists()


def test_after_a_repair_the_engine_opens_with_everything_that_is_whole(data: Path) -> None:
    for path in segments(data)[:-1]:
        path.with_suffix(".idx").unlink()
    flip(segments(data)[1], 200)

    repair(data, examine(data))

    engine = LocalEngine(data, settings=SETTINGS)
    try:
        assert len(engine.log("other").read(0, 1000)) == 80
        with pytest.raises(Corrupt):
            engine.log("orders").read(int(segments(data)[1].stem), 1000)
    finally:
        engine.close()
