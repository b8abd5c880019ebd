"""Files cut, flipped, missing, zeroed, exchanged, old: the truth or a Corrupt that names the file, never anything else.

Fifty damaged directories by default; `HEADRACE_DAMAGES=500` makes that many.
"""

import json
import logging
import os
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
from headrace.storage.local.journal import Position, read_files
from headrace.storage.local.record import decode_record, encode_record
from headrace.storage.local.segment import HEADER_BYTES, scan_segment, segment_log_id
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


def test_a_journal_file_that_ends_early_is_refused(original: tuple[Path, Contents, Contents], tmp_path: Path) -> None:
    """Files are made in full before their first use, so no crash leaves one that is shorter."""
    root, _, _ = original
    path, start, end = _last_record(root)
    size = path.stat().st_size
    for cut in (0, 4096, start, start + 1, (start + end) // 2, end - 1, end, size - 4096, size - 1):
        copy = tmp_path / str(cut)
        shutil.copytree(root, copy)
        with (copy / "journal" / path.name).open("r+b") as file:
            file.truncate(cut)
        with pytest.raises(Corrupt) as caught:
            LocalEngine(copy, settings=SMALL)
        assert caught.value.file == str(copy / "journal" / path.name), f"cut at byte {cut}"


def test_a_journal_file_that_is_missing_or_zeroed_is_refused(tmp_path: Path) -> None:
    settings = LocalSettings(journal_file_bytes=16 << 10)
    disk = SnapshotDisk()
    engine = LocalEngine(tmp_path / "live", settings=settings, disk=disk)
    for number in range(120):
        engine.commit(_commit(number), lambda error: None)
        engine.sync()
        if number == 50:
            engine.close()
            engine = LocalEngine(tmp_path / "live", settings=settings, disk=disk)
    expected = contents(engine)
    root = tmp_path / "killed"
    disk.snapshot(tmp_path / "live", root)
    engine.close()
    checkpoint = json.loads((root / "journal" / "checkpoint.json").read_bytes())
    needed = [file for file in read_files(Disk(), root / "journal") if file.index >= checkpoint["journal"][0]]
    assert len(needed) > 2, "one that the checkpoint names, one in the middle, and the newest"
    assert all(file.first_seq != checkpoint["seq"] + 1 for file in needed), "all of them hold something"

    for file in needed:
        for kind in ("missing", "zeroed", "empty"):
            copy = shutil.copytree(root, tmp_path / f"{kind}-{file.index}")
            path = copy / "journal" / file.path.name
            path.unlink()
            if kind != "missing":
                path.write_bytes(bytes(file.size if kind == "zeroed" else 0))
            with pytest.raises(Corrupt) as caught:
                LocalEngine(copy, settings=settings)
            assert str(copy / "journal") in caught.value.file

    engine = LocalEngine(root, settings=settings)
    assert contents(engine) == expected
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


def test_a_last_block_that_says_it_has_no_messages_is_damage_of_its_own_segment(
    shapes: list["Shape"], tmp_path: Path
) -> None:
    shape = shapes[1]
    segments = (shape.root / "queues" / "events" / "segments").glob("*.seg")
    full = sorted(path for path in segments if path.with_suffix(".idx").exists())
    assert full
    for path in full:
        copy = shutil.copytree(shape.root, tmp_path / path.stem)
        damaged = copy / path.relative_to(shape.root)
        log_id = segment_log_id(path.read_bytes()[:HEADER_BYTES])
        at = scan_segment(Disk(), path, int(path.stem), log_id).positions[-1]
        data = bytearray(path.read_bytes())
        data[at + 16 : at + 20] = bytes(4)  # how many messages it has, in the header of the last block
        damaged.write_bytes(data)

        assert _judge(shape, copy, [damaged], path.name) == "refused"


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


# -- any damage to any file ----------------------------------------------------------------------------------------

_DAMAGES = int(os.environ.get("HEADRACE_DAMAGES", "50"))
_SHARED = LocalSettings(
    journal_file_bytes=16 << 10,
    checkpoint_bytes=24 << 10,
    tail_bytes=4 << 10,
    segment_bytes=6 << 10,
    own_files=2,
    step=2,
)


class Shape:
    """A directory to damage, the same at an earlier time, and what it holds with and without the last commit."""

    def __init__(self, home: Path, settings: LocalSettings, is_stopped: bool) -> None:
        disk = SnapshotDisk()
        self.settings = settings
        engine = LocalEngine(home / "live", settings=settings, disk=disk)
        for number in range(121):
            engine.commit(_commit_to_many(number), lambda error: None)
            engine.sync()
            if number == 70:
                disk.snapshot(home / "live", home / "old")
            if number == 119:
                self.before = contents(engine)
        self.after = contents(engine)
        self.old = home / "old"
        self.root = home / "damaged"
        if is_stopped:
            engine.close()
            self.before = self.after
        disk.snapshot(home / "live", self.root)
        engine.close()
        self.newest = max(read_files(Disk(), self.root / "journal"), key=lambda file: file.index).path
        self.last_record = 0 if is_stopped else _last_record(self.root)[1]


def _commit_to_many(number: int) -> Commit:
    commit = _commit(number)
    for queue in range(number % 5):
        name = f"few-{queue}"
        if number < 5:
            commit.create_group(name, "workers", WORK) if number == queue + 1 else None
        commit.append(name, [Message(PLAIN, b"%d/%d" % (number, queue), number)])
        if number % 7 == 6:
            commit.ack(name, "workers", 0, number // 9)
    if number % 40 == 39:
        commit.truncate("events", number)
    return commit


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Shape]]:
    """As a kill and as a proper stop leave a directory, with files for each queue and with shared ones."""
    home = tmp_path_factory.mktemp("shapes")
    kinds = [(settings, is_stopped) for settings in (SMALL, _SHARED) for is_stopped in (False, True)]
    yield [Shape(home / str(number), *kind) for number, kind in enumerate(kinds)]
    shutil.rmtree(home)


def test_any_damage_is_refused_by_name_or_does_no_harm(
    shapes: list[Shape], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "headrace.storage")
    chance = random.Random(500)
    outcomes: dict[str, int] = {}
    for number in range(_DAMAGES):
        shape = shapes[number % len(shapes)]
        copy = shutil.copytree(shape.root, tmp_path / "copy")
        kind = _KINDS[number // len(shapes) % len(_KINDS)]
        damaged = kind(shape, copy, chance)
        what = f"{number}: {kind.__name__} {[str(path.relative_to(copy)) for path in damaged]}"
        outcome = _judge(shape, copy, damaged, what)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        shutil.rmtree(copy)
    print(outcomes)
    assert outcomes["refused"] > _DAMAGES // 5, "most damage must be noticed, not survived by luck"


def _files(root: Path, chance: random.Random) -> list[Path]:
    """All files, in any order; each kind of them comes as soon as the others, though there are fewer of it."""
    paths = sorted(path for path in root.rglob("*") if path.is_file() and path.name != "LOCK")
    kinds: dict[str, list[Path]] = {}
    for path in paths:
        kinds.setdefault(path.suffix if path.parent.name != "journal" else path.name, []).append(path)
    for alike in kinds.values():
        chance.shuffle(alike)
    found: list[Path] = []
    while any(kinds.values()):
        turn = [alike.pop() for alike in kinds.values() if alike]
        chance.shuffle(turn)
        found += turn
    return found


def _flip(shape: Shape, root: Path, chance: random.Random) -> list[Path]:
    path = _files(root, chance)[0]
    data = bytearray(path.read_bytes())
    used = [at for at in range(len(data)) if data[at]] or [0]
    count = chance.choice((1, 1, 8))
    if path.name == shape.newest.name and count > 1:  # nothing would prove that the last records were ever there
        used = [at for at in used if at < shape.last_record] or [0]
    for at in chance.choices(used, k=count):
        data[at] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return [path]


def _cut(shape: Shape, root: Path, chance: random.Random) -> list[Path]:
    path = _files(root, chance)[0]
    size = path.stat().st_size
    os.truncate(path, chance.choice([0, size // 2, size - 1, chance.randrange(size), chance.randrange(size) & ~4095]))
    return [path]


def _remove(shape: Shape, root: Path, chance: random.Random) -> list[Path]:
    path = _files(root, chance)[0]
    if chance.random() < 0.2 and path.parent.parent != root:
        shutil.rmtree(path.parent)
        return [path.parent]
    path.unlink()
    return [path]


def _zero(shape: Shape, root: Path, chance: random.Random) -> list[Path]:
    path = _files(root, chance)[0]
    data = bytearray(path.read_bytes())
    start, stop = 0, len(data)
    if chance.random() < 0.5:
        start = chance.randrange(len(data))
        stop = start + chance.choice((1, 512, 4096))
        if path.name == shape.newest.name:  # nothing would prove that the last record was ever there
            stop = min(stop, shape.last_record)
    data[start:stop] = bytes(max(0, min(stop, len(data)) - start))
    path.write_bytes(data)
    return [path]


def _exchange(shape: Shape, root: Path, chance: random.Random) -> list[Path]:
    first, *others = _files(root, chance)
    alike = [path for path in others if path.suffix == first.suffix] if chance.random() < 0.8 else others
    second = (alike or others)[0]
    bytes_of = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(bytes_of)
    return [first, second]


def _make_old(shape: Shape, root: Path, chance: random.Random) -> list[Path]:
    for path in _files(root, chance):
        old = shape.old / path.relative_to(root)
        if old.exists() and old.read_bytes() != path.read_bytes():
            shutil.copy(old, path)
            return [path]
    raise AssertionError("nothing changed since")


def _copy_beside(shape: Shape, root: Path, chance: random.Random) -> list[Path]:
    """A file, or an old version of it, under a name that another could have."""
    alike = [path for path in _files(root, chance) if path.suffix in (".jnl", ".seg", ".tails", ".kv")]
    path = alike[0]
    source = shape.old / path.relative_to(root)
    if not source.exists() or chance.random() < 0.5:
        source = path
    stem = path.stem.partition(".")[0]
    number = chance.randrange(200)
    names = {".jnl": f"{number:04d}", ".seg": f"{number:020d}", ".tails": str(number), ".kv": f"{stem}.{number}"}
    beside = path.with_name(names[path.suffix] + path.suffix)
    if not beside.exists():
        shutil.copy(source, beside)
    return [path, beside]


_KINDS = (_flip, _cut, _remove, _zero, _exchange, _make_old, _copy_beside)


def _judge(shape: Shape, root: Path, damaged: list[Path], what: str) -> str:
    """What became of the damage; fails where something is lost or changed without a word."""
    try:
        engine = LocalEngine(root, settings=shape.settings)
    except Corrupt as error:
        _check_name(error, root, damaged, what)
        return "refused"
    try:
        found = contents(engine)
    finally:
        engine.close()
    if found in (shape.before, shape.after):
        return "no harm"
    outcome = "no harm"
    assert found.keys() == shape.after.keys(), what
    for name, held in found.items():
        if isinstance(held, Corrupt):
            _check_name(held, root, damaged, what)
            outcome = "refused"
        else:
            assert held == shape.after[name], f"{what} changed {name} without a word"
    return outcome


def _check_name(error: Corrupt, root: Path, damaged: list[Path], what: str) -> None:
    named = Path(error.file)
    assert root in named.parents, f"{what}: {error}"
    is_named = any(path == named or named in path.parents or path in named.parents for path in damaged)
    is_odd_one = damaged[0].name == "checkpoint.json"  # of another time, it does not fit the files that it names
    assert is_named or is_odd_one, f"{what}: {error}"
