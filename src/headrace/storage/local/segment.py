"""Segment files: blocks one behind the other, with an offset index and a time index beside them. No journal, no tail.

`<base offset, 20 digits>.seg`, little-endian:

     0  4  magic "HRSG"
     4  4  crc32 of bytes 8 to 32
     8  4  version 1
    12  4  log id: which log this is part of
    16  8  base offset
    24  8  zero
    32     blocks (see block.py)

`.idx` (offset to position) and `.tix` (time to offset) are written when a segment is full, one entry per block:

     0  4  magic "HRIX" or "HRTX"
     4  4  crc32 of all that follows
     8  4  version 1
    12  4  count of blocks n
    16  8  length of the segment file
    24  8  zero
    32     .idx: base offset[n] u64, position[n] u64
           .tix: largest timestamp up to and including this block[n] i64, base offset[n] u64

Both are made again from the segment when they are missing or do not fit it.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

from headrace.errors import Corrupt
from headrace.storage.local import block as blocks
from headrace.storage.local.block import Block, decode_block, decode_header
from headrace.storage.local.checksum import crc32
from headrace.storage.local.disk import Disk

MAGIC: Final = b"HRSG"
INDEX_MAGIC: Final = b"HRIX"
TIME_MAGIC: Final = b"HRTX"
VERSION: Final = 1
HEADER_BYTES: Final = 32
_CHECKED: Final = struct.Struct("<IIQQ")
_HEADER: Final = struct.Struct("<4sIIIQQ")


@final
class Segment:
    """What is known of one segment file: where its blocks start, which offsets and times they hold."""

    __slots__ = ("base", "bases", "length", "next", "path", "positions", "times")

    def __init__(self, path: Path, base: int) -> None:
        self.path = path
        self.base = base
        self.next = base
        self.length = HEADER_BYTES
        self.bases: array[int] = array("Q")
        self.positions: array[int] = array("Q")
        self.times: array[int] = array("q")

    def add(self, base: int, stop: int, length: int, max_time_us: int) -> None:
        """Note a block of `length` bytes with these offsets, written at the end."""
        self.bases.append(base)
        self.positions.append(self.length)
        self.times.append(max(self.times[-1], max_time_us) if self.times else max_time_us)
        self.length += length
        self.next = stop

    def block_of(self, offset: int) -> int:
        """The number of the block that holds this offset."""
        return bisect_right(self.bases, offset) - 1

    def block_at_time(self, timestamp_us: int) -> int:
        """The number of the first block with a message of at least this time; one too high when there is none."""
        return bisect_left(self.times, timestamp_us)

    def extent(self, number: int) -> tuple[int, int]:
        """Position and length of a block."""
        start = self.positions[number]
        stop = self.positions[number + 1] if number + 1 < len(self.positions) else self.length
        return start, stop - start


def segment_files(directory: Path) -> list[tuple[int, Path]]:
    """The segments in a directory with their base offsets, in order; files of other names are not ours."""
    return sorted((int(path.stem), path) for path in directory.glob("*.seg") if path.stem.isdecimal())


def segment_path(directory: Path, base: int) -> Path:
    return directory / f"{base:020d}.seg"


def encode_segment_header(log_id: int, base: int) -> bytes:
    checked = _CHECKED.pack(VERSION, log_id, base, 0)
    return MAGIC + crc32(checked).to_bytes(4, "little") + checked


def segment_log_id(header: bytes) -> int:
    """Which log a segment says it is part of, unchecked."""
    return int.from_bytes(header[12:16], "little")


def check_segment_header(header: bytes, path: Path, log_id: int) -> None:
    """Raises Corrupt unless this is the header of that log's segment with that name."""
    file = str(path)
    if len(header) < HEADER_BYTES:
        raise Corrupt(file, 0, f"a segment header needs {HEADER_BYTES} bytes, the file has {len(header)}")
    magic, crc, version, found_id, base, _ = _HEADER.unpack(header)
    if magic != MAGIC:
        raise Corrupt(file, 0, f"this is not a segment (found {magic!r})")
    if crc32(header[8:]) != crc:
        raise Corrupt(file, 4, "the segment header's checksum is wrong")
    if version != VERSION:
        raise Corrupt(file, 8, f"segment version {version} is not known to this release; use a newer one")
    if found_id != log_id:
        raise Corrupt(file, 12, f"the segment belongs to log {found_id}, not to log {log_id}")
    if f"{base:020d}.seg" != path.name:
        raise Corrupt(file, 16, f"the segment starts at offset {base}, its name says otherwise")


def read_block(disk: Disk, fd: int, path: Path, position: int, length: int) -> Block:
    """One block, verified. Raises Corrupt."""
    data = disk.read(fd, position, length)
    return decode_block(data[: blocks.HEADER_BYTES], data[blocks.HEADER_BYTES :], str(path), position)


def walk_blocks(disk: Disk, fd: int, path: Path, position: int, end: int) -> Iterator[tuple[int, Block]]:
    """Every block from `position` up to `end`, verified, with its position. Raises Corrupt at the first bad one."""
    while position < end:
        header = disk.read(fd, position, min(blocks.HEADER_BYTES, end - position))
        length = blocks.HEADER_BYTES + decode_header(header, str(path), position)
        if position + length > end:
            raise Corrupt(str(path), position, f"the block has {length} bytes, {end - position} are left")
        yield position, read_block(disk, fd, path, position, length)
        position += length


def scan_segment(disk: Disk, path: Path, base: int, log_id: int) -> Segment:
    """Learn a segment by reading all of it. Raises Corrupt at the first thing that is not as it was written."""
    segment = Segment(path, base)
    fd = disk.open(path)
    try:
        check_segment_header(disk.read(fd, 0, HEADER_BYTES), path, log_id)
        for position, block in walk_blocks(disk, fd, path, HEADER_BYTES, disk.size(fd)):
            if block.base < segment.next:
                raise Corrupt(str(path), position, f"offset {block.base} comes again, {segment.next} was next")
            segment.add(block.base, block.next, block.length, block.max_time_us)
    finally:
        disk.close(fd)
    return segment


def cut_segments(disk: Disk, directory: Path, base: int, length: int) -> None:
    """Remove what stands behind this length of the segment with this base: nothing was promised to be there."""
    for found, path in segment_files(directory):
        if found > base:
            for suffix in (".seg", ".idx", ".tix"):
                disk.unlink(path.with_suffix(suffix))
    path = segment_path(directory, base)
    if base < 0 or not path.exists() or path.stat().st_size <= length:
        return
    for suffix in (".idx", ".tix"):
        disk.unlink(path.with_suffix(suffix))
    fd = disk.open(path)
    try:
        disk.truncate(fd, length)
    finally:
        disk.close(fd)


def write_indexes(disk: Disk, segment: Segment) -> None:
    """Put both indexes beside a segment. Not synced: they are made again when they do not fit."""
    for path, data in encode_indexes(segment):
        fd = disk.open(path, create=True)
        try:
            disk.write(fd, [data], 0)
            disk.truncate(fd, len(data))
        finally:
            disk.close(fd)


def encode_indexes(segment: Segment) -> list[tuple[Path, bytes]]:
    """Both indexes of a segment, and where they belong."""
    offsets, positions, times = segment.bases.tobytes(), segment.positions.tobytes(), segment.times.tobytes()
    return [
        (segment.path.with_suffix(".idx"), _encode_index(segment, INDEX_MAGIC, offsets + positions)),
        (segment.path.with_suffix(".tix"), _encode_index(segment, TIME_MAGIC, times + offsets)),
    ]


def load_indexes(disk: Disk, path: Path, base: int, log_id: int) -> tuple[Segment, str]:
    """Learn a full segment from its indexes, or from itself when they do not fit; the text says what was wrong.

    Raises Corrupt when the segment itself is damaged.
    """
    try:
        fd = disk.open(path)
    except FileNotFoundError as error:
        raise Corrupt(str(path), 0, "the segment is missing") from error
    try:
        check_segment_header(disk.read(fd, 0, HEADER_BYTES), path, log_id)
        length = disk.size(fd)
    finally:
        disk.close(fd)
    try:
        index = read_index(disk, path.with_suffix(".idx"), INDEX_MAGIC, length)
        times = read_index(disk, path.with_suffix(".tix"), TIME_MAGIC, length)
    except (OSError, ValueError) as error:
        segment = scan_segment(disk, path, base, log_id)
        write_indexes(disk, segment)
        return segment, str(error)
    segment = Segment(path, base)
    segment.length = length
    segment.bases.frombytes(index[: len(index) // 2])
    segment.positions.frombytes(index[len(index) // 2 :])
    segment.times.frombytes(times[: len(times) // 2])
    return segment, ""


def _encode_index(segment: Segment, magic: bytes, entries: bytes) -> bytes:
    checked = _CHECKED.pack(VERSION, len(segment.bases), segment.length, 0) + entries
    return magic + crc32(checked).to_bytes(4, "little") + checked


def read_index(disk: Disk, path: Path, magic: bytes, segment_length: int) -> bytes:
    """The entries of an index. Raises ValueError when it is not the index of a segment of this length."""
    fd = disk.open(path)
    try:
        data = disk.read(fd, 0, disk.size(fd))
    finally:
        disk.close(fd)
    if len(data) < HEADER_BYTES or data[:4] != magic:
        raise ValueError(f"{path.name} is not an index")
    _, crc, version, count, length, _ = _HEADER.unpack(data[:HEADER_BYTES])
    if crc32(data[8:]) != crc or version != VERSION:
        raise ValueError(f"{path.name} has a wrong checksum")
    if length != segment_length or len(data) != HEADER_BYTES + count * 16:
        raise ValueError(f"{path.name} does not fit its segment")
    return data[HEADER_BYTES:]
