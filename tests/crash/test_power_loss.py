"""A power loss at the worst moment: what was removed came from a commit that was not on the disk yet."""

import random
from pathlib import Path
from threading import Event
from typing import Any

from headrace.clock import ManualClock
from headrace.model import Message, Source
from headrace.storage.api import Commit
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
