"""Section 4.6: the order of messages and of their acknowledgements."""

import pytest

from tests.conformance.mqtt.clauses import clauses
from tests.conformance.mqtt.conftest import Room
from tests.conformance.mqtt.wire import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, answer, publish


@clauses(v5="4.6.0-1")
def test_what_a_client_sends_again_in_another_order_is_still_known(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 2))
    first = room.kept(room.name("publisher"))
    for number in (1, 2, 3):
        first.send(publish(5, room.topic(), str(number).encode(), qos=2, number=number))
        first.expect(PUBREC)
    first.cut()

    second = room.kept(room.name("publisher"))
    for number in (3, 1, 2):
        second.send(publish(5, room.topic(), str(number).encode(), qos=2, number=number, dup=True))
        assert second.expect(PUBREC).number == number

    assert [subscriber.message().payload for _ in range(3)] == [b"1", b"2", b"3"]
    subscriber.expect_nothing()


@clauses(v311="4.6.0-2 4.6.0-3", v5="4.6.0-5")
@pytest.mark.parametrize(("qos", "kind"), [(1, PUBACK), (2, PUBREC)])
def test_messages_are_answered_in_their_order(room: Room, qos: int, kind: int) -> None:
    publisher = room.client()
    numbers = [7, 3, 9, 1, 8, 2]

    publisher.send(*[publish(room.version, room.topic(), b"", qos=qos, number=number) for number in numbers])

    assert [publisher.expect(kind).number for _ in numbers] == numbers


@clauses(v311="4.6.0-4", v5="4.3.3-4")
def test_messages_are_released_in_the_order_in_which_they_were_received(room: Room) -> None:
    subscriber = room.kept()
    subscriber.subscribe((room.topic(), 2))
    publisher = room.client()
    for number in range(6):
        publisher.publish(room.topic(), str(number).encode(), 2)
    sent = [subscriber.expect(PUBLISH).number for _ in range(6)]
    order = [sent[at] for at in (3, 0, 5, 1, 2, 4)]

    subscriber.send(*[answer(PUBREC, number) for number in order])

    assert [subscriber.expect(PUBREL).number for _ in order] == order


@clauses(v5="4.6.0-2 4.6.0-3 4.6.0-4")
@pytest.mark.parametrize("qos", [1, 2])
def test_acknowledgements_in_another_order_are_taken(room: Room, qos: int) -> None:
    first = room.kept()
    first.subscribe((room.topic(), qos))
    publisher = room.client()
    for number in range(3):
        publisher.publish(room.topic(), str(number).encode(), qos)
    sent = [first.expect(PUBLISH) for _ in range(3)]

    for message in (sent[2], sent[0]):  # and none for the one in the middle
        first.send(answer(PUBACK if qos == 1 else PUBREC, message.number))
    if qos == 2:
        released = [first.expect(PUBREL).number, first.expect(PUBREL).number]
        first.send(*[answer(PUBCOMP, number) for number in reversed(released)])
    first.expect_nothing()
    first.cut()

    back = room.kept()
    assert back.message().payload == b"1"
    back.expect_nothing()


@clauses(v311="4.6.0-5 4.6.0-6", v5="4.6.0-5 4.6.0-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_come_in_the_order_in_which_they_were_published(room: Room, qos: int) -> None:
    subscriber = room.subscriber((room.topic("#"), qos))
    publisher = room.client()
    publisher.send(
        *[
            publish(room.version, room.topic(str(number % 3)), str(number).encode(), qos=qos, number=number + 1)
            for number in range(100)
        ]
    )

    received = [subscriber.message() for _ in range(100)]

    for level in "012":
        payloads = [int(last.payload) for last in received if last.topic == room.topic(level)]
        assert payloads == sorted(payloads)


@clauses(v311="4.6.0-6", v5="4.6.0-5")
def test_messages_that_waited_come_in_their_order_before_newer_ones(room: Room) -> None:
    first = room.kept()
    first.subscribe((room.topic(), 1))
    first.leave()
    publisher = room.client()
    for number in range(20):
        publisher.publish(room.topic(), str(number).encode(), 1)

    back = room.kept()
    publisher.publish(room.topic(), b"20", 1)

    assert [int(back.message().payload) for _ in range(21)] == list(range(21))
