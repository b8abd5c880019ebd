"""Messages, group steps and runs as bytes, written number by number with librt. No layouts: see block.py and record.py.

Spark's tasks have no librt, so block.py and record.py, which they load, import nothing from here.
"""

import struct
from array import array
from typing import Final

from librt.strings import BytesWriter, read_i32_le, read_i64_le, write_i32_le, write_i64_le
from mypy_extensions import i64

from headrace.errors import Refused
from headrace.model import Message, Source
from headrace.storage.group_state import ACKED, CLAIMED, CREATED, DEAD, DELETED, REQUEUED, Transition
from headrace.storage.local.block import (
    EXPIRES,
    MAGIC,
    NOT_BEFORE,
    PAD,
    PRIORITY,
    PROPERTIES,
    SOURCE_INDEX,
    VERSION,
    Block,
    Fields,
    encode_sources,
)
from headrace.storage.local.files import crc32
from headrace.storage.local.record import TRUNCATE, encode_text

_BULKY_BYTES: Final = 16 << 10
"""Payloads of this size, on average, go from where they were read to the disk without a copy."""


def decode_messages(block: Block, start: int, stop: int) -> list[Message]:
    """Decode the rows `start` up to but not including `stop`."""
    body, sources, columns = block.body, block.sources(), block.columns
    row: i64 = start
    end: i64 = stop
    payloads: i64 = block.at_payloads
    payload_at: i64 = block.at_payload_at
    properties_from: i64 = block.at_properties
    properties_at: i64 = block.at_properties_at
    source, properties = sources[0], b""
    priority = expires_us = not_before_us = 0
    low = payloads + i64(read_i32_le(body, payload_at + 4 * row))
    properties_low = properties_from
    if columns & PROPERTIES:
        properties_low += i64(read_i32_le(body, properties_at + 4 * row))
    is_plain = not columns & (EXPIRES | NOT_BEFORE | PRIORITY)
    found: list[Message] = []
    while row < end:
        high = payloads + i64(read_i32_le(body, payload_at + 4 * row + 4))
        if columns & SOURCE_INDEX:
            source = sources[read_i32_le(body, i64(block.at_source_index) + 4 * row)]
        if columns & PROPERTIES:
            properties_high = properties_from + i64(read_i32_le(body, properties_at + 4 * row + 4))
            properties = body[properties_low:properties_high]
            properties_low = properties_high
        if not is_plain:
            priority = body[block.at_priority + row] if columns & PRIORITY else 0
            expires_us = read_i64_le(body, i64(block.at_expires) + 8 * row) if columns & EXPIRES else 0
            not_before_us = read_i64_le(body, i64(block.at_not_before) + 8 * row) if columns & NOT_BEFORE else 0
        time_us = read_i64_le(body, 8 * row)
        found.append(Message(source, body[low:high], time_us, properties, priority, expires_us, not_before_us))
        low = high
        row += 1
    return found


def encode_block(base: int, messages: list[Message]) -> Block:
    """Encode messages, the first of which has offset `base`.

    Raises Refused when a column would pass 2 GiB, a topic 65535 bytes, or a number its column.
    """
    try:
        if len(messages) == 1 and len(messages[0].payload) <= _BULKY_BYTES:
            return _encode_alone(base, messages[0])
        return _encode_block(base, messages)
    except (OverflowError, ValueError, struct.error) as error:
        raise Refused(f"messages cannot be stored: {error}") from error


def _encode_alone(base: int, message: Message) -> Block:
    """Encode the block of one message in one pass: 7,700 instructions instead of 19,600, compiled.

    A client that waits for each confirm has every message in a block of its own.
    """
    source, time_us, priority = message.source, message.timestamp_us, message.priority
    properties, payload = message.properties, message.payload
    table = source.stored or encode_sources([source])
    columns = 0
    body = BytesWriter()
    write_i64_le(body, time_us)
    if message.expires_us:
        columns |= EXPIRES
        write_i64_le(body, message.expires_us)
    if message.not_before_us:
        columns |= NOT_BEFORE
        write_i64_le(body, message.not_before_us)
    if properties:
        columns |= PROPERTIES
        write_i32_le(body, 0)
        write_i32_le(body, len(properties))
    write_i32_le(body, 0)
    write_i32_le(body, len(payload))
    if priority:
        columns |= PRIORITY
        write_i64_le(body, bytes((priority,))[0])  # its column and the padding, if it fits
    for column in (table, properties, payload):
        body.write(column)
        body.write(PAD[len(column) % 8])
    fields = (columns, len(body), 1, 1, base, time_us, time_us, len(table), len(properties), len(payload))
    return _seal(fields, [body.getvalue()], [source])


def _encode_block(base: int, messages: list[Message]) -> Block:
    # One pass per column: compiled code writes a number in 20 instructions; struct takes 150.
    times, max_time_us, is_plain = _encode_timestamps(messages)
    parts: list[bytes] = [times]
    columns = 0
    if not is_plain:
        columns = _encode_times(messages, parts)
    sources, source_index = _encode_source_index(messages)
    if source_index:
        columns |= SOURCE_INDEX
        parts += (source_index, PAD[len(source_index) % 8])
    properties = [message.properties for message in messages]
    properties_bytes = 0
    if any(properties):
        columns |= PROPERTIES
        properties_at, properties_bytes = _encode_bounds(properties)
        parts += (properties_at, PAD[len(properties_at) % 8])
    payloads = [message.payload for message in messages]
    payload_at, payload_bytes = _encode_bounds(payloads)
    parts += (payload_at, PAD[len(payload_at) % 8])
    if not is_plain and any([message.priority for message in messages]):
        columns |= PRIORITY
        parts += (bytes([message.priority for message in messages]), PAD[len(messages) % 8])
    source_table = encode_sources(sources)
    parts += (source_table, PAD[len(source_table) % 8])
    if properties_bytes:
        parts += properties
        parts.append(PAD[properties_bytes % 8])
    parts += payloads
    parts.append(PAD[payload_bytes % 8])
    is_bulky = payload_bytes > _BULKY_BYTES * len(messages)
    pieces = _large_apart(parts) if is_bulky else [b"".join(parts)]
    fields = (
        columns, sum([len(piece) for piece in pieces]), len(messages), len(sources), base,
        messages[0].timestamp_us, max_time_us, len(source_table), properties_bytes, payload_bytes,
    )  # fmt: skip
    return _seal(fields, pieces, sources)


def _seal(fields: Fields, pieces: list[bytes], sources: list[Source]) -> Block:
    """Make a block of a body, as `seal_block` does: 5,000 instructions instead of 8,000, compiled."""
    columns, length, count, source_count, base, time_us, max_time_us, table, properties, payloads = fields
    out = BytesWriter()
    write_i32_le(out, VERSION | columns << 16)
    _write_u32(out, length)
    _write_u32(out, count)
    _write_u32(out, source_count)
    write_i64_le(out, base)
    write_i64_le(out, time_us)
    write_i64_le(out, max_time_us)
    _write_u32(out, table)
    _write_u32(out, properties)
    write_i64_le(out, payloads)
    checked = out.getvalue()
    crc = crc32(checked)
    for piece in pieces:
        crc = crc32(piece, crc)
    header = BytesWriter()
    header.write(MAGIC)
    _write_u32(header, crc)
    header.write(checked)
    return Block(header.getvalue(), pieces, sources, fields)


def _large_apart(parts: list[bytes]) -> list[bytes]:
    """The same bytes, where large parts are as they were and small neighbours are put together."""
    pieces: list[bytes] = []
    small: list[bytes] = []
    for part in parts:
        if len(part) < _BULKY_BYTES:
            small.append(part)
            continue
        if small:
            pieces.append(b"".join(small))
            small = []
        pieces.append(part)
    if small:
        pieces.append(b"".join(small))
    return pieces


def _encode_timestamps(messages: list[Message]) -> tuple[bytes, int, bool]:
    """The column of timestamps, the latest of them, and whether no message has an expiry, a delay or a priority."""
    out = BytesWriter()
    max_time_us = messages[0].timestamp_us
    is_plain = True
    for message in messages:
        time_us = message.timestamp_us
        write_i64_le(out, time_us)
        if time_us > max_time_us:
            max_time_us = time_us
        if message.expires_us or message.not_before_us or message.priority:
            is_plain = False
    return out.getvalue(), max_time_us, is_plain


def _encode_source_index(messages: list[Message]) -> tuple[list[Source], bytes]:
    """The sources, and the column of source numbers; b"" when all messages have the first."""
    first = messages[0].source
    if not any([message.source is not first for message in messages]):
        return [first], b""
    out = BytesWriter()
    sources: list[Source] = []
    for message in messages:
        source = message.source
        place = source.place  # another thread may set it: it counts only if the source is found there
        if place >= len(sources) or sources[place] is not source:
            place = len(sources)
            source.place = place
            sources.append(source)
        write_i32_le(out, place)
    return sources, out.getvalue()


def _encode_bounds(texts: list[bytes]) -> tuple[bytes, int]:
    """The column of bounds of these texts in a row, and the length of all."""
    out = BytesWriter()
    at = 0
    write_i32_le(out, at)
    for text in texts:
        at += len(text)
        write_i32_le(out, at)
    return out.getvalue(), at


def _encode_times(messages: list[Message], parts: list[bytes]) -> int:
    """Append the columns of expiry and delay, if any message has one; returns their flags."""
    columns = 0
    expires = [message.expires_us for message in messages]
    if any(expires):
        columns |= EXPIRES
        parts.append(array("q", expires).tobytes())
    not_before = [message.not_before_us for message in messages]
    if any(not_before):
        columns |= NOT_BEFORE
        parts.append(array("q", not_before).tobytes())
    return columns


def write_run(out: BytesWriter, log_id: int, count: int, base: int) -> None:
    """Write a run: the next `count` messages of a block belong to this log, from offset `base` on."""
    _write_u32(out, log_id)
    _write_u32(out, count)
    write_i64_le(out, base)


def write_truncate(out: BytesWriter, log_id: int, before: int) -> None:
    out.append(TRUNCATE)
    _write_u32(out, log_id)
    write_i64_le(out, before)


def write_step(out: BytesWriter, step: Transition, log_id: int, group_id: int) -> None:
    """Write a step of a group and its cut, if it has one: 150 instructions, compiled; struct took 1,080."""
    kind = step.kind
    out.append(kind)
    if kind == CREATED:
        _write_u32(out, log_id)
    _write_u32(out, group_id)
    if kind == DELETED:
        return
    if kind == CREATED:
        out.append(step.mode)
    write_i64_le(out, step.start)
    if kind in (ACKED, DEAD, CLAIMED, REQUEUED):
        write_i64_le(out, step.stop)
        if kind in (CLAIMED, REQUEUED):
            write_i64_le(out, step.due_us)
    if kind == CREATED:
        out.write(encode_text(step.group) + encode_text(step.filter))
    elif kind == CLAIMED:
        out.write(encode_text(step.consumer))
    if step.cut:
        write_truncate(out, log_id, step.cut)


def _write_u32(out: BytesWriter, number: int) -> None:
    write_i32_le(out, number if number < 1 << 31 else number - (1 << 32))
