"""Laws of the stream protocol's codec: any cut gives the same events, garbage raises ProtocolError only."""

import gzip

from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ProtocolError
from headrace.model import AMQP10, Message, Source
from headrace.protocols.streams import frames
from headrace.protocols.streams.chunks import Encoder, Splitter, stored
from headrace.protocols.streams.codec import Decoder, Event, Publish
from tests.stream_client import Cutter, batch, command, entry, position, publish, request, subscription, table, text

_bodies = st.binary(max_size=40)
_numbers = st.integers(0, (1 << 64) - 1)
_entries = st.one_of(
    st.builds(entry, _numbers, _bodies),
    st.builds(batch, _numbers, st.lists(_bodies, min_size=1, max_size=4)),
    st.builds(lambda number, bodies: _zipped(number, bodies), _numbers, st.lists(_bodies, min_size=1, max_size=4)),
)
_commands = st.one_of(
    st.builds(lambda entries: publish(3, *entries), st.lists(_entries, max_size=4)),
    st.builds(lambda name: request(frames.CREATE, 1, text(name) + table(max_age="1h")), st.text(max_size=5)),
    st.builds(
        lambda name, value: request(frames.SUBSCRIBE, 2, subscription(1, name, position(frames.OFFSET, value))),
        st.text(max_size=5),
        _numbers,
    ),
    st.just(command(frames.HEARTBEAT)),
)


def _zipped(number: int, bodies: list[bytes]) -> bytes:
    unpacked = b"".join([len(body).to_bytes(4) + body for body in bodies])
    return batch(number, bodies, gzip.compress(unpacked), compression=1)


def _seen(events: list[Event]) -> list[object]:
    return [
        (event.publisher, event.ids, event.messages, event.counts, event.refused)
        if isinstance(event, Publish)
        else (event.key, event.version, event.correlation, [_plain(value) for value in event.values])
        for event in events
    ]


def _plain(value: object) -> object:
    kind = getattr(value, "kind", None)
    return value if kind is None else (kind, getattr(value, "value", None))


@given(st.lists(_commands, max_size=4), st.data())
def test_any_cut_of_the_bytes_gives_the_same_events(commands: list[bytes], data: st.DataObject) -> None:
    raw = b"".join(commands)
    whole = _seen(Decoder().feed(raw))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=5)))
    decoder = Decoder()

    found: list[object] = []
    for start, stop in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        found += _seen(decoder.feed(raw[start:stop]))

    assert len(whole) == len(commands)
    assert found == whole
    assert decoder.held_bytes == 0


@given(st.lists(st.one_of(_commands, st.binary(max_size=60)), max_size=4), st.data())
def test_garbage_raises_a_protocol_error_and_nothing_else(pieces: list[bytes], data: st.DataObject) -> None:
    raw = b"".join(pieces)
    if raw:
        at = data.draw(st.integers(0, len(raw) - 1))
        raw = raw[:at] + data.draw(st.binary(max_size=3)) + raw[at + 1 :]
    decoder = Decoder()
    try:
        for piece in (raw[:7], raw[7:]):
            decoder.feed(piece)
    except ProtocolError:
        return
    assert decoder.held_bytes <= len(raw)


@given(st.integers(0, 0xFFFF), st.integers(0, 3), st.binary(max_size=60))
def test_a_frame_with_any_fields_is_an_event_or_a_protocol_error(key: int, version: int, body: bytes) -> None:
    try:
        events = Decoder().feed(command(key, body, version))
    except ProtocolError:
        return
    assert len(events) == 1


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=5), st.integers(0, 1 << 40))
def test_a_chunk_has_the_very_bytes_that_were_published(raws: list[bytes], first: int) -> None:
    source = Source("s", "", "", "stream", AMQP10)
    messages = [Message(source, payload, 1, properties) for properties, payload in map(stored, raws)]

    (frame,) = Cutter().feed(Encoder().deliver(7, 1, first, messages))

    assert frame.key == frames.DELIVER
    assert frame.first_offset == first
    assert frame.messages == raws


_heads = st.sampled_from([b"", b"\x00Ss\xc0\x05\x01\xa1\x02id", b"\x00Sp\xc0\x02\x01A"])
_messages = st.one_of(
    st.binary(max_size=20),
    st.builds(
        lambda head, body, more: head + b"\x00Su\xa0" + bytes([len(body)]) + body + more,
        _heads,
        st.binary(max_size=255),
        st.sampled_from([b"", b"", b"\x00Su\xa0\x00", b"\x00"]),
    ),
    st.builds(lambda head: head + b"\x00Su\xb0\x00\x00\x01\x00" + bytes(256), _heads),
)


@given(st.lists(_messages, max_size=6))
def test_what_a_publisher_sent_before_does_not_change_how_a_message_is_split(raws: list[bytes]) -> None:
    splitter = Splitter()

    assert [splitter.split(raw) for raw in raws] == [stored(raw) for raw in raws]
