"""Section 3.1: CONNECT, from the first packet to the login. Sessions and wills have files of their own."""

import struct

import pytest

from tests.conformance.mqtt.clauses import clauses
from tests.conformance.mqtt.conftest import Room
from tests.conformance.mqtt.wire import (
    CONNACK,
    DISCONNECT,
    GOODBYE,
    PING,
    SUBACK,
    Will,
    connect,
    packet,
    publish,
    subscribe,
    text,
)

# -- the first packet --------------------------------------------------------------------------------------------------


@clauses(v311="3.1.0-1", v5="3.1.0-1 3.14.0-1")
@pytest.mark.parametrize("kind", ["ping", "publish", "subscribe", "disconnect"])
def test_the_first_packet_is_connect(room: Room, kind: str) -> None:
    client = room.stranger()
    first = {
        "ping": PING,
        "publish": publish(room.version, "a"),
        "subscribe": subscribe(room.version, 1, ("a", 0)),
        "disconnect": GOODBYE,
    }

    client.send(first[kind])

    assert client.expect_end() == []


@clauses(v311="3.1.0-2", v5="3.1.0-2 3.2.0-2")
def test_a_second_connect_ends_the_connection(room: Room) -> None:
    client = room.client()

    client.send(connect(room.version, room.name()))

    ending = client.expect_end()
    assert [(last.kind, last.reason) for last in ending] == ([(DISCONNECT, 0x82)] if room.version == 5 else [])


@clauses(v311="3.1.2-1", v5="3.1.2-1")
@pytest.mark.parametrize("name", [b"MQTX", b"mqtt", b"MQIsdp", b""])
def test_another_protocol_name_is_not_served(room: Room, name: bytes) -> None:
    client = room.stranger()

    client.send(connect(room.version, room.name(), name=name), PING)

    assert all(last.kind == CONNACK and last.reason for last in client.expect_end())


@clauses(v311="3.1.2-2")
@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_a_protocol_level_that_is_not_supported_is_answered_with_1(room: Room, level: int) -> None:
    assert room.refused(b"\x10\x0d\0\4MQTT" + bytes((level, 2, 0, 60)) + text("a")) == [1]


@clauses(v5="3.1.2-2")
@pytest.mark.parametrize("level", [6, 7, 255])
def test_a_protocol_version_that_is_not_supported_is_answered_with_0x84(room: Room, level: int) -> None:
    assert room.refused(b"\x10\x0e\0\4MQTT" + bytes((level, 2, 0, 60, 0)) + text("a")) == [0x84]


@clauses(v311="3.1.2-3", v5="3.1.2-3")
def test_the_reserved_connect_flag_is_0(room: Room) -> None:
    assert room.refused(connect(room.version, room.name(), flags=0x03)) == room.malformed


# -- logins ------------------------------------------------------------------------------------------------------------


@clauses(v311="3.1.2-18 3.1.2-20", v5="3.1.2-16 3.1.2-18")
@pytest.mark.parametrize("flags", [0x02, 0x82])
def test_a_name_or_password_without_its_flag_is_malformed(room: Room, flags: int) -> None:
    data = connect(room.version, room.name(), user="guest", password=b"guest", flags=flags)

    assert room.refused(data) == room.malformed


@clauses(v311="3.1.2-19 3.1.2-21", v5="3.1.2-17 3.1.2-19")
@pytest.mark.parametrize("flags", [0x82, 0xC2])
def test_a_flag_without_a_name_or_password_is_malformed(room: Room, flags: int) -> None:
    user = "guest" if flags == 0xC2 else None

    assert room.refused(connect(room.version, room.name(), user=user, flags=flags)) == room.malformed


@clauses(v311="3.1.2-22")
def test_a_password_without_a_name_is_malformed(room: Room) -> None:
    assert room.refused(connect(4, room.name(), password=b"guest")) == []


@clauses(v311="3.1.4-4", v5="3.1.4-5")
def test_a_login_that_is_right_is_answered_with_success(room: Room) -> None:
    client = room.stranger()

    client.send(connect(room.version, room.name(), user="guest", password=b"guest"))

    assert client.expect(CONNACK).reason == 0


@clauses(v311="3.1.4-4", v5="3.1.4-5")
@pytest.mark.parametrize("password", [None, b"", b"x"])
def test_an_empty_user_name_is_none(room: Room, password: bytes | None) -> None:
    client = room.stranger()

    client.send(connect(room.version, room.name(), user="", password=password))

    assert client.expect(CONNACK).reason == 0


@clauses(v311="3.2.2-4 3.2.2-5", v5="3.1.4-2 3.2.2-6 3.2.2-7 3.2.2-8 4.13.2-1")
@pytest.mark.parametrize(("user", "password"), [("guest", b"wrong"), ("nobody", b"x")])
def test_a_login_that_is_wrong_is_refused_and_the_connection_closed(room: Room, user: str, password: bytes) -> None:
    data = connect(room.version, room.name(), user=user, password=password)

    assert room.refused(data) == [0x86 if room.version == 5 else 4]


@clauses(v311="3.1.4-5", v5="3.1.4-6")
def test_what_follows_a_connect_that_is_refused_is_not_looked_at(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 0))

    wrong = connect(room.version, room.name(), user="guest", password=b"wrong")
    assert len(room.refused(wrong + publish(room.version, room.topic(), b"no"))) == 1

    subscriber.expect_nothing()


@clauses(v311="3.2.0-1", v5="3.2.0-1")
def test_what_follows_a_connect_at_once_is_answered_after_connack(room: Room) -> None:
    client = room.stranger()

    client.send(connect(room.version, room.name()), subscribe(room.version, 1, (room.topic(), 0)), PING)

    assert [client.receive().kind for _ in range(3)] == [CONNACK, SUBACK, 13]


# -- keep alive --------------------------------------------------------------------------------------------------------


@clauses(v311="3.1.2-23 3.1.2-24", v5="3.1.2-20 3.1.2-22 3.2.2-22")
def test_a_client_that_is_silent_for_too_long_is_ended_as_if_the_network_had_failed(room: Room) -> None:
    subscriber = room.subscriber((room.topic("will"), 0))

    client = room.client(keep_alive=1, will=Will(room.topic("will")))

    ending = client.expect_end()
    assert [(last.kind, last.reason) for last in ending] == ([(DISCONNECT, 0x8D)] if room.version == 5 else [])
    assert subscriber.message().payload == b"will"


@clauses(v5="3.1.2-21 3.2.2-21")
def test_a_client_that_does_not_keep_to_the_keep_alive_that_it_was_told_is_ended(impatient: Room) -> None:
    client = impatient.client(keep_alive=600)
    assert client.connack is not None
    assert client.connack.values(0x13) == [1]

    assert [(last.kind, last.reason) for last in client.expect_end()] == [(DISCONNECT, 0x8D)]


# -- client identifiers and the rest of the payload --------------------------------------------------------------------


@clauses(v311="3.1.3-1", v5="3.1.3-1")
def test_the_fields_of_the_payload_come_in_order(room: Room) -> None:
    subscriber = room.subscriber((room.topic("will"), 0))
    client = room.stranger()
    will = Will(room.topic("will"), b"said", said=((0x03, "t"),))

    client.send(connect(room.version, room.name(), will=will, user="guest", password=b"guest"))
    assert client.expect(CONNACK).reason == 0
    client.cut()

    assert subscriber.message().payload == b"said"


@clauses(v311="3.1.3-3", v5="3.1.3-3")
def test_a_connect_without_a_client_identifier_is_malformed(room: Room) -> None:
    head = text(b"MQTT") + bytes((room.version, 2)) + struct.pack(">H", 60)

    assert room.refused(packet(0x10, head + (b"\0" if room.version == 5 else b""))) == room.malformed


@clauses(v311="3.1.3-4", v5="3.1.3-4")
def test_a_client_identifier_is_utf_8(room: Room) -> None:
    assert room.refused(connect(room.version, b"\xff\xfe")) == room.malformed


@clauses(v311="3.1.3-5", v5="3.1.3-5")
@pytest.mark.parametrize("name", ["0123456789abcdefghijklm", "nopqrstuvwxyzABCDEFGHIJ", "KLMNOPQRSTUVWXYZ", "Z"])
def test_every_plain_client_identifier_of_up_to_23_bytes_is_allowed(room: Room, name: str) -> None:
    assert room.client(name).connack is not None


@clauses(v311="3.1.3-6", v5="3.1.3-6 3.1.3-7 3.2.2-16")
def test_an_empty_client_identifier_gets_one_of_its_own(room: Room) -> None:
    clients = [room.client("") for _ in range(2)]

    for client in clients:
        client.expect_nothing()  # neither has taken the other's session
    if room.version == 5:
        names = [client.connack.values(0x12) for client in clients if client.connack is not None]
        assert all(len(given) == 1 and given[0] for given in names)
        assert names[0] != names[1]


@clauses(v311="3.1.3-7 3.1.3-8 3.1.3-9")
def test_an_empty_client_identifier_cannot_have_a_session_that_is_kept(room: Room) -> None:
    assert room.refused(connect(4, "", clean=False)) == [2]


@clauses(v5="3.1.3-8")
def test_a_client_identifier_that_is_not_valid_is_refused(room: Room) -> None:
    assert room.refused(connect(5, b"nul\0")) == [0x81]


@clauses(v311="3.1.3-10", v5="3.1.3-11")
@pytest.mark.parametrize("topic", [b"\xff", b"a\0"])
def test_a_will_topic_is_utf_8(room: Room, topic: bytes) -> None:
    head = text(b"MQTT") + bytes((room.version, 6)) + struct.pack(">H", 60) + (b"\0" if room.version == 5 else b"")
    body = head + text(room.name()) + (b"\0" if room.version == 5 else b"") + text(topic) + text(b"")

    assert room.refused(packet(0x10, body)) == room.malformed


@clauses(v311="3.1.3-11", v5="3.1.3-12")
def test_a_user_name_is_utf_8(room: Room) -> None:
    assert room.refused(connect(room.version, room.name(), user=b"\xff", password=b"")) == room.malformed


@clauses(v311="3.1.4-1 3.2.2-6", v5="3.1.4-1")
@pytest.mark.parametrize("data", [b"\x10\x00", b"\x10\x02\0\4", b"\x10\x07\0\4MQTT\x04", b"\x10\x08\0\4MQTT\x04\x02"])
def test_a_connect_that_is_too_short_is_closed(room: Room, data: bytes) -> None:
    if room.version == 5:
        data = data.replace(b"MQTT\x04", b"MQTT\x05")
    client = room.stranger()

    client.send(data)

    assert all(last.kind == CONNACK and last.reason >= 0x80 for last in client.expect_end())


@clauses(v311="3.1.4-1", v5="3.1.4-1")
def test_a_connect_with_bytes_behind_it_is_malformed(room: Room) -> None:
    data = connect(room.version, room.name())

    assert room.refused(packet(0x10, data[2:] + b"x")) == room.malformed
