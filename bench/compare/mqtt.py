"""MQTT 3.1.1 under load: one topic, at each QoS. The bytes of the protocol are few enough to be here."""

import os
import struct
from array import array
from typing import Final, final

from bench.compare.consumer import ColumnConsumer, Consumer, Layout
from bench.compare.counters import Counters
from bench.compare.family import FamilyDriver
from bench.compare.load import PREFIX, Endpoint, Job, Load, Unsupported, Wrong
from bench.compare.payload import Piece
from bench.compare.publisher import Publisher
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
_LEVEL: Final = 4
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


def _packet(kind: int, body: bytes) -> bytes:
    return bytes((kind,)) + _length(len(body)) + body


def connect(endpoint: Endpoint, client: str) -> Wire:
    """A connection with a clean session. Raises Unsupported when the broker refuses it."""
    wire = Wire(endpoint)
    flags, login = _CLEAN, b""
    if endpoint.user:
        flags, login = flags | _LOGIN, _text(endpoint.user) + _text(endpoint.password)
    identifier = _text(f"{PREFIX}-{os.getpid()}-{client}")
    wire.send(_packet(_CONNECT, _text("MQTT") + bytes((_LEVEL, flags, 0, 0)) + identifier + login))
    answer = wire.exactly(4)
    if answer[0] != _CONNACK or answer[3]:
        raise Unsupported(f"the broker refuses the connection: CONNACK {answer[3]}")
    return wire


@final
class MqttPublisher(Publisher):
    """Publishes at one QoS; a message is confirmed with PUBACK or PUBCOMP."""

    def __init__(self, job: Job, number: int, counters: Counters) -> None:
        self._qos = job.load.qos
        self.is_confirmed = self._qos > 0
        self._identifier_at = 0
        super().__init__(connect(job.endpoint, f"p{number}"), job, number, counters)

    def encode(self, body: bytes, route: int) -> bytes:
        head = _text(TOPIC) + (bytes(2) if self._qos else b"")
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
        super().__init__(connect(job.endpoint, f"c{number}"), job, number)
        self._qos = job.load.qos
        self._identifier_at = 0

    def subscribe(self) -> None:
        self.wire.send(_packet(_SUBSCRIBE, b"\0\1" + _text(TOPIC) + bytes((self._qos,))))
        answer = self.wire.exactly(5)
        if answer[0] != _SUBACK or answer[4] >= _REFUSED:
            raise Unsupported(f"the broker refuses the subscription: {answer.hex(' ')}")
        if answer[4] < self._qos:
            raise Unsupported(f"the broker grants QoS {answer[4]} where {self._qos} is asked for")

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
        connect(endpoint, "try").close()

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
