"""Sections 4.7 and 4.8: topics, filters, wildcards, names of shared subscriptions."""

import pytest

from tests.conformance.mqtt.clauses import clauses
from tests.conformance.mqtt.conftest import Room
from tests.conformance.mqtt.wire import DISCONNECT, SUBACK, publish, subscribe, unsubscribe


@clauses(v311="3.8.3-2 4.7.1-1", v5="4.7.0-1")
def test_wildcards_are_for_filters(room: Room) -> None:
    subscriber = room.subscriber((room.topic("+", "#"), 0))

    room.client().publish(room.topic("a", "b", "c"), b"1")

    assert subscriber.message().topic == room.topic("a", "b", "c")


@clauses(v311="4.7.1-2 4.8.0-1", v5="4.7.1-1")
@pytest.mark.parametrize("pattern", ["a/#/b", "a#", "a/b#", "#a", "##"])
def test_a_multi_level_wildcard_is_a_level_of_its_own_and_the_last(room: Room, pattern: str) -> None:
    client = room.client()

    client.send(subscribe(room.version, 1, (pattern, 0)))

    ending = client.expect_end()
    assert [(last.kind, last.reason) for last in ending] == ([(DISCONNECT, 0x8F)] if room.version == 5 else [])


@clauses(v311="4.7.1-2", v5="4.7.1-1")
def test_a_multi_level_wildcard_matches_its_parent_and_all_below(room: Room) -> None:
    subscriber = room.subscriber((room.topic("a", "#"), 0))
    publisher = room.client()
    for levels in (("a",), ("a", ""), ("a", "b"), ("a", "b", "c"), ("ab",), ("b",)):
        publisher.publish(room.topic(*levels), b"")

    topics = [subscriber.message().topic for _ in range(4)]

    assert topics == [room.topic("a"), room.topic("a", ""), room.topic("a", "b"), room.topic("a", "b", "c")]
    subscriber.expect_nothing()


@clauses(v311="4.7.1-3", v5="4.7.1-2")
@pytest.mark.parametrize("pattern", ["a+", "+a", "a/b+/c", "++", "a/+b"])
def test_a_single_level_wildcard_is_a_level_of_its_own(room: Room, pattern: str) -> None:
    client = room.client()

    client.send(subscribe(room.version, 1, (pattern, 0)))

    ending = client.expect_end()
    assert [(last.kind, last.reason) for last in ending] == ([(DISCONNECT, 0x8F)] if room.version == 5 else [])


@clauses(v311="4.7.1-3", v5="4.7.1-2")
def test_a_single_level_wildcard_matches_one_level_wherever_it_is(room: Room) -> None:
    subscriber = room.subscriber((room.topic("+", "b", "+"), 0))
    publisher = room.client()
    for levels in (("a", "b", "c"), ("", "b", ""), ("a", "b"), ("a", "b", "c", "d"), ("a", "x", "c")):
        publisher.publish(room.topic(*levels), b"")

    assert [subscriber.message().topic, subscriber.message().topic] == [
        room.topic("a", "b", "c"),
        room.topic("", "b", ""),
    ]
    subscriber.expect_nothing()


@clauses(v311="4.7.2-1", v5="4.7.2-1")
@pytest.mark.parametrize("pattern", ["#", "+/#", "+/broker/#", "+/+/version"])
def test_a_filter_that_begins_with_a_wildcard_does_not_match_topics_that_begin_with_a_dollar(
    room: Room, pattern: str
) -> None:
    subscriber = room.client()
    subscriber.send(subscribe(room.version, 1, (pattern, 0)), subscribe(room.version, 2, ("$SYS/#", 0)))
    kinds: list[int] = []
    while len(kinds) < 2:
        last = subscriber.receive()
        if last.kind == SUBACK:
            kinds.append(last.number)
        elif len(kinds) < 2 and not (kinds == [1] and last.topic.startswith("$SYS/")):
            assert not last.topic.startswith("$")

    assert subscriber.message().topic.startswith("$SYS/")  # which are there, but for the other filter


@clauses(v311="4.7.3-1", v5="4.7.3-1")
@pytest.mark.parametrize("kind", ["publish", "subscribe", "unsubscribe"])
def test_topics_and_filters_have_at_least_one_character(room: Room, kind: str) -> None:
    client = room.client()
    if kind == "publish":
        client.send(publish(room.version, ""))
    elif kind == "subscribe":
        client.send(subscribe(room.version, 1, ("", 0)))
    else:
        client.send(unsubscribe(room.version, 1, ""))

    assert [last.kind for last in client.expect_end()] == ([DISCONNECT] if room.version == 5 else [])


@clauses(v311="4.7.3-2", v5="4.7.3-2")
@pytest.mark.parametrize("kind", ["publish", "subscribe"])
def test_topics_and_filters_have_no_null_character(room: Room, kind: str) -> None:
    client = room.client()
    client.send(publish(room.version, b"a\0") if kind == "publish" else subscribe(room.version, 1, (b"a\0", 0)))

    assert [last.kind for last in client.expect_end()] == ([DISCONNECT] if room.version == 5 else [])


@clauses(v311="4.7.3-3", v5="4.7.3-3")
def test_topics_have_up_to_65535_bytes(room: Room) -> None:
    topic = room.topic("x" * (65_535 - len(room.topic(""))))
    assert len(topic) == 65_535
    subscriber = room.subscriber((topic, 1))

    room.client().publish(topic, b"1", 1)

    assert subscriber.message().topic == topic


@clauses(v311="4.7.3-4", v5="4.7.3-4")
def test_topics_are_not_normalised(room: Room) -> None:
    composed, decomposed = room.topic("\u00e4"), room.topic("a\u0308")
    subscriber = room.subscriber((composed, 0), (room.topic("ACCOUNTS"), 0), (room.topic("sp ace"), 0))
    publisher = room.client()
    others = (decomposed, room.topic("Accounts"), room.topic("space"), room.topic("", "ACCOUNTS"), composed.upper())
    for topic in (*others, composed):
        publisher.publish(topic, b"")

    assert subscriber.message().topic == composed
    subscriber.expect_nothing()


@clauses(v5="4.8.2-1 4.8.2-2")
@pytest.mark.parametrize("pattern", ["$share//a", "$share/g", "$share/", "$share/+/a", "$share/g#/a", "$share/g/"])
def test_a_shared_subscription_has_a_name_and_a_filter(room: Room, pattern: str) -> None:
    client = room.client()

    client.send(subscribe(5, 1, (pattern, 0)))

    assert [(last.kind, last.reason) for last in client.expect_end()] == [(DISCONNECT, 0x8F)]
