"""Answers that promise something durable: they come when it is, in order, and hold up nothing that need not wait."""

from typing import Any, cast

import pytest
from pamqp import base, commands

from headrace.core.queue.definition import declared
from headrace.errors import Unavailable
from headrace.net.connection import Wire
from headrace.protocols.amqp091.codec import encode_content
from headrace.protocols.amqp091.connection import Connection
from headrace.protocols.amqp091.frames import METHOD, PROTOCOL_HEADER
from headrace.protocols.amqp091.methods import encode_method
from headrace.protocols.amqp091.server import Server
from tests.endpoints import access_to
from tests.house import House
from tests.refusing_engine import RefusingEngine
from tests.wires import FakeWire

_DURABLE: dict[str, Any] = {"queue": "d", "durable": True}
_EXCHANGE: dict[str, Any] = {"exchange": "e", "exchange_type": "fanout", "durable": True}


class _Client:
    """A connection with two channels to a broker whose storage has a door."""

    def __init__(self) -> None:
        self.engine = RefusingEngine()
        self.house = House(self.engine)
        self.connection = Connection(
            Server(*access_to(self.house.broker, clock=self.house.clock), "test"), self.house.clock
        )
        self.wire = FakeWire()
        self.connection.opened(cast("Wire", self.wire))
        start = {"mechanism": "PLAIN", "response": b"\0guest\0guest"}
        self.connection.feed(PROTOCOL_HEADER + encode_method(0, commands.Connection.StartOk, start))
        self.connection.feed(encode_method(0, commands.Connection.TuneOk))
        self.connection.feed(encode_method(0, commands.Connection.Open, {"virtual_host": "/"}))
        self.connection.feed(encode_method(1, commands.Channel.Open) + encode_method(2, commands.Channel.Open))
        self.heard()

    def say(self, kind: type[base.Frame], channel: int = 1, **fields: object) -> list[str]:
        """Send a method; the names of what is answered, as far as the door lets it."""
        self.connection.feed(encode_method(channel, kind, fields))
        return self.heard()

    def publish(self, queue: str, body: bytes) -> list[str]:
        method = encode_method(1, commands.Basic.Publish, {"exchange": "", "routing_key": queue})
        self.connection.feed(method + encode_content(1, b"\0\0", body, 4096))
        return self.heard()

    def heard(self) -> list[str]:
        self.house.turn()
        self.wire.flush()
        sent, self.wire.sent = self.wire.sent, []
        return _names_of(b"".join(sent))

    def open_door(self) -> list[str]:
        self.engine.open_door()
        return self.heard()


def _names_of(data: bytes) -> list[str]:
    """The methods in these frames."""
    names: list[str] = []
    while data:
        size = int.from_bytes(data[3:7])
        if data[0] == METHOD:
            names.append(commands.INDEX_MAPPING[int.from_bytes(data[7:11])].__qualname__)
        data = data[8 + size :]
    return names


@pytest.fixture
def client() -> _Client:
    made = _Client()
    made.say(commands.Queue.Declare, queue="there", durable=True)
    made.say(commands.Queue.Declare, queue="brief", exclusive=True)
    made.engine.is_closed_door = True
    return made


@pytest.mark.parametrize(
    ("kind", "fields", "answer"),
    [
        (commands.Queue.Declare, _DURABLE, "Queue.DeclareOk"),
        (commands.Queue.Bind, {"queue": "there", "exchange": "amq.topic"}, "Queue.BindOk"),
        (commands.Queue.Delete, {"queue": "there"}, "Queue.DeleteOk"),
        (
            commands.Exchange.Declare,
            {"exchange": "e", "exchange_type": "fanout", "durable": True},
            "Exchange.DeclareOk",
        ),
        (commands.Exchange.Bind, {"source": "amq.topic", "destination": "amq.fanout"}, "Exchange.BindOk"),
    ],
)
def test_an_answer_comes_once_it_would_survive_a_crash(
    client: _Client, kind: type[base.Frame], fields: dict[str, Any], answer: str
) -> None:
    assert client.say(kind, **fields) == []
    assert client.open_door() == [answer]


@pytest.mark.parametrize(
    ("made", "kind", "fields", "answer"),
    [
        ("bind", commands.Queue.Unbind, {"queue": "there", "exchange": "amq.topic"}, "Queue.UnbindOk"),
        ("exchange", commands.Exchange.Delete, {"exchange": "e"}, "Exchange.DeleteOk"),
        ("message", commands.Queue.Purge, {"queue": "there"}, "Queue.PurgeOk"),
    ],
)
def test_what_is_gone_stays_gone(made: str, kind: type[base.Frame], fields: dict[str, Any], answer: str) -> None:
    client = _Client()
    client.say(commands.Queue.Declare, queue="there", durable=True)
    if made == "bind":
        client.say(commands.Queue.Bind, queue="there", exchange="amq.topic")
    elif made == "exchange":
        client.say(commands.Exchange.Declare, **_EXCHANGE)
    else:
        client.publish("there", b"x")
    client.engine.is_closed_door = True

    assert client.say(kind, **fields) == []
    assert client.open_door() == [answer]


def test_nothing_waits_for_what_is_kept_already_or_never(client: _Client) -> None:
    asked = client.engine.attempts
    assert client.say(commands.Queue.Declare, queue="there", durable=True) == ["Queue.DeclareOk"]
    assert client.say(commands.Queue.Declare, queue="there", passive=True) == ["Queue.DeclareOk"]
    assert client.say(commands.Queue.Declare, queue="mine", exclusive=True) == ["Queue.DeclareOk"]
    assert client.say(commands.Queue.Bind, queue="mine", exchange="amq.topic") == ["Queue.BindOk"]
    assert client.say(commands.Queue.Unbind, queue="mine", exchange="amq.topic") == ["Queue.UnbindOk"]
    assert client.say(commands.Queue.Delete, queue="mine") == ["Queue.DeleteOk"]
    assert client.engine.attempts == asked, "none of this is stored"


def test_another_client_that_declares_the_same_waits_too_and_stores_nothing_more(client: _Client) -> None:
    client.say(commands.Queue.Declare, **_DURABLE)
    asked = client.engine.attempts
    assert client.say(commands.Queue.Declare, 2, **_DURABLE) == []
    assert client.open_door() == ["Queue.DeclareOk", "Queue.DeclareOk"]
    assert client.engine.attempts == asked + 1, "the one that waited at the door came again"


def test_what_follows_on_the_channel_waits_in_order_and_another_channel_does_not(client: _Client) -> None:
    client.say(commands.Confirm.Select, nowait=True)
    assert client.say(commands.Queue.Declare, **_DURABLE) == []
    assert client.say(commands.Basic.Qos, prefetch_count=1) == []
    assert client.say(commands.Queue.Declare, queue="e", durable=True) == []
    assert client.publish("d", b"x") == []
    assert client.say(commands.Basic.Consume, queue="d") == []
    assert client.say(commands.Basic.Qos, 2, prefetch_count=1) == ["Basic.QosOk"]

    heard = client.open_door()

    assert heard[:4] == ["Queue.DeclareOk", "Basic.QosOk", "Queue.DeclareOk", "Basic.ConsumeOk"]
    assert sorted(heard[4:]) == ["Basic.Ack", "Basic.Deliver"]
    assert client.wire.withheld_bytes == 0


def test_deliveries_wait_in_their_queue_as_long_as_answers_do(client: _Client) -> None:
    client.say(commands.Basic.Consume, queue="brief", no_ack=True)
    client.say(commands.Queue.Declare, **_DURABLE)
    assert client.publish("brief", b"x") == []
    assert client.house.broker.topology.queue("brief").messages == 1
    assert client.open_door() == ["Queue.DeclareOk", "Basic.Deliver"]


def test_a_refusal_comes_after_the_answers_before_it(client: _Client) -> None:
    client.say(commands.Queue.Declare, **_DURABLE)
    assert client.say(commands.Queue.Declare, queue="missing", passive=True) == []
    assert client.open_door() == ["Queue.DeclareOk", "Channel.Close"]


def test_a_channel_that_is_closed_meanwhile_hears_no_more(client: _Client) -> None:
    client.say(commands.Queue.Declare, **_DURABLE)
    assert client.say(commands.Channel.Close) == ["Channel.CloseOk"]
    assert client.say(commands.Channel.Open) == ["Channel.OpenOk"]
    assert client.open_door() == []
    assert client.wire.withheld_bytes == 0
    assert client.say(commands.Queue.Declare, **_DURABLE) == ["Queue.DeclareOk"]


def test_a_declaration_that_cannot_be_stored_ends_the_connection_with_the_reason(client: _Client) -> None:
    client.engine.failure, client.engine.fails_all = Unavailable("the store is away"), True
    assert client.say(commands.Queue.Declare, **_DURABLE) == ["Connection.Close"]


def test_many_declarations_that_follow_each_other_are_few_commits(client: _Client) -> None:
    client.engine.is_closed_door = False
    before = len(client.engine.committed)
    frames = [encode_method(1, commands.Queue.Declare, {"queue": f"q{n}", "durable": True}) for n in range(100)]
    client.connection.feed(b"".join(frames))
    assert client.heard() == ["Queue.DeclareOk"] * 100
    assert len(client.engine.committed) - before <= 2


def test_a_queue_declared_by_the_broker_itself_is_waited_for(client: _Client) -> None:
    client.house.broker.declare(declared("d", durable=True))
    assert client.say(commands.Queue.Declare, queue="d", passive=True) == []
    assert client.open_door() == ["Queue.DeclareOk"]
