"""Commits that are used before they are synced: when readers see them, when they are done, what a failure does."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event, get_ident

import pytest

from headrace.clock import ManualClock
from headrace.errors import Fatal, HeadraceError
from headrace.storage.api import Commit
from headrace.storage.local.disk import Disk, SyncFailed
from headrace.storage.local.engine import LocalEngine
from tests.workbench import many, payloads, plain


class SlowDisk(Disk):
    """A disk whose syncs wait until the gate is open, and fail when told so."""

    def __init__(self) -> None:
        self.gate = Event()
        self.gate.set()
        self.is_broken = False
        self.clock = ManualClock()
        self.takes_seconds = 0.0
        self.synced_by: list[int] = []
        """The threads that synced, in order."""
        self.written_by: list[int] = []
        """The threads that wrote without a sync, in order."""
        self.written_synced_by: list[int] = []
        """The threads that wrote and synced in one call, in order."""

    def write_synced(self, fd: int, buffers: object, position: int) -> None:
        self.written_synced_by.append(get_ident())
        assert self.gate.wait(10)
        if self.is_broken:
            raise SyncFailed(5, "Input/output error")
        super().write_synced(fd, buffers, position)  # type: ignore[arg-type]

    def write(self, fd: int, buffers: object, position: int) -> None:
        self.written_by.append(get_ident())
        super().write(fd, buffers, position)  # type: ignore[arg-type]

    def sync(self, fd: int) -> None:
        self.synced_by.append(get_ident())
        self.clock.advance(self.takes_seconds)
        assert self.gate.wait(10)
        if self.is_broken:
            raise SyncFailed(5, "Input/output error")
        super().sync(fd)


class Owner:
    """An engine whose owner notes, in order, what it is told."""

    def __init__(self, root: Path) -> None:
        self.disk = SlowDisk()
        self.woken = Event()
        self.engine = LocalEngine(root, self.woken.set, disk=self.disk, clock=self.disk.clock)
        self.told: list[str] = []
        self.errors: list[HeadraceError | None] = []
        self.publish("begin", early=False)  # the first record makes the journal's first file
        self.engine.sync()
        self.told.clear()
        self.errors.clear()

    def publish(
        self, name: str, early: bool = True, durable: bool = True, count: int = 1, is_consumed: bool = True
    ) -> None:
        commit = Commit()
        commit.is_consumed = is_consumed
        commit.append("orders", plain(*[name.encode()] * count))
        if early:
            commit.written = lambda: self.told.append(f"{name} used")
        self.engine.commit(commit, lambda error: self._done(name, error), durable)

    def publish_large(self, size: int = 5000) -> None:
        self.disk.written_by.clear()
        commit = Commit()
        commit.append("orders", many(40, size=size))
        commit.written = lambda: self.told.append("used")
        self.engine.commit(commit, lambda error: self._done("", error))

    def _done(self, name: str, error: HeadraceError | None) -> None:
        self.told.append(f"{name} done".strip())
        self.errors.append(error)

    def publish_each(self, count: int) -> list[bool]:
        """Publish one by one, each after the last is durable; returns for each sync whether this thread made it."""
        self.disk.synced_by.clear()
        for number in range(count):
            self.woken.clear()
            self.publish(str(number))
            while self.told[-1] != f"{number} done":
                assert self.woken.wait(10)
                self.woken.clear()
                self.engine.poll()
        return [thread == get_ident() for thread in self.disk.synced_by]

    @property
    def stored(self) -> list[bytes]:
        return payloads(self.engine.log("orders").read(1, 1000))


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    owner = Owner(tmp_path)
    yield owner
    owner.disk.gate.set()
    owner.engine.close()


def test_a_commit_is_used_before_it_is_synced_and_done_afterwards(owner: Owner) -> None:
    owner.disk.gate.clear()
    owner.publish("a")
    owner.engine.poll()

    assert owner.told == ["a used"]
    assert owner.stored == [b"a"]

    owner.disk.gate.set()
    owner.engine.sync()
    assert owner.told == ["a used", "a done"]


def test_one_that_may_not_run_ahead_is_seen_when_it_is_synced(owner: Owner) -> None:
    owner.disk.gate.clear()
    owner.publish("a", early=False)
    owner.engine.poll()

    assert owner.stored == []

    owner.disk.gate.set()
    owner.engine.sync()
    assert (owner.told, owner.stored) == (["a done"], [b"a"])


def test_commits_are_done_in_their_order_whichever_of_them_ran_ahead(owner: Owner) -> None:
    owner.disk.gate.clear()
    owner.publish("a")
    owner.publish("b", durable=False)
    owner.publish("c", early=False, durable=False)
    owner.publish("d", early=False)
    owner.publish("e")
    owner.engine.poll()
    assert owner.told[:2] == ["a used", "b used"]
    assert not [what for what in owner.told if what.endswith("done")]

    owner.disk.gate.set()
    owner.engine.sync()

    assert [what for what in owner.told if what.endswith("done")] == ["a done", "b done", "c done", "d done", "e done"]
    assert owner.stored == [b"a", b"b", b"c", b"d", b"e"]


def test_large_messages_are_written_by_the_thread_and_used_before_their_sync(owner: Owner) -> None:
    owner.disk.gate.clear()
    owner.woken.clear()
    owner.publish_large()
    assert owner.told == []
    assert owner.woken.wait(10)
    owner.engine.poll()
    assert owner.told == ["used"]
    assert get_ident() not in owner.disk.written_by

    owner.disk.gate.set()
    owner.engine.sync()
    assert owner.told == ["used", "done"]


def test_a_large_commit_of_small_messages_is_used_when_it_is_synced(owner: Owner) -> None:
    owner.disk.gate.clear()
    owner.publish_large(size=1000)
    owner.engine.poll()
    assert owner.told == []

    owner.disk.gate.set()
    owner.engine.sync()
    assert owner.told[-1] == "done"


def test_large_messages_whose_sync_fails_are_never_done(owner: Owner) -> None:
    owner.disk.is_broken = True
    owner.publish_large()

    with pytest.raises(Fatal):
        owner.engine.sync()

    assert [type(error) for error in owner.errors] == [Fatal]


def test_one_that_need_not_be_synced_is_done_at_once_and_synced_within_a_second(owner: Owner) -> None:
    owner.publish("a", durable=False)
    assert owner.woken.wait(10)
    owner.engine.poll()
    assert owner.told == ["a used", "a done"]

    owner.publish("b")  # synced behind it, so it is synced too
    owner.engine.sync()
    assert owner.told[-1] == "b done"


def test_the_owner_is_woken_when_a_sync_is_over(owner: Owner) -> None:
    owner.disk.gate.clear()
    owner.publish("a")
    owner.engine.poll()
    owner.woken.clear()

    owner.disk.gate.set()

    assert owner.woken.wait(10)
    owner.engine.poll()
    assert owner.told == ["a used", "a done"]


def test_the_owner_syncs_itself_on_a_disk_that_was_fast_for_a_while(owner: Owner) -> None:
    by_owner = owner.publish_each(50)

    assert not by_owner[0]
    assert all(by_owner[-20:])


def test_one_long_sync_gives_syncs_back_to_the_thread(owner: Owner) -> None:
    owner.publish_each(50)
    owner.disk.takes_seconds = 0.005

    assert owner.publish_each(3) == [True, False, False]


def test_the_owner_never_syncs_itself_on_a_slow_disk(owner: Owner) -> None:
    owner.disk.takes_seconds = 0.005

    assert not any(owner.publish_each(50))


def test_messages_published_meanwhile_share_the_sync_of_the_owner(owner: Owner) -> None:
    owner.publish_each(50)
    owner.disk.synced_by.clear()
    owner.told.clear()

    for name in ("a", "b", "c"):
        owner.publish(name)
    assert owner.told == ["a used", "b used", "c used"]
    owner.engine.poll()

    assert owner.disk.synced_by == [get_ident()]
    assert owner.told[3:] == ["a done", "b done", "c done"]


@pytest.mark.parametrize("early", [True, False])
def test_a_commit_that_nobody_uses_before_it_is_durable_is_written_and_synced_in_one_call(
    owner: Owner, early: bool
) -> None:
    owner.publish_each(50)
    owner.disk.synced_by.clear()
    owner.disk.written_synced_by.clear()
    owner.told.clear()

    owner.publish("a", early=early, is_consumed=not early)

    assert owner.disk.written_synced_by == [get_ident()]
    assert owner.stored[-1] == b"a"
    owner.engine.poll()
    assert owner.told == ["a done"]
    assert not owner.disk.synced_by


def test_a_commit_that_nobody_uses_is_left_to_the_thread_on_a_slow_disk(owner: Owner) -> None:
    owner.disk.takes_seconds = 0.005
    owner.publish_each(3)
    owner.disk.written_synced_by.clear()
    owner.woken.clear()

    owner.publish("a", early=False)
    assert owner.woken.wait(10)
    owner.engine.poll()

    assert owner.told[-1] == "a done"
    assert len(owner.disk.written_synced_by) == 1
    assert get_ident() not in owner.disk.written_synced_by


def test_a_commit_that_nobody_uses_makes_those_before_it_durable(owner: Owner) -> None:
    owner.publish_each(50)
    owner.told.clear()
    owner.publish("a")

    owner.publish("b", is_consumed=False)
    owner.engine.poll()

    assert owner.told == ["a used", "a done", "b done"]


def test_a_sync_of_the_owner_that_fails_in_the_call_that_writes_is_the_end(owner: Owner) -> None:
    owner.publish_each(50)
    owner.errors.clear()
    owner.disk.is_broken = True

    owner.publish("a", is_consumed=False)
    with pytest.raises(Fatal):
        owner.engine.poll()

    assert [type(error) for error in owner.errors] == [Fatal]
    with pytest.raises(Fatal):
        owner.publish("b")


def test_a_sync_of_the_owner_that_fails_is_the_end_and_confirms_nothing(owner: Owner) -> None:
    owner.publish_each(50)
    owner.errors.clear()
    owner.publish("a")
    owner.disk.is_broken = True

    with pytest.raises(Fatal):
        owner.engine.poll()

    assert [type(error) for error in owner.errors] == [Fatal]
    with pytest.raises(Fatal):
        owner.publish("b")


def test_a_sync_that_fails_is_the_end_and_confirms_nothing(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    owner.disk.gate.clear()
    owner.publish("a")
    owner.disk.is_broken = True
    owner.disk.gate.set()

    with pytest.raises(Fatal):
        owner.engine.sync()

    assert [type(error) for error in owner.errors] == [Fatal]
    with pytest.raises(Fatal):
        owner.publish("b")
    owner.engine.close()


def test_everything_used_is_there_after_opening_again(owner: Owner, tmp_path: Path) -> None:
    for number in range(300):  # several pages of the journal, syncs and writes beside each other
        owner.publish(str(number), durable=number % 3 > 0)
    owner.engine.close()

    owner.engine = LocalEngine(tmp_path)
    assert owner.stored == [b"%d" % number for number in range(300)]
