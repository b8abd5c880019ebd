"""A connection of the stream protocol without a network: frames go in, frames come out, the test moves the clock."""

import struct
from typing import cast

import pytest

from headrace.core.access.permissions import Permission
from headrace.core.access.users import Limits
from headrace.core.queue.definition import declared
from headrace.errors import HeadraceError
from headrace.model import AMQP091, Message, Source
from headrace.net.connection import Wire
from headrace.protocols.server import Server
from headrace.protocols.streams import frames
from headrace.protocols.streams.connection import Connection
from headrace.storage.api import Engine
from headrace.wire.amqp10 import Head
from headrace.wire.encodings import encode_properties, properties_of
from headrace.wire.properties import Properties
from tests.amqp10_client import body
from tests.endpoints import access_to
from tests.house import House
from tests.stream_client import (
    LOGIN,
    Cutter,
    Frame,
    batch,
    command,
    entry,
    position,
    publish,
    request,
    subscription,
    table,
    text,
    texts,
)
from tests.wires import FakeWire

_FIRST = position(frames.FIRST)


def _well(error: HeadraceError | None) -> None:
    assert error is None


class Station:
    """A broker with the stream `s`, and connections to it."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.house = House(engine)
        self.queue = self.house.broker.declare(declared("s", durable=True, arguments={"x-queue-type": "stream"}))
        self.house.run()
        hosts, self.access = access_to(self.house.broker, clock=self.house.clock)
        self.server = Server(hosts, self.access, "test")

    def connect(self, *login: bytes) -> "Peer":
        peer = Peer(self)
        peer.say(*(login or LOGIN))
        return peer

    def publish(self, *payloads: bytes, stream: str = "s") -> None:
        for payload in payloads:
            self.house.broker.publish(Message(Source(stream), payload, self.house.clock.now_us()))
        self.house.run()


class Peer:
    """One connection."""

    def __init__(self, station: Station) -> None:
        self._house = station.house
        self.wire = FakeWire()
        self.connection = Connection(station.server, station.house.clock)
        self.connection.opened(cast("Wire", self.wire))
        self._cutter = Cutter()
        self._correlation = 100
        self._waiting: list[Frame] = []

    def say(self, *commands: bytes) -> list[Frame]:
        """Send commands, and return what came."""
        self.connection.feed(b"".join(commands))
        return self.heard()

    def heard(self) -> list[Frame]:
        self._house.run()
        self.wire.flush()
        sent, self.wire.sent = self.wire.sent, []
        return self._cutter.feed(b"".join(sent))

    def ask(self, key: int, body: bytes = b"") -> Frame:
        """Send a request, and return its response; what else came is `waiting`."""
        self._correlation += 1
        found = self.say(request(key, self._correlation, body))
        (response,) = [frame for frame in found if frame.key == key | frames.RESPONSE]
        self._waiting += [frame for frame in found if frame is not response]
        return response

    def waiting(self) -> list[Frame]:
        waiting, self._waiting = self._waiting, []
        return [*waiting, *self.heard()]

    def declare(self, number: int = 0, name: str = "", stream: str = "s") -> int:
        return self.ask(frames.DECLARE_PUBLISHER, bytes([number]) + text(name) + text(stream)).code

    def subscribe(self, start: bytes, number: int = 0, credit: int = 10, stream: str = "s", **options: str) -> int:
        return self.ask(frames.SUBSCRIBE, subscription(number, stream, start, credit, **options)).code

    def delivered(self) -> list[tuple[int, list[bytes]]]:
        return [(frame.first_offset, frame.messages) for frame in self.waiting() if frame.key == frames.DELIVER]


# -- login -----------------------------------------------------------------------------------------------------------


def test_a_login_tells_a_version_that_clients_know_and_what_was_agreed() -> None:
    station = Station()

    properties, handshake, login, tune, opened = Peer(station).say(*LOGIN)

    assert b"version\x00\x054.0.0" in properties.fields
    assert handshake.fields == texts("PLAIN")
    assert login.code == opened.code == frames.OK
    assert tune.key == frames.TUNE
    assert struct.unpack(">II", tune.body) == (frames.FRAME_MAX_BYTES, frames.HEARTBEAT_SECONDS)
    assert b"advertised_port\x00\x045552" in opened.fields


def test_a_login_that_is_none_ends_the_connection() -> None:
    peer = Peer(Station())

    *_, answer = peer.say(LOGIN[0], request(frames.SASL_AUTHENTICATE, 3, text("PLAIN") + b"\0\0\0\5guest"))

    assert answer.code == frames.SASL_ERROR
    assert peer.wire.is_closing


def test_a_mechanism_that_is_not_offered_is_refused() -> None:
    (answer,) = Peer(Station()).say(request(frames.SASL_AUTHENTICATE, 3, text("EXTERNAL") + bytes(4)))

    assert answer.code == frames.MECHANISM_NOT_SUPPORTED


def test_a_virtual_host_that_is_not_there_is_refused() -> None:
    peer = Peer(Station())

    *_, answer = peer.say(*LOGIN[:-1], request(frames.OPEN, 4, text("nowhere")))

    assert answer.code == frames.HOST_ACCESS_FAILURE
    assert peer.wire.is_closing


@pytest.mark.parametrize(
    "commands",
    [
        [request(frames.OPEN, 4, text("/"))],
        [publish(0, entry(1, b"x"))],
        [request(frames.CREATE, 1, text("s") + table())],
        [*LOGIN[:3], LOGIN[4]],
        [*LOGIN, LOGIN[2]],
    ],
)
def test_commands_out_of_turn_end_the_connection(commands: list[bytes]) -> None:
    *_, close = Peer(Station()).say(*commands)

    assert close.key == frames.CLOSE


def test_a_user_has_no_more_connections_than_it_may_have() -> None:
    station = Station()
    station.access.set_limits("guest", Limits(max_connections=1), _well)
    station.connect()

    *_, answer = Peer(station).say(*LOGIN)

    assert answer.code == frames.HOST_ACCESS_FAILURE


def test_a_close_is_answered() -> None:
    peer = Station().connect()

    assert peer.ask(frames.CLOSE, struct.pack(">H", 1) + text("bye")).code == frames.OK
    assert peer.wire.is_closing


def test_a_user_that_is_removed_is_disconnected() -> None:
    station = Station()
    peer = station.connect()
    station.access.delete_user("guest", _well)

    assert [frame.key for frame in peer.heard()] == [frames.CLOSE]


# -- publishing --------------------------------------------------------------------------------------------------------


def test_messages_are_confirmed_by_their_ids() -> None:
    station = Station()
    peer = station.connect()
    assert peer.declare(7) == frames.OK

    (confirm,) = peer.say(publish(7, entry(10, b"a"), batch(11, [b"b", b"c"])), publish(7, entry(12, b"d")))

    assert (confirm.key, confirm.body[0], confirm.ids) == (frames.PUBLISH_CONFIRM, 7, [10, 11, 12])
    assert [message.payload for message in station.queue.log.read(0, 10)] == [b"a", b"b", b"c", b"d"]


def test_a_batch_that_cannot_be_unpacked_is_refused_and_the_others_are_not() -> None:
    peer = Station().connect()
    peer.declare(0, "p")

    confirm, refusal = peer.say(publish(0, entry(1, b"a"), batch(2, [b"b"], b"?", 4), entry(3, b"c")))

    assert confirm.ids == [1, 3]
    assert refusal.errors == [(2, frames.PRECONDITION_FAILED)]
    (confirm,) = peer.say(publish(0, entry(2, b"b"), entry(3, b"c")))
    assert confirm.ids == [2, 3]


def test_an_unknown_publisher_hears_so_for_each_message() -> None:
    (refusal,) = Station().connect().say(publish(9, entry(1, b"a"), entry(2, b"b")))

    assert refusal.errors == [(1, frames.PUBLISHER_DOES_NOT_EXIST), (2, frames.PUBLISHER_DOES_NOT_EXIST)]


def test_who_may_not_write_is_no_publisher_and_who_may_no_more_is_refused() -> None:
    station = Station()
    peer = station.connect()
    peer.declare()
    station.access.put_permission(Permission("guest", "/", ".*", "", ".*"), _well)

    (refusal,) = peer.say(publish(0, entry(1, b"a")))

    assert refusal.errors == [(1, frames.ACCESS_REFUSED)]
    assert peer.declare(1) == frames.ACCESS_REFUSED
    assert station.queue.log.next_offset == 0


def test_messages_that_name_another_user_are_refused_except_of_impersonators() -> None:
    station = Station()
    peer = station.connect()
    peer.declare()
    ours, theirs = _signed("guest"), _signed("ann")

    (confirm,) = peer.say(publish(0, entry(1, ours), entry(2, ours)))
    (refusal,) = peer.say(publish(0, entry(3, theirs)))
    (of_batch,) = peer.say(publish(0, batch(4, [ours, theirs])))

    assert confirm.ids == [1, 2]
    assert refusal.errors == [(3, frames.PRECONDITION_FAILED)]
    assert of_batch.errors == [(4, frames.PRECONDITION_FAILED)]
    station.access.put_user("guest", None, ["impersonator"], _well)
    (confirm,) = peer.say(publish(0, entry(5, theirs)))
    assert confirm.ids == [5]
    assert [properties_of(message).user_id for message in station.queue.log.read(0, 10)] == ["guest", "guest", "ann"]


def _signed(user: str) -> bytes:
    head = Head()
    head.properties = [None, user.encode()]
    return head.encode() + body(user)


def test_publishers_exist_once() -> None:
    peer = Station().connect()
    peer.declare(0, "p")

    assert peer.declare(0) == frames.PRECONDITION_FAILED
    assert peer.declare(1, "p") == frames.PRECONDITION_FAILED
    assert peer.declare(1, "", "missing") == frames.STREAM_DOES_NOT_EXIST
    assert peer.ask(frames.DELETE_PUBLISHER, b"\0").code == frames.OK
    assert peer.ask(frames.DELETE_PUBLISHER, b"\0").code == frames.PUBLISHER_DOES_NOT_EXIST


def test_a_queue_that_is_no_stream_is_not_there() -> None:
    station = Station()
    station.house.broker.declare(declared("work", durable=True))
    peer = station.connect()

    assert peer.declare(0, "", "work") == frames.STREAM_DOES_NOT_EXIST
    assert peer.ask(frames.DELETE, text("work")).code == frames.STREAM_DOES_NOT_EXIST
    assert peer.ask(frames.METADATA, texts("work")).body.endswith(text("work") + struct.pack(">HHI", 2, 0xFFFF, 0))


def test_the_sequence_of_a_publisher() -> None:
    peer = Station().connect()
    peer.declare(0, "p")
    peer.say(publish(0, entry(1, b"a"), entry(40, b"b"), entry(3, b"not stored")))

    response = peer.ask(frames.QUERY_PUBLISHER_SEQUENCE, text("p") + text("s"))

    assert response.fields == struct.pack(">Q", 40)
    assert peer.ask(frames.QUERY_PUBLISHER_SEQUENCE, text("q") + text("s")).fields == bytes(8)


# -- reading ---------------------------------------------------------------------------------------------------------


def test_a_subscription_gets_what_is_there_and_what_comes() -> None:
    station = Station()
    writer, reader = station.connect(), station.connect()
    writer.declare()
    writer.say(publish(0, entry(1, b"a"), entry(2, b"b")))

    assert reader.subscribe(_FIRST) == frames.OK
    assert reader.delivered() == [(0, [b"a", b"b"])]
    writer.say(publish(0, entry(3, b"c")))
    assert reader.delivered() == [(2, [b"c"])]


@pytest.mark.parametrize(
    ("start", "first"),
    [
        (position(frames.FIRST), 0),
        (position(frames.LAST), 4),
        (position(frames.NEXT), 5),
        (position(frames.OFFSET, 3), 3),
        (position(frames.TIMESTAMP, 1_700_000_002_000), 2),
        (position(frames.TIMESTAMP, 0), 0),
    ],
)
def test_a_subscription_starts_where_it_says(start: bytes, first: int) -> None:
    station = Station()
    writer, reader = station.connect(), station.connect()
    writer.declare()
    for number in range(5):
        writer.say(publish(0, entry(number, b"old %d" % number)))
        station.house.advance(1)

    reader.subscribe(start)
    writer.say(publish(0, entry(9, b"new")))

    found = reader.delivered()
    assert found[0][0] == first
    assert [message for _, messages in found for message in messages] == [
        *[b"old %d" % number for number in range(first, 5)],
        b"new",
    ]


def test_a_subscription_gets_as_many_chunks_as_it_has_credit() -> None:
    station = Station()
    writer, reader = station.connect(), station.connect()
    writer.declare()
    reader.subscribe(_FIRST, credit=2)
    for number in range(4):
        writer.say(publish(0, entry(number, b"%d" % number)))
    assert reader.delivered() == [(0, [b"0"]), (1, [b"1"])]

    (frame,) = reader.say(command(frames.CREDIT, b"\0\0\1"))

    assert frame.messages == [b"2", b"3"]
    (answer,) = reader.say(command(frames.CREDIT, b"\5\0\1"))
    assert answer.body == struct.pack(">HB", frames.SUBSCRIPTION_ID_DOES_NOT_EXIST, 5)


def test_a_connection_that_does_not_read_gets_no_more_until_it_does() -> None:
    station = Station()
    reader = station.connect()
    reader.subscribe(_FIRST)
    reader.connection.hold_output(True)
    station.publish(b"x")
    assert reader.delivered() == []

    reader.connection.hold_output(False)

    assert [first for first, _ in reader.delivered()] == [0]


def test_messages_that_retention_dropped_are_passed_over() -> None:
    station = Station()
    writer, reader = station.connect(), station.connect()
    writer.ask(frames.CREATE, text("short") + table(max_length_bytes="2000"))
    writer.declare(0, "", "short")
    for number in range(40):
        writer.say(publish(0, entry(number, bytes(200))))
    kept = station.house.broker.queue("short").first_offset
    assert kept > 0

    reader.subscribe(position(frames.OFFSET, 1), stream="short")

    assert reader.delivered()[0][0] == kept


def test_subscriptions_exist_once_and_end() -> None:
    station = Station()
    reader = station.connect()
    reader.subscribe(_FIRST)

    assert reader.subscribe(_FIRST) == frames.SUBSCRIPTION_ID_EXISTS
    assert reader.subscribe(_FIRST, 1, stream="missing") == frames.STREAM_DOES_NOT_EXIST
    assert reader.subscribe(position(9), 1) == frames.PRECONDITION_FAILED
    assert reader.ask(frames.UNSUBSCRIBE, b"\0").code == frames.OK
    assert reader.ask(frames.UNSUBSCRIBE, b"\0").code == frames.SUBSCRIPTION_ID_DOES_NOT_EXIST
    station.publish(b"x")
    assert reader.delivered() == []


def test_who_may_not_read_gets_nothing_and_who_may_no_more_hears_so() -> None:
    station = Station()
    reader = station.connect()
    reader.subscribe(_FIRST)

    station.access.put_permission(Permission("guest", "/", ".*", ".*", ""), _well)
    station.publish(b"x")

    assert [frame.key for frame in reader.waiting()] == [frames.METADATA_UPDATE]
    assert reader.subscribe(_FIRST, 1) == frames.ACCESS_REFUSED


def test_a_connection_that_is_lost_leaves_nothing_behind() -> None:
    station = Station()
    peer = station.connect()
    peer.declare()
    peer.subscribe(_FIRST, single_active_consumer="true", name="g")
    peer.connection.lost()
    station.publish(b"x")

    assert station.queue.browsers == ()
    assert not station.queue.on_gone
    assert peer.heard() == []


def test_clients_hear_once_that_their_stream_is_gone() -> None:
    station = Station()
    peer, other = station.connect(), station.connect()
    peer.declare()
    peer.subscribe(_FIRST)
    peer.subscribe(_FIRST, 1)

    assert other.ask(frames.DELETE, text("s")).code == frames.OK

    (update,) = peer.waiting()
    assert (update.key, update.body) == (frames.METADATA_UPDATE, struct.pack(">H", 6) + text("s"))
    (refusal,) = peer.say(publish(0, entry(1, b"a")))
    assert refusal.errors == [(1, frames.PUBLISHER_DOES_NOT_EXIST)]
    assert peer.ask(frames.UNSUBSCRIBE, b"\0").code == frames.SUBSCRIPTION_ID_DOES_NOT_EXIST


def test_a_later_version_of_deliveries_is_used_where_it_was_agreed() -> None:
    station = Station()
    reader = station.connect()
    answer = reader.ask(frames.EXCHANGE_COMMAND_VERSIONS, struct.pack(">IHHH", 1, frames.DELIVER, 1, 3))
    reader.subscribe(_FIRST)
    station.publish(b"x")

    (frame,) = [frame for frame in reader.waiting() if frame.key == frames.DELIVER]

    assert struct.pack(">HHH", frames.DELIVER, 1, 2) in answer.fields
    assert (frame.version, frame.first_offset) == (2, 0)


def _filtered(number: int, message: bytes, value: str) -> bytes:
    return struct.pack(">Q", number) + text(value) + struct.pack(">I", len(message)) + message


def _with_filter(value: str) -> bytes:
    """A subscription to messages with this filter value."""
    properties = struct.pack(">I", 1) + text("filter.0") + text(value)
    return subscription(0, "s", _FIRST)[: -len(table())] + properties


def test_a_subscription_with_a_filter_gets_no_messages_but_between_those_that_it_wants() -> None:
    station = Station()
    writer, reader, other = station.connect(), station.connect(), station.connect()
    writer.declare()
    values = ["", "a", "b", "a", "b", "b"]
    section = b"\x00Su\xa0\x01"
    entries = [_filtered(number, section + b"%d" % number, value) for number, value in enumerate(values)]
    (confirm,) = writer.say(publish(0, *entries, version=2))
    assert confirm.ids == [0, 1, 2, 3, 4, 5]

    reader.ask(
        frames.SUBSCRIBE, subscription(0, "s", _FIRST)[:-4] + struct.pack(">I", 1) + text("filter.0") + text("a")
    )
    ((first, messages),) = reader.delivered()
    assert (first, [message[-1:] for message in messages]) == (1, [b"1", b"2", b"3"])
    unfiltered = struct.pack(">I", 2) + text("filter.0") + text("c") + text("match-unfiltered") + text("true")
    other.ask(frames.SUBSCRIBE, subscription(0, "s", _FIRST)[:-4] + unfiltered)
    assert other.delivered() == [(0, [section + b"0"])]


def test_a_filter_value_is_a_header_for_other_protocols_and_theirs_is_one_here() -> None:
    station = Station()
    writer, reader = station.connect(), station.connect()
    writer.declare()
    writer.say(publish(0, _filtered(1, b"\x00Su\xa0\x01x", "a"), version=2))
    (stored,) = station.queue.log.read(0, 1)
    assert properties_of(stored).headers == {"x-stream-filter-value": "a"}

    raw = encode_properties(AMQP091, Properties({"x-stream-filter-value": "b"}))
    station.house.broker.publish(Message(Source("s", "", "", "amqp091", AMQP091), b"y", 1, raw))
    station.house.run()
    reader.ask(
        frames.SUBSCRIBE, subscription(0, "s", _FIRST)[:-4] + struct.pack(">I", 1) + text("filter.0") + text("b")
    )

    ((first, _),) = reader.delivered()
    assert first == 1


# -- one active reader of several --------------------------------------------------------------------------------------


def _asked(peer: Peer) -> list[tuple[int, int, int]]:
    """Correlation, subscription and activity of the server's questions."""
    return [struct.unpack(">IBB", frame.body) for frame in peer.waiting() if frame.key == frames.CONSUMER_UPDATE]


def _answer(correlation: int, start: bytes) -> bytes:
    return request(frames.CONSUMER_UPDATE | frames.RESPONSE, correlation, struct.pack(">H", 1) + start)


def test_one_of_several_readers_is_active_and_the_next_one_takes_over_where_it_says() -> None:
    station = Station()
    station.publish(b"a", b"b", b"c")
    first, second = station.connect(), station.connect()
    first.subscribe(_FIRST, single_active_consumer="true", name="g")
    second.subscribe(_FIRST, single_active_consumer="true", name="g")
    ((correlation, _, is_active),) = _asked(first)
    assert is_active
    assert _asked(second) == []

    (frame,) = first.say(_answer(correlation, position(frames.OFFSET, 1)))
    assert frame.first_offset == 1
    first.ask(frames.UNSUBSCRIBE, b"\0")

    ((correlation, _, is_active),) = _asked(second)
    assert is_active
    (frame,) = second.say(_answer(correlation, position(frames.OFFSET, 2)))
    assert frame.first_offset == 2


def test_a_single_active_reader_has_a_name() -> None:
    assert Station().connect().subscribe(_FIRST, single_active_consumer="true") == frames.PRECONDITION_FAILED


def test_the_partitions_of_a_super_stream_are_spread_over_its_readers() -> None:
    station = Station()
    first, second = station.connect(), station.connect()
    first.ask(frames.CREATE_SUPER_STREAM, text("all") + texts("p0", "p1") + texts("0", "1") + table())
    for number, stream in enumerate(("p0", "p1")):
        first.subscribe(_FIRST, number, stream=stream, single_active_consumer="true", name="g", super_stream="all")
    questions = _asked(first)
    assert [(number, active) for _, number, active in questions] == [(0, 1), (1, 1)]
    for correlation, _, _ in questions:
        first.say(_answer(correlation, _FIRST))

    for number, stream in enumerate(("p0", "p1")):
        second.subscribe(_FIRST, number, stream=stream, single_active_consumer="true", name="g", super_stream="all")
    ((correlation, number, is_active),) = _asked(first)
    assert (number, is_active) == (1, 0)
    assert _asked(second) == []
    first.say(_answer(correlation, position(0)))

    ((correlation, number, is_active),) = _asked(second)
    assert (number, is_active) == (1, 1)


# -- streams and offsets ---------------------------------------------------------------------------------------------


def test_streams_are_created_as_other_clients_declare_them() -> None:
    station = Station()
    peer = station.connect()
    arguments = table(max_length_bytes="1000", max_age="2h", stream_max_segment_size_bytes="500")

    assert peer.ask(frames.CREATE, text("new") + arguments).code == frames.OK

    definition = station.house.broker.queue("new").definition
    assert (definition.retention.max_bytes, definition.retention.max_age_ms) == (1000, 7_200_000)
    assert peer.ask(frames.CREATE, text("new") + arguments).code == frames.STREAM_EXISTS
    assert peer.ask(frames.CREATE, text("new") + table()).code == frames.PRECONDITION_FAILED
    assert peer.ask(frames.CREATE, text("x") + table(max_age="soon")).code == frames.PRECONDITION_FAILED
    assert peer.ask(frames.CREATE, text("x") + table(colour="red")).code == frames.PRECONDITION_FAILED
    assert peer.ask(frames.CREATE, text("") + table()).code == frames.PRECONDITION_FAILED


def test_who_may_not_configure_creates_and_deletes_nothing() -> None:
    station = Station()
    peer = station.connect()
    station.access.put_permission(Permission("guest", "/", "^mine", ".*", ".*"), _well)

    assert peer.ask(frames.CREATE, text("new") + table()).code == frames.ACCESS_REFUSED
    assert peer.ask(frames.DELETE, text("s")).code == frames.ACCESS_REFUSED
    parts = text("mine") + texts("mine-0", "other-1") + texts("0", "1") + table()
    assert peer.ask(frames.CREATE_SUPER_STREAM, parts).code == frames.ACCESS_REFUSED
    assert set(station.house.broker.topology.queues) == {"s"}


def test_metadata_says_where_streams_are() -> None:
    body = Station().connect().ask(frames.METADATA, texts("s", "missing")).body

    place = struct.pack(">IHH", 1, 0, 9) + b"127.0.0.1" + struct.pack(">I", 5552)
    streams = text("s") + struct.pack(">HHI", 1, 0, 0) + text("missing") + struct.pack(">HHI", 2, 0xFFFF, 0)
    assert body[4:] == place + struct.pack(">I", 2) + streams


def test_a_super_stream_is_an_exchange_with_bindings() -> None:
    station = Station()
    peer = station.connect()
    parts = text("all") + texts("all-0", "all-1") + texts("amer", "emea") + table()

    assert peer.ask(frames.CREATE_SUPER_STREAM, parts).code == frames.OK

    station.house.broker.publish(Message(Source("emea", "all"), b"x", 1))
    station.house.run()
    assert station.house.broker.queue("all-1").messages == 1
    assert peer.ask(frames.PARTITIONS, text("all")).fields == texts("all-0", "all-1")
    assert peer.ask(frames.ROUTE, text("amer") + text("all")).fields == texts("all-0")
    assert peer.ask(frames.ROUTE, text("apac") + text("all")).fields == texts()
    assert peer.ask(frames.CREATE_SUPER_STREAM, parts).code == frames.STREAM_EXISTS
    assert peer.ask(frames.DELETE_SUPER_STREAM, text("all")).code == frames.OK
    assert peer.ask(frames.PARTITIONS, text("all")).code == frames.STREAM_DOES_NOT_EXIST
    assert set(station.house.broker.topology.queues) == {"s"}


def test_offsets_are_stored_by_reference() -> None:
    station = Station()
    station.publish(b"a", b"b", b"c")
    peer = station.connect()
    place = text("reader") + text("s")
    assert peer.ask(frames.QUERY_OFFSET, place).code == frames.NO_OFFSET

    peer.say(command(frames.STORE_OFFSET, place + struct.pack(">Q", 1)))

    assert peer.ask(frames.QUERY_OFFSET, place).fields == struct.pack(">Q", 1)
    assert station.queue.groups["reader"].lag == 1
    assert peer.ask(frames.QUERY_OFFSET, text("other") + text("s")).code == frames.NO_OFFSET


def test_statistics_of_a_stream() -> None:
    station = Station()
    peer = station.connect()
    empty = peer.ask(frames.STREAM_STATS, text("s")).fields
    station.publish(b"a", b"b")
    full = peer.ask(frames.STREAM_STATS, text("s")).fields

    assert text("first_chunk_id") + struct.pack(">q", -1) in empty
    assert text("first_chunk_id") + struct.pack(">q", 0) in full
    assert text("committed_offset") + struct.pack(">q", 1) in full
