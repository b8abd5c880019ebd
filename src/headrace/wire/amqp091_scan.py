"""Properties of AMQP 0-9-1 without objects: what a publish depends on, and headers added on delivery.

The broker decodes properties only for a decision. A scan checks that they are complete: 700 instructions for three
headers and four ids. Spark's tasks have no librt, so amqp091.py, which they load, imports nothing from here.
"""

import struct
from typing import Final

from librt.strings import read_i32_be
from mypy_extensions import i64

from headrace.wire.amqp091 import (
    ARRAY,
    BYTES,
    HAS_CLUSTER_ID,
    HAS_CONTENT_ENCODING,
    HAS_CONTENT_TYPE,
    HAS_DELIVERY_MODE,
    HAS_EXPIRATION,
    HAS_HEADERS,
    HAS_PRIORITY,
    HAS_REPLY_TO,
    HAS_TIMESTAMP,
    HAS_USER_ID,
    LENGTHS,
    SIZED,
    STRING,
    TABLE,
    UNKNOWN_FLAGS,
    decode_properties,
)
from headrace.wire.properties import MAX_DEPTH

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
HAS_COPIES: Final = 1
"""Set by `scan_properties` for headers with CC or BCC; as a flag it is unknown."""
DIRECT_REPLY_TO: Final = b"amq.rabbitmq.reply-to"
_LOOKS: Final = HAS_PRIORITY | HAS_EXPIRATION | HAS_USER_ID
_UNSURE: Final = -1


def scan_properties(raw: bytes) -> int:
    """Return the reasons why a publish must look at these properties, as flags; 0 if they only pass through.

    Raises ProtocolError if they are not complete, as decoding does.
    """
    try:
        found = _scan(raw)
    except IndexError:
        found = _UNSURE
    if found != _UNSURE:
        return found
    properties = decode_properties(raw)
    flags: int = int.from_bytes(raw[:2]) & _LOOKS
    if properties.reply_to.encode(errors="surrogateescape") == DIRECT_REPLY_TO:
        flags |= HAS_REPLY_TO
    if "CC" in properties.headers or "BCC" in properties.headers:
        flags |= HAS_COPIES
    return flags


def _scan(raw: bytes) -> int:
    """Like `scan_properties`, or _UNSURE. Raises IndexError behind the end of the bytes."""
    flags: i64 = i64(raw[0]) << 8 | i64(raw[1])
    found: i64 = flags & _LOOKS
    at: i64 = 2
    if flags & UNKNOWN_FLAGS:
        return _UNSURE
    if flags & HAS_CONTENT_TYPE:
        at += 1 + i64(raw[at])
    if flags & HAS_CONTENT_ENCODING:
        at += 1 + i64(raw[at])
    if flags & HAS_HEADERS:
        at = _skip_table(raw, at, MAX_DEPTH)
        if at < 0:
            return _UNSURE
    if flags & HAS_DELIVERY_MODE:
        at += 1
    if flags & HAS_PRIORITY:
        at += 1
    bit: i64 = 1 << 10
    while bit >= HAS_CLUSTER_ID:
        if flags & bit:
            if bit == HAS_TIMESTAMP:
                at += 8
            else:
                size = i64(raw[at])
                at += 1
                if bit == HAS_REPLY_TO and raw[at : at + size] == DIRECT_REPLY_TO:
                    found |= HAS_REPLY_TO
                at += size
        bit >>= 1
    return found if at == len(raw) else _UNSURE


def _skip_table(raw: bytes, at: i64, depth: i64) -> i64:
    """Return the end of the table that begins at `at`; _UNSURE if it has copies or only decoding can tell."""
    size = i64(read_i32_be(raw, at))
    at += 4
    end = at + size
    if size < 0 or end > len(raw) or depth <= 0:
        return _UNSURE
    high: i64 = 0
    while at < end:
        stop = at + 1 + i64(raw[at])
        at += 1
        if stop - at in (2, 3) and raw[stop - 1] == 0x43 and raw[stop - 2] == 0x43:  # CC or BCC
            return _UNSURE
        while at < stop:
            high |= i64(raw[at])
            at += 1
        at = _skip_value(raw, at, depth - 1)
        if at < 0:
            return _UNSURE
    return at if at == end and high < 0x80 else _UNSURE  # decoding checks names that are not ASCII


def _skip_value(raw: bytes, at: i64, depth: i64) -> i64:
    """Return the end of a value; _UNSURE as _skip_table does."""
    letter = raw[at]
    at += 1
    length = i64(LENGTHS[letter])
    if length < SIZED:
        return at + length
    if letter == TABLE:
        return _skip_table(raw, at, depth)
    size = i64(read_i32_be(raw, at))
    at += 4
    end = at + size
    if size < 0 or end > len(raw):
        return _UNSURE
    if letter in (STRING, BYTES):
        return end
    if letter != ARRAY or depth <= 0:
        return _UNSURE
    while at < end:
        at = _skip_value(raw, at, depth - 1)
        if at < 0:
            return _UNSURE
    return at if at == end else _UNSURE


def headers_at(raw: bytes) -> i64:
    """Return the place of the table of headers, also of one that is absent."""
    at: i64 = 2
    if raw[0] & HAS_CONTENT_TYPE >> 8:
        at += 1 + i64(raw[at])
    if raw[0] & HAS_CONTENT_ENCODING >> 8:
        at += 1 + i64(raw[at])
    return at


def _after_headers(raw: bytes) -> i64:
    at = headers_at(raw)
    return at + 4 + i64(read_i32_be(raw, at)) if raw[0] & HAS_HEADERS >> 8 else at


def priority_of(raw: bytes) -> int:
    """Return the priority in properties that were scanned; 0 without one."""
    flags: i64 = i64(raw[0]) << 8 | i64(raw[1])
    if not flags & HAS_PRIORITY:
        return 0
    at = _after_headers(raw)
    return raw[at + 1] if flags & HAS_DELIVERY_MODE else raw[at]


def expiration_of(raw: bytes) -> bytes:
    """Return the expiration in properties that were scanned, as the client wrote it; b"" without one."""
    flags: i64 = i64(raw[0]) << 8 | i64(raw[1])
    if not flags & HAS_EXPIRATION:
        return b""
    at = _after_headers(raw)
    if flags & HAS_DELIVERY_MODE:
        at += 1
    if flags & HAS_PRIORITY:
        at += 1
    bit: i64 = 1 << 10
    while bit > HAS_EXPIRATION:
        if flags & bit:
            at += 1 + i64(raw[at])
        bit >>= 1
    return raw[at + 1 : at + 1 + i64(raw[at])]


def with_headers(raw: bytes, entries: bytes) -> bytes:
    """Return the same properties with more headers at the end of their table. The bytes must be complete."""
    at = int(headers_at(raw))
    flags: int = _U16.unpack_from(raw)[0]
    if not flags & HAS_HEADERS:
        return b"".join((_U16.pack(flags | HAS_HEADERS), raw[2:at], _U32.pack(len(entries)), entries, raw[at:]))
    present: int = _U32.unpack_from(raw, at)[0]
    end = at + 4 + present
    return b"".join((raw[:at], _U32.pack(present + len(entries)), raw[at + 4 : end], entries, raw[end:]))
