"""The thread that writes the journal: order, failures, and what counts as synced."""

from pathlib import Path
from queue import SimpleQueue

from headrace.clock import ManualClock
from headrace.storage.local.block import Block
from headrace.storage.local.encoding import encode_block
from headrace.storage.local.journal import PAGE, Journal, Position
from headrace.storage.local.record import encode_put
from headrace.storage.local.writer import Report, Write, Writer
from tests.disks import FullDisk
from tests.workbench import many


class Desk:
    """A writer on a journal of small files, and what it reported."""

    def __init__(self, directory: Path) -> None:
        self.disk = FullDisk()
        self.journal = Journal(self.disk, directory, 4 * PAGE, 2, [], Position(0, 0, PAGE))
        self.reports: SimpleQueue[Report] = SimpleQueue()
        self.writer = Writer(self.journal, ManualClock(), self.reports.put)
        self.writer.start()

    def write(self, seq: int, size: int = 10, durable: bool = True, block: Block | None = None) -> Write:
        """Hand a record over and wait for the report."""
        self.writer.write(
            Write(seq, encode_put("t", b"k", bytes(size)), b"", [] if block is None else [block], durable)
        )
        report = self.reports.get(timeout=60)
        assert isinstance(report, Write)
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
    assert (behind.skipped, behind.position) == (True, None)
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
    handed_over = Write(1, encode_put("t", b"k", b"v"), b"", [], True)
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
    writer.write(Write(1, encode_put("t", b"k", b"v"), b"", [], False))

    assert writer.write_here() is None

    writer.start()
    writer.stop()
    assert journal.synced_seq == 1
    journal.close()
