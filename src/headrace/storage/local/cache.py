"""Blocks, segment indexes and open files that were used lately, under a budget. Shared by all logs of an engine."""

from collections import OrderedDict
from pathlib import Path
from typing import Final, final

from headrace.errors import Corrupt
from headrace.storage.local.block import Block
from headrace.storage.local.disk import Disk
from headrace.storage.local.segment import Segment, cut_segments, load_indexes, read_block, scan_segment

_MAX_SEGMENTS: Final = 64


@final
class BlockCache:
    """Blocks and segment indexes read lately, under a byte budget, and a few open files. Shared by all logs."""

    def __init__(self, disk: Disk, max_bytes: int) -> None:
        self._disk = disk
        self._max_bytes = max_bytes
        self._bytes = 0
        self._blocks: OrderedDict[tuple[Path, int], Block] = OrderedDict()
        self._segments: OrderedDict[Path, Segment] = OrderedDict()
        self._files: OrderedDict[Path, int] = OrderedDict()

    def segment(self, path: Path, base: int, log_id: int) -> Segment:
        """What is known of a full segment. Raises Corrupt."""
        segment = self._segments.get(path)
        if segment is None:
            segment, _ = load_indexes(self._disk, path, base, log_id)
            self._segments[path] = segment
            if len(self._segments) > _MAX_SEGMENTS:
                self._segments.popitem(last=False)
        else:
            self._segments.move_to_end(path)
        return segment

    def cut(self, directory: Path, base: int, length: int) -> None:
        """Remove what a checkpoint does not know of: the journal has it, or it was never finished."""
        cut_segments(self._disk, directory, base, length)

    def scan(self, path: Path, base: int, log_id: int, length: int) -> Segment:
        """Learn the last segment of a log, of which this many bytes were stored. Raises Corrupt."""
        segment = scan_segment(self._disk, path, base, log_id)
        if segment.length != length:
            raise Corrupt(str(path), segment.length, f"{length} bytes were stored, the file has {segment.length}")
        return segment

    def block(self, segment: Segment, number: int) -> Block:
        """A block of a segment, verified. Raises Corrupt."""
        position, length = segment.extent(number)
        key = (segment.path, position)
        block = self._blocks.get(key)
        if block is not None:
            self._blocks.move_to_end(key)
            return block
        block = read_block(self._disk, self._file(segment.path), segment.path, position, length)
        self._blocks[key] = block
        self._bytes += block.length
        while self._bytes > self._max_bytes and len(self._blocks) > 1:
            _, oldest = self._blocks.popitem(last=False)
            self._bytes -= oldest.length
        return block

    def forget_log(self, segments: Path) -> None:
        """Let go of everything about a log that is dropped: another one may come to stand in its place."""
        paths = {*self._segments, *self._files, *[path for path, _ in self._blocks]}
        for path in paths:
            if path.parent == segments:
                self.forget(path)

    def forget(self, path: Path) -> None:
        """Let go of everything about a segment that is going away."""
        self._segments.pop(path, None)
        fd = self._files.pop(path, None)
        if fd is not None:
            self._disk.close(fd)
        for key in [key for key in self._blocks if key[0] == path]:
            self._bytes -= self._blocks.pop(key).length

    def forget_below(self, directory: Path) -> None:
        """The same for every segment of a log that is dropped: a new log of its name has files of the same names."""
        known = [*self._segments, *self._files, *[path for path, _ in self._blocks]]
        for path in {path for path in known if directory in path.parents}:
            self.forget(path)

    def close(self) -> None:
        for fd in self._files.values():
            self._disk.close(fd)
        self._files.clear()
        self._blocks.clear()

    def _file(self, path: Path) -> int:
        fd = self._files.get(path)
        if fd is None:
            fd = self._files[path] = self._disk.open(path)
            if len(self._files) > _MAX_SEGMENTS:
                _, oldest = self._files.popitem(last=False)
                self._disk.close(oldest)
        else:
            self._files.move_to_end(path)
        return fd
