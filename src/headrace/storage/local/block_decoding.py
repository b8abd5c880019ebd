"""Rows of a block as messages, read number by number. What a block is and where its columns stand: block.py."""

from librt.strings import read_i32_le, read_i64_le
from mypy_extensions import i64

from headrace.model import Message
from headrace.storage.local.block import EXPIRES, NOT_BEFORE, PRIORITY, PROPERTIES, SOURCE_INDEX, Block


def decode_messages(block: Block, start: int, stop: int) -> list[Message]:
    """The messages of rows `start` up to but not including `stop`."""
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
