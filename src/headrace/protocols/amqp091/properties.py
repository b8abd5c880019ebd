"""The properties of a content header: flags and list to core's Properties and back. No frames.

    +----------------+-------- - - - --------+
    | flags, 2 bytes | one value per set bit |     bit 15 content type ... bit 2 cluster id; bit 0: more flags follow
    +----------------+-------- - - - --------+

Messages keep these bytes as they came. They are decoded to route by headers and for expiration, priority and the like,
and encoded again only after a change: a dead letter's history, a header added on delivery.
"""

import struct
from typing import Final, final

from librt.strings import read_i32_be
from mypy_extensions import i64

from headrace.core.properties import MAX_DEPTH, Properties, PropertiesCodec
from headrace.errors import ProtocolError, Refused
from headrace.protocols.amqp091.fields import Reader, encode_table
from headrace.protocols.amqp091.frames import SYNTAX_ERROR

_FLAGS: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")

NONE: Final = b"\0\0"
_CONTENT_TYPE: Final = 1 << 15
_CONTENT_ENCODING: Final = 1 << 14
HAS_HEADERS: Final = 1 << 13
_DELIVERY_MODE: Final = 1 << 12
HAS_PRIORITY: Final = 1 << 11
HAS_REPLY_TO: Final = 1 << 9
HAS_EXPIRATION: Final = 1 << 8
HAS_USER_ID: Final = 1 << 4
HAS_COPIES: Final = 1
"""Set by `scan_properties` for headers with CC or BCC; as a flag it is unknown."""
_TIMESTAMP: Final = 1 << 6
_CLUSTER_ID: Final = 1 << 2
_UNKNOWN: Final = 0b11
PRIORITY: Final = "priority"
TIMESTAMP: Final = "timestamp"
CLUSTER_ID: Final = "cluster_id"

# The short strings after the priority, in the order of the list; the timestamp stands among them.
_TEXTS: Final = (
    (1 << 10, "correlation_id"),
    (HAS_REPLY_TO, "reply_to"),
    (HAS_EXPIRATION, "expiration"),
    (1 << 7, "message_id"),
    (_TIMESTAMP, ""),
    (1 << 5, "message_type"),
    (HAS_USER_ID, "user_id"),
    (1 << 3, "app_id"),
)


def decode_properties(raw: bytes) -> Properties:
    """Decode flags and list. Raises ProtocolError if they are not complete, or bytes follow them."""
    properties = Properties()
    if raw == NONE:
        return properties
    reader = Reader(raw)
    flags = reader.short()
    if flags & _UNKNOWN:
        raise ProtocolError(SYNTAX_ERROR, "property flags are set that basic has no property for")
    if flags & _CONTENT_TYPE:
        properties.content_type = _text(reader)
    if flags & _CONTENT_ENCODING:
        properties.content_encoding = _text(reader)
    if flags & HAS_HEADERS:
        properties.headers = reader.table()
    if flags & _DELIVERY_MODE:
        properties.delivery_mode = reader.octet()
    if flags & HAS_PRIORITY:
        properties.extra[PRIORITY] = reader.octet()
    if flags & 0x7F8:
        for bit, name in _TEXTS:
            if flags & bit:
                if bit == _TIMESTAMP:
                    properties.extra[TIMESTAMP] = reader.longlong()
                else:
                    setattr(properties, name, _text(reader))
    if flags & _CLUSTER_ID:
        properties.extra[CLUSTER_ID] = _text(reader)
    if not reader.is_at_end:
        raise ProtocolError(SYNTAX_ERROR, "there are bytes behind the last property")
    return properties


def encode_properties(properties: Properties) -> bytes:
    """Flags and list of these properties."""
    flags = 0
    parts: list[bytes] = []
    for bit, text in ((_CONTENT_TYPE, properties.content_type), (_CONTENT_ENCODING, properties.content_encoding)):
        if text:
            flags |= bit
            parts.append(_shortstr(text))
    if properties.headers:
        flags |= HAS_HEADERS
        parts.append(encode_table(properties.headers))
    if properties.delivery_mode:
        flags |= _DELIVERY_MODE
        parts.append(bytes([properties.delivery_mode & 0xFF]))
    priority = properties.extra.get(PRIORITY)
    if isinstance(priority, int):
        flags |= HAS_PRIORITY
        parts.append(bytes([priority & 0xFF]))
    timestamp = properties.extra.get(TIMESTAMP)
    for bit, name in _TEXTS:
        if bit == _TIMESTAMP:
            if isinstance(timestamp, int):
                flags |= bit
                parts.append(_U64.pack(timestamp))
        elif text := getattr(properties, name):
            flags |= bit
            parts.append(_shortstr(text))
    cluster_id = properties.extra.get(CLUSTER_ID)
    if isinstance(cluster_id, str):
        flags |= _CLUSTER_ID
        parts.append(_shortstr(cluster_id))
    return _FLAGS.pack(flags) + b"".join(parts)


# -- reading without objects ------------------------------------------------------------------------------------------
# The broker decodes properties only for a decision. A scan checks that they are complete: 700 instructions for three
# headers and four ids, where decoding took 70,000.

DIRECT_REPLY_TO: Final = b"amq.rabbitmq.reply-to"
_LOOKS: Final = HAS_PRIORITY | HAS_EXPIRATION | HAS_USER_ID
_UNSURE: Final = -1

# The bytes of a value by its type; those of strings, tables and arrays begin with their length.
_LENGTHS: Final = bytes(
    {**dict.fromkeys(b"tbB", 1), **dict.fromkeys(b"sUu", 2), **dict.fromkeys(b"Iif", 4), **dict.fromkeys(b"lLdT", 8),
     ord("D"): 5, ord("V"): 0}.get(tag, 255) for tag in range(256)
)  # fmt: skip


def scan_properties(raw: bytes) -> int:
    """The reasons why a publish must look at these properties, as flags; 0 if they only pass through.

    Raises ProtocolError if they are not complete, as decoding does.
    """
    try:
        found = _scan(raw)
    except IndexError:
        found = _UNSURE
    if found != _UNSURE:
        return found
    properties = decode_properties(raw)
    flags: int = _FLAGS.unpack_from(raw)[0] & _LOOKS
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
    if flags & _UNKNOWN:
        return _UNSURE
    if flags & _CONTENT_TYPE:
        at += 1 + i64(raw[at])
    if flags & _CONTENT_ENCODING:
        at += 1 + i64(raw[at])
    if flags & HAS_HEADERS:
        at = _skip_table(raw, at, MAX_DEPTH)
        if at < 0:
            return _UNSURE
    if flags & _DELIVERY_MODE:
        at += 1
    if flags & HAS_PRIORITY:
        at += 1
    bit: i64 = 1 << 10
    while bit >= _CLUSTER_ID:
        if flags & bit:
            if bit == _TIMESTAMP:
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
    """Where the table that begins at `at` ends; _UNSURE if it has copies or only decoding can tell."""
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
    tag = raw[at]
    at += 1
    length = i64(_LENGTHS[tag])
    if length < 255:
        return at + length
    if tag == 0x46:  # F
        return _skip_table(raw, at, depth)
    size = i64(read_i32_be(raw, at))
    at += 4
    end = at + size
    if size < 0 or end > len(raw):
        return _UNSURE
    if tag in (0x53, 0x78):  # S, x
        return end
    if tag != 0x41 or depth <= 0:  # A
        return _UNSURE
    while at < end:
        at = _skip_value(raw, at, depth - 1)
        if at < 0:
            return _UNSURE
    return at if at == end else _UNSURE


def headers_at(raw: bytes) -> i64:
    """Where the table of headers is, or would be."""
    at: i64 = 2
    if raw[0] & _CONTENT_TYPE >> 8:
        at += 1 + i64(raw[at])
    if raw[0] & _CONTENT_ENCODING >> 8:
        at += 1 + i64(raw[at])
    return at


def _after_headers(raw: bytes) -> i64:
    at = headers_at(raw)
    return at + 4 + i64(read_i32_be(raw, at)) if raw[0] & HAS_HEADERS >> 8 else at


def priority_of(raw: bytes) -> int:
    """The priority in properties that were scanned; 0 without one."""
    flags: i64 = i64(raw[0]) << 8 | i64(raw[1])
    if not flags & HAS_PRIORITY:
        return 0
    at = _after_headers(raw)
    return raw[at + 1] if flags & _DELIVERY_MODE else raw[at]


def expiration_of(raw: bytes) -> bytes:
    """The expiration in properties that were scanned, as the client wrote it; b"" without one."""
    flags: i64 = i64(raw[0]) << 8 | i64(raw[1])
    if not flags & HAS_EXPIRATION:
        return b""
    at = _after_headers(raw)
    if flags & _DELIVERY_MODE:
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
    """The same properties with more headers at the end of their table. The bytes must be complete."""
    at = int(headers_at(raw))
    flags: int = _FLAGS.unpack_from(raw)[0]
    if not flags & HAS_HEADERS:
        return b"".join((_FLAGS.pack(flags | HAS_HEADERS), raw[2:at], _U32.pack(len(entries)), entries, raw[at:]))
    present: int = _U32.unpack_from(raw, at)[0]
    end = at + 4 + present
    return b"".join((raw[:at], _U32.pack(present + len(entries)), raw[at + 4 : end], entries, raw[end:]))


def _text(reader: Reader) -> str:
    # Clients put bytes of their own into ids: those that are not UTF-8 survive as they are.
    return reader.raw(reader.octet()).decode(errors="surrogateescape")


def _shortstr(text: str) -> bytes:
    raw = text.encode(errors="surrogateescape")[:255]
    return bytes([len(raw)]) + raw


@final
class Amqp091Codec(PropertiesCodec):
    """The codec of these properties for core."""

    def decode(self, raw: bytes) -> Properties:
        try:
            return decode_properties(raw or NONE)
        except ProtocolError as error:
            raise Refused(f"the properties are not those of AMQP 0-9-1: {error}") from error

    def encode(self, properties: Properties) -> bytes:
        return encode_properties(properties)
