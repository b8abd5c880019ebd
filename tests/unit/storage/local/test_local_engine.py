"""The local engine from outside: commits, callbacks, waking, and what a disk may do to it."""

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event

import pytest

from headrace.clock import Clock, ManualClock
from headrace.errors import Fatal, HeadraceError, Refused, Unavailable
from headrace.model import Message
from headrace.storage.api import RETAINED, TRANSACTIONS, Append, Commit
from headrace.storage.group_state import WORK, Pending
from headrace.storage.local.disk import Disk, SyncFailed
from headrace.storage.local.engine import LocalEngine
from tests.workbench import PLAIN, Bench, full_message, many, outcome, payloads, plain

BAD = Message(PLAIN, b"bad", 1, priority=256)


class HastyClock(Clock):
    """A clock on which two seconds pass between any two looks."""

    def __init__(self) -> None:
        self._now_us = 0

    def now_us(self) -> int:
        return 1_700_000_000_000_000

    def monotonic_us(self) -> int:
        self._now_us += 2_000_000
        return self._now_us


class GateDisk(Disk):
    """A disk whose synced writes wait until the gate is open."""

    def __init__(self) -> None:
        self.gate = Event()
        self.gate.set()

    def write_synced(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        assert self.gate.wait(10)
        super().write_synced(fd, buffers, position)


class RecordingDisk(Disk):
    """A disk that tells when a file was synced."""

    def __init__(self) -> None:
        self.synced = Event()
        self.synced_writes = 0

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self.synced.set()

    def write_synced(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        self.synced_writes += 1
        super().write_synced(fd, buffers, position)


class OnceFullDisk(Disk):
    """A disk on which, once the gate is opened, the first write that makes a file grow finds no room."""

    def __init__(self) -> None:
        self.gate = Event()
        self.gate.set()
        self.fail_next = False

    def write(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        if self.fail_next and position + sum(map(len, buffers)) > self.size(fd):
            assert self.gate.wait(10)
            self.fail_next = False
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(fd, buffers, position)


class FailingDisk(Disk):
    """A disk that has no room for more, or that fails, when told so."""

    def __init__(self) -> None:
        self.full = False
        self.broken = False

    def write(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        if self.full and position + sum(map(len, buffers)) > self.size(fd):
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(fd, buffers, position)

    def write_synced(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        if self.broken:
            raise OSError(errno.EIO, "Input/output error")
        super().write_synced(fd, buffers, position)

    def sync(self, fd: int) -> None:
        if self.broken:
            raise SyncFailed(errno.EIO, "Input/output error")
        super().sync(fd)


def _append(engine: LocalEngine, done: Callable[[HeadraceError | None], None], *messages: Message) -> Commit:
    commit = Commit()
    commit.append("orders", list(messages))
    engine.commit(commit, done)
    return commit


def test_nothing_of_a_commit_is_seen_before_it_is_stored(root: Path) -> None:
    disk = GateDisk()
    with Bench(root, disk=disk) as bench:
        disk.gate.clear()
        commit = Commit()
        commit.append("orders", plain(b"a"))
        commit.create_group("orders", "billing", WORK)
        commit.put(RETAINED, b"k", b"v")
        bench.engine.commit(commit, lambda error: None)
        bench.engine.poll()

        before = (bench.engine.logs(), dict(bench.engine.log("orders").groups), bench.engine.get(RETAINED, b"k"))
        disk.gate.set()
        bench.engine.sync()

        assert before == ([], {}, None)
        assert bench.engine.logs() == ["orders"]
        assert list(bench.engine.log("orders").groups) == ["billing"]
        assert bench.engine.get(RETAINED, b"k") == b"v"


def test_a_callback_runs_on_poll_and_not_before_the_commit_is_seen(bench: Bench) -> None:
    seen: list[int] = []
    _append(bench.engine, lambda error: seen.append(bench.engine.log("orders").next_offset), *plain(b"a", b"b"))
    assert seen == []

    bench.until(lambda: bool(seen))

    assert seen == [2]


def test_callbacks_run_in_the_order_of_commits(bench: Bench) -> None:
    told: list[int] = []
    for number in range(200):
        _append(bench.engine, lambda error, number=number: told.append(number), *plain(b"x"))  # type: ignore[misc]
        bench.engine.poll()
    bench.engine.sync()

    assert told == list(range(200))


def test_an_append_knows_its_offset_before_it_is_stored(bench: Bench) -> None:
    first = _append(bench.engine, lambda error: None, *plain(b"a", b"b"))
    second = _append(bench.engine, lambda error: None, *plain(b"c"))

    assert (first.appends[0].base, second.appends[0].base) == (0, 2)
    bench.engine.sync()


def test_staged_bytes_are_those_whose_callbacks_have_not_run(bench: Bench) -> None:
    _append(bench.engine, lambda error: None, full_message())
    staged = bench.engine.staged_bytes

    bench.engine.sync()

    assert (staged, bench.engine.staged_bytes) == (len(b"paid"), 0)


def test_a_callback_may_commit_again(bench: Bench) -> None:
    def again(error: HeadraceError | None) -> None:
        assert error is None
        if bench.engine.log("orders").next_offset < 5:
            _append(bench.engine, again, *plain(b"more"))

    _append(bench.engine, again, *plain(b"first"))
    bench.until(lambda: bench.engine.log("orders").next_offset == 5)


def test_one_commit_may_change_everything_there_is(bench: Bench) -> None:
    bench.store(lambda commit: commit.append("old", many(3)), lambda commit: commit.append("short", many(3)))

    bench.store(
        lambda commit: commit.append("orders", plain(b"a")),
        lambda commit: commit.append("copies", plain(b"a")),
        lambda commit: commit.create_group("orders", "billing", WORK),
        lambda commit: commit.claim("orders", "billing", 0, 1, "c1", 9),
        lambda commit: commit.put(TRANSACTIONS, b"batch", b"1"),
        lambda commit: commit.truncate("short", 2),
        lambda commit: commit.drop("old"),
    )

    engine = bench.engine
    assert sorted(engine.logs()) == ["copies", "orders", "short"]
    assert engine.log("orders").groups["billing"].pending == {0: Pending(1, 9, "c1")}
    assert (engine.get(TRANSACTIONS, b"batch"), engine.log("short").first_offset) == (b"1", 2)


def test_a_step_on_a_group_that_does_not_exist_is_refused_at_once_and_nothing_happens(bench: Bench) -> None:
    commit = Commit()
    commit.append("orders", plain(b"a"))
    commit.ack("orders", "nobody", 0, 1)

    with pytest.raises(Refused, match="group 'nobody' of 'orders' does not exist"):
        bench.engine.commit(commit, lambda error: None)

    bench.store(lambda commit: commit.append("orders", plain(b"b")))
    assert payloads(bench.engine.log("orders").read(0, 10)) == [b"b"]


def test_a_step_that_cannot_be_stored_leaves_no_hole_behind(bench: Bench) -> None:
    bench.store(lambda commit: commit.create_group("orders", "billing", WORK))

    with pytest.raises(Refused, match="the consumer"):
        outcome(
            bench.engine,
            lambda commit: commit.append("orders", plain(b"a")),
            lambda commit: commit.claim("orders", "billing", 0, 1, "c" * 70_000, 9),
        )

    bench.store(lambda commit: commit.append("orders", plain(b"b")))
    assert payloads(bench.engine.log("orders").read(0, 10)) == [b"b"]


def test_a_group_made_by_a_commit_on_its_way_can_be_used_by_the_next(root: Path) -> None:
    disk = GateDisk()
    with Bench(root, disk=disk) as bench:
        disk.gate.clear()
        first, second = Commit(), Commit()
        first.create_group("orders", "billing", WORK)
        second.seek("orders", "billing", 7)
        bench.engine.commit(first, lambda error: None)
        bench.engine.commit(second, lambda error: None)
        disk.gate.set()
        bench.engine.sync()

        assert bench.engine.log("orders").groups["billing"].cursor == 7


@pytest.mark.parametrize("name", ["", "x" * 513, "\ud800"])
def test_a_name_that_cannot_be_is_refused(bench: Bench, name: str) -> None:
    with pytest.raises(Refused, match="the log name"):
        outcome(bench.engine, lambda commit: commit.append(name, plain(b"a")))


def test_a_message_that_cannot_be_stored_fails_its_commit_only(root: Path) -> None:
    disk = GateDisk()
    told: list[str] = []
    with Bench(root, disk=disk) as bench:
        disk.gate.clear()  # so that all but the first wait
        for name, message in [("0", b"a"), ("1", b"b"), ("bad", b""), ("2", b"c"), ("3", b"d")]:
            _append(
                bench.engine,
                lambda error, name=name: told.append(f"{name} {type(error).__name__}"),  # type: ignore[misc]
                *([BAD] if name == "bad" else plain(message)),
            )
        disk.gate.set()
        bench.engine.sync()

        assert sorted(told) == ["0 NoneType", "1 NoneType", "2 NoneType", "3 NoneType", "bad Refused"]
        assert payloads(bench.engine.log("orders").read(0, 10)) == [b"a", b"b", b"c", b"d"]


def test_callbacks_stay_in_order_when_one_commit_among_others_is_refused(root: Path) -> None:
    disk = GateDisk()
    told: list[int] = []
    with Bench(root, disk=disk) as bench:
        disk.gate.clear()
        for number in range(8):
            message = BAD if number in (3, 5, 6) else plain(b"x")[0]
            _append(bench.engine, lambda error, number=number: told.append(number), message)  # type: ignore[misc]
        disk.gate.set()
        bench.engine.sync()

    assert told == list(range(8))


def test_a_refused_commit_among_others_leaves_the_offsets_of_those_behind_it_right(root: Path) -> None:
    disk = GateDisk()
    with Bench(root, disk=disk) as bench:
        disk.gate.clear()
        _append(bench.engine, lambda error: None, *plain(b"a"))
        _append(bench.engine, lambda error: None, BAD)
        last = _append(bench.engine, lambda error: None, *plain(b"b"))
        disk.gate.set()
        bench.engine.sync()

        assert last.appends[0].base == 1
        assert payloads(bench.engine.log("orders").read(1, 1)) == [b"b"]


def test_a_commit_that_needed_a_refused_one_is_refused_too(root: Path) -> None:
    disk = GateDisk()
    told: list[HeadraceError | None] = []
    with Bench(root, disk=disk) as bench:
        disk.gate.clear()
        _append(bench.engine, lambda error: None, *plain(b"a"))
        creating, using = Commit(), Commit()
        creating.append("orders", [BAD])
        creating.create_group("orders", "billing", WORK)
        using.seek("orders", "billing", 1)
        bench.engine.commit(creating, told.append)
        with pytest.raises(Refused, match="does not exist"):
            bench.engine.commit(using, told.append)
        disk.gate.set()
        bench.engine.sync()

    assert [type(error) for error in told] == [Refused]


def test_a_log_dropped_and_made_again_while_commits_wait_is_the_new_one(root: Path) -> None:
    disk = GateDisk()
    with Bench(root, disk=disk) as bench:
        bench.store(lambda commit: commit.append("orders", plain(b"old")))
        disk.gate.clear()
        _append(bench.engine, lambda error: None, *plain(b"older"))
        for number in range(3):
            drop = Commit()
            drop.drop("orders")
            bench.engine.commit(drop, lambda error: None)
            _append(bench.engine, lambda error: None, *plain(b"new %d" % number))
        disk.gate.set()
        bench.engine.sync()
        assert payloads(bench.engine.log("orders").read(0, 10)) == [b"new 2"]

    with Bench(root) as bench:
        assert payloads(bench.engine.log("orders").read(0, 10)) == [b"new 2"]


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_commit_that_brings_a_log_which_is_dropped_goes_to_the_new_one_of_its_name(root: Path, is_gone: bool) -> None:
    disk = GateDisk()
    with Bench(root, disk=disk) as bench:
        bench.store(lambda commit: commit.append("orders", plain(b"old")))
        bench.store(lambda commit: commit.create_group("orders", "workers", WORK))
        old = bench.engine.log("orders")
        disk.gate.clear()
        drop, use = Commit(), Commit()
        drop.drop("orders")
        bench.engine.commit(drop, lambda error: None)
        if is_gone:
            disk.gate.set()
            bench.engine.sync()
        use.add(Append("", plain(b"new", b"newer"), 8, at=old))
        use.create_group("orders", "workers", WORK)
        use.ack_at(old, "workers", 0, 1, 1)
        bench.engine.commit(use, lambda error: None)
        disk.gate.set()
        bench.engine.sync()
        assert payloads(bench.engine.log("orders").read(1, 10)) == [b"newer"]
        assert bench.engine.log("orders").groups["workers"].committed == 1

    with Bench(root) as bench:
        assert payloads(bench.engine.log("orders").read(1, 10)) == [b"newer"]
        assert bench.engine.log("orders").groups["workers"].committed == 1


# -- waking and syncing ---------------------------------------------------------------------------------


def test_the_owner_is_woken_when_a_commit_is_stored(bench: Bench) -> None:
    bench.woken.clear()
    _append(bench.engine, lambda error: None, *plain(b"a"))

    assert bench.woken.wait(10)
    bench.engine.sync()


def test_the_owner_is_woken_for_a_commit_that_is_refused_at_once(bench: Bench) -> None:
    bench.engine.sync()
    bench.woken.clear()
    told: list[HeadraceError | None] = []
    _append(bench.engine, told.append, BAD)

    assert bench.woken.wait(10)
    bench.engine.poll()
    assert [type(error) for error in told] == [Refused]


def test_a_durable_commit_is_one_synced_write(root: Path) -> None:
    disk = RecordingDisk()
    with Bench(root, disk=disk) as bench:
        bench.store(lambda commit: commit.append("orders", plain(b"the first begins a journal file")))
        before = disk.synced_writes

        bench.store(lambda commit: commit.append("orders", plain(b"a")))

        assert disk.synced_writes == before + 1


def test_a_commit_that_is_not_durable_is_confirmed_without_a_sync(root: Path) -> None:
    disk = RecordingDisk()
    with Bench(root, clock=ManualClock(), disk=disk) as bench:
        bench.store(lambda commit: commit.append("orders", plain(b"a")))
        disk.synced.clear()
        before = disk.synced_writes

        bench.store(lambda commit: commit.append("orders", plain(b"b")), durable=False)

        assert (disk.synced_writes, disk.synced.is_set()) == (before, False)


def test_a_commit_that_is_not_durable_is_synced_when_a_second_has_passed(root: Path) -> None:
    disk = RecordingDisk()
    with Bench(root, clock=HastyClock(), disk=disk) as bench:
        bench.store(lambda commit: commit.append("orders", plain(b"a")))
        disk.synced.clear()
        before = disk.synced_writes

        bench.store(lambda commit: commit.append("orders", plain(b"b")), durable=False)

        assert disk.synced.wait(10)
        assert disk.synced_writes == before


# -- failing disks ---------------------------------------------------------------------------------


def test_a_full_disk_fails_the_commit_and_nothing_that_was_stored(root: Path) -> None:
    disk = FailingDisk()
    with Bench(root, disk=disk) as bench:
        bench.store(lambda commit: commit.append("orders", plain(b"kept")))
        disk.full = True
        error = outcome(bench.engine, lambda commit: commit.append("orders", plain(bytes(200_000))))
        disk.full = False

        assert isinstance(error, Unavailable)
        assert "full" in str(error)
        assert payloads(bench.engine.log("orders").read(0, 10)) == [b"kept"]


def test_commits_behind_one_that_failed_are_refused_with_it_and_the_next_takes_its_place(root: Path) -> None:
    disk = OnceFullDisk()
    told: list[str] = []

    def append(name: str, size: int) -> None:
        message = plain(name.encode().ljust(size))
        _append(bench.engine, lambda error: told.append(f"{name} {type(error).__name__}"), *message)

    with Bench(root, disk=disk) as bench:
        disk.gate.clear()
        disk.fail_next = True
        append("first", 200_000)
        append("second", 100_000)
        disk.gate.set()
        bench.engine.sync()
        append("third", 100_000)
        bench.engine.sync()

        assert told == ["first Unavailable", "second Unavailable", "third NoneType"]
    with Bench(root) as bench:
        assert payloads(bench.engine.log("orders").read(0, 10)) == [b"third".ljust(100_000)]


def test_commits_are_taken_again_by_themselves_once_there_is_space(root: Path) -> None:
    disk = FailingDisk()
    with Bench(root, clock=HastyClock(), disk=disk) as bench:
        disk.full = True
        assert outcome(bench.engine, lambda commit: commit.append("orders", plain(bytes(200_000)))) is not None
        disk.full = False

        bench.store(lambda commit: commit.append("orders", plain(bytes(200_000))))

        assert bench.engine.log("orders").next_offset == 1


def test_a_failed_write_is_fatal_for_this_commit_and_all_after_it(root: Path) -> None:
    disk = FailingDisk()
    bench = Bench(root, disk=disk)
    bench.store(lambda commit: commit.append("orders", plain(b"kept")))
    told: list[HeadraceError | None] = []
    disk.broken = True
    _append(bench.engine, told.append, *plain(b"lost"))

    with pytest.raises(Fatal, match="Input/output error"):
        bench.engine.sync()
    with pytest.raises(Fatal):
        _append(bench.engine, told.append, *plain(b"later"))
    assert [type(error) for error in told] == [Fatal]

    disk.broken = False
    bench.engine.close()
    with Bench(root) as again:
        assert payloads(again.engine.log("orders").read(0, 10)) == [b"kept"]


def test_a_failed_background_sync_is_fatal_and_the_engine_can_still_be_closed(root: Path) -> None:
    disk = FailingDisk()
    bench = Bench(root, clock=HastyClock(), disk=disk)
    disk.broken = True
    told: list[HeadraceError | None] = []
    commit = Commit()
    commit.append("orders", plain(b"a"))
    bench.engine.commit(commit, told.append, durable=False)

    with pytest.raises(Fatal, match="Input/output error"):
        bench.until(lambda: False)
    bench.engine.close()
    disk.broken = False
