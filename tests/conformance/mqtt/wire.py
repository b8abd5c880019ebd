"""The bytes of MQTT, written and read here: right ones and wrong ones, whatever a test needs. No sockets."""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 1, 2, 3, 4, 5, 6, 7
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = 8, 9, 10, 11, 12, 13, 14, 15

PING = b"\xc0\x00"
GOODBYE = b"\xe0\x00"

# How the value of a property is written, by its identifier.
_BYTES = {0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A}
_SHORTS = {0x13, 0x21, 0x22, 0x23}
_LONGS = {0x02, 0x11, 0x18, 0x27}
_TEXTS = {0x03, 0x08, 0x12, 0x15, 0x1A, 0x1C, 0x1F}
_BINARIES = {0x09, 0x16}

Property = tuple[int, object]


def length(value: int) -> bytes:
    out = bytearray()
    while True:
        value, digit = divmod(value, 128)
        out.append(digit | (128 if value else 0))
        if not value:
            return bytes(out)


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(">H", len(raw)) + raw


def packet(first: int, body: bytes = b"") -> bytes:
    return bytes((first,)) + length(len(body)) + body


def properties(said: Iterable[Property]) -> bytes:
    """A property list with its length."""
    out = b""
    for identifier, value in said:
        out += bytes((identifier,))
        if identifier in _TEXTS or identifier in _BINARIES:
            assert isinstance(value, str | bytes)
            out += text(value)
        elif identifier == 0x26:
            assert isinstance(value, tuple)
            out += text(value[0]) + text(value[1])
        else:
            assert isinstance(value, int)
            sizes = 4 if identifier in _LONGS else 2 if identifier in _SHORTS else 1
            out += length(value) if identifier == 0x0B else value.to_bytes(sizes)
    return length(len(out)) + out


@dataclass
class Will:
    topic: str
    payload: bytes = b"will"
    qos: int = 0
    retain: bool = False
    said: tuple[Property, ...] = ()


def connect(
    version: int,
    client_id: str | bytes = "",
    *,
    clean: bool = True,
    keep_alive: int = 60,
    said: Iterable[Property] = (),
    will: Will | None = None,
    user: str | bytes | None = None,
    password: bytes | None = None,
    flags: int | None = None,
    name: bytes = b"MQTT",
) -> bytes:
    """A CONNECT; `flags` in the place of those that fit the rest."""
    bits = (2 if clean else 0) | (0x80 if user is not None else 0) | (0x40 if password is not None else 0)
    payload = text(client_id)
    if will is not None:
        bits |= 4 | will.qos << 3 | (0x20 if will.retain else 0)
        payload += (properties(will.said) if version == 5 else b"") + text(will.topic) + text(will.payload)
    if user is not None:
        payload += text(user)
    if password is not None:
        payload += text(password)
    head = text(name) + bytes((version, bits if flags is None else flags)) + struct.pack(">H", keep_alive)
    return packet(0x10, head + (properties(said) if version == 5 else b"") + payload)


def publish(
    version: int,
    topic: str | bytes,
    payload: bytes = b"",
    *,
    qos: int = 0,
    number: int = 0,
    retain: bool = False,
    dup: bool = False,
    said: Iterable[Property] = (),
) -> bytes:
    body = text(topic) + (struct.pack(">H", number) if qos else b"")
    body += properties(said) if version == 5 else b""
    return packet(0x30 | (8 if dup else 0) | qos << 1 | (1 if retain else 0), body + payload)


def subscribe(version: int, number: int, *filters: tuple[str | bytes, int], said: Iterable[Property] = ()) -> bytes:
    body = struct.pack(">H", number) + (properties(said) if version == 5 else b"")
    return packet(0x82, body + b"".join(text(name) + bytes((options,)) for name, options in filters))


def unsubscribe(version: int, number: int, *filters: str | bytes) -> bytes:
    body = struct.pack(">H", number) + (b"\0" if version == 5 else b"")
    return packet(0xA2, body + b"".join(text(name) for name in filters))


def answer(kind: int, number: int, reason: int | None = None) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""
    body = struct.pack(">H", number) + (b"" if reason is None else bytes((reason,)))
    return packet(kind << 4 | (2 if kind == PUBREL else 0), body)


@dataclass
class Received:
    """One packet from the server."""

    kind: int
    flags: int
    body: bytes
    version: int
    number: int = 0
    topic: str = ""
    payload: bytes = b""
    reasons: list[int] = field(default_factory=list)
    said: list[Property] = field(default_factory=list)

    def __post_init__(self) -> None:
        place = _Place(self.body)
        if self.kind == CONNACK:
            self.session_present = place.byte()
            self.reasons = [place.byte()]
            self._read_properties(place)
        elif self.kind == PUBLISH:
            self.topic = place.text().decode()
            self.number = place.short() if self.qos else 0
            self._read_properties(place)
            self.payload = place.rest()
        elif self.kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
            self.number = place.short()
            self.reasons = [place.byte() if place.has_more else 0]
            if place.has_more:
                self._read_properties(place)
        elif self.kind in (SUBACK, UNSUBACK):
            self.number = place.short()
            self._read_properties(place)
            self.reasons = list(place.rest())
        elif self.kind in (DISCONNECT, AUTH):
            self.reasons = [place.byte() if place.has_more else 0]
            if place.has_more:
                self._read_properties(place)
        assert not place.has_more, "bytes are left behind the packet"

    def _read_properties(self, place: "_Place") -> None:
        if self.version == 5:
            self.said = place.properties()

    @property
    def qos(self) -> int:
        return self.flags >> 1 & 3

    @property
    def retain(self) -> bool:
        return self.flags & 1 == 1

    @property
    def dup(self) -> bool:
        return self.flags & 8 == 8

    @property
    def reason(self) -> int:
        return self.reasons[0]

    def values(self, identifier: int) -> list[object]:
        """All values of one property."""
        return [value for known, value in self.said if known == identifier]


class _Place:
    """How far a packet is read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def has_more(self) -> bool:
        return self._at < len(self._data)

    def take(self, size: int) -> bytes:
        part = self._data[self._at : self._at + size]
        assert len(part) == size, "the packet is too short"
        self._at += size
        return part

    def byte(self) -> int:
        return self.take(1)[0]

    def short(self) -> int:
        return int.from_bytes(self.take(2))

    def text(self) -> bytes:
        return self.take(self.short())

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)

    def length(self) -> int:
        value = shift = 0
        while True:
            digit = self.byte()
            value |= (digit & 127) << shift
            shift += 7
            if digit < 128:
                return value

    def properties(self) -> list[Property]:
        part = _Place(self.take(self.length()))
        found: list[Property] = []
        while part.has_more:
            identifier = part.byte()
            value: object
            if identifier in _BYTES:
                value = part.byte()
            elif identifier in _SHORTS:
                value = part.short()
            elif identifier in _LONGS:
                value = int.from_bytes(part.take(4))
            elif identifier in _TEXTS:
                value = part.text().decode()
            elif identifier in _BINARIES:
                value = part.text()
            elif identifier == 0x0B:
                value = part.length()
            else:
                assert identifier == 0x26, f"there is no property {identifier:#x}"
                name = part.text().decode()
                value = (name, part.text().decode())
            found.append((identifier, value))
        return found
