"""AMQP 1.0 with python-qpid-proton's blocking API: what a program sees of queues, outcomes, addresses and errors."""

import uuid

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel
from proton import Delivery, Described, Link, Message, PropertyDict, Terminus, symbol, ulong
from proton.reactor import AtLeastOnce, AtMostOnce, Container, Filter, LinkOption, ReceiverOption, Selector
from proton.utils import BlockingConnection, BlockingReceiver, LinkDetached, SendException

from tests.servers import Server


class _Properties(LinkOption):
    """Properties of the attach."""

    def __init__(self, **values: object) -> None:
        self._values = {symbol(name.replace("_", "-")): value for name, value in values.items()}

    def apply(self, link: Link) -> None:
        link.properties = PropertyDict(self._values)


class _Capability(LinkOption):
    def __init__(self, name: str) -> None:
        self._name = name

    def apply(self, link: Link) -> None:
        terminus = link.target if link.is_sender else link.source
        terminus.capabilities.put_object(symbol(self._name))


def _all(receiver: BlockingReceiver, count: int) -> list[object]:
    bodies: list[object] = []
    for _ in range(count):
        message = receiver.receive(timeout=60)  # its body's memory is gone with it
        bodies.append(bytes(message.body) if isinstance(message.body, memoryview) else message.body)
        receiver.accept()
    return bodies


def _is_empty(connection: BlockingConnection, address: str) -> bool:
    receiver = connection.create_receiver(address, credit=1)
    try:
        receiver.link.drain(1)
        connection.wait(lambda: receiver.link.credit == 0, timeout=60)
        return receiver.fetcher is None or not receiver.fetcher.has_message
    finally:
        receiver.close()


def test_messages_are_sent_and_received_in_order(connection: BlockingConnection, queue: str) -> None:
    sender = connection.create_sender(queue)
    for number in range(50):
        assert sender.send(Message(body=number)).remote_state == Delivery.ACCEPTED

    assert _all(connection.create_receiver(queue, credit=10), 50) == list(range(50))


def test_a_message_arrives_with_every_section_it_was_sent_with(connection: BlockingConnection, queue: str) -> None:
    sent = Message(
        body={"list": [1, "two", b"three", None, 4.5], "id": uuid.uuid4()},
        id=uuid.uuid4(),
        user_id=b"guest",
        subject="subject",
        reply_to="reply",
        correlation_id=ulong(7),
        content_type="a/b",
        content_encoding="none",
        expiry_time=4_000_000_000,
        creation_time=1_000_000_000,
        group_id="group",
        group_sequence=3,
        reply_to_group_id="other",
        durable=True,
        priority=7,
        ttl=600,
        annotations={symbol("x-opt-note"): "kept"},
        instructions={symbol("x-do"): True},
        properties={"text": "é", "number": 1, "real": 1.5, "flag": True},
    )
    connection.create_sender(queue).send(sent)

    received = connection.create_receiver(queue).receive(timeout=60)

    assert received.encode() == sent.encode()


@pytest.mark.parametrize("size", [0, 255, 256, 131_000, 1_000_000])
def test_a_message_of_any_size_arrives_whole(connection: BlockingConnection, queue: str, size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    connection.create_sender(queue).send(Message(body=body[:size], inferred=True))

    received = connection.create_receiver(queue).receive(timeout=60)

    assert bytes(received.body) == body[:size]


def test_outcomes_settle_as_they_say(connection: BlockingConnection, channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name + ".dead")
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name + ".dead"}
    channel.queue_declare(name, arguments=dead)
    sender = connection.create_sender(name)
    for body in ("accepted", "rejected", "released", "modified", "undeliverable"):
        sender.send(Message(body=body))
    receiver = connection.create_receiver(name, credit=5)

    got = {}
    for _ in range(5):
        message = receiver.receive(timeout=60)
        got[message.body] = receiver.fetcher.unsettled[-1]
    receiver.settle(Delivery.ACCEPTED)  # in order: the oldest first
    receiver.settle(Delivery.REJECTED)
    receiver.settle(Delivery.RELEASED)
    modified = receiver.fetcher.unsettled[0]
    modified.local.failed = True
    receiver.settle(Delivery.MODIFIED)
    undeliverable = receiver.fetcher.unsettled[0]
    undeliverable.local.undeliverable = True
    undeliverable.local.annotations = {symbol("x-why"): "broken"}
    receiver.settle(Delivery.MODIFIED)
    receiver.flow(2)

    again = [receiver.receive(timeout=60) for _ in range(2)]
    assert {(message.body, message.delivery_count) for message in again} == {("released", 0), ("modified", 1)}
    letters = connection.create_receiver(name + ".dead", credit=2)
    found = {message.body: message for message in (letters.receive(timeout=60) for _ in range(2))}
    assert set(found) == {"rejected", "undeliverable"}
    assert found["undeliverable"].annotations["x-why"] == "broken"
    assert found["rejected"].annotations["x-first-death-queue"] == name


def test_settled_messages_are_gone_once_sent(
    connection: BlockingConnection, queue: str, channel: BlockingChannel
) -> None:
    connection.create_sender(queue, options=AtLeastOnce()).send(Message(body="one"))
    receiver = connection.create_receiver(queue, options=AtMostOnce())

    assert receiver.receive(timeout=60).body == "one"
    assert channel.queue_declare(queue, passive=True).method.message_count == 0
    receiver.close()
    assert _is_empty(connection, queue)


def test_what_was_not_settled_is_delivered_again_when_the_connection_is_gone(
    server: Server, connection: BlockingConnection, queue: str
) -> None:
    connection.create_sender(queue).send(Message(body="again"))
    other = BlockingConnection(f"127.0.0.1:{server.port}", timeout=60)
    assert other.create_receiver(queue).receive(timeout=60).delivery_count == 0
    other.close()

    again = connection.create_receiver(queue).receive(timeout=60)

    assert (again.body, again.delivery_count) == ("again", 1)


# -- addresses -------------------------------------------------------------------------------------------------------


def test_an_unknown_queue_is_not_found(connection: BlockingConnection) -> None:
    for attach in (connection.create_sender, connection.create_receiver):
        with pytest.raises(LinkDetached) as caught:
            attach("no-such-queue")
        assert caught.value.condition == "amqp:not-found"
        assert "no queue 'no-such-queue'" in str(caught.value)


@pytest.mark.parametrize("address", ["/queues", "/what/is/this", "/queues/%ff"])
def test_an_address_of_no_known_form_is_refused_with_those_that_are(
    connection: BlockingConnection, address: str
) -> None:
    with pytest.raises(LinkDetached) as caught:
        connection.create_sender(address)
    assert caught.value.condition == "amqp:invalid-field"


def test_the_capability_queue_makes_a_queue(connection: BlockingConnection, name: str) -> None:
    connection.create_sender(name, options=_Capability("queue")).send(Message(body="made"))

    assert connection.create_receiver(name).receive(timeout=60).body == "made"


def test_a_sender_without_an_address_sends_where_each_message_says(
    connection: BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name + "/with a slash")
    channel.queue_declare(name)
    channel.queue_bind(name, "amq.direct", "key")
    sender = connection.create_sender(None)
    sender.send(Message(body="one", address=name))
    sender.send(Message(body="two", address=f"/queues/{name}%2Fwith%20a%20slash"))
    sender.send(Message(body="three", address="/exchanges/amq.direct/key"))
    sender.send(Message(body="four", address="/exchanges/amq.direct", subject="key"))
    with pytest.raises(SendException) as unrouted:
        sender.send(Message(body="five", address="/exchanges/amq.direct/nobody"))
    with pytest.raises(SendException) as unknown:
        sender.send(Message(body="six", address="no-such-queue"))

    assert _all(connection.create_receiver(name, credit=3), 3) == ["one", "three", "four"]
    assert _all(connection.create_receiver(f"/queues/{name}%2Fwith%20a%20slash"), 1) == ["two"]
    assert unrouted.value.state == Delivery.RELEASED
    assert unknown.value.state == Delivery.REJECTED


def test_queue_addresses_reach_queues_and_their_filters(connection: BlockingConnection, name: str) -> None:
    everything = connection.create_receiver(f"$queue/{name}", credit=10)
    only_eu = connection.create_receiver(f"$queue/{name}/eu/#", credit=10, options=_Properties(consumer_group="eu"))
    sender = connection.create_sender(f"$queue/{name}")
    sender.send(Message(body="root"))
    sender.send(Message(body="eu", subject="eu/fr"))
    sender.send(Message(body="us", subject="us/ny"))

    message = only_eu.receive(timeout=60)
    assert message.body == "eu"
    assert message.properties["group-id"] == "eu@eu/#"
    assert message.properties["queue"] == name
    assert message.properties["protocol"] == "amqp10"
    assert message.id == f"{name}:1"
    assert message.address == f"$queue/{name}/eu/fr"
    assert _all(everything, 3) == ["root", "eu", "us"]


def test_a_topic_reaches_all_who_subscribe_and_filters_are_wildcards(
    connection: BlockingConnection, channel: BlockingChannel
) -> None:
    one = connection.create_receiver("weather/+/wind", credit=10)
    all_of_it = connection.create_receiver("weather/#", credit=10)
    sender = connection.create_sender("weather/oslo/wind")
    sender.send(Message(body="north"))
    channel.basic_publish("amq.topic", "weather.rome.rain", b"heavy")
    unread = connection.create_sender("nobody/listens").send(Message(body="for nobody"))

    assert _all(one, 1) == ["north"]
    assert _all(all_of_it, 2) == ["north", b"heavy"]
    assert unread.remote_state == Delivery.ACCEPTED


class _Durable(ReceiverOption):
    def apply(self, receiver: Link) -> None:
        receiver.source.durability = Terminus.DELIVERIES
        receiver.source.expiry_policy = Terminus.EXPIRE_NEVER


def test_a_durable_subscription_gets_what_came_while_it_was_away(server: Server, name: str) -> None:
    def with_id() -> BlockingConnection:
        container = Container()
        container.container_id = name
        return BlockingConnection(f"127.0.0.1:{server.port}", timeout=60, container=container)

    away = with_id()
    receiver = away.create_receiver("news/today", name="subscription", options=_Durable())
    receiver.detach()
    away.close()
    publisher = BlockingConnection(f"127.0.0.1:{server.port}", timeout=60)
    publisher.create_sender("news/today").send(Message(body="while away"))
    back = with_id()
    receiver = back.create_receiver("news/today", name="subscription", options=_Durable())

    assert receiver.receive(timeout=60).body == "while away"
    receiver.accept()
    receiver.close()
    with pytest.raises(LinkDetached, match="not-found"):
        publisher.create_receiver(f"/queues/{name}%3Asubscription")
    back.close()
    publisher.close()


def test_a_request_is_answered_through_a_dynamic_node(
    server: Server, connection: BlockingConnection, queue: str
) -> None:
    replies = connection.create_receiver(None, dynamic=True)
    address = replies.link.remote_source.address
    connection.create_sender(queue).send(Message(body="ping", reply_to=address, correlation_id="1"))
    other = BlockingConnection(f"127.0.0.1:{server.port}", timeout=60)
    request = other.create_receiver(queue).receive(timeout=60)
    other.create_sender(None).send(
        Message(body="pong", address=request.reply_to, correlation_id=request.correlation_id)
    )

    reply = replies.receive(timeout=60)

    assert (reply.body, reply.correlation_id) == ("pong", "1")
    other.close()


# -- filters ---------------------------------------------------------------------------------------------------------


def test_a_selector_gets_only_what_it_wants(connection: BlockingConnection, queue: str) -> None:
    sender = connection.create_sender(queue)
    for number in range(6):
        sender.send(Message(body=number, properties={"colour": "red" if number % 2 else "blue", "n": number}))
    red = connection.create_receiver(queue, credit=10, options=Selector("colour = 'red' AND n > 1"))

    assert red.link.remote_source.filter is not None
    assert _all(red, 2) == [3, 5]
    assert _all(connection.create_receiver(queue, name="rest", credit=10), 4) == [0, 1, 2, 4]


def test_a_bad_selector_says_where_it_is_bad(connection: BlockingConnection, queue: str) -> None:
    with pytest.raises(LinkDetached, match="column 10"):
        connection.create_receiver(queue, options=Selector("colour = ="))


def _from(position: object) -> Filter:
    described = Described(symbol("rabbitmq:stream-offset-spec"), position)
    return Filter({symbol("rabbitmq:stream-offset-spec"): described})


@pytest.mark.parametrize(
    ("kind", "value"),
    [("stream-offset-spec", "0s"), ("stream-filter", 5), ("stream-filter", ["a", 5]), ("stream-match-unfiltered", "a")],
)
def test_a_bad_filter_of_a_stream_is_refused(
    connection: BlockingConnection, channel: BlockingChannel, name: str, kind: str, value: object
) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    filters = Filter({symbol(f"rabbitmq:{kind}"): Described(symbol(f"rabbitmq:{kind}"), value)})

    with pytest.raises(LinkDetached):
        connection.create_receiver(f"/queues/{name}", options=filters)


def test_a_stream_is_read_from_where_the_filter_says(
    connection: BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    sender = connection.create_sender(f"/queues/{name}")
    for number in range(5):
        sender.send(Message(body=number))

    assert _all(connection.create_receiver(f"/queues/{name}", credit=5, options=_from("first")), 5) == [0, 1, 2, 3, 4]
    third = connection.create_receiver(f"/queues/{name}", name="third", credit=5, options=_from(ulong(3)))
    message = third.receive(timeout=60)
    assert (message.body, message.annotations["x-stream-offset"]) == (3, 3)
    named = _Properties(consumer_group="readers", cursor="earliest")
    assert _all(connection.create_receiver(name, credit=5, name="named", options=named), 2) == [0, 1]
    new = connection.create_receiver(f"/queues/{name}", name="new", credit=5, options=_from("next"))
    sender.send(Message(body="new"))
    assert new.receive(timeout=60).body == "new"


# -- other protocols -------------------------------------------------------------------------------------------------


def test_properties_of_0_9_1_arrive_as_those_of_1_0(
    connection: BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    properties = BasicProperties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"text": "é", "number": 5, "x-own": "annotation", "nested": {"a": [1]}},
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=1_700_000_000,
        type="kind",
        user_id="guest",
        app_id="app",
    )
    channel.basic_publish("", queue, b"body", properties)

    message = connection.create_receiver(queue).receive(timeout=60)

    assert bytes(message.body) == b"body"
    assert (message.content_type, message.content_encoding) == ("text/plain", "utf-8")
    assert (message.id, message.correlation_id, message.reply_to, message.subject) == ("m", "c", "r", "kind")
    assert (message.durable, message.priority, message.ttl) == (True, 3, 60)
    assert (message.creation_time, message.user_id) == (1_700_000_000, b"guest")
    assert message.properties == {"text": "é", "number": 5}
    assert message.annotations["x-own"] == "annotation"
    assert message.annotations["nested"] == {"a": [1]}
    assert message.annotations["x-routing-key"] == queue
    assert message.annotations["x-basic-app-id"] == "app"


def test_properties_of_1_0_arrive_as_those_of_0_9_1(
    connection: BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    sent = Message(
        body="text",
        id="m",
        correlation_id="c",
        reply_to="r",
        subject="kind",
        content_type="text/plain",
        durable=True,
        priority=6,
        ttl=60,
        properties={"text": "é", "number": 5},
        annotations={symbol("x-own"): "annotation"},
    )
    connection.create_sender(queue).send(sent)

    _, properties, body = channel.basic_get(queue, auto_ack=True)

    assert body == b"text"
    assert properties is not None
    assert (properties.message_id, properties.correlation_id, properties.reply_to) == ("m", "c", "r")
    assert (properties.type, properties.content_type, properties.expiration) == ("kind", "text/plain", "60000")
    assert (properties.delivery_mode, properties.priority) == (2, 6)
    assert properties.headers == {"text": "é", "number": 5, "x-own": "annotation"}


def test_a_deleted_queue_detaches_its_receivers(
    connection: BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    receiver = connection.create_receiver(queue)
    channel.queue_delete(queue)

    with pytest.raises(LinkDetached) as caught:
        receiver.receive(timeout=60)
    assert caught.value.condition == "amqp:resource-deleted"


def test_a_full_queue_rejects(connection: BlockingConnection, channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    sender = connection.create_sender(name)
    sender.send(Message(body=1))

    with pytest.raises(SendException) as caught:
        sender.send(Message(body=2))

    assert caught.value.state == Delivery.REJECTED
