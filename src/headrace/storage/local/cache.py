"""Blocks, segment indexes and open files that were used lately, under a budget. Shared by all logs of an engine."""

from collections import OrderedDict
from pathlib import Path
from typing import Final, final

from headrace.errors import Corrupt, Unavailable
from headrace.storage.local.block import Block
from headrace.storage.local.disk import Disk, is_out_of_files
from headrace.storage.local.segment import (
    Segment,
    cut_segments,
    end_of,
    load_indexes,
    read_block,
    scan_segment,
    segment_files,
)

_MAX_SEGMENTS: Final = 64


@final
class BlockCache:
    """Blocks and segment indexes read lately, under a byte budget, and a few open files. Shared by all logs.

    They are found by the log's id, which no other log ever has, and the segment's base offset. To make a path for each
    read of a backlog, and to find things by that, was a fiftieth of what a message of one cost.
    """

    def __init__(self, disk: Disk, max_bytes: int) -> None:
        self._disk = disk
        self._max_bytes = max_bytes
        self._bytes = 0
        self._blocks: OrderedDict[tuple[int, int, int], Block] = OrderedDict()
        """By their segments and their positions there."""
        self._segments: OrderedDict[tuple[int, int], Segment] = OrderedDict()
        self._files: OrderedDict[tuple[int, int], int] = OrderedDict()

    def segment(self, log_id: int, base: int) -> Segment | None:
        """What is known of a full segment, if it was used lately."""
        key = (log_id, base)
        segment = self._segments.get(key)
        if segment is not None:
            self._segments.move_to_end(key)
        return segment

    def load(self, path: Path, base: int, log_id: int) -> tuple[Segment, bool]:
        """Learn a full segment; returns whether its indexes fit it too. Raises Corrupt, Unavailable."""
        try:
            segment, trouble = load_indexes(self._disk, path, base, log_id)
            segment.next = end_of(self._disk, segment)
        except OSError as error:
            _pass_on(error)
            raise
        self._segments[log_id, base] = segment
        if len(self._segments) > _MAX_SEGMENTS:
            self._segments.popitem(last=False)
        return segment, not trouble

    def cut(self, directory: Path, base: int, length: int) -> None:
        """Remove what a checkpoint does not know of: the journal has it, or it was never finished."""
        try:
            cut_segments(self._disk, directory, base, length)
        except OSError as error:
            _pass_on(error)
            raise

    def files(self, directory: Path) -> list[tuple[int, Path]]:
        """The segments in a directory. Raises Unavailable."""
        try:
            return segment_files(directory)
        except OSError as error:
            _pass_on(error)
            raise

    def scan(self, path: Path, base: int, log_id: int, length: int) -> Segment:
        """Learn the last segment of a log, of which this many bytes were stored. Raises Corrupt, Unavailable."""
        try:
            segment = scan_segment(self._disk, path, base, log_id)
        except OSError as error:
            _pass_on(error)
            raise
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
        """Let go of everything about a log that is dropped."""
        known = [*self._segments, *self._files, *[(log, base) for log, base, _ in self._blocks]]
        for base in {base for log, base in known if log == log_id}:
            self.forget(log_id, base)

    def forget(self, log_id: int, base: int) -> None:
        """Let go of everything about a segment that is going away."""
        self._segments.pop((log_id, base), None)
        fd = self._files.pop((log_id, base), None)
        if fd is not None:
            self._disk.close(fd)
        for key in [key for key in self._blocks if key[:2] == (log_id, base)]:
            self._bytes -= self._blocks.pop(key).length

    def close(self) -> None:
        for fd in self._files.values():
            self._disk.close(fd)
        self._files.clear()
        self._blocks.clear()

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
        """Open a file, for which others are closed where there is no descriptor left. Raises Unavailable."""
        try:
            return self._disk.open(path)
        except OSError as error:
            if not is_out_of_files(error) or not self._files:
                _pass_on(error)
                raise
        for fd in self._files.values():
            self._disk.close(fd)
        self._files.clear()
        return self._open(path)


def _pass_on(error: OSError) -> None:
    """Raises Unavailable for an error that passes by itself."""
    if is_out_of_files(error):
        raise Unavailable(f"{error.filename or 'a file'} cannot be read now: {error.strerror}") from error
