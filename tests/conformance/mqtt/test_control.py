"""PINGREQ, DISCONNECT, AUTH, and what happens to those who break the protocol."""

import pytest

from tests.conformance.mqtt.clauses import clauses
from tests.conformance.mqtt.conftest import Room
from tests.conformance.mqtt.wire import (
    CONNACK,
    DISCONNECT,
    GOODBYE,
    PING,
    PINGRESP,
    connect,
    packet,
    properties,
    publish,
)


@clauses(v311="3.12.4-1", v5="3.12.4-1")
def test_a_ping_is_answered(room: Room) -> None:
    client = room.client()

    client.send(PING)

    assert client.expect(PINGRESP).body == b""


@clauses(v311="3.14.4-1 3.14.4-2 3.14.4-3", v5="3.14.4-1 3.14.4-2 3.14.4-3")
def test_after_a_goodbye_the_connection_ends_and_nothing_more_is_looked_at(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 0))
    client = room.client()

    client.send(GOODBYE, publish(room.version, room.topic(), b"late"))

    assert client.expect_end() == []
    subscriber.expect_nothing()


@clauses(v5="3.14.1-1 4.13.1-1")
def test_a_disconnect_with_reserved_flags_is_answered_with_0x81(room: Room) -> None:
    client = room.client()

    client.send(b"\xe2\x00")

    assert [(last.kind, last.reason) for last in client.expect_end()] == [(DISCONNECT, 0x81)]


@clauses(v5="3.14.2-1")
@pytest.mark.parametrize("reason", [0x01, 0x8D, 0x8E, 0x9F, 0xFF])
def test_a_disconnect_has_a_reason_that_a_client_may_give(room: Room, reason: int) -> None:
    client = room.client()

    client.send(packet(0xE0, bytes((reason,))))

    assert [(last.kind, last.reason) for last in client.expect_end()] == [(DISCONNECT, 0x82)]


@clauses(v5="3.14.2-1 3.14.2-2 3.14.4-1 3.14.4-2")
def test_a_disconnect_of_the_server_is_the_last_word_and_says_why(room: Room) -> None:
    client = room.client(room.name(), kept_seconds=100)

    room.client(room.name(), kept_seconds=100)

    (last,) = client.expect_end()
    assert (last.kind, last.reason) == (DISCONNECT, 0x8E)
    assert last.values(0x11) == []


@clauses(v5="4.13.1-1")
def test_a_session_that_was_to_end_cannot_be_kept_by_a_goodbye(room: Room) -> None:
    client = room.client()

    client.send(packet(0xE0, b"\0" + properties([(0x11, 100)])))

    assert [(last.kind, last.reason) for last in client.expect_end()] == [(DISCONNECT, 0x82)]


@clauses(v5="4.1.0-2 3.1.2-23")
def test_a_goodbye_may_change_how_long_the_session_is_kept(room: Room) -> None:
    client = room.kept()
    client.send(packet(0xE0, b"\0" + properties([(0x11, 0)])))
    client.expect_end()

    back = room.kept()

    assert back.connack is not None
    assert back.connack.session_present == 0


@clauses(v5="4.1.0-2")
def test_a_session_ends_when_its_time_has_passed(room: Room) -> None:
    first = room.client(room.name("short"), clean=False, kept_seconds=1)
    first.leave()
    room.pass_time()

    back = room.client(room.name("short"), clean=False, kept_seconds=1)

    assert back.connack is not None
    assert back.connack.session_present == 0


# -- AUTH --------------------------------------------------------------------------------------------------------------


@clauses(v5="3.15.1-1")
@pytest.mark.parametrize("flags", [1, 2, 8, 15])
def test_the_flags_of_auth_are_fixed(room: Room, flags: int) -> None:
    client = room.client()

    client.send(packet(0xF0 | flags, b"\x18" + properties([(0x15, "m")])))

    assert [(last.kind, last.reason) for last in client.expect_end()] == [(DISCONNECT, 0x81)]


@clauses(v5="4.12.0-1 4.12.0-4")
@pytest.mark.parametrize("method", ["SCRAM-SHA-256", "", "x" * 1000])
def test_an_authentication_method_that_is_not_supported_is_refused(room: Room, method: str) -> None:
    client = room.stranger()

    client.send(connect(5, room.name(), said=[(0x15, method), (0x16, b"data")]))

    assert [(last.kind, last.reason) for last in client.expect_end()] == [(CONNACK, 0x8C)]


@clauses(v5="4.12.0-6")
def test_without_an_authentication_method_there_is_no_word_of_it(room: Room) -> None:
    client = room.client()

    assert client.connack is not None
    assert (client.connack.values(0x15), client.connack.values(0x16)) == ([], [])
    client.expect_nothing()


@clauses(v5="3.1.2-30 4.12.0-2 4.12.0-3 4.12.0-5")
def test_what_follows_a_connect_with_an_authentication_method_is_not_looked_at(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 0))
    client = room.stranger()
    more = packet(0xF0, b"\x19" + properties([(0x15, "another")]))

    client.send(connect(5, room.name(), said=[(0x15, "SCRAM-SHA-256")]) + publish(5, room.topic(), b"no") + more)

    (last,) = client.expect_end()  # neither AUTH nor a CONNACK that accepts
    assert (last.kind, last.reason, last.values(0x15)) == (CONNACK, 0x8C, [])
    subscriber.expect_nothing()


@clauses(v5="4.12.0-7 4.12.1-1 4.12.1-2")
@pytest.mark.parametrize("reason", [0x00, 0x18, 0x19])
def test_auth_from_a_client_that_named_no_method_ends_the_connection(room: Room, reason: int) -> None:
    client = room.client()

    client.send(packet(0xF0, bytes((reason,)) + properties([(0x15, "m")])))

    assert [(last.kind, last.reason) for last in client.expect_end()] == [(DISCONNECT, 0x82)]


@clauses(v5="3.15.2-1")
@pytest.mark.parametrize("reason", [0x01, 0x17, 0x80, 0x8C, 0xFF])
def test_auth_has_a_reason_of_its_own(room: Room, reason: int) -> None:
    client = room.client()

    client.send(packet(0xF0, bytes((reason,)) + properties([(0x15, "m")])))

    (last,) = client.expect_end()
    assert (last.kind, last.reason) == (DISCONNECT, 0x82)
    assert "AUTH" in str(last.values(0x1F)[0])


@clauses(v5="3.15.2-2 3.15.2-3")
def test_the_answer_to_auth_fits(room: Room) -> None:
    client = room.client(said=((0x27, 30),))
    long = [(0x15, "m"), (0x1F, "r" * 200), (0x26, ("k", "v" * 200))]

    client.send(packet(0xF0, b"\x19" + properties(long)))

    (last,) = client.expect_end()
    assert (last.kind, last.reason) == (DISCONNECT, 0x82)
    assert len(last.body) + 2 <= 30


# -- errors ------------------------------------------------------------------------------------------------------------


@clauses(v311="4.8.0-1", v5="4.13.1-1 4.13.2-1")
@pytest.mark.parametrize("first", [0x00, 0x20, 0x90, 0xB0, 0xD0])
def test_a_packet_that_no_client_sends_ends_the_connection(room: Room, first: int) -> None:
    client = room.client()

    client.send(packet(first, b"\0\1\0"))

    ending = client.expect_end()
    assert [last.kind for last in ending] == ([DISCONNECT] if room.version == 5 else [])


@clauses(v311="4.8.0-1")
def test_auth_is_no_packet_of_mqtt_3(room: Room) -> None:
    client = room.client()

    client.send(packet(0xF0))

    assert client.expect_end() == []


@clauses(v311="4.8.0-1 4.8.0-2", v5="4.13.1-1")
def test_a_remaining_length_of_five_bytes_ends_the_connection(room: Room) -> None:
    client = room.client()

    client.send(b"\x30\x80\x80\x80\x80\x01")

    ending = client.expect_end()
    assert [(last.kind, last.reason) for last in ending] == ([(DISCONNECT, 0x81)] if room.version == 5 else [])


@clauses(v311="4.8.0-2", v5="4.13.1-1")
def test_a_packet_that_is_too_large_ends_the_connection_before_it_is_there(room: Room) -> None:
    client = room.client()

    client.send(b"\x30\xff\xff\xff\x7f")

    ending = client.expect_end()
    assert [(last.kind, last.reason) for last in ending] == ([(DISCONNECT, 0x95)] if room.version == 5 else [])


@clauses(v311="4.8.0-1", v5="4.13.1-1")
def test_one_client_that_breaks_the_protocol_is_no_matter_to_another(room: Room) -> None:
    good, bad = room.client(), room.client()

    bad.send(b"\xff" * 100)

    bad.expect_end()
    good.expect_nothing()
