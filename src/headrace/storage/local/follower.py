"""A data directory seen from outside, while a broker may have it open and write to it. Changes nothing, takes no lock.

What counts is what the checkpoint names, and every whole record of the journal behind it: never a segment's end that no
checkpoint names yet. So whatever is seen here is what recovery would find, and offsets never stand for other messages
later. Records that a power failure could still take away are synced before they are shown.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

from headrace.errors import Corrupt, NotFound, Unavailable
from headrace.storage.local.block import HEADER_BYTES as BLOCK_HEADER_BYTES
from headrace.storage.local.block import decode_block, decode_head
from headrace.storage.local.checkpoint import Checkpoint, LogEntry, checkpoint_path, decode_checkpoint
from headrace.storage.local.disk import Disk, ReadOnlyDisk
from headrace.storage.local.journal import HEADER_BYTES, PAGE, Position, decode_header
from headrace.storage.local.names import encode_name
from headrace.storage.local.outline import Outline
from headrace.storage.local.record import (
    CREATE_LOG,
    DROP_LOG,
    TRUNCATE,
    Record,
    blocks_length,
    check_version,
    decode_operations,
    decode_outline,
    decode_record,
    record_length,
    record_seq,
)
from headrace.storage.local.record import HEADER_BYTES as RECORD_HEADER_BYTES
from headrace.storage.local.segment import segment_files, segment_path
from headrace.storage.local.spans import BLOCK, JOURNAL, SEGMENT, Span, span_blocks
from headrace.storage.local.tails import decode_tails, tails_path

STRETCH_BYTES: Final = 256 << 10
"""Records that stand next to each other in the journal are one stretch up to this size."""

_OUTLINE_BYTES: Final = 64 << 10
"""Records that are larger than this are not read whole where that can be avoided."""
_LOOKS: Final = 5
"""How often a range is looked for whose segments are removed meanwhile."""


@final
class Stretch:
    """Records of the journal that stand next to each other and all append to one log, or one block of a large one."""

    __slots__ = ("base", "end", "kind", "max_time_us", "next", "path", "proof", "start")

    def __init__(
        self, kind: str, path: str, start: int, end: int, proof: int, base: int, stop: int, max_time_us: int
    ) -> None:
        self.kind = kind
        self.path = path
        self.start = start
        self.end = end
        self.proof = proof
        self.base = base
        self.next = stop
        self.max_time_us = max_time_us


@final
class FollowedLog:
    """One log: what the checkpoint says of it, and what the journal added."""

    __slots__ = ("entry", "first", "id", "name", "next", "stored_next", "stretches")

    def __init__(self, log_id: int, name: str, entry: LogEntry | None) -> None:
        self.id = log_id
        self.name = name
        self.entry = entry
        self.first = entry.first if entry is not None else 0
        self.next = entry.next if entry is not None else 0
        self.stored_next = self.next
        """Behind the last message that is in segments, as far as the checkpoint says."""
        self.stretches: list[Stretch] = []


@final
class Follower:
    """The logs of a directory as they are; `refresh` looks for what was added, at the cost of a few small reads."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        """Raises Unavailable when there is no data directory, and Corrupt when its checkpoint is damaged."""
        self._root = root
        self.disk = self._disk = disk or ReadOnlyDisk(Disk())
        self._files: dict[str, int] = {}
        self._listed_ns = -1
        self._signature: tuple[int, int, int] = (0, 0, 0)
        self._logs: dict[str, FollowedLog] = {}
        self._by_id: dict[int, FollowedLog] = {}
        self._position = Position(0, 0, PAGE)
        self._checkpoint_seq = 0
        self._synced_seq = 0
        self._outlines: dict[str, Outline] = {}
        self.refresh()

    def close(self) -> None:
        for fd in self._files.values():
            self._disk.close(fd)
        self._files.clear()

    def refresh(self) -> None:
        """Take in what was added since the last look. Raises Unavailable and Corrupt."""
        signature = self._stat_checkpoint()
        if signature != self._signature:
            self._load_checkpoint()
            self._signature = signature
        while self._read_on():
            pass
        self._sync()

    @property
    def position(self) -> Position:
        """Behind the last whole record."""
        return self._position

    def is_at(self, checkpoint: Position) -> bool:
        """Whether what was taken in last began at this checkpoint."""
        return self._checkpoint_seq == checkpoint.seq

    def names(self) -> list[str]:
        """All logs that exist."""
        return sorted(self._logs)

    def bounds(self, name: str) -> tuple[int, int]:
        """The first offset and the one behind the last. Raises NotFound."""
        log = self._log(name)
        return log.first, log.next

    def log_id(self, name: str) -> int:
        """What tells this log from another of its name. Raises NotFound."""
        return self._log(name).id

    def spans(self, name: str, start: int, stop: int) -> list[Span]:
        """Where the messages of this range stand, in order, a block or a stretch of the journal each.

        Messages that were truncated are in none. Raises NotFound, and Corrupt when a segment cannot be read.
        """
        for _ in range(_LOOKS):
            try:
                return self._spans(self._log(name), start, stop)
            except FileNotFoundError as error:  # segments were removed since the last look
                missing = error
                self.refresh()
        raise Corrupt(str(missing.filename), 0, str(missing.strerror)) from missing

    def _spans(self, log: FollowedLog, start: int, stop: int) -> list[Span]:
        start, stop = max(start, log.first), min(stop, log.next)
        spans: list[Span] = []
        if start < log.stored_next:
            spans += self._segment_spans(log, start, min(stop, log.stored_next))
        for stretch in log.stretches:
            if stretch.base < stop and stretch.next > start:
                where = (stretch.kind, stretch.path, stretch.start, stretch.end)
                spans.append((*where, max(start, stretch.base), min(stop, stretch.next), stretch.proof))
        for span in spans:
            if span[4] != start:
                break
            start = span[5]
        if start < stop:
            directory = self._root / "queues" / encode_name(log.name) / "segments"
            raise FileNotFoundError(errno.ENOENT, f"no segment has offset {start}", str(directory))
        return spans

    def find(self, name: str, timestamp_us: int) -> int:
        """The offset of the first message with at least this timestamp, or the one behind the last."""
        for _ in range(_LOOKS):
            try:
                return self._find(self._log(name), timestamp_us)
            except (FileNotFoundError, Unavailable) as error:  # something was removed since the last look
                moved = error
                self.refresh()
        raise Unavailable(f"queue {name!r} changes faster than it can be searched; try again") from moved

    def _find(self, log: FollowedLog, timestamp_us: int) -> int:
        for span in self._spans_reaching(log, timestamp_us):
            for base, block, first, last in span_blocks(span, log.id, self._disk):
                times = block.timestamps()
                for row in range(first, last):
                    if times[row] >= timestamp_us:
                        return base + row - first
        return log.next

    def _spans_reaching(self, log: FollowedLog, timestamp_us: int) -> Iterator[Span]:
        """The spans in which a message may be that old or younger."""
        stored = log.stored_next
        if log.first < stored:
            for outline in self._segment_outlines(log, log.first, stored):
                for number in range(outline.block_at_time(timestamp_us), len(outline.bases)):
                    base, stop = outline.bases[number], outline.stops[number]
                    if stop > log.first and base < stored:
                        yield self._block_span(outline, number, max(base, log.first), min(stop, stored), log.id)
        for stretch in log.stretches:
            if stretch.max_time_us >= timestamp_us and stretch.next > log.first:
                where = (stretch.kind, stretch.path, stretch.start, stretch.end)
                yield (*where, max(log.first, stretch.base), stretch.next, stretch.proof)

    def _log(self, name: str) -> FollowedLog:
        log = self._logs.get(name)
        if log is None:
            raise NotFound(f"the data directory {self._root} has no queue {name!r}")
        return log

    # -- the checkpoint ----------------------------------------------------------------------------------------------

    def _stat_checkpoint(self) -> tuple[int, int, int]:
        path = checkpoint_path(self._root)
        try:
            found = os.stat(path)  # noqa: PTH116
        except OSError as error:
            raise Unavailable(
                f"{self._root} is no data directory that can be read here: {path} {error.strerror}; "
                f"name the directory that `headrace serve --data` was given"
            ) from error
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _load_checkpoint(self) -> None:
        """Begin anew with what the checkpoint says; the journal behind it is read on from there."""
        checkpoint, tails = self._read_checkpoint()
        self._logs = {}
        self._by_id = {}
        for entry in checkpoint.logs:
            self._add(FollowedLog(entry.id, entry.name, entry))
        self._position = checkpoint.position
        self._checkpoint_seq = checkpoint.position.seq
        self._synced_seq = checkpoint.position.seq
        path = str(tails_path(self._root, checkpoint.tails[0]))
        for at, record in tails:
            for log_id, _, base in record.runs:
                log = self._by_id.get(log_id)
                if log is not None and not log.stretches:
                    log.stored_next = base
            self._apply(record, path, at)

    def _read_checkpoint(self) -> tuple[Checkpoint, list[tuple[int, Record]]]:
        """The checkpoint, and the records of the tails that it names, with their positions."""
        path = checkpoint_path(self._root)
        for _ in range(_LOOKS):
            checkpoint = decode_checkpoint(path.read_bytes(), path)
            generation, length = checkpoint.tails
            if not length:
                return checkpoint, []
            tails = tails_path(self._root, generation)
            try:
                with _opened(self._disk, tails) as fd:
                    data = self._disk.read(fd, 0, self._disk.size(fd))
            except FileNotFoundError as error:  # there is another checkpoint since
                missing = error
            else:
                return checkpoint, list(decode_tails(data, length, tails))
        raise Corrupt(str(missing.filename), 0, "the file is missing") from missing

    def _add(self, log: FollowedLog) -> None:
        self._logs[log.name] = log
        self._by_id[log.id] = log

    # -- the journal -------------------------------------------------------------------------------------------------

    def _read_on(self) -> bool:
        """Take in the next record, if it is there and whole; a file's end leads to the next file."""
        position = self._position
        path = self._file_of(position.index)
        record = self._read_record(path, position) if path else None
        if record is None:
            following = self._file_of(position.index + 1)
            if not following:
                return False
            position = Position(position.seq, position.index + 1, PAGE)
            path, record = following, self._read_record(following, position)
            if record is None:
                return False
        self._apply(record, path, position.at)
        self._position = Position(record.seq, position.index, position.at + record.length)
        return True

    def _read_record(self, path: str, position: Position) -> Record | None:
        fd = self._files[path]
        head = self._disk.read(fd, position.at, RECORD_HEADER_BYTES)
        length = record_length(head)
        if not length or record_seq(head, 0) != position.seq + 1:
            return None
        if length > _OUTLINE_BYTES:
            # A record is written from its start to its end, and the next one then: what is followed by another, or ends
            # in a whole block, is there. Whoever reads its messages verifies each of them.
            is_followed = self._has_record(fd, position.at + length, position.seq + 2)
            return self._outline_record(fd, position.at, head, length, is_followed)
        data = self._disk.read(fd, position.at, length)
        record = decode_record(data, 0)
        if record is None:
            check_version(data, 0, path)
        return record

    def _has_record(self, fd: int, at: int, seq: int) -> bool:
        head = self._disk.read(fd, at, RECORD_HEADER_BYTES)
        if not record_length(head):
            return self._file_of(self._position.index + 1) != "" and self._first_seq(self._position.index + 1) == seq
        return record_seq(head, 0) == seq

    def _first_seq(self, index: int) -> int:
        """The number of the first record in the journal file with this index."""
        fd = self._files[self._file_of(index)]
        return record_seq(self._disk.read(fd, PAGE, RECORD_HEADER_BYTES), 0)

    def _outline_record(self, fd: int, at: int, head: bytes, length: int, is_followed: bool) -> Record | None:
        """What a record appends where, without the messages; None when its end is not there yet."""
        before = length - blocks_length(head)
        data = self._disk.read(fd, at, before)
        headers: list[bytes] = []
        position = at + before
        while position < at + length:
            headers.append(self._disk.read(fd, position, BLOCK_HEADER_BYTES))
            try:
                found = decode_head(headers[-1], "", position).length
                if not is_followed and position + found >= at + length:
                    body = self._disk.read(fd, position + BLOCK_HEADER_BYTES, found - BLOCK_HEADER_BYTES)
                    decode_block(headers[-1], body, "", position)
            except Corrupt:
                return None
            position += found
        return decode_outline(data, headers, length)

    def _file_of(self, index: int) -> str:
        """The path of the journal file with this index, "" when there is none."""
        self._list_files()
        if index:
            for path, fd in self._files.items():
                if decode_header(self._disk.read(fd, 0, HEADER_BYTES), Path(path))[0] == index:
                    return path
        return ""

    def _list_files(self) -> None:
        """Have all journal files open. They are few and used again; new ones show in the directory's time."""
        directory = self._root / "journal"
        changed_ns = directory.stat().st_mtime_ns
        if changed_ns == self._listed_ns:
            return
        self.close()
        for path in sorted(directory.glob("*.jnl")):
            try:
                self._files[str(path)] = self._disk.open_to_read(path)
            except FileNotFoundError:
                continue
        self._listed_ns = changed_ns

    def _apply(self, record: Record, path: str, at: int) -> None:
        operations = decode_operations(record.operations) if record.operations else []
        for operation in operations:
            if operation.kind == CREATE_LOG:
                self._by_id[operation.log_id] = FollowedLog(operation.log_id, operation.name, None)
        heads = record.heads
        block_at = at + record.length - sum([head.length for head in heads])
        for number, (log_id, count, base) in enumerate(record.runs):
            log = self._by_id.get(log_id)
            head = heads[0] if len(heads) == 1 else heads[number]
            if log is not None and len(heads) == 1:
                _extend(log, path, at, record, base, base + count)
            elif log is not None:
                where = (BLOCK, path, block_at, block_at + head.length, head.crc)
                log.stretches.append(Stretch(*where, base, base + count, head.max_time_us))
                log.next = base + count
            block_at += head.length
        for operation in operations:
            if operation.kind == DROP_LOG:
                dropped = self._by_id.pop(operation.log_id, None)
                if dropped is not None and self._logs.get(dropped.name) is dropped:
                    del self._logs[dropped.name]
        for operation in operations:
            log = self._by_id.get(operation.log_id)
            if log is None:
                continue
            if operation.kind == CREATE_LOG:
                self._logs[log.name] = log
            elif operation.kind == TRUNCATE:
                log.first = max(log.first, min(operation.offset, log.next))
                log.stretches = [stretch for stretch in log.stretches if stretch.next > log.first]
        self._synced_seq = max(self._synced_seq, record.synced)

    def _sync(self) -> None:
        """What was read may be in the operating system's memory only: have it on the disk before it is shown."""
        position = self._position
        if position.seq > self._synced_seq:
            path = self._file_of(position.index)
            if path:
                self._disk.sync(self._files[path])
            self._synced_seq = position.seq

    # -- the segments ------------------------------------------------------------------------------------------------

    def _segment_spans(self, log: FollowedLog, start: int, stop: int) -> list[Span]:
        spans: list[Span] = []
        for outline in self._segment_outlines(log, start, stop):
            for number in range(max(0, outline.block_of(start)), len(outline.bases)):
                base, behind = outline.bases[number], outline.stops[number]
                if base >= stop:
                    break
                if behind > start:
                    spans.append(self._block_span(outline, number, max(base, start), min(behind, stop), log.id))
        return spans

    def _block_span(self, outline: Outline, number: int, start: int, stop: int, log_id: int) -> Span:
        position, end = outline.extent(number)
        return SEGMENT, outline.path, position, end, start, stop, log_id

    def _segment_outlines(self, log: FollowedLog, start: int, stop: int) -> list[Outline]:
        """What is known of the segments with offsets of this range, as far as the checkpoint names them."""
        entry = log.entry
        assert entry is not None
        directory = self._root / "queues" / encode_name(log.name) / "segments"
        found = [(base, path) for base, path in segment_files(directory) if base <= entry.segment]
        if entry.segment >= 0 and (not found or found[-1][0] != entry.segment):
            raise FileNotFoundError(errno.ENOENT, "no such segment", str(segment_path(directory, entry.segment)))
        outlines: list[Outline] = []
        for at, (base, path) in enumerate(found):
            behind = found[at + 1][0] if at + 1 < len(found) else entry.next
            if base < stop and behind > start:
                length = entry.segment_length if base == entry.segment else -1
                outlines.append(self._outline(path, base, log.id, length))
        return outlines

    def _outline(self, path: Path, base: int, log_id: int, length: int) -> Outline:
        outline = self._outlines.get(str(path))
        if outline is None or outline.log_id != log_id:
            outline = self._outlines[str(path)] = Outline(path, base, log_id)
        with _opened(self._disk, path) as fd:
            outline.learn(self._disk, fd, length)
        return outline


def _extend(log: FollowedLog, path: str, at: int, record: Record, base: int, stop: int) -> None:
    """Note that the record at this position appends these offsets."""
    end = at + record.length
    max_time_us = record.heads[0].max_time_us
    last = log.stretches[-1] if log.stretches else None
    is_next = last is not None and last.kind == JOURNAL and last.path == path and last.end == at
    if last is not None and is_next and end - last.start <= STRETCH_BYTES:
        last.end = end
        last.next = stop
        last.max_time_us = max(last.max_time_us, max_time_us)
    else:
        log.stretches.append(Stretch(JOURNAL, path, at, end, record.seq, base, stop, max_time_us))
    log.next = stop


@contextmanager
def _opened(disk: Disk, path: Path) -> Iterator[int]:
    fd = disk.open_to_read(path)
    try:
        yield fd
    finally:
        disk.close(fd)
