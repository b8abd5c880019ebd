"""The bytes of AMQP 0-9-1 as its specification draws them, in hex."""

import pytest
from pamqp import commands

from headrace.errors import ProtocolError
from headrace.model import Source
from headrace.protocols.amqp091.codec import (
    HEARTBEAT_FRAME,
    Ack,
    Decoder,
    DeliverEncoder,
    Hello,
    Publish,
    Route,
    RouteRoom,
    encode_ack,
)
from headrace.protocols.amqp091.frames import PROTOCOL_HEADER
from headrace.protocols.amqp091.methods import decode_method, encode_method


def test_a_publish_is_a_method_a_header_and_a_body() -> None:
    wire = bytes.fromhex(
        "01 0001 0000000c 003c 0028 0000 00 03 6a6f62 01 ce"  # basic.publish "", "job", mandatory
        "02 0001 0000000f 003c 0000 0000000000000005 1000 02 ce"  # body size 5, delivery mode 2
        "03 0001 00000003 68656c ce"
        "03 0001 00000002 6c6f ce"
    )

    _, event = Decoder().feed(PROTOCOL_HEADER + wire)

    assert isinstance(event, Publish)
    assert (event.channel, event.route.exchange, event.route.key) == (1, "", "job")
    assert event.route.mandatory
    assert event.properties == [bytes.fromhex("1000 02")]
    assert event.bodies == [b"hello"]


def test_publishes_that_repeat_themselves_are_read_as_the_first() -> None:
    wire = bytes.fromhex(
        "01 0001 0000000c 003c 0028 0000 00 03 6a6f62 00 ce"
        "02 0001 0000000f 003c 0000 0000000000000002 1000 02 ce"
        "03 0001 00000002 6869 ce"
    )

    events = Decoder().feed(PROTOCOL_HEADER + wire * 3)[1:]

    assert [event.bodies for event in events if isinstance(event, Publish)] == [[b"hi"], [b"hi", b"hi"]]


def _routes(decoder: Decoder, keys: range) -> list[Route]:
    """The routes of messages with these keys."""
    wire = bytearray()
    for key in keys:
        method = bytes.fromhex("003c 0028 0000 00 06") + f"{key:06}".encode() + b"\0"
        wire += b"\1\0\1" + len(method).to_bytes(4, "big") + method + b"\xce"
        wire += bytes.fromhex("02 0001 0000000f 003c 0000 0000000000000002 1000 02 ce 03 0001 00000002 6869 ce")
    events = [event for event in decoder.feed(bytes(wire)) if isinstance(event, Publish)]
    return [route for event in events for route in event.routes or [event.route]]


def test_routes_to_thousands_of_queues_are_remembered_as_long_as_there_is_room_for_all_connections() -> None:
    room = RouteRoom()
    first, second = Decoder(room), Decoder(room)
    for decoder in (first, second):
        decoder.feed(PROTOCOL_HEADER)
    keys = range(60_000)

    for decoder, is_remembered in ((first, True), (second, False)):
        before = _routes(decoder, keys)
        again = _routes(decoder, keys)
        assert [route.key for route in again] == [f"{key:06}" for key in keys]
        assert all(old is new for old, new in zip(before, again, strict=True)) is is_remembered

    first.forget_routes()
    second.forget_routes()
    before, again = _routes(second, keys), _routes(second, keys)
    assert all(old is new for old, new in zip(before, again, strict=True))


def test_a_header_too_short_to_be_one_is_refused_behind_a_known_publish_too() -> None:
    publish = "01 0001 0000000c 003c 0028 0000 00 03 6a6f62 00 ce"
    whole = "02 0001 0000000f 003c 0000 0000000000000002 1000 02 ce 03 0001 00000002 6869 ce"
    short = "02 0001 00000005 003c 0000 00 ce 03 0001 00000002 6869 ce 03 0001 00000002 6869 ce"
    decoder = Decoder()

    events = decoder.feed(PROTOCOL_HEADER + bytes.fromhex(publish + whole + publish + short))

    assert [type(event) for event in events] == [Hello, Publish]
    assert decoder.failure is not None
    assert decoder.failure.code in (501, 502)


def test_an_acknowledgement_has_a_tag_and_a_bit() -> None:
    frame = bytes.fromhex("01 0002 0000000d 003c 0050 0000000000000007 01 ce")

    _, event = Decoder().feed(PROTOCOL_HEADER + frame)

    assert isinstance(event, Ack)
    assert (event.channel, event.tag, event.multiple) == (2, 7, True)
    assert encode_ack(2, 7, True) == frame


def test_a_delivery_is_a_method_a_header_and_a_body() -> None:
    source = Source("anything")

    out: list[bytes] = []
    encoder = DeliverEncoder(1, "c", 4096)
    encoder.address(source, "ex", "job")
    encoder.encode(out, 9, True, b"\0\0", b"hi")
    encoder.finish(out)
    assert b"".join(out) == bytes.fromhex(
        "01 0001 00000016 003c 003c 01 63 0000000000000009 01 02 6578 03 6a6f62 ce"
        "02 0001 0000000e 003c 0000 0000000000000002 0000 ce"
        "03 0001 00000002 6869 ce"
    )


def test_a_heartbeat_is_an_empty_frame_of_type_8() -> None:
    assert bytes.fromhex("08 0000 00000000 ce") == HEARTBEAT_FRAME


def test_bits_share_octets() -> None:
    fields = {"queue": "q", "durable": True, "auto_delete": True}
    frame = encode_method(1, commands.Queue.Declare, fields)

    assert frame == bytes.fromhex("01 0001 0000000d 0032 000a 0000 01 71 0a 00000000 ce")
    method = decode_method(frame[7:-1])
    assert isinstance(method, commands.Queue.Declare)
    assert (method.passive, method.durable, method.exclusive, method.auto_delete) == (False, True, False, True)


def test_a_method_amid_a_message_of_its_channel_is_unexpected_and_on_another_is_not() -> None:
    publish = encode_method(1, commands.Basic.Publish, {"routing_key": "q"})

    decoder = Decoder()
    decoder.feed(PROTOCOL_HEADER + publish + encode_method(2, commands.Channel.Open))
    assert decoder.failure is None
    with pytest.raises(ProtocolError) as caught:
        decoder.feed(publish)
    assert caught.value.code == 505


def test_events_before_an_error_are_not_lost() -> None:
    decoder = Decoder()

    events = decoder.feed(PROTOCOL_HEADER + encode_ack(1, 7, False) + b"garbage!")

    assert [type(event) for event in events] == [Hello, Ack]
    assert decoder.failure is not None
    assert decoder.failure.code == 501


_LARGE = bytes(range(256)) * 256


def _large_publish(body: bytes) -> bytes:
    method = bytes.fromhex("01 0001 0000000c 003c 0028 0000 00 03 6a6f62 00 ce")
    header = bytes.fromhex("02 0001 0000000f 003c 0000") + len(body).to_bytes(8) + bytes.fromhex("1000 02 ce")
    return method + header + b"\x03\0\x01" + len(body).to_bytes(4) + body + b"\xce"


@pytest.mark.parametrize("size", [4095, 5000, 30_000, 65_000, 65_590, 70_000])
def test_a_large_body_is_the_same_in_whatever_pieces_it_comes(size: int) -> None:
    ack = bytes.fromhex("01 0001 0000000d 003c 0050 0000000000000007 00 ce")
    wire = (_large_publish(_LARGE) + ack) * 3
    decoder = Decoder()
    events = decoder.feed(PROTOCOL_HEADER)[1:]

    for at in range(0, len(wire), size):
        events += decoder.feed(wire[at : at + size])
        # pieces, and the frames around them
        assert decoder.held_bytes <= len(_LARGE) + 200

    assert [type(event) for event in events] == [Publish, Ack] * 3
    assert all(event.bodies == [_LARGE] for event in events if isinstance(event, Publish))
    assert decoder.held_bytes == 0


def test_a_large_body_without_its_end_mark_is_an_error() -> None:
    decoder = Decoder()
    decoder.feed(PROTOCOL_HEADER)
    wire = _large_publish(_LARGE)[:-1] + b"\0"
    decoder.feed(wire[:50_000])

    with pytest.raises(ProtocolError, match="end mark"):
        decoder.feed(wire[50_000:])
