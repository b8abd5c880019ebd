"""What is kept of a message besides its payload: the bytes that OpenData-Queue calls metadata and leaves to the queue.

    version u8 = 1 | flags u8 | encoding u8 | priority u8 | payload length u32 | timestamp i64
    [visible at i64] [expires i64] [not before i64]                 with flags 1, 2, 4
    topic Utf8 | exchange Utf8 | client id Utf8 | protocol Utf8 | properties: the rest
    flag 8: the payload is shared with other logs

Little-endian; times are microseconds since 1970 UTC. "Visible at" is only in the list of available messages: from then
on a message that was given back may be claimed again.
"""

import struct
from typing import Final, final

from headrace.errors import Corrupt
from headrace.model import Message, Source
from headrace.storage.objects.encodings import Reader, encode_utf8

VERSION: Final = 1
VISIBLE: Final = 1
EXPIRES: Final = 2
NOT_BEFORE: Final = 4
SHARED: Final = 8
KNOWN_FLAGS: Final = VISIBLE | EXPIRES | NOT_BEFORE | SHARED

HEAD: Final = struct.Struct("<BBBBIq")
TIME: Final = struct.Struct("<q")
_MAX_KNOWN: Final = 10_000


@final
class MetadataEncoder:
    """Turns messages into metadata; what they have in common with others from their source is encoded once."""

    def __init__(self) -> None:
        self._known: dict[Source, bytes] = {}

    def encode(self, message: Message, shared: bool = False) -> bytes:
        """Raises Refused when a text of its source is too long."""
        source = message.source
        about = self._known.get(source)
        if about is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            about = self._known[source] = _encode_source(source)
        flags = SHARED if shared else 0
        times = b""
        if message.expires_us:
            flags |= EXPIRES
            times = TIME.pack(message.expires_us)
        if message.not_before_us:
            flags |= NOT_BEFORE
            times += TIME.pack(message.not_before_us)
        size = len(message.payload)
        head = HEAD.pack(VERSION, flags, source.encoding, message.priority, size, message.timestamp_us)
        return head + times + about + message.properties


@final
class MetadataDecoder:
    """Turns metadata back; messages from one source share it."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str, str, int], Source] = {}

    def decode(self, metadata: bytes, payload: bytes, where: str) -> Message:
        """Raises Corrupt when the metadata is damaged or belongs to another payload."""
        _, flags, encoding, priority, size, time_us = head_of(metadata, where)
        if size != len(payload):
            raise Corrupt(where, 4, f"a payload of {size} bytes expected, {len(payload)} were found")
        reader = Reader(metadata, where)
        reader.at = HEAD.size + (8 if flags & VISIBLE else 0)
        expires_us = reader.i64() if flags & EXPIRES else 0
        not_before_us = reader.i64() if flags & NOT_BEFORE else 0
        names = (reader.utf8(), reader.utf8(), reader.utf8(), reader.utf8(), encoding)
        source = self._known.get(names)
        if source is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            source = self._known[names] = Source(*names)
        return Message(source, payload, time_us, metadata[reader.at :], priority, expires_us, not_before_us)


def payload_length(metadata: bytes, where: str) -> int:
    """Raises Corrupt."""
    return head_of(metadata, where)[4]


def timestamp_us(metadata: bytes, where: str) -> int:
    """Raises Corrupt."""
    return head_of(metadata, where)[5]


def is_shared(metadata: bytes, where: str) -> bool:
    """Whether other logs may have the same payload. Raises Corrupt."""
    return bool(head_of(metadata, where)[1] & SHARED)


def with_visible_at(metadata: bytes, time_us: int) -> bytes:
    """The metadata of a message that was given back: it may be claimed again from then on."""
    flags = bytes((VERSION, metadata[1] | VISIBLE))
    return flags + metadata[2 : HEAD.size] + TIME.pack(time_us) + metadata[HEAD.size :]


def visible_at(metadata: bytes, where: str) -> tuple[bytes, int | None]:
    """The metadata as it is in the log, and when a message that was given back may be claimed again. Raises Corrupt."""
    flags = head_of(metadata, where)[1]
    if not flags & VISIBLE:
        return metadata, None
    end = HEAD.size + TIME.size
    if len(metadata) < end:
        raise Corrupt(where, HEAD.size, "the metadata ends too early")
    (time_us,) = TIME.unpack_from(metadata, HEAD.size)
    plain = bytes((VERSION, flags & ~VISIBLE)) + metadata[2 : HEAD.size] + metadata[end:]
    return plain, time_us


def _encode_source(source: Source) -> bytes:
    names = (source.topic, source.exchange, source.client_id, source.protocol)
    return b"".join([encode_utf8(name) for name in names])


def head_of(metadata: bytes, where: str) -> tuple[int, int, int, int, int, int]:
    if len(metadata) < HEAD.size:
        raise Corrupt(where, 0, f"metadata has at least {HEAD.size} bytes, not {len(metadata)}")
    head: tuple[int, int, int, int, int, int] = HEAD.unpack_from(metadata)
    if head[0] != VERSION:
        raise Corrupt(where, 0, f"version {head[0]} of the metadata is not known; this release reads version {VERSION}")
    if head[1] & ~KNOWN_FLAGS:
        raise Corrupt(where, 1, f"the metadata has unknown flags {head[1]:02x}")
    return head
