"""Section 3.3: PUBLISH, its flags, its topic, and what is said about a message."""

import pytest

from tests.conformance.mqtt.clauses import clauses
from tests.conformance.mqtt.conftest import Room
from tests.conformance.mqtt.wire import PUBLISH, Property, packet, publish, text

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

    publisher.ends_with(0x81)


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

    client.ends_with(0x81)


# -- topics ------------------------------------------------------------------------------------------------------------


@clauses(v311="3.3.2-1 4.8.0-1", v5="3.3.2-1")
@pytest.mark.parametrize("body", [b"", b"\0", b"\0\5abc"])
def test_a_topic_comes_first_and_is_whole(room: Room, body: bytes) -> None:
    client = room.client()

    client.send(packet(0x30, body))

    client.ends_with(0x81)


@clauses(v311="3.3.2-2 4.7.1-1", v5="3.3.2-2 4.7.0-1")
@pytest.mark.parametrize("topic", ["#", "+", "a/#", "a/+/b", "a+b", "a#"])
def test_a_topic_has_no_wildcards(room: Room, topic: str) -> None:
    client = room.client()

    client.send(publish(room.version, topic))

    client.ends_with(0x90)


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
    away.leave()
    publisher = room.client()
    publisher.publish(room.topic("retained"), b"short", 1, True, [(0x02, 1)])
    publisher.publish(room.topic(), b"short", 1, said=[(0x02, 1)])
    publisher.publish(room.topic(), b"long", 1, said=[(0x02, 100)])
    room.pass_time()

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
    first.leave()

    again = room.kept()
    again.send(publish(5, "", qos=1, number=9, said=[(0x23, 1)]))

    again.ends_with(0x82)


@clauses(v5="3.3.2-8")
def test_a_topic_alias_of_0_is_not_allowed(room: Room) -> None:
    client = room.client()

    client.send(publish(5, room.topic(), said=[(0x23, 0)]))

    client.ends_with(0x94)


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
    client.ends_with(0x94)


@clauses(v5="3.2.2-18")
def test_there_are_no_topic_aliases_where_the_server_wants_none(narrow: Room) -> None:
    client = narrow.client()
    assert client.connack is not None
    assert client.connack.values(0x22) in ([], [0])

    client.send(publish(5, narrow.topic(), said=[(0x23, 1)]))

    client.ends_with(0x94)


@clauses(v5="3.3.2-13 3.3.2-19")
@pytest.mark.parametrize("identifier", [0x08, 0x03])
@pytest.mark.parametrize("raw", [b"\xff", b"\0"])
def test_response_topic_and_content_type_are_utf_8(room: Room, identifier: int, raw: bytes) -> None:
    client = room.client()

    client.send(publish(5, room.topic(), said=[(identifier, raw)]))

    client.ends_with(0x81)


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
        ([(0x11, 5)], 0x81),
        ([(0x18, 5)], 0x81),
        ([(0x21, 5)], 0x81),
    ],
)
def test_a_property_that_is_there_twice_or_not_of_a_publish_ends_the_connection(
    room: Room, said: list[Property], reason: int
) -> None:
    client = room.client()

    client.send(publish(5, room.topic(), said=said))

    client.ends_with(reason)
