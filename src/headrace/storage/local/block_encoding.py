"""Messages to columnar blocks, a column at a time. The layout is drawn in block.py, which goes the other way."""

import struct
from array import array
from collections.abc import Sequence
from typing import Final

from headrace.errors import Refused
from headrace.model import Message, Source
from headrace.storage.local.block import (
    EXPIRES,
    NOT_BEFORE,
    PAD,
    PRIORITY,
    PROPERTIES,
    SOURCE_INDEX,
    VERSION,
    Block,
    add_column,
    seal_block,
)
from headrace.storage.local.source_table import encode_sources

_FEW: Final = 16
"""From so many numbers on struct is quicker than an array: 10 ns each with a thousand, instead of 28."""


def encode_block(base: int, messages: Sequence[Message]) -> Block:
    """Encode messages, the first of which has offset `base`.

    Raises Refused when a column would pass 2 GiB, a topic 65535 bytes, or a number its column.
    """
    try:
        return _encode_block(base, messages)
    except (OverflowError, ValueError, struct.error) as error:
        raise Refused(f"messages cannot be stored: {error}") from error


def _encode_block(base: int, messages: Sequence[Message]) -> Block:
    # One pass per column: 0.37 us a message at 100 per block, against 0.76 us for a record at a time.
    payloads = [message.payload for message in messages]
    payload_at = _bounds(payloads)
    times = [message.timestamp_us for message in messages]
    parts: list[bytes] = [_packed("q", times)]
    columns = 0

    # Most messages have none of these: one look instead of three saves 50 ns a message.
    is_plain = not any([message.expires_us or message.not_before_us or message.priority for message in messages])
    if not is_plain:
        columns = _encode_times(messages, parts)
    sources = [message.source for message in messages]
    table: dict[Source, int] = dict.fromkeys(sources, 0)
    if len(table) > 1:
        columns |= SOURCE_INDEX
        for position, source in enumerate(table):
            table[source] = position
        add_column(parts, _packed("i", [table[source] for source in sources]))
    properties = [message.properties for message in messages]
    properties_bytes = 0
    if any(properties):
        columns |= PROPERTIES
        properties_at = _bounds(properties)
        properties_bytes = properties_at[-1]
        add_column(parts, _packed("i", properties_at))
    add_column(parts, _packed("i", payload_at))
    if not is_plain and any(message.priority for message in messages):
        columns |= PRIORITY
        add_column(parts, bytes([message.priority for message in messages]))
    distinct = list(table)
    source_table = encode_sources(distinct)
    add_column(parts, source_table)
    if properties_bytes:
        parts += properties
        parts.append(PAD[properties_bytes % 8])
    parts += payloads
    parts.append(PAD[payload_at[-1] % 8])
    body = b"".join(parts)
    fields = (
        VERSION, columns, len(body), len(messages), len(table), base, times[0], max(times),
        len(source_table), properties_bytes, payload_at[-1],
    )  # fmt: skip
    block = seal_block(fields, body)
    block.know_sources(distinct)
    return block


def _bounds(texts: list[bytes]) -> list[int]:
    """Where each of these begins when they stand one behind the other, and where the last one ends."""
    at = 0
    bounds = [at]
    for text in texts:
        at += len(text)
        bounds.append(at)
    return bounds


def _packed(kind: str, numbers: list[int]) -> bytes:
    """Numbers as a column. Raises struct.error or OverflowError."""
    if len(numbers) < _FEW:
        return array(kind, numbers).tobytes()
    return struct.pack(f"<{len(numbers)}{kind}", *numbers)


def _encode_times(messages: Sequence[Message], parts: list[bytes]) -> int:
    """The columns of times that few messages have, where any has; returns their flags."""
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
