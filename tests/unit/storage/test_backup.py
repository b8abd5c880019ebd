"""Copies of a data directory, taken while it is written to: whole, sound, and with everything that was confirmed."""

import random
import shutil
import threading
from pathlib import Path

import pytest

from headrace.errors import Corrupt, Unavailable
from headrace.storage.api import QUEUES
from headrace.storage.group_state import WORK
from headrace.storage.local.backup import back_up
from headrace.storage.local.disk import Disk
from headrace.storage.local.doctor import examine
from headrace.storage.local.engine import LocalEngine, LocalSettings
from tests.workbench import SMALL, Bench, many, payloads, plain

BUSY = LocalSettings(
    journal_file_bytes=16 << 10,
    checkpoint_bytes=256 << 10,
    tail_bytes=8 << 10,
    segment_bytes=8 << 10,
    cache_bytes=64 << 10,
)
"""Checkpoints come often, so that copies meet them."""


def _contents(root: Path, log: str = "orders") -> list[bytes]:
    engine = LocalEngine(root, settings=SMALL)
    try:
        found = engine.log(log)
        return payloads(found.read(found.first_offset, found.next_offset))
    finally:
        engine.close()


def _change(bench: Bench, chance: random.Random, confirmed: list[int]) -> None:
    """A few commits of all kinds; what is confirmed then."""
    first = confirmed[-1] if confirmed else 0
    batch = [b"%08d" % (first + at) + bytes(200) for at in range(20)]
    bench.store(lambda c: c.append("orders", plain(*batch)))
    confirmed.append(first + 20)
    bench.store(lambda c: c.append("passing", plain(bytes(500))), lambda c: c.put("state", b"k", b"%d" % first))
    if chance.random() < 0.2:
        bench.store(lambda c: c.drop("passing"))
    if first > 400 and chance.random() < 0.1:
        bench.store(lambda c: c.truncate("orders", first - 400))


def test_a_copy_of_a_closed_directory_has_everything_and_is_sound(tmp_path: Path) -> None:
    with Bench(tmp_path / "data") as bench:
        bench.store(lambda c: c.append("orders", many(300, size=100)))
        bench.store(lambda c: c.create_group("orders", "workers", WORK), lambda c: c.put(QUEUES, b"orders", b'{"a":1}'))
        bench.store(lambda c: c.put("retained", b"key", b"value"))

    copied = back_up(tmp_path / "data", tmp_path / "copy")

    assert (copied.messages, copied.queues) == (300, 1)
    assert examine(tmp_path / "copy").is_clean
    with Bench(tmp_path / "copy") as bench:
        log = bench.engine.log("orders")
        assert payloads(log.read(0, 300)) == payloads(many(300, size=100))
        assert list(log.groups) == ["workers"]
        assert bench.engine.get("retained", b"key") == b"value"
        assert bench.engine.get(QUEUES, b"orders") == b'{"a":1}'


def test_a_copy_of_an_open_directory_has_what_only_the_journal_has(tmp_path: Path) -> None:
    with Bench(tmp_path / "data") as bench:
        bench.store(lambda c: c.append("orders", plain(b"one", b"two")))

        copied = back_up(tmp_path / "data", tmp_path / "copy")
        bench.store(lambda c: c.append("orders", plain(b"three")))

    assert copied.messages == 2
    assert examine(tmp_path / "copy").is_clean
    assert _contents(tmp_path / "copy") == [b"one", b"two"]


def test_the_source_is_not_changed(tmp_path: Path) -> None:
    with Bench(tmp_path / "data") as bench:
        bench.store(lambda c: c.append("orders", many(50)))
    before = {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()}

    back_up(tmp_path / "data", tmp_path / "copy")

    assert {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("seed", range(2))
def test_copies_taken_while_everything_changes_have_all_that_was_confirmed_before(tmp_path: Path, seed: int) -> None:
    """Appends, truncations, drops and checkpoints go on in another thread while one copy after the other is made."""
    confirmed: list[int] = []
    stop = threading.Event()
    bench = Bench(tmp_path / "data", BUSY)

    def write() -> None:
        chance = random.Random(seed)
        while not stop.is_set():
            _change(bench, chance, confirmed)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(3):
            while len(confirmed) < 10:
                stop.wait(0.01)
            before = confirmed[-1]
            back_up(tmp_path / "data", tmp_path / f"copy-{number}")
            report = examine(tmp_path / f"copy-{number}")
            assert report.is_clean, report.all_problems()
            found = [int(payload[:8]) for payload in _contents(tmp_path / f"copy-{number}")]
            assert found == list(range(found[0], found[-1] + 1)), "no gap"
            assert found[-1] + 1 >= before, "nothing that was confirmed before is missing"
            shutil.rmtree(tmp_path / f"copy-{number}")
    finally:
        stop.set()
        writer.join()
        bench.engine.close()


def test_a_copy_can_be_copied_back(tmp_path: Path) -> None:
    with Bench(tmp_path / "data") as bench:
        bench.store(lambda c: c.append("orders", plain(b"one")))
        back_up(tmp_path / "data", tmp_path / "copy")
    shutil.rmtree(tmp_path / "data")

    back_up(tmp_path / "copy", tmp_path / "data")

    assert _contents(tmp_path / "data") == [b"one"]


def test_what_cannot_be_copied_is_said(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(Unavailable, match="exists already"):
        back_up(tmp_path, tmp_path / "there")
    with pytest.raises(Unavailable, match="is no data directory"):
        back_up(tmp_path / "nothing", tmp_path / "copy")
    with Bench(tmp_path / "data"):
        pass
    (tmp_path / "data" / "journal" / "checkpoint.json").write_text("{}")
    with pytest.raises(Corrupt):
        back_up(tmp_path / "data", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_copy_that_was_broken_off_is_none_and_the_next_one_succeeds(tmp_path: Path) -> None:
    class FullDisk(Disk):
        def write(self, fd: int, buffers: object, position: int) -> None:
            raise OSError(28, "No space left on device")

    with Bench(tmp_path / "data") as bench:
        bench.store(lambda c: c.append("orders", plain(b"one")))

    with pytest.raises(Unavailable, match="No space left on device"):
        back_up(tmp_path / "data", tmp_path / "copy", FullDisk())
    assert not (tmp_path / "copy").exists()

    back_up(tmp_path / "data", tmp_path / "copy")
    assert _contents(tmp_path / "copy") == [b"one"]
