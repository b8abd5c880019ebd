"""Additions of the broker to deliveries, driven without a network."""

from typing import cast

import pytest
from pamqp import commands, common

from headrace.core.client import insider
from headrace.core.queue.definition import STREAM, QueueDefinition, declared
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.errors import PreconditionFailed
from headrace.model import AMQP091, Message, Source
from headrace.net.connection import Wire
from headrace.protocols.amqp091.channel import Channel
from headrace.protocols.amqp091.frames import FRAME_MAX_SIZE
from headrace.protocols.amqp091.server import ConnectionContext, Host
from headrace.storage.group_state import WORK
from headrace.wire.amqp091 import decode_properties
from headrace.wire.properties import Properties
from tests.house import House
from tests.wires import FakeWire


def _headers_of(frames: bytes) -> dict[str, object]:
    """The headers of the content header frame in what was sent."""
    at = frames.index(b"\xce\x02") + 1
    size = int.from_bytes(frames[at + 3 : at + 7])
    said: Properties = decode_properties(frames[at + 19 : at + 7 + size])
    return said.headers


def _channel(house: House, line: FakeWire) -> Channel:
    client = insider(house.broker, "guest")
    return Channel(ConnectionContext(cast("Wire", line), Host("/", house.broker), client, {}, FRAME_MAX_SIZE), 1)


def test_readers_of_a_stream_see_how_far_its_primary_group_is() -> None:
    house = House()
    house.broker.declare(QueueDefinition("s", STREAM, primary_group="workers"))
    source = Source("s", encoding=AMQP091)
    for _ in range(2):
        house.broker.publish(Message(source, b"x", house.clock.now_us(), b"\0\0"))
    house.run()
    worked: list[Delivery] = []
    house.broker.consume("s", Consumer("w", worked.extend, 1), "workers", mode=WORK)
    house.run()
    house.broker.settle(worked[0])
    house.run()
    wire = FakeWire()
    subscriptions = _channel(house, wire).subscriptions
    arguments: common.FieldTable = {"x-consumer-group": "readers", "x-stream-offset": "first"}

    subscriptions.consume(commands.Basic.Consume(queue="s", arguments=arguments), "s")
    house.run()

    headers = _headers_of(b"".join(wire.sent))
    assert (headers["x-stream-offset"], headers["x-work-group"]) == (0, "workers")
    assert (headers["x-work-committed-offset"], headers["x-work-acked"]) == (1, True)


def test_of_a_row_of_acknowledgements_those_before_an_unknown_tag_count() -> None:
    house = House()
    house.broker.declare(declared("q", durable=True))
    house.publish("q", *"abcd")
    channel = _channel(house, FakeWire())
    channel.subscriptions.qos(commands.Basic.Qos(prefetch_count=3))
    channel.subscriptions.consume(commands.Basic.Consume(queue="q", consumer_tag="c"), "q")
    house.run()

    channel.subscriptions.ack(2, 2, False)
    with pytest.raises(PreconditionFailed, match="unknown delivery tag 2"):
        channel.subscriptions.ack(1, 3, False)
    house.run()

    assert [entry.offset for entry in house.broker.groups.pending("q")] == [2, 3]
