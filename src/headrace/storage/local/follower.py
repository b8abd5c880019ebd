"""A data directory read from outside, while a broker may write to it. Changes nothing, takes no lock.

A follower shows what recovery would find: the files that the checkpoint names, and every whole record of the journal
behind it. It ignores the end of a segment that no checkpoint names yet, so an offset never stands for another message
later. It syncs records that a power failure could still take away before it shows them.

A span may vanish between being found and being read: its segment is removed, or its journal file is reused. The reader
notices that and raises Unavailable; the caller looks again.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

from headrace.errors import Corrupt, NotFound, Unavailable
from headrace.storage.api import QUEUES
from headrace.storage.local import block as blocks
from headrace.storage.local.block import Block, Layout, decode_block, decode_head, decode_layout
from headrace.storage.local.checkpoint import (
    Checkpoint,
    checkpoint_path,
    decode_checkpoint,
    decode_tails,
    tails_path,
)
from headrace.storage.local.disk import Disk, ReadOnlyDisk, opened_to_read, read_whole
from headrace.storage.local.journal import HEADER_BYTES, PAGE, Position, decode_header
from headrace.storage.local.record import HEADER_BYTES as RECORD_HEADER_BYTES
from headrace.storage.local.record import (
    Record,
    blocks_length,
    check_version,
    decode_outline,
    decode_record,
    record_length,
    record_seq,
)
from headrace.storage.local.segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
from headrace.storage.local.segment import Segment, check_segment_header, segment_files, segment_path
from headrace.storage.local.stored import JOURNAL, SEGMENT, Span, StoredCatalog, StoredLog
from headrace.storage.local.tables import decode_names, definitions_path

Rows = tuple[int, Block, int, int]
"""The offset of the first message, the block, and the range of its rows."""


@final
class SpanReader:
    """Reads spans of one log, with one file open at a time."""

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
        """Read a span as rows of blocks. Raises Corrupt, and Unavailable when the messages have moved."""
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
        """Read the one block of a span into memory from `allocate`; returns its layout. Raises as `rows` does."""
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
    """The offset of the span's first message in this block, its row, and the end row.

    Raises Unavailable when another block has taken its place.
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
    """Raise Unavailable for damage outside of segments: the journal file was reused since the span was found."""
    try:
        yield
    except Corrupt as error:
        if span[0] == SEGMENT:
            raise
        raise _used_again(span[1], span[2]) from error


def _used_again(path: str, position: int) -> Unavailable:
    return Unavailable(f"{path} was used again: what stood at byte {position} is elsewhere now")


def _rows_of(record: Record, log_id: int) -> Iterator[Rows]:
    """The rows that a record appends to a log."""
    for run_id, count, base, block, row in record.appends():
        if run_id == log_id:
            yield base, block, row, row + count


@final
class FollowedSegments:
    """The segments of all logs, as far as they were read. Raises FileNotFoundError when some were removed meanwhile."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._segments: dict[tuple[int, int], Segment] = {}
        """Segments by log id and base offset."""

    def spans(self, log: StoredLog, start: int, stop: int) -> list[Span]:
        """The blocks with these offsets, in order. Raises FileNotFoundError, Corrupt."""
        spans: list[Span] = []
        for segment in self._find(log, start, stop):
            path = str(segment.path)
            for number in range(max(0, segment.block_of(start)), len(segment.bases)):
                if segment.bases[number] >= stop:
                    break
                if segment.stop(number) > start:
                    spans.append(_span(log, segment, path, number, start, stop))
        return spans

    def spans_reaching(self, log: StoredLog, timestamp_us: int) -> Iterator[Span]:
        """The blocks that may have a message of at least this time. Raises FileNotFoundError, Corrupt."""
        start, stop = log.first, log.stored_next
        if start >= stop:
            return
        for segment in self._find(log, start, stop):
            path = str(segment.path)
            for number in range(segment.block_at_time(timestamp_us), len(segment.bases)):
                if segment.stop(number) > start and segment.bases[number] < stop:
                    yield _span(log, segment, path, number, start, stop)

    def _find(self, log: StoredLog, start: int, stop: int) -> list[Segment]:
        """The segments with these offsets, as far as the checkpoint names them."""
        entry = log.entry
        assert entry is not None
        directory = log.segments_directory
        found = [(base, path) for base, path in segment_files(directory) if base <= entry.segment]
        if entry.segment >= 0 and (not found or found[-1][0] != entry.segment):
            raise FileNotFoundError(errno.ENOENT, "no such segment", str(segment_path(directory, entry.segment)))
        segments: list[Segment] = []
        for at, (base, path) in enumerate(found):
            behind = found[at + 1][0] if at + 1 < len(found) else entry.next
            if base < stop and behind > start:
                segment = self._segments.get((log.id, base)) or Segment(path, base)
                with opened_to_read(self._disk, path) as fd:
                    segment.learn(self._disk, fd, log.id, entry.segment_length if base == entry.segment else -1)
                self._segments[log.id, base] = segment
                segments.append(segment)
        return segments


def _span(log: StoredLog, segment: Segment, path: str, number: int, start: int, stop: int) -> Span:
    """The part of a block with these offsets."""
    position, length = segment.extent(number)
    first, last = max(start, segment.bases[number]), min(stop, segment.stop(number))
    return SEGMENT, path, position, position + length, first, last, log.id


_OUTLINE_BYTES: Final = 64 << 10
"""Of larger records the follower reads only the headers, where it can."""


@final
class FollowedJournal:
    """The files of a journal, read as they grow."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._files: dict[str, int] = {}
        self._listed_ns = -1
        self._synced_seq = 0
        self.position = Position(0, 0, PAGE)
        """The end of the last record read."""

    def close(self) -> None:
        for fd in self._files.values():
            self._disk.close(fd)
        self._files.clear()

    def begin(self, position: Position) -> None:
        """Continue from the position of a checkpoint: everything before it is synced."""
        self.position = position
        self._synced_seq = position.seq

    def records(self) -> Iterator[tuple[Record, str, int]]:
        """Every whole record behind the position, with its path and place; a file's end leads to the next file."""
        while True:
            self._list_files()
            last = self.position
            record: Record | None = None
            for position in (last, Position(last.seq, last.index + 1, PAGE)):
                path = self._file_of(position.index)
                record = self._read(path, position) if path else None
                if record is not None:
                    break
            if record is None:
                return
            yield record, path, position.at
            self.position = Position(record.seq, position.index, position.at + record.length)
            self._synced_seq = max(self._synced_seq, record.synced)

    def sync(self) -> None:
        """Sync the records read so far: they may be in the operating system's memory only."""
        if self.position.seq > self._synced_seq:
            path = self._file_of(self.position.index)
            if path:
                self._disk.sync(self._files[path])
            self._synced_seq = self.position.seq

    def _read(self, path: str, position: Position) -> Record | None:
        """The record behind this position, if it is whole."""
        fd = self._files[path]
        head = self._disk.read(fd, position.at, RECORD_HEADER_BYTES)
        length = record_length(head)
        if not length or record_seq(head, 0) != position.seq + 1:
            return None
        if length > _OUTLINE_BYTES:
            # The broker writes records front to back and in order. So a record is whole if another follows it or its
            # last block is whole; SpanReader verifies the other blocks.
            is_followed = self._has_record(fd, position.at + length, position.index, position.seq + 2)
            return self._outline(fd, position.at, head, length, is_followed)
        data = self._disk.read(fd, position.at, length)
        record = decode_record(data, 0)
        if record is None:
            check_version(data, 0, path)
        return record

    def _has_record(self, fd: int, at: int, index: int, seq: int) -> bool:
        """True if the record with this number begins there, or in the next file if this one ends there."""
        head = self._disk.read(fd, at, RECORD_HEADER_BYTES)
        if not record_length(head):
            path = self._file_of(index + 1)
            head = self._disk.read(self._files[path], PAGE, RECORD_HEADER_BYTES) if path else b""
        return len(head) == RECORD_HEADER_BYTES and record_seq(head, 0) == seq

    def _outline(self, fd: int, at: int, head: bytes, length: int, is_followed: bool) -> Record | None:
        """A record without the bodies of its blocks; None when its end is not written yet."""
        before = length - blocks_length(head)
        data = self._disk.read(fd, at, before)
        headers: list[bytes] = []
        position = at + before
        while position < at + length:
            headers.append(self._disk.read(fd, position, blocks.HEADER_BYTES))
            try:
                found = decode_head(headers[-1], "", position).length
                if not is_followed and position + found >= at + length:
                    body = self._disk.read(fd, position + blocks.HEADER_BYTES, found - blocks.HEADER_BYTES)
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
        """Open all journal files. They are few and reused; a new one changes the directory's time."""
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
"""Attempts to find a range while its segments are being removed."""


@final
class Follower:
    """The logs of a directory; `refresh` takes in new records with a few small reads."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        """Raises Unavailable when there is no data directory, and Corrupt when its checkpoint is damaged."""
        self._root = root
        self._disk = disk or ReadOnlyDisk(Disk())
        self._journal = FollowedJournal(root / "journal", self._disk)
        self._segments = FollowedSegments(self._disk)
        self._signature: tuple[int, int, int] = (0, 0, 0)
        self._catalog = StoredCatalog(root)
        self._checkpoint_seq = 0
        self.refresh()

    def close(self) -> None:
        self._journal.close()

    def refresh(self) -> None:
        """Take in everything added since the last call. Raises Unavailable and Corrupt."""
        signature = self._stat_checkpoint()
        if signature != self._signature:
            self._load_checkpoint()
            self._signature = signature
        for record, path, at in self._journal.records():
            self._catalog.apply(record, path, at)
        self._journal.sync()

    @property
    def position(self) -> Position:
        """The end of the last whole record."""
        return self._journal.position

    def is_at(self, checkpoint: Position) -> bool:
        """True if this is the checkpoint that was loaded last."""
        return self._checkpoint_seq == checkpoint.seq

    def names(self) -> list[str]:
        """All queues that are declared, and all logs."""
        return sorted(self._catalog.queues.union(self._catalog.names))

    def bounds(self, name: str) -> tuple[int, int]:
        """The first offset and the next offset; 0 and 0 for a queue without messages so far. Raises NotFound."""
        log = self._log(name)
        return (log.first, log.next) if log is not None else (0, 0)

    def log_id(self, name: str) -> int:
        """The id of a log with messages, which no other log of its name had; -1 without. Raises NotFound."""
        log = self._log(name)
        return log.id if log is not None and log.next else -1

    def spans(self, name: str, start: int, stop: int) -> list[Span]:
        """Find the places of a range's messages, in order: one span per block or stretch of the journal.

        Truncated messages are in none. Raises NotFound, and Corrupt when a segment cannot be read.
        """
        for _ in range(_LOOKS):
            try:
                log = self._log(name)
                return self._spans(log, start, stop) if log is not None else []
            except FileNotFoundError as error:  # segments were removed since the last look
                missing = error
                self.refresh()
        raise Corrupt(str(missing.filename), 0, str(missing.strerror)) from missing

    def _spans(self, log: StoredLog, start: int, stop: int) -> list[Span]:
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
            directory = str(log.segments_directory)
            raise FileNotFoundError(errno.ENOENT, f"no segment has offset {start}", directory)
        return spans

    def find(self, name: str, timestamp_us: int) -> int:
        """The offset of the first message with at least this timestamp, or the next offset if there is none."""
        for _ in range(_LOOKS):
            try:
                log = self._log(name)
                return self._find(log, timestamp_us) if log is not None else 0
            except (FileNotFoundError, Unavailable) as error:  # something was removed since the last look
                moved = error
                self.refresh()
        raise Unavailable(f"queue {name!r} changes faster than it can be searched; try again") from moved

    def _find(self, log: StoredLog, timestamp_us: int) -> int:
        reader = SpanReader(log.id, self._disk)
        try:
            for span in self._spans_reaching(log, timestamp_us):
                for base, block, first, last in reader.rows(span):
                    times = block.timestamps()
                    for row in range(first, last):
                        if times[row] >= timestamp_us:
                            return base + row - first
        finally:
            reader.close()
        return log.next

    def _spans_reaching(self, log: StoredLog, timestamp_us: int) -> Iterator[Span]:
        """The spans that may have a message of at least this time."""
        yield from self._segments.spans_reaching(log, timestamp_us)
        for stretch in log.stretches:
            if stretch.max_time_us >= timestamp_us and stretch.next > log.first:
                yield stretch.span(log.first, stretch.next)

    def _log(self, name: str) -> StoredLog | None:
        """The log of a queue; None before its first message. Raises NotFound."""
        log = self._catalog.names.get(name)
        if log is None and name not in self._catalog.queues:
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
        """Begin anew with the checkpoint; the journal continues behind it."""
        checkpoint, tails = self._read_checkpoint()
        self._catalog.load(checkpoint)
        self._catalog.queues = self._declared()
        self._journal.begin(checkpoint.position)
        self._checkpoint_seq = checkpoint.position.seq
        path = str(tails_path(self._root, checkpoint.tails[0]))
        for at, record in tails:
            self._catalog.add_tails(record, path, at)

    def _declared(self) -> set[str]:
        """The queues in the file of definitions, which is as of this checkpoint or later."""
        path = definitions_path(self._root, QUEUES)
        try:
            return set(decode_names(QUEUES, read_whole(self._disk, path), path))
        except (FileNotFoundError, Corrupt):  # messages can be read without it
            return set()

    def _read_checkpoint(self) -> tuple[Checkpoint, list[tuple[int, Record]]]:
        """The checkpoint, and the records of its small tails with their positions."""
        path = checkpoint_path(self._root)
        for _ in range(_LOOKS):
            checkpoint = decode_checkpoint(path.read_bytes(), path)
            generation, length = checkpoint.tails
            if not length:
                return checkpoint, []
            tails = tails_path(self._root, generation)
            try:
                data = read_whole(self._disk, tails)
            except FileNotFoundError as error:  # a newer checkpoint came between
                missing = error
            else:
                return checkpoint, list(decode_tails(data, length, tails))
        raise Corrupt(str(missing.filename), 0, "the file is missing") from missing
