"""The packets that a server of MQTT sends."""

import socket
from collections.abc import Callable
from typing import final

from headrace.core.routing import address
from headrace.protocols.mqtt import packets
from tests.answers.decisions import SECONDS, Answers, Decision, NotPromised, Place, Request, Synced
from tests.devices import (
    CONNACK,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    Packet,
    properties,
    read_varint,
    text,
)
from tests.devices import packet as encoded

_FOR_AN_HOUR = {0x11: 3600}
_ORDERED = NotPromised("clients send it, and the server never does")


def in_the_code() -> set[str]:
    """All packet types, and an answer to each verb that settles."""
    return {*packets.NAMES[1:], *[f"PUBACK to {verb}" for verb in address._VERBS]}


@final
class Device:
    """A client of MQTT 5 with a real connection; what it is asked to send it sends."""

    def __init__(self, place: Place, client_id: str = "") -> None:
        self.client_id = client_id or place.name()
        self._socket = socket.create_connection(("127.0.0.1", place.server.mqtt_port), SECONDS)
        place.on_close(self._socket.close)
        self._data = b""

    def send(self, head: int, *parts: bytes) -> None:
        self._socket.sendall(encoded(head, *parts))

    def expect(self, kind: int) -> Packet:
        """The next packet of this kind; others before it are passed over. It must say that all is well."""
        while True:
            found = self._next()
            if found.kind == kind:
                assert found.reason < 0x80, found.said
                return found

    def _next(self) -> Packet:
        while True:
            if len(self._data) > 1 and (len(self._data) > 4 or self._data[1] < 128):
                size, start = read_varint(self._data, 1)
                if len(self._data) >= start + size:
                    found = Packet(self._data[0], self._data[start : start + size], 5)
                    self._data = self._data[start + size :]
                    return found
            more = self._socket.recv(65536)
            assert more, "the server closed the connection"
            self._data += more

    def connect(self, is_kept: bool = True) -> None:
        said = properties(_FOR_AN_HOUR if is_kept else {})
        self.send(0x10, text("MQTT"), b"\5\2\0\0", said, text(self.client_id))
        self.expect(CONNACK)

    def subscribe(self, pattern: str, qos: int = 1, **user: str) -> None:
        said = properties({0x26: [(name.replace("_", "-"), value) for name, value in user.items()]})
        self.send(0x82, b"\0\1", said, text(pattern), bytes([qos]))
        assert self.expect(SUBACK).reasons[0] < 0x80

    def publish(
        self, topic: str, qos: int = 1, retain: bool = False, user: list[tuple[str, str]] | None = None
    ) -> None:
        said = properties({0x26: user or []})
        self.send(0x30 | qos << 1 | retain, text(topic), b"\0\7" if qos else b"", said, b"x")
        if qos:
            self.expect(PUBACK if qos == 1 else PUBREC)


def _connected(place: Place, is_kept: bool = True) -> Device:
    device = Device(place)
    device.connect(is_kept)
    return device


def _connect(place: Place) -> Request:
    device = Device(place)
    return device.connect


def _subscribe(place: Place) -> Request:
    device = _connected(place)
    return lambda: device.subscribe("plant/#")


def _unsubscribe(place: Place) -> Request:
    device = _connected(place)
    device.subscribe("plant/#")

    def request() -> None:
        device.send(0xA2, b"\0\2", properties({}), text("plant/#"))
        device.expect(UNSUBACK)

    return request


def _publish(qos: int, retain: bool = False) -> Callable[[Place], Request]:
    def prepare(place: Place) -> Request:
        device, queue = _connected(place, is_kept=False), place.declare()
        topic = f"plant/{place.name()}" if retain else f"$queue/{queue}/k"
        return lambda: device.publish(topic, qos, retain)

    return prepare


def _complete(place: Place) -> Request:
    """The packet identifier of a message means another one from PUBCOMP on."""
    device, queue = _connected(place), place.declare()
    device.publish(f"$queue/{queue}/k", 2)

    def request() -> None:
        device.send(0x62, b"\0\7")
        device.expect(PUBCOMP)

    return request


def _release(place: Place) -> Request:
    """A message at QoS 2 to a session that is kept."""
    device, topic = _connected(place), place.name()
    device.subscribe(topic, 2)
    _connected(place, is_kept=False).publish(topic, 2)
    number = device.expect(PUBLISH).number

    def request() -> None:
        device.send(0x50, number.to_bytes(2))
        device.expect(PUBREL)

    return request


def _settle(verb: str) -> Decision:
    def prepare(place: Place) -> Request:
        is_stream = verb == "$commit"
        queue = place.filled(**({"x-queue-type": "stream"} if is_stream else {}))
        device = _connected(place, is_kept=False)
        more = {"x_stream_offset": "first", "x_auto_commit": "false"} if is_stream else {}
        device.subscribe(f"$queue/{queue}", 1, consumer_group="workers", **more)
        got = device.expect(PUBLISH)
        user = [(name, got.extra[name]) for name in ("message-id", "group-id")]
        return lambda: device.publish(f"$queue/{queue}/{verb}", 1, user=user)

    return Synced(prepare)


def _settle_in_memory(place: Place) -> Request:
    device, queue = _connected(place, is_kept=False), place.name()
    place.put(f"/api/queues/%2F/{queue}", {"durable": False})
    place.publish(queue)
    device.subscribe(f"$queue/{queue}", 1, consumer_group="workers")
    got = device.expect(PUBLISH)
    user = [(name, got.extra[name]) for name in ("message-id", "group-id")]
    return lambda: device.publish(f"$queue/{queue}/$ack", 1, user=user)


def _connect_briefly(place: Place) -> Request:
    device = Device(place)
    return lambda: device.connect(is_kept=False)


ANSWERS: Answers = {
    "CONNACK of a session that is kept": Synced(_connect),
    "CONNACK of a session that ends with its connection": NotPromised("no crash survives it", _connect_briefly),
    "SUBACK of a session that is kept": Synced(_subscribe),
    "UNSUBACK of a session that is kept": Synced(_unsubscribe),
    "PUBACK of a message for a queue": Synced(_publish(1)),
    "PUBACK of a message that is retained": Synced(_publish(1, retain=True)),
    "PUBREC of a message for a queue": Synced(_publish(2)),
    "PUBREC of a message that is retained": Synced(_publish(2, retain=True)),
    "PUBCOMP of a session that is kept": Synced(_complete),
    "PUBREL of a session that is kept": Synced(_release),
    **{f"PUBACK to {verb}": _settle(verb) for verb in ("$ack", "$nack", "$reject", "$commit")},
    "PUBACK to $ack of a transient queue": NotPromised("such a queue is in memory", _settle_in_memory),
    "PUBLISH": NotPromised("a delivery that is not settled comes again; QoS 0 comes once or not at all"),
    "PINGRESP": NotPromised("it says that the broker lives"),
    "DISCONNECT": NotPromised("it is about the connection, which no crash survives"),
    "AUTH": NotPromised("no method of it is there, so it is never sent"),
    "CONNECT": _ORDERED,
    "SUBSCRIBE": _ORDERED,
    "UNSUBSCRIBE": _ORDERED,
    "PINGREQ": _ORDERED,
}
