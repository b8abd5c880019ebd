"""A channel as its client sees it, without a network: deliveries, acknowledgements, confirms, returns, transactions."""

import gc
import random
from typing import Any, cast

import pytest
from pamqp import base, commands, frame

from headrace.core.queue.definition import QueueDefinition
from headrace.core.queue.queue import Queue
from headrace.net.connection import Wire
from headrace.protocols.amqp091.codec import encode_content
from headrace.protocols.amqp091.connection import Connection
from headrace.protocols.amqp091.frames import BODY, HEADER, METHOD, PROTOCOL_HEADER
from headrace.protocols.amqp091.methods import encode_method
from headrace.protocols.amqp091.server import Server
from headrace.wire.amqp091 import decode_properties, encode_properties
from headrace.wire.properties import Properties
from tests.endpoints import access_to
from tests.house import House
from tests.refusing_engine import RefusingEngine
from tests.wires import FakeWire

_REPLY_TO = "amq.rabbitmq.reply-to"
_BASIC = commands.Basic


class _Client:
    """A connection to a broker; what it is told comes back as short texts."""

    def __init__(self, house: House | None = None) -> None:
        self.house = house or House(RefusingEngine())
        self.connection = Connection(
            Server(*access_to(self.house.broker, clock=self.house.clock), "test"), self.house.clock
        )
        self.wire = FakeWire()
        self.properties = Properties()
        """Those of what was last received."""
        self.connection.opened(cast("Wire", self.wire))
        can = {"capabilities": {"consumer_cancel_notify": True}}
        start = {"mechanism": "PLAIN", "response": b"\0guest\0guest", "client_properties": can}
        self.connection.feed(PROTOCOL_HEADER + encode_method(0, commands.Connection.StartOk, start))
        self.connection.feed(encode_method(0, commands.Connection.TuneOk))
        self.connection.feed(encode_method(0, commands.Connection.Open, {"virtual_host": "/"}))
        for channel in (1, 2):
            self.connection.feed(encode_method(channel, commands.Channel.Open))
        self.heard()

    @property
    def engine(self) -> RefusingEngine:
        return cast("RefusingEngine", self.house.engine)

    def say(self, kind: type[base.Frame], channel: int = 1, **fields: object) -> list[str]:
        """Send a method; what is answered."""
        self.connection.feed(encode_method(channel, kind, fields))
        return self.heard()

    def publish(self, queue: str, *bodies: str, exchange: str = "", channel: int = 1, **more: Any) -> list[str]:
        """Publish these; what is answered."""
        properties = Properties(more.pop("headers", None))
        for name in ("expiration", "reply_to", "user_id"):
            setattr(properties, name, more.pop(name, ""))
        method = encode_method(channel, _BASIC.Publish, {"exchange": exchange, "routing_key": queue, **more})
        said = encode_properties(properties)
        for body in bodies:
            self.connection.feed(method + encode_content(channel, said, body.encode(), 4096))
        return self.heard()

    def feed_publish(self, queue: str, body: str) -> None:
        """Publish without a look at the answers."""
        method = encode_method(1, _BASIC.Publish, {"routing_key": queue})
        self.connection.feed(method + encode_content(1, encode_properties(Properties()), body.encode(), 4096))

    def consume(self, queue: str, tag: str = "c", channel: int = 1, **more: object) -> list[str]:
        """Consume; what comes after the answer."""
        first, *rest = self.say(_BASIC.Consume, channel, queue=queue, consumer_tag=tag, **more)
        assert first == "ConsumeOk", first
        return rest

    def ack(self, tag: int, multiple: bool = False, channel: int = 1) -> list[str]:
        return self.say(_BASIC.Ack, channel, delivery_tag=tag, multiple=multiple)

    def nack(self, tag: int, multiple: bool = False, requeue: bool = True) -> list[str]:
        return self.say(_BASIC.Nack, delivery_tag=tag, multiple=multiple, requeue=requeue)

    def get(self, queue: str, no_ack: bool = False, channel: int = 1) -> list[str]:
        return self.say(_BASIC.Get, channel, queue=queue, no_ack=no_ack)

    def heard(self) -> list[str]:
        self.house.turn()
        self.wire.flush()
        self.house.turn()
        self.wire.flush()
        sent, self.wire.sent = self.wire.sent, []
        return self._texts(b"".join(sent))

    def left(self, queue: str) -> list[str]:
        """Messages of a queue as a restarted broker has them."""
        self.house.run()
        found = House(self.house.engine).broker.queue(queue)
        return [message.payload.decode() for _, message in found.browse(0, 1000)]

    def _texts(self, data: bytes) -> list[str]:
        texts: list[str] = []
        while data:
            size = 8 + int.from_bytes(data[3:7])
            if data[0] == METHOD:
                texts.append(_text(frame.unmarshal(data[:size])[2]))
            elif data[0] == HEADER:
                self.properties = decode_properties(data[19 : size - 1])
            elif data[0] == BODY:
                texts[-1] += " " + data[7 : size - 1].decode()
            data = data[size:]
        return texts


def _text(method: Any) -> str:
    """A method in a few words; deliveries that come again have a star."""
    again = "*" if getattr(method, "redelivered", False) else ""
    if isinstance(method, _BASIC.Deliver):
        return f"{method.consumer_tag} {method.delivery_tag}{again}"
    if isinstance(method, _BASIC.GetOk):
        return f"got {method.delivery_tag}{again} and {method.message_count}"
    if isinstance(method, _BASIC.Return):
        return f"return {method.reply_code} {method.exchange}:{method.routing_key}"
    if isinstance(method, _BASIC.Ack):
        return f"ack {'up to ' if method.multiple else ''}{method.delivery_tag}"
    if isinstance(method, _BASIC.Nack):
        return f"nack {method.delivery_tag}"
    if isinstance(method, _BASIC.Cancel):
        return f"cancel {method.consumer_tag}"
    if isinstance(method, commands.Channel.Close | commands.Connection.Close):
        return f"{type(method).__qualname__} {method.reply_code}"
    return type(method).__name__


@pytest.fixture
def client() -> _Client:
    made = _Client()
    made.say(commands.Queue.Declare, queue="q", durable=True)
    return made


# -- acknowledgements --------------------------------------------------------------------------------------------------


def test_deliveries_are_numbered_and_one_that_is_acknowledged_is_gone(client: _Client) -> None:
    client.consume("q")

    assert client.publish("q", *"abc") == ["c 1 a", "c 2 b", "c 3 c"]
    assert client.ack(2) == []

    assert client.left("q") == ["a", "c"]


def test_an_acknowledgement_of_several_is_for_those_up_to_it(client: _Client) -> None:
    client.consume("q")
    client.publish("q", *"abcd")
    client.ack(1)

    client.ack(3, multiple=True)

    assert client.left("q") == ["d"]


def test_an_acknowledgement_of_several_up_to_0_is_for_all(client: _Client) -> None:
    client.consume("q")
    client.publish("q", *"abcd")

    assert client.ack(0, multiple=True) == []

    assert client.left("q") == []


@pytest.mark.parametrize("multiple", [False, True])
@pytest.mark.parametrize("tag", [1, 4])
def test_an_acknowledgement_of_what_is_not_out_ends_the_channel_and_the_rest_comes_back(
    client: _Client, tag: int, multiple: bool
) -> None:
    client.consume("q")
    client.publish("q", *"abc")
    client.ack(1)

    assert client.ack(tag, multiple) == ["Channel.Close 406"]

    assert client.consume("q", channel=2) == ["c 1* b", "c 2* c"]


def test_an_acknowledgement_of_one_with_the_number_0_ends_the_channel(client: _Client) -> None:
    client.consume("q")
    client.publish("q", "a")

    assert client.ack(0) == ["Channel.Close 406"]


def test_a_row_of_acknowledgements_settles_each_of_them(client: _Client) -> None:
    client.consume("q")
    client.publish("q", *"abcde")

    acks = [encode_method(1, _BASIC.Ack, {"delivery_tag": tag}) for tag in (2, 3, 4)]
    client.connection.feed(b"".join(acks))

    assert client.heard() == []
    assert client.left("q") == ["a", "e"]


def test_what_is_rejected_comes_back_or_is_gone(client: _Client) -> None:
    client.consume("q")
    client.publish("q", *"abcd")

    assert client.say(_BASIC.Reject, delivery_tag=1, requeue=True) == ["c 5* a"]
    assert client.say(_BASIC.Reject, delivery_tag=2, requeue=False) == []
    assert client.nack(3, requeue=True) == ["c 6* c"]
    assert client.nack(4, requeue=False) == []

    assert client.left("q") == ["a", "c"]


@pytest.mark.parametrize(("requeue", "left"), [(True, ["a", "b", "c"]), (False, ["c"])])
def test_several_are_rejected_up_to_one_of_them(client: _Client, requeue: bool, left: list[str]) -> None:
    client.consume("q", no_ack=False)
    client.publish("q", *"abc")

    said = client.nack(2, multiple=True, requeue=requeue)

    assert said == (["c 4* a", "c 5* b"] if requeue else [])
    assert client.left("q") == left


def test_all_that_is_out_is_rejected_up_to_0(client: _Client) -> None:
    client.consume("q")
    client.publish("q", *"abc")

    assert client.nack(0, multiple=True, requeue=False) == []
    assert client.left("q") == []


def test_a_rejection_of_what_is_not_out_ends_the_channel(client: _Client) -> None:
    client.consume("q")
    client.publish("q", "a")

    assert client.nack(2) == ["Channel.Close 406"]


def test_a_recovery_brings_all_that_is_out_once_more_and_does_not_count_as_a_failure(client: _Client) -> None:
    client.say(
        commands.Queue.Declare, queue="once", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 1}
    )
    client.consume("once")
    client.publish("once", *"ab")

    for number in (3, 5, 7):
        assert client.say(_BASIC.Recover, requeue=True) == ["RecoverOk", f"c {number}* a", f"c {number + 1}* b"]
    client.ack(0, multiple=True)

    assert client.left("once") == []


def test_a_recovery_without_requeue_is_not_there(client: _Client) -> None:
    assert client.say(_BASIC.Recover, requeue=False) == ["Connection.Close 540"]


def test_a_consumer_that_expects_no_acknowledgements_leaves_nothing_behind(client: _Client) -> None:
    client.consume("q", no_ack=True)

    assert client.publish("q", *"ab") == ["c 1 a", "c 2 b"]

    assert client.left("q") == []
    assert client.ack(1) == ["Channel.Close 406"]


# -- prefetch and flow -------------------------------------------------------------------------------------------------


def test_a_prefetch_limits_each_consumer_that_comes_after_it(client: _Client) -> None:
    assert client.say(_BASIC.Qos, prefetch_count=1) == ["QosOk"]
    client.consume("q", "one")
    client.say(_BASIC.Qos, prefetch_count=2)
    client.consume("q", "two")

    assert sorted(client.publish("q", *"abcd")) == ["one 1 a", "two 2 b", "two 3 c"]
    assert client.ack(1) == ["one 4 d"]


def test_a_prefetch_for_all_is_shared_and_counts_what_is_out(client: _Client) -> None:
    client.consume("q", "one")
    client.consume("q", "two")
    client.publish("q", *"ab")
    client.say(_BASIC.Qos, prefetch_count=3, global_=True)

    assert len(client.publish("q", *"cde")) == 1
    assert len(client.ack(1)) == 1
    client.say(_BASIC.Qos, prefetch_count=0, global_=True)
    assert len(client.publish("q", "f")) == 1


def test_a_prefetch_in_bytes_is_not_there(client: _Client) -> None:
    assert client.say(_BASIC.Qos, prefetch_size=1) == ["Connection.Close 540"]


def test_a_client_cannot_stop_the_flow(client: _Client) -> None:
    assert client.say(commands.Channel.Flow, active=True) == ["FlowOk"]
    assert client.say(commands.Channel.Flow, active=False) == ["Connection.Close 540"]


def test_a_consumer_of_a_higher_priority_comes_first(client: _Client) -> None:
    client.consume("q", "low")
    client.consume("q", "high", arguments={"x-priority": 1})

    assert client.publish("q", *"ab") == ["high 1 a", "high 2 b"]


@pytest.mark.parametrize(
    "argument",
    [
        {"x-priority": "1"},
        {"x-priority": True},
        {"x-consumer-group": 5},
        {"x-group-mode": 1},
        {"x-auto-commit": 1},
        {"x-stream-offset": "soon"},
        {"x-stream-offset": "0s"},
        {"x-stream-filter": 5},
        {"x-stream-filter": ["a", 5]},
        {"x-stream-match-unfiltered": "yes"},
    ],
)
def test_an_argument_of_a_consumer_that_is_not_of_its_kind_is_refused(
    client: _Client, argument: dict[str, object]
) -> None:
    client.consume("q", "low")

    assert client.say(_BASIC.Consume, queue="q", arguments=argument) == ["Channel.Close 406"]


def test_a_quorum_queue_with_a_single_active_consumer_has_no_other_reader(client: _Client) -> None:
    arguments: dict[str, object] = {"x-queue-type": "quorum", "x-single-active-consumer": True}
    client.say(commands.Queue.Declare, queue="single", durable=True, arguments=arguments)
    client.publish("single", "a")

    assert client.say(_BASIC.Get, queue="single") == ["Channel.Close 405"]


# -- consume, cancel, get ----------------------------------------------------------------------------------------------


def test_a_consumer_without_a_tag_gets_one_of_its_own(client: _Client) -> None:
    client.say(_BASIC.Qos, prefetch_count=1)
    for _ in range(2):
        assert client.say(_BASIC.Consume, queue="q") == ["ConsumeOk"]

    tags = {text.split()[0] for text in client.publish("q", *"ab")}

    assert len(tags) == 2
    assert all(tag.startswith("amq.ctag-") for tag in tags)


def test_a_tag_that_is_in_use_ends_the_connection(client: _Client) -> None:
    client.consume("q")
    assert client.say(_BASIC.Consume, queue="q", consumer_tag="c") == ["Connection.Close 530"]


def test_what_a_cancelled_consumer_holds_is_still_the_channels_to_settle(client: _Client) -> None:
    client.consume("q")
    client.publish("q", *"ab")

    assert client.say(_BASIC.Cancel, consumer_tag="c") == ["CancelOk"]
    assert client.publish("q", "c") == []
    assert client.ack(1) == []
    assert client.left("q") == ["b", "c"]
    client.say(commands.Channel.Close, reply_code=200)

    assert client.consume("q", channel=2) == ["c 1* b", "c 2 c"]


def test_a_tag_can_be_used_again_after_it_was_cancelled(client: _Client) -> None:
    client.consume("q")
    client.say(_BASIC.Cancel, consumer_tag="c")
    client.say(_BASIC.Cancel, consumer_tag="unknown")

    client.consume("q")

    assert client.publish("q", "a") == ["c 1 a"]


def test_a_channel_that_ends_gives_back_what_its_consumers_and_gets_hold(client: _Client) -> None:
    client.publish("q", *"abc")
    assert client.get("q") == ["got 1 and 2 a"]
    client.say(_BASIC.Qos, prefetch_count=1)
    assert client.consume("q") == ["c 2 b"]

    client.say(commands.Channel.Close, reply_code=200)

    assert client.consume("q", channel=2) == ["c 1* a", "c 2* b", "c 3 c"]


def test_one_message_can_be_asked_for(client: _Client) -> None:
    assert client.get("q") == ["GetEmpty"]
    client.publish("q", *"abc")

    assert client.get("q", no_ack=True) == ["got 1 and 2 a"]
    assert client.get("q") == ["got 2 and 1 b"]
    assert client.ack(1) == ["Channel.Close 406"]
    assert client.get("q", channel=2) == ["got 1* and 1 b"]
    assert client.ack(1, channel=2) == []
    assert client.left("q") == ["c"]


def test_a_get_from_a_queue_that_was_deleted_and_made_again_is_from_the_new_one(client: _Client) -> None:
    client.publish("q", "old")
    client.get("q")
    client.say(commands.Queue.Delete, queue="q")
    client.say(commands.Queue.Declare, queue="q", durable=True)
    client.publish("q", "new")

    assert client.get("q") == ["got 2 and 0 new"]
    assert client.ack(1) == []
    assert client.ack(2) == []
    assert client.left("q") == []


@pytest.mark.parametrize("kind", [_BASIC.Get, commands.Queue.Declare, commands.Queue.Purge, commands.Queue.Delete])
def test_what_was_published_before_is_there_for_what_is_asked_after(client: _Client, kind: type[base.Frame]) -> None:
    publish = encode_method(1, _BASIC.Publish, {"routing_key": "q"}) + encode_content(1, b"\0\0", b"a", 4096)

    client.connection.feed(publish + encode_method(1, kind, {"queue": "q", "durable": True}))
    client.house.turn()
    client.wire.flush()

    (method,) = [part for part in _methods(b"".join(client.wire.sent)) if not isinstance(part, _BASIC.Deliver)]
    assert getattr(method, "message_count", None) == (0 if kind is _BASIC.Get else 1)


def _methods(data: bytes) -> list[Any]:
    found: list[Any] = []
    while data:
        size = 8 + int.from_bytes(data[3:7])
        if data[0] == METHOD:
            found.append(frame.unmarshal(data[:size])[2])
        data = data[size:]
    return found


def test_a_consumer_whose_queue_goes_is_told(client: _Client) -> None:
    client.consume("q")
    client.publish("q", "a")

    assert client.say(commands.Queue.Delete, channel=2, queue="q") == ["cancel c", "DeleteOk"]
    assert client.ack(1) == []
    client.say(commands.Queue.Declare, queue="q", durable=True)
    assert client.consume("q") == [], "its tag is free"


def test_a_consumer_that_has_a_queue_for_itself_keeps_others_out(client: _Client) -> None:
    client.consume("q", exclusive=True)

    assert client.say(_BASIC.Consume, channel=2, queue="q") == ["Channel.Close 403"]


def test_a_channel_whose_consumer_does_not_acknowledge_in_time_ends(client: _Client) -> None:
    client.say(commands.Queue.Declare, queue="slow", durable=True, arguments={"x-consumer-timeout": 60_000})
    client.consume("slow")
    client.publish("slow", "a")

    client.house.clock.advance(61)
    client.house.broker.tick()

    assert client.heard() == ["Channel.Close 406"]
    assert client.consume("slow", channel=2) == ["c 1* a"]


def test_a_reader_of_a_stream_begins_where_it_says_and_its_group_goes_with_it(client: _Client) -> None:
    client.say(commands.Queue.Declare, queue="s", durable=True, arguments={"x-queue-type": "stream"})
    client.publish("s", *"abc")
    client.say(_BASIC.Qos, prefetch_count=10)

    assert client.consume("s", arguments={"x-stream-offset": 1}) == ["c 1 b", "c 2 c"]
    assert client.properties.headers["x-stream-offset"] == 2
    assert list(client.house.broker.queue("s").groups) == ["c"]
    client.say(_BASIC.Cancel, consumer_tag="c")

    assert list(client.house.broker.queue("s").groups) == []


def test_a_reader_of_a_stream_goes_on_where_it_was(client: _Client) -> None:
    client.say(commands.Queue.Declare, queue="s", durable=True, arguments={"x-queue-type": "stream"})
    client.say(_BASIC.Qos, prefetch_count=10)
    client.consume("s", "reader")
    client.publish("s", *"abc")
    client.ack(2, multiple=True)
    client.say(_BASIC.Cancel, consumer_tag="reader")

    assert client.consume("s", "reader") == ["reader 4* c"]
    assert list(client.house.broker.queue("s").groups) == ["reader"]


@pytest.mark.parametrize("name", ["x-consumer-group", "x-group-mode"])
def test_a_group_that_is_not_a_text_ends_the_channel(client: _Client, name: str) -> None:
    assert client.say(_BASIC.Consume, queue="q", arguments={name: 1}) == ["Channel.Close 406"]


# -- publishing --------------------------------------------------------------------------------------------------------


def test_publishes_are_confirmed_together_and_refusals_one_by_one(client: _Client) -> None:
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
    client.say(commands.Queue.Declare, queue="small", durable=True, arguments=arguments)
    assert client.say(commands.Confirm.Select) == ["SelectOk"]

    assert client.publish("q", "a") == ["ack 1"]
    publish = [
        encode_method(1, _BASIC.Publish, {"routing_key": name}) + encode_content(1, b"\0\0", b"x", 4096)
        for name in ("small", "small", "small", "q", "small")
    ]
    client.connection.feed(b"".join(publish))

    said = client.heard()
    assert [text for text in said if text.startswith("nack")] == ["nack 4", "nack 6"]
    assert [text for text in said if text.startswith("ack")][-1] == "ack up to 5"


@pytest.mark.parametrize("seed", range(6))
def test_every_publish_is_confirmed_or_refused_once_and_reaches_the_queue_of_that_time(
    client: _Client, seed: int
) -> None:
    chance = random.Random(seed)
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    client.say(commands.Queue.Declare, queue="full", durable=True, arguments=full)
    client.say(commands.Queue.Declare, queue="memory")
    client.publish("full", "first")
    client.say(commands.Confirm.Select)
    outcomes: dict[int, str] = {}
    meant: list[str] = []
    stored: list[str] = []
    for _ in range(40):
        if chance.random() < 0.1:
            client.say(commands.Queue.Delete, queue="q")
            client.say(commands.Queue.Declare, queue="q", durable=True)
            stored.clear()
        for _ in range(chance.randint(1, 6)):
            queue = chance.choice(["q", "q", "full", "memory", "nowhere"])
            meant.append("nack" if queue == "full" else "ack")
            client.feed_publish(queue, str(len(meant)))
            if queue == "q":
                stored.append(str(len(meant)))
        for text in client.heard():
            kind, *more, tag = text.split()
            first = min([number for number in range(1, len(meant) + 1) if number not in outcomes])
            for number in range(first if more else int(tag), int(tag) + 1):
                assert number not in outcomes or more, "nobody is told twice"
                outcomes.setdefault(number, kind)

    assert [outcomes[number] for number in range(1, len(meant) + 1)] == meant
    assert client.left("q") == stored


def test_a_confirm_comes_after_the_message_is_stored(client: _Client) -> None:
    client.say(commands.Confirm.Select)
    client.engine.is_closed_door = True

    assert client.publish("q", *"ab") == []
    client.engine.open_door()
    assert client.heard() == ["ack up to 2"]


def test_what_no_queue_gets_comes_back_if_that_was_asked_for(client: _Client) -> None:
    client.say(commands.Confirm.Select)

    assert client.publish("nowhere", "a") == ["ack 1"]
    assert client.publish("nowhere", "b", mandatory=True) == ["return 312 :nowhere b", "ack 2"]
    assert client.publish("q", "c", mandatory=True) == ["ack 3"]


def test_an_immediate_publish_is_not_there(client: _Client) -> None:
    assert client.publish("q", "a", immediate=True) == ["Connection.Close 540"]


@pytest.mark.parametrize("text", ["-1", "1.5", "soon", "1" * 16, "٣"])
def test_an_expiration_that_is_no_number_of_milliseconds_ends_the_channel(client: _Client, text: str) -> None:
    assert client.publish("q", "a", expiration=text) == ["Channel.Close 406"]


@pytest.mark.parametrize("keys", [("q", "q"), ("q", "p")])
def test_an_invalid_expiration_does_not_take_messages_before_it_along(client: _Client, keys: tuple[str, str]) -> None:
    for key in set(keys):
        client.say(commands.Queue.Declare, queue=key, durable=True)
        client.publish(key, "known")
        client.say(commands.Queue.Purge, queue=key)
    frames = []
    for number, expiration in enumerate(["", "60000", "soon", ""]):
        properties = Properties()
        properties.expiration = expiration
        method = encode_method(1, _BASIC.Publish, {"routing_key": keys[number % 2]})
        frames.append(method + encode_content(1, encode_properties(properties), b"%d" % number, 4096))

    client.connection.feed(b"".join(frames))

    assert client.heard() == ["Channel.Close 406"]
    counted = [message.payload for key in set(keys) for _, message in client.house.broker.queue(key).browse(0, 9)]
    assert sorted(counted) == [b"0", b"1"]


def test_a_message_is_gone_after_its_expiration(client: _Client) -> None:
    client.publish("q", "a", expiration="1000")
    client.publish("q", "b", expiration="4294967295")

    client.house.clock.advance(1.1)
    client.house.broker.tick()

    assert client.get("q", no_ack=True) == ["got 1 and 0 b"]


def test_nobody_publishes_in_the_name_of_another(client: _Client) -> None:
    assert client.publish("q", "a", user_id="guest") == []
    assert client.publish("q", "a", user_id="else") == ["Channel.Close 406"]


def test_queues_that_are_gone_are_not_kept_for_the_routes_that_led_to_them(client: _Client) -> None:
    before = _queues()
    for number in range(5000):
        name = f"{number:06}"
        client.house.broker.declare(QueueDefinition(name, durable=False))
        client.publish(name, "a")
        client.house.broker.delete(name)
    client.house.run()

    assert _queues() - before < 1200


def _queues() -> int:
    gc.collect()
    return sum([isinstance(found, Queue) for found in gc.get_objects()])


def test_copies_go_to_further_queues_and_only_open_ones_are_seen(client: _Client) -> None:
    for name in ("open", "secret"):
        client.say(commands.Queue.Declare, queue=name, durable=True)

    client.publish("q", "a", headers={"CC": ["open"], "BCC": ["secret"]})

    for name in ("q", "open", "secret"):
        assert client.get(name, no_ack=True)[0].endswith("and 0 a")
        assert client.properties.headers == {"CC": ["open"]}
    assert client.publish("q", "b", headers={"CC": "open"}) == ["Channel.Close 406"]


def test_a_direct_reply_reaches_the_channel_that_asked(client: _Client) -> None:
    client.consume("q", "server", channel=2, no_ack=True)
    assert client.publish("q", "too early", reply_to=_REPLY_TO, channel=2) == ["Channel.Close 406"]
    client.connection.feed(encode_method(2, commands.Channel.CloseOk) + encode_method(2, commands.Channel.Open))
    assert client.heard() == ["OpenOk"]
    client.consume("q", "server", channel=2, no_ack=True)
    client.consume(_REPLY_TO, "replies", no_ack=True)

    assert client.publish("q", "question", reply_to=_REPLY_TO) == ["server 1 question"]
    key = client.properties.reply_to
    assert key.startswith(_REPLY_TO + ".")
    assert client.publish(key, "answer", channel=2) == ["replies 1 answer"]
    client.say(_BASIC.Cancel, consumer_tag="replies")

    assert client.publish(key, "late", channel=2, mandatory=True) == [f"return 312 :{key} late"]


def test_direct_replies_have_one_consumer_that_does_not_acknowledge(client: _Client) -> None:
    assert client.say(_BASIC.Consume, queue=_REPLY_TO) == ["Channel.Close 406"]
    client.consume(_REPLY_TO, channel=2, no_ack=True)
    assert client.say(_BASIC.Consume, channel=2, queue=_REPLY_TO, no_ack=True) == ["Channel.Close 406"]


# -- transactions ------------------------------------------------------------------------------------------------------


def test_a_transaction_publishes_and_settles_when_it_is_committed(client: _Client) -> None:
    client.say(commands.Queue.Declare, queue="out", durable=True)
    client.consume("q")
    client.publish("q", *"abcd")
    assert client.say(commands.Tx.Select) == ["SelectOk"]

    client.publish("out", "x")
    assert client.publish("nowhere", "y", mandatory=True) == []
    client.ack(2, multiple=True)
    client.nack(3, requeue=False)
    assert (client.left("q"), client.left("out")) == (["a", "b", "c", "d"], [])
    said = client.say(commands.Tx.Commit)

    assert sorted(said) == ["CommitOk", "return 312 :nowhere y"]
    assert (client.left("q"), client.left("out")) == (["d"], ["x"])
    assert client.ack(1) == ["Channel.Close 406"]


def test_a_transaction_that_is_rolled_back_leaves_all_as_it_was(client: _Client) -> None:
    client.say(commands.Queue.Declare, queue="out", durable=True)
    client.consume("q")
    client.publish("q", *"abc")
    client.say(commands.Tx.Select)
    client.publish("out", "x")
    client.ack(1)
    client.ack(3)

    assert client.say(commands.Tx.Rollback) == ["RollbackOk"]
    assert client.ack(2, multiple=True) == []
    assert client.say(commands.Tx.Commit) == ["CommitOk"]

    assert (client.left("q"), client.left("out")) == (["c"], [])


def test_a_row_of_acknowledgements_in_a_transaction_waits_for_its_end(client: _Client) -> None:
    client.consume("q")
    client.publish("q", *"abc")
    client.say(commands.Tx.Select)

    client.connection.feed(b"".join([encode_method(1, _BASIC.Ack, {"delivery_tag": tag}) for tag in (1, 2, 3)]))
    client.heard()
    assert client.left("q") == ["a", "b", "c"]
    client.say(commands.Tx.Commit)

    assert client.left("q") == []


def test_a_message_that_a_transaction_settled_cannot_be_settled_twice_in_it(client: _Client) -> None:
    client.consume("q")
    client.publish("q", "a")
    client.say(commands.Tx.Select)
    client.ack(1)

    assert client.ack(1) == ["Channel.Close 406"]
    assert client.left("q") == ["a"]


def test_confirms_and_transactions_exclude_each_other(client: _Client) -> None:
    client.say(commands.Tx.Select)
    assert client.say(commands.Tx.Select) == ["SelectOk"]
    assert client.say(commands.Confirm.Select) == ["Channel.Close 406"]
    client.say(commands.Confirm.Select, channel=2)
    assert client.say(commands.Tx.Select, channel=2) == ["Channel.Close 406"]


@pytest.mark.parametrize("kind", [commands.Tx.Commit, commands.Tx.Rollback])
def test_a_channel_without_a_transaction_ends_none(client: _Client, kind: type[base.Frame]) -> None:
    assert client.say(kind) == ["Channel.Close 406"]


def test_settling_in_a_queue_that_went_meanwhile_does_not_hinder_a_transaction(client: _Client) -> None:
    client.say(commands.Queue.Declare, queue="out", durable=True)
    client.consume("q")
    client.publish("q", "a")
    client.say(commands.Tx.Select)
    client.ack(1)
    client.publish("out", "x")
    client.say(commands.Queue.Delete, channel=2, queue="q")

    assert client.say(commands.Tx.Commit) == ["CommitOk"]
    assert client.left("out") == ["x"]
