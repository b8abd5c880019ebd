"""A power loss at the worst moment: what was removed came from a commit that was not on the disk yet."""

import random
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

from headrace.clock import ManualClock
from headrace.model import Message, Source
from headrace.storage.api import Commit
from headrace.storage.group_state import WORK
from headrace.storage.local.disk import Disk
from headrace.storage.local.engine import LocalEngine
from tests.disks import LosingDisk

SOURCE = Source("orders")


class Worst(random.Random):
    """Of what was not synced, every page is lost and every change of a directory is kept."""

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def randint(self, a: int, b: int) -> int:
        return b


class Watching(LosingDisk):
    """Tells when a segment is removed."""

    def __init__(self) -> None:
        super().__init__()
        self.removed = Event()

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        if path.suffix == ".seg":
            self.removed.set()


def test_segments_are_not_removed_before_the_truncation_is_on_the_disk(tmp_path: Path) -> None:
    disk = Watching()
    engine = LocalEngine(tmp_path / "live", disk=disk)
    publish = Commit()
    publish.append("orders", [Message(SOURCE, b"%d" % number, 1) for number in range(10)])
    engine.commit(publish, lambda error: None)
    engine.close()
    # The clock stands still: the sync that follows within a second never comes.
    engine = LocalEngine(tmp_path / "live", clock=ManualClock(), disk=disk)
    truncate = Commit()
    truncate.truncate("orders", 10)
    engine.commit(truncate, lambda error: None, durable=False)
    engine.sync()

    disk.removed.wait(0.3)
    disk.lose_power(tmp_path / "live", tmp_path / "left", Worst())
    engine.close()

    engine = LocalEngine(tmp_path / "left")
    assert [message.payload for message in engine.log("orders").read(0, 10)] == [b"%d" % number for number in range(10)]
    engine.close()


def test_names_are_on_the_disk_before_a_start_changes_anything(tmp_path: Path) -> None:
    """A killed process may have put a checkpoint in place, or made directories, without having come to sync that."""

    class Noting(Disk):
        """Notes which directories were synced, and which had been when the first file was changed."""

        def __init__(self) -> None:
            self.synced: set[Path] = set()
            self.at_first_change: set[Path] | None = None

        def sync_directory(self, path: Path) -> None:
            super().sync_directory(path)
            self.synced.add(path)

        def write(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
            self._change()
            super().write(fd, buffers, position)

        def write_synced(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
            self._change()
            super().write_synced(fd, buffers, position)

        def unlink(self, path: Path) -> None:
            self._change()
            super().unlink(path)

        def _change(self) -> None:
            if self.at_first_change is None:
                self.at_first_change = set(self.synced)

    engine = LocalEngine(tmp_path / "live")
    publish = Commit()
    publish.append("orders", [Message(SOURCE, b"x", 1)])
    publish.create_group("orders", "workers", WORK)
    engine.commit(publish, lambda error: None)
    engine.close()
    disk = Noting()

    engine = LocalEngine(tmp_path / "live", disk=disk)

    engine.close()
    directories = {path for path in (tmp_path / "live").rglob("*") if path.is_dir()}
    assert disk.at_first_change is not None
    assert directories | {tmp_path / "live"} <= disk.at_first_change


def test_segments_are_removed_once_the_truncation_is_on_the_disk(tmp_path: Path) -> None:
    disk = Watching()
    engine = LocalEngine(tmp_path, disk=disk)
    publish = Commit()
    publish.append("orders", [Message(SOURCE, b"x", 1)] * 10)
    engine.commit(publish, lambda error: None)
    engine.close()
    woken = Event()
    engine = LocalEngine(tmp_path, woken.set, disk=disk)
    truncate = Commit()
    truncate.truncate("orders", 10)
    engine.commit(truncate, lambda error: None, durable=False)

    while not disk.removed.is_set():  # the sync comes within a second, by itself
        assert woken.wait(60)
        woken.clear()
        engine.poll()

    engine.close()
