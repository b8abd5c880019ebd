"""Bytes of the stream protocol, as its reference and RabbitMQ's own clients have them."""

import gzip
import struct
import zlib

import pytest

from headrace.errors import ProtocolError
from headrace.model import AMQP091, AMQP10, Message, Source
from headrace.protocols.streams import frames
from headrace.protocols.streams.chunks import Encoder, stored
from headrace.protocols.streams.codec import Decoder, Publish, Request, encode_confirm, encode_errors, respond
from headrace.wire.amqp091 import encode_properties
from headrace.wire.amqp10 import decode_properties, split
from headrace.wire.properties import Properties
from tests.stream_client import batch, command, entry, publish, request, text


def _publish(raw: bytes) -> Publish:
    (event,) = Decoder().feed(raw)
    assert isinstance(event, Publish)
    return event


def test_a_publish_as_clients_write_it() -> None:
    raw = bytes.fromhex("0000001c 0002 0001 05 00000001 000000000000002a 00000006 0053 75 a0 01 61".replace(" ", ""))
    raw = raw[:3] + bytes([len(raw) - 4]) + raw[4:]

    event = _publish(raw)

    assert (event.publisher, event.ids, event.messages) == (5, [42], [b"\x00Su\xa0\x01a"])


def test_a_subscribe_as_clients_write_it() -> None:
    body = "0007 0001 00000009 03 0001 73 0004 0000000000000064 000a 00000001 0004 6e616d65 0001 78"
    raw = bytes.fromhex(body.replace(" ", ""))

    (event,) = Decoder().feed(struct.pack(">I", len(raw)) + raw)

    assert isinstance(event, Request)
    assert (event.key, event.correlation) == (frames.SUBSCRIBE, 9)
    assert (event.number(0), event.text(1), event.number(3), event.table(4)) == (3, "s", 10, {"name": "x"})
    assert (event.position(2).kind, event.position(2).value) == (frames.OFFSET, 100)


def test_fields_that_older_clients_leave_out_are_empty() -> None:
    body = b"\x03" + text("s") + struct.pack(">HH", frames.FIRST, 10)

    (event,) = Decoder().feed(request(frames.SUBSCRIBE, 1, body))

    assert isinstance(event, Request)
    assert event.table(4) == {}


def test_batches_are_unpacked_into_their_messages() -> None:
    zipped = gzip.compress(b"".join([struct.pack(">I", 1) + letter for letter in (b"c", b"d", b"e")]))

    event = _publish(
        publish(
            0, entry(1, b"a"), batch(2, [b"b"]), batch(3, [b"c", b"d", b"e"], zipped, compression=1), entry(4, b"f")
        )
    )

    assert event.ids == [1, 2, 3, 4]
    assert event.counts == [1, 1, 3, 1]
    assert event.messages == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert event.refused == []


@pytest.mark.parametrize("compression", [2, 3, 4, 5])
def test_a_batch_of_another_compression_is_refused_by_itself(compression: int) -> None:
    event = _publish(publish(0, entry(1, b"a"), batch(2, [b"b"], b"?", compression), entry(3, b"c")))

    assert (event.ids, event.refused) == ([1, 3], [2])


@pytest.mark.parametrize(
    "packed",
    [
        b"no gzip",
        gzip.compress(b"\0\0\0\1a\0\0\0\1b"),
        gzip.compress(b"\0\0\0\1"),
        gzip.compress(b"\0\0\0\1a")[:-9],
        gzip.compress(bytes(100_000)),
    ],
    ids=["no gzip", "more messages", "no message", "cut short", "much more"],
)
def test_a_batch_that_is_not_what_it_says_is_refused(packed: bytes) -> None:
    assert _publish(publish(0, batch(2, [b"b"], packed, compression=1))).refused == [2]


def test_a_batch_does_not_unpack_beyond_its_bound() -> None:
    huge = 5 << 20
    raw = struct.pack(">QBHII", 1, 0x90, 1, huge, 10) + bytes(10)

    assert _publish(publish(0, raw)).refused == [1]


def test_a_frame_above_the_agreed_size_is_refused_before_it_is_there() -> None:
    with pytest.raises(ProtocolError) as refusal:
        Decoder().feed(struct.pack(">I", frames.LOGIN_FRAME_BYTES + 1))

    assert refusal.value.code == frames.FRAME_TOO_LARGE


@pytest.mark.parametrize("raw", [command(0x7FFF), command(frames.CREATE, b"", 9), command(frames.OPEN, b"\0")])
def test_commands_versions_and_fields_that_are_not_known_are_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError) as refusal:
        Decoder().feed(raw)

    assert refusal.value.code == frames.UNKNOWN_FRAME


def test_answers_are_the_bytes_of_the_reference() -> None:
    ask = Request(frames.CREATE, 1, 7, [])

    assert respond(ask).hex(" ", 2) == "0000 000a 800d 0001 0000 0007 0001"
    assert encode_confirm(5, [1, 2]).hex() == "00000019000300010500000002" + f"{1:016x}{2:016x}"
    assert encode_errors(5, [(1, 0x12)]).hex() == "0000001300040001050000000100000000000000010012"


def test_a_chunk_is_the_bytes_that_osiris_has() -> None:
    source = Source("s", "", "", "stream", AMQP10)
    messages = [Message(source, payload, 1_700_000_000_123_456, properties) for properties, payload in [stored(b"hi")]]

    raw = Encoder().deliver(3, 1, 42, messages)

    entries = b"\0\0\0\2hi"
    head = "0000003b000800010350000001000000010000018bcfe5687b0000000000000001"
    place = "000000000000002a" + f"{zlib.crc32(entries):08x}" + "000000060000000000000000"
    assert raw.hex() == head + place + entries.hex()
    assert Encoder().deliver(3, 2, 42, messages)[4:17].hex() == "0008000203" + f"{42:016x}"


def test_a_message_of_another_protocol_goes_out_as_sections_with_its_properties() -> None:
    properties = Properties({"number": 5}, content_type="text/plain")
    properties.message_id = "m1"
    message = Message(Source("key", "logs", "", "amqp091", AMQP091), b"body", 1, encode_properties(properties))

    head, payload = split(Encoder().sections(message))

    assert payload == b"body"
    meaning = decode_properties(head)
    assert (meaning.message_id, meaning.content_type, meaning.headers["number"]) == ("m1", "text/plain", 5)
    assert (meaning.headers["x-exchange"], meaning.headers["x-routing-key"]) == ("logs", "key")
