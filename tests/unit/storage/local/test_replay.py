"""Opening a directory again: what a kill leaves between two checkpoints is put together from the journal alone."""

from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from headrace.errors import Corrupt, HeadraceError
from headrace.model import Message, Source
from headrace.storage.api import Commit
from headrace.storage.local.disk import Disk
from headrace.storage.local.engine import LocalEngine, LocalSettings
from tests.contents import contents
from tests.disks import SnapshotDisk

LARGE_SEGMENTS = LocalSettings(16 << 10, 1 << 30, 8 << 10, 1 << 20)
SMALL_SEGMENTS = LocalSettings(16 << 10, 1 << 30, 8 << 10, 4 << 10)
SOURCE = Source("orders")


class Bench:
    """An engine with a disk that can be copied at any moment, and ways to get it into a state."""

    def __init__(self, home: Path, settings: LocalSettings) -> None:
        self._home = home
        self._settings = settings
        self._disk = SnapshotDisk()
        self._woken = Event()
        self.root = home / "live"
        self.engine = self._open(self.root)

    def _open(self, root: Path) -> LocalEngine:
        return LocalEngine(root, self._woken.set, self._settings, disk=self._disk)

    def change(self, stage: Callable[[Commit], object], durable: bool = True) -> None:
        commit = Commit()
        stage(commit)
        errors: list[HeadraceError | None] = []
        self.engine.commit(commit, errors.append, durable)
        self.engine.sync()
        assert errors == [None]

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.change(lambda commit: commit.append("orders", [Message(SOURCE, bytes(100), 1)]))

    def checkpoint(self) -> None:
        self.engine.close()
        self.engine = self._open(self.root)

    def publish_until_flushed(self) -> None:
        """Until the segments on disk have grown, which happens beside us."""
        before = self._stored()
        for _ in range(2000):
            self.publish(5)
            if self._stored() > before:
                return
            self._woken.wait(0.01)
            self._woken.clear()
        raise AssertionError("nothing was flushed")

    def _stored(self) -> int:
        return sum(path.stat().st_size for path in (self.root / "queues").rglob("*.seg"))

    def kill(self, settings: LocalSettings | None = None) -> None:
        """Go on from what a killed process would leave."""
        self._settings = settings or self._settings
        copy = self._home / "copy"
        self._disk.snapshot(self.root, copy)
        self.engine.close()
        self.root = copy
        self.engine = self._open(copy)


def test_a_truncation_behind_the_checkpoint_does_not_make_later_flushes_look_like_damage(tmp_path: Path) -> None:
    for number, settings in enumerate((LARGE_SEGMENTS, SMALL_SEGMENTS)):
        bench = Bench(tmp_path / str(number), settings)
        bench.publish(150)
        bench.checkpoint()
        bench.change(lambda commit: commit.truncate("orders", 20))
        bench.publish_until_flushed()
        expected = contents(bench.engine)

        bench.kill()

        assert contents(bench.engine) == expected
        bench.checkpoint()
        assert contents(bench.engine) == expected
        bench.engine.close()


def test_segments_of_a_log_younger_than_the_checkpoint_are_written_anew(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SMALL_SEGMENTS)
    for _ in range(4):
        bench.publish_until_flushed()
    expected = contents(bench.engine)

    bench.kill(LARGE_SEGMENTS)
    bench.checkpoint()

    assert contents(bench.engine) == expected
    segments = list((bench.root / "queues" / "orders" / "segments").glob("*.seg"))
    assert len(segments) == 1, "the small segments of before must not stand beside the large one"
    bench.engine.close()


def test_truncation_never_removes_a_segment_whose_end_is_not_known(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SMALL_SEGMENTS)
    for _ in range(5):
        bench.publish_until_flushed()
    bench.engine.close()
    segments = sorted((bench.root / "queues" / "orders" / "segments").glob("*.seg"))
    last_full = int(segments[-2].stem)
    segments[-1].unlink()

    engine = LocalEngine(bench.root, settings=SMALL_SEGMENTS)
    commit = Commit()
    commit.truncate("orders", last_full + 2)
    engine.commit(commit, lambda error: None)
    engine.sync()

    assert len(engine.log("orders").read(last_full + 2, 3)) == 3
    with pytest.raises(Corrupt, match="segments"):
        engine.log("orders").read(engine.log("orders").next_offset - 1, 1)
    engine.close()
    assert segments[-2].exists()


def test_a_checkpoint_never_holds_what_the_journal_could_still_lose(tmp_path: Path) -> None:
    class Order(Disk):
        """Remembers which came first: the sync of the journal or the writing of the checkpoint."""

        def __init__(self) -> None:
            self.events: list[str] = []

        def sync(self, fd: int) -> None:
            super().sync(fd)
            self.events.append("sync")

        def write_draft(self, path: Path, data: bytes) -> Path:
            self.events.append(path.name)
            return super().write_draft(path, data)

    disk = Order()
    engine = LocalEngine(tmp_path, settings=SMALL_SEGMENTS, disk=disk)
    commit = Commit()
    commit.create_group("orders", "workers", 1)
    engine.commit(commit, lambda error: None, durable=False)
    engine.sync()
    disk.events.clear()

    engine.close()

    assert disk.events.index("sync") < disk.events.index("state.json") < disk.events.index("checkpoint.json")
