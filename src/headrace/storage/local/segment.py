"""Segment files: blocks in a row, with an offset index and a time index beside them. No journal, no tail.

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

For whoever reads a directory from outside: nothing is mended here, and only as much of a growing segment is looked at
as its reader says counts. segment.py has what the engine knows of its own segments.
"""

import contextlib
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

from headrace.errors import Corrupt
from headrace.storage.local import block as blocks
from headrace.storage.local.block import HEADER_BYTES as BLOCK_HEADER_BYTES
from headrace.storage.local.block import Block, BlockHead, decode_block, decode_head, decode_header
from headrace.storage.local.disk import Disk
from headrace.storage.local.files import crc32

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

    Indexes do not say where the last block ends: see `end_of`. Raises Corrupt when the segment itself is damaged.
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
        _check_bases(index, times, base)
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


def _check_bases(index: bytes, times: bytes, base: int) -> None:
    """Raises ValueError when the indexes are not about a segment with this base, or not about the same one."""
    bases = index[: len(index) // 2]
    if bases[:8] != base.to_bytes(8, "little") or times[len(times) // 2 :] != bases:
        raise ValueError("the indexes are those of another segment")


def end_of(disk: Disk, segment: Segment) -> int:
    """The offset behind the last block, by the header of that. Raises Corrupt."""
    position, _ = segment.extent(len(segment.bases) - 1)
    fd = disk.open_to_read(segment.path)
    try:
        header = disk.read(fd, position, blocks.HEADER_BYTES)
    finally:
        disk.close(fd)
    return segment.bases[-1] + blocks.decode_head(header, str(segment.path), position).count


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


@final
class Outline:
    """What is known of one segment so far."""

    def __init__(self, path: Path, log_id: int) -> None:
        self._path = path
        self.path = str(path)
        self.log_id = log_id
        self.bases: array[int] = array("Q")
        self.stops: array[int] = array("Q")
        """Behind which offset each block ends; too high where messages in between were truncated."""
        self._positions: array[int] = array("Q")
        self._times: array[int] = array("q")
        self._length = 0

    def learn(self, disk: Disk, fd: int, length: int) -> None:
        """Look at the first `length` bytes, or at all of a full segment with -1. Raises Corrupt."""
        is_full = length < 0
        if is_full:
            length = disk.size(fd)
        if self._length >= length:
            return
        if not self._length:
            check_segment_header(disk.read(fd, 0, HEADER_BYTES), self._path, self.log_id)
            self._length = HEADER_BYTES
            if is_full and self._learn_from_indexes(disk, fd, length):
                return
        while self._length < length:
            self._add(self._head(disk, fd, self._length, length))

    def block_of(self, offset: int) -> int:
        """The number of the block that holds this offset; -1 when it is before the first."""
        return bisect_right(self.bases, offset) - 1

    def block_at_time(self, timestamp_us: int) -> int:
        """The number of the first block with a message of at least this time; one too high when there is none."""
        return bisect_left(self._times, timestamp_us)

    def extent(self, number: int) -> tuple[int, int]:
        """Where a block starts and ends."""
        at = self._positions
        return at[number], at[number + 1] if number + 1 < len(at) else self._length

    def _head(self, disk: Disk, fd: int, position: int, end: int) -> BlockHead:
        data = disk.read(fd, position, BLOCK_HEADER_BYTES)
        head = decode_head(data, self.path, position)
        if position + head.length > end:
            what = f"the block has {head.length} bytes, {end - position} are left"
            raise Corrupt(self.path, position, what)
        return head

    def _add(self, head: BlockHead) -> None:
        self.bases.append(head.base)
        self.stops.append(head.base + head.count)
        self._positions.append(self._length)
        self._times.append(max(self._times[-1], head.max_time_us) if self._times else head.max_time_us)
        self._length += head.length

    def _learn_from_indexes(self, disk: Disk, fd: int, length: int) -> bool:
        index = times = b""
        with contextlib.suppress(OSError, ValueError):  # then the segment itself says it
            index = read_index(disk, self._path.with_suffix(".idx"), INDEX_MAGIC, length)
            times = read_index(disk, self._path.with_suffix(".tix"), TIME_MAGIC, length)
        if not index or len(index) != len(times):
            return False
        half = len(index) // 2
        self.bases.frombytes(index[:half])
        self._positions.frombytes(index[half:])
        self._times.frombytes(times[:half])
        last = self._head(disk, fd, self._positions[-1], length)
        self.stops.extend(self.bases[1:])
        self.stops.append(last.base + last.count)
        self._length = length
        return True
