"""The data types of MQTT: integers, strings, binary data, lengths. No packets."""

import struct
from typing import Final, final

from headrace.core.routing.topics import check_filter, check_topic
from headrace.errors import ProtocolError, Refused
from headrace.protocols.mqtt.reasons import MALFORMED_PACKET, PROTOCOL_ERROR, TOPIC_FILTER_INVALID, TOPIC_NAME_INVALID

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
MAX_TEXT_BYTES: Final = 65_535
_SHARED: Final = "$share/"


def malformed(message: str) -> ProtocolError:
    return ProtocolError(MALFORMED_PACKET, message)


@final
class Reader:
    """Reads one value after the other from a part of a packet. Raises ProtocolError for bytes that do not fit."""

    __slots__ = ("_data", "_end", "_what", "at")

    def __init__(self, data: bytes, at: int, end: int, what: str) -> None:
        self._data = data
        self.at = at
        self._end = end
        self._what = what

    def has_more(self) -> bool:
        return self.at < self._end

    def octet(self) -> int:
        return self._data[self._step(1)]

    def short(self) -> int:
        value: int = _U16.unpack_from(self._data, self._step(2))[0]
        return value

    def long(self) -> int:
        value: int = _U32.unpack_from(self._data, self._step(4))[0]
        return value

    def length(self) -> int:
        """A variable byte integer, in as few bytes as it needs."""
        value = 0
        for shift in (0, 7, 14, 21):
            octet = self.octet()
            value |= (octet & 0x7F) << shift
            if octet < 0x80:
                if not octet and shift:
                    raise malformed(f"{self._what}: a length is written in more bytes than it needs")
                return value
        raise malformed(f"{self._what}: a length has more than four bytes")

    def binary(self) -> bytes:
        return self.raw(self.short())

    def raw(self, size: int) -> bytes:
        at = self._step(size)
        return self._data[at : at + size]

    def text(self) -> str:
        return decode_text(self.binary(), self._what)

    def packet_id(self) -> int:
        value = self.short()
        if not value:
            raise ProtocolError(PROTOCOL_ERROR, f"{self._what}: the packet identifier is 0")
        return value

    def part(self, size: int) -> "Reader":
        """A reader for the next `size` bytes; this one goes on behind them."""
        at = self._step(size)
        return Reader(self._data, at, at + size, self._what)

    def check_end(self) -> None:
        if self.at != self._end:
            raise malformed(f"{self._what}: {self._end - self.at} bytes are left behind its last field")

    def _step(self, size: int) -> int:
        at = self.at
        if at + size > self._end:
            raise malformed(f"{self._what}: {size} bytes are due where {self._end - at} are left")
        self.at = at + size
        return at


def decode_text(raw: bytes, what: str) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise malformed(f"{what}: a string is not UTF-8: {error.reason} at byte {error.start}") from error
    if "\0" in text:
        raise malformed(f"{what}: a string has U+0000 in it")
    return text


def require_topic(name: str) -> None:
    """Raises ProtocolError for an invalid topic."""
    try:
        check_topic(name)
    except Refused as error:
        raise ProtocolError(TOPIC_NAME_INVALID, str(error)) from error


def require_filter(pattern: str) -> None:
    """Raises ProtocolError for an invalid topic filter, shared or not."""
    part = pattern
    if pattern.startswith(_SHARED):
        name, slash, part = pattern[len(_SHARED) :].partition("/")
        if not name or not slash or "+" in name or "#" in name:  # MQTT 5 [MQTT-4.8.2-1], [MQTT-4.8.2-2]
            raise ProtocolError(
                TOPIC_FILTER_INVALID,
                f"topic filter {pattern[:80]!r} is no shared subscription: $share/<name>/<topic filter> is one",
            )
    try:
        check_filter(part)
    except Refused as error:
        raise ProtocolError(TOPIC_FILTER_INVALID, str(error)) from error


def encode_length(value: int) -> bytes:
    """A variable byte integer."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x20_0000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21))


def encode_binary(raw: bytes) -> bytes:
    return _U16.pack(len(raw)) + raw


def encode_text(text: str) -> bytes:
    """A string; characters that MQTT cannot carry are replaced, and a too long one is cut."""
    raw = text.replace("\0", "\ufffd").encode(errors="replace")
    if len(raw) > MAX_TEXT_BYTES:
        raw = raw[:MAX_TEXT_BYTES].decode(errors="ignore").encode()
    return _U16.pack(len(raw)) + raw
