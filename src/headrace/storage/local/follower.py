"""A data directory seen from outside, while a broker may write to it. Changes nothing, takes no lock.

What counts is what the checkpoint names, and every whole record of the journal behind it: never a segment's end that no
checkpoint names yet. So whatever is seen here is what recovery would find, and offsets never stand for other messages
later. Records that a power failure could still take away are synced before they are shown.

Between being found and being read a span may have gone: its segment removed, its journal file used again. That is
noticed, never mistaken for something else, and Unavailable says so: look again.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

from headrace.errors import Corrupt, NotFound, Unavailable
from headrace.storage.local import block as blocks
from headrace.storage.local.block import HEADER_BYTES as BLOCK_HEADER_BYTES
from headrace.storage.local.block import Block, BlockHead, Layout, decode_block, decode_head, decode_layout
from headrace.storage.local.checkpoint import (
    Checkpoint,
    LogEntry,
    checkpoint_path,
    decode_checkpoint,
    decode_tails,
    tails_path,
)
from headrace.storage.local.disk import Disk, ReadOnlyDisk, opened_to_read
from headrace.storage.local.files import encode_name
from headrace.storage.local.journal import HEADER_BYTES, PAGE, Position, decode_header
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
from headrace.storage.local.segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
from headrace.storage.local.segment import Outline, check_segment_header, segment_files, segment_path

JOURNAL: Final = "journal"
BLOCK: Final = "block"
"""One block of a record of several, which holds messages of one log from its first row on."""
SEGMENT: Final = "segment"

Span = tuple[str, str, int, int, int, int, int]
"""Where messages stand: journal, block or segment, path, first byte, byte behind the last, first offset, offset behind
the last, and what proves that they are still there: the first record's number, the block's checksum, the log's id."""

Rows = tuple[int, Block, int, int]
"""The offset of a first message, and the rows of a block that it and those behind it stand in."""


def span_blocks(span: Span, log_id: int, disk: Disk) -> Iterator[Rows]:
    """The messages of one span."""
    reader = SpanReader(log_id, disk)
    try:
        yield from reader.rows(span)
    finally:
        reader.close()


@final
class SpanReader:
    """Reads spans of one log one after the other, with one file open at a time."""

    def __init__(self, log_id: int, disk: Disk | None = None) -> None:
        self._log_id = log_id
        self._disk = disk or ReadOnlyDisk(Disk())
        self._path = ""
        self._fd = -1

    def close(self) -> None:
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1

    def rows(self, span: Span) -> Iterator[Rows]:
        """The messages of a span, as rows of blocks. Raises Unavailable when they are not there any more, Corrupt."""
        kind, path, position, end, _, _, proof = span
        self._open(path, kind)
        if kind == JOURNAL:
            yield from self._journal_rows(self._disk.read(self._fd, position, end - position), span, proof)
            return
        head = self._disk.read(self._fd, position, blocks.HEADER_BYTES)
        body = self._disk.read(self._fd, position + len(head), end - position - len(head))
        with _as_found(span):
            block = decode_block(head, body, path, position)
        base, first, last = place_in(span, block)
        if first < last:
            yield base, block, first, last

    def read_into(self, span: Span, allocate: Callable[[int], memoryview]) -> Layout:
        """Read the one block of a span into memory that is asked for; returns what stands where. Raises as `rows`."""
        kind, path, position, end, _, _, _ = span
        self._open(path, kind)
        head = self._disk.read(self._fd, position, blocks.HEADER_BYTES)
        body = allocate(end - position - len(head))
        filled = self._disk.read_into(self._fd, position + len(head), body)
        with _as_found(span):
            return decode_layout(head, body[:filled], path, position)

    def _journal_rows(self, data: bytes, span: Span, seq: int) -> Iterator[Rows]:
        _, path, position, _, start, stop, _ = span
        at = 0
        while at < len(data):
            record = decode_record(data, at)
            if record is None or record.seq != seq:
                check_version(data, at, path)
                raise _used_again(path, position + at)
            for base, block, first, last in _rows_of(record, self._log_id):
                low, high = max(start, base), min(stop, base + last - first)
                if low < high:
                    yield low, block, first + low - base, first + high - base
            at += record.length
            seq += 1

    def _open(self, path: str, kind: str) -> None:
        if path == self._path and self._fd >= 0:
            return
        self.close()
        try:
            self._fd = self._disk.open_to_read(Path(path))
        except FileNotFoundError as error:
            raise Unavailable(f"{path} is gone: its messages were removed meanwhile") from error
        self._path = path
        if kind == SEGMENT:
            check_segment_header(self._disk.read(self._fd, 0, SEGMENT_HEADER_BYTES), Path(path), self._log_id)


def place_in(span: Span, block: Layout) -> tuple[int, int, int]:
    """The offset of the first message that a span has of this block, its row, and the row behind the last.

    Raises Unavailable when another block stands where the span's was.
    """
    kind, path, position, _, start, stop, proof = span
    if kind == SEGMENT:
        first = max(start, block.base)
        return first, first - block.base, min(stop, block.next) - block.base
    if block.crc != proof or block.count != stop - start:
        raise _used_again(path, position)
    return start, 0, block.count


@contextmanager
def _as_found(span: Span) -> Iterator[None]:
    """What is no block in the journal was one, and its file was used again since."""
    try:
        yield
    except Corrupt as error:
        if span[0] == SEGMENT:
            raise
        raise _used_again(span[1], span[2]) from error


def _used_again(path: str, position: int) -> Unavailable:
    return Unavailable(f"{path} was used again: what stood at byte {position} is elsewhere now")


def _rows_of(record: Record, log_id: int) -> Iterator[Rows]:
    """The rows that a record appends to a log, with the offset of the first of each."""
    for run_id, count, base, block, row in record.appends():
        if run_id == log_id:
            yield base, block, row, row + count


STRETCH_BYTES: Final = 256 << 10
"""Records that stand next to each other in the journal are one stretch up to this size."""


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

    def span(self, start: int, stop: int) -> Span:
        """As much of it as these offsets need."""
        return self.kind, self.path, self.start, self.end, max(start, self.base), min(stop, self.next), self.proof


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

    def add_record(self, path: str, at: int, record: Record, base: int, stop: int) -> None:
        """The record at this position appends these offsets, in its only block."""
        end = at + record.length
        max_time_us = record.heads[0].max_time_us
        last = self.stretches[-1] if self.stretches else None
        is_next = last is not None and last.kind == JOURNAL and last.path == path and last.end == at
        if last is not None and is_next and end - last.start <= STRETCH_BYTES:
            last.end = end
            last.next = stop
            last.max_time_us = max(last.max_time_us, max_time_us)
        else:
            self.stretches.append(Stretch(JOURNAL, path, at, end, record.seq, base, stop, max_time_us))
        self.next = stop

    def add_block(self, path: str, at: int, head: BlockHead, base: int, stop: int) -> None:
        """The block at this position, one of several of its record, holds these offsets."""
        self.stretches.append(Stretch(BLOCK, path, at, at + head.length, head.crc, base, stop, head.max_time_us))
        self.next = stop

    def truncate(self, offset: int) -> None:
        """What is below this offset is gone."""
        self.first = max(self.first, min(offset, self.next))
        self.stretches = [stretch for stretch in self.stretches if stretch.next > self.first]


@final
class FollowedSegments:
    """What is known of the segments of all logs so far. FileNotFoundError says that some were removed meanwhile."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self._root = root
        self._disk = disk
        self._outlines: dict[str, Outline] = {}

    def directory(self, log: FollowedLog) -> Path:
        return self._root / "queues" / encode_name(log.name) / "segments"

    def spans(self, log: FollowedLog, start: int, stop: int) -> list[Span]:
        """The blocks that hold these offsets, in order. Raises FileNotFoundError, Corrupt."""
        spans: list[Span] = []
        for outline in self._of(log, start, stop):
            for number in range(max(0, outline.block_of(start)), len(outline.bases)):
                base, behind = outline.bases[number], outline.stops[number]
                if base >= stop:
                    break
                if behind > start:
                    spans.append(_span(outline, number, max(base, start), min(behind, stop)))
        return spans

    def spans_reaching(self, log: FollowedLog, timestamp_us: int) -> Iterator[Span]:
        """The blocks in which a message may be that old or younger. Raises FileNotFoundError, Corrupt."""
        stored = log.stored_next
        if log.first < stored:
            for outline in self._of(log, log.first, stored):
                for number in range(outline.block_at_time(timestamp_us), len(outline.bases)):
                    base, stop = outline.bases[number], outline.stops[number]
                    if stop > log.first and base < stored:
                        yield _span(outline, number, max(base, log.first), min(stop, stored))

    def _of(self, log: FollowedLog, start: int, stop: int) -> list[Outline]:
        """What is known of the segments with offsets of this range, as far as the checkpoint names them."""
        entry = log.entry
        assert entry is not None
        directory = self.directory(log)
        found = [(base, path) for base, path in segment_files(directory) if base <= entry.segment]
        if entry.segment >= 0 and (not found or found[-1][0] != entry.segment):
            raise FileNotFoundError(errno.ENOENT, "no such segment", str(segment_path(directory, entry.segment)))
        outlines: list[Outline] = []
        for at, (base, path) in enumerate(found):
            behind = found[at + 1][0] if at + 1 < len(found) else entry.next
            if base < stop and behind > start:
                length = entry.segment_length if base == entry.segment else -1
                outlines.append(self._outline(path, log.id, length))
        return outlines

    def _outline(self, path: Path, log_id: int, length: int) -> Outline:
        outline = self._outlines.get(str(path))
        if outline is None or outline.log_id != log_id:
            outline = self._outlines[str(path)] = Outline(path, log_id)
        with opened_to_read(self._disk, path) as fd:
            outline.learn(self._disk, fd, length)
        return outline


def _span(outline: Outline, number: int, start: int, stop: int) -> Span:
    position, end = outline.extent(number)
    return SEGMENT, outline.path, position, end, start, stop, outline.log_id


_OUTLINE_BYTES: Final = 64 << 10
"""Records that are larger than this are not read whole where that can be avoided."""


@final
class Found:
    """A record, and where it stands: the position counts up to the record before it."""

    __slots__ = ("path", "position", "record")

    def __init__(self, record: Record, path: str, position: Position) -> None:
        self.record = record
        self.path = path
        self.position = position


@final
class FollowedJournal:
    """The files of a journal, and how far they have been read."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._files: dict[str, int] = {}
        self._listed_ns = -1
        self._synced_seq = 0
        self.position = Position(0, 0, PAGE)
        """Behind the last whole record that was taken in."""

    def close(self) -> None:
        for fd in self._files.values():
            self._disk.close(fd)
        self._files.clear()

    def begin(self, position: Position) -> None:
        """Read on from here, where a checkpoint was: all before it is synced."""
        self.position = position
        self._synced_seq = position.seq

    def find_next(self) -> Found | None:
        """The next record, if it is there and whole; a file's end leads to the next file."""
        self._list_files()
        position = self.position
        path = self._file_of(position.index)
        record = self._read(path, position) if path else None
        if record is None:
            position = Position(position.seq, position.index + 1, PAGE)
            path = self._file_of(position.index)
            record = self._read(path, position) if path else None
        return Found(record, path, position) if record is not None else None

    def take(self, found: Found) -> None:
        """The record was taken in: those behind it are next."""
        record, position = found.record, found.position
        self.position = Position(record.seq, position.index, position.at + record.length)
        self._synced_seq = max(self._synced_seq, record.synced)

    def sync(self) -> None:
        """What was read may be in the operating system's memory only: have it on the disk before it is shown."""
        if self.position.seq > self._synced_seq:
            path = self._file_of(self.position.index)
            if path:
                self._disk.sync(self._files[path])
            self._synced_seq = self.position.seq

    def _read(self, path: str, position: Position) -> Record | None:
        fd = self._files[path]
        head = self._disk.read(fd, position.at, RECORD_HEADER_BYTES)
        length = record_length(head)
        if not length or record_seq(head, 0) != position.seq + 1:
            return None
        if length > _OUTLINE_BYTES:
            # A record is written from its start to its end, and the next one then: what is followed by another, or ends
            # in a whole block, is there. Whoever reads its messages verifies each of them.
            is_followed = self._has_record(fd, position.at + length, position.index, position.seq + 2)
            return self._outline(fd, position.at, head, length, is_followed)
        data = self._disk.read(fd, position.at, length)
        record = decode_record(data, 0)
        if record is None:
            check_version(data, 0, path)
        return record

    def _has_record(self, fd: int, at: int, index: int, seq: int) -> bool:
        """Whether the record with this number begins there, or in the next file where this one ends there."""
        head = self._disk.read(fd, at, RECORD_HEADER_BYTES)
        if not record_length(head):
            path = self._file_of(index + 1)
            head = self._disk.read(self._files[path], PAGE, RECORD_HEADER_BYTES) if path else b""
        return len(head) == RECORD_HEADER_BYTES and record_seq(head, 0) == seq

    def _outline(self, fd: int, at: int, head: bytes, length: int, is_followed: bool) -> Record | None:
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
        if index:
            for path, fd in self._files.items():
                if decode_header(self._disk.read(fd, 0, HEADER_BYTES), Path(path))[0] == index:
                    return path
        return ""

    def _list_files(self) -> None:
        """Have all journal files open. They are few and used again; new ones show in the directory's time."""
        changed_ns = self._directory.stat().st_mtime_ns
        if changed_ns == self._listed_ns:
            return
        self.close()
        for path in sorted(self._directory.glob("*.jnl")):
            try:
                self._files[str(path)] = self._disk.open_to_read(path)
            except FileNotFoundError:
                continue
        self._listed_ns = changed_ns


_LOOKS: Final = 5
"""How often a range is looked for whose segments are removed meanwhile."""


@final
class Follower:
    """The logs of a directory as they are; `refresh` looks for what was added, at the cost of a few small reads."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        """Raises Unavailable when there is no data directory, and Corrupt when its checkpoint is damaged."""
        self._root = root
        self.disk = self._disk = disk or ReadOnlyDisk(Disk())
        self._journal = FollowedJournal(root / "journal", self._disk)
        self._segments = FollowedSegments(root, self._disk)
        self._signature: tuple[int, int, int] = (0, 0, 0)
        self._logs: dict[str, FollowedLog] = {}
        self._by_id: dict[int, FollowedLog] = {}
        self._checkpoint_seq = 0
        self.refresh()

    def close(self) -> None:
        self._journal.close()

    def refresh(self) -> None:
        """Take in what was added since the last look. Raises Unavailable and Corrupt."""
        signature = self._stat_checkpoint()
        if signature != self._signature:
            self._load_checkpoint()
            self._signature = signature
        while (found := self._journal.find_next()) is not None:
            self._apply(found.record, found.path, found.position.at)
            self._journal.take(found)
        self._journal.sync()

    @property
    def position(self) -> Position:
        """Behind the last whole record."""
        return self._journal.position

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
            spans += self._segments.spans(log, start, min(stop, log.stored_next))
        for stretch in log.stretches:
            if stretch.base < stop and stretch.next > start:
                spans.append(stretch.span(start, stop))
        for span in spans:
            if span[4] != start:
                break
            start = span[5]
        if start < stop:
            directory = str(self._segments.directory(log))
            raise FileNotFoundError(errno.ENOENT, f"no segment has offset {start}", directory)
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
        yield from self._segments.spans_reaching(log, timestamp_us)
        for stretch in log.stretches:
            if stretch.max_time_us >= timestamp_us and stretch.next > log.first:
                yield stretch.span(log.first, stretch.next)

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
        self._journal.begin(checkpoint.position)
        self._checkpoint_seq = checkpoint.position.seq
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
                with opened_to_read(self._disk, tails) as fd:
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

    def _apply(self, record: Record, path: str, at: int) -> None:
        """Have the logs as they are behind the record that stands at this position."""
        operations = decode_operations(record.operations) if record.operations else []
        for operation in operations:
            if operation.kind == CREATE_LOG:
                self._by_id[operation.log_id] = FollowedLog(operation.log_id, operation.name, None)
        self._append(record, path, at)
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
                log.truncate(operation.offset)

    def _append(self, record: Record, path: str, at: int) -> None:
        heads = record.heads
        block_at = at + record.length - sum([head.length for head in heads])
        for number, (log_id, count, base) in enumerate(record.runs):
            log = self._by_id.get(log_id)
            head = heads[0] if len(heads) == 1 else heads[number]
            if log is not None and len(heads) == 1:
                log.add_record(path, at, record, base, base + count)
            elif log is not None:
                log.add_block(path, block_at, head, base, base + count)
            block_at += head.length
