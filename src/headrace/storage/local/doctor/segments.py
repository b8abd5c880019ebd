"""The examination of one log's segments and groups. Changes nothing."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, final

from headrace.errors import Corrupt
from headrace.storage.group_row import GroupRow, group_row
from headrace.storage.group_state import GroupState
from headrace.storage.local import block as blocks
from headrace.storage.local import group_files
from headrace.storage.local.block import Block, decode_header
from headrace.storage.local.disk import Disk
from headrace.storage.local.doctor.findings import Meter, Problem, problem_of, read_whole, unreadable
from headrace.storage.local.files import decode_json
from headrace.storage.local.group_files import check_age, decode_pending, decode_progress, decode_state, entry_positions
from headrace.storage.local.segment import (
    HEADER_BYTES,
    Segment,
    check_segment_header,
    encode_indexes,
    read_block_before,
)
from headrace.storage.local.stored import StoredGroup

_GROUP_REMEDY: Final = "restore the file from a copy, or drop the queue; until then this queue is refused"


@final
class GroupCheck:
    """The problems of one group, and where its pending entries are stored."""

    __slots__ = ("group", "pending_at", "pending_file", "problems")

    def __init__(self, group: StoredGroup) -> None:
        self.group = group
        self.pending_file = group.directory / "pel.log"
        self.pending_at: dict[int, int] = {}
        """The position of each offset's entry in pel.log."""
        self.problems: list[Problem] = []

    def row(self) -> GroupRow:
        group = self.group
        if group.state is None:
            return GroupRow(group.name, "unreadable", 0, 0, 0)
        return group_row(group.name, group.state)

    def read_files(self, disk: Disk, files: tuple[int, bool]) -> None:
        """Read the files of a group; `files` has their commit and whether one is pel.log, by the checkpoint."""
        group = self.group
        least_seq, has_list = files
        try:
            state = self._read_progress(disk)
            check_age(group.directory / "state.json", group.progress_seq, least_seq)
            if has_list or self.pending_file.exists():
                self._read_pending(disk, state)
                check_age(self.pending_file, group.pending_seq, least_seq)
        except Corrupt as error:
            self.problems.append(problem_of(error, _GROUP_REMEDY))
            return
        group.state = state

    def read_value(self, value: bytes, path: Path) -> None:
        """Read the state of a group from its value in the table of groups, which is in that file."""
        group = self.group
        group.is_shared = True
        self.pending_file = path
        try:
            state = decode_state(value, path, group.id, group.name)
        except Corrupt as error:
            self.problems.append(problem_of(error, _GROUP_REMEDY))
            return
        group.state = state
        if state.committed > state.cursor or any(start <= state.committed for start, _ in state.settled):
            what = f"group {group.name!r}: what is settled does not fit the committed offset {state.committed}"
            self.problems.append(Problem(str(path), 0, f"{what} and the cursor {state.cursor}", _GROUP_REMEDY))

    def verify(self, end_seq: int) -> None:
        """Check that the group, with the journal replayed, fits its log and the journal's end."""
        group, state = self.group, self.group.state
        if state is None:
            return
        for name, seq in (("state.json", group.progress_seq), ("pel.log", group.pending_seq)):
            if seq > end_seq:
                what = f"it holds everything up to commit {seq}, but the journal ends at commit {end_seq}"
                self.problems.append(Problem(str(group.directory / name), 0, what, "restore journal/ from a copy"))
        next_offset = group.log.next
        beyond = sorted(offset for offset in state.pending if offset >= next_offset)
        self._report_pending(beyond, f"the log ends at {next_offset}")
        settled = sorted(offset for offset in state.pending if offset < state.committed or offset in state.settled)
        self._report_pending(settled, "it is settled already")

    def _read_progress(self, disk: Disk) -> GroupState:
        group = self.group
        path = group.directory / "state.json"
        data = read_whole(disk, path)
        state, group.progress_seq = decode_progress(data, path, group.id)
        found = _nonsense(decode_json(data, path, group_files.FORMAT), group.log.name, group.name)
        if found:
            raise Corrupt(str(path), 0, found)
        return state

    def _read_pending(self, disk: Disk, state: GroupState) -> None:
        path = self.pending_file
        data = read_whole(disk, path)
        try:
            state.pending, self.group.pending_seq = decode_pending(data, path, self.group.id)
        except (struct.error, IndexError, ValueError) as error:
            raise Corrupt(str(path), 0, f"its entries make no sense: {error}") from error
        for offset, at in entry_positions(data):
            if offset in self.pending_at:
                raise Corrupt(str(path), at, f"offset {offset} has two entries")
            self.pending_at[offset] = at

    def _report_pending(self, offsets: list[int], why: str) -> None:
        """Report one problem for all entries of one kind, at the first of them."""
        if not offsets:
            return
        more = f" (and {len(offsets) - 1} more like it)" if len(offsets) > 1 else ""
        what = f"offset {offsets[0]} is pending, but {why}{more}"
        at = self.pending_at.get(offsets[0], 0)
        self.problems.append(Problem(str(self.pending_file), at, what, _GROUP_REMEDY))


def _nonsense(values: dict[str, Any], queue: str, group: str) -> str:
    """An impossible value in a state.json whose checksum is right, in words; "" if there is none."""
    if (values["queue"], values["group"]) != (queue, group):
        return f"it is that of group {values['group']!r} of queue {values['queue']!r}"
    numbers = [values["seq"], values["cursor"], values["committed"], *(n for pair in values["settled"] for n in pair)]
    if any(type(number) is not int or number < 0 for number in numbers):
        return "an offset is not a number, or is negative"
    if values["committed"] > values["cursor"]:
        return f"the committed offset {values['committed']} is past the cursor {values['cursor']}"
    reached = values["committed"]
    for start, stop in values["settled"]:
        if start <= reached or stop <= start:
            return f"the settled range {start}..{stop} does not lie behind {reached}, as it must"
        reached = stop
    return ""


_WINDOW: Final = 1 << 20
_ALIGNMENT: Final = 8
"""Lengths of segment headers and blocks are multiples of this, so every block and every window starts at one."""
_REMEDY: Final = "restore the file from a copy; until then these messages cannot be read"


@final
class Found:
    """A sound block: its position and offsets; `after_damage` when unreadable bytes precede it."""

    __slots__ = ("after_damage", "base", "next", "position")

    def __init__(self, position: int, block: Block, after_damage: bool) -> None:
        self.position = position
        self.base = block.base
        self.next = block.next
        self.after_damage = after_damage


@final
class SegmentCheck:
    """One segment file, read up to a length. Without problems, `segment` is what its indexes must say."""

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
        """The problems of the indexes beside a sound segment."""
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
            return read_block_before(self._disk, fd, self.path, position, end)
        except OSError as error:
            raise unreadable(error, self.path, position) from error

    def _next_block(self, fd: int, position: int, end: int) -> int:
        """The position of the next sound block, or `end`: a bad block must not hide the blocks behind it."""
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
        """The end of the damaged block at `position` by its header, if a sound block or the end is there; else 0."""
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
    """Report offsets from `first` up to `stop` that two segments hold, or none without damage that explains it."""
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
