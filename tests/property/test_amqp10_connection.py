"""A connection answers or refuses any whole frames in the protocol, and raises nothing."""

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.queue.definition import QueueDefinition
from headrace.net.connection import Wire
from headrace.protocols.amqp10.codec import Decoder, encode_frame
from headrace.protocols.amqp10.connection import Connection
from headrace.protocols.amqp10.frames import AMQP_HEADER
from headrace.protocols.amqp10.performatives import (
    ACCEPTED,
    RELEASED,
    Attach,
    Begin,
    Close,
    Coordinator,
    Detach,
    Disposition,
    End,
    Flow,
    Modified,
    Open,
    Received,
    Rejected,
    Source,
    Target,
    Transactional,
    Transfer,
)
from headrace.protocols.amqp10.server import Server
from headrace.wire.amqp10_values import encode_described, encode_value
from headrace.wire.types import Described, Map, Symbol, ULong
from tests.endpoints import access_to
from tests.house import House
from tests.wires import FakeWire

_handles = st.integers(0, 3)
_channels = st.sampled_from([0, 0, 0, 1])
_addresses = st.sampled_from(
    [
        "q",
        "q",
        "/queues/s",
        "$queue/q",
        "$queue/q/a/#",
        "$queue/q/$ack",
        "a/+/c",
        "/exchanges/amq.topic/k",
        "/exchanges/no",
        "$management",
        "/management",
        None,
        "missing",
        "/bad",
    ]
)
_states = st.sampled_from(
    [
        None,
        ACCEPTED,
        ACCEPTED,
        RELEASED,
        Rejected(),
        Received(0, 1),
        Modified(True, False, Map.of({"x-n": 1})),
        Modified(False, True, Map.of({"x-n": 1})),
        Transactional(b"none", ACCEPTED),
    ]
)
_selector = Described(Symbol("apache.org:selector-filter:string"), "n > 1")
_filters = st.sampled_from(
    [
        Map(),
        Map.of({"s": _selector}),
        Map.of({"s": Described(Symbol("apache.org:selector-filter:string"), "n >")}),
        Map.of({"o": Described(Symbol("rabbitmq:stream-offset-spec"), "first")}),
        Map.of({"o": Described(Symbol("rabbitmq:stream-offset-spec"), [])}),
        Map.of({"u": 5}),
    ]
)
_requests = [
    encode_described(0x73, ["1", None, "/queues/n", "PUT", "$me"]) + b"\x00\x53\x77" + encode_value(Map()),
    encode_described(0x73, ["1", None, "/queues/n", "DELETE", "q"]) + b"\x00\x53\x77\x40",
    encode_described(0x73, ["1", None, "/bindings", "POST", "$me"]) + b"\x00\x53\x77\x55\x01",
    encode_described(0x73, ["1", None, "q", None, "q"])
    + b"\x00\x53\x74"
    + encode_value(Map([("operation", "QUERY"), ("type", "queue")]))
    + b"\x00\x53\x77\x40",
    b"\x00\x53\x77" + encode_value(Described(ULong(0x31), [])),
    b"\x00\x53\x77" + encode_value(Described(ULong(0x32), [b"none", True])),
]
_messages = st.sampled_from(
    [
        b"\x00\x53\x75\xa0\x03abc",
        encode_described(0x73, [None, None, "q"]) + b"\x00\x53\x75\xa0\x01x",
        b"\x00\x53\x74" + encode_value(Map([("n", 5)])) + b"\x00\x53\x77\xa1\x01x",
        b"",
        b"\x00\x53\x75",
        b"junk",
        *_requests,
    ]
)


@st.composite
def _attaches(draw: st.DrawFn) -> bytes:
    attach = Attach(draw(st.sampled_from(["a", "b", "c"])), draw(_handles), draw(st.booleans()))
    source, target = Source(draw(_addresses)), Target(draw(_addresses))
    source.dynamic = draw(st.integers(0, 8)) == 0
    source.filter = draw(_filters)
    target.dynamic = draw(st.integers(0, 8)) == 0
    for terminus in (source, target):
        terminus.durable = draw(st.integers(0, 2))
        terminus.expiry_policy = draw(st.sampled_from(["session-end", "never", "link-detach", "connection-close"]))
        terminus.timeout = draw(st.sampled_from([0, 0, 5]))
    source.distribution_mode = draw(st.sampled_from(["", "", "copy"]))
    capabilities = [[], ["queue"], ["topic"], ["topic", "shared"], ["topic", "shared", "global"], ["temporary-topic"]]
    source.capabilities = target.capabilities = draw(st.sampled_from(capabilities))
    attach.source = source if draw(st.integers(0, 9)) else None
    kinds: list[Target | Coordinator | None] = [target, target, target, Coordinator([]), None]
    attach.target = draw(st.sampled_from(kinds))
    attach.sender_settles = draw(st.integers(0, 2))
    attach.receiver_settles = draw(st.integers(0, 1))
    tags = [b"\0\0\0\x01", b"t", b"\x80\0\0\0\0\0\0\x01", b"\x80\0\0\0\0\x01\0\x02"]
    known = Map([(tag, draw(st.sampled_from([None, ACCEPTED.described()]))) for tag in tags])
    attach.unsettled = draw(st.sampled_from([None, known]))
    attach.incomplete_unsettled = draw(st.booleans())
    attach.max_message_size = draw(st.sampled_from([0, 0, 0, 4]))
    names = ["consumer-group", "cursor", "rabbitmq:priority", "paired"]
    attach.properties = Map.of({draw(st.sampled_from(names)): draw(st.sampled_from(["g", 1, True]))})
    return encode_frame(draw(_channels), attach.encode())


@st.composite
def _flows(draw: st.DrawFn) -> bytes:
    flow = Flow()
    flow.next_incoming_id = draw(st.sampled_from([None, 0, 1, 2]))
    flow.incoming_window = draw(st.sampled_from([0, 1, 100]))
    flow.outgoing_window = 100
    flow.handle = draw(st.one_of(st.none(), _handles))
    flow.delivery_count = draw(st.sampled_from([None, 0, 1, 2**32 - 1]))
    flow.link_credit = draw(st.sampled_from([None, 0, 1, 10]))
    flow.drain = draw(st.booleans())
    flow.echo = draw(st.booleans())
    return encode_frame(draw(_channels), flow.encode())


@st.composite
def _transfers(draw: st.DrawFn) -> bytes:
    transfer = Transfer(0, draw(_handles))
    transfer.id = draw(st.sampled_from([-1, 0, 1, 2, 3]))
    transfer.tag = draw(st.sampled_from([b"t", b"u", None]))
    transfer.settled = draw(st.sampled_from([None, True, False]))
    transfer.more = draw(st.integers(0, 4)) == 0
    transfer.aborted = draw(st.integers(0, 9)) == 0
    transfer.resume = draw(st.integers(0, 9)) == 0
    transfer.message_format = draw(st.sampled_from([0, 0, 0, 1]))
    transfer.state = draw(_states) if draw(st.integers(0, 4)) == 0 else None
    return encode_frame(draw(_channels), transfer.encode(), draw(_messages))


@st.composite
def _others(draw: st.DrawFn) -> bytes:
    channel = draw(_channels)
    first = draw(st.integers(0, 3))
    last = draw(st.sampled_from([first, first + 1, 2**31, 0]))
    disposition = Disposition(channel, draw(st.booleans()), first, last, draw(st.booleans()), draw(_states))
    detach = Detach(draw(_handles), draw(st.booleans()))
    frames = [disposition.encode()] * 6 + [detach.encode()] * 3
    frames += [End().encode(), Begin(None, 0, 10, 10).encode()]
    return encode_frame(channel, draw(st.sampled_from(frames)))


@given(st.lists(st.one_of(_attaches(), _flows(), _transfers(), _others()), min_size=8, max_size=40))
def test_any_frames_in_any_order_are_answered_or_refused(frames: list[bytes]) -> None:
    house = House()
    house.broker.declare(QueueDefinition("q"))
    house.broker.declare(QueueDefinition("s", "stream"))
    for number in range(3):
        house.publish("q", str(number))
        house.publish("s", str(number))
    hosts, access = access_to(house.broker)
    server = Server(hosts, access, house.clock, "test")
    connection = Connection(server, house.clock)
    wire = FakeWire()
    connection.opened(cast("Wire", wire))
    connection.feed(AMQP_HEADER + encode_frame(0, Open("fuzz").encode()))
    connection.feed(encode_frame(0, Begin(None, 0, 10, 10).encode()))
    connection.feed(encode_frame(1, Begin(None, 0, 10, 10).encode()))
    for frame in frames:
        connection.feed(frame)
        house.run()
        wire.flush()
    connection.lost()
    house.run()
    house.advance(6)
    server.tick()
    house.run()

    for event in Decoder().feed(b"".join(wire.sent)):
        error = event.error if isinstance(event, Close | End | Detach) else None
        assert error is None or error.condition != "amqp:internal-error", error
    again = House(house.engine, house.clock)
    Server(*access_to(again.broker), again.clock, "test")  # reads the stored sources
    consumers = [(queue.name, queue.consumers) for queue in house.broker.topology.queues.values() if queue.consumers]
    assert consumers == []
