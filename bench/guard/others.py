"""Scenarios of AMQP 1.0 and MQTT 5: whole connections and messages that all differ, without sockets."""

from collections.abc import Callable, Iterator
from typing import Final

from bench.guard.client import House, Peer
from headrace.protocols.amqp10.codec import encode_accepted, encode_frame, encode_sasl
from headrace.protocols.amqp10.frames import AMQP_HEADER, SASL_HEADER
from headrace.protocols.amqp10.performatives import Attach, Begin, Flow, Open, SaslInit, Source, Target
from headrace.protocols.mqtt.codec import encode_publish
from headrace.protocols.mqtt.packets import V5
from headrace.storage.api import Engine
from headrace.wire.amqp10 import APPLICATION_PROPERTIES, HEADER, MESSAGE_ID, PROPERTIES
from headrace.wire.amqp10_values import encode_described, encode_value
from headrace.wire.mqtt5 import encode_user_property
from headrace.wire.types import Map, Timestamp

BATCH: Final = 100
PAYLOAD: Final = b"x" * 200
_QUEUE: Final = "/queues/real10"
_CREDIT: Final = 1 << 30
_CREATION_TIME: Final = 9
_TRANSFER: Final = b"\x00\x53\x14\xc0"
_PUBLISHERS: Final = 4


def scenarios(engine: Engine, count: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Names and runs; each run has `count` messages."""
    house = House(engine)
    house.declare("real10")
    yield "AMQP 1.0 queue, own properties each", _amqp10(house, count)
    yield "MQTT 5 QoS 1, own topics and properties", _mqtt(house, count)


def _transfer(number: int) -> bytes:
    fields: list[object] = [None] * (_CREATION_TIME + 1)
    fields[MESSAGE_ID] = f"{number:032x}"
    fields[_CREATION_TIME] = Timestamp(1_700_000_000_000 + number)
    application = Map([("traceparent", f"00-{number:032x}-{number:016x}-01"), ("tenant", f"tenant-{number % 50}")])
    message = encode_described(HEADER, [True]) + encode_described(PROPERTIES, fields)
    message += bytes((0, 0x53, APPLICATION_PROPERTIES)) + encode_value(application)
    message += b"\x00\x53\x75\xa0" + bytes([len(PAYLOAD)]) + PAYLOAD
    identity = b"\x70" + number.to_bytes(4) + b"\xa0\x04" + number.to_bytes(4)
    return encode_frame(0, _TRANSFER + bytes((15, 5)) + b"\x43" + identity + b"\x43\x42", message)


def _amqp10(house: House, count: int) -> Callable[[], object]:
    """Each message is accepted by itself, as most clients do."""
    peer = Peer(house, "amqp")
    peer.feed(SASL_HEADER + encode_sasl(SaslInit("PLAIN", b"\0guest\0guest").encode()))
    sender, receiver, flow = Attach("sender", 0, False), Attach("receiver", 1, True), Flow()
    sender.source, sender.target = Source("guard"), Target(_QUEUE)
    receiver.source, receiver.target = Source(_QUEUE), Target("guard")
    flow.next_incoming_id = flow.delivery_count = 0
    flow.incoming_window = flow.outgoing_window = flow.link_credit = _CREDIT
    flow.handle = 1
    opening = [Open("guard").encode(), Begin(None, 0, _CREDIT, _CREDIT).encode()]
    frames = [encode_frame(0, each) for each in (*opening, sender.encode(), receiver.encode(), flow.encode())]
    peer.feed(AMQP_HEADER + b"".join(frames))
    peer.take()
    delivered = 0

    def run() -> None:
        nonlocal delivered
        for _ in range(count // BATCH):
            numbers = range(delivered, delivered + BATCH)
            peer.feed(b"".join([sent[number % count] for number in numbers]))
            assert peer.take().count(_TRANSFER) == BATCH, "not all was delivered"
            delivered += BATCH
            peer.feed(b"".join([encode_accepted(0, True, number, number, True) for number in numbers]))

    sent = [_transfer(number) for number in range(count)]
    return run


def _mqtt_packet(number: int, publisher: int) -> bytes:
    properties = b"".join(
        [
            b"\x01\x01\x03\x00\x10application/json",
            encode_user_property("message-id", f"{number:032x}"),
            encode_user_property("traceparent", f"00-{number:032x}-{number:016x}-01"),
            encode_user_property("tenant", f"tenant-{number % 50}"),
        ]
    )
    topic = f"guard/{publisher}/g0/t0"
    return encode_publish(V5, topic, PAYLOAD, 1, packet_id=1 + number % 60_000, properties=properties)


def _connect(house: House, name: str) -> Peer:
    peer = Peer(house, "mqtt")
    identifier = len(name).to_bytes(2) + name.encode()
    rest = b"\0\4MQTT" + bytes((V5, 2, 0, 0)) + b"\0" + identifier
    peer.feed(bytes((0x10, len(rest))) + rest)
    return peer


def _mqtt(house: House, count: int) -> Callable[[], object]:
    """Some publishers with a topic each, and a subscriber of all who acknowledges each message."""
    publishers = [_connect(house, f"publisher-{number}") for number in range(_PUBLISHERS)]
    subscriber = _connect(house, "subscriber")
    pattern = b"guard/+/g0/#"
    rest = b"\0\1\0" + len(pattern).to_bytes(2) + pattern + b"\1"
    subscriber.feed(bytes((0x82, len(rest))) + rest)
    for peer in (subscriber, *publishers):
        peer.take()
    share = BATCH // _PUBLISHERS
    sent = [
        [
            b"".join([_mqtt_packet(number, publisher) for number in range(start, start + share)])
            for start in range(0, count // _PUBLISHERS, share)
        ]
        for publisher in range(_PUBLISHERS)
    ]

    def run() -> None:
        for turn in range(count // BATCH):
            for publisher, peer in enumerate(publishers):
                peer.give(sent[publisher][turn])
            house.turn()
            data = subscriber.take()
            assert data.count(PAYLOAD) == BATCH, "not all was delivered"
            subscriber.feed(_answers(data))
            for peer in publishers:
                assert len(peer.take()) == 4 * share, "not all was confirmed"

    return run


def _answers(data: bytes) -> bytes:
    """A PUBACK for each PUBLISH in these bytes, all of which are of one size."""
    size = len(data) // BATCH
    topic_end = 5 + int.from_bytes(data[3:5])
    return b"".join([b"\x40\x02" + data[at + topic_end : at + topic_end + 2] for at in range(0, len(data), size)])
