"""Chapters 1 and 2: strings, lengths, fixed headers, packet identifiers."""

import pytest

from tests.conformance.mqtt.clauses import clauses
from tests.conformance.mqtt.conftest import Room
from tests.conformance.mqtt.wire import (
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    answer,
    connect,
    packet,
    publish,
    subscribe,
    text,
    unsubscribe,
)

_ILL_FORMED = [b"\xff", b"a\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80"]


@clauses(v311="1.5.3-1", v5="1.5.4-1")
@pytest.mark.parametrize("raw", _ILL_FORMED)
def test_a_string_that_is_not_utf_8_ends_the_connection(room: Room, raw: bytes) -> None:
    client = room.client()

    client.send(publish(room.version, raw))

    ending = client.expect_end()
    assert [(last.kind, last.reason) for last in ending] == ([(DISCONNECT, 0x81)] if room.version == 5 else [])


@clauses(v311="1.5.3-2", v5="1.5.4-2")
@pytest.mark.parametrize("kind", ["publish", "subscribe", "unsubscribe"])
def test_a_null_character_ends_the_connection(room: Room, kind: str) -> None:
    client = room.client()
    if kind == "publish":
        client.send(publish(room.version, b"a\0b"))
    elif kind == "subscribe":
        client.send(subscribe(room.version, 1, (b"a\0b", 0)))
    else:
        client.send(unsubscribe(room.version, 1, b"a\0b"))

    assert SUBACK not in [last.kind for last in client.expect_end()]


@clauses(v311="1.5.3-3", v5="1.5.4-3")
def test_a_byte_order_mark_is_a_character_like_others(room: Room) -> None:
    topic = room.topic("\ufeffa\ufeff")
    subscriber = room.subscriber((topic, 0), (room.topic("a"), 0))

    room.client().publish(topic, b"1")

    assert subscriber.message().topic == topic
    subscriber.expect_nothing()


@clauses(v5="1.5.5-1")
@pytest.mark.parametrize("raw", [b"\x30\x87\x00\x00\x01a\x00abc", b"\x30\x06\x00\x01a\x80\x00b"])
def test_a_length_in_more_bytes_than_it_needs_is_malformed(room: Room, raw: bytes) -> None:
    client = room.client()

    client.send(raw)

    assert [(last.kind, last.reason) for last in client.expect_end()] == [(DISCONNECT, 0x81)]


@clauses(v5="1.5.7-1")
@pytest.mark.parametrize("pair", [(b"\xff", "v"), ("k", b"\xff"), (b"\0", "v"), ("k", b"\0")])
def test_both_strings_of_a_user_property_are_utf_8(room: Room, pair: tuple[bytes, bytes]) -> None:
    client = room.client()

    client.send(publish(5, room.topic(), said=[(0x26, pair)]))

    assert [(last.kind, last.reason) for last in client.expect_end()] == [(DISCONNECT, 0x81)]


_BAD_FLAGS = [0x41, 0x52, 0x60, 0x6A, 0x74, 0x80, 0x83, 0xA0, 0xA6, 0xC8, 0xE1]


@clauses(v311="2.2.2-1 2.2.2-2 3.14.1-1", v5="2.1.3-1 3.14.1-1")
@pytest.mark.parametrize("first", _BAD_FLAGS, ids=hex)
def test_reserved_flags_with_another_value_end_the_connection(room: Room, first: int) -> None:
    client = room.client()
    bodies = {
        SUBACK - 1: b"\0\1" + (b"\0" if room.version == 5 else b"") + text("a") + b"\0",
        UNSUBACK - 1: b"\0\1" + (b"\0" if room.version == 5 else b"") + text("a"),
        12: b"",
        14: b"",
    }

    client.send(packet(first, bodies.get(first >> 4, b"\0\1")))

    ending = client.expect_end()
    assert [(last.kind, last.reason) for last in ending] == ([(DISCONNECT, 0x81)] if room.version == 5 else [])


@clauses(v311="2.2.2-2", v5="2.1.3-1")
def test_reserved_flags_of_connect_end_the_connection(room: Room) -> None:
    client = room.stranger()

    client.send(b"\x11" + connect(room.version, room.name())[1:])

    assert client.expect_end() == []


@clauses(v311="2.3.1-1", v5="4.13.1-1")
@pytest.mark.parametrize("kind", ["publish 1", "publish 2", "subscribe", "unsubscribe"])
def test_a_packet_identifier_is_never_0(room: Room, kind: str) -> None:
    client = room.client()
    if kind.startswith("publish"):
        client.send(publish(room.version, "a", qos=int(kind[-1]), number=0))
    elif kind == "subscribe":
        client.send(subscribe(room.version, 0, ("a", 0)))
    else:
        client.send(unsubscribe(room.version, 0, "a"))

    ending = client.expect_end()
    assert [(last.kind, last.reason) for last in ending] == ([(DISCONNECT, 0x82)] if room.version == 5 else [])


@clauses(v311="2.3.1-4", v5="2.2.1-4 4.3.2-1 4.3.3-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_the_server_uses_a_packet_identifier_that_is_free(room: Room, qos: int) -> None:
    subscriber = room.subscriber((room.topic("#"), qos))
    publisher = room.client()
    for number in range(20):
        publisher.publish(room.topic(str(number)), b"", qos)

    numbers = [subscriber.expect(PUBLISH).number for _ in range(20)]

    assert 0 not in numbers
    assert len(set(numbers)) == 20


@clauses(v311="2.3.1-5", v5="2.2.1-2")
def test_a_message_at_qos_0_has_no_packet_identifier(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 2))

    room.client().publish(room.topic(), b"\0\1payload")

    received = subscriber.message()
    assert (received.qos, received.number, received.payload) == (0, 0, b"\0\1payload")


@clauses(v311="2.3.1-6", v5="2.2.1-5")
def test_answers_have_the_packet_identifier_of_their_message(room: Room) -> None:
    client = room.client()

    client.send(publish(room.version, room.topic(), qos=1, number=0x1234))
    assert client.expect(PUBACK).number == 0x1234
    client.send(publish(room.version, room.topic(), qos=2, number=0xFFFF))
    assert client.expect(PUBREC).number == 0xFFFF
    client.send(answer(PUBREL, 0xFFFF))
    assert client.expect(PUBCOMP).number == 0xFFFF


@clauses(v311="2.3.1-7 3.8.4-2 3.10.4-4", v5="2.2.1-6 3.8.4-2 3.10.4-5")
def test_suback_and_unsuback_have_the_packet_identifier_of_their_request(room: Room) -> None:
    client = room.client()

    client.send(subscribe(room.version, 0xABCD, (room.topic(), 0)))
    assert client.expect(SUBACK).number == 0xABCD
    client.send(unsubscribe(room.version, 0xDCBA, room.topic()))
    assert client.expect(UNSUBACK).number == 0xDCBA


@clauses(v5="2.2.2-1")
def test_no_properties_are_a_length_of_0(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 0))
    room.client(version=4).publish(room.topic(), b"\0")

    received = subscriber.message()

    assert received.body == text(room.topic()) + b"\0" + b"\0"
    suback = subscriber.subscribe((room.topic(), 0))
    assert suback.body[2] == 0
