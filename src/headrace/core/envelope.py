"""A single message as bytes: for retained messages and wills, which are keyed state, and for what waits for a session.

A message by itself, numbers big-endian:

     0  1  version 1
     1  1  flags: bits 0-1 assurance, bit 2 to be retained
     2  1  encoding of the properties
     3  1  priority
     4  8  timestamp, microseconds since 1970 UTC
    12  8  expiry, the same; 0 for never
    20  4  length of the properties
    24  2  length of the topic        26  2  of the exchange
    28  2  of the client id           30  2  of the protocol's name
    32     topic, exchange, client id, protocol (UTF-8), properties; the payload is the rest

A message in a session's log has a mark in front of its properties:

     0  1  flags: bits 0-1 assurance, bit 2 retained, bits 3-7 how many identifiers (31: the count is in the next byte)
     1     identifiers, 4 bytes each
"""

import struct
from typing import Final, final

from headrace.errors import Corrupt
from headrace.model import Message, Source

_VERSION: Final = 1
_HEAD: Final = struct.Struct(">BBBBqqIHHHH")
_RETAIN: Final = 4
_MANY: Final = 31
MAX_IDENTIFIERS: Final = 255


@final
class Envelope:
    """A message with what its publisher said about its delivery."""

    __slots__ = ("assurance", "message", "retain")

    def __init__(self, message: Message, assurance: int, retain: bool) -> None:
        self.message = message
        self.assurance = assurance
        self.retain = retain


def encode_envelope(envelope: Envelope) -> bytes:
    message = envelope.message
    source = message.source
    texts = [text.encode() for text in (source.topic, source.exchange, source.client_id, source.protocol)]
    head = _HEAD.pack(
        _VERSION,
        envelope.assurance | (_RETAIN if envelope.retain else 0),
        source.encoding,
        message.priority,
        message.timestamp_us,
        message.expires_us,
        len(message.properties),
        *[len(text) for text in texts],
    )
    return b"".join((head, *texts, message.properties, message.payload))


def decode_envelope(data: bytes, where: str) -> Envelope:
    """Raises Corrupt, naming `where` it was kept."""
    if len(data) < _HEAD.size or data[0] != _VERSION:
        raise Corrupt(where, 0, f"no message of version {_VERSION} (found {data[:1]!r}, {len(data)} bytes)")
    numbers: tuple[int, ...] = _HEAD.unpack_from(data)
    _, flags, encoding, priority, timestamp_us, expires_us, properties_bytes, *lengths = numbers
    at = _HEAD.size
    texts: list[str] = []
    try:
        for length in lengths:
            texts.append(data[at : at + length].decode())
            at += length
    except UnicodeDecodeError:
        raise Corrupt(where, at, "a name is not UTF-8") from None
    if at + properties_bytes > len(data):
        raise Corrupt(where, len(data), "the message ends early")
    topic, exchange, client_id, protocol = texts
    source = Source(topic, exchange, client_id, protocol, encoding)
    properties, payload = data[at : at + properties_bytes], data[at + properties_bytes :]
    message = Message(source, payload, timestamp_us, properties, priority, expires_us)
    return Envelope(message, flags & 3, bool(flags & _RETAIN))


@final
class Mark:
    """How a message in a session's log is to be delivered."""

    __slots__ = ("assurance", "identifiers", "properties", "retain")

    def __init__(self, assurance: int, retain: bool, identifiers: tuple[int, ...], properties: bytes) -> None:
        self.assurance = assurance
        self.retain = retain
        self.identifiers = identifiers
        self.properties = properties
        """The message's own, as its publisher's protocol sent them."""


def marked(message: Message, assurance: int, retain: bool, identifiers: tuple[int, ...] = ()) -> Message:
    """The message as it goes into a session's log; of more identifiers than 255 the rest is left out."""
    flags = assurance | (_RETAIN if retain else 0)
    if not identifiers:
        mark = bytes((flags,))
    else:
        identifiers = identifiers[:MAX_IDENTIFIERS]
        count = len(identifiers)
        head = bytes((flags | count << 3,)) if count < _MANY else bytes((flags | _MANY << 3, count))
        mark = head + struct.pack(f">{count}I", *identifiers)
    return Message(
        message.source,
        message.payload,
        message.timestamp_us,
        mark + message.properties,
        message.priority,
        message.expires_us,
    )


def read_mark(message: Message) -> Mark:
    """What `marked` put in front. Raises Corrupt."""
    data = message.properties
    if not data:
        raise Corrupt("a session's log", 0, "a message has no mark")
    count, at = data[0] >> 3, 1
    if count == _MANY and len(data) > 1:
        count, at = data[1], 2
    end = at + 4 * count
    if end > len(data):
        raise Corrupt("a session's log", at, "a message's mark ends early")
    identifiers = struct.unpack_from(f">{count}I", data, at) if count else ()
    return Mark(data[0] & 3, bool(data[0] & _RETAIN), identifiers, data[end:])
