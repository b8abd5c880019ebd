"""Frames of the stream protocol to events, and answers to bytes. No broker, no sockets: see connection.py.

+--------+--------+---------+----------------------------+--------------------------------+
| size   | key    | version | correlation id             | fields, as frames.py lists     |
| 4 bytes| 2 bytes| 2 bytes | 4 bytes, of most commands  | them; numbers are big-endian   |
+--------+--------+---------+----------------------------+--------------------------------+
"""

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, final

from headrace.errors import ProtocolError
from headrace.protocols.streams.frames import (
    BYTES,
    CORRELATED,
    FIELDS,
    FRAME_TOO_LARGE,
    LOGIN_FRAME_BYTES,
    OFFSET,
    OK,
    POSITION,
    PRECONDITION_FAILED,
    PUBLISH,
    PUBLISH_CONFIRM,
    PUBLISH_ERROR,
    RANGES,
    RESPONSE,
    TABLE,
    TEXT,
    TEXTS,
    TIMESTAMP,
    U8,
    U16,
    U32,
    U64,
    UNKNOWN_FRAME,
    VERSIONS,
)

_SIZE: Final = 4
_HEAD: Final = struct.Struct(">HH")
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_I64: Final = struct.Struct(">q")
_ENTRY: Final = struct.Struct(">QI")
_BATCH: Final = struct.Struct(">BHII")
_RANGE: Final = struct.Struct(">HHH")
_NULL_16: Final = 0xFFFF
_NULL_32: Final = 0xFFFFFFFF
_BATCH_BIT: Final = 0x80000000
_BATCH_BYTES: Final = _BATCH.size

NO_COMPRESSION: Final = 0
GZIP: Final = 1
MAX_BATCH_BYTES: Final = 4 << 20
"""The largest batch of an entry, unpacked."""


@final
class Position:
    """A position in a stream as a client names it."""

    __slots__ = ("kind", "value")

    def __init__(self, kind: int, value: int = 0) -> None:
        self.kind = kind
        self.value = value
        """The offset, or the time in milliseconds."""


Value = int | str | bytes | list[str] | dict[str, str] | Position | list[tuple[int, int, int]]


@final
class Request:
    """A command of a client, or its answer to one of ours. Fields that are missing have their empty value."""

    __slots__ = ("correlation", "key", "values", "version")

    def __init__(self, key: int, version: int, correlation: int, values: list[Value]) -> None:
        self.key = key
        self.version = version
        self.correlation = correlation
        self.values = values

    def number(self, at: int) -> int:
        value = self.values[at]
        assert isinstance(value, int)
        return value

    def text(self, at: int) -> str:
        value = self.values[at]
        assert isinstance(value, str)
        return value

    def texts(self, at: int) -> list[str]:
        value = self.values[at]
        assert isinstance(value, list)
        return [text for text in value if isinstance(text, str)]

    def raw(self, at: int) -> bytes:
        value = self.values[at]
        assert isinstance(value, bytes)
        return value

    def table(self, at: int) -> dict[str, str]:
        value = self.values[at]
        assert isinstance(value, dict)
        return value

    def position(self, at: int) -> Position:
        value = self.values[at]
        assert isinstance(value, Position)
        return value


@final
class Publish:
    """The entries of one publish: each has a publishing id, and is a message or a batch of messages."""

    __slots__ = ("counts", "filters", "ids", "messages", "publisher", "refused")

    def __init__(self, publisher: int) -> None:
        self.publisher = publisher
        self.ids: list[int] = []
        self.messages: list[bytes] = []
        self.counts: list[int] | None = None
        """The number of messages of each entry; None if each has one."""
        self.filters: list[str] | None = None
        """The filter value of each entry, "" for none; None if no entry has one."""
        self.refused: list[int] = []
        """Publishing ids of batches that cannot be unpacked."""


Event = Request | Publish


@final
class Decoder:
    """Cuts the bytes of a client into events. Raises ProtocolError for bytes that are none."""

    __slots__ = ("_held", "_missing", "held_bytes", "max_frame_bytes")

    def __init__(self) -> None:
        self.max_frame_bytes = LOGIN_FRAME_BYTES
        self.held_bytes = 0
        """The size of an incomplete frame."""
        self._held: list[bytes] = []
        self._missing = 0
        """The bytes that the incomplete frame lacks at least."""

    def feed(self, data: bytes) -> list[Event]:
        if self._held:
            self._held.append(data)
            self.held_bytes += len(data)
            self._missing -= len(data)
            if self._missing > 0:
                return []
            data = b"".join(self._held)
            self.clear()
        events: list[Event] = []
        at, size = 0, len(data)
        while size - at >= _SIZE:
            length: int = _U32.unpack_from(data, at)[0]
            if length > self.max_frame_bytes:
                raise ProtocolError(
                    FRAME_TOO_LARGE,
                    f"a frame of {length} bytes is larger than {self.max_frame_bytes}, which was agreed",
                )
            end = at + _SIZE + length
            if end > size:
                self._hold(data[at:], end - size)
                return events
            events.append(_decode(data, at + _SIZE, end))
            at = end
        if at < size:
            self._hold(data[at:], _SIZE - (size - at))
        return events

    def clear(self) -> None:
        """Forget the incomplete frame."""
        self._held = []
        self.held_bytes = self._missing = 0

    def _hold(self, data: bytes, missing: int) -> None:
        self._held = [data]
        self.held_bytes = len(data)
        self._missing = missing


def _decode(data: bytes, at: int, end: int) -> Event:
    try:
        key, version = _HEAD.unpack_from(data, at)
        if at + _HEAD.size > end:
            raise _cut(key)
        if key == PUBLISH:
            return _decode_publish(data, at + _HEAD.size, end, version)
        return _decode_request(data, at + _HEAD.size, end, key, version)
    except struct.error:
        raise ProtocolError(UNKNOWN_FRAME, "a frame ends before its fields do") from None


def _cut(key: int) -> ProtocolError:
    return ProtocolError(UNKNOWN_FRAME, f"a frame with the key {key:#06x} ends before its fields do")


def _check_version(key: int, version: int) -> None:
    first, last = VERSIONS.get(key & ~RESPONSE, (1, 1))
    if not first <= version <= last:
        raise ProtocolError(UNKNOWN_FRAME, f"the command {key:#06x} has no version {version} here")


def _decode_request(data: bytes, at: int, end: int, key: int, version: int) -> Request:
    kinds = FIELDS.get(key)
    if kinds is None:
        raise ProtocolError(UNKNOWN_FRAME, f"the command {key:#06x} is not known here")
    _check_version(key, version)
    reader = _Reader(data, at, end, key)
    correlation = 0
    values: list[Value] = []
    for kind in kinds:
        if kind == CORRELATED:
            correlation = reader.number(_U32)
        elif reader.at == end and kind in _EMPTY:
            values.append(_empty(kind))
        else:
            values.append(reader.value(kind))
    return Request(key, version, correlation, values)


_EMPTY: Final = (TABLE, RANGES, POSITION)
"""Kinds of fields that older or failing clients leave out."""


def _empty(kind: str) -> Value:
    if kind == TABLE:
        return {}
    return Position(0) if kind == POSITION else []


@final
class _Reader:
    """Reads the fields of one frame. Raises ProtocolError behind its end."""

    __slots__ = ("_data", "_end", "_key", "at")

    def __init__(self, data: bytes, at: int, end: int, key: int) -> None:
        self._data = data
        self.at = at
        self._end = end
        self._key = key

    def value(self, kind: str) -> Value:
        if kind == TEXT:
            return self.text()
        if kind == U8:
            return self.bytes(1)[0]
        if kind == U16:
            return self.number(_U16)
        if kind == U32:
            return self.number(_U32)
        if kind == U64:
            return self.number(_U64)
        if kind == BYTES:
            size = self.number(_U32)
            return b"" if size == _NULL_32 else self.bytes(size)
        if kind == TEXTS:
            return [self.text() for _ in range(self._count(2))]
        if kind == TABLE:
            return {self.text(): self.text() for _ in range(self._count(4))}
        return self._position() if kind == POSITION else self._ranges()

    def number(self, form: struct.Struct) -> int:
        number: int = form.unpack_from(self._data, self._step(form.size))[0]
        return number

    def text(self) -> str:
        size = self.number(_U16)
        if size == _NULL_16:
            return ""
        try:
            return self.bytes(size).decode()
        except UnicodeDecodeError as error:
            raise ProtocolError(UNKNOWN_FRAME, f"a string in a frame {self._key:#06x} is no UTF-8") from error

    def bytes(self, size: int) -> bytes:
        at = self._step(size)
        return self._data[at : at + size]

    def _step(self, size: int) -> int:
        """Step over some bytes; returns where they start."""
        at = self.at
        self.at = at + size
        if self.at > self._end:
            raise _cut(self._key)
        return at

    def _count(self, least_bytes: int) -> int:
        """The number of items of an array, each of so many bytes at least."""
        count = self.number(_U32)
        if count == _NULL_32:
            return 0
        if count * least_bytes > self._end - self.at:
            raise _cut(self._key)
        return count

    def _position(self) -> Position:
        kind = self.number(_U16)
        if kind == OFFSET:
            return Position(kind, self.number(_U64))
        return Position(kind, self.number(_I64) if kind == TIMESTAMP else 0)

    def _ranges(self) -> list[tuple[int, int, int]]:
        return [(self.number(_U16), self.number(_U16), self.number(_U16)) for _ in range(self._count(6))]


# -- publishes ---------------------------------------------------------------------------------------------------------


def _decode_publish(data: bytes, at: int, end: int, version: int) -> Publish:
    """Decode a publish.

    An entry is its publishing id (8 bytes), in version 2 a filter value (a string), then a message behind its size
    (4 bytes, the highest bit 0) or a batch of messages (the highest bit 1).
    """
    _check_version(PUBLISH, version)
    if end - at < 5:
        raise _cut(PUBLISH)
    publish = Publish(data[at])
    count: int = _U32.unpack_from(data, at + 1)[0]
    at += 5
    if count * _ENTRY.size > end - at:
        raise _cut(PUBLISH)
    if version > 1:
        _decode_filtered(publish, data, at, end, count)
        return publish
    ids, messages = publish.ids, publish.messages
    for _ in range(count):
        number, size = _ENTRY.unpack_from(data, at)
        at += 12
        if size & _BATCH_BIT:
            at = _decode_batch(publish, number, data, at - 4, end)
            continue
        start = at
        at += size
        if at > end:
            raise _cut(PUBLISH)
        ids.append(number)
        messages.append(data[start:at])
        if publish.counts is not None:
            publish.counts.append(1)
    if at != end:
        raise _cut(PUBLISH)
    return publish


def _decode_filtered(publish: Publish, data: bytes, at: int, end: int, count: int) -> None:
    """Decode the entries of version 2."""
    reader = _Reader(data, at, end, PUBLISH)
    filters = publish.filters = []
    for _ in range(count):
        number = reader.number(_U64)
        value = reader.text()
        before = len(publish.ids)
        size = reader.number(_U32)
        if size & _BATCH_BIT:
            reader.at = _decode_batch(publish, number, data, reader.at - 4, end)
        else:
            publish.messages.append(reader.bytes(size))
            publish.ids.append(number)
            if publish.counts is not None:
                publish.counts.append(1)
        if len(publish.ids) > before:
            filters.append(value)
    if reader.at != end:
        raise _cut(PUBLISH)


def _decode_batch(publish: Publish, number: int, data: bytes, at: int, end: int) -> int:
    """Decode a batch of messages; returns its end.

    It is a byte with the highest bit set, then three bits for the compression; the number of messages (2 bytes), their
    size unpacked and packed (4 bytes each), and the messages, each behind its size.
    """
    if end - at < _BATCH_BYTES:
        raise _cut(PUBLISH)
    kind, count, unpacked_bytes, packed_bytes = _BATCH.unpack_from(data, at)
    at += _BATCH_BYTES
    stop: int = at + packed_bytes
    if stop > end:
        raise _cut(PUBLISH)
    compression = kind >> 4 & 0x07
    messages = None
    if unpacked_bytes <= MAX_BATCH_BYTES and count:
        packed = data[at:stop]
        unpacked = packed if compression == NO_COMPRESSION else None
        if compression == GZIP:
            unpacked = _gunzip(packed, unpacked_bytes)
        messages = None if unpacked is None else _cut_batch(unpacked, count)
    if messages is None:
        publish.refused.append(number)
        return stop
    if publish.counts is None:
        publish.counts = [1] * len(publish.ids)
    publish.ids.append(number)
    publish.counts.append(count)
    publish.messages += messages
    return stop


def _gunzip(packed: bytes, size: int) -> bytes | None:
    """The unpacked bytes; None if they are not that many, or no gzip."""
    unpacking = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        unpacked = unpacking.decompress(packed, size + 1)
    except zlib.error:
        return None
    return unpacked if len(unpacked) == size and unpacking.eof else None


def _cut_batch(unpacked: bytes, count: int) -> list[bytes] | None:
    """The messages of a batch; None if it has other bytes."""
    messages: list[bytes] = []
    at, end = 0, len(unpacked)
    for _ in range(count):
        if end - at < 4:
            return None
        size: int = _U32.unpack_from(unpacked, at)[0]
        start = at + 4
        at = start + size
        if at > end:
            return None
        messages.append(unpacked[start:at])
    return messages if at == end else None


# -- answers -----------------------------------------------------------------------------------------------------------


def frame(key: int, body: bytes, version: int = 1) -> bytes:
    """A frame with these fields."""
    return b"".join((_U32.pack(len(body) + 4), _HEAD.pack(key, version), body))


def respond(request: Request, code: int = OK, body: bytes = b"") -> bytes:
    """The response to a request."""
    return frame(request.key | RESPONSE, struct.pack(">IH", request.correlation, code) + body)


def text(value: str) -> bytes:
    raw = value.encode()
    return _U16.pack(len(raw)) + raw


def texts(values: Iterable[str]) -> bytes:
    encoded = [text(value) for value in values]
    return _U32.pack(len(encoded)) + b"".join(encoded)


def table(values: Mapping[str, str]) -> bytes:
    return _U32.pack(len(values)) + b"".join([text(key) + text(value) for key, value in values.items()])


def ranges(values: Mapping[int, tuple[int, int]]) -> bytes:
    """Commands with their first and last versions."""
    encoded = [_RANGE.pack(key, first, last) for key, (first, last) in values.items()]
    return _U32.pack(len(encoded)) + b"".join(encoded)


def encode_confirm(publisher: int, ids: Sequence[int]) -> bytes:
    """The confirm of messages by their publishing ids."""
    count = len(ids)
    return struct.pack(f">IHHBI{count}Q", 9 + 8 * count, PUBLISH_CONFIRM, 1, publisher, count, *ids)


def encode_errors(publisher: int, errors: Sequence[tuple[int, int]]) -> bytes:
    """Publishing ids that were refused, each with its code."""
    body = b"".join([struct.pack(">QH", number, code) for number, code in errors])
    return frame(PUBLISH_ERROR, struct.pack(">BI", publisher, len(errors)) + body)


UNREADABLE_BATCH: Final = PRECONDITION_FAILED
"""The code for batches that cannot be unpacked."""
