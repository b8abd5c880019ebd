"""Opening a directory again: what a kill leaves between two checkpoints is put together from the journal alone."""

from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Event

import pytest

from headrace.errors import Corrupt, HeadraceError
from headrace.model import Message, Source
from headrace.storage.api import QUEUES, Commit
from headrace.storage.group_state import WORK
from headrace.storage.local.disk import Disk
from headrace.storage.local.engine import LocalEngine, LocalSettings
from headrace.storage.local.segment import scan_segment
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
        self.disk = SnapshotDisk()
        self._woken = Event()
        self.root = home / "live"
        self.engine = self._open(self.root)

    def _open(self, root: Path) -> LocalEngine:
        return LocalEngine(root, self._woken.set, self._settings, disk=self.disk)

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
        self.disk.snapshot(self.root, copy)
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

    with pytest.raises(Corrupt, match=segments[-1].name):
        engine.log("orders").read(last_full + 2, 3)
    engine.close()
    for _ in range(2):  # the checkpoint of a start must not have the next start remove what is there
        engine = LocalEngine(bench.root, settings=SMALL_SEGMENTS)
        with pytest.raises(Corrupt, match=segments[-1].name):
            engine.log("orders").read(last_full + 2, 3)
        engine.close()
        assert segments[-2].exists()


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_queue_with_a_missing_segment_is_refused_and_its_files_are_kept(tmp_path: Path, number: int) -> None:
    bench = Bench(tmp_path, SMALL_SEGMENTS)
    for _ in range(4):
        bench.publish_until_flushed()
    bench.change(lambda commit: commit.append("other", [Message(SOURCE, b"fine", 1)]))
    bench.engine.close()
    segments = sorted((bench.root / "queues" / "orders" / "segments").glob("*.seg"))
    lost = segments.pop(number)
    lost.unlink()

    for _ in range(2):
        engine = LocalEngine(bench.root, settings=SMALL_SEGMENTS)
        with pytest.raises(Corrupt, match="missing") as caught:
            engine.log("orders").read(0, 1 << 30)
        with pytest.raises(Corrupt, match="missing"):
            engine.log("orders").find(2)  # a time that no message has: all segments are looked at
        assert caught.value.file in (str(lost), str(lost.parent))
        assert [message.payload for message in engine.log("other").read(0, 1)] == [b"fine"]
        engine.close()
    assert all(path.exists() for path in segments)


def test_a_full_segment_that_ends_early_between_two_blocks_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SMALL_SEGMENTS)
    for _ in range(4):
        bench.publish_until_flushed()
    bench.engine.close()
    path = sorted((bench.root / "queues" / "orders" / "segments").glob("*.seg"))[0]
    whole = scan_segment(Disk(), path, int(path.stem), 1)
    path.write_bytes(path.read_bytes()[: whole.positions[-1]])

    engine = LocalEngine(bench.root, settings=SMALL_SEGMENTS)
    with pytest.raises(Corrupt) as caught:
        engine.log("orders").read(0, 1 << 30)
    assert caught.value.file == str(path)
    engine.close()


def test_entries_that_are_pending_come_from_the_journal_where_their_file_was_not_kept(tmp_path: Path) -> None:
    """A power cut in a checkpoint: state.json was put in place, the first pel.log was not."""
    bench = Bench(tmp_path, LARGE_SEGMENTS)
    bench.change(lambda commit: commit.create_group("orders", "workers", WORK))
    bench.publish(5)
    bench.checkpoint()
    bench.change(lambda commit: commit.claim("orders", "workers", 0, 3, "ann", 7))
    before = contents(bench.engine)
    bench.disk.snapshot(bench.root, tmp_path / "killed")
    bench.engine.close()
    group = Path("queues") / "orders" / "consumers" / "workers"
    assert (bench.root / group / "pel.log").exists()
    (tmp_path / "killed" / group / "state.json").write_bytes((bench.root / group / "state.json").read_bytes())

    engine = LocalEngine(tmp_path / "killed", settings=LARGE_SEGMENTS)

    assert contents(engine) == before
    engine.close()


def test_a_group_that_holds_more_than_the_journal_proves_that_the_journal_lost_something(tmp_path: Path) -> None:
    bench = Bench(tmp_path, LARGE_SEGMENTS)
    bench.change(lambda commit: commit.create_group("orders", "workers", WORK))
    bench.publish(5)
    bench.checkpoint()
    bench.disk.snapshot(bench.root, tmp_path / "old")
    bench.change(lambda commit: commit.ack("orders", "workers", 0, 3))
    bench.engine.close()
    state = Path("queues") / "orders" / "consumers" / "workers" / "state.json"
    (tmp_path / "old" / state).write_bytes((bench.root / state).read_bytes())

    with pytest.raises(Corrupt, match="holds what commit"):
        LocalEngine(tmp_path / "old", settings=LARGE_SEGMENTS)


@pytest.mark.parametrize(("name", "kind"), [("state.json", "old"), ("pel.log", "old"), ("pel.log", "missing")])
def test_a_queue_with_a_missing_or_old_file_of_a_group_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    bench = Bench(tmp_path, LARGE_SEGMENTS)
    bench.change(lambda commit: commit.create_group("orders", "workers", WORK))
    bench.publish(5)
    bench.change(lambda commit: commit.claim("orders", "workers", 0, 3, "ann", 7))
    bench.checkpoint()
    path = bench.root / "queues" / "orders" / "consumers" / "workers" / name
    old = path.read_bytes()
    bench.change(lambda commit: commit.ack("orders", "workers", 0, 1))
    for _ in range(2):  # what the checkpoint says of it outlives a start that changes nothing
        bench.checkpoint()
    bench.engine.close()
    path.unlink()
    if kind == "old":
        path.write_bytes(old)

    for _ in range(2):
        engine = LocalEngine(bench.root, settings=LARGE_SEGMENTS)
        with pytest.raises(Corrupt, match=kind) as caught:
            engine.log("orders").read(0, 1)
        assert caught.value.file == str(path)
        engine.close()


def test_an_old_version_of_definitions_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, LARGE_SEGMENTS)
    bench.change(lambda commit: commit.put(QUEUES, b"a", b'{"type":"classic"}'))
    bench.checkpoint()
    path = bench.root / "config" / "queues.json"
    old = path.read_bytes()
    bench.change(lambda commit: commit.put(QUEUES, b"b", b'{"type":"classic"}'))
    for _ in range(2):  # what the checkpoint says of it outlives a start that changes nothing
        bench.checkpoint()
    bench.engine.close()
    path.write_bytes(old)

    with pytest.raises(Corrupt, match="it is an old version") as caught:
        LocalEngine(bench.root, settings=LARGE_SEGMENTS)

    assert caught.value.file == str(path)


def test_a_checkpoint_never_holds_what_the_journal_could_still_lose(tmp_path: Path) -> None:
    class Order(Disk):
        """Remembers which came first: the sync of the journal or the writing of the checkpoint."""

        def __init__(self) -> None:
            self.events: list[str] = []

        def sync(self, fd: int) -> None:
            super().sync(fd)
            self.events.append("sync")

        def write_draft(self, path: Path, parts: Iterable[bytes]) -> Path:
            self.events.append(path.name)
            return super().write_draft(path, parts)

    disk = Order()
    engine = LocalEngine(tmp_path, settings=SMALL_SEGMENTS, disk=disk)
    commit = Commit()
    commit.create_group("orders", "workers", 1)
    engine.commit(commit, lambda error: None, durable=False)
    engine.sync()
    disk.events.clear()

    engine.close()

    assert disk.events.index("sync") < disk.events.index("state.json") < disk.events.index("checkpoint.json")
