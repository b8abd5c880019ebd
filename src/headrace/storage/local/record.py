"""Journal records as bytes and back. No files: see journal.py. encoding.py writes runs and steps.

A record is one group of commits, little-endian, padded to a multiple of 8 bytes:

     0  4  magic "HRJR"
     4  4  crc32 of all that follows up to the blocks, and of the blocks' headers (their own crc32 covers their bodies)
     8  8  sequence number: one more than the record before
    16  8  synced: the highest sequence number known to be synced when this record was written
    24  4  version: 1, or 2 with more than one block
    28  4  length of the operations in bytes, padding not counted
    32  4  count of runs
    36  4  length of the blocks in bytes, headers included; 0 when nothing is appended
    40     operations, padded to 8
           runs, each: log id u32, count u32, base offset u64: the logs of the block's messages, in order; in version 2
           each run has a block of its own
           blocks (see block.py); their base offsets count only in version 1 with a single run

An operation is a kind u8 and its fields; a text is a u16 length and UTF-8, bytes are a u32 length and the bytes:

     1  create log    log id u32, name text
     2  drop log      log id u32
     3  truncate      log id u32, before u64
     4  create group  log id u32, group id u32, mode u8, start u64, name text, filter text
     5  delete group  group id u32
     6  claimed       group id u32, start u64, stop u64, due i64, consumer text
     7  acked         group id u32, start u64, stop u64
     8  dead          group id u32, start u64, stop u64
     9  requeued      group id u32, start u64, stop u64, due i64
    10  cursor        group id u32, offset u64
    11  committed     group id u32, offset u64
    12  put           table text, key bytes, value bytes
    13  delete        table text, key bytes
"""

import struct
from collections.abc import Sequence
from typing import Final, final

from headrace.errors import Corrupt
from headrace.storage.group_state import (
    ACKED,
    CLAIMED,
    COMMITTED,
    CREATED,
    CURSOR,
    DEAD,
    DELETED,
    REQUEUED,
    Transition,
)
from headrace.storage.local import block as blocks
from headrace.storage.local.block import PAD, Block, BlockHead
from headrace.storage.local.files import crc32

MAGIC: Final = b"HRJR"
VERSION: Final = 1
BLOCKS_VERSION: Final = 2
HEADER_BYTES: Final = 40
_HEADER: Final = struct.Struct("<4sIQQIIII")
_CHECKED: Final = struct.Struct("<QQIIII")
_RUN: Final = struct.Struct("<IIQ")
_RUN_BYTES: Final = _RUN.size
_pack_checked: Final = _CHECKED.pack

CREATE_LOG: Final = 1
DROP_LOG: Final = 2
TRUNCATE: Final = 3
PUT: Final = 12
DELETE: Final = 13

Run = tuple[int, int, int]
"""The log of the next messages in a block: log id, count, base offset."""

_ID: Final = struct.Struct("<BI")
_ID_OFFSET: Final = struct.Struct("<BIQ")
_RANGE: Final = struct.Struct("<BIQQ")
_RANGE_DUE: Final = struct.Struct("<BIQQq")
_GROUP: Final = struct.Struct("<BIIBQ")
_TEXT: Final = struct.Struct("<H")
_BYTES: Final = struct.Struct("<I")


@final
class Operation:
    """One decoded operation; the kind decides which fields are set."""

    __slots__ = ("group_id", "key", "kind", "log_id", "name", "offset", "step", "table", "value")

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.log_id = 0
        self.group_id = 0
        self.name = ""
        self.offset = 0
        self.step: Transition | None = None
        self.table = ""
        self.key = b""
        self.value: bytes | None = None


@final
class Record:
    """One decoded journal record: it has one block for all runs in turn, or one for each run."""

    __slots__ = ("_heads", "blocks", "length", "operations", "runs", "seq", "synced")

    def __init__(
        self, seq: int, synced: int, operations: bytes, runs: list[Run], blocks: list[Block], length: int
    ) -> None:
        self.seq = seq
        self.synced = synced
        self.operations = operations
        self.runs = runs
        self.blocks = blocks
        self.length = length
        self._heads: list[BlockHead] | None = None

    @property
    def heads(self) -> list[BlockHead]:
        """The headers of its blocks."""
        if self._heads is None:
            self._heads = [blocks.decode_head(block.header, "", 0) for block in self.blocks]
        return self._heads

    def note_heads(self, heads: list[BlockHead]) -> None:
        """Set the headers of a record without blocks."""
        self._heads = heads

    def appends(self) -> "list[tuple[int, int, int, Block, int]]":
        """The appends of the record: log id, count, base offset, block, first row in the block."""
        row = 0
        found: list[tuple[int, int, int, Block, int]] = []
        for number, (log_id, count, base) in enumerate(self.runs):
            if len(self.blocks) == 1:
                found.append((log_id, count, base, self.blocks[0], row))
            else:
                found.append((log_id, count, base, self.blocks[number], 0))
            row += count
        return found


def encode_record(seq: int, synced: int, operations: bytes, runs: bytes, blocks: list[Block]) -> list[bytes]:
    """The buffers of one record, from encoded operations and runs.

    The rows of a single block belong to all runs in turn; of several blocks each run has one.
    """
    length = _length_of(blocks)
    version = VERSION if len(blocks) < 2 else BLOCKS_VERSION
    fields = _pack_checked(seq, synced, version, len(operations), len(runs) // _RUN_BYTES, length)
    header = blocks[0].header if len(blocks) == 1 else b""
    checked = b"".join([fields, operations, PAD[len(operations) % 8], runs, header])
    crc = crc32(checked)
    if len(blocks) < 2:
        head = MAGIC + crc.to_bytes(4, "little") + checked
        return [head, *blocks[0].pieces] if blocks else [head]
    crc = crc32(b"".join([block.header for block in blocks]), crc)
    return [
        MAGIC + crc.to_bytes(4, "little") + checked,
        *[part for block in blocks for part in (block.header, *block.pieces)],
    ]


def encoded_length(operations: bytes, runs: bytes, blocks: list[Block]) -> int:
    """The length of the record that `encode_record` makes of this."""
    return HEADER_BYTES + (len(operations) + 7 & ~7) + len(runs) + _length_of(blocks)


def _length_of(blocks: list[Block]) -> int:
    """The length of blocks in a row."""
    return blocks[0].length if len(blocks) == 1 else sum([block.length for block in blocks])


def record_length(head: bytes) -> int:
    """The length of the record with this header, unchecked; 0 when it is no header."""
    if head[:4] != MAGIC or len(head) < HEADER_BYTES:
        return 0
    fields: tuple[int, ...] = _HEADER.unpack_from(head)[5:]
    operations_length, run_count, block_length = fields
    return HEADER_BYTES + (operations_length + 7 & ~7) + run_count * _RUN.size + block_length


def blocks_length(head: bytes) -> int:
    """The length of a record's blocks, by its header."""
    fields: tuple[int, ...] = _HEADER.unpack_from(head)
    return fields[7]


def decode_outline(data: bytes, headers: Sequence[bytes], length: int) -> Record | None:
    """Decode a record without block bodies, from the bytes before the blocks and their headers. None when damaged."""
    _, crc, seq, synced, version, operations_length, run_count, _ = _HEADER.unpack_from(data)
    if crc32(b"".join(headers), crc32(data[8:])) != crc:
        return None
    if version != (VERSION if len(headers) < 2 else BLOCKS_VERSION) or (1 < len(headers) != run_count):
        return None
    runs_at = len(data) - run_count * _RUN.size
    operations = data[HEADER_BYTES : HEADER_BYTES + operations_length]
    record = Record(seq, synced, operations, list(_RUN.iter_unpack(data[runs_at:])), [], length)
    record.note_heads([blocks.decode_head(header, "", 0) for header in headers])
    return record


def record_seq(data: bytes, position: int) -> int:
    """The sequence number of a record at this position, unchecked."""
    return int.from_bytes(data[position + 8 : position + 16], "little")


def decode_record(data: bytes, position: int) -> Record | None:
    """Decode the record at this position; None when there is no whole, undamaged record of a known version."""
    if data[position : position + 4] != MAGIC or len(data) - position < HEADER_BYTES:
        return None
    _, crc, seq, synced, version, operations_length, run_count, block_length = _HEADER.unpack_from(data, position)
    runs_at = position + HEADER_BYTES + (operations_length + 7 & ~7)
    block_at = runs_at + run_count * _RUN.size
    end = block_at + block_length
    if version not in (VERSION, BLOCKS_VERSION) or end > len(data):
        return None
    try:
        found = _decode_blocks(data, block_at, end)
    except Corrupt:
        return None
    checked = crc32(memoryview(data)[position + 8 : block_at])
    if crc32(b"".join([block.header for block in found]), checked) != crc:
        return None
    if version != (VERSION if len(found) < 2 else BLOCKS_VERSION) or (len(found) > 1 and len(found) != run_count):
        return None
    operations = data[position + HEADER_BYTES : position + HEADER_BYTES + operations_length]
    runs = list(_RUN.iter_unpack(data[runs_at:block_at]))
    return Record(seq, synced, operations, runs, found, end - position)


def _decode_blocks(data: bytes, at: int, end: int) -> list[Block]:
    """Decode the blocks in these bytes. Raises Corrupt."""
    found: list[Block] = []
    while at < end:
        body_at = at + blocks.HEADER_BYTES
        header = data[at:body_at]
        length = blocks.decode_header(header, "", at)
        if body_at + length > end:
            raise Corrupt("", at, "the block goes beyond its record")
        found.append(blocks.decode_block(header, data[body_at : body_at + length], "", at))
        at = body_at + length
    return found


def check_version(data: bytes, position: int, file: str) -> None:
    """Raises Corrupt when the record here has a right checksum, but it or its block has an unknown version.

    Another release wrote such a record: it is no torn end and must not be cut away.
    """
    if data[position : position + 4] != MAGIC or len(data) - position < HEADER_BYTES:
        return
    _, crc, _, _, version, operations_length, run_count, block_length = _HEADER.unpack_from(data, position)
    block_at = position + HEADER_BYTES + (operations_length + 7 & ~7) + run_count * _RUN.size
    checked_end = block_at + (blocks.HEADER_BYTES if block_length else 0)
    if checked_end > len(data) or crc32(memoryview(data)[position + 8 : checked_end]) != crc:
        return
    if version not in (VERSION, BLOCKS_VERSION):
        raise Corrupt(file, position + 24, f"record version {version} is not known to this release; use a newer one")
    if block_length:
        blocks.decode_header(data[block_at:checked_end], file, block_at)


def encode_create_log(log_id: int, name: str) -> bytes:
    return _ID.pack(CREATE_LOG, log_id) + encode_text(name)


def encode_drop_log(log_id: int) -> bytes:
    return _ID.pack(DROP_LOG, log_id)


def encode_text(text: str) -> bytes:
    raw = text.encode()
    return _TEXT.pack(len(raw)) + raw


def encode_put(table: str, key: bytes, value: bytes | None) -> bytes:
    if value is None:
        return bytes([DELETE]) + encode_text(table) + _bytes(key)
    return bytes([PUT]) + encode_text(table) + _bytes(key) + _bytes(value)


def decode_operations(data: bytes) -> list[Operation]:
    """Decode all operations of a record. Raises ValueError for nonsense, which a right checksum rules out."""
    found: list[Operation] = []
    reader = _Reader(data)
    while reader.at < len(data):
        found.append(_decode_operation(reader))
    return found


def _decode_operation(reader: "_Reader") -> Operation:
    kind = reader.data[reader.at]
    operation = Operation(kind)
    if kind == CREATE_LOG:
        _, operation.log_id = reader.unpack(_ID)
        operation.name = reader.text()
    elif kind == DROP_LOG:
        _, operation.log_id = reader.unpack(_ID)
    elif kind == TRUNCATE:
        _, operation.log_id, operation.offset = reader.unpack(_ID_OFFSET)
    elif kind in (PUT, DELETE):
        reader.at += 1
        operation.table = reader.text()
        operation.key = reader.blob()
        operation.value = reader.blob() if kind == PUT else None
    else:
        operation.step = _decode_step(reader, operation, kind)
    return operation


def _decode_step(reader: "_Reader", operation: Operation, kind: int) -> Transition:
    """Decode a step; the caller knows the names of its log and group from the ids."""
    step = Transition(kind, "", "")
    if kind == CREATED:
        _, operation.log_id, operation.group_id, step.mode, step.start = reader.unpack(_GROUP)
        step.group = reader.text()
        step.filter = reader.text()
    elif kind == DELETED:
        _, operation.group_id = reader.unpack(_ID)
    elif kind in (CURSOR, COMMITTED):
        _, operation.group_id, step.start = reader.unpack(_ID_OFFSET)
    elif kind == CLAIMED:
        _, operation.group_id, step.start, step.stop, step.due_us = reader.unpack(_RANGE_DUE)
        step.consumer = reader.text()
    elif kind == REQUEUED:
        _, operation.group_id, step.start, step.stop, step.due_us = reader.unpack(_RANGE_DUE)
    elif kind in (ACKED, DEAD):
        _, operation.group_id, step.start, step.stop = reader.unpack(_RANGE)
    else:
        raise ValueError(f"operation kind {kind} is not known to this release")
    return step


@final
class _Reader:
    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        try:
            fields: tuple[int, ...] = form.unpack_from(self.data, self.at)
        except struct.error as error:
            raise ValueError(f"operations end early: {error}") from error
        self.at += form.size
        return fields

    def text(self) -> str:
        (length,) = self.unpack(_TEXT)
        return self._take(length).decode()

    def blob(self) -> bytes:
        (length,) = self.unpack(_BYTES)
        return self._take(length)

    def _take(self, length: int) -> bytes:
        taken = self.data[self.at : self.at + length]
        if len(taken) != length:
            raise ValueError(f"operations end early: {length} bytes expected, {len(taken)} left")
        self.at += length
        return taken


def _bytes(raw: bytes) -> bytes:
    return _BYTES.pack(len(raw)) + raw
