"""What deliveries carry besides what was published, driven without a network."""

from typing import cast

import pytest
from pamqp import commands

from headrace.core.access.logins import Account
from headrace.core.access.permissions import Permission, Rights
from headrace.core.access.users import guest
from headrace.core.properties import Properties
from headrace.core.queue.definition import STREAM, QueueDefinition, declared
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.errors import PreconditionFailed
from headrace.model import AMQP091, Message, Source
from headrace.net.connection import Wire
from headrace.protocols.amqp091.channel import Channel
from headrace.protocols.amqp091.context import ConnectionContext, Host
from headrace.protocols.amqp091.properties import Amqp091Codec, decode_properties
from headrace.protocols.amqp091.subscriptions import Subscription, Tags
from headrace.protocols.answers import Answers
from headrace.storage.group_state import WORK
from tests.house import House
from tests.lines import Line


def _headers_of(frames: bytes) -> dict[str, object]:
    """The headers of the content header frame in what was sent."""
    at = frames.index(b"\xce\x02") + 1
    size = int.from_bytes(frames[at + 3 : at + 7])
    said: Properties = decode_properties(frames[at + 19 : at + 7 + size])
    return said.headers


def test_readers_of_a_stream_see_how_far_its_primary_group_is() -> None:
    house = House()
    house.broker.codecs.add(AMQP091, Amqp091Codec())
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
    wire = Line()
    link = ConnectionContext(
        cast("Wire", wire), object(), Host("/", house.broker), Account(guest()), Rights("guest", "/")
    )
    answers = Answers(link.wire, house.broker, lambda: None, lambda _: None)
    subscription = Subscription(link, 1, "c", "s", Tags(), answers)
    subscription.is_stream = subscription.is_addressed = True

    house.broker.consume("s", subscription.open(1, False, 0, None), "readers", position="first")
    house.run()

    headers = _headers_of(b"".join(wire.sent))
    assert (headers["x-stream-offset"], headers["x-work-group"]) == (0, "workers")
    assert (headers["x-work-committed-offset"], headers["x-work-acked"]) == (1, True)


def test_of_a_row_of_acknowledgements_those_before_an_unknown_tag_count() -> None:
    house = House()
    house.broker.declare(declared("q", durable=True))
    house.publish("q", *"abcd")
    link = ConnectionContext(
        cast("Wire", Line()), object(), Host("/", house.broker), Account(guest()), Rights("guest", "/")
    )
    link.rights.grant(Permission("guest", "/", ".*", ".*", ".*"), {})
    channel = Channel(link, 1)
    channel.subscriptions.qos(commands.Basic.Qos(prefetch_count=3))
    channel.subscriptions.consume(commands.Basic.Consume(queue="q", consumer_tag="c"), "q")
    house.run()

    channel.ack(2, 2, False)
    with pytest.raises(PreconditionFailed, match="unknown delivery tag 2"):
        channel.ack(1, 3, False)
    house.run()

    assert [entry.offset for entry in house.broker.groups.pending("q")] == [2, 3]
