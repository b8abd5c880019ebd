"""Reading what a Follower found: spans of segments and of the journal back to verified blocks. No checkpoint, no lock.

Between being found and being read a span may have gone: its segment removed, its journal file used again. That is
noticed, never mistaken for something else, and Unavailable says so: look again.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

from headrace.errors import Corrupt, Unavailable
from headrace.storage.local import block as blocks
from headrace.storage.local.block import Block, decode_block
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
        kind, path, position, end, start, stop, proof = span
        self._open(path, kind)
        data = self._disk.read(self._fd, position, end - position)
        if kind == SEGMENT:
            head, body = data[: blocks.HEADER_BYTES], data[blocks.HEADER_BYTES :]
            block = decode_block(head, body, path, position)
            first, last = max(start, block.base), min(stop, block.next)
            if first < last:
                yield first, block, first - block.base, last - block.base
            return
        if kind == BLOCK:
            yield self._journal_block(data, span)
            return
        yield from self._journal_rows(data, span, proof)

    def _journal_block(self, data: bytes, span: Span) -> Rows:
        _, path, position, _, start, stop, crc = span
        head, body = data[: blocks.HEADER_BYTES], data[blocks.HEADER_BYTES :]
        try:
            block = decode_block(head, body, path, position)
        except Corrupt as error:
            raise _used_again(path, position) from error
        if block.crc != crc or block.count != stop - start:
            raise _used_again(path, position)
        return start, block, 0, block.count

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


def _used_again(path: str, position: int) -> Unavailable:
    return Unavailable(f"{path} was used again: what stood at byte {position} is elsewhere now")


def _rows_of(record: Record, log_id: int) -> Iterator[Rows]:
    """The rows that a record appends to a log, with the offset of the first of each."""
    for run_id, count, base, block, row in record.appends():
        if run_id == log_id:
            yield base, block, row, row + count
