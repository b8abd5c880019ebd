"""kill -9 of a real server, and receivers of AMQP 1.0 that come back: durable sources and subscriptions."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from proton import Link, Message, Terminus
from proton.reactor import Container, ReceiverOption
from proton.utils import BlockingConnection, BlockingReceiver

from headrace.protocols.amqp10.performatives import (
    ACCEPTED,
    CONFIGURATION,
    NEVER,
    UNSETTLED_STATE,
    Attach,
    Detach,
    Disposition,
    Source,
    Transfer,
)
from headrace.wire.types import Described, Map, Symbol
from tests.amqp10_client import RawClient, credit, receiver
from tests.servers import Server

_QUEUE = "kept"
Connect = Callable[[], RawClient]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path)
    started.start()
    started.connect().channel().queue_declare(_QUEUE, durable=True)
    yield started
    started.kill()
    started.close_connections()


@pytest.fixture
def connect(server: Server) -> Iterator[Connect]:
    opened: list[RawClient] = []

    def client() -> RawClient:
        opened.append(RawClient(server.port, "resuming"))
        opened[-1].begin()
        return opened[-1]

    yield client
    for one in opened:
        one.close()


def _crash(server: Server) -> None:
    time.sleep(3)  # claims and settlements are durable within a second; a busy machine takes longer
    server.kill()
    server.start()


def _fill(server: Server, count: int) -> None:
    channel = server.connect().channel()
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("", _QUEUE, b"%d" % number)


def _lasting(terminus: Source | None, durable: int = UNSETTLED_STATE) -> None:
    assert terminus is not None
    terminus.durable = durable
    terminus.expiry_policy = NEVER


def test_what_a_receiver_had_not_settled_is_delivered_again(server: Server, connect: Connect) -> None:
    _fill(server, 3)
    client = connect()
    attach = receiver("r", _QUEUE)
    _lasting(attach.source)
    client.send(attach, credit(0, 2))
    tags = [client.expect(Transfer).tag for _ in range(2)]
    client.send(Disposition(0, True, 1, 1, True, ACCEPTED))
    _crash(server)

    attach.unsettled = Map([(tags[0], ACCEPTED.described())])
    client = connect()
    client.send(attach, credit(0, 3))
    assert client.expect(Attach).unsettled is None
    again = [client.expect(Transfer), client.expect(Transfer)]
    assert [(one.resume, one.settled, one.payload[-1:]) for one in again] == [
        (False, False, b"0"),
        (False, False, b"2"),
    ]


def test_a_receiver_that_remembers_nothing_gets_it_again(server: Server) -> None:
    class Durable(ReceiverOption):  # type: ignore[misc]
        def apply(self, receiver: Link) -> None:
            receiver.source.durability = Terminus.DELIVERIES
            receiver.source.expiry_policy = Terminus.EXPIRE_NEVER

    def subscribe() -> tuple[BlockingConnection, BlockingReceiver]:
        container = Container()
        container.container_id = "subscriber"
        opened = BlockingConnection(f"127.0.0.1:{server.port}", timeout=60, container=container)
        return opened, opened.create_receiver("news/today", name="subscription", credit=10, options=Durable())

    connection, subscription = subscribe()
    connection.create_sender("news/today").send(Message(body="unsettled"))
    assert subscription.receive(timeout=60).body == "unsettled"
    _crash(server)
    connection, subscription = subscribe()
    message = subscription.receive(timeout=60)

    assert (message.body, message.delivery_count) == ("unsettled", 1)
    connection.close()


def test_a_source_is_found_again_with_its_filter(server: Server, connect: Connect) -> None:
    client = connect()
    attach = receiver("r", _QUEUE)
    _lasting(attach.source, CONFIGURATION)
    assert attach.source is not None
    selector = Described(Symbol("apache.org:selector-filter:string"), "n = 1")
    attach.source.filter = Map([(Symbol("selector"), selector)])
    client.send(attach)
    client.expect(Attach)
    _crash(server)
    client = connect()
    channel = server.connect().channel()
    channel.basic_publish("", _QUEUE, b"not wanted")
    asking = receiver("r", "")
    asking.source = None
    client.send(asking, credit(0, 5))
    answer = client.expect(Attach)

    assert answer.source is not None
    assert (answer.source.address, answer.source.durable) == (_QUEUE, CONFIGURATION)
    assert answer.source.filter == attach.source.filter
    assert client.all_of(Transfer, 0) == []
    # A closed link leaves nothing behind.
    client.send(Detach(0, True))
    client.expect(Detach)
    _crash(server)
    client = connect()
    client.send(asking)
    refused = client.expect(Detach)
    assert refused.error is not None
    assert refused.error.condition == "amqp:not-found"
