"""The segments of one log under examination: headers, blocks, indexes, and that no offset is missing. No journal."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

from headrace.errors import Corrupt
from headrace.storage.local import block as blocks
from headrace.storage.local.block import Block, decode_header
from headrace.storage.local.disk import Disk
from headrace.storage.local.doctor.findings import Problem, problem_of, read_whole, unreadable
from headrace.storage.local.doctor.meter import Meter
from headrace.storage.local.segment import HEADER_BYTES, Segment, check_segment_header, encode_indexes, read_block

_WINDOW: Final = 1 << 20
_ALIGNMENT: Final = 8
"""Segment headers and blocks are multiples of this, so every block starts at one; windows are cut at them too."""
_REMEDY: Final = "restore the file from a copy; until then these messages cannot be read"


@final
class Found:
    """A sound block: where it stands and which offsets it holds; `after_damage` when something unreadable is before."""

    __slots__ = ("after_damage", "base", "next", "position")

    def __init__(self, position: int, block: Block, after_damage: bool) -> None:
        self.position = position
        self.base = block.base
        self.next = block.next
        self.after_damage = after_damage


@final
class SegmentCheck:
    """One segment file, read up to a length. `segment` is what its indexes must say; meaningless with problems."""

    def __init__(self, disk: Disk, path: Path, base: int, log_id: int, meter: Meter) -> None:
        self._disk = disk
        self._meter = meter
        self.path = path
        self.log_id = log_id
        self.segment = Segment(path, base)
        self.blocks: list[Found] = []
        self.problems: list[Problem] = []
        self.end = HEADER_BYTES
        self.ends_in_damage = False

    def read(self, length: int) -> None:
        """Verify the header and every block in the first `length` bytes."""
        try:
            fd = self._disk.open(self.path)
        except OSError as error:
            self._damaged(unreadable(error, self.path, 0))
            self.ends_in_damage = True
            return
        try:
            self._read_header(fd)
            self._read_blocks(fd, length)
        finally:
            self._disk.close(fd)

    def index_problems(self) -> Iterator[Problem]:
        """Where the indexes beside a sound segment are missing or say something else."""
        for path, expected in encode_indexes(self.segment):
            remedy = "the broker rebuilds it when it needs it, --repair does so now"
            try:
                data = read_whole(self._disk, path)
            except Corrupt as error:
                yield Problem(error.file, 0, error.what, remedy, repairable=True)
                continue
            if data != expected:
                yield Problem(str(path), _first_difference(data, expected), "it does not fit its segment", remedy, True)

    def _read_header(self, fd: int) -> None:
        try:
            check_segment_header(self._disk.read(fd, 0, HEADER_BYTES), self.path, self.log_id)
        except Corrupt as error:
            self._damaged(error)
        except OSError as error:
            self._damaged(unreadable(error, self.path, 0))

    def _read_blocks(self, fd: int, length: int) -> None:
        position = HEADER_BYTES
        damage: Corrupt | None = None
        while position < length:
            self._meter.reached(self.path, position)
            try:
                block = self._read_block(fd, position, length)
            except Corrupt as error:
                damage = damage or error
                position = self._next_block(fd, position, length)
                continue
            if damage is not None:
                self._damaged(damage, _lost(self.segment.next, block.base))
            self._take(position, block, damage is not None)
            damage = None
            position += block.length
        if damage is not None:
            self._damaged(damage, f"; nothing from offset {self.segment.next} on can be read in this file")
            self.ends_in_damage = True
        self.end = min(position, length)

    def _take(self, position: int, block: Block, after_damage: bool) -> None:
        if block.base < self.segment.next:
            what = f"offset {block.base} comes again, {self.segment.next} was next"
            self.problems.append(Problem(str(self.path), position, what, _REMEDY))
        self.segment.add(block.base, block.next, block.length, block.max_time_us)
        self.blocks.append(Found(position, block, after_damage))

    def _read_block(self, fd: int, position: int, end: int) -> Block:
        """Raises Corrupt, also where the disk cannot read."""
        try:
            header = self._disk.read(fd, position, min(blocks.HEADER_BYTES, end - position))
            length = blocks.HEADER_BYTES + decode_header(header, str(self.path), position)
            if position + length > end:
                raise Corrupt(str(self.path), position, f"the block has {length} bytes, {end - position} are left")
            return read_block(self._disk, fd, self.path, position, length)
        except OSError as error:
            raise unreadable(error, self.path, position) from error

    def _next_block(self, fd: int, position: int, end: int) -> int:
        """Where the next sound block stands, or `end`: one bad block must not hide the state of those behind it."""
        behind = self._behind(fd, position, end)
        if behind > 0:
            return behind
        position += _ALIGNMENT
        while position < end:
            try:
                data = self._disk.read(fd, position, min(_WINDOW, end - position))
            except OSError:
                data = b""
            at = data.find(blocks.MAGIC)
            while at >= 0:
                if at % _ALIGNMENT == 0 and self._is_sound(fd, position + at, end):
                    return position + at
                at = data.find(blocks.MAGIC, at + 1)
            position += _WINDOW
        return end

    def _behind(self, fd: int, position: int, end: int) -> int:
        """Where the damaged block at `position` says it ends, if that is the end or a sound block is there; else 0."""
        try:
            header = self._disk.read(fd, position, min(blocks.HEADER_BYTES, end - position))
            behind = position + blocks.HEADER_BYTES + decode_header(header, str(self.path), position)
        except (Corrupt, OSError):
            return 0
        return behind if behind == end or (behind < end and self._is_sound(fd, behind, end)) else 0

    def _is_sound(self, fd: int, position: int, end: int) -> bool:
        try:
            self._read_block(fd, position, end)
        except Corrupt:
            return False
        return True

    def _damaged(self, error: Corrupt, lost: str = "") -> None:
        self.problems.append(problem_of(Corrupt(error.file, error.position, error.what + lost), _REMEDY))


def coverage_problems(checks: list[SegmentCheck], first: int, stop: int, directory: Path) -> Iterator[Problem]:
    """Where offsets from `first` up to `stop` are in two of a log's segments, or in none and no damage explains it."""
    reached = first
    stored = 0
    explained = False
    for check in checks:
        if check.blocks and check.blocks[0].base < stored:
            what = f"offset {check.blocks[0].base} comes again, the segments before this one go on to {stored - 1}"
            yield Problem(str(check.path), check.blocks[0].position, what, _REMEDY)
        stored = max(stored, check.segment.next)
        for found in check.blocks:
            if found.base > reached and not (found.after_damage or explained):
                what = f"{_offsets(reached, found.base)} missing in front of this block"
                yield Problem(str(check.path), found.position, what, "restore the missing segment from a copy")
            if found.next > stop:
                what = f"the block goes on to offset {found.next - 1}, but the log ended at {stop}"
                yield Problem(str(check.path), found.position, what, "restore journal/ and this queue from one copy")
            reached = max(reached, found.next)
            explained = False
        explained = check.ends_in_damage
    if reached < stop and not explained:
        where, position = (str(checks[-1].path), checks[-1].end) if checks else (str(directory), 0)
        what = f"{_offsets(reached, stop)} missing at the end of the log"
        yield Problem(where, position, what, "restore the queue's segments from a copy")


def _offsets(start: int, stop: int) -> str:
    return f"offset {start} is" if stop == start + 1 else f"offsets {start} to {stop - 1} are"


def _lost(start: int, stop: int) -> str:
    return f"; {_offsets(start, stop)} lost with it" if start < stop else ""


def _first_difference(data: bytes, expected: bytes) -> int:
    for position, (found, wanted) in enumerate(zip(data, expected, strict=False)):
        if found != wanted:
            return position
    return min(len(data), len(expected))
