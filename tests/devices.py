"""MQTT clients without a network: whole packets in and out of a connection, over a broker whose time is the test's."""

from collections.abc import Callable
from typing import Any, cast

from headrace.clock import ManualClock
from headrace.config.settings import MqttSettings
from headrace.net.connection import Wire
from headrace.protocols.mqtt.connection import Connection
from headrace.protocols.mqtt.server import Server
from headrace.storage.api import Engine
from tests.endpoints import access_to
from tests.house import House

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK = 2, 3, 4, 5, 6, 7, 9, 11
PINGRESP, DISCONNECT = 13, 14

# How the value of each property is written: so many bytes, s text, b binary, v variable length, p a pair of texts.
_FORMS: dict[int, int | str] = {
    0x01: 1, 0x02: 4, 0x03: "s", 0x08: "s", 0x09: "b", 0x0B: "v", 0x11: 4, 0x12: "s", 0x13: 2, 0x15: "s", 0x16: "b",
    0x17: 1, 0x18: 4, 0x19: 1, 0x1A: "s", 0x1C: "s", 0x1F: "s", 0x21: 2, 0x22: 2, 0x23: 2, 0x24: 1, 0x25: 1, 0x26: "p",
    0x27: 4, 0x28: 1, 0x29: 1, 0x2A: 1,
}  # fmt: skip


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return len(raw).to_bytes(2) + raw


def varint(number: int) -> bytes:
    out = bytearray()
    while True:
        number, low = number >> 7, number & 127
        out.append(low | (128 if number else 0))
        if not number:
            return bytes(out)


def packet(head: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes((head,)) + varint(len(body)) + body


def properties(said: dict[int, Any] | None) -> bytes:
    """A property list with its length; user properties are a list of pairs."""
    out = bytearray()
    for number, value in (said or {}).items():
        form = _FORMS[number]
        for one in value if form == "p" or isinstance(value, list) else [value]:
            out.append(number)
            if form == "p":
                out += text(one[0]) + text(one[1])
            elif form in ("s", "b"):
                out += text(one)
            elif form == "v":
                out += varint(one)
            else:
                out += int(one).to_bytes(cast("int", form))
    return varint(len(out)) + bytes(out)


class Packet:
    """One packet of the server, taken apart."""

    def __init__(self, head: int, body: bytes, version: int) -> None:
        self.kind = head >> 4
        self.qos, self.retain, self.dup = head >> 1 & 3, bool(head & 1), bool(head & 8)
        self.said: dict[int, Any] = {}
        self.user: list[tuple[str, str]] = []
        self.number = self.reason = 0
        self.topic, self.payload, self.rest = "", b"", body
        if self.kind == PUBLISH:
            size = int.from_bytes(body[:2])
            self.topic, self.rest = body[2 : 2 + size].decode(), body[2 + size :]
            if self.qos:
                self.number, self.rest = int.from_bytes(self.rest[:2]), self.rest[2:]
            if version == 5:
                self._read()
            self.payload = self.rest
        elif self.kind == CONNACK:
            self.present, self.reason, self.rest = bool(body[0]), body[1], body[2:]
            if version == 5:
                self._read()
        elif self.kind == DISCONNECT:
            self.reason, self.rest = body[0] if body else 0, body[1:]
            if self.rest:
                self._read()
        elif self.kind != PINGRESP:
            self.number, self.rest = int.from_bytes(body[:2]), body[2:]
            if self.kind in (SUBACK, UNSUBACK):
                if version == 5:
                    self._read()
                self.reasons = list(self.rest)
            elif self.rest:
                self.reason, self.rest = self.rest[0], self.rest[1:]
                if self.rest:
                    self._read()

    def _read(self) -> None:
        size, at = read_varint(self.rest, 0)
        end = at + size
        while at < end:
            number, at = self.rest[at], at + 1
            form = _FORMS[number]
            if form == "p":
                name, at = self._text(at)
                value, at = self._text(at)
                self.user.append((name.decode(), value.decode()))
            elif form in ("s", "b"):
                raw, at = self._text(at)
                self.said[number] = raw.decode() if form == "s" else raw
            elif form == "v":
                identifier, at = read_varint(self.rest, at)
                self.said.setdefault(number, []).append(identifier)
            else:
                width = cast("int", form)
                self.said[number] = int.from_bytes(self.rest[at : at + width])
                at += width
        self.rest = self.rest[end:]

    def _text(self, at: int) -> tuple[bytes, int]:
        end = at + 2 + int.from_bytes(self.rest[at : at + 2])
        return self.rest[at + 2 : end], end

    @property
    def extra(self) -> dict[str, str]:
        return dict(self.user)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, at


class FakeWire:
    """The wire of a connection, without a socket."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.before: list[Callable[[], None]] = []
        self.is_closed = self.is_paused = False
        self.watched = 0.0
        self.peer = self.address = "127.0.0.1"
        self.is_loopback = True
        self.certificate_name = ""

    def send(self, data: bytes) -> None:
        if not self.is_closed:
            self.sent.append(data)

    def before_flush(self, call: Callable[[], None]) -> None:
        self.before.append(call)

    def watch(self, limit_seconds: float, on_silence: Callable[[], None]) -> None:
        self.watched = limit_seconds

    def pause_reading(self, why: int) -> None:
        self.is_paused = True

    def resume_reading(self, why: int) -> None:
        self.is_paused = False

    def pause_for(self, seconds: float) -> None:
        self.is_paused = True

    def close(self, after_seconds: float = 0.0) -> None:
        self.flush()
        self.is_closed = True

    def guarded(self, call: Callable[[], None]) -> None:
        call()

    def flush(self) -> None:
        while self.before:
            self.before.pop(0)()


class Field:
    """A broker that devices connect to."""

    def __init__(
        self, engine: Engine | None = None, clock: ManualClock | None = None, limits: MqttSettings | None = None
    ) -> None:
        self.house = House(engine, clock)
        self.broker = self.house.broker
        self.hosts, self.access = access_to(self.broker, clock=self.house.clock)
        self.limits = limits
        self.server = Server(self.hosts, self.access, self.house.clock, "1.0", limits)
        self.devices: list[Device] = []

    def device(self, client_id: str = "c", version: int = 5, **options: Any) -> "Device":
        """A device that is connected; see Device.connect."""
        device = Device(self, version)
        device.connect(client_id, **options)
        return device

    def run(self) -> None:
        self.house.run()
        for device in self.devices:
            device.line.flush()

    def advance(self, seconds: float) -> None:
        self.house.advance(seconds)
        self.run()

    def restart(self) -> "Field":
        """The same after the broker was killed."""
        return Field(self.house.engine, self.house.clock, self.limits)


class Device:
    """One client."""

    def __init__(self, field: Field, version: int = 5) -> None:
        self.field = field
        self.version = version
        self.line = FakeWire()
        self.connection = Connection(field.server)
        self.connection.opened(cast("Wire", self.line))
        field.devices.append(self)
        self._numbers = 0
        self.connack: Packet | None = None

    def send(self, data: bytes) -> None:
        """Bytes as they are; then everything happens that follows from them."""
        if not self.line.is_closed:
            self.connection.feed(data)
        self.field.run()

    def take(self) -> list[Packet]:
        """Packets since the last look."""
        data, self.line.sent = b"".join(self.line.sent), []
        packets: list[Packet] = []
        at = 0
        while at < len(data):
            size, start = read_varint(data, at + 1)
            packets.append(Packet(data[at], data[start : start + size], self.version))
            at = start + size
        return packets

    def take_one(self, kind: int) -> Packet:
        [found] = [one for one in self.take() if one.kind == kind]
        return found

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def connect(
        self,
        client_id: str = "c",
        clean: bool = True,
        keep_alive: int = 0,
        will: tuple[Any, ...] | None = None,
        user: str | None = None,
        password: bytes | None = None,
        said: dict[int, Any] | None = None,
    ) -> None:
        """`will` is topic, payload, QoS, retain, properties."""
        flags, tail = 2 if clean else 0, text(client_id)
        if will is not None:
            topic, payload, qos, retain, about = will
            flags |= 4 | qos << 3 | retain << 5
            tail += (properties(about) if self.version == 5 else b"") + text(topic) + text(payload)
        if user is not None:
            flags, tail = flags | 0x80, tail + text(user)
        if password is not None:
            flags, tail = flags | 0x40, tail + text(password)
        name = "MQIsdp" if self.version == 3 else "MQTT"
        head = text(name) + bytes((self.version, flags)) + keep_alive.to_bytes(2)
        self.send(packet(0x10, head, properties(said) if self.version == 5 else b"", tail))
        data = self.take()
        self.connack = data[0] if data else None
        self.more = data[1:]
        """Packets right behind the CONNACK."""

    def subscribe(self, *patterns: tuple[str, int] | str, said: dict[int, Any] | None = None) -> list[int]:
        """Returns the reasons; what else came is kept for `take`."""
        filters = [(one, 1) if isinstance(one, str) else one for one in patterns]
        body = b"".join(text(pattern) + bytes((options,)) for pattern, options in filters)
        self.send(packet(0x82, self.number().to_bytes(2), properties(said) if self.version == 5 else b"", body))
        before = list(self.line.sent)
        packets = self.take()
        self.line.sent = before
        [answer] = [one for one in packets if one.kind == SUBACK]
        self.suback = answer
        self._drop(SUBACK)
        return answer.reasons

    def unsubscribe(self, *patterns: str) -> list[int]:
        body = b"".join(text(pattern) for pattern in patterns)
        self.send(packet(0xA2, self.number().to_bytes(2), properties(None) if self.version == 5 else b"", body))
        return self.take_one(UNSUBACK).reasons

    def publish(
        self,
        topic: str,
        payload: bytes | str = b"x",
        qos: int = 0,
        retain: bool = False,
        number: int = 0,
        dup: bool = False,
        said: dict[int, Any] | None = None,
    ) -> int:
        """Returns the packet identifier."""
        number = number or (self.number() if qos else 0)
        raw = payload.encode() if isinstance(payload, str) else payload
        identifier = number.to_bytes(2) if qos else b""
        about = properties(said) if self.version == 5 else b""
        self.send(packet(0x30 | dup << 3 | qos << 1 | retain, text(topic), identifier, about, raw))
        return number

    def answer(self, kind: int, number: int, reason: int = 0) -> None:
        """PUBACK, PUBREC, PUBREL or PUBCOMP."""
        body = number.to_bytes(2) + (bytes((reason,)) if reason else b"")
        self.send(packet(kind << 4 | (2 if kind == PUBREL else 0), body))

    def messages(self, acknowledge: bool = True) -> list[Packet]:
        """The PUBLISH packets that came, acknowledged to the end."""
        found: list[Packet] = []
        while new := [one for one in self.take() if one.kind == PUBLISH]:
            found += new
            for one in new if acknowledge else []:
                if one.qos == 1:
                    self.answer(PUBACK, one.number)
                elif one.qos == 2:
                    self.answer(PUBREC, one.number)
                    self.answer(PUBCOMP, one.number)
        return found

    def texts(self) -> list[str]:
        """The payloads that came since the last look."""
        return [one.payload.decode() for one in self.messages()]

    def disconnect(self, reason: int = 0, said: dict[int, Any] | None = None) -> None:
        body = bytes((reason,)) + properties(said) if self.version == 5 else b""
        self.send(packet(0xE0, body))
        self.lose()

    def lose(self) -> None:
        """The connection breaks."""
        self.line.is_closed = True
        self.connection.lost()
        if self in self.field.devices:
            self.field.devices.remove(self)
        self.field.run()

    def _drop(self, kind: int) -> None:
        data, out, at = b"".join(self.line.sent), [], 0
        while at < len(data):
            size, start = read_varint(data, at + 1)
            if data[at] >> 4 != kind:
                out.append(data[at : start + size])
            at = start + size
        self.line.sent = out
