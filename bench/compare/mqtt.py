"""MQTT under load: 3.1.1 with one topic at each QoS; 5 with topics and properties of each publisher's own, by wildcard.

The bytes of the protocol are few enough to be here.
"""

import os
import struct
from array import array
from typing import Final, final

from bench.compare.consumer import ColumnConsumer, Consumer, Found, Layout
from bench.compare.counters import Counters
from bench.compare.family import FamilyDriver
from bench.compare.load import PREFIX, Endpoint, Family, Job, Load, Unsupported, Wrong
from bench.compare.payload import Piece
from bench.compare.publisher import Publisher
from bench.compare.shape import CONTENT_TYPE, Sample
from bench.compare.wire import Wire

_CONNECT: Final = 0x10
_CONNACK: Final = 0x20
_PUBLISH: Final = 0x30
_PUBACK: Final = 0x40
_PUBREC: Final = 0x50
_PUBREL: Final = 0x62
_PUBCOMP: Final = 0x70
_SUBSCRIBE: Final = 0x82
_SUBACK: Final = 0x90
_PINGREQ: Final = b"\xc0\0"
_PINGRESP: Final = 0xD0
_CLEAN: Final = 0x02
_LOGIN: Final = 0xC0
_LEVELS: Final[dict[Family, int]] = {"mqtt": 4, "mqtt5": 5}
_IS_TEXT: Final = b"\x01\x01"
_CONTENT_TYPE: Final = b"\x03"
_CORRELATION: Final = b"\x09"
_USER: Final = b"\x26"
_REFUSED: Final = 0x80
_ANSWER_BYTES: Final = 4
"""PUBACK, PUBREC, PUBREL and PUBCOMP: kind, length 2, packet identifier."""

TOPIC: Final = f"{PREFIX}/t"


def _text(text: str) -> bytes:
    raw = text.encode()
    return len(raw).to_bytes(2, "big") + raw


def _length(number: int) -> bytes:
    raw = b""
    while number > 127:
        raw += bytes((number & 127 | 128,))
        number >>= 7
    return raw + bytes((number,))


def _read_length(data: bytes | bytearray, at: int, end: int) -> tuple[int, int] | None:
    """The remaining length that begins here and where it ends; None when it is not all there."""
    number = shift = 0
    while at < end:
        number |= (data[at] & 127) << shift
        at += 1
        if not data[at - 1] & 128:
            return number, at
        shift += 7
    return None


def _topic(publisher: int, group: int, number: int) -> str:
    return f"{PREFIX}/{publisher:05}/g{group}/t{number}"


def _properties(sample: Sample) -> bytes:
    """Of MQTT 5, with the length in front."""
    raw = _IS_TEXT + _CONTENT_TYPE + _text(CONTENT_TYPE) + _CORRELATION + _text(sample.correlation_id)
    for name, value in (
        ("message-id", sample.message_id),
        ("traceparent", sample.trace),
        ("tenant", sample.tenant),
    ):
        raw += _USER + _text(name) + _text(value)
    return _length(len(raw)) + raw


def _packet(kind: int, body: bytes) -> bytes:
    return bytes((kind,)) + _length(len(body)) + body


def _read_packet(wire: Wire) -> bytes:
    """The kind of the next packet and what comes behind its length."""
    head = wire.exactly(2)
    while head[-1] & 128:
        head += wire.exactly(1)
    found = _read_length(head, 1, len(head))
    assert found is not None
    return head[:1] + wire.exactly(found[0])


def connect(endpoint: Endpoint, client: str, family: Family = "mqtt") -> Wire:
    """A connection with a clean session. Raises Unsupported when the broker refuses it."""
    wire = Wire(endpoint)
    flags, login = _CLEAN, b""
    if endpoint.user:
        flags, login = flags | _LOGIN, _text(endpoint.user) + _text(endpoint.password)
    identifier = _text(f"{PREFIX}-{os.getpid()}-{client}")
    level = _LEVELS[family]
    head = _text("MQTT") + bytes((level, flags, 0, 0)) + (b"\0" if level > 4 else b"")
    wire.send(_packet(_CONNECT, head + identifier + login))
    try:
        answer = _read_packet(wire)
    except ConnectionError:
        wire.close()
        raise Unsupported(f"the broker closes the connection at MQTT level {level}") from None
    if answer[0] != _CONNACK or answer[2]:
        wire.close()
        raise Unsupported(f"the broker refuses the connection at MQTT level {level}: CONNACK {answer[2]}")
    return wire


@final
class MqttPublisher(Publisher):
    """Publishes at one QoS; a message is confirmed with PUBACK or PUBCOMP."""

    def __init__(self, job: Job, number: int, counters: Counters) -> None:
        self._qos = job.load.qos
        self.is_confirmed = self._qos > 0
        self._identifier_at = 0
        super().__init__(connect(job.endpoint, f"p{number}", job.load.family), job, number, counters)

    def encode(self, body: bytes, route: int, sample: Sample | None = None) -> bytes:
        topic = TOPIC if sample is None else _topic(self.number, self.number % self.job.load.consumers, route)
        head = _text(topic) + (bytes(2) if self._qos else b"")
        if sample is not None:
            body = _properties(sample) + body
        length = _length(len(head) + len(body))
        self._identifier_at = 1 + len(length) + len(head) - 2
        return bytes((_PUBLISH | self._qos << 1,)) + length + head + body

    def filled(self, piece: Piece) -> None:
        """Packet identifiers from 256 to 65535: never 0, and the low byte does not overflow within a piece."""
        if self._qos:
            number = (1 + (self.sent >> 8) % 255) << 8 | self.sent & 0xFF
            self.batch.count_up(piece, self._identifier_at, 2, number)

    def farewell(self) -> bytes:
        return _PINGREQ

    def read(self) -> None:
        data = self.wire.take()
        whole = len(data) // _ANSWER_BYTES * _ANSWER_BYTES
        if not self.is_confirmed:
            self.is_done = self.is_done or _PINGRESP in data
            return
        self.wire.rest = data[whole:] or self.wire.rest
        if not whole:
            return
        kinds = data[0:whole:_ANSWER_BYTES]
        final_kind = _PUBACK if self._qos == 1 else _PUBCOMP
        done = kinds.count(final_kind)
        received = kinds.count(_PUBREC) if self._qos == 2 else 0
        if done + received != len(kinds) or data[1:whole:_ANSWER_BYTES].count(2) != len(kinds):
            raise Wrong(f"the broker answers with {bytes(data[:16]).hex(' ')} ...")
        self.confirmed += done
        if received:
            self._release(data[:whole], received == len(kinds))
        self.note_confirmed()

    def _release(self, answers: bytes, are_all: bool) -> None:
        """A PUBREL for each PUBREC."""
        if are_all:
            chosen = bytearray(answers)
        else:
            words = array("I", answers)
            chosen = bytearray(array("I", [word for word in words if word & 0xFF == _PUBREC]).tobytes())
        chosen[::_ANSWER_BYTES] = bytes((_PUBREL,)) * (len(chosen) // _ANSWER_BYTES)
        self.answers += chosen


@final
class MqttConsumer(ColumnConsumer):
    """Subscribed to the topic; answers with PUBACK, or PUBREC and PUBCOMP."""

    def __init__(self, job: Job, number: int) -> None:
        super().__init__(connect(job.endpoint, f"c{number}", job.load.family), job, number)
        self._qos = job.load.qos
        self._identifier_at = 0
        self._identifiers = bytearray()

    def subscribe(self) -> None:
        is_five = self.job.load.family == "mqtt5"
        chosen = b"\0" + _text(f"{PREFIX}/+/g{self.number}/#") if is_five else _text(TOPIC)
        self.wire.send(_packet(_SUBSCRIBE, b"\0\1" + chosen + bytes((self._qos,))))
        answer = _read_packet(self.wire)
        if answer[0] != _SUBACK or answer[-1] >= _REFUSED:
            raise Unsupported(f"the broker refuses the subscription: {answer.hex(' ')}")
        if answer[-1] < self._qos:
            raise Unsupported(f"the broker grants QoS {answer[-1]} where {self._qos} is asked for")

    def skip(self, at: int) -> int:
        kind = self.buffer[at]
        if kind & 0xF0 == _PUBLISH:
            return 0
        if self.end - at < 2 or self.end - at < self.buffer[at + 1] + 2:
            return 0
        if kind == _PUBREL:
            self.output += bytes((_PUBCOMP, 2)) + self.buffer[at + 2 : at + 4]
        return self.buffer[at + 1] + 2

    def learn(self, at: int) -> Layout | None:
        found = _read_length(self.buffer, at + 1, self.end)
        if found is None or self.end < found[0] + found[1]:
            return None
        size, head = found
        if self.buffer[at] & 0x08:
            self.ledger.redelivered += 1
        if self.buffer[at] >> 1 & 3 != self._qos:
            raise Wrong(f"a message of QoS {self._qos} is delivered with QoS {self.buffer[at] >> 1 & 3}")
        topic_end = head + 2 + struct.unpack_from(">H", self.buffer, head)[0]
        self._identifier_at = topic_end - at
        fixed = tuple([(byte, self.buffer[at + byte]) for byte in range(head + 2 - at)])
        return Layout(size + head - at, topic_end - at + (2 if self._qos else 0), fixed)

    def single(self, at: int) -> Found | None:
        if self.end - at < 2:
            return None
        buffer = self.buffer
        if buffer[at] & 0xF0 != _PUBLISH:
            skipped = self.skip(at)
            return Found(at + skipped) if skipped else None
        found = _read_length(buffer, at + 1, self.end)
        if found is None or self.end < found[0] + found[1]:
            return None
        size, head = found
        if buffer[at] >> 1 & 3 != self._qos:
            raise Wrong(f"a message of QoS {self._qos} is delivered with QoS {buffer[at] >> 1 & 3}")
        self.ledger.redelivered += buffer[at] >> 3 & 1
        place = head + 2 + (buffer[head] << 8 | buffer[head + 1])
        if self._qos:
            self._identifiers += buffer[place : place + 2]
            place += 2
        properties = _read_length(buffer, place, self.end)
        assert properties is not None
        return Found(head + size, sum(properties), head + size)

    def answer(self, count: int) -> None:
        if self._qos:
            answers = bytearray(bytes((_PUBACK if self._qos == 1 else _PUBREC, 2, 0, 0)) * count)
            for byte in range(2):
                answers[2 + byte :: _ANSWER_BYTES] = self._identifiers[byte::2]
            self.output += answers
            self._identifiers.clear()

    def acknowledge(self, at: int, count: int) -> None:
        if not self._qos:
            return
        answers = bytearray(bytes((_PUBACK if self._qos == 1 else _PUBREC, 2, 0, 0)) * count)
        stride, end = self.layout.stride, at + count * self.layout.stride
        for byte in range(2):
            answers[2 + byte :: _ANSWER_BYTES] = self.buffer[at + self._identifier_at + byte : end : stride]
        self.output += answers

    def finish(self) -> None:
        super().finish()
        self.wire.close()


@final
class MqttDriver(FamilyDriver):
    """Plain topics: nothing is left on the broker when the clients are gone."""

    def prepare(self, endpoint: Endpoint, load: Load) -> None:
        connect(endpoint, "try", load.family).close()

    def clear(self, endpoint: Endpoint, load: Load) -> None:
        pass

    def depth(self, endpoint: Endpoint, load: Load) -> int | None:
        return None

    def publisher(self, job: Job, number: int, counters: Counters) -> Publisher:
        return MqttPublisher(job, number, counters)

    def consumer(self, job: Job, number: int) -> Consumer:
        return MqttConsumer(job, number)

    def idle(self, endpoint: Endpoint, number: int) -> Wire:
        return connect(endpoint, f"i{number}")
