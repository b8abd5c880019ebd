"""Reading what a Follower found: spans of segments and of the journal back to verified blocks. No checkpoint, no lock.

Between being found and being read a span may have gone: its segment removed, its journal file used again. That is
noticed, never mistaken for something else, and Unavailable says so: look again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

from headrace.errors import Corrupt, Unavailable
from headrace.storage.local import block as blocks
from headrace.storage.local.block import Block, Layout, decode_block, decode_layout
from headrace.storage.local.disk import Disk, ReadOnlyDisk
from headrace.storage.local.record import Record, check_version, decode_record
from headrace.storage.local.segment import HEADER_BYTES, check_segment_header

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
            check_segment_header(self._disk.read(self._fd, 0, HEADER_BYTES), Path(path), self._log_id)


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
