"""The ring of journal files: writing, recycling, and what a reader makes of torn and damaged ends."""

import errno
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.errors import Corrupt
from headrace.storage.local.disk import Disk
from headrace.storage.local.encoding import encode_block
from headrace.storage.local.journal import (
    PAGE,
    Journal,
    JournalReader,
    Position,
    encode_header,
    mend_headers,
    read_files,
    read_newest,
    wipe_behind,
)
from headrace.storage.local.record import encode_put, encode_record
from tests.disks import FullDisk
from tests.workbench import encode_runs, many

FILE_BYTES = 4 * PAGE
NOWHERE = Position(0, 0, PAGE)


class SyncCountingDisk(Disk):
    """A disk that counts what is made durable."""

    def __init__(self) -> None:
        self.syncs = 0
        self.synced_writes = 0

    def sync(self, fd: int) -> None:
        self.syncs += 1
        super().sync(fd)

    def write_synced(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        self.synced_writes += 1
        super().write_synced(fd, buffers, position)


def _open(directory: Path, end: Position = NOWHERE, disk: Disk | None = None, max_spares: int = 2) -> Journal:
    disk = disk or Disk()
    return Journal(disk, directory, FILE_BYTES, max_spares, read_files(disk, directory), end)


def _operations(size: int) -> bytes:
    return encode_put("t", b"k", bytes(size))


def _write(journal: Journal, seq: int, size: int = 100, synced: bool = True) -> Position:
    return journal.write(seq, _operations(size), b"", [], synced)


def _fill(directory: Path, count: int, size: int = 100, unsynced: Sequence[int] = ()) -> list[Position]:
    """A journal with this many records; those in `unsynced` are written without a sync."""
    journal = _open(directory)
    positions = [_write(journal, seq, size, seq not in unsynced) for seq in range(1, count + 1)]
    journal.close()
    return positions


def _reader(directory: Path, start: Position = NOWHERE) -> JournalReader:
    stated, _ = read_newest(Disk(), directory)
    return JournalReader(Disk(), directory, read_files(Disk(), directory), start, stated)


def _sequence(directory: Path, start: Position = NOWHERE) -> list[int]:
    return [record.seq for record in _reader(directory, start).records()]


def _file_of(directory: Path, index: int) -> Path:
    (path,) = [file.path for file in read_files(Disk(), directory) if file.index == index]
    return path


def _damage(path: Path, at: int, length: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + length] = bytes(byte ^ 0x55 for byte in data[at : at + length])
    path.write_bytes(data)


def _indexes(directory: Path) -> list[int]:
    return sorted(file.index for file in read_files(Disk(), directory))


# -- writing and reading -------------------------------------------------------------------------------------------


def test_records_are_read_in_the_order_they_were_written(tmp_path: Path) -> None:
    _fill(tmp_path, 10)

    assert _sequence(tmp_path) == list(range(1, 11))


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    journal = _open(tmp_path)
    journal.write(1, b"", encode_runs([(4, 3, 70)]), [encode_block(70, many(3))], True)
    journal.close()

    (record,) = _reader(tmp_path).records()

    assert (record.seq, record.runs, record.operations) == (1, [(4, 3, 70)], b"")
    assert [block.count for block in record.blocks] == [3]


def test_a_reader_starts_behind_the_position_it_is_given(tmp_path: Path) -> None:
    positions = _fill(tmp_path, 10)

    assert _sequence(tmp_path, positions[6]) == [8, 9, 10]


def test_a_reader_ends_where_the_writer_did(tmp_path: Path) -> None:
    positions = _fill(tmp_path, 10)
    reader = _reader(tmp_path)

    for _ in reader.records():
        pass

    assert (reader.end.seq, reader.end.index, reader.end.at) == (10, positions[-1].index, positions[-1].at)
    assert not reader.torn


def test_a_journal_goes_on_where_it_ended(tmp_path: Path) -> None:
    end = _fill(tmp_path, 3)[-1]
    journal = _open(tmp_path, end)
    _write(journal, 4)
    journal.close()

    assert _sequence(tmp_path) == [1, 2, 3, 4]
    assert _indexes(tmp_path) == [1]


@pytest.mark.parametrize("size", [1, PAGE - 200, PAGE, PAGE + 1, 2 * PAGE])
def test_records_of_any_size_stand_behind_one_another(tmp_path: Path, size: int) -> None:
    _fill(tmp_path, 20, size)

    assert _sequence(tmp_path) == list(range(1, 21))


def test_an_empty_directory_has_no_records(tmp_path: Path) -> None:
    assert _sequence(tmp_path) == []


def test_a_full_file_is_followed_by_the_next(tmp_path: Path) -> None:
    _fill(tmp_path, 6, PAGE + PAGE // 4)

    assert _indexes(tmp_path) == [1, 2, 3]
    assert _sequence(tmp_path) == list(range(1, 7))


def test_a_record_larger_than_a_file_gets_a_larger_file(tmp_path: Path) -> None:
    journal = _open(tmp_path)
    _write(journal, 1)
    _write(journal, 2, 5 * FILE_BYTES)
    _write(journal, 3)
    journal.close()

    assert _sequence(tmp_path) == [1, 2, 3]
    assert _file_of(tmp_path, 2).stat().st_size > 5 * FILE_BYTES


def test_a_synced_write_is_one_call_and_no_other_sync(tmp_path: Path) -> None:
    disk = SyncCountingDisk()
    journal = _open(tmp_path, disk=disk)
    _write(journal, 1)
    before = (disk.synced_writes, disk.syncs)

    _write(journal, 2)

    assert (disk.synced_writes, disk.syncs) == (before[0] + 1, before[1])
    journal.close()


def test_a_synced_write_behind_an_unsynced_one_syncs_the_whole_file(tmp_path: Path) -> None:
    disk = SyncCountingDisk()
    journal = _open(tmp_path, disk=disk)
    _write(journal, 1, synced=False)
    before = disk.syncs
    assert journal.unsynced

    _write(journal, 2)

    assert (disk.syncs - before, journal.unsynced, journal.synced_seq) == (1, False, 2)
    journal.close()


def test_turning_to_the_next_file_syncs_what_was_not(tmp_path: Path) -> None:
    journal = _open(tmp_path)
    _write(journal, 1, 2 * PAGE, synced=False)

    _write(journal, 2, 2 * PAGE, synced=False)

    assert (journal.synced_seq, journal.unsynced) == (1, True)
    journal.close()


def test_each_record_says_what_was_synced_before_it(tmp_path: Path) -> None:
    _fill(tmp_path, 5, unsynced=[2, 3])

    assert [record.synced for record in _reader(tmp_path).records()] == [0, 1, 1, 1, 4]


# -- the ring ------------------------------------------------------------------------------------------------------


def test_recycled_files_are_used_again_instead_of_new_ones(tmp_path: Path) -> None:
    journal = _open(tmp_path)
    for seq in range(1, 41):
        position = _write(journal, seq, 2 * PAGE)  # one record fills a file
        journal.recycle(position.index)
    journal.close()

    assert len(list(tmp_path.glob("*.jnl"))) == 3
    assert max(_indexes(tmp_path)) == 40


def test_what_an_earlier_use_left_behind_the_end_is_not_read_again(tmp_path: Path) -> None:
    journal = _open(tmp_path)
    for seq in range(1, 40):
        position = _write(journal, seq, 500)
        journal.recycle(position.index)
    journal.close()

    reader = _reader(tmp_path, Position(39, position.index, position.at))

    assert list(reader.records()) == []
    assert not reader.torn


def test_more_spares_than_are_wanted_are_removed(tmp_path: Path) -> None:
    journal = _open(tmp_path, max_spares=2)
    for seq in range(1, 9):
        position = _write(journal, seq, 2 * PAGE)

    journal.recycle(position.index)

    assert len(list(tmp_path.glob("*.jnl"))) == 1 + 1 + 2  # in use, in reserve, spare
    journal.close()


def test_a_file_of_another_size_is_removed_instead_of_being_used_again(tmp_path: Path) -> None:
    journal = _open(tmp_path)
    _write(journal, 1, 5 * FILE_BYTES)
    large = _file_of(tmp_path, 1)
    position = _write(journal, 2, PAGE)

    journal.recycle(position.index)

    assert not large.exists()
    journal.close()


def test_preparing_makes_a_reserve_and_a_spare(tmp_path: Path) -> None:
    journal = _open(tmp_path)
    needed = [journal.needs_spare]

    journal.prepare()

    needed.append(journal.needs_spare)
    assert needed == [True, False]
    assert [path.stat().st_size for path in sorted(tmp_path.iterdir())] == [FILE_BYTES, FILE_BYTES]
    journal.close()


def test_opening_again_and_again_does_not_make_more_and_more_files(tmp_path: Path) -> None:
    end = NOWHERE
    counts: list[int] = []
    for seq in range(1, 6):
        journal = _open(tmp_path, end)
        journal.prepare()
        end = _write(journal, seq)
        journal.recycle(end.index)
        journal.close()
        counts.append(len(list(tmp_path.glob("*.jnl"))))

    assert counts[1:] == [3, 3, 3, 3]


# -- a full disk ---------------------------------------------------------------------------------------------------


def _on_a_full_disk(directory: Path) -> tuple[Journal, FullDisk]:
    """A journal with a reserve, whose file in use is full, on a disk that is full."""
    disk = FullDisk()
    journal = _open(directory, disk=disk)
    journal.prepare()
    _write(journal, 1, 2 * PAGE)
    disk.full = True
    return journal, disk


def test_messages_are_refused_on_a_full_disk_and_the_journal_stays_as_it_was(tmp_path: Path) -> None:
    journal, disk = _on_a_full_disk(tmp_path)
    block = encode_block(0, many(100, size=100))

    with pytest.raises(OSError, match="No space left"):
        journal.write(2, b"", encode_runs([(1, 100, 0)]), [block], True)

    disk.full = False
    journal.write(2, b"", encode_runs([(1, 100, 0)]), [block], True)
    journal.close()
    assert _sequence(tmp_path) == [1, 2]


def test_settlements_go_to_the_reserve_on_a_full_disk(tmp_path: Path) -> None:
    journal, _ = _on_a_full_disk(tmp_path)

    _write(journal, 2, 2 * PAGE)

    journal.close()
    assert _sequence(tmp_path) == [1, 2]


def test_messages_do_not_go_to_the_reserve_even_where_they_would_fit(tmp_path: Path) -> None:
    journal, _ = _on_a_full_disk(tmp_path)
    _write(journal, 2, 2 * PAGE)

    with pytest.raises(OSError, match="kept for settlements"):
        journal.write(3, b"", encode_runs([(1, 1, 0)]), [encode_block(0, many(1))], True)

    _write(journal, 3)
    journal.close()
    assert _sequence(tmp_path) == [1, 2, 3]


def test_messages_stay_out_of_the_reserve_after_a_settlement_too_large_for_it(tmp_path: Path) -> None:
    journal, _ = _on_a_full_disk(tmp_path)
    _write(journal, 2, 2 * PAGE)
    with pytest.raises(OSError, match="No space left"):
        _write(journal, 3, 2 * PAGE)

    with pytest.raises(OSError, match="kept for settlements"):
        journal.write(3, b"", encode_runs([(1, 1, 0)]), [encode_block(0, many(1))], True)
    journal.close()


def test_messages_are_taken_again_once_there_is_space(tmp_path: Path) -> None:
    journal, disk = _on_a_full_disk(tmp_path)
    _write(journal, 2, 2 * PAGE)
    disk.full = False

    _write(journal, 3, 2 * PAGE)
    journal.write(4, b"", encode_runs([(1, 1, 0)]), [encode_block(0, many(1))], True)

    journal.close()
    assert _sequence(tmp_path) == [1, 2, 3, 4]


def test_a_file_that_could_not_be_made_leaves_nothing_behind(tmp_path: Path) -> None:
    journal, _ = _on_a_full_disk(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())

    with pytest.raises(OSError, match="No space left"):
        _write(journal, 2, 5 * FILE_BYTES)

    assert sorted(path.name for path in tmp_path.iterdir()) == before
    journal.close()


# -- torn or damaged -----------------------------------------------------------------------------------------------


def test_a_last_record_that_was_cut_is_torn_and_those_before_it_count(tmp_path: Path) -> None:
    positions = _fill(tmp_path, 5)
    _damage(_file_of(tmp_path, 1), positions[3].at + 60)
    reader = _reader(tmp_path)

    assert [record.seq for record in reader.records()] == [1, 2, 3, 4]
    assert reader.torn


def test_a_damaged_record_is_corruption_when_a_later_one_proves_that_it_was_synced(tmp_path: Path) -> None:
    positions = _fill(tmp_path, 5)
    path = _file_of(tmp_path, 1)
    _damage(path, positions[1].at + 60)
    reader = _reader(tmp_path)

    with pytest.raises(Corrupt, match="record 3 cannot be read, but record 4 behind it proves") as corruption:
        list(reader.records())
    assert (corruption.value.file, corruption.value.position) == (str(path), positions[1].at)


def test_a_record_damaged_before_the_last_is_torn_when_nothing_proves_that_it_was_synced(tmp_path: Path) -> None:
    """Records 3 to 5 were written without a sync: a power loss may keep any of them and lose any other."""
    positions = _fill(tmp_path, 5, unsynced=[3, 4, 5])
    _damage(_file_of(tmp_path, 1), positions[2].at + 60)
    reader = _reader(tmp_path)

    assert [record.seq for record in reader.records()] == [1, 2, 3]
    assert reader.torn


def test_an_unsynced_record_becomes_proven_by_a_synced_one_behind_it(tmp_path: Path) -> None:
    positions = _fill(tmp_path, 6, unsynced=[3, 4])
    _damage(_file_of(tmp_path, 1), positions[2].at + 60)  # record 4; 5 was synced behind it and 6 says so

    with pytest.raises(Corrupt, match="record 4 cannot be read, but record 6"):
        _sequence(tmp_path)


def test_damage_in_a_file_is_proven_by_the_next_file(tmp_path: Path) -> None:
    _fill(tmp_path, 4, 2 * PAGE)  # one record in each file
    _damage(_file_of(tmp_path, 2), PAGE + 60)

    with pytest.raises(Corrupt, match="record 2 cannot be read, but record 3"):
        _sequence(tmp_path)


def test_a_file_that_is_missing_is_corruption(tmp_path: Path) -> None:
    _fill(tmp_path, 4, 2 * PAGE)
    _file_of(tmp_path, 2).unlink()

    with pytest.raises(Corrupt, match="journal file number 2, behind which there are others, is missing"):
        _sequence(tmp_path)


def test_the_first_file_missing_before_any_checkpoint_is_corruption(tmp_path: Path) -> None:
    _fill(tmp_path, 4, 2 * PAGE)
    _file_of(tmp_path, 1).unlink()

    with pytest.raises(Corrupt, match="journal file number 1, behind which there are others, is missing"):
        _sequence(tmp_path)


@pytest.mark.parametrize("index", [1, 2, 3])
def test_a_file_whose_header_is_damaged_is_recognised_by_its_first_record(tmp_path: Path, index: int) -> None:
    _fill(tmp_path, 3, 2 * PAGE)
    _damage(_file_of(tmp_path, index), 0, 32)

    assert _sequence(tmp_path) == [1, 2, 3]


def test_a_damaged_header_is_mended(tmp_path: Path) -> None:
    _fill(tmp_path, 3, 2 * PAGE)
    path = _file_of(tmp_path, 2)
    before = path.read_bytes()
    _damage(path, 0, 32)

    reader = _reader(tmp_path, NOWHERE)
    assert [record.seq for record in reader.records()] == [1, 2, 3]
    mend_headers(Disk(), reader.headless)

    assert path.read_bytes() == before


def test_a_damaged_header_does_not_hide_the_records_behind_a_checkpoint(tmp_path: Path) -> None:
    positions = _fill(tmp_path, 10)
    _damage(_file_of(tmp_path, 1), 16)

    assert _sequence(tmp_path, positions[4]) == [6, 7, 8, 9, 10]


def test_a_damaged_header_of_a_file_in_which_nothing_follows_does_not_hide_the_next_file(tmp_path: Path) -> None:
    positions = _fill(tmp_path, 3, 2 * PAGE)
    _damage(_file_of(tmp_path, 1), 16)

    assert _sequence(tmp_path, positions[0]) == [2, 3]


@pytest.mark.parametrize("length", [0, 20, PAGE - 1])
def test_a_file_that_ends_early_is_no_record(tmp_path: Path, length: int) -> None:
    _fill(tmp_path, 2)
    (tmp_path / "0009.jnl").write_bytes(bytes(length))

    assert _sequence(tmp_path) == [1, 2]


def test_a_version_of_the_file_that_is_not_known_is_corrupt(tmp_path: Path) -> None:
    header = bytearray(encode_header(1, 1))
    header[8] = 7
    header[4:8] = zlib.crc32(header[8:32]).to_bytes(4, "little")
    (tmp_path / "0000.jnl").write_bytes(header)

    with pytest.raises(Corrupt, match=r"0000\.jnl is damaged at byte 8: journal version 7 is not known"):
        read_files(Disk(), tmp_path)


def test_a_record_of_a_version_not_known_is_corrupt_and_not_torn(tmp_path: Path) -> None:
    positions = _fill(tmp_path, 2)
    path = _file_of(tmp_path, 1)
    at = positions[-1].at
    record = bytearray(b"".join(encode_record(3, 2, _operations(10), b"", [])))
    record[24] = 3
    record[4:8] = zlib.crc32(record[8:]).to_bytes(4, "little")
    data = path.read_bytes()
    path.write_bytes(data[:at] + record + data[at + len(record) :])

    with pytest.raises(Corrupt, match=f"damaged at byte {at + 24}: record version 3 is not known"):
        _sequence(tmp_path)


def test_a_record_of_a_version_not_known_that_an_earlier_use_left_is_ignored(tmp_path: Path) -> None:
    positions = _fill(tmp_path, 2)
    path = _file_of(tmp_path, 1)
    at = positions[-1].at
    record = bytearray(b"".join(encode_record(1, 0, _operations(10), b"", [])))
    record[24] = 3
    record[4:8] = zlib.crc32(record[8:]).to_bytes(4, "little")
    data = path.read_bytes()
    path.write_bytes(data[:at] + record + data[at + len(record) :])

    assert _sequence(tmp_path) == [1, 2]


def test_wiping_leaves_nothing_that_could_be_taken_for_a_record(tmp_path: Path) -> None:
    positions = _fill(tmp_path, 6, 1000, unsynced=[3, 4, 5, 6])
    files = read_files(Disk(), tmp_path)
    assert len(files) == 1

    wipe_behind(Disk(), files, positions[1])

    assert not any(files[0].path.read_bytes()[positions[1].at :])
    assert _sequence(tmp_path) == [1, 2]


def test_wiping_frees_the_files_behind_the_end(tmp_path: Path) -> None:
    positions = _fill(tmp_path, 3, 2 * PAGE)
    files = read_files(Disk(), tmp_path)

    wipe_behind(Disk(), files, positions[0])

    assert _indexes(tmp_path) == [0, 0, 1]
    assert sorted(file.index for file in files) == [0, 0, 1]


# -- the newest file -----------------------------------------------------------------------------------------------


class OrderDisk(Disk):
    """A disk that remembers what was made durable, in order: which file, and where in it."""

    def __init__(self) -> None:
        self.synced: list[tuple[str, int]] = []
        self._names: dict[int, str] = {}

    def open(self, path: Path, create: bool = False) -> int:
        fd = super().open(path, create)
        self._names[fd] = path.name
        return fd

    def write_synced(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        super().write_synced(fd, buffers, position)
        self.synced.append((self._names[fd], position))


def test_a_file_has_its_header_and_is_said_to_be_the_newest_before_its_first_record(tmp_path: Path) -> None:
    disk = OrderDisk()
    journal = _open(tmp_path, disk=disk)

    _write(journal, 1, 2 * PAGE)
    _write(journal, 2, 2 * PAGE)

    journal.close()
    assert disk.synced == [
        ("0000.jnl", 0),
        ("newest", PAGE),
        ("0000.jnl", PAGE),
        ("0001.jnl", 0),
        ("newest", 0),
        ("0001.jnl", PAGE),
    ]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_newest_file_is_missed(tmp_path: Path, count: int) -> None:
    _fill(tmp_path, count, 2 * PAGE)
    newest = _file_of(tmp_path, count)
    newest.unlink()

    with pytest.raises(Corrupt, match=f"journal file number {count} and the newest, is missing") as caught:
        _sequence(tmp_path)

    assert caught.value.file == str(newest)


def test_a_newest_file_of_zeros_is_missed(tmp_path: Path) -> None:
    _fill(tmp_path, 2, 2 * PAGE)
    newest = _file_of(tmp_path, 2)
    newest.write_bytes(bytes(FILE_BYTES))

    with pytest.raises(Corrupt, match="is missing, or it is damaged") as caught:
        _sequence(tmp_path)

    assert caught.value.file == str(newest)


@pytest.mark.parametrize("length", [FILE_BYTES - 1, FILE_BYTES - PAGE, PAGE])
def test_a_newest_file_that_was_cut_is_corruption(tmp_path: Path, length: int) -> None:
    _fill(tmp_path, 1)
    path = _file_of(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:length])

    with pytest.raises(Corrupt, match="the file was cut here") as caught:
        _sequence(tmp_path)

    assert (caught.value.file, caught.value.position) == (str(path), length)


def test_a_newest_file_without_a_record_is_where_the_journal_goes_on(tmp_path: Path) -> None:
    """A crash came between what was said of the file and its first record."""
    _fill(tmp_path, 2, 2 * PAGE)
    newest = _file_of(tmp_path, 2)
    newest.write_bytes(newest.read_bytes()[:PAGE].ljust(FILE_BYTES, b"\0"))

    reader = _reader(tmp_path)

    assert [record.seq for record in reader.records()] == [1]
    assert (reader.end.seq, reader.end.index, reader.end.at) == (1, 2, PAGE)


def test_what_was_said_of_an_earlier_file_does_no_harm(tmp_path: Path) -> None:
    """A release that says nothing wrote the journal for a while."""
    _fill(tmp_path, 1, 2 * PAGE)
    said = (tmp_path / "newest").read_bytes()
    journal = _open(tmp_path, Position(1, 1, PAGE + 2 * PAGE + 64))
    positions = [_write(journal, seq, 2 * PAGE) for seq in (2, 3, 4)]
    journal.close()
    (tmp_path / "newest").write_bytes(said)

    assert _sequence(tmp_path, positions[0]) == [3, 4]


def test_one_of_the_two_statements_is_enough(tmp_path: Path) -> None:
    _fill(tmp_path, 2, 2 * PAGE)
    _damage(tmp_path / "newest", PAGE + 20)
    assert _sequence(tmp_path) == [1, 2]

    _damage(tmp_path / "newest", 20)
    with pytest.raises(Corrupt, match="what it said of the newest journal file cannot be read"):
        _sequence(tmp_path)


def test_two_files_that_say_they_are_the_same_are_corruption(tmp_path: Path) -> None:
    _fill(tmp_path, 2, 2 * PAGE)
    (tmp_path / "0007.jnl").write_bytes(_file_of(tmp_path, 2).read_bytes())

    with pytest.raises(Corrupt, match=r"it says that it is journal file number 2, and so does 0001\.jnl"):
        _sequence(tmp_path)


def test_a_start_that_the_records_before_it_do_not_lead_to_is_corruption(tmp_path: Path) -> None:
    """The file is an old version, from before the checkpoint."""
    positions = _fill(tmp_path, 10)
    path = _file_of(tmp_path, 1)
    data = path.read_bytes()
    path.write_bytes(data[: positions[4].at].ljust(FILE_BYTES, b"\0"))

    with pytest.raises(Corrupt, match="commit 8, at which the checkpoint was written, does not end at byte"):
        _sequence(tmp_path, positions[7])


def test_a_file_whose_header_could_not_be_written_is_the_next_to_be_begun(tmp_path: Path) -> None:
    class FullForHeaders(Disk):
        """A disk that copies what it overwrites, and has no room for that."""

        is_full = False

        def write_synced(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
            super().write_synced(fd, buffers, position)
            if self.is_full and position == 0:
                raise OSError(errno.ENOSPC, "No space left on device")

    disk = FullForHeaders()
    journal = _open(tmp_path, disk=disk)
    journal.prepare()
    _write(journal, 1, 2 * PAGE)
    disk.is_full = True
    with pytest.raises(OSError, match="No space"):
        _write(journal, 2, 2 * PAGE)
    disk.is_full = False

    _write(journal, 2, 2 * PAGE)

    journal.close()
    assert _sequence(tmp_path) == [1, 2]
