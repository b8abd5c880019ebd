"""Sections 3.3 to 3.7: PUBLISH and what is said about a message; retained messages; the answers."""

import pytest

from tests.conformance.mqtt.clauses import clauses
from tests.conformance.mqtt.conftest import Room
from tests.conformance.mqtt.wire import (
    CONNACK,
    DISCONNECT,
    GOODBYE,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    Client,
    Property,
    answer,
    connect,
    packet,
    publish,
    text,
)


def ends_with(client: Client, reason: int) -> None:
    """The server ends the connection; in MQTT 5 it says why."""
    ending = client.expect_end()
    assert [(last.kind, last.reason) for last in ending] == ([(DISCONNECT, reason)] if client.version == 5 else [])


# -- flags -------------------------------------------------------------------------------------------------------------


@clauses(v311="3.3.1-1", v5="3.3.1-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_sent_again_is_marked_as_a_duplicate(room: Room, qos: int) -> None:
    first = room.kept()
    first.subscribe((room.topic(), qos))
    room.client().publish(room.topic(), b"1", qos)
    before = first.expect(PUBLISH)
    first.cut()

    again = room.kept().expect(PUBLISH)

    assert (before.dup, again.dup) == (False, True)
    assert (again.number, again.payload) == (before.number, b"1")


@clauses(v311="3.3.1-2", v5="3.3.1-2 4.3.1-1")
def test_at_qos_0_nothing_is_a_duplicate(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 0))
    publisher = room.client()

    publisher.publish(room.topic(), b"1", 1)
    assert not subscriber.message().dup
    publisher.send(packet(0x38, publish(room.version, room.topic())[2:]))

    ends_with(publisher, 0x81)


@clauses(v311="3.3.1-3 4.3.2-1", v5="3.3.1-3 4.3.2-2 4.3.3-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_duplicate_that_comes_in_goes_out_as_none(room: Room, qos: int) -> None:
    subscriber = room.subscriber((room.topic(), qos))
    publisher = room.client()

    publisher.send(publish(room.version, room.topic(), b"1", qos=qos, number=1, dup=True))

    received = subscriber.expect(PUBLISH)
    assert (received.dup, received.qos) == (False, qos)


@clauses(v311="3.3.1-4", v5="3.3.1-4")
@pytest.mark.parametrize("first", [0x36, 0x37, 0x3E])
def test_a_qos_of_3_ends_the_connection(room: Room, first: int) -> None:
    client = room.client()

    client.send(packet(first, text(room.topic()) + b"\0\1" + b"\0" + b"x"))

    ends_with(client, 0x81)


# -- retained messages -------------------------------------------------------------------------------------------------


@clauses(v311="3.3.1-5 3.3.1-6 3.3.1-8", v5="3.3.1-5 3.3.1-9")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_last_retained_message_of_a_topic_comes_with_a_subscription(room: Room, qos: int) -> None:
    publisher = room.client()
    for payload in (b"old", b"new"):
        publisher.publish(room.topic("a"), payload, qos, retain=True)
    publisher.publish(room.topic("b"), b"other", qos, retain=True)

    subscriber = room.subscriber((room.topic("#"), 2))

    received = sorted((last.payload, last.qos, last.retain) for last in (subscriber.message(), subscriber.message()))
    assert received == [(b"new", qos, True), (b"other", qos, True)]
    subscriber.expect_nothing()


@clauses(v311="3.3.1-7", v5="3.3.1-5")
def test_a_retained_message_at_qos_0_takes_the_place_of_another(room: Room) -> None:
    publisher = room.client()
    publisher.publish(room.topic(), b"old", 1, retain=True)

    publisher.publish(room.topic(), b"new", 0, retain=True)

    subscriber = room.subscriber((room.topic(), 1))
    assert subscriber.message().payload == b"new"
    subscriber.expect_nothing()


@clauses(v311="3.3.1-9", v5="3.3.1-12")
def test_to_a_subscription_that_is_there_a_message_is_not_retained(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 1))

    room.client().publish(room.topic(), b"1", 1, retain=True)

    assert not subscriber.message().retain


@clauses(v311="3.3.1-10 3.3.1-11", v5="3.3.1-6 3.3.1-7")
def test_an_empty_retained_message_removes_the_one_that_was(room: Room) -> None:
    watching = room.subscriber((room.topic(), 0))
    publisher = room.client()
    publisher.publish(room.topic(), b"1", 1, retain=True)
    publisher.publish(room.topic(), b"", 1, retain=True)

    assert [watching.message().payload, watching.message().payload] == [b"1", b""]  # it is a message like others
    room.subscriber((room.topic(), 0)).expect_nothing()


@clauses(v311="3.3.1-12", v5="3.3.1-8")
def test_a_message_that_is_not_retained_leaves_the_retained_one_alone(room: Room) -> None:
    publisher = room.client()
    publisher.publish(room.topic("a"), b"kept", 1, retain=True)
    for payload in (b"passing", b""):
        publisher.publish(room.topic("a"), payload, 1)
        publisher.publish(room.topic("b"), payload, 1)

    subscriber = room.subscriber((room.topic("#"), 1))
    assert subscriber.message().payload == b"kept"
    subscriber.expect_nothing()


@clauses(v5="3.3.1-9 3.3.1-10 3.3.1-11")
@pytest.mark.parametrize(("handling", "first", "again"), [(0, True, True), (1, True, False), (2, False, False)])
def test_retain_handling(room: Room, handling: int, first: bool, again: bool) -> None:
    room.client().publish(room.topic(), b"1", 1, retain=True)
    subscriber = room.client()

    for expected in (first, again):
        subscriber.subscribe((room.topic(), handling << 4))
        if expected:
            assert subscriber.message().retain
        subscriber.expect_nothing()


@clauses(v5="3.3.1-12 3.3.1-13")
@pytest.mark.parametrize("as_published", [False, True])
@pytest.mark.parametrize("retain", [False, True])
def test_retain_as_published(room: Room, as_published: bool, retain: bool) -> None:
    subscriber = room.subscriber((room.topic(), 1 | (8 if as_published else 0)))

    room.client().publish(room.topic(), b"1", 1, retain=retain)

    assert subscriber.message().retain == (as_published and retain)


# -- topics ------------------------------------------------------------------------------------------------------------


@clauses(v311="3.3.2-1 4.8.0-1", v5="3.3.2-1")
@pytest.mark.parametrize("body", [b"", b"\0", b"\0\5abc"])
def test_a_topic_comes_first_and_is_whole(room: Room, body: bytes) -> None:
    client = room.client()

    client.send(packet(0x30, body))

    ends_with(client, 0x81)


@clauses(v311="3.3.2-2 4.7.1-1", v5="3.3.2-2 4.7.0-1")
@pytest.mark.parametrize("topic", ["#", "+", "a/#", "a/+/b", "a+b", "a#"])
def test_a_topic_has_no_wildcards(room: Room, topic: str) -> None:
    client = room.client()

    client.send(publish(room.version, topic))

    ends_with(client, 0x90)


@clauses(v311="3.3.2-3", v5="3.3.2-3")
def test_what_a_subscriber_gets_matches_its_filter(room: Room) -> None:
    subscriber = room.subscriber((room.topic("+", "x"), 1))
    publisher = room.client()
    for levels in (("a", "x"), ("a", "y"), ("a", "x", "z"), ("x",), ("b", "x")):
        publisher.publish(room.topic(*levels), b"", 1)

    assert [subscriber.message().topic, subscriber.message().topic] == [room.topic("a", "x"), room.topic("b", "x")]
    subscriber.expect_nothing()


# -- properties --------------------------------------------------------------------------------------------------------


@clauses(v5="3.3.2-4 3.3.2-15 3.3.2-16 3.3.2-17 3.3.2-18 3.3.2-20")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_what_is_said_about_a_message_is_passed_on_as_it_is(room: Room, qos: int, retain: bool) -> None:
    said: list[Property] = [
        (0x26, ("b", "1")),
        (0x01, 1),
        (0x26, ("a", "")),
        (0x08, "answers/ä"),
        (0x09, b"\0\xff"),
        (0x26, ("b", "1")),
        (0x03, "text/plain"),
    ]
    subscriber = room.client()
    if not retain:
        subscriber.subscribe((room.topic(), qos))

    room.client().publish(room.topic(), b"1", qos, retain, said)

    if retain:
        subscriber.subscribe((room.topic(), qos))
    received = subscriber.message()
    for identifier in (0x01, 0x03, 0x08, 0x09, 0x26):
        assert received.values(identifier) == [value for known, value in said if known == identifier]


@clauses(v5="3.3.2-4")
def test_a_payload_format_of_0_is_passed_on_too(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 0))

    room.client().publish(room.topic(), b"\xff", 0, said=[(0x01, 0)])

    assert subscriber.message().values(0x01) == [0]


@clauses(v5="3.3.2-5 3.3.2-6")
def test_a_message_that_waited_for_too_long_is_not_delivered_and_others_say_how_long_they_waited(room: Room) -> None:
    away = room.kept()
    away.subscribe((room.topic(), 1))
    away.send(GOODBYE)
    away.expect_end()
    publisher = room.client()
    publisher.publish(room.topic("retained"), b"short", 1, True, [(0x02, 1)])
    publisher.publish(room.topic(), b"short", 1, said=[(0x02, 1)])
    publisher.publish(room.topic(), b"long", 1, said=[(0x02, 100)])
    timer = room.client(keep_alive=1)
    timer.expect_end()  # one and a half seconds later

    back = room.kept()

    received = back.message()
    assert received.payload == b"long"
    (left,) = received.values(0x02)
    assert isinstance(left, int)
    assert left < 100
    back.expect_nothing()
    room.subscriber((room.topic("retained"), 1)).expect_nothing()


@clauses(v5="3.3.2-7")
def test_topic_aliases_do_not_outlive_their_connection(room: Room) -> None:
    first = room.kept()
    first.publish(room.topic(), b"1", 1, said=[(0x23, 1)])
    first.publish("", b"2", 1, said=[(0x23, 1)])
    first.send(GOODBYE)
    first.expect_end()

    again = room.kept()
    again.send(publish(5, "", qos=1, number=9, said=[(0x23, 1)]))

    ends_with(again, 0x82)


@clauses(v5="3.3.2-8")
def test_a_topic_alias_of_0_is_not_allowed(room: Room) -> None:
    client = room.client()

    client.send(publish(5, room.topic(), said=[(0x23, 0)]))

    ends_with(client, 0x94)


@clauses(v5="3.2.2-17 3.3.2-9 3.3.2-12")
def test_every_topic_alias_up_to_the_maximum_is_understood_and_none_above(room: Room) -> None:
    subscriber = room.subscriber((room.topic("#"), 0))
    client = room.client()
    assert client.connack is not None
    (most,) = client.connack.values(0x22)
    assert isinstance(most, int)
    for alias in (1, most):
        client.publish(room.topic(str(alias)), b"", said=[(0x23, alias)])
        client.publish("", b"", said=[(0x23, alias)])

    assert [subscriber.message().topic for _ in range(4)] == [room.topic(str(alias)) for alias in (1, 1, most, most)]
    client.send(publish(5, room.topic(), said=[(0x23, most + 1)]))
    ends_with(client, 0x94)


@clauses(v5="3.2.2-18")
def test_there_are_no_topic_aliases_where_the_server_wants_none(narrow: Room) -> None:
    client = narrow.client()
    assert client.connack is not None
    assert client.connack.values(0x22) in ([], [0])

    client.send(publish(5, narrow.topic(), said=[(0x23, 1)]))

    ends_with(client, 0x94)


@clauses(v5="3.3.2-13 3.3.2-19")
@pytest.mark.parametrize("identifier", [0x08, 0x03])
@pytest.mark.parametrize("raw", [b"\xff", b"\0"])
def test_response_topic_and_content_type_are_utf_8(room: Room, identifier: int, raw: bytes) -> None:
    client = room.client()

    client.send(publish(5, room.topic(), said=[(identifier, raw)]))

    ends_with(client, 0x81)


@clauses(v5="3.3.2-14")
@pytest.mark.parametrize("topic", ["#", "a/+"])
def test_a_response_topic_has_no_wildcards(room: Room, topic: str) -> None:
    client = room.client()

    client.send(publish(5, room.topic(), said=[(0x08, topic)]))

    assert client.expect_end()[-1].reason in (0x82, 0x90)


@clauses(v5="4.13.1-1")
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ([(0x01, 1), (0x01, 1)], 0x82),
        ([(0x02, 1), (0x02, 1)], 0x82),
        ([(0x01, 2)], 0x82),
        ([(0x11, 5)], 0x82),
        ([(0x21, 5)], 0x82),
    ],
)
def test_a_property_that_is_there_twice_or_not_of_a_publish_ends_the_connection(
    room: Room, said: list[Property], reason: int
) -> None:
    client = room.client()

    client.send(publish(5, room.topic(), said=said))

    ends_with(client, reason)


# -- answers -----------------------------------------------------------------------------------------------------------


@clauses(v311="3.3.4-1 4.3.2-2", v5="3.3.4-1 4.3.2-4 4.3.3-8")
def test_a_message_is_answered_as_its_qos_asks(room: Room) -> None:
    client = room.client()

    client.send(publish(room.version, room.topic(), b"0"))
    client.expect_nothing()
    client.send(publish(room.version, room.topic(), b"1", qos=1, number=1))
    assert client.expect(PUBACK).number == 1
    client.send(publish(room.version, room.topic(), b"2", qos=2, number=2))
    assert client.expect(PUBREC).number == 2


@clauses(v311="3.3.5-2", v5="3.4.2-1 3.5.2-1")
def test_a_message_that_may_not_be_published_is_refused(room: Room) -> None:
    subscriber = room.subscriber(("$SYS/forged", 0))
    for qos, kind in ((1, PUBACK), (2, PUBREC)):
        client = room.client()
        client.send(publish(room.version, "$SYS/forged", b"no", qos=qos, number=7))
        if room.version == 5:
            received = client.expect(kind)
            assert (received.number, received.reason) == (7, 0x87)
        else:
            assert client.expect_end() == []
    subscriber.expect_nothing()


@clauses(v5="3.4.2-1 3.5.2-1 3.6.2-1 3.7.2-1")
def test_answers_have_reasons_of_their_packet(room: Room) -> None:
    client = room.client()
    client.send(publish(5, room.topic(), qos=1, number=1))
    assert client.expect(PUBACK).reason in (0x00, 0x10)
    client.send(publish(5, room.topic(), qos=2, number=2))
    assert client.expect(PUBREC).reason in (0x00, 0x10)
    client.send(answer(PUBREL, 2))
    assert client.expect(PUBCOMP).reason == 0
    client.send(answer(PUBREL, 3))
    unknown = client.expect(PUBCOMP)
    assert (unknown.number, unknown.reason) == (3, 0x92)
    client.send(answer(PUBREC, 4))
    unknown = client.expect(PUBREL)
    assert (unknown.number, unknown.reason) == (4, 0x92)


@clauses(v5="3.4.2-1 3.5.2-1 3.6.2-1 3.7.2-1")
@pytest.mark.parametrize(("kind", "reason"), [(PUBACK, 0x01), (PUBREC, 0x92), (PUBREL, 0x80), (PUBCOMP, 0x10)])
def test_a_reason_of_another_packet_ends_the_connection(room: Room, kind: int, reason: int) -> None:
    client = room.client()

    client.send(answer(kind, 1, reason))

    ends_with(client, 0x82)


@clauses(v5="3.4.2-2 3.4.2-3 3.5.2-2 3.5.2-3 3.6.2-2 3.6.2-3 3.7.2-2 3.7.2-3")
def test_explanations_of_answers_are_left_out_where_they_would_not_fit(room: Room) -> None:
    client = room.client(said=((0x27, 30),))

    client.send(publish(5, "$SYS/forged", qos=1, number=1), publish(5, "$SYS/forged", qos=2, number=2))
    client.send(answer(PUBREL, 3), answer(PUBREC, 4))

    answers = [client.receive() for _ in range(4)]
    assert sorted(last.kind for last in answers) == [PUBACK, PUBREC, PUBREL, PUBCOMP]
    assert all(len(last.body) + 2 <= 30 for last in answers)
    assert all(last.reason >= 0x80 for last in answers)


@clauses(v311="3.6.1-1", v5="3.6.1-1")
@pytest.mark.parametrize("flags", [0, 1, 3, 6, 10])
def test_the_flags_of_pubrel_are_fixed(room: Room, flags: int) -> None:
    client = room.client()

    client.send(packet(0x60 | flags, b"\0\1"))

    ends_with(client, 0x81)


# -- overlapping subscriptions -----------------------------------------------------------------------------------------


@clauses(v311="3.3.5-1", v5="3.3.4-2 3.3.4-5")
def test_overlapping_subscriptions_get_a_message_once_at_their_highest_qos(room: Room) -> None:
    subscriber = room.subscriber((room.topic("#"), 0), (room.topic("a"), 2), (room.topic("+"), 1))

    room.client().publish(room.topic("a"), b"1", 2)

    received = subscriber.message()
    assert (received.payload, received.qos) == (b"1", 2)
    subscriber.expect_nothing()  # all of them get one copy


@clauses(v5="3.3.4-3 3.3.4-4")
def test_a_message_names_all_subscriptions_that_it_is_for(room: Room) -> None:
    subscriber = room.client()
    subscriber.subscribe((room.topic("#"), 1), said=((0x0B, 1),))
    subscriber.subscribe((room.topic("a"), 1), said=((0x0B, 268_435_455),))
    subscriber.subscribe((room.topic("+"), 1))
    subscriber.subscribe((room.topic("b"), 1), said=((0x0B, 3),))

    room.client().publish(room.topic("a"), b"1", 1)

    identifiers = subscriber.message().values(0x0B)
    assert sorted(number for number in identifiers if isinstance(number, int)) == [1, 268_435_455]


@clauses(v5="3.3.4-6")
def test_a_client_does_not_publish_with_a_subscription_identifier(room: Room) -> None:
    client = room.client()

    client.send(publish(5, room.topic(), said=[(0x0B, 1)]))

    ends_with(client, 0x82)


# -- flow control ------------------------------------------------------------------------------------------------------


@clauses(v5="3.3.4-7")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_that_sends_more_than_the_receive_maximum_is_ended(narrow: Room, qos: int) -> None:
    client, most = _filled(narrow)

    client.send(publish(5, narrow.topic(), qos=qos, number=most + 1))

    ends_with(client, 0x93)


@clauses(v5="3.3.4-8")
def test_other_packets_of_a_client_that_has_sent_the_receive_maximum_are_taken(narrow: Room) -> None:
    client, most = _filled(narrow)

    client.expect_nothing()
    assert client.subscribe((narrow.topic("x"), 1)).reasons == [1]
    client.publish(narrow.topic("x"), b"at QoS 0")
    assert client.message().payload == b"at QoS 0"
    client.send(answer(PUBREL, 1))
    assert client.expect(PUBCOMP).number == 1

    client.send(publish(5, narrow.topic(), qos=2, number=most + 1))  # for which there is room now
    assert client.expect(PUBREC).number == most + 1


def _filled(narrow: Room) -> tuple[Client, int]:
    """A client with as many messages under way as it may have, and how many these are."""
    client = narrow.client()
    assert client.connack is not None
    (most,) = client.connack.values(0x21)
    assert isinstance(most, int)
    for number in range(1, most + 1):
        client.send(publish(5, narrow.topic(), qos=2, number=number))
        client.expect(PUBREC)
    return client, most


@clauses(v5="3.3.4-9 3.3.4-10 4.9.0-1 4.9.0-2 4.9.0-3")
def test_the_server_sends_no_more_than_the_client_has_room_for(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 2), said=((0x21, 2),))
    publisher = room.client()
    for number in range(5):
        publisher.publish(room.topic(), str(number).encode(), 1 + number % 2)
    held = [subscriber.expect(PUBLISH), subscriber.expect(PUBLISH)]

    subscriber.expect_nothing()  # and other packets are answered all the same
    assert [last.payload for last in held] == [b"0", b"1"]
    publisher.publish(room.topic(), b"at once", 0)
    assert subscriber.expect(PUBLISH).payload == b"at once"  # QoS 0 does not count

    subscriber.send(answer(PUBACK, held[0].number))
    assert subscriber.expect(PUBLISH).payload == b"2"
    subscriber.expect_nothing()
    subscriber.send(answer(PUBREC, held[1].number))
    subscriber.expect(PUBREL)
    subscriber.expect_nothing()  # until PUBCOMP it counts
    subscriber.send(answer(PUBCOMP, held[1].number))
    assert subscriber.expect(PUBLISH).payload == b"3"


@clauses(v5="3.3.4-9 4.4.0-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_the_client_refuses_is_done_with(room: Room, qos: int) -> None:
    first = room.kept(said=((0x21, 1),))
    first.subscribe((room.topic(), qos))
    publisher = room.client()
    for payload in (b"refused", b"next"):
        publisher.publish(room.topic(), payload, qos)
    refused = first.expect(PUBLISH)

    first.send(answer(PUBACK if qos == 1 else PUBREC, refused.number, 0x83))

    received = first.expect(PUBLISH)
    assert received.payload == b"next"
    first.cut()
    assert room.kept(said=((0x21, 1),)).message().payload == b"next"


@clauses(v5="3.2.0-1")
def test_connack_is_the_first_answer_of_all(room: Room) -> None:
    client = room.stranger()
    client.send(connect(5, room.name()) + publish(5, room.topic(), qos=1, number=1))

    assert [client.receive().kind, client.receive().kind] == [CONNACK, PUBACK]
