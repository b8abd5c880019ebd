"""Where the blocks of a segment stand and which offsets and times they hold, learnt without reading or writing much.

For whoever reads a directory from outside: nothing is mended here, and only as much of a growing segment is looked at
as its reader says counts. segment.py has what the engine knows of its own segments.
"""

import contextlib
from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import final

from headrace.errors import Corrupt
from headrace.storage.local.block import HEADER_BYTES as BLOCK_HEADER_BYTES
from headrace.storage.local.block import BlockHead, decode_head
from headrace.storage.local.disk import Disk
from headrace.storage.local.segment import HEADER_BYTES, INDEX_MAGIC, TIME_MAGIC, check_segment_header, read_index


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
