"""What JMS over AMQP 1.0 relies on, driven by proton: browsing, subscriptions, temporary destinations, client ids."""

import uuid
from collections.abc import Callable, Iterator

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel
from proton import (
    UNDESCRIBED,
    Array,
    ConnectionException,
    Data,
    Delivery,
    Described,
    Link,
    Message,
    Terminus,
    byte,
    symbol,
    timestamp,
    ulong,
)
from proton.reactor import Container, Copy, Filter, LinkOption, Selector
from proton.utils import BlockingConnection, BlockingReceiver, LinkDetached, SendException

from tests.servers import Server

Connect = Callable[..., BlockingConnection]


@pytest.fixture
def connect(server: Server) -> Iterator[Connect]:
    opened: list[BlockingConnection] = []

    def client(container_id: str = "", **options: object) -> BlockingConnection:
        container = Container()
        container.container_id = container_id or str(uuid.uuid4())
        opened.append(BlockingConnection(f"127.0.0.1:{server.port}", timeout=60, container=container, **options))
        return opened[-1]

    yield client
    for one in opened:
        one.close()


class _Terminus(LinkOption):
    """Capabilities, and how long the source is to stay."""

    def __init__(self, *capabilities: str, stays: bool = False) -> None:
        self._capabilities = [symbol(name) for name in capabilities]
        self._stays = stays

    def apply(self, link: Link) -> None:
        terminus = link.target if link.is_sender else link.source
        terminus.capabilities.put_object(Array(UNDESCRIBED, Data.SYMBOL, *self._capabilities))
        if self._stays:
            terminus.durability = Terminus.DELIVERIES
            terminus.expiry_policy = Terminus.EXPIRE_NEVER


_NO_LOCAL = Filter({symbol("no-local"): Described(ulong(0x0000468C00000003), "NoLocalFilter{}")})


def _receiver(
    client: BlockingConnection, address: str, credit: int, name: str = "", options: object = None
) -> BlockingReceiver:
    """A receiver that has so much credit and gets no more by itself."""
    receiver = client.create_receiver(address, credit=0, name=name or None, options=options)
    receiver.link.flow(credit)
    return receiver


def _detach(receiver: BlockingReceiver) -> None:
    """Detach it, and wait until the server knows: proton may write what comes next first, so two round trips."""
    receiver.detach()
    for _ in range(2):
        receiver.connection.create_sender(None, name=str(uuid.uuid4()))


def _received(receiver: BlockingReceiver, count: int) -> list[object]:
    """So many messages, accepted; no credit is given for them, as proton's own `receive` would."""
    bodies: list[object] = []
    for _ in range(count):
        receiver.connection.wait(lambda: receiver.fetcher.has_message, timeout=60)
        bodies.append(receiver.fetcher.pop().body)
        receiver.accept()
    return bodies


def _left(connection: BlockingConnection, receiver: BlockingReceiver) -> list[object]:
    """What else comes until the sender says that there is no more."""
    receiver.link.drain(100)
    connection.wait(lambda: receiver.link.credit == 0, timeout=60)
    bodies: list[object] = []
    while receiver.fetcher.has_message:
        bodies.append(receiver.fetcher.pop().body)
    return bodies


# -- browsing --------------------------------------------------------------------------------------------------------


def test_a_browser_sees_everything_in_order_and_takes_nothing(
    connect: Connect, channel: BlockingChannel, queue: str
) -> None:
    client = connect()
    sender = client.create_sender(queue)
    for number in range(5):
        sender.send(Message(body=number, properties={"n": number}))
    holder = _receiver(client, queue, 2, name="holder")
    client.wait(lambda: holder.fetcher.has_message, timeout=60)  # it holds the first two, and settles neither
    browser = _receiver(client, queue, 3, name="browser", options=Copy())
    seen = _received(browser, 3)
    later = _left(client, browser)
    picky = _receiver(client, queue, 1, name="picky", options=[Copy(), Selector("n > 3")])

    assert seen == [0, 1, 2]
    assert later == [3, 4]
    assert _received(picky, 1) == [4]
    assert channel.queue_declare(queue, passive=True).method.message_count == 3
    assert _received(_receiver(client, queue, 3, name="taker"), 3) == [2, 3, 4]


def test_a_browser_at_the_end_sees_what_comes_and_no_more_than_it_asks_for(connect: Connect, queue: str) -> None:
    client = connect()
    browser = _receiver(client, queue, 2, name="browser", options=Copy())
    sender = client.create_sender(queue)
    for number in range(4):
        sender.send(Message(body=number))

    assert _received(browser, 2) == [0, 1]
    assert not browser.fetcher.has_message
    browser.link.flow(1)
    assert _received(browser, 1) == [2]


def test_a_browser_of_a_deep_queue_finds_the_one_it_wants_before_it_is_told_that_there_is_no_more(
    connect: Connect, channel: BlockingChannel, queue: str
) -> None:
    for _ in range(6000):
        channel.basic_publish("", queue, b"hay")
    client = connect()
    client.create_sender(queue).send(Message(body="needle", properties={"n": 1}))
    browser = client.create_receiver(queue, name="b", credit=0, options=[Copy(), Selector("n = 1")])
    taker = client.create_receiver(queue, name="t", credit=0, options=Selector("n = 1"))

    assert _left(client, browser) == ["needle"]
    assert _left(client, taker) == ["needle"]


def test_a_browser_of_a_queue_that_is_deleted_is_detached(
    connect: Connect, channel: BlockingChannel, queue: str
) -> None:
    browser = _receiver(connect(), queue, 1, options=Copy())
    channel.queue_delete(queue)

    with pytest.raises(LinkDetached, match="resource-deleted"):
        browser.receive(timeout=60)


# -- subscriptions ---------------------------------------------------------------------------------------------------


def test_a_subscription_keeps_only_what_its_selector_wants(
    connect: Connect, channel: BlockingChannel, name: str
) -> None:
    client = connect(name)
    picky = [_Terminus("topic", stays=True), Selector("n > 1")]
    receiver = _receiver(client, "topics/selected", 0, name="picky", options=picky)
    sender = client.create_sender("topics/selected")
    for number in range(4):
        sender.send(Message(body=number, properties={"n": number}))

    assert channel.queue_declare(f"{name}:picky", passive=True).method.message_count == 2
    receiver.link.flow(5)
    assert _received(receiver, 2) == [2, 3]


def test_a_subscription_that_wants_something_else_begins_anew(connect: Connect, name: str) -> None:
    client = connect(name)
    _detach(_receiver(client, "topics/one", 0, name="changing", options=_Terminus("topic", stays=True)))
    sender = client.create_sender("topics/one")
    sender.send(Message(body="forgotten"))
    _detach(_receiver(client, "topics/two", 0, name="changing", options=_Terminus("topic", stays=True)))
    sender.send(Message(body="not wanted any more"))
    client.create_sender("topics/two").send(Message(body="wanted"))
    receiver = _receiver(client, "topics/two", 5, name="changing", options=_Terminus("topic", stays=True))

    assert _received(receiver, 1) == ["wanted"]
    assert _left(client, receiver) == []


@pytest.mark.parametrize("stays", [False, True])
def test_links_share_a_subscription(connect: Connect, name: str, stays: bool) -> None:
    options = _Terminus("topic", "shared", stays=stays)
    first, second = connect(f"{name}-1"), connect(f"{name}-1")
    one = _receiver(first, "topics/shared", 2, name="sub|1", options=options)
    two = _receiver(second, "topics/shared", 2, name="sub|2", options=options)
    sender = first.create_sender("topics/shared")
    for number in range(4):
        sender.send(Message(body=number))

    assert {*_received(one, 2), *_received(two, 2)} == {0, 1, 2, 3}
    if stays:
        _detach(one)
        _detach(two)
        sender.send(Message(body="kept"))
        again = _receiver(second, "topics/shared", 2, name="sub|1", options=options)
        assert _received(again, 1) == ["kept"]
    else:
        one.close()
        two.close()
        with pytest.raises(LinkDetached, match="not-found"):
            first.create_receiver(f"/queues/{name.replace('[', '%5B').replace(']', '%5D')}-1%3Asub", name="gone")


def test_containers_share_a_global_subscription(connect: Connect) -> None:
    options = _Terminus("topic", "shared", "global")
    first, second = connect(), connect()
    one = _receiver(first, "topics/global", 1, name="everybody|global1", options=options)
    two = _receiver(second, "topics/global", 1, name="everybody|global1", options=options)
    sender = first.create_sender("topics/global")
    for number in range(2):
        sender.send(Message(body=number))

    assert {*_received(one, 1), *_received(two, 1)} == {0, 1}


def test_a_subscriber_need_not_hear_itself(connect: Connect, name: str) -> None:
    client, other = connect(name), connect()
    receiver = _receiver(client, "topics/echo", 1, options=_NO_LOCAL)
    for publisher, body in ((client, "mine"), (other, "theirs"), (client, "mine again"), (other, "theirs again")):
        publisher.create_sender("topics/echo", name=body).send(Message(body=body))

    assert _received(receiver, 1) == ["theirs"]
    receiver.link.flow(1)
    assert _received(receiver, 1) == ["theirs again"]


# -- destinations ----------------------------------------------------------------------------------------------------


def test_a_temporary_queue_lives_as_long_as_the_link_that_made_it(connect: Connect) -> None:
    client, other = connect(), connect()
    maker = client.create_sender(None, options=[_Dynamic(), _Terminus("temporary-queue")])
    address = maker.link.remote_target.address
    receiver = _receiver(client, address, 1)
    other.create_sender(address).send(Message(body="hello"))
    assert _received(receiver, 1) == ["hello"]
    receiver.close()
    maker.close()

    with pytest.raises(LinkDetached, match="not-found"):
        other.create_sender(address, name="too late")


def test_a_temporary_topic_reaches_all_who_know_it(connect: Connect) -> None:
    client, other = connect(), connect()
    maker = client.create_sender(None, options=[_Dynamic(), _Terminus("temporary-topic")])
    address = maker.link.remote_target.address
    one = _receiver(client, address, 5, options=_Terminus("temporary-topic"))
    two = _receiver(other, address, 5, options=_Terminus("temporary-topic"))
    maker.send(Message(body="hello"))

    assert (_received(one, 1), _received(two, 1)) == (["hello"], ["hello"])


class _Dynamic(LinkOption):
    def apply(self, link: Link) -> None:
        link.target.dynamic = True
        link.target.address = None


def test_a_sender_without_an_address_says_with_each_message_what_kind_it_goes_to(connect: Connect, name: str) -> None:
    client = connect()
    topic = _receiver(client, name, 5, options=_Terminus("topic"))
    sender = client.create_sender(None)
    for kind, body in ((0, "to the queue"), (1, "to the topic")):
        sender.send(Message(address=name, body=body, annotations={symbol("x-opt-jms-dest"): byte(kind)}))

    assert _received(topic, 1) == ["to the topic"]
    assert _received(_receiver(client, name, 5, name="queue"), 1) == ["to the queue"]


def test_a_message_for_later_waits_until_then(connect: Connect, queue: str) -> None:
    client = connect()
    sender = client.create_sender(queue)
    never = timestamp(32503680000000)  # the year 3000
    sender.send(Message(body="far away", annotations={symbol("x-opt-delivery-time"): never}))
    sender.send(Message(body="soon", annotations={symbol("x-opt-delivery-delay"): ulong(200)}))
    sender.send(Message(body="now", annotations={symbol("x-opt-delivery-time"): timestamp(1)}))
    receiver = _receiver(client, queue, 3)

    assert _received(receiver, 2) == ["now", "soon"]
    assert _left(client, receiver) == []


def test_a_time_that_is_none_is_rejected(connect: Connect, queue: str) -> None:
    sender = connect().create_sender(queue)

    with pytest.raises(SendException) as caught:
        sender.send(Message(body="x", annotations={symbol("x-opt-delivery-time"): "tomorrow"}))
    assert caught.value.state == Delivery.REJECTED


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("topic", ["t.a+b", "a+b/c", "l/m+", "x/+/y", "dots.and/levels", "w#x"])
def test_a_topic_that_is_sent_to_is_the_one_that_is_received_from(connect: Connect, topic: str, stays: bool) -> None:
    client = connect()
    receiver = _receiver(client, topic, 5, name="r", options=_Terminus("topic", stays=stays))
    client.create_sender(topic, options=_Terminus("topic")).send(Message(body="by link"))
    anonymous = client.create_sender(None, name="anonymous")
    anonymous.send(Message(body="by message", address=topic, annotations={symbol("x-opt-jms-dest"): byte(1)}))

    assert _received(receiver, 2) == ["by link", "by message"]
    receiver.close()


# -- selectors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        ("JMSXGroupID = 'g1'", {"group_id": "g1"}),
        ("JMSXGroupSeq = 7", {"group_id": "g1", "group_sequence": 7}),
        ("JMSXUserID = 'guest'", {"user_id": b"guest"}),
        ("JMSMessageID = 'ID:1'", {"id": "ID:1"}),
        ("JMSCorrelationID = 'c'", {"correlation_id": "c"}),
        ("JMSType = 't'", {"subject": "t"}),
        ("JMSPriority = 4", {}),
        ("JMSPriority = 9", {"priority": 9}),
        ("JMSTimestamp > 0", {}),
        ("JMSDeliveryMode = 'PERSISTENT'", {"durable": True}),
        ("JMSDeliveryMode = 'NON_PERSISTENT'", {}),
    ],
)
def test_a_selector_finds_messages_by_the_names_of_jms(
    server: Server, connect: Connect, queue: str, selector: str, said: dict[str, object]
) -> None:
    container = Container()
    client = BlockingConnection(f"amqp://guest:guest@127.0.0.1:{server.port}", timeout=60, container=container)
    receiver = _receiver(client, queue, 5, options=Selector(selector))
    client.create_sender(queue).send(Message(body="found", **said))

    assert _received(receiver, 1) == ["found"]
    client.close()


def test_the_group_of_a_message_is_a_header_to_others_and_a_header_of_others_is_its_group(
    connect: Connect, channel: BlockingChannel, queue: str
) -> None:
    client = connect()
    client.create_sender(queue).send(Message(body=b"x", inferred=True, group_id="g1", group_sequence=7))
    _, properties, _ = channel.basic_get(queue, auto_ack=True)
    assert properties is not None
    channel.basic_publish("", queue, b"back", BasicProperties(headers=properties.headers))
    receiver = _receiver(client, queue, 1)
    client.wait(lambda: receiver.fetcher.has_message, timeout=60)
    back = receiver.fetcher.pop()

    assert properties.headers == {"JMSXGroupID": "g1", "JMSXGroupSeq": 7}
    assert (back.group_id, back.group_sequence) == ("g1", 7)


# -- connections -----------------------------------------------------------------------------------------------------


def test_a_container_that_wants_to_be_alone_is_the_only_one_of_its_id(connect: Connect, name: str) -> None:
    alone = [symbol("sole-connection-for-container")]
    first = connect(name, desired_capabilities=alone)
    for options in ({"desired_capabilities": alone}, {}):
        with pytest.raises(ConnectionException) as caught:
            connect(name, **options)
        assert "invalid-field" in str(caught.value)
    first.close()
    again = connect(name, desired_capabilities=alone)

    assert symbol("sole-connection-for-container") in list(again.conn.remote_offered_capabilities)


@pytest.mark.parametrize(
    ("said", "product"),
    [
        ({symbol("product"): "QpidJMS"}, "Headrace"),
        ({symbol("product"): "RabbitMQ AMQP 1.0 Java client"}, "RabbitMQ"),
        ({}, "RabbitMQ"),
    ],
)
def test_a_client_is_told_whose_server_it_speaks_to(connect: Connect, said: dict[object, object], product: str) -> None:
    remote = connect(properties=said).conn.remote_properties

    assert remote["product"] == product
    assert ("Headrace" in remote.get("platform", "")) == (product == "RabbitMQ")
