"""Segment files: blocks in a row with an offset and a time index beside them, and a cache of both. No journal, no tail.

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

The engine rebuilds both from the segment when one is missing or does not fit it. Readers from outside the broker use
the indexes, or the headers of blocks, and write nothing.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

from headrace.errors import Corrupt, Unavailable
from headrace.storage.local import block as blocks
from headrace.storage.local.block import Block, decode_block, decode_head, decode_header
from headrace.storage.local.disk import Disk, is_out_of_files, opened, opened_to_read, read_whole
from headrace.storage.local.files import crc32

MAGIC: Final = b"HRSG"
INDEX_MAGIC: Final = b"HRIX"
TIME_MAGIC: Final = b"HRTX"
VERSION: Final = 1
HEADER_BYTES: Final = 32
_CHECKED: Final = struct.Struct("<IIQQ")
_HEADER: Final = struct.Struct("<4sIIIQQ")
SUFFIXES: Final = (".seg", ".idx", ".tix")
"""A segment and its indexes."""


@final
class Segment:
    """The blocks of one segment file, as far as they are known: where they start, their offsets and times."""

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
        """The number of the last block that starts at or before this offset; -1 if there is none."""
        return bisect_right(self.bases, offset) - 1

    def block_at_time(self, timestamp_us: int) -> int:
        """The number of the first block with a message of at least this time; one too high when there is none."""
        return bisect_left(self.times, timestamp_us)

    def extent(self, number: int) -> tuple[int, int]:
        """Position and length of a block."""
        start = self.positions[number]
        stop = self.positions[number + 1] if number + 1 < len(self.positions) else self.length
        return start, stop - start

    def stop(self, number: int) -> int:
        """The first offset of the next block, or the end; beyond the block's own end if a truncation left a gap."""
        return self.bases[number + 1] if number + 1 < len(self.bases) else self.next

    def learn(self, disk: Disk, fd: int, log_id: int, length: int) -> None:
        """Read the blocks in the first `length` bytes, -1 for a full segment, from indexes or headers. Raises Corrupt.

        Known blocks are not read again, and bodies are not verified.
        """
        is_full = length < 0
        if is_full:
            length = disk.size(fd)
        if self.length >= length:
            return
        if not self.bases:
            check_segment_header(disk.read(fd, 0, HEADER_BYTES), self.path, log_id)
            if is_full and not self.take_indexes(disk, length):
                self.find_end(disk, fd)
                return
        while self.length < length:
            head = decode_head(disk.read(fd, self.length, blocks.HEADER_BYTES), str(self.path), self.length)
            _check_fits(self.path, self.length, head.length, length)
            self.add(head.base, head.base + head.count, head.length, head.max_time_us)

    def take_indexes(self, disk: Disk, length: int) -> str:
        """Take over the indexes of a full segment of this length; returns why they do not fit, "" if they do.

        Indexes do not say where the last block ends: see `find_end`.
        """
        try:
            index = _read_index(disk, self.path.with_suffix(".idx"), INDEX_MAGIC, length)
            times = _read_index(disk, self.path.with_suffix(".tix"), TIME_MAGIC, length)
        except (OSError, ValueError) as error:
            return str(error)
        bases = index[: len(index) // 2]
        if bases[:8] != self.base.to_bytes(8, "little") or times[len(times) // 2 :] != bases:
            return "the indexes are those of another segment"
        self.bases.frombytes(bases)
        self.positions.frombytes(index[len(index) // 2 :])
        self.times.frombytes(times[: len(times) // 2])
        self.length = length
        return ""

    def find_end(self, disk: Disk, fd: int) -> None:
        """Read the next offset from the header of the last block. Raises Corrupt."""
        position = self.positions[-1]
        head = decode_head(disk.read(fd, position, blocks.HEADER_BYTES), str(self.path), position)
        self.next = self.bases[-1] + head.count


def segment_files(directory: Path) -> list[tuple[int, Path]]:
    """The segments in a directory with their base offsets, in order; files of other names are not ours."""
    return sorted((int(path.stem), path) for path in directory.glob("*.seg") if path.stem.isdecimal())


def segment_path(directory: Path, base: int) -> Path:
    return directory / f"{base:020d}.seg"


def encode_segment_header(log_id: int, base: int) -> bytes:
    checked = _CHECKED.pack(VERSION, log_id, base, 0)
    return MAGIC + crc32(checked).to_bytes(4, "little") + checked


def segment_log_id(header: bytes) -> int:
    """The id of the log that a segment belongs to, unchecked."""
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
    """Read and verify a block of known length. Raises Corrupt."""
    data = disk.read(fd, position, length)
    return decode_block(data[: blocks.HEADER_BYTES], data[blocks.HEADER_BYTES :], str(path), position)


def read_block_before(disk: Disk, fd: int, path: Path, position: int, end: int) -> Block:
    """Read and verify the block at `position`, which must not pass `end`. Raises Corrupt."""
    header = disk.read(fd, position, min(blocks.HEADER_BYTES, end - position))
    length = blocks.HEADER_BYTES + decode_header(header, str(path), position)
    _check_fits(path, position, length, end)
    return read_block(disk, fd, path, position, length)


def _check_fits(path: Path, position: int, length: int, end: int) -> None:
    if position + length > end:
        raise Corrupt(str(path), position, f"the block has {length} bytes, {end - position} are left")


def walk_blocks(disk: Disk, fd: int, path: Path, position: int, end: int) -> Iterator[tuple[int, Block]]:
    """Every block from `position` up to `end`, verified, with its position. Raises Corrupt at the first bad one."""
    while position < end:
        block = read_block_before(disk, fd, path, position, end)
        yield position, block
        position += block.length


def scan_segment(disk: Disk, path: Path, base: int, log_id: int) -> Segment:
    """Read and verify all of a segment. Raises Corrupt at the first difference from what was written."""
    segment = Segment(path, base)
    with opened(disk, path) as fd:
        check_segment_header(disk.read(fd, 0, HEADER_BYTES), path, log_id)
        for position, block in walk_blocks(disk, fd, path, HEADER_BYTES, disk.size(fd)):
            if block.base < segment.next:
                raise Corrupt(str(path), position, f"offset {block.base} comes again, {segment.next} was next")
            segment.add(block.base, block.next, block.length, block.max_time_us)
    return segment


def cut_segments(disk: Disk, directory: Path, base: int, length: int) -> None:
    """Cut the segment with this base to `length` and remove the segments behind it: no checkpoint knows the rest."""
    for found, path in segment_files(directory):
        if found > base:
            for suffix in SUFFIXES:
                disk.unlink(path.with_suffix(suffix))
    path = segment_path(directory, base)
    if base < 0 or not path.exists() or path.stat().st_size <= length:
        return
    for suffix in SUFFIXES[1:]:
        disk.unlink(path.with_suffix(suffix))
    with opened(disk, path) as fd:
        disk.truncate(fd, length)


def write_indexes(disk: Disk, segment: Segment) -> None:
    """Write both indexes beside a segment, without a sync: readers rebuild indexes that do not fit."""
    for path, data in encode_indexes(segment):
        with opened(disk, path, create=True) as fd:
            disk.write(fd, [data], 0)
            disk.truncate(fd, len(data))


def encode_indexes(segment: Segment) -> list[tuple[Path, bytes]]:
    """The paths and contents of both indexes of a segment."""
    offsets, positions, times = segment.bases.tobytes(), segment.positions.tobytes(), segment.times.tobytes()
    return [
        (segment.path.with_suffix(".idx"), _encode_index(segment, INDEX_MAGIC, offsets + positions)),
        (segment.path.with_suffix(".tix"), _encode_index(segment, TIME_MAGIC, times + offsets)),
    ]


def load_indexes(disk: Disk, path: Path, base: int, log_id: int) -> tuple[Segment, str]:
    """Read the indexes of a full segment; if they do not fit, scan the segment and write them anew.

    Returns why they did not fit, "" if they did. Raises Corrupt when the segment itself is damaged.
    """
    segment = Segment(path, base)
    try:
        with opened(disk, path) as fd:
            check_segment_header(disk.read(fd, 0, HEADER_BYTES), path, log_id)
            trouble = segment.take_indexes(disk, disk.size(fd))
    except FileNotFoundError as error:
        raise Corrupt(str(path), 0, "the segment is missing") from error
    if trouble:
        segment = scan_segment(disk, path, base, log_id)
        write_indexes(disk, segment)
    return segment, trouble


def _encode_index(segment: Segment, magic: bytes, entries: bytes) -> bytes:
    checked = _CHECKED.pack(VERSION, len(segment.bases), segment.length, 0) + entries
    return magic + crc32(checked).to_bytes(4, "little") + checked


def _read_index(disk: Disk, path: Path, magic: bytes, segment_length: int) -> bytes:
    """The entries of an index. Raises ValueError when it is not the index of a segment of this length."""
    data = read_whole(disk, path)
    if len(data) < HEADER_BYTES or data[:4] != magic:
        raise ValueError(f"{path.name} is not an index")
    _, crc, version, count, length, _ = _HEADER.unpack(data[:HEADER_BYTES])
    if crc32(data[8:]) != crc or version != VERSION:
        raise ValueError(f"{path.name} has a wrong checksum")
    if length != segment_length or len(data) != HEADER_BYTES + count * 16:
        raise ValueError(f"{path.name} does not fit its segment")
    return data[HEADER_BYTES:]


_MAX_SEGMENTS: Final = 64


@final
class BlockCache:
    """Recently used blocks, under a byte budget, and a few segments and open files, for all logs of an engine.

    Keys are the log's id, which is never reused, and the segment's base offset. Making a path for each read of a
    backlog and looking it up took a fiftieth of a message's time.
    """

    def __init__(self, disk: Disk, max_bytes: int) -> None:
        self._disk = disk
        self._max_bytes = max_bytes
        self._bytes = 0
        self._blocks: OrderedDict[tuple[int, int, int], Block] = OrderedDict()
        """Blocks by log id, base offset of the segment and position in it."""
        self._segments: OrderedDict[tuple[int, int], Segment] = OrderedDict()
        self._files: OrderedDict[tuple[int, int], int] = OrderedDict()

    def segment(self, log_id: int, base: int) -> Segment | None:
        """A full segment, if it was used recently."""
        key = (log_id, base)
        segment = self._segments.get(key)
        if segment is not None:
            self._segments.move_to_end(key)
        return segment

    def load(self, path: Path, base: int, log_id: int) -> tuple[Segment, bool]:
        """Read a full segment; returns whether its indexes fitted it. Raises Corrupt, Unavailable."""
        with _passing():
            segment, trouble = load_indexes(self._disk, path, base, log_id)
            with opened_to_read(self._disk, path) as fd:
                segment.find_end(self._disk, fd)
        self._segments[log_id, base] = segment
        if len(self._segments) > _MAX_SEGMENTS:
            self._segments.popitem(last=False)
        return segment, not trouble

    def cut(self, directory: Path, base: int, length: int) -> None:
        """Remove files and bytes that the checkpoint does not name: the journal has them, or nobody finished them."""
        with _passing():
            cut_segments(self._disk, directory, base, length)

    def files(self, directory: Path) -> list[tuple[int, Path]]:
        """The segments in a directory. Raises Unavailable."""
        with _passing():
            return segment_files(directory)

    def scan(self, path: Path, base: int, log_id: int, length: int) -> Segment:
        """Read the last segment of a log, of which `length` bytes were stored. Raises Corrupt, Unavailable."""
        with _passing():
            segment = scan_segment(self._disk, path, base, log_id)
        if segment.length != length:
            raise Corrupt(str(path), segment.length, f"{length} bytes were stored, the file has {segment.length}")
        return segment

    def block(self, log_id: int, segment: Segment, number: int) -> Block:
        """A block of a segment, verified. Raises Corrupt, Unavailable."""
        position, length = segment.extent(number)
        key = (log_id, segment.base, position)
        block = self._blocks.get(key)
        if block is not None:
            self._blocks.move_to_end(key)
            return block
        block = read_block(self._disk, self._file(log_id, segment), segment.path, position, length)
        self._blocks[key] = block
        self._bytes += block.length
        while self._bytes > self._max_bytes and len(self._blocks) > 1:
            _, oldest = self._blocks.popitem(last=False)
            self._bytes -= oldest.length
        return block

    def forget_log(self, log_id: int) -> None:
        """Forget a dropped log."""
        known = [*self._segments, *self._files, *[(log, base) for log, base, _ in self._blocks]]
        for base in {base for log, base in known if log == log_id}:
            self.forget(log_id, base)

    def forget(self, log_id: int, base: int) -> None:
        """Forget a segment that is about to be removed."""
        self._segments.pop((log_id, base), None)
        fd = self._files.pop((log_id, base), None)
        if fd is not None:
            self._disk.close(fd)
        for key in [key for key in self._blocks if key[:2] == (log_id, base)]:
            self._bytes -= self._blocks.pop(key).length

    def close(self) -> None:
        self._close_files()
        self._blocks.clear()

    def _close_files(self) -> None:
        for fd in self._files.values():
            self._disk.close(fd)
        self._files.clear()

    def _file(self, log_id: int, segment: Segment) -> int:
        key = (log_id, segment.base)
        fd = self._files.get(key)
        if fd is None:
            fd = self._files[key] = self._open(segment.path)
            if len(self._files) > _MAX_SEGMENTS:
                _, oldest = self._files.popitem(last=False)
                self._disk.close(oldest)
        else:
            self._files.move_to_end(key)
        return fd

    def _open(self, path: Path) -> int:
        """Open a file; without a free descriptor, close the cached files first. Raises Unavailable."""
        try:
            return self._disk.open(path)
        except OSError as error:
            if not is_out_of_files(error):
                raise
        self._close_files()
        with _passing():
            return self._disk.open(path)


@contextmanager
def _passing() -> Iterator[None]:
    """Raise Unavailable instead of an OSError that passes by itself: descriptors ran out."""
    try:
        yield
    except OSError as error:
        if is_out_of_files(error):
            raise Unavailable(f"{error.filename or 'a file'} cannot be read now: {error.strerror}") from error
        raise
