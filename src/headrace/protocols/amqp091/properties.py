"""The properties of a content header: flags and list to core's Properties and back. No frames.

    +----------------+-------- - - - --------+
    | flags, 2 bytes | one value per set bit |     bit 15 content type ... bit 2 cluster id; bit 0: more flags follow
    +----------------+-------- - - - --------+

Messages keep these bytes as they came. They are decoded to route by headers and for expiration, priority and the like,
and encoded again only after a change: a dead letter's history, a header added on delivery.
"""

import struct
from typing import Final, final

from headrace.core.properties import Properties, PropertiesCodec
from headrace.errors import ProtocolError, Refused
from headrace.protocols.amqp091.fields import Reader, encode_table
from headrace.protocols.amqp091.frames import SYNTAX_ERROR

_FLAGS: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")

NONE: Final = b"\0\0"
_CONTENT_TYPE: Final = 1 << 15
_CONTENT_ENCODING: Final = 1 << 14
_HEADERS: Final = 1 << 13
_DELIVERY_MODE: Final = 1 << 12
_PRIORITY: Final = 1 << 11
_TIMESTAMP: Final = 1 << 6
_CLUSTER_ID: Final = 1 << 2
_UNKNOWN: Final = 0b11
PRIORITY: Final = "priority"
TIMESTAMP: Final = "timestamp"
CLUSTER_ID: Final = "cluster_id"

# The short strings after the priority, in the order of the list; the timestamp stands among them.
_TEXTS: Final = (
    (1 << 10, "correlation_id"),
    (1 << 9, "reply_to"),
    (1 << 8, "expiration"),
    (1 << 7, "message_id"),
    (_TIMESTAMP, ""),
    (1 << 5, "message_type"),
    (1 << 4, "user_id"),
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
    if flags & _HEADERS:
        properties.headers = reader.table()
    if flags & _DELIVERY_MODE:
        properties.delivery_mode = reader.octet()
    if flags & _PRIORITY:
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
        flags |= _HEADERS
        parts.append(encode_table(properties.headers))
    if properties.delivery_mode:
        flags |= _DELIVERY_MODE
        parts.append(bytes([properties.delivery_mode & 0xFF]))
    priority = properties.extra.get(PRIORITY)
    if isinstance(priority, int):
        flags |= _PRIORITY
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


def with_headers(raw: bytes, entries: bytes) -> bytes:
    """The same properties with more headers at the end of their table. The bytes must be complete."""
    before, behind = around_headers(raw, len(entries))
    return before + entries + behind


def around_headers(raw: bytes, size: int) -> tuple[bytes, bytes]:
    """The bytes before and behind `size` bytes of headers that are added at the end of the table."""
    flags = _FLAGS.unpack_from(raw)[0]
    at = 2
    for bit in (_CONTENT_TYPE, _CONTENT_ENCODING):
        if flags & bit:
            at += 1 + raw[at]
    if not flags & _HEADERS:
        return b"".join((_FLAGS.pack(flags | _HEADERS), raw[2:at], _U32.pack(size))), raw[at:]
    present = _U32.unpack_from(raw, at)[0]
    end = at + 4 + present
    return b"".join((raw[:at], _U32.pack(present + size), raw[at + 4 : end])), raw[end:]


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
