"""A full disk fails the commit, harms nothing stored, and is forgotten when space returns; a failed sync is not."""

from pathlib import Path
from threading import Event

import pytest

from headrace.clock import ManualClock
from headrace.errors import Fatal, HeadraceError, Unavailable
from headrace.model import Message, Source
from headrace.storage.api import Commit
from headrace.storage.group_state import WORK
from headrace.storage.local.engine import LocalEngine, LocalSettings
from tests.contents import contents
from tests.disks import FailingDisk

SMALL = LocalSettings(
    journal_file_bytes=32 << 10, checkpoint_bytes=64 << 10, tail_bytes=16 << 10, segment_bytes=64 << 10
)
SOURCE = Source("orders")


class Publisher:
    """Commits numbered messages and remembers what became of each."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self._number = 0
        self.stored: list[bytes] = []
        self.errors: list[HeadraceError] = []

    def publish(self, count: int) -> None:
        payloads = [b"%d-%d" % (self._number, row) + bytes(100) for row in range(count)]
        self._number += 1
        commit = Commit()
        commit.append("orders", [Message(SOURCE, payload, 1) for payload in payloads])

        def done(error: HeadraceError | None) -> None:
            if error is None:
                self.stored.extend(payloads)
            else:
                self.errors.append(error)

        try:
            self._engine.commit(commit, done)
        except HeadraceError as error:
            self.errors.append(error)
        self._engine.sync()

    def publish_until_refused(self) -> None:
        for _ in range(500):
            self.publish(20)
            if self.errors:
                return
        raise AssertionError("the disk never ran full")


def payloads(engine: LocalEngine) -> list[bytes]:
    log = engine.log("orders")
    return [message.payload for message in log.read(log.first_offset, 1 << 30)]


def test_a_full_disk_fails_the_commit_and_keeps_everything_before_it(tmp_path: Path) -> None:
    disk = FailingDisk()
    engine = LocalEngine(tmp_path, settings=SMALL, disk=disk)
    publisher = Publisher(engine)
    publisher.publish(20)
    disk.full = True

    publisher.publish_until_refused()

    assert isinstance(publisher.errors[0], Unavailable)
    assert "full" in str(publisher.errors[0])
    assert payloads(engine) == publisher.stored
    engine.close()
    disk.full = False
    engine = LocalEngine(tmp_path, settings=SMALL, disk=disk)
    assert payloads(engine) == publisher.stored
    engine.close()


@pytest.mark.parametrize("free_writes", range(0, 40, 3))
def test_wherever_the_disk_runs_full_publishing_goes_on_when_space_returns(tmp_path: Path, free_writes: int) -> None:
    disk = FailingDisk()
    clock = ManualClock()
    woken = Event()
    engine = LocalEngine(tmp_path, woken.set, SMALL, clock, disk)
    publisher = Publisher(engine)
    disk.free_writes = free_writes
    publisher.publish_until_refused()

    disk.free_writes = -1
    disk.full = False
    in_a_row = 0
    for _ in range(1000):
        clock.advance(1)
        publisher.publish(20)
        in_a_row += 1
        if publisher.errors:  # the flusher has yet to see that there is space
            publisher.errors.clear()
            in_a_row = 0
            woken.wait(1)
            woken.clear()
        elif in_a_row == 200:
            break

    assert in_a_row == 200
    assert payloads(engine) == publisher.stored
    before = contents(engine)
    engine.close()
    engine = LocalEngine(tmp_path, settings=SMALL, disk=disk, clock=clock)
    assert contents(engine) == before
    engine.close()


def test_messages_can_still_be_settled_on_a_full_disk_which_frees_it(tmp_path: Path) -> None:
    disk = FailingDisk()
    engine = LocalEngine(tmp_path, settings=SMALL, disk=disk)
    publisher = Publisher(engine)
    start = Commit()
    start.create_group("orders", "workers", WORK)
    engine.commit(start, lambda error: None)
    disk.full = True
    publisher.publish_until_refused()

    outcomes: list[HeadraceError | None] = []
    for offset in range(len(publisher.stored)):
        commit = Commit()
        commit.ack("orders", "workers", offset, offset + 1)
        commit.truncate("orders", offset + 1)
        engine.commit(commit, outcomes.append)
        engine.sync()

    assert outcomes == [None] * len(publisher.stored)
    assert engine.log("orders").groups["workers"].committed == len(publisher.stored)
    engine.close()


def test_a_failed_sync_stops_the_engine_with_a_clear_message(tmp_path: Path) -> None:
    disk = FailingDisk()
    engine = LocalEngine(tmp_path, settings=SMALL, disk=disk)
    publisher = Publisher(engine)
    publisher.publish(3)
    disk.broken_sync = True
    outcomes: list[HeadraceError | None] = []
    commit = Commit()
    commit.append("orders", [Message(SOURCE, b"lost", 1)])
    engine.commit(commit, outcomes.append)

    with pytest.raises(Fatal, match="Input/output error"):
        engine.sync()

    assert len(outcomes) == 1
    assert isinstance(outcomes[0], Fatal)
    with pytest.raises(Fatal):
        engine.commit(Commit(), lambda error: None)
    engine.close()
    disk.broken_sync = False
    engine = LocalEngine(tmp_path, settings=SMALL, disk=disk)
    assert payloads(engine)[:3] == publisher.stored
    engine.close()
