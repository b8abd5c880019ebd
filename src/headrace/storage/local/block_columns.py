"""Blocks of columns that are encoded already: written in bulk, or cut out of another block. No single messages."""

import struct
from array import array
from collections.abc import Sequence
from typing import final

from headrace.errors import Refused
from headrace.model import Source
from headrace.storage.local.block import (
    EXPIRES,
    NOT_BEFORE,
    PRIORITY,
    PROPERTIES,
    SOURCE_INDEX,
    VERSION,
    Block,
    add_column,
    seal_block,
)
from headrace.storage.local.source_table import encode_sources


@final
class Columns:
    """The columns of a block as bytes; b"" for those that it does not have. Times are microseconds, as stored."""

    __slots__ = (
        "expires",
        "not_before",
        "payload_at",
        "payloads",
        "priority",
        "properties",
        "properties_at",
        "source_index",
        "times",
    )

    def __init__(self, payload_at: bytes, payloads: bytes) -> None:
        self.payload_at = payload_at
        self.payloads = payloads
        self.expires = b""
        self.not_before = b""
        self.source_index = b""
        self.properties_at = b""
        self.properties = b""
        self.priority = b""
        self.times = b""
        """When each message was published; without, all at the same time."""


def assemble_block(count: int, time_us: int, sources: Sequence[Source], columns: Columns, base: int = 0) -> Block:
    """A block of columns that are encoded already; `time_us` is for those without times of their own.

    Raises Refused when it cannot be one.
    """
    try:
        table = encode_sources(list(sources))
    except (struct.error, UnicodeEncodeError) as error:
        raise Refused(f"messages cannot be stored: {error}") from error
    present = (
        (EXPIRES, columns.expires),
        (NOT_BEFORE, columns.not_before),
        (SOURCE_INDEX, columns.source_index),
        (PROPERTIES, columns.properties_at),
        (0, columns.payload_at),
        (PRIORITY, columns.priority),
        (0, table),
        (0, columns.properties),
        (0, columns.payloads),
    )
    parts: list[bytes] = [columns.times or array("q", [time_us]).tobytes() * count]
    first_us = last_us = time_us
    if columns.times:
        times = array("q", columns.times)
        first_us, last_us = times[0], max(times)
    flags = 0
    for flag, column in present:
        if column:
            flags |= flag
            add_column(parts, column)
    body = b"".join(parts)
    fields = (
        VERSION, flags, len(body), count, len(sources), base, first_us, last_us, len(table), len(columns.properties),
        len(columns.payloads),
    )  # fmt: skip
    return seal_block(fields, body)


def cut_block(block: Block, start: int, stop: int, base: int) -> Block:
    """The rows `start` up to but not including `stop` as a block of their own, at other offsets.

    Column by column: 0.1 us a row against 1.5 for decoding and encoding messages.
    """
    if start == 0 and stop == block.count:
        return block if base == block.base else block.rebased(base)
    body = block.body
    columns = Columns(*_cut(body, block.payload_bounds(), block.at_payloads, start, stop))
    columns.times = body[start * 8 : stop * 8]
    if block.columns & EXPIRES:
        columns.expires = body[block.at_expires + start * 8 : block.at_expires + stop * 8]
    if block.columns & NOT_BEFORE:
        columns.not_before = body[block.at_not_before + start * 8 : block.at_not_before + stop * 8]
    if block.columns & PRIORITY:
        columns.priority = block.priorities(start, stop)
    if block.columns & PROPERTIES:
        bounds = block.properties_bounds()
        columns.properties_at, columns.properties = _cut(body, bounds, block.at_properties, start, stop)
    sources = block.sources()
    if block.columns & SOURCE_INDEX:
        index = array("i", body[block.at_source_index + start * 4 : block.at_source_index + stop * 4])
        used = dict.fromkeys(index, 0)
        sources = [sources[number] for number in used]
        if len(used) > 1:
            for position, number in enumerate(used):
                used[number] = position
            columns.source_index = array("i", [used[number] for number in index]).tobytes()
    return assemble_block(stop - start, 0, sources, columns, base)


def _cut(body: bytes, bounds: "array[int]", at: int, start: int, stop: int) -> tuple[bytes, bytes]:
    """Some rows of a column of bytes: where they start, and they themselves."""
    first = bounds[start]
    lengths = array("i", [bound - first for bound in bounds[start : stop + 1]])
    return lengths.tobytes(), body[at + first : at + bounds[stop]]
