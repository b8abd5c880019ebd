"""Laws of the AMQP 0-9-1 codec: any cut gives the same events, garbage raises ProtocolError only, values are exact."""

import contextlib
import struct
import tracemalloc
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pamqp import commands

from headrace.errors import ProtocolError
from headrace.model import AMQP091, Source
from headrace.protocols.amqp091.codec import (
    Ack,
    Decoder,
    DeliverEncoder,
    Hello,
    Method,
    Publish,
    TooLarge,
    encode_content,
)
from headrace.protocols.amqp091.frames import PROTOCOL_HEADER
from headrace.protocols.amqp091.methods import encode_method
from headrace.wire.amqp091 import (
    HAS_REPLY_TO,
    HAS_USER_ID,
    Reader,
    decode_properties,
    encode_entry,
    encode_properties,
    encode_shortstr,
    encode_table,
)
from headrace.wire.amqp091_scan import HAS_COPIES, expiration_of, priority_of, scan_properties, with_headers
from headrace.wire.properties import Properties
from headrace.wire.types import Byte, Float, Int, LongString, Seconds, Short, UByte, UInt, ULong, UShort

_names = st.text(max_size=20)
_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.text(max_size=30),
    st.binary(max_size=30),
    st.binary(min_size=1, max_size=4).map(lambda raw: LongString(b"\xff" + raw)),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-128, 127).map(Byte),
    st.integers(0, 255).map(UByte),
    st.integers(-(1 << 15), (1 << 15) - 1).map(Short),
    st.integers(0, (1 << 16) - 1).map(UShort),
    st.integers(-(1 << 31), (1 << 31) - 1).map(Int),
    st.integers(0, (1 << 32) - 1).map(UInt),
    st.integers(0, (1 << 64) - 1).map(ULong),
    st.integers(253402300800, (1 << 64) - 1).map(Seconds),
    st.floats(allow_nan=False),
    st.floats(width=32, allow_nan=False).map(Float),
    st.integers(0, 253402300799).map(lambda second: datetime.fromtimestamp(second, UTC)),
    st.tuples(st.integers(0, 255), st.integers(0, (1 << 31) - 1)).map(
        lambda pair: Decimal((0, tuple(map(int, str(pair[1]))), -pair[0]))
    ),
)
_values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3), max_leaves=8
)
_tables = st.dictionaries(_names, _values, max_size=4)


@st.composite
def _said(draw: st.DrawFn) -> Properties:
    properties = Properties(draw(_tables), draw(_names))
    properties.content_encoding = draw(_names)
    properties.correlation_id = draw(_names)
    properties.reply_to = draw(_names)
    properties.message_id = draw(_names)
    properties.user_id = draw(_names)
    properties.app_id = draw(_names)
    properties.delivery_mode = draw(st.integers(0, 255))
    properties.extra = draw(
        st.fixed_dictionaries(
            {}, optional={"priority": st.integers(0, 255), "timestamp": st.integers(0, 1 << 63), "cluster_id": _names}
        )
    )
    return properties


def _publish(channel: int, exchange: str, key: str, properties: bytes, body: bytes) -> bytes:
    method = encode_method(channel, commands.Basic.Publish, {"exchange": exchange, "routing_key": key})
    return method + encode_content(channel, properties, body, 64)


_frames = st.one_of(
    st.builds(_publish, st.integers(1, 9), _names, _names, _said().map(encode_properties), st.binary(max_size=200)),
    st.builds(
        lambda channel, tag, multiple: encode_method(
            channel, commands.Basic.Ack, {"delivery_tag": tag, "multiple": multiple}
        ),
        st.integers(1, 9),
        st.integers(0, (1 << 64) - 1),
        st.booleans(),
    ),
    st.builds(
        lambda channel, first, count: b"".join(
            [encode_method(channel, commands.Basic.Ack, {"delivery_tag": first + step}) for step in range(count)]
        ),
        st.integers(1, 2),
        st.integers(0, 3),
        st.integers(1, 4),
    ),
    st.builds(
        lambda queue, durable, arguments: encode_method(
            3, commands.Queue.Declare, {"queue": queue, "durable": durable, "arguments": arguments}
        ),
        _names,
        st.booleans(),
        _tables,
    ),
    st.just(b"\x08\x00\x00\x00\x00\x00\x00\xce"),
)


def _shown(event: object) -> tuple[object, ...]:
    if isinstance(event, Publish):
        route = event.route
        return (event.channel, route.exchange, route.key, event.properties, event.bodies)
    if isinstance(event, Ack):
        return (event.channel, event.first, event.tag, event.multiple)
    if isinstance(event, Method):
        return (event.channel, event.method.name, repr(dict(event.method)))
    if isinstance(event, TooLarge):
        return (event.channel, event.size)
    assert isinstance(event, Hello)
    return (event.is_ours,)


@given(st.lists(_frames, max_size=6), st.binary(max_size=20), st.data())
def test_any_cut_of_the_bytes_gives_the_same_events_and_the_same_error(
    frames: list[bytes], garbage: bytes, data: st.DataObject
) -> None:
    wire = PROTOCOL_HEADER + b"".join(frames) + garbage
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    pieces = [wire[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(wire)], strict=True)]

    assert _events(pieces) == _events([wire])


_publishes_alike = st.builds(
    _publish,
    st.sampled_from([1, 2]),
    st.just(""),
    st.sampled_from(["a", "b", "queue"]),
    st.sampled_from([b"\x00\x00", b"\x10\x00\x02"]),
    st.sampled_from([b"", b"x", b"y", b"long"]),
)


@given(st.lists(_publishes_alike, max_size=12), st.none() | st.tuples(st.integers(0, 600), st.integers(0, 255)))
def test_publishes_that_are_alike_are_read_in_one_piece_as_byte_by_byte(
    publishes: list[bytes], wrong: tuple[int, int] | None
) -> None:
    wire = bytearray(PROTOCOL_HEADER + b"".join(publishes))
    if wrong is not None:
        at, byte = wrong
        wire[len(PROTOCOL_HEADER) + at : len(PROTOCOL_HEADER) + at + 1] = bytes((byte,))

    assert _events([bytes(wire)]) == _events([bytes((byte,)) for byte in wire])


def _one_by_one(event: object) -> list[object]:
    """A row of publishes or of acknowledgements as it came."""
    if isinstance(event, Publish):
        routes = event.routes or [event.route] * len(event.bodies)
        return [
            Publish(event.channel, route, properties, event.looks, body)
            for route, properties, body in zip(routes, event.properties, event.bodies, strict=True)
        ]
    if not isinstance(event, Ack):
        return [event]
    return [Ack(event.channel, tag, event.multiple) for tag in range(event.first, event.tag + 1)]


def _events(pieces: list[bytes]) -> list[tuple[object, ...]]:
    """All events, and at the end what is wrong with the rest."""
    decoder = Decoder()
    found: list[tuple[object, ...]] = []
    try:
        for piece in pieces:
            found += [_shown(each) for event in decoder.feed(piece) for each in _one_by_one(event)]
        decoder.feed(b"")
    except ProtocolError as error:
        found.append((error.code, error.message))
    return found


@given(st.binary(max_size=300))
@example(b"\x01\x00\x01\x00\x00\x00\x03\x00\x00\x00\xce")
@example(b"\x02\x00\x01\x00\x00\x00\x00\xce")
def test_garbage_raises_protocol_error_and_nothing_else(garbage: bytes) -> None:
    _feed_all(PROTOCOL_HEADER + garbage)
    _feed_all(garbage)


@given(st.integers(1, 3), st.integers(0, 3), st.binary(max_size=80))
def test_garbage_in_whole_frames_raises_protocol_error_and_nothing_else(kind: int, channel: int, body: bytes) -> None:
    publish = encode_method(channel, commands.Basic.Publish, {"routing_key": "q"})
    frame = struct.pack(">BHI", kind, channel, len(body)) + body + b"\xce"
    _feed_all(PROTOCOL_HEADER + frame)
    _feed_all(PROTOCOL_HEADER + publish + frame)


@given(st.sampled_from(sorted(commands.INDEX_MAPPING)), st.binary(max_size=80))
def test_garbage_in_any_method_raises_protocol_error_and_nothing_else(index: int, arguments: bytes) -> None:
    body = struct.pack(">I", index) + arguments
    _feed_all(PROTOCOL_HEADER + struct.pack(">BHI", 1, 1, len(body)) + body + b"\xce")


@given(_frames, st.integers(0, 400), st.integers(0, 255))
def test_one_wrong_byte_raises_protocol_error_or_nothing(frame: bytes, at: int, byte: int) -> None:
    at %= len(frame)
    _feed_all(PROTOCOL_HEADER + frame[:at] + bytes([byte]) + frame[at + 1 :])


def _feed_all(wire: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        Decoder().feed(wire)


@pytest.mark.parametrize("kind", [1, 2, 3, 8])
def test_a_huge_frame_is_refused_before_its_bytes_come(kind: int) -> None:
    decoder = Decoder()
    decoder.feed(PROTOCOL_HEADER)

    with pytest.raises(ProtocolError, match="larger than the agreed"):
        decoder.feed(struct.pack(">BHI", kind, 1, 0xFFFFFFFF) + b"\0")


def test_a_huge_body_is_refused_at_its_header_and_not_kept() -> None:
    header = struct.pack(">HHQH", 60, 0, 1 << 60, 0)
    frames = encode_method(1, commands.Basic.Publish) + struct.pack(">BHI", 2, 1, len(header)) + header + b"\xce"
    decoder = Decoder()

    _, event = decoder.feed(PROTOCOL_HEADER + frames)
    assert isinstance(event, TooLarge)
    assert (event.channel, event.size) == (1, 1 << 60)
    tracemalloc.start()
    for _ in range(1000):
        assert decoder.feed(struct.pack(">BHI", 3, 1, 4096) + bytes(4096) + b"\xce") == []
    assert tracemalloc.get_traced_memory()[0] < 100_000
    tracemalloc.stop()


def test_a_huge_string_within_a_table_is_refused() -> None:
    table = struct.pack(">I", 12) + b"\x01aS" + struct.pack(">I", 0x7FFFFFFF) + b"abcde"

    with pytest.raises(ProtocolError):
        Reader(table).table()


def test_tables_nested_too_deep_are_refused() -> None:
    table = b""
    for _ in range(2000):
        table = b"\x01aF" + struct.pack(">I", len(table)) + table

    with pytest.raises(ProtocolError, match="nested"):
        Reader(struct.pack(">I", len(table)) + table).table()


@given(_tables)
def test_tables_come_back_with_the_same_values_types_and_bytes(table: dict[str, object]) -> None:
    raw = encode_table(table)
    back = Reader(raw).table()

    assert back == table
    assert [type(value) for value in back.values()] == [type(value) for value in table.values()]
    assert encode_table(back) == raw


@given(_said())
def test_properties_come_back_with_the_same_bytes(properties: Properties) -> None:
    raw = encode_properties(properties)

    assert encode_properties(decode_properties(raw)) == raw


@given(_said(), st.integers(0, 1 << 62))
def test_a_header_added_on_delivery_changes_nothing_else(properties: Properties, offset: int) -> None:
    raw = encode_properties(properties)
    more = decode_properties(with_headers(raw, encode_entry("x-stream-offset", offset)))

    assert more.headers.pop("x-stream-offset") == offset
    properties.headers.pop("x-stream-offset", None)
    assert encode_properties(more) == encode_properties(properties)


def _looks(raw: bytes) -> tuple[bool, bool, int, str] | None:
    """Decode what a publish must know of these properties; None if they are wrong."""
    try:
        found = decode_properties(raw)
    except ProtocolError:
        return None
    has_copies = "CC" in found.headers or "BCC" in found.headers
    priority = found.extra.get("priority", 0)
    assert isinstance(priority, int)
    is_special = has_copies or bool(raw[1] & HAS_USER_ID) or found.reply_to == "amq.rabbitmq.reply-to"
    return is_special, has_copies, priority, found.expiration


def _scanned(raw: bytes) -> tuple[bool, bool, int, str] | None:
    try:
        looks = scan_properties(raw)
    except ProtocolError:
        return None
    expiration = expiration_of(raw).decode(errors="surrogateescape")
    is_special = bool(looks & (HAS_COPIES | HAS_USER_ID | HAS_REPLY_TO))
    assert looks or not (priority_of(raw) or expiration)
    return is_special, bool(looks & HAS_COPIES), priority_of(raw), expiration


@given(
    _said(),
    st.sampled_from(["", "CC", "BCC", "cc"]),
    st.sampled_from(["", "amq.rabbitmq.reply-to", "amq.rabbitmq.reply-tu"]),
    st.none() | st.tuples(st.integers(0, 400), st.integers(0, 255)),
    st.integers(0, 3),
)
def test_a_scan_of_properties_sees_what_decoding_sees(
    given_: Properties, copies: str, reply_to: str, wrong: tuple[int, int] | None, cut: int
) -> None:
    if copies:
        given_.headers[copies] = ["a"]
    given_.reply_to = reply_to or given_.reply_to
    raw = bytearray(encode_properties(given_))
    if wrong is not None:
        raw[wrong[0] : wrong[0] + 1] = bytes((wrong[1],))
    found = bytes(raw[: len(raw) - cut])

    assert _scanned(found) == _looks(found)


@given(_names, _names, st.integers(1, (1 << 63) - 1), st.booleans(), st.binary(max_size=300))
def test_a_delivery_is_written_as_its_frames(exchange: str, key: str, tag: int, redelivered: bool, body: bytes) -> None:
    source = Source(key, exchange, encoding=AMQP091)
    fields = {
        "consumer_tag": "c",
        "delivery_tag": tag,
        "redelivered": redelivered,
        "exchange": exchange,
        "routing_key": key,
    }
    slow = encode_method(7, commands.Basic.Deliver, fields) + encode_content(7, b"\0\0", body, 108)

    out: list[bytes] = []
    encoder = DeliverEncoder(7, "c", 108)
    encoder.address(source, exchange, key)
    encoder.encode(out, tag, redelivered, b"\0\0", body)
    encoder.finish(out)
    assert b"".join(out) == slow


@given(
    st.lists(st.tuples(_said().map(encode_properties), st.booleans(), st.sampled_from([b"", b"a", b"bb", b"c" * 200]))),
    st.integers(0, 1 << 62),
)
def test_deliveries_with_a_number_are_those_with_one_more_header(
    given_: list[tuple[bytes, bool, bytes]], number: int
) -> None:
    source = Source("key", "exchange", encoding=AMQP091)
    numbered = DeliverEncoder(7, "c", 108, encode_shortstr("n") + b"l")
    plain = DeliverEncoder(7, "c", 108)
    for encoder in (numbered, plain):
        encoder.address(source, "exchange", "key")
    found: list[bytes] = []
    expected: list[bytes] = []
    for tag, (properties, redelivered, body) in enumerate(given_):
        numbered.encode(found, tag, redelivered, properties, body, number + tag)
        more = with_headers(properties, encode_shortstr("n") + b"l" + (number + tag).to_bytes(8, "big"))
        plain.encode(expected, tag, redelivered, more, body)
    numbered.finish(found)
    plain.finish(expected)

    assert b"".join(found) == b"".join(expected)
