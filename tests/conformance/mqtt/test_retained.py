"""Section 3.3.1: retained messages."""

import pytest

from tests.conformance.mqtt.clauses import clauses
from tests.conformance.mqtt.conftest import Room


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
