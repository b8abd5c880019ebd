"""A client that writes and reads the bytes of MQTT itself: right ones and wrong ones, whatever a test needs."""

import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 1, 2, 3, 4, 5, 6, 7
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = 8, 9, 10, 11, 12, 13, 14, 15

PING = b"\xc0\x00"
GOODBYE = b"\xe0\x00"
_SECONDS = 30.0
_CUT = ConnectionError("the server closed the connection")

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


class Client:
    """One connection."""

    def __init__(self, port: int, version: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""
        self._kept: list[Received] = []
        self._number = 0
        self.version = version
        self.port = port
        self.connack: Received | None = None

    # -- bytes -------------------------------------------------------------------------------------------------------

    def send(self, *data: bytes) -> None:
        self._socket.sendall(b"".join(data))

    def receive(self) -> Received:
        """The next packet. Raises ConnectionError when the server has closed the connection."""
        if self._kept:
            return self._kept.pop(0)
        return self._receive()

    def _receive(self) -> Received:
        first = self._take(1)[0]
        size = shift = 0
        while True:
            digit = self._take(1)[0]
            size |= (digit & 127) << shift
            shift += 7
            if digit < 128:
                break
        return Received(first >> 4, first & 15, self._take(size), self.version)

    def _take(self, size: int) -> bytes:
        while len(self._data) < size:
            part = self._socket.recv(65536)
            if not part:
                raise _CUT
            self._data += part
        part, self._data = self._data[:size], self._data[size:]
        return part

    def cut(self) -> None:
        """End the connection as a broken network would."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def close(self) -> None:
        self._socket.close()

    # -- what tests say ----------------------------------------------------------------------------------------------

    def expect(self, kind: int) -> Received:
        """The next packet, which is of this kind."""
        received = self.receive()
        assert received.kind == kind, f"expected packet type {kind}, got {received}"
        return received

    def expect_end(self) -> list[Received]:
        """What comes until the server ends the connection, which it does."""
        received: list[Received] = []
        try:
            while True:
                received.append(self.receive())
        except ConnectionError:
            return received

    def expect_nothing(self) -> None:
        """Nothing is on its way: a ping is answered, and nothing came before that."""
        self.send(PING)
        received = self.receive()
        assert received.kind == PINGRESP, f"expected nothing, got {received}"

    def number(self) -> int:
        """A packet identifier that this client has not used."""
        self._number += 1
        return self._number

    def subscribe(self, *filters: tuple[str, int], said: Iterable[Property] = ()) -> Received:
        """Subscribe; the SUBACK."""
        number = self.number()
        self.send(subscribe(self.version, number, *filters, said=said))
        suback = self.expect(SUBACK)
        assert suback.number == number
        return suback

    def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, retain: bool = False, said: Iterable[Property] = ()
    ) -> Received | None:
        """Publish, all the way to the end of the QoS; what ended it."""
        number = self.number() if qos else 0
        self.send(publish(self.version, topic, payload, qos=qos, number=number, retain=retain, said=said))
        if qos == 1:
            return self.expect(PUBACK)
        if qos == 2:
            self.expect(PUBREC)
            self.send(answer(PUBREL, number))
            return self.expect(PUBCOMP)
        self.expect_nothing()  # it was taken when the ping behind it is answered
        return None

    def message(self) -> Received:
        """The next message, acknowledged all the way to the end of its QoS."""
        received = self.expect(PUBLISH)
        if received.qos == 1:
            self.send(answer(PUBACK, received.number))
        elif received.qos == 2:
            self.send(answer(PUBREC, received.number))
            while (between := self._receive()).kind != PUBREL:
                self._kept.append(between)  # what else is on its way is for later
            assert between.number == received.number
            self.send(answer(PUBCOMP, received.number))
        return received
