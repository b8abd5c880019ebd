"""Sections 3.1 and 4.1: sessions that begin, go on, are taken over and end."""

from tests.conformance.mqtt.clauses import clauses
from tests.conformance.mqtt.conftest import Room
from tests.conformance.mqtt.wire import (
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    answer,
    publish,
)


@clauses(v311="3.1.2-4 3.2.2-2 3.1.4-3", v5="3.1.2-5 3.1.2-23 3.1.4-4 3.2.2-3")
def test_a_session_that_is_kept_goes_on(room: Room) -> None:
    first = room.kept()
    first.subscribe((room.topic(), 1))
    first.leave()

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
    first.leave()
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
    first.leave()
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
    first.leave()

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


@clauses(v311="3.1.3-2", v5="3.1.3-2")
def test_sessions_are_told_apart_by_their_client_identifier(room: Room) -> None:
    for number in "12":
        client = room.kept(room.name(number))
        client.subscribe((room.topic(number), 1))
        client.leave()
    publisher = room.client()
    for number in "12":
        publisher.publish(room.topic(number), number.encode(), 1)

    for number in "21":
        back = room.kept(room.name(number))
        assert back.message().payload == number.encode()
        back.expect_nothing()


@clauses(v311="3.1.4-2", v5="3.1.4-3")
def test_a_second_connection_takes_the_place_of_the_first(room: Room) -> None:
    first = room.client(room.name())

    second = room.client(room.name())

    ending = first.expect_end()
    assert [(last.kind, last.reason) for last in ending] == ([(DISCONNECT, 0x8E)] if room.version == 5 else [])
    second.expect_nothing()


@clauses(v311="3.2.0-1", v5="3.2.0-1")
def test_messages_that_wait_come_after_connack(room: Room) -> None:
    first = room.kept()
    first.subscribe((room.topic(), 1))
    first.leave()
    room.client().publish(room.topic(), b"1", 1)

    again = room.kept()  # looks for a CONNACK first

    assert again.message().payload == b"1"


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
