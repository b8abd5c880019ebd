"""Sections 3.1 and 3.2: CONNECT, CONNACK, sessions that begin and go on, wills."""

import struct

import pytest

from tests.conformance.mqtt.clauses import clauses
from tests.conformance.mqtt.conftest import Room
from tests.conformance.mqtt.wire import (
    CONNACK,
    DISCONNECT,
    GOODBYE,
    PING,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    Will,
    answer,
    connect,
    packet,
    publish,
    subscribe,
    text,
    unsubscribe,
)


def refused(room: Room, data: bytes) -> list[int]:
    """The reasons of all CONNACKs that come until the server has closed the connection."""
    client = room.stranger()
    client.send(data)
    ending = client.expect_end()
    assert all(last.kind == CONNACK and last.session_present == 0 for last in ending), ending
    return [last.reason for last in ending]


def malformed(room: Room) -> list[int]:
    """How a CONNECT that breaks a rule is answered: MQTT 3.1.1 [MQTT-3.1.4-1] wants no answer at all."""
    return [0x81] if room.version == 5 else []


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
    assert refused(room, b"\x10\x0d\0\4MQTT" + bytes((level, 2, 0, 60)) + text("a")) == [1]


@clauses(v5="3.1.2-2")
@pytest.mark.parametrize("level", [6, 7, 255])
def test_a_protocol_version_that_is_not_supported_is_answered_with_0x84(room: Room, level: int) -> None:
    assert refused(room, b"\x10\x0e\0\4MQTT" + bytes((level, 2, 0, 60, 0)) + text("a")) == [0x84]


@clauses(v311="3.1.2-3", v5="3.1.2-3")
def test_the_reserved_connect_flag_is_0(room: Room) -> None:
    assert refused(room, connect(room.version, room.name(), flags=0x03)) == malformed(room)


# -- sessions ----------------------------------------------------------------------------------------------------------


@clauses(v311="3.1.2-4 3.2.2-2 3.1.4-3", v5="3.1.2-5 3.1.2-23 3.1.4-4 3.2.2-3")
def test_a_session_that_is_kept_goes_on(room: Room) -> None:
    first = room.kept()
    first.subscribe((room.topic(), 1))
    first.send(GOODBYE)
    first.expect_end()

    second = room.kept()

    assert second.connack is not None
    assert second.connack.session_present == 1
    room.client().publish(room.topic(), b"still subscribed", 1)
    assert second.message().payload == b"still subscribed"


@clauses(v311="3.1.2-4 3.2.2-3", v5="3.1.2-6 3.2.2-3")
def test_without_a_session_a_new_one_begins(room: Room) -> None:
    client = room.kept()

    assert client.connack is not None
    assert client.connack.session_present == 0


@clauses(v311="3.1.2-5 4.5.0-1", v5="4.5.0-1")
def test_messages_for_a_session_without_a_connection_are_kept(room: Room) -> None:
    first = room.kept()
    first.subscribe((room.topic("#"), 2))
    first.send(GOODBYE)
    first.expect_end()
    publisher = room.client()
    for qos in (1, 2):
        publisher.publish(room.topic(str(qos)), str(qos).encode(), qos)

    second = room.kept()

    received = [second.message(), second.message()]
    assert [(last.payload, last.qos) for last in received] == [(b"1", 1), (b"2", 2)]


@clauses(v311="3.1.2-6 3.2.2-1", v5="3.1.2-4 3.2.2-2")
def test_a_clean_start_begins_a_new_session(room: Room) -> None:
    first = room.kept()
    first.subscribe((room.topic(), 1))
    first.send(GOODBYE)
    first.expect_end()
    room.client().publish(room.topic(), b"old", 1)

    second = room.client(room.name("kept"), clean=True)

    assert second.connack is not None
    assert second.connack.session_present == 0
    room.client().publish(room.topic(), b"new", 1)
    second.expect_nothing()


@clauses(v311="3.1.2-7", v5="4.1.0-2")
def test_a_session_ends_with_its_connection_and_retained_messages_stay(room: Room) -> None:
    first = room.subscriber((room.topic(), 1), client_id=room.name())
    first.publish(room.topic("kept"), b"retained", 1, retain=True)
    first.send(GOODBYE)
    first.expect_end()

    again = room.client(room.name(), clean=False)

    assert again.connack is not None
    assert again.connack.session_present == 0
    assert room.subscriber((room.topic("kept"), 1)).message().payload == b"retained"


@clauses(v311="4.1.0-1 4.1.0-2", v5="4.1.0-1")
def test_a_session_lasts_as_long_as_its_connection(room: Room) -> None:
    client = room.subscriber((room.topic(), 1))
    room.client().publish(room.topic(), b"1", 1)
    held = client.expect(PUBLISH)

    client.expect_nothing()
    client.send(answer(PUBACK, held.number))
    room.client().publish(room.topic(), b"2", 1)

    assert client.message().payload == b"2"


# -- wills -------------------------------------------------------------------------------------------------------------


@clauses(v311="3.1.2-8 3.1.2-9", v5="3.1.2-7 3.1.2-8 3.1.2-9 3.1.2-12")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_will_is_published_when_the_connection_is_lost(room: Room, qos: int) -> None:
    subscriber = room.subscriber((room.topic("will"), 2))

    room.client(will=Will(room.topic("will"), b"\0\xffgone", qos)).cut()

    received = subscriber.message()
    assert (received.payload, received.qos, received.retain) == (b"\0\xffgone", qos, False)


@clauses(v311="3.1.2-8", v5="3.1.2-8")
def test_a_will_is_published_when_the_client_breaks_the_protocol(room: Room) -> None:
    subscriber = room.subscriber((room.topic("will"), 0))

    room.client(will=Will(room.topic("will"))).send(b"\x00\x00")

    assert subscriber.message().payload == b"will"


@clauses(v311="3.1.2-10 3.14.4-3", v5="3.1.2-10 3.14.4-3")
def test_a_client_that_says_goodbye_leaves_no_will(room: Room) -> None:
    subscriber = room.subscriber((room.topic("will"), 0))
    leaving = room.client(will=Will(room.topic("will")))

    leaving.send(GOODBYE)
    leaving.expect_end()

    subscriber.expect_nothing()


@clauses(v5="3.1.2-8")
def test_a_goodbye_with_0x04_leaves_the_will(room: Room) -> None:
    subscriber = room.subscriber((room.topic("will"), 0))

    room.client(will=Will(room.topic("will"))).send(packet(0xE0, b"\x04"))

    assert subscriber.message().payload == b"will"


@clauses(v311="3.1.2-9", v5="3.1.2-9")
def test_a_will_flag_without_a_will_is_malformed(room: Room) -> None:
    assert refused(room, connect(room.version, room.name(), flags=0x06)) == malformed(room)


@clauses(v311="3.1.2-11 3.1.2-13", v5="3.1.2-11")
@pytest.mark.parametrize("qos", [1, 2, 3])
def test_a_will_qos_without_a_will_is_malformed(room: Room, qos: int) -> None:
    assert refused(room, connect(room.version, room.name(), flags=0x02 | qos << 3)) == malformed(room)


@clauses(v311="3.1.2-11", v5="3.1.4-1")
def test_a_will_without_its_flag_is_malformed(room: Room) -> None:
    data = connect(room.version, room.name(), will=Will("a"), flags=0x02)

    assert refused(room, data) == malformed(room)


@clauses(v311="3.1.2-12")
def test_without_a_will_nothing_is_published(room: Room) -> None:
    subscriber = room.subscriber(("#", 0))
    leaving = room.client()

    leaving.cut()
    room.client().publish(room.topic("last"), b"")

    while (received := subscriber.message()).topic != room.topic("last"):
        assert not received.topic.startswith(room.topic())


@clauses(v311="3.1.2-14", v5="3.1.2-12")
def test_a_will_qos_of_3_is_malformed(room: Room) -> None:
    data = connect(room.version, room.name(), will=Will("a"), flags=0x1E)

    assert refused(room, data) == malformed(room)


@clauses(v311="3.1.2-15", v5="3.1.2-13")
def test_will_retain_without_a_will_is_malformed(room: Room) -> None:
    assert refused(room, connect(room.version, room.name(), flags=0x22)) == malformed(room)


@clauses(v311="3.1.2-16 3.1.2-17", v5="3.1.2-14 3.1.2-15")
@pytest.mark.parametrize("retain", [False, True])
def test_a_will_is_retained_if_it_is_to_be(room: Room, retain: bool) -> None:
    subscriber = room.subscriber((room.topic("will"), 1))

    room.client(will=Will(room.topic("will"), b"will", 1, retain)).cut()
    assert not subscriber.message().retain

    late = room.subscriber((room.topic("will"), 1))
    if retain:
        received = late.message()
        assert (received.payload, received.retain) == (b"will", True)
    else:
        late.expect_nothing()


@clauses(v5="3.1.2-8")
def test_a_will_is_sent_when_its_delay_is_over(room: Room) -> None:
    subscriber = room.subscriber((room.topic("will"), 0))

    room.kept(will=Will(room.topic("will"), said=((0x18, 1),))).cut()

    assert subscriber.message().payload == b"will"


@clauses(v5="3.1.2-8 3.1.3-9")
def test_a_will_is_not_sent_for_a_client_that_came_back_before_it_was_due(room: Room) -> None:
    subscriber = room.subscriber((room.topic("will"), 0))
    room.kept(will=Will(room.topic("will"), said=((0x18, 3600),))).cut()
    room.kept().cut()

    room.client(room.name("kept"), clean=True)  # ends the session, and would end the waiting of its will

    subscriber.expect_nothing()


@clauses(v5="3.1.2-8")
def test_a_will_is_sent_when_the_session_ends_before_its_delay(room: Room) -> None:
    subscriber = room.subscriber((room.topic("will"), 0))

    room.client(will=Will(room.topic("will"), said=((0x18, 3600),))).cut()

    assert subscriber.message().payload == b"will"


@clauses(v5="3.1.3-10")
def test_a_will_keeps_its_properties_and_their_order(room: Room) -> None:
    subscriber = room.subscriber((room.topic("will"), 0))
    said = (
        (0x26, ("b", "1")),
        (0x01, 1),
        (0x26, ("a", "2")),
        (0x03, "text/plain"),
        (0x26, ("b", "3")),
        (0x09, b"\xff"),
    )

    room.client(will=Will(room.topic("will"), said=said)).cut()

    received = subscriber.message()
    assert received.values(0x26) == [("b", "1"), ("a", "2"), ("b", "3")]
    assert (received.values(0x01), received.values(0x03), received.values(0x09)) == ([1], ["text/plain"], [b"\xff"])


# -- logins ------------------------------------------------------------------------------------------------------------


@clauses(v311="3.1.2-18 3.1.2-20", v5="3.1.2-16 3.1.2-18")
@pytest.mark.parametrize("flags", [0x02, 0x82])
def test_a_name_or_password_without_its_flag_is_malformed(room: Room, flags: int) -> None:
    data = connect(room.version, room.name(), user="guest", password=b"guest", flags=flags)

    assert refused(room, data) == malformed(room)


@clauses(v311="3.1.2-19 3.1.2-21", v5="3.1.2-17 3.1.2-19")
@pytest.mark.parametrize("flags", [0x82, 0xC2])
def test_a_flag_without_a_name_or_password_is_malformed(room: Room, flags: int) -> None:
    user = "guest" if flags == 0xC2 else None

    assert refused(room, connect(room.version, room.name(), user=user, flags=flags)) == malformed(room)


@clauses(v311="3.1.2-22")
def test_a_password_without_a_name_is_malformed(room: Room) -> None:
    assert refused(room, connect(4, room.name(), password=b"guest")) == []


@clauses(v311="3.1.4-4", v5="3.1.4-5")
def test_a_login_that_is_right_is_answered_with_success(room: Room) -> None:
    client = room.stranger()

    client.send(connect(room.version, room.name(), user="guest", password=b"guest"))

    assert client.expect(CONNACK).reason == 0


@clauses(v311="3.2.2-4 3.2.2-5", v5="3.1.4-2 3.2.2-6 3.2.2-7 3.2.2-8 4.13.2-1")
@pytest.mark.parametrize(("user", "password"), [("guest", b"wrong"), ("nobody", b"x")])
def test_a_login_that_is_wrong_is_refused_and_the_connection_closed(room: Room, user: str, password: bytes) -> None:
    data = connect(room.version, room.name(), user=user, password=password)

    assert refused(room, data) == [0x86 if room.version == 5 else 4]


@clauses(v311="3.1.4-5", v5="3.1.4-6")
def test_what_follows_a_connect_that_is_refused_is_not_looked_at(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 0))

    wrong = connect(room.version, room.name(), user="guest", password=b"wrong")
    assert len(refused(room, wrong + publish(room.version, room.topic(), b"no"))) == 1

    subscriber.expect_nothing()


@clauses(v311="3.2.0-1", v5="3.2.0-1")
def test_what_follows_a_connect_at_once_is_answered_after_connack(room: Room) -> None:
    client = room.stranger()

    client.send(connect(room.version, room.name()), subscribe(room.version, 1, (room.topic(), 0)), PING)

    assert [client.receive().kind for _ in range(3)] == [CONNACK, SUBACK, 13]


@clauses(v311="3.2.0-1", v5="3.2.0-1")
def test_messages_that_wait_come_after_connack(room: Room) -> None:
    first = room.kept()
    first.subscribe((room.topic(), 1))
    first.send(GOODBYE)
    first.expect_end()
    room.client().publish(room.topic(), b"1", 1)

    again = room.kept()  # looks for a CONNACK first

    assert again.message().payload == b"1"


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


@clauses(v311="3.1.3-2", v5="3.1.3-2")
def test_sessions_are_told_apart_by_their_client_identifier(room: Room) -> None:
    for number in "12":
        client = room.kept(room.name(number))
        client.subscribe((room.topic(number), 1))
        client.send(GOODBYE)
        client.expect_end()
    publisher = room.client()
    for number in "12":
        publisher.publish(room.topic(number), number.encode(), 1)

    for number in "21":
        back = room.kept(room.name(number))
        assert back.message().payload == number.encode()
        back.expect_nothing()


@clauses(v311="3.1.3-3", v5="3.1.3-3")
def test_a_connect_without_a_client_identifier_is_malformed(room: Room) -> None:
    head = text(b"MQTT") + bytes((room.version, 2)) + struct.pack(">H", 60)

    assert refused(room, packet(0x10, head + (b"\0" if room.version == 5 else b""))) == malformed(room)


@clauses(v311="3.1.3-4", v5="3.1.3-4")
def test_a_client_identifier_is_utf_8(room: Room) -> None:
    assert refused(room, connect(room.version, b"\xff\xfe")) == malformed(room)


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
    assert refused(room, connect(4, "", clean=False)) == [2]


@clauses(v5="3.1.3-8")
def test_a_client_identifier_that_is_not_valid_is_refused(room: Room) -> None:
    assert refused(room, connect(5, b"nul\0")) == [0x81]


@clauses(v311="3.1.3-10", v5="3.1.3-11")
@pytest.mark.parametrize("topic", [b"\xff", b"a\0"])
def test_a_will_topic_is_utf_8(room: Room, topic: bytes) -> None:
    head = text(b"MQTT") + bytes((room.version, 6)) + struct.pack(">H", 60) + (b"\0" if room.version == 5 else b"")
    body = head + text(room.name()) + (b"\0" if room.version == 5 else b"") + text(topic) + text(b"")

    assert refused(room, packet(0x10, body)) == malformed(room)


@clauses(v311="3.1.3-11", v5="3.1.3-12")
def test_a_user_name_is_utf_8(room: Room) -> None:
    assert refused(room, connect(room.version, room.name(), user=b"\xff", password=b"")) == malformed(room)


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

    assert refused(room, packet(0x10, data[2:] + b"x")) == malformed(room)


@clauses(v311="3.1.4-2", v5="3.1.4-3")
def test_a_second_connection_takes_the_place_of_the_first(room: Room) -> None:
    first = room.client(room.name())

    second = room.client(room.name())

    ending = first.expect_end()
    assert [(last.kind, last.reason) for last in ending] == ([(DISCONNECT, 0x8E)] if room.version == 5 else [])
    second.expect_nothing()


# -- what a CONNECT says about the client ------------------------------------------------------------------------------


@clauses(v5="3.1.2-24 3.1.2-25")
def test_a_message_too_large_for_the_client_counts_as_sent(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 1), said=((0x27, 100),))
    publisher = room.client()
    publisher.publish(room.topic(), b"x" * 200, 1)
    publisher.publish(room.topic(), b"x" * 200, 0)
    publisher.publish(room.topic(), b"small", 1)

    assert subscriber.message().payload == b"small"
    subscriber.expect_nothing()


@clauses(v5="3.1.2-26 3.1.2-27 3.3.2-8 3.3.2-10 3.3.2-11")
@pytest.mark.parametrize("most", [None, 0, 1, 2])
def test_the_server_uses_no_more_topic_aliases_than_the_client_allows(room: Room, most: int | None) -> None:
    said = () if most is None else ((0x22, most),)
    subscriber = room.subscriber((room.topic("#"), 0), said=said)
    publisher = room.client()
    known: dict[object, str] = {}
    topics = [room.topic(str(number)) for number in range(4)]
    for topic in topics * 2:
        publisher.publish(topic, b"")

    for topic in topics * 2:
        received = subscriber.message()
        for alias in received.values(0x23):
            assert isinstance(alias, int)
            assert 1 <= alias <= (most or 0)
            known.setdefault(alias, received.topic)
            if received.topic:
                known[alias] = received.topic
        assert (received.topic or known[received.values(0x23)[0]]) == topic


@clauses(v5="3.1.2-28")
@pytest.mark.parametrize("asked", [None, 0, 1])
def test_response_information_is_for_those_who_ask(room: Room, asked: int | None) -> None:
    client = room.client(said=() if asked is None else ((0x19, asked),))

    assert client.connack is not None
    assert (client.connack.values(0x1A) != []) <= (asked == 1)


@clauses(v5="3.1.2-29")
def test_reasons_are_not_explained_to_those_who_do_not_want_it(room: Room) -> None:
    for wants in (0, 1):
        client = room.client(said=((0x17, wants),))
        client.send(publish(5, "$SYS/broker/load", qos=1, number=1))
        puback = client.expect(PUBACK)
        assert puback.reason >= 0x80
        assert bool(puback.said) <= bool(wants)
        client.send(publish(5, "$SYS/broker/load", qos=2, number=2))
        assert bool(client.receive().said) <= bool(wants)
        client.send(subscribe(5, 3, ("$queue/", 1)))
        suback = client.expect(SUBACK)
        assert suback.reason >= 0x80
        assert bool(suback.said) <= bool(wants)
        client.send(unsubscribe(5, 4, "$queue/"))
        assert bool(client.expect(UNSUBACK).said) <= bool(wants)


@clauses(v5="3.2.2-9 3.2.2-10 3.2.2-11 3.2.2-12 3.2.2-13 3.2.2-14")
def test_every_qos_and_retained_messages_are_there_and_connack_says_nothing_else(room: Room) -> None:
    subscriber = room.client()
    assert subscriber.subscribe((room.topic("#"), 2)).reasons == [2]

    publisher = room.client(will=Will(room.topic("will"), b"will", 2, retain=True))

    assert publisher.connack is not None
    assert (publisher.connack.values(0x24), publisher.connack.values(0x25)) == ([], [])
    publisher.publish(room.topic("1"), b"1", 2, retain=True)
    publisher.cut()
    assert [(last.payload, last.qos) for last in (subscriber.message(), subscriber.message())] == [
        (b"1", 2),
        (b"will", 2),
    ]
    late = room.subscriber((room.topic("#"), 2))
    assert sorted(last.payload for last in (late.message(), late.message())) == [b"1", b"will"]


@clauses(v5="3.2.2-4")
def test_a_client_that_goes_on_with_a_session_it_does_not_know_is_taken_for_the_one_that_had_it(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 2))
    first = room.kept()
    first.send(publish(5, room.topic(), b"1", qos=2, number=5))
    first.expect(PUBREC)
    first.cut()

    second = room.kept()

    assert second.connack is not None
    assert second.connack.session_present == 1
    second.send(publish(5, room.topic(), b"another message", qos=2, number=5))
    assert second.expect(PUBREC).number == 5
    assert subscriber.message().payload == b"1"
    subscriber.expect_nothing()


@clauses(v5="3.2.2-5")
def test_a_client_that_goes_on_with_a_session_that_is_over_is_told_that_nothing_is_known_of_it(room: Room) -> None:
    first = room.client(room.name(), clean=False)
    first.send(publish(5, room.topic(), b"1", qos=2, number=5))
    first.expect(PUBREC)
    first.cut()

    second = room.client(room.name(), clean=False)

    assert second.connack is not None
    assert second.connack.session_present == 0
    second.send(answer(PUBREL, 5))
    released = second.expect(PUBCOMP)
    assert (released.number, released.reason) == (5, 0x92)


@clauses(v5="3.2.2-15")
def test_a_packet_is_as_large_as_connack_allows_and_no_larger(narrow: Room) -> None:
    client = narrow.client()
    assert client.connack is not None
    (most,) = client.connack.values(0x27)
    assert isinstance(most, int)
    around = len(publish(5, narrow.topic(), bytes(most // 2), qos=1, number=1)) - most // 2

    client.send(publish(5, narrow.topic(), bytes(most - around), qos=1, number=1))
    assert client.expect(PUBACK).number == 1
    client.send(publish(5, narrow.topic(), bytes(most - around + 1), qos=1, number=2))

    assert [(last.kind, last.reason) for last in client.expect_end()] == [(DISCONNECT, 0x95)]


@clauses(v5="3.2.2-1")
def test_the_flags_of_connack_are_the_session_only(room: Room) -> None:
    room.kept()

    again = room.kept()

    assert again.connack is not None
    assert again.connack.body[0] == 1


@clauses(v5="3.2.2-19 3.2.2-20 3.14.2-3 3.14.2-4")
def test_explanations_are_left_out_where_they_would_not_fit(room: Room) -> None:
    client = room.stranger()
    client.send(connect(5, room.name(), said=((0x27, 40), (0x17, 1)), user="guest", password=b"wrong"))
    connack = client.expect_end()[0]
    assert connack.reason == 0x86
    assert len(connack.body) + 2 <= 40

    ended = room.client(said=((0x27, 30),))
    ended.send(b"\x00\x00")
    last = ended.expect_end()[-1]
    assert (last.kind, last.reason) == (DISCONNECT, 0x82)
    assert len(last.body) + 2 <= 30
