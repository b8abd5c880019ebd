"""A process without a free descriptor: nothing is lost or taken for damage, and all goes on once there is one."""

from pathlib import Path

import pytest

from headrace.errors import HeadraceError, Unavailable
from headrace.storage.api import Commit
from headrace.storage.local.journal import Journal, Position
from headrace.storage.local.segment import segment_files
from tests.disks import CrowdedDisk
from tests.workbench import SMALL, Bench, many, payloads

_ROWS = many(20, size=400)


def _append(bench: Bench, told: list[HeadraceError | None]) -> None:
    commit = Commit()
    commit.append("orders", list(_ROWS))
    try:
        bench.engine.commit(commit, told.append)
    except Unavailable as error:
        told.append(error)
    bench.engine.sync()


def test_commits_without_a_descriptor_are_refused_for_now_and_taken_later(tmp_path: Path) -> None:
    disk = CrowdedDisk()
    told: list[HeadraceError | None] = []
    with Bench(tmp_path, SMALL, disk=disk) as bench:
        _append(bench, told)
        disk.is_crowded = True
        while all(error is None for error in told):
            _append(bench, told)
            assert len(told) < 1000, "the journal never needed another file"
        refusal = told[-1]
        assert isinstance(refusal, Unavailable)
        assert "descriptor" in str(refusal)

        disk.is_crowded = False

        def goes_on() -> bool:
            _append(bench, told)
            return told[-1] is None

        bench.until(goes_on)

    kept = told.count(None)
    with Bench(tmp_path) as bench:
        log = bench.engine.log("orders")
        found = payloads(log.read(log.first_offset, 100_000))
    assert found == payloads(_ROWS) * kept


def test_a_checkpoint_without_a_descriptor_is_written_later(tmp_path: Path) -> None:
    disk = CrowdedDisk()
    bench = Bench(tmp_path, SMALL, disk=disk)
    bench.store(lambda commit: commit.append("orders", list(_ROWS)))
    disk.is_crowded = True
    bench.engine.close()
    assert disk.refused > 0, "closing writes a checkpoint, and could not"

    with Bench(tmp_path) as again:
        assert payloads(again.engine.log("orders").read(0, 100)) == payloads(_ROWS)


def test_a_log_that_cannot_be_opened_now_is_not_taken_for_damaged(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        for _ in range(3):
            bench.store(lambda commit: commit.append("orders", list(_ROWS)))
    disk = CrowdedDisk()
    with Bench(tmp_path, disk=disk) as bench:
        log = bench.engine.log("orders")
        disk.is_crowded = True
        for _ in range(2):
            with pytest.raises(Unavailable, match="Too many open files"):
                log.read(0, 1000)

        disk.is_crowded = False
        assert payloads(log.read(0, 1000)) == payloads(_ROWS) * 3


def test_what_is_dropped_without_a_descriptor_is_gone_before_its_name_is_used_again(tmp_path: Path) -> None:
    disk = CrowdedDisk()
    with Bench(tmp_path, disk=disk) as bench:
        bench.store(lambda commit: commit.append("orders", list(_ROWS)))
        while not bench.segments():
            bench.store(lambda commit: commit.append("orders", list(_ROWS)))
            bench.engine.poll()
        before = disk.refused
        bench.store(lambda commit: commit.drop("orders"))
        bench.store(lambda commit: commit.append("orders", [_ROWS[0]]))
        disk.is_crowded = True
        bench.engine.poll()
        disk.is_crowded = False
        assert disk.refused >= before
    with Bench(tmp_path) as bench:
        assert payloads(bench.engine.log("orders").read(0, 1000)) == payloads(_ROWS[:1])
        directory = tmp_path / "queues" / "orders" / "segments"
        assert len(segment_files(directory)) <= 1


def test_the_journal_keeps_its_spare_files_when_they_cannot_be_opened(tmp_path: Path) -> None:
    disk = CrowdedDisk()
    journal = Journal(disk, tmp_path, 32 << 10, 2, [], Position(0, 0, 0))
    journal.prepare()
    disk.is_crowded = True
    for _ in range(3):
        with pytest.raises(OSError, match="Too many open files"):
            journal.write(1, b"x" * 100, b"", [], True)

    disk.is_crowded = False
    journal.write(1, b"x" * 100, b"", [], True)
    journal.close()
    assert len(list(tmp_path.glob("*.jnl"))) == 2, "the spare file was used, and no other was made"
