"""Files cut short and bits flipped: the truth or a Corrupt that names the file, never anything else."""

import logging
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import Corrupt
from headrace.model import AMQP091, Message, Source
from headrace.storage.api import QUEUES, RETAINED, Commit
from headrace.storage.group_state import STREAM, WORK
from headrace.storage.local.disk import Disk
from headrace.storage.local.engine import LocalEngine, LocalSettings
from headrace.storage.local.journal import Position
from headrace.storage.local.journal_reader import read_files
from headrace.storage.local.record import decode_record, encode_record
from tests.contents import Contents, contents
from tests.disks import SnapshotDisk

SMALL = LocalSettings(journal_file_bytes=16 << 10, checkpoint_bytes=24 << 10, tail_bytes=4 << 10, segment_bytes=6 << 10)
PLAIN = Source("orders/created")
RICH = Source("orders.eu", "amq.topic", "client-7", "amqp091", AMQP091)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Contents, Contents]]:
    """A directory as a kill leaves it, with segments, groups, tables and a journal to replay; what it holds with and
    without the last commit."""
    home = tmp_path_factory.mktemp("original")
    disk = SnapshotDisk()
    engine = LocalEngine(home / "live", settings=SMALL, disk=disk)
    for number in range(120):
        engine.commit(_commit(number), lambda error: None)
        engine.sync()
    before = contents(engine)
    last = Commit()
    last.append("orders", [Message(PLAIN, b"the last commit", 9)])
    last.ack("orders", "workers", 0, 40)
    last.put(RETAINED, b"last", b"yes")
    engine.commit(last, lambda error: None)
    engine.sync()
    after = contents(engine)
    disk.snapshot(home / "live", home / "killed")
    engine.close()
    yield home / "killed", before, after
    shutil.rmtree(home)


def _commit(number: int) -> Commit:
    commit = Commit()
    if number == 0:
        commit.create_group("orders", "workers", WORK)
        commit.create_group("events", "readers@#", STREAM, "#")
    commit.append("orders", [Message(PLAIN, b"order %d" % number * 3, number)])
    commit.append("events", [Message(RICH, b"event %d" % number, number, b"props", 3, 77, 88)] * (number % 9))
    if number % 4 == 1:
        commit.claim("orders", "workers", number, number + 3, "consumer-1", 55)
        commit.ack("orders", "workers", number, number + 1)
    commit.put(RETAINED, b"topic-%d" % (number % 6), b"kept %d" % number)
    commit.put(QUEUES, b"orders", b'{"type":"classic","changed":%d}' % number)
    return commit


def _last_record(root: Path) -> tuple[Path, int, int]:
    """The journal file of the newest record, and where that starts and ends."""
    newest = max(read_files(Disk(), root / "journal"), key=lambda file: file.index)
    data = newest.path.read_bytes()
    position = Position(newest.first_seq - 1, newest.index, 4096)
    start = position.at
    while (record := decode_record(data, position.at)) is not None and record.seq == position.seq + 1:
        start = position.at
        position = Position(record.seq, newest.index, position.at + record.length)
    return newest.path, start, position.at


def test_a_last_commit_cut_at_any_byte_is_gone_as_a_whole(
    original: tuple[Path, Contents, Contents], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, before, after = original
    path, start, end = _last_record(root)
    whole = path.read_bytes()

    for cut in range(start, end + 1):
        copy = tmp_path / str(cut)
        shutil.copytree(root, copy)
        (copy / "journal" / path.name).write_bytes(whole[:cut] + bytes(len(whole) - cut))
        caplog.clear()
        engine = LocalEngine(copy, settings=SMALL)
        found = contents(engine)
        engine.close()
        # What is cut from the end of a record may be zeros that were there anyway.
        assert found == (after if not any(whole[cut:end]) else before), f"cut at byte {cut}"
        if found == before and cut > start + 16:
            assert "never finished" in caplog.text
        shutil.rmtree(copy)


def test_a_journal_file_that_ends_early_loses_only_the_unfinished_commit(
    original: tuple[Path, Contents, Contents], tmp_path: Path
) -> None:
    root, before, _ = original
    path, start, end = _last_record(root)
    for cut in (start, start + 1, (start + end) // 2, end - 1):
        copy = tmp_path / str(cut)
        shutil.copytree(root, copy)
        with (copy / "journal" / path.name).open("r+b") as file:
            file.truncate(cut)
        engine = LocalEngine(copy, settings=SMALL)
        assert contents(engine) == before
        engine.close()


def test_a_damaged_commit_with_stored_ones_behind_it_is_never_cut_away(
    original: tuple[Path, Contents, Contents], tmp_path: Path
) -> None:
    root, _, _ = original
    path, start, _ = _last_record(root)
    shutil.copytree(root, tmp_path / "copy")
    damaged = tmp_path / "copy" / "journal" / path.name
    data = bytearray(damaged.read_bytes())
    previous = data.rfind(b"HRJR", 0, start)
    data[previous + 50] ^= 1
    damaged.write_bytes(data)

    with pytest.raises(Corrupt, match="proves that it was stored") as caught:
        LocalEngine(tmp_path / "copy", settings=SMALL)

    assert (caught.value.file, caught.value.position) == (str(damaged), previous)
    assert damaged.read_bytes() == data, "the file is kept as it is"


def test_a_flipped_bit_anywhere_gives_the_truth_or_a_corrupt_that_names_the_file(
    original: tuple[Path, Contents, Contents], tmp_path: Path
) -> None:
    logging.getLogger("headrace.storage").setLevel(logging.CRITICAL)
    root, before, after = original
    chance = random.Random(7)
    named = 0
    for path, at in _places(root, chance):
        copy = tmp_path / "copy"
        shutil.copytree(root, copy)
        damaged = copy / path
        data = bytearray(damaged.read_bytes())
        data[at] ^= 1 << chance.randrange(8)
        damaged.write_bytes(data)
        named += _check_truth_or_corrupt(copy, f"{path} byte {at}", before, after)
        shutil.rmtree(copy)
    assert named > 100, "most damage must be noticed, not survived by luck"
    logging.getLogger("headrace.storage").setLevel(logging.NOTSET)


def _places(root: Path, chance: random.Random) -> Iterator[tuple[Path, int]]:
    """Bytes to damage: every byte of the headers, and some hundred others, mostly where something is written."""
    for path in sorted(root.rglob("*")):
        if not path.is_file() or path.name == "LOCK":
            continue
        data = path.read_bytes()
        used = [at for at in range(min(len(data), 64), len(data)) if data[at]]
        places = {*range(0, min(len(data), 64), 3), *chance.sample(used, min(len(used), 25))}
        yield from ((path.relative_to(root), at) for at in sorted(places))


def _open(root: Path) -> LocalEngine | None:
    """None when the directory is refused, with the file that is damaged."""
    refused = ""
    try:
        return LocalEngine(root, settings=SMALL)
    except Corrupt as error:
        refused = error.file
    assert str(root) in refused
    return None


def _check_truth_or_corrupt(root: Path, where: str, before: Contents, after: Contents) -> int:
    """Returns 1 when the damage was named and 0 when it did no harm."""
    engine = _open(root)
    if engine is None:
        return 1
    try:
        found = contents(engine)
    finally:
        engine.close()
    if found in (before, after):  # the last commit alone cannot be told from one that was never finished
        return 0
    for name, held in found.items():
        if isinstance(held, Corrupt):
            assert str(root) in held.file
        else:
            assert held == after[name], f"{where} changed {name} without a word"
    assert found.keys() == after.keys()
    return 1


def test_a_payload_made_to_look_like_a_journal_record_proves_nothing(tmp_path: Path) -> None:
    """A publisher who knows the format, but not the sequence numbers, must not be able to lock a directory."""
    disk = SnapshotDisk()
    engine = LocalEngine(tmp_path / "live", settings=SMALL, disk=disk)
    forged = b"".join(
        b"".join(encode_record(seq, seq, b"", b"", []))
        for seq in (1, 1 << 20, 1 << 40, 1 << 61, 1 << 62, (1 << 63) - 1)
    )
    for _ in range(200):  # more than once around the ring
        commit = Commit()
        commit.append("orders", [Message(PLAIN, forged * 4, 1)])
        commit.truncate("orders", 1 << 40)
        engine.commit(commit, lambda error: None)
        engine.sync()
    expected = contents(engine)
    disk.snapshot(tmp_path / "live", tmp_path / "killed")
    engine.close()

    engine = LocalEngine(tmp_path / "killed", settings=SMALL)

    assert contents(engine) == expected
    engine.close()
