"""The thread that writes the journal: order, failures, and what counts as synced."""

from pathlib import Path
from queue import SimpleQueue

from headrace.clock import ManualClock
from headrace.storage.api import Commit
from headrace.storage.local.batch import Batch
from headrace.storage.local.block import Block
from headrace.storage.local.disk import SyncFailed
from headrace.storage.local.encoding import encode_block
from headrace.storage.local.journal import PAGE, Journal, Position
from headrace.storage.local.record import encode_put
from headrace.storage.local.writer import Report, Synced, SyncFailure, Writer
from tests.disks import FullDisk
from tests.workbench import many


def record(seq: int, size: int = 10, durable: bool = True, block: Block | None = None) -> Batch:
    """A batch that is ready to be written."""
    batch = Batch(Commit(), lambda error: None, durable)
    batch.seq = seq
    batch.operations = encode_put("t", b"k", bytes(size))
    batch.blocks = [] if block is None else [block]
    return batch


class Desk:
    """A writer on a journal of small files, and what it reported."""

    def __init__(self, directory: Path) -> None:
        self.disk = FullDisk()
        self.journal = Journal(self.disk, directory, 4 * PAGE, 2, [], Position(0, 0, PAGE))
        self.reports: SimpleQueue[Report] = SimpleQueue()
        self.writer = Writer(self.journal, ManualClock(), self.reports.put)
        self.writer.start()

    def write(self, seq: int, size: int = 10, durable: bool = True, block: Block | None = None) -> Batch:
        """Hand a record over and wait for the report."""
        self.writer.write(record(seq, size, durable, block))
        report = self.reports.get(timeout=60)
        assert isinstance(report, Batch)
        return report

    def close(self) -> None:
        self.writer.stop()
        self.journal.close()


def test_records_are_reported_with_their_positions_in_order(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    positions = [desk.write(seq).position for seq in (1, 2, 3)]

    desk.close()
    assert [position.seq for position in positions if position is not None] == [1, 2, 3]


def test_records_behind_a_failed_one_are_skipped_until_told_to_resume(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.write(1)
    desk.disk.full = True
    failed = desk.write(2, 4 * PAGE)
    desk.disk.full = False

    behind = desk.write(3)
    desk.writer.resume()
    again = desk.write(2)

    desk.close()
    assert failed.error is not None
    assert (behind.error, behind.position) == (None, None)
    assert again.position is not None


def test_stopping_syncs_what_was_written_without_a_sync(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.write(1, durable=False)

    desk.close()

    assert (desk.journal.synced_seq, desk.journal.unsynced) == (1, False)


def test_a_record_that_failed_does_not_count_as_synced(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.journal.prepare()
    desk.write(1, 2 * PAGE)
    desk.disk.full = True
    desk.write(2, 2 * PAGE)  # goes to the reserve, which takes no messages
    desk.write(3, durable=False)

    failed = desk.write(4, block=encode_block(0, many(1)))

    desk.close()
    assert failed.error is not None
    assert desk.journal.synced_seq == 3


def test_an_owner_that_waits_writes_a_durable_record_itself(tmp_path: Path) -> None:
    journal = Journal(FullDisk(), tmp_path, 4 * PAGE, 2, [], Position(0, 0, PAGE))
    writer = Writer(journal, ManualClock(), lambda report: None)  # not started: nobody else takes the record
    handed_over = record(1)
    writer.write(handed_over)

    written = writer.write_here()

    assert written is handed_over
    assert written.position is not None
    assert journal.synced_seq == 1
    assert writer.write_here() is None
    journal.close()


def test_an_owner_that_waits_leaves_a_record_without_a_sync_to_the_thread(tmp_path: Path) -> None:
    journal = Journal(FullDisk(), tmp_path, 4 * PAGE, 2, [], Position(0, 0, PAGE))
    writer = Writer(journal, ManualClock(), lambda report: None)
    writer.write(record(1, durable=False))

    assert writer.write_here() is None

    writer.start()
    writer.stop()
    assert journal.synced_seq == 1
    journal.close()


class CountingDisk(FullDisk):
    """A disk that counts how often the journal is synced, and fails when told so."""

    syncs = 0
    is_broken = False

    def sync(self, fd: int) -> None:
        self.syncs += 1
        if self.is_broken:
            raise SyncFailed(5, "Input/output error")
        super().sync(fd)


def test_records_that_are_queued_together_share_one_sync_and_are_reported_in_order(tmp_path: Path) -> None:
    disk = CountingDisk()
    journal = Journal(disk, tmp_path, 16 * PAGE, 2, [], Position(0, 0, PAGE))
    journal.write(1, b"", b"", [], True)  # begins a file
    reports: SimpleQueue[Report] = SimpleQueue()
    writer = Writer(journal, ManualClock(), reports.put)
    before = disk.syncs
    for seq in range(2, 12):
        writer.write(record(seq, durable=seq % 3 > 0))

    writer.start()
    writer.stop()

    found = [reports.get() for _ in range(reports.qsize())]
    assert [report.seq for report in found if isinstance(report, Batch)] == list(range(2, 12))
    assert [report.seq for report in found if isinstance(report, Synced)] == [11]
    assert isinstance(found[0], Synced)
    assert disk.syncs == before + 1
    journal.close()


def test_records_before_a_failed_one_are_synced_before_they_are_reported(tmp_path: Path) -> None:
    disk = CountingDisk()
    journal = Journal(disk, tmp_path, 4 * PAGE, 2, [], Position(0, 0, PAGE))
    journal.write(1, b"", b"", [], True)
    reports: SimpleQueue[Report] = SimpleQueue()
    writer = Writer(journal, ManualClock(), reports.put)
    disk.full = True
    for each in (record(2), record(3), record(4, 8 * PAGE), record(5)):
        writer.write(each)

    writer.start()
    writer.stop()

    found = [reports.get() for _ in range(reports.qsize())]
    batches = [report for report in found if isinstance(report, Batch)]
    assert [batch.position is not None for batch in batches] == [True, True, False, False]
    assert [batch.error is not None for batch in batches] == [False, False, True, False]
    assert journal.synced_seq == 3
    journal.close()


def test_records_whose_shared_sync_fails_are_not_reported_as_written(tmp_path: Path) -> None:
    disk = CountingDisk()
    journal = Journal(disk, tmp_path, 16 * PAGE, 2, [], Position(0, 0, PAGE))
    journal.write(1, b"", b"", [], True)
    reports: SimpleQueue[Report] = SimpleQueue()
    writer = Writer(journal, ManualClock(), reports.put)
    disk.is_broken = True
    for seq in (2, 3):
        writer.write(record(seq))
    before = disk.syncs

    writer.start()
    writer.stop()

    found = [reports.get() for _ in range(reports.qsize())]
    assert [type(report) for report in found] == [SyncFailure]
    assert disk.syncs == before + 1, "a second sync could succeed without what was lost"
    journal.close()
