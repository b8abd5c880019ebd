"""kill -9 of a real server, and links of AMQP 1.0 that go on afterwards: durable termini with what was unsettled."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from proton import Link, Message, Terminus
from proton.reactor import Container, ReceiverOption
from proton.utils import BlockingConnection, BlockingReceiver

from headrace.protocols.amqp10.frames import RECEIVER_SECOND
from headrace.protocols.amqp10.performatives import (
    ACCEPTED,
    CONFIGURATION,
    CONNECTION_CLOSE,
    NEVER,
    UNSETTLED_STATE,
    Accepted,
    Attach,
    Detach,
    Disposition,
    Modified,
    Source,
    Target,
    Transfer,
    state_of,
)
from headrace.protocols.amqp10.types import Described, Map, Symbol
from tests.amqp10_client import RawClient, body, credit, receiver, sender, transfer
from tests.servers import Server, drain

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
    time.sleep(3)  # what was delivered or settled is safe within a second, by itself; a busy machine takes longer
    server.kill()
    server.start()


def _fill(server: Server, count: int) -> None:
    channel = server.connect().channel()
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("", _QUEUE, b"%d" % number)


def _waiting(server: Server) -> int:
    return int(server.connect().channel().queue_declare(_QUEUE, passive=True).method.message_count)


def _lasting(terminus: Source | Target | None, durable: int = UNSETTLED_STATE) -> None:
    assert terminus is not None
    terminus.durable = durable
    terminus.expiry_policy = NEVER


def test_a_receiver_goes_on_with_what_it_had_not_settled(server: Server, connect: Connect) -> None:
    _fill(server, 6)
    client = connect()
    attach = receiver("r", _QUEUE)
    _lasting(attach.source)
    client.send(attach, credit(0, 5))
    tags = [client.expect(Transfer).tag for _ in range(5)]
    client.send(Disposition(0, True, 4, 4, True, ACCEPTED))
    _crash(server)
    assert _waiting(server) == 1, "what the receiver held is still its own"

    again = receiver("r", _QUEUE)
    _lasting(again.source)
    # It accepted the first, still has the second, failed with the third, and never got the fourth.
    failed = Modified(delivery_failed=True).described()
    again.unsettled = Map([(tags[0], ACCEPTED.described()), (tags[1], None), (tags[2], failed)])
    client = connect()
    client.send(again)
    answer = client.expect(Attach)
    assert answer.unsettled is not None
    assert [tag for tag, _ in answer.unsettled.pairs] == tags[:4]
    # A settled outcome is told once it is stored; the others do not wait for that.
    resumed = sorted([client.expect(Transfer) for _ in range(3)], key=lambda transfer: transfer.tag or b"")
    assert [(one.tag, one.resume, one.settled, bool(one.payload)) for one in resumed] == [
        (tags[0], True, True, False),
        (tags[1], True, False, True),
        (tags[2], True, True, False),
    ]
    client.send(Disposition(0, True, resumed[1].id, resumed[1].id, True, ACCEPTED), Detach(0, True))
    client.expect(Detach)

    assert drain(server.connect().channel(), _QUEUE, 3, quiet=1) == [b"2", b"3", b"5"]


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
    # What is closed is gone for good.
    client.send(Detach(0, True))
    client.expect(Detach)
    _crash(server)
    client = connect()
    client.send(asking)
    refused = client.expect(Detach)
    assert refused.error is not None
    assert refused.error.condition == "amqp:not-found"


def test_what_a_receiver_held_goes_back_when_its_time_is_over(server: Server, connect: Connect) -> None:
    _fill(server, 1)
    client = connect()
    attach = receiver("r", _QUEUE)
    _lasting(attach.source)
    assert attach.source is not None
    attach.source.expiry_policy, attach.source.timeout = CONNECTION_CLOSE, 1
    client.send(attach, credit(0, 1))
    client.expect(Transfer)
    _crash(server)

    assert drain(server.connect().channel(), _QUEUE, 1) == [b"0"]


def test_a_sender_that_goes_on_has_nothing_stored_twice(server: Server, connect: Connect) -> None:
    def attach() -> Attach:
        asked = sender("s", _QUEUE)
        asked.receiver_settles = RECEIVER_SECOND
        _lasting(asked.target if isinstance(asked.target, Target) else None)
        return asked

    client = connect()
    client.send(attach(), *[transfer(number, body(f"{number}")) for number in range(3)])
    accepted: set[int] = set()
    while len(accepted) < 3:
        told = client.expect(Disposition)
        assert (told.settled, type(told.state)) == (False, Accepted)
        accepted |= set(range(told.first, told.last + 1))
    client.send(Disposition(0, False, 0, 0, True, ACCEPTED))
    _crash(server)

    # It settled the first; of the others it does not know, and the last it never sent.
    client = connect()
    again = attach()
    again.unsettled = Map([(b"%d" % number, None) for number in (1, 2, 3)])
    client.send(again)
    answer = client.expect(Attach)
    assert answer.unsettled is not None
    known = {tag: state_of(state) for tag, state in answer.unsettled.pairs if isinstance(state, Described)}
    assert {tag: type(state) for tag, state in known.items()} == {b"1": Accepted, b"2": Accepted}
    client.send(
        transfer(0, body("1"), tag=b"1", resume=True),
        transfer(1, body("2"), tag=b"2", resume=True),
        transfer(2, body("3"), tag=b"3"),
    )
    accepted = set()
    while len(accepted) < 3:
        told = client.expect(Disposition)
        assert isinstance(told.state, Accepted)
        accepted |= set(range(told.first, told.last + 1))
    client.send(Disposition(0, False, 0, 2, True, ACCEPTED), Detach(0, False))
    client.expect(Detach)
    _crash(server)

    # All is settled: nothing is known any more, and each message is there once.
    client = connect()
    again.unsettled = Map([(b"%d" % number, None) for number in range(4)])
    client.send(again)
    answer = client.expect(Attach)
    assert answer.unsettled == Map()
    assert drain(server.connect().channel(), _QUEUE, 4, quiet=1) == [b"0", b"1", b"2", b"3"]
