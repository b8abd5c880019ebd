"""Sections 3.8 to 3.11: SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK."""

import pytest

from tests.conformance.mqtt.clauses import clauses
from tests.conformance.mqtt.conftest import Room
from tests.conformance.mqtt.wire import (
    PUBACK,
    PUBLISH,
    SUBACK,
    UNSUBACK,
    answer,
    packet,
    subscribe,
    text,
    unsubscribe,
)

# -- SUBSCRIBE ---------------------------------------------------------------------------------------------------------


@clauses(v311="3.8.1-1", v5="3.8.1-1")
@pytest.mark.parametrize("flags", [0, 1, 3, 10, 15])
def test_the_flags_of_subscribe_are_fixed(room: Room, flags: int) -> None:
    client = room.client()
    data = subscribe(room.version, 1, (room.topic(), 0))

    client.send(bytes((0x80 | flags,)) + data[1:])

    client.ends_with(0x81)


@clauses(v311="3.8.3-1", v5="3.8.3-1")
@pytest.mark.parametrize("raw", [b"\xff", b"a/\xed\xbf\xbf"])
def test_a_topic_filter_is_utf_8(room: Room, raw: bytes) -> None:
    client = room.client()

    client.send(subscribe(room.version, 1, (raw, 0)))

    client.ends_with(0x81)


@clauses(v311="3.8.3-3", v5="3.8.3-2")
def test_a_subscribe_has_a_topic_filter(room: Room) -> None:
    client = room.client()

    client.send(subscribe(room.version, 1))

    client.ends_with(0x82)


@clauses(v311="3.8.3-4", v5="3.8.3-5")
@pytest.mark.parametrize("options", [0x03, 0x40, 0x80, 0xC1])
def test_reserved_bits_of_the_options_and_a_qos_of_3_end_the_connection(room: Room, options: int) -> None:
    client = room.client()

    client.send(subscribe(room.version, 1, (room.topic(), options)))

    client.ends_with(0x81)


@clauses(v311="3.8.3-4")
@pytest.mark.parametrize("options", [0x04, 0x08, 0x10, 0x20])
def test_the_options_of_mqtt_5_are_reserved_bits_in_mqtt_3(room: Room, options: int) -> None:
    client = room.client()

    client.send(subscribe(4, 1, (room.topic(), options)))

    client.ends_with()


@clauses(v5="4.13.1-1")
def test_a_retain_handling_of_3_ends_the_connection(room: Room) -> None:
    client = room.client()

    client.send(subscribe(5, 1, (room.topic(), 0x30)))

    client.ends_with(0x82)


@clauses(v5="4.13.1-1")
@pytest.mark.parametrize("numbers", [(0,), (1, 2)])
def test_a_subscription_identifier_is_one_and_not_0(room: Room, numbers: tuple[int, ...]) -> None:
    client = room.client()

    client.send(subscribe(5, 1, (room.topic(), 0), said=[(0x0B, number) for number in numbers]))

    client.ends_with(0x82)


@clauses(v5="3.8.3-3")
def test_no_local_keeps_what_a_client_publishes_from_itself(room: Room) -> None:
    client = room.client()
    client.subscribe((room.topic(), 1 | 4))

    client.publish(room.topic(), b"mine", 1)
    room.client().publish(room.topic(), b"another's", 1)

    assert client.message().payload == b"another's"


@clauses(v5="3.8.3-4")
def test_a_shared_subscription_cannot_be_no_local(room: Room) -> None:
    client = room.client()

    client.send(subscribe(5, 1, (f"$share/g/{room.topic()}", 4)))

    client.ends_with(0x82)


@clauses(v311="3.8.4-1", v5="3.8.4-1")
def test_a_subscribe_is_answered(room: Room) -> None:
    client = room.client()

    client.send(subscribe(room.version, 7, (room.topic(), 1)))

    assert client.expect(SUBACK).number == 7


@clauses(v311="3.8.4-3", v5="3.8.4-3 3.8.4-4")
def test_the_same_filter_again_takes_the_place_of_the_subscription(room: Room) -> None:
    publisher = room.client()
    publisher.publish(room.topic(), b"retained", 1, retain=True)
    subscriber = room.subscriber((room.topic(), 0))
    assert subscriber.message().qos == 0

    subscriber.subscribe((room.topic(), 1))

    again = subscriber.message()
    assert (again.payload, again.qos, again.retain) == (b"retained", 1, True)
    publisher.publish(room.topic(), b"once", 1)
    received = subscriber.message()
    assert (received.payload, received.qos) == (b"once", 1)
    subscriber.expect_nothing()


@clauses(v311="3.8.4-3", v5="3.8.4-4")
def test_no_message_is_lost_while_a_subscription_is_replaced(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 1))
    publisher = room.client()
    for number in range(50):
        publisher.publish(room.topic(), str(number).encode(), 1)
        subscriber.send(subscribe(room.version, 1000 + number, (room.topic(), 1)))

    received: list[int] = []
    while len(received) < 50:
        last = subscriber.receive()
        if last.kind == PUBLISH:
            subscriber.send(answer(PUBACK, last.number))
            received.append(int(last.payload))
    assert received == list(range(50))


@clauses(v311="3.8.4-4 3.8.4-5 3.9.3-1 3.9.3-2", v5="3.8.4-5 3.8.4-6 3.8.4-7 3.9.3-1 3.9.3-2")
def test_many_filters_are_answered_one_by_one_in_their_order(room: Room) -> None:
    client = room.client()
    publisher = room.client()

    suback = client.subscribe((room.topic("2"), 2), ("$queue/", 1), (room.topic("0"), 0), (room.topic("1"), 1))

    assert len(suback.reasons) == 4
    assert (suback.reasons[0], suback.reasons[2], suback.reasons[3]) == (2, 0, 1)
    assert suback.reasons[1] >= 0x80 if room.version == 5 else suback.reasons[1] == 0x80
    for level in "012":
        publisher.publish(room.topic(level), level.encode(), 2)
    assert [(last.payload, last.qos) for last in (client.message(), client.message(), client.message())] == [
        (b"0", 0),
        (b"1", 1),
        (b"2", 2),
    ]


@clauses(v311="3.8.4-6", v5="3.8.4-8")
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("sent", [0, 1, 2])
def test_a_message_comes_at_the_lower_qos(room: Room, granted: int, sent: int) -> None:
    subscriber = room.subscriber((room.topic(), granted))

    room.client().publish(room.topic(), b"1", sent)

    assert subscriber.message().qos == min(granted, sent)


@clauses(v5="3.9.2-1 3.9.2-2 3.11.2-1 3.11.2-2")
def test_explanations_are_left_out_where_they_would_not_fit(room: Room) -> None:
    client = room.client(said=((0x27, 20),))

    suback = client.subscribe(("$queue/", 1))
    client.send(unsubscribe(5, 9, "$queue/"))
    unsuback = client.expect(UNSUBACK)

    assert suback.reason >= 0x80
    assert len(suback.body) + 2 <= 20
    assert len(unsuback.body) + 2 <= 20


# -- UNSUBSCRIBE -------------------------------------------------------------------------------------------------------


@clauses(v311="3.10.1-1", v5="3.10.1-1")
@pytest.mark.parametrize("flags", [0, 1, 3, 10, 15])
def test_the_flags_of_unsubscribe_are_fixed(room: Room, flags: int) -> None:
    client = room.client()
    data = unsubscribe(room.version, 1, room.topic())

    client.send(bytes((0xA0 | flags,)) + data[1:])

    client.ends_with(0x81)


@clauses(v311="3.10.3-1", v5="3.10.3-1")
def test_a_filter_of_unsubscribe_is_utf_8(room: Room) -> None:
    client = room.client()

    client.send(unsubscribe(room.version, 1, b"\xff"))

    client.ends_with(0x81)


@clauses(v311="3.10.3-2 4.8.0-1", v5="3.10.3-2")
def test_an_unsubscribe_has_a_filter(room: Room) -> None:
    client = room.client()

    client.send(unsubscribe(room.version, 1))

    client.ends_with(0x82)


@clauses(v311="3.10.4-1", v5="3.10.4-1")
def test_filters_are_compared_character_by_character(room: Room) -> None:
    subscriber = room.subscriber((room.topic("+", "B"), 0), (room.topic("#"), 0))

    for other in (room.topic("+", "b"), room.topic("a", "B"), room.topic("+")):
        subscriber.send(unsubscribe(room.version, 9, other))
        subscriber.expect(UNSUBACK)
    subscriber.send(unsubscribe(room.version, 10, room.topic("#")))
    subscriber.expect(UNSUBACK)
    publisher = room.client()
    for levels in (("x", "C"), ("x", "B")):
        publisher.publish(room.topic(*levels), b"")

    assert subscriber.message().topic == room.topic("x", "B")
    subscriber.expect_nothing()


@clauses(v311="3.10.4-2", v5="3.10.4-2")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_subscription_that_is_gone_gets_nothing_more(room: Room, qos: int) -> None:
    subscriber = room.subscriber((room.topic(), qos))
    publisher = room.client()
    publisher.publish(room.topic(), b"before", qos)
    assert subscriber.message().payload == b"before"

    subscriber.send(unsubscribe(room.version, 9, room.topic()))
    subscriber.expect(UNSUBACK)
    publisher.publish(room.topic(), b"after", qos)

    subscriber.expect_nothing()


@clauses(v311="3.10.4-3", v5="3.10.4-3")
@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_under_way_when_a_subscription_ends_is_finished(room: Room, qos: int) -> None:
    subscriber = room.kept()
    subscriber.subscribe((room.topic(), qos))
    room.client().publish(room.topic(), b"1", qos)
    started = subscriber.expect(PUBLISH)
    subscriber.send(unsubscribe(room.version, 9, room.topic()))
    subscriber.expect(UNSUBACK)
    subscriber.cut()

    again = room.kept().message()

    assert (again.number, again.payload, again.dup) == (started.number, b"1", True)


@clauses(v311="3.10.4-4 3.10.4-5", v5="3.10.4-4 3.10.4-5")
def test_an_unsubscribe_is_answered_even_if_nothing_matches(room: Room) -> None:
    client = room.client()

    client.send(unsubscribe(room.version, 0x4321, room.topic("never", "subscribed")))

    unsuback = client.expect(UNSUBACK)
    assert unsuback.number == 0x4321
    assert unsuback.reasons == ([0x11] if room.version == 5 else [])


@clauses(v311="3.10.4-6", v5="3.10.4-6 3.11.3-1 3.11.3-2")
def test_many_filters_are_unsubscribed_one_by_one(room: Room) -> None:
    subscriber = room.subscriber((room.topic("a"), 0), (room.topic("b"), 0))

    subscriber.send(unsubscribe(room.version, 9, room.topic("a"), room.topic("c"), room.topic("b")))

    unsuback = subscriber.expect(UNSUBACK)
    assert unsuback.reasons == ([0, 0x11, 0] if room.version == 5 else [])
    publisher = room.client()
    for level in "ab":
        publisher.publish(room.topic(level), b"")
    subscriber.expect_nothing()


@clauses(v311="4.8.0-1", v5="4.13.1-1")
@pytest.mark.parametrize("kind", [0x82, 0xA2])
def test_a_request_that_ends_in_the_middle_of_a_filter_ends_the_connection(room: Room, kind: int) -> None:
    client = room.client()

    client.send(packet(kind, b"\0\1" + (b"\0" if room.version == 5 else b"") + text("abc")[:-1]))

    client.ends_with(0x81)
