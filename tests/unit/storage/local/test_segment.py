"""Segment files, their indexes, and what is done about those that do not fit."""

from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import Corrupt
from headrace.model import Message
from headrace.storage.local.block import Block
from headrace.storage.local.disk import Disk
from headrace.storage.local.encoding import decode_messages, encode_block
from headrace.storage.local.segment import (
    HEADER_BYTES,
    Segment,
    cut_segments,
    encode_segment_header,
    load_indexes,
    read_block,
    scan_segment,
    segment_path,
    walk_blocks,
    write_indexes,
)
from tests.workbench import all_values, plain

LOG_ID = 3
FIRST = plain(b"a", b"b", timestamp_us=500)
SECOND = plain(b"c", timestamp_us=100)
THIRD = plain(b"d", b"e", b"f", timestamp_us=900)


def _write(directory: Path, base: int, *parts: tuple[int, list[Message]]) -> tuple[Path, list[Block]]:
    path = segment_path(directory, base)
    found = [encode_block(offset, messages) for offset, messages in parts]
    data = encode_segment_header(LOG_ID, base) + b"".join(block.header + block.body for block in found)
    path.write_bytes(data)
    return path, found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return _write(tmp_path, 10, (10, FIRST), (12, SECOND), (20, THIRD))[0]


def _known(segment: Segment) -> tuple[list[int], list[int], list[int], int]:
    return list(segment.bases), list(segment.positions), list(segment.times), segment.length


def test_the_name_of_a_segment_is_its_first_offset_in_twenty_digits() -> None:
    assert segment_path(Path("segments"), 41) == Path("segments/00000000000000000041.seg")


def test_scanning_learns_where_each_block_starts(path: Path) -> None:
    segment = scan_segment(Disk(), path, 10, LOG_ID)

    blocks = [encode_block(10, FIRST), encode_block(12, SECOND)]
    second = HEADER_BYTES + blocks[0].length
    assert list(segment.bases) == [10, 12, 20]
    assert list(segment.positions) == [HEADER_BYTES, second, second + blocks[1].length]
    assert (segment.next, segment.length) == (23, path.stat().st_size)


def test_times_never_fall_so_that_they_can_be_searched(path: Path) -> None:
    assert list(scan_segment(Disk(), path, 10, LOG_ID).times) == [501, 501, 902]


def test_the_block_of_an_offset_is_the_last_that_starts_at_or_before_it(path: Path) -> None:
    segment = scan_segment(Disk(), path, 10, LOG_ID)

    assert [segment.block_of(offset) for offset in (9, 10, 11, 12, 20, 22)] == [-1, 0, 0, 1, 2, 2]


def test_the_block_of_a_time_is_the_first_that_may_have_it(path: Path) -> None:
    segment = scan_segment(Disk(), path, 10, LOG_ID)

    assert [segment.block_at_time(time) for time in (0, 501, 502, 902, 903)] == [0, 0, 2, 2, 3]


def test_a_block_is_read_by_its_extent(path: Path) -> None:
    segment = scan_segment(Disk(), path, 10, LOG_ID)
    disk = Disk()
    fd = disk.open(path)
    try:
        block = read_block(disk, fd, path, *segment.extent(2))
    finally:
        disk.close(fd)

    assert all_values(decode_messages(block, 0, 3)) == all_values(THIRD)


def test_walking_stops_with_corrupt_at_a_block_that_is_cut(path: Path) -> None:
    disk = Disk()
    size = path.stat().st_size
    fd = disk.open(path)
    walk = walk_blocks(disk, fd, path, HEADER_BYTES, size - 1)
    try:
        found = [next(walk)[1].base, next(walk)[1].base]
        with pytest.raises(Corrupt, match="are left"):
            next(walk)
    finally:
        disk.close(fd)

    assert found == [10, 12]


def test_an_offset_that_comes_again_is_corrupt(tmp_path: Path) -> None:
    path, _ = _write(tmp_path, 10, (10, FIRST), (11, SECOND))

    with pytest.raises(Corrupt, match="offset 11 comes again, 12 was next"):
        scan_segment(Disk(), path, 10, LOG_ID)


def test_a_segment_of_another_log_is_corrupt(path: Path) -> None:
    with pytest.raises(Corrupt, match="belongs to log 3, not to log 4"):
        scan_segment(Disk(), path, 10, 4)


def test_a_segment_under_another_name_is_corrupt(path: Path) -> None:
    moved = path.rename(segment_path(path.parent, 11))

    with pytest.raises(Corrupt, match="starts at offset 10, its name says otherwise"):
        scan_segment(Disk(), moved, 11, LOG_ID)


@pytest.mark.parametrize("position", range(HEADER_BYTES))
def test_any_change_to_the_header_is_corrupt(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 4
    path.write_bytes(data)

    with pytest.raises(Corrupt):
        scan_segment(Disk(), path, 10, LOG_ID)


def test_a_header_that_is_cut_is_corrupt(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: HEADER_BYTES - 1])

    with pytest.raises(Corrupt, match="a segment header needs 32 bytes, the file has 31"):
        scan_segment(Disk(), path, 10, LOG_ID)


def test_a_segment_that_is_missing_is_corrupt(tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match="the segment is missing"):
        load_indexes(Disk(), segment_path(tmp_path, 10), 10, LOG_ID)


def test_indexes_say_what_a_scan_says(path: Path) -> None:
    scanned = scan_segment(Disk(), path, 10, LOG_ID)
    write_indexes(Disk(), scanned)

    loaded, problem = load_indexes(Disk(), path, 10, LOG_ID)

    assert problem == ""
    assert _known(loaded) == _known(scanned)


def _spoil_missing(index: Path) -> None:
    index.unlink()


def _spoil_cut(index: Path) -> None:
    index.write_bytes(index.read_bytes()[:-1])


def _spoil_flipped(index: Path) -> None:
    data = bytearray(index.read_bytes())
    data[40] ^= 1
    index.write_bytes(data)


def _spoil_empty(index: Path) -> None:
    index.write_bytes(b"")


def _spoil_swapped(index: Path) -> None:
    index.write_bytes(index.with_suffix(".tix" if index.suffix == ".idx" else ".idx").read_bytes())


@pytest.mark.parametrize("suffix", [".idx", ".tix"])
@pytest.mark.parametrize("spoil", [_spoil_missing, _spoil_cut, _spoil_flipped, _spoil_empty, _spoil_swapped])
def test_an_index_that_is_not_right_is_made_again(path: Path, suffix: str, spoil: Callable[[Path], None]) -> None:
    scanned = scan_segment(Disk(), path, 10, LOG_ID)
    write_indexes(Disk(), scanned)
    index = path.with_suffix(suffix)
    right = index.read_bytes()
    spoil(index)

    loaded, problem = load_indexes(Disk(), path, 10, LOG_ID)

    assert suffix in problem
    assert _known(loaded) == _known(scanned)
    assert index.read_bytes() == right


def test_indexes_of_another_segment_of_the_same_length_are_made_again(path: Path) -> None:
    scanned = scan_segment(Disk(), path, 10, LOG_ID)
    write_indexes(Disk(), scanned)
    indexes = [path.with_suffix(suffix) for suffix in (".idx", ".tix")]
    right = [index.read_bytes() for index in indexes]
    scanned.bases = array("Q", [base + 100 for base in scanned.bases])
    write_indexes(Disk(), scanned)

    loaded, problem = load_indexes(Disk(), path, 10, LOG_ID)

    assert "another segment" in problem
    assert loaded.bases[0] == 10
    assert [index.read_bytes() for index in indexes] == right


def test_indexes_of_a_shorter_segment_are_made_again(path: Path) -> None:
    write_indexes(Disk(), scan_segment(Disk(), path, 10, LOG_ID))
    more = encode_block(30, plain(b"g"))
    path.write_bytes(path.read_bytes() + more.header + more.body)

    loaded, problem = load_indexes(Disk(), path, 10, LOG_ID)

    assert "does not fit" in problem
    assert list(loaded.bases) == [10, 12, 20, 30]


def test_cutting_keeps_a_segment_up_to_the_length_and_removes_those_behind(path: Path) -> None:
    directory = path.parent
    length = scan_segment(Disk(), path, 10, LOG_ID).positions[2]
    write_indexes(Disk(), scan_segment(Disk(), path, 10, LOG_ID))
    _write(directory, 5, (5, FIRST))
    later, _ = _write(directory, 23, (23, SECOND))
    write_indexes(Disk(), scan_segment(Disk(), later, 23, LOG_ID))

    cut_segments(Disk(), directory, 10, length)

    assert sorted(found.name for found in directory.iterdir()) == ["00000000000000000005.seg", path.name]
    assert list(scan_segment(Disk(), path, 10, LOG_ID).bases) == [10, 12]


def test_cutting_at_the_end_changes_nothing(path: Path) -> None:
    before = path.read_bytes()

    cut_segments(Disk(), path.parent, 10, len(before))

    assert path.read_bytes() == before
