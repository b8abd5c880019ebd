"""Whatever a client sends in whole frames is answered or refused in the protocol: the connection raises nothing."""

from typing import cast

from hypothesis import given
from hypothesis import strategies as st
from pamqp import base, commands

from headrace.net.connection import Wire
from headrace.protocols.amqp091.codec import Ack, Decoder, Method, encode_content
from headrace.protocols.amqp091.connection import Connection
from headrace.protocols.amqp091.frames import PROTOCOL_HEADER, REPLY_NAMES
from headrace.protocols.amqp091.methods import encode_method
from headrace.protocols.amqp091.server import Server
from tests.endpoints import access_to
from tests.house import House
from tests.wires import FakeWire

_names = st.sampled_from(
    ["q", "r", "q", "", "amq.topic", "amq.rabbitmq.reply-to", "$queue/q", "$queue/q/#", "$queue/q/$ack", "é"]
)
_arguments = st.dictionaries(
    st.sampled_from(
        [
            "x-queue-type",
            "x-max-length",
            "x-message-ttl",
            "x-priority",
            "x-stream-offset",
            "x-consumer-group",
            "CC",
            "x",
        ]
    ),
    st.one_of(st.sampled_from(["stream", "quorum", "first", "g", ""]), st.integers(-1, 3), st.booleans(), st.none()),
    max_size=2,
)
_CHANNEL_CLOSE = commands.Channel.Close.index.to_bytes(4)
_all: list[type[base.Frame]] = [kind for kind in commands.INDEX_MAPPING.values() if issubclass(kind, base.Frame)]
_of_clients: list[type[base.Frame]] = [
    commands.Channel.Flow,
    commands.Confirm.Select,
    *[kind for kind in _all if kind.index >> 16 in (40, 50, 60, 90) and kind.synchronous],
    commands.Queue.Declare,
    commands.Queue.Bind,
    commands.Basic.Ack,
    commands.Basic.Nack,
    commands.Basic.Reject,
    commands.Basic.Consume,
    commands.Basic.Get,
    commands.Basic.Cancel,
]


@st.composite
def _method(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from(_all if draw(st.integers(0, 40)) == 0 else _of_clients))
    if kind is commands.Basic.Publish:
        kind = commands.Basic.Get
    fields: dict[str, object] = {}
    for name in kind.attributes():
        form = kind.amqp_type(name)
        if form == "bit":
            fields[name] = draw(st.integers(0, 3)) == 0
        elif form == "shortstr":
            fields[name] = draw(st.sampled_from(["direct", "fanout", "topic"]) if name == "exchange_type" else _names)
        elif form == "table":
            fields[name] = draw(_arguments)
        elif form != "longstr":
            fields[name] = draw(st.integers(0, 4))
    if draw(st.integers(0, 20)):  # else the connection ends
        fields |= {"prefetch_size": 0, "requeue": fields.get("requeue") or kind is commands.Basic.Recover}
    channel = 0 if kind.index >> 16 == 10 else draw(st.integers(1, 2))
    return encode_method(channel, kind, fields)


@st.composite
def _publish(draw: st.DrawFn) -> bytes:
    channel = draw(st.integers(1, 2))
    fields = {"exchange": draw(st.sampled_from(["", "", "amq.topic", "q"])), "routing_key": draw(_names)}
    properties = draw(
        st.sampled_from([b"\0\0", b"\x01\x00\x0215", b"\x01\x00\x02-1", b"\x10\x00\x02", b"\x00\x10\x05guest"])
    )
    bits = {"mandatory": draw(st.booleans())}
    content = encode_content(channel, properties, draw(st.binary(max_size=20)), 4096)
    return encode_method(channel, commands.Basic.Publish, {**fields, **bits}) + content


@given(st.lists(st.one_of(_method(), _method(), _publish()), min_size=8, max_size=30))
def test_any_methods_in_any_order_are_answered_or_refused(frames: list[bytes]) -> None:
    house = House()
    connection = Connection(Server(*access_to(house.broker, clock=house.clock), "test"), house.clock)
    wire = FakeWire()
    connection.opened(cast("Wire", wire))
    start = {"mechanism": "PLAIN", "response": b"\0guest\0guest"}
    connection.feed(PROTOCOL_HEADER + encode_method(0, commands.Connection.StartOk, start))
    connection.feed(encode_method(0, commands.Connection.TuneOk))
    connection.feed(encode_method(0, commands.Connection.Open, {"virtual_host": "/"}))
    connection.feed(encode_method(1, commands.Channel.Open) + encode_method(2, commands.Channel.Open))
    connection.feed(encode_method(1, commands.Queue.Declare, {"queue": "q"}))
    for frame in frames:
        seen = len(wire.sent)
        connection.feed(frame)
        house.run()
        wire.flush()
        for answer in wire.sent[seen:]:
            if answer[0] == 1 and answer[7:11] == _CHANNEL_CLOSE:
                channel = int.from_bytes(answer[1:3])
                connection.feed(
                    encode_method(channel, commands.Channel.CloseOk) + encode_method(channel, commands.Channel.Open)
                )
    connection.lost()
    house.run()

    decoder = Decoder()
    for event in decoder.feed(PROTOCOL_HEADER + b"".join(wire.sent)):
        if isinstance(event, Method) and isinstance(event.method, commands.Connection.Close | commands.Channel.Close):
            assert event.method.reply_code in REPLY_NAMES
            assert event.method.reply_code != 541, event.method.reply_text
        assert not isinstance(event, Ack) or event.tag
    assert [queue.consumers for queue in house.broker.topology.queues.values() if queue.consumers] == []
    assert [queue.unsettled for queue in house.broker.topology.queues.values() if queue.unsettled] == []
