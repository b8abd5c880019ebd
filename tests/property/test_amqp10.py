"""Laws of the AMQP 1.0 codec: every value comes back, proton reads our bytes, garbage raises ProtocolError only."""

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import HeadraceError, ProtocolError
from headrace.model import AMQP091, AMQP10, Message, Source
from headrace.protocols.amqp10.codec import Decoder, Event, Hello, TransferEncoder, encode_accepted, encode_frame
from headrace.protocols.amqp10.frames import AMQP_HEADER, MAX_FRAME_SIZE
from headrace.protocols.amqp10.performatives import ACCEPTED, Accepted, Disposition, Flow, Transfer
from headrace.wire import types as t
from headrace.wire.amqp10 import decode_head, joined, split, translated, with_changes
from headrace.wire.amqp10_values import Reader, encode_described, encode_value
from headrace.wire.encodings import decode_properties, encode_properties, properties_of
from tests.amqp10_values import ascii_tables, heads, is_read_by_proton, read_by_proton, section, values


@given(values)
def test_every_value_comes_back_as_it_was(value: object) -> None:
    reader = Reader(encode_value(value))

    assert t.same(reader.value(), value)
    assert reader.is_at_end


@given(values.filter(is_read_by_proton))
def test_proton_reads_what_is_written(value: object) -> None:
    data = proton.Data()
    raw = encode_value(value)

    assert data.decode(raw) == len(raw)
    data.rewind()
    data.next()
    assert t.same(read_by_proton(data), value)


@given(values)
def test_stepping_over_a_value_ends_where_reading_it_does(value: object) -> None:
    raw = encode_value(value) + b"rest"
    reader = Reader(raw)

    reader.skip()

    assert reader.at == len(raw) - 4


@given(st.one_of(st.binary(max_size=200), values.map(encode_value)), st.data())
def test_bytes_that_are_no_value_are_refused_with_a_protocol_error(raw: bytes, data: st.DataObject) -> None:
    if raw:
        at = data.draw(st.integers(0, len(raw) - 1))
        raw = raw[:at] + data.draw(st.binary(max_size=3)) + raw[at + 1 :]
    for read in (Reader.value, Reader.skip, Reader.fields, Reader.descriptor):
        try:
            read(Reader(raw))
        except ProtocolError:
            continue


def test_an_array_of_items_without_bytes_is_bounded() -> None:
    with pytest.raises(ProtocolError, match="array of 4294967295 items"):
        Reader(b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40").value()


@pytest.mark.parametrize("start", [b"\x00", b"\xd0\x00\x01\x00\x00\x00\x00\x00\x01", b"\xe0\xff\x01\x00\xa3\x01x"])
def test_nesting_is_bounded(start: bytes) -> None:
    for read in (Reader.value, Reader.check):
        with pytest.raises(ProtocolError):
            read(Reader(start * 5000))


def test_a_section_of_nothing_but_descriptors_is_refused() -> None:
    with pytest.raises(ProtocolError, match="nested"):
        split(b"\x00\x53\x70" + bytes(100_000))


# -- messages --------------------------------------------------------------------------------------------------------

_bodies = st.one_of(
    st.binary(max_size=300).map(lambda raw: section(0x75, encode_value(raw))),
    st.binary(max_size=30).map(lambda raw: section(0x75, b"\xb0" + len(raw).to_bytes(4) + raw)),
    st.lists(st.binary(max_size=30), min_size=2, max_size=3).map(
        lambda parts: b"".join([section(0x75, encode_value(part)) for part in parts])
    ),
    st.lists(values, max_size=3).map(lambda items: section(0x76, encode_value(items))),
    values.map(lambda value: section(0x77, encode_value(value))),
    st.just(b""),
)


_footers = st.one_of(st.just(b""), ascii_tables.map(lambda table: section(0x78, encode_value(table))))
messages = st.builds(lambda head, body, footer: head + body + footer, heads(), _bodies, _footers)


@given(messages)
def test_a_message_is_kept_byte_for_byte(message: bytes) -> None:
    properties, payload = split(message)

    assert joined(properties, payload) == message


def test_a_body_before_the_properties_is_put_behind_them() -> None:
    properties, body = encode_described(0x73, ["id"]), section(0x77, b"\x40")

    assert joined(*split(body + properties)) == properties + body


@given(heads(), st.binary(max_size=300), _footers)
def test_the_payload_is_the_content_of_the_body(head: bytes, content: bytes, footer: bytes) -> None:
    assert split(head + section(0x75, encode_value(content)) + footer)[1] == content
    assert split(head + section(0x77, encode_value(content)) + footer)[1] == content


@given(messages)
def test_reading_and_writing_properties_changes_nothing(message: bytes) -> None:
    properties, payload = split(message)

    again = encode_properties(AMQP10, decode_properties(AMQP10, properties))

    assert split(joined(again, payload))[1] == payload
    assert _values_of(again, payload) == _values_of(properties, payload)


def _values_of(properties: bytes, payload: bytes) -> list[object]:
    found: list[object] = []
    reader = Reader(joined(properties, payload))
    while not reader.is_at_end:
        value = reader.value()
        if isinstance(value, t.Described) and isinstance(value.value, list) and value.descriptor in (0x70, 0x73):
            fields = list(value.value)
            while fields and fields[-1] is None:
                fields.pop()
            if not fields:
                continue  # an empty section
            value = t.Described(value.descriptor, fields)
        found.append(value)
    return found


@given(messages)
def test_every_message_can_be_delivered_over_0_9_1_and_back(message: bytes) -> None:
    properties, payload = split(message)
    stored = Message(Source("q", "", "", "", AMQP10), payload, 1, properties)

    raw = encode_properties(AMQP091, properties_of(stored))
    other = Message(Source("q", "", "", "", AMQP091), payload, 1, raw)
    back = joined(*translated(other, properties_of(other)))

    assert split(back)[1] == payload
    decode_head(split(back)[0][1:])


@given(heads(), st.integers(0, 9), st.dictionaries(st.sampled_from(["x-a", "x-b"]), st.integers(0, 5)))
def test_a_delivery_adds_its_count_and_annotations_and_nothing_else(
    head: bytes, count: int, annotations: dict[str, object]
) -> None:
    before = decode_head(head)
    after = decode_head(with_changes(head, count, annotations))

    assert after.header_field(4) == count
    assert [after.header_field(index) for index in range(4)] == [before.header_field(index) for index in range(4)]
    assert {name: (after.annotations or t.Map()).get(name) for name in annotations} == annotations
    assert after.application == before.application
    assert t.same(after.properties, before.properties)


@given(st.one_of(st.binary(max_size=100), messages), st.data())
def test_a_message_that_is_none_is_refused(message: bytes, data: st.DataObject) -> None:
    if message:
        at = data.draw(st.integers(0, len(message) - 1))
        message = message[:at] + data.draw(st.binary(max_size=3)) + message[at + 1 :]
    try:
        properties, payload = split(message)
        assert sorted(joined(properties, payload)) == sorted(message)
        decode_properties(AMQP10, properties)
    except HeadraceError:
        return


# -- frames ----------------------------------------------------------------------------------------------------------


@st.composite
def _transfers(draw: st.DrawFn) -> bytes:
    transfer = Transfer(0, draw(st.integers(0, 300)))
    transfer.id = draw(st.sampled_from([-1, 0, 7, 255, 256, 2**32 - 1]))
    transfer.tag = draw(st.one_of(st.none(), st.binary(max_size=32)))
    transfer.settled = draw(st.sampled_from([None, True, False]))
    transfer.more = draw(st.booleans())
    transfer.aborted = draw(st.integers(0, 5)) == 0
    transfer.state = draw(st.sampled_from([None, None, ACCEPTED]))
    return encode_frame(draw(st.integers(0, 3)), transfer.encode(), draw(st.binary(max_size=40)))


@st.composite
def _dispositions(draw: st.DrawFn) -> bytes:
    first = draw(st.sampled_from([0, 1, 255, 256, 2**32 - 1]))
    last = draw(st.sampled_from([first, 2**32 - 1]))
    state = draw(st.sampled_from([None, ACCEPTED]))
    return encode_frame(1, Disposition(1, draw(st.booleans()), first, last, draw(st.booleans()), state).encode())


_frames = st.one_of(_transfers(), _dispositions(), st.just(encode_frame(0, Flow().encode())))


def _said(event: Event) -> tuple[object, ...]:
    if isinstance(event, Hello):
        return (event.is_known, event.is_sasl)
    payload = event.payload if isinstance(event, Transfer) else b""
    return (type(event), event.channel, event.encode(), payload)


@given(st.lists(_frames, max_size=5), st.data())
def test_any_cut_of_the_bytes_gives_the_same_events(frames: list[bytes], data: st.DataObject) -> None:
    whole = AMQP_HEADER + b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    decoder = Decoder()
    events: list[Event] = []
    for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        events += decoder.feed(whole[start:stop])

    assert [_said(event) for event in events] == [_said(event) for event in Decoder().feed(whole)]
    assert len(events) == 1 + len(frames)


@given(_transfers())
def test_the_quick_way_reads_a_transfer_as_the_thorough_one_does(frame: bytes) -> None:
    """Return a list with four bytes for its size, which the quick way refuses."""
    size = frame[12]
    wide = frame[8:11] + b"\xd0" + (size + 3).to_bytes(4) + frame[13:14].rjust(4, b"\0") + frame[14:]
    slow = Decoder().feed(AMQP_HEADER + (len(wide) + 8).to_bytes(4) + frame[4:8] + wide)[1]
    quick = Decoder().feed(AMQP_HEADER + frame)[1]

    assert _said(quick) == _said(slow)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.booleans(), st.booleans())
def test_accepted_is_read_as_it_is_written(first: int, last: int, settled: bool, is_receiver: bool) -> None:
    (_, event) = Decoder().feed(AMQP_HEADER + encode_accepted(5, is_receiver, first, last, settled))

    assert isinstance(event, Disposition)
    assert isinstance(event.state, Accepted)
    assert (event.channel, event.first, event.last) == (5, first, last)
    assert (event.settled, event.is_receiver) == (settled, is_receiver)


@given(st.binary(max_size=2000), st.integers(512, 1024), st.booleans())
def test_a_delivery_is_cut_into_frames_that_fit_and_put_together_again(
    message: bytes, frame_max: int, settled: bool
) -> None:
    frames = TransferEncoder(3, 9, frame_max).encode(11, 12, settled, message)
    events = Decoder().feed(AMQP_HEADER + b"".join(frames))[1:]

    assert all([len(frame) <= frame_max for frame in frames])
    pieces = [event for event in events if isinstance(event, Transfer)]
    assert b"".join([piece.payload for piece in pieces]) == message
    assert [piece.more for piece in pieces] == [True] * (len(pieces) - 1) + [False]
    assert {(piece.channel, piece.handle, piece.id, piece.tag) for piece in pieces} == {(3, 9, 11, b"\0\0\0\x0c")}


@given(st.lists(st.one_of(_frames, st.binary(max_size=60)), max_size=5), st.data())
def test_garbage_raises_a_protocol_error_and_nothing_else(frames: list[bytes], data: st.DataObject) -> None:
    whole = bytearray(AMQP_HEADER + b"".join(frames))
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    decoder = Decoder()
    try:
        decoder.feed(bytes(whole))
        decoder.feed(b"")
    except ProtocolError:
        return


def test_a_frame_that_is_too_large_is_refused_before_it_is_read() -> None:
    decoder = Decoder()
    decoder.feed(AMQP_HEADER)

    with pytest.raises(ProtocolError, match="larger"):
        decoder.feed((MAX_FRAME_SIZE + 1).to_bytes(4) + b"\x02\x00\x00\x00")
