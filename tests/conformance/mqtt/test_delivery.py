"""Chapter 4: how surely messages are delivered, and what is sent again."""

import pytest

from tests.conformance.mqtt.clauses import clauses
from tests.conformance.mqtt.conftest import Room
from tests.conformance.mqtt.wire import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, answer, publish


@clauses(v311="4.3.1-1", v5="4.3.1-1")
def test_at_qos_0_a_message_is_sent_once(room: Room) -> None:
    first = room.kept()
    first.subscribe((room.topic(), 0))
    room.client().publish(room.topic(), b"1", 0)
    received = first.expect(PUBLISH)
    assert (received.qos, received.dup) == (0, False)
    first.cut()

    room.kept().expect_nothing()


@clauses(v311="7.1.1-1", v5="4.2.0-1")
def test_packets_may_come_in_any_pieces(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 1))
    publisher = room.client()

    for octet in publish(room.version, room.topic(), b"piece by piece", qos=1, number=1):
        publisher.send(bytes((octet,)))

    assert publisher.expect(PUBACK).number == 1
    assert subscriber.message().payload == b"piece by piece"


@clauses(v311="4.3.2-1 4.5.0-2", v5="4.3.2-1 4.3.2-2 4.3.2-3 4.5.0-2")
def test_a_message_at_qos_1_is_unacknowledged_until_puback(room: Room) -> None:
    first = room.kept()
    first.subscribe((room.topic(), 1))
    publisher = room.client()
    for payload in (b"1", b"2"):
        publisher.publish(room.topic(), payload, 1)
    held = [first.expect(PUBLISH), first.expect(PUBLISH)]
    assert [(last.qos, last.dup) for last in held] == [(1, False)] * 2
    first.send(answer(PUBACK, held[0].number))
    first.expect_nothing()
    first.cut()

    second = room.kept()

    again = second.message()
    assert (again.payload, again.number, again.dup) == (b"2", held[1].number, True)
    second.expect_nothing()
    second.cut()
    room.kept().expect_nothing()


@clauses(v311="4.3.2-2", v5="4.3.2-5")
@pytest.mark.parametrize("dup", [False, True])
def test_after_puback_the_same_packet_identifier_is_a_new_message(room: Room, dup: bool) -> None:
    subscriber = room.subscriber((room.topic(), 1))
    publisher = room.client()

    for again in (False, dup):
        publisher.send(publish(room.version, room.topic(), b"x", qos=1, number=5, dup=again))
        assert publisher.expect(PUBACK).number == 5

    assert [subscriber.message().payload, subscriber.message().payload] == [b"x", b"x"]


@clauses(v311="4.3.3-1", v5="4.3.3-2 4.3.3-3 4.3.3-4 4.3.3-5")
def test_a_message_at_qos_2_is_released_when_it_was_received(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 2))
    room.client().publish(room.topic(), b"1", 2)
    received = subscriber.expect(PUBLISH)
    assert (received.qos, received.dup) == (2, False)
    subscriber.expect_nothing()

    subscriber.send(answer(PUBREC, received.number))

    assert subscriber.expect(PUBREL).number == received.number
    subscriber.send(answer(PUBCOMP, received.number))
    subscriber.expect_nothing()


@clauses(v311="4.3.3-1 4.4.0-1", v5="4.3.3-5 4.3.3-6 4.4.0-1")
def test_after_pubrel_a_message_is_not_sent_again_but_pubrel_is(room: Room) -> None:
    first = room.kept()
    first.subscribe((room.topic(), 2))
    room.client().publish(room.topic(), b"1", 2)
    received = first.expect(PUBLISH)
    first.send(answer(PUBREC, received.number))
    first.expect(PUBREL)
    first.cut()

    second = room.kept()

    assert second.expect(PUBREL).number == received.number
    second.send(answer(PUBCOMP, received.number))
    second.expect_nothing()
    second.cut()
    room.kept().expect_nothing()


@clauses(v311="2.3.1-4 4.4.0-1 4.6.0-1", v5="4.4.0-1")
def test_what_was_not_acknowledged_is_sent_again_with_its_packet_identifier_in_order(room: Room) -> None:
    first = room.kept()
    first.subscribe((room.topic(), 2))
    publisher = room.client()
    for number in range(6):
        publisher.publish(room.topic(), str(number).encode(), 1 + number % 2)
    before = [first.expect(PUBLISH) for _ in range(6)]
    first.cut()

    second = room.kept()

    again = [second.expect(PUBLISH) for _ in range(6)]
    assert [(last.number, last.payload, last.qos) for last in again] == [
        (last.number, last.payload, last.qos) for last in before
    ]
    assert all(last.dup for last in again)


@clauses(v311="4.4.0-1", v5="4.4.0-1")
def test_nothing_is_sent_again_on_a_connection_that_lives(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 1))
    room.client().publish(room.topic(), b"1", 1)
    subscriber.expect(PUBLISH)
    room.pass_time()

    subscriber.expect_nothing()


@clauses(v311="2.3.1-2 4.3.3-2", v5="2.2.1-3 4.3.3-8 4.3.3-10 4.3.3-11")
def test_a_message_at_qos_2_that_comes_again_is_delivered_once(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 2))
    publisher = room.client()

    publisher.send(publish(room.version, room.topic(), b"1", qos=2, number=5))
    assert publisher.expect(PUBREC).number == 5
    for dup in (True, False):
        publisher.send(publish(room.version, room.topic(), b"1", qos=2, number=5, dup=dup))
        assert publisher.expect(PUBREC).number == 5
    publisher.send(answer(PUBREL, 5))
    assert publisher.expect(PUBCOMP).number == 5

    assert subscriber.message().payload == b"1"
    subscriber.expect_nothing()


@clauses(v311="4.3.3-2", v5="4.3.3-10")
def test_a_message_at_qos_2_that_comes_again_on_another_connection_is_delivered_once(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 2))
    first = room.kept(room.name("publisher"))
    first.send(publish(room.version, room.topic(), b"1", qos=2, number=5))
    first.expect(PUBREC)
    first.cut()

    second = room.kept(room.name("publisher"))
    second.send(publish(room.version, room.topic(), b"1", qos=2, number=5, dup=True))
    assert second.expect(PUBREC).number == 5
    second.send(answer(PUBREL, 5))
    assert second.expect(PUBCOMP).number == 5

    assert subscriber.message().payload == b"1"
    subscriber.expect_nothing()


@clauses(v311="4.3.3-2", v5="4.3.3-12")
@pytest.mark.parametrize("dup", [False, True])
def test_after_pubcomp_the_same_packet_identifier_is_a_new_message(room: Room, dup: bool) -> None:
    subscriber = room.subscriber((room.topic(), 2))
    publisher = room.client()

    for payload, again in ((b"1", False), (b"2", dup)):
        publisher.send(publish(room.version, room.topic(), payload, qos=2, number=5, dup=again))
        publisher.expect(PUBREC)
        publisher.send(answer(PUBREL, 5))
        publisher.expect(PUBCOMP)

    assert [subscriber.message().payload, subscriber.message().payload] == [b"1", b"2"]


@clauses(v5="4.3.3-9")
def test_after_a_refusal_the_same_packet_identifier_is_a_new_message(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 2))
    publisher = room.client()
    publisher.send(publish(5, "$SYS/forged", b"no", qos=2, number=5))
    assert publisher.expect(PUBREC).reason >= 0x80

    publisher.send(publish(5, room.topic(), b"yes", qos=2, number=5))

    assert publisher.expect(PUBREC).reason < 0x80
    assert subscriber.message().payload == b"yes"


@clauses(v5="4.3.3-7 4.3.3-13")
def test_a_message_that_was_sent_does_not_expire_any_more(room: Room) -> None:
    first = room.kept()
    first.subscribe((room.topic(), 2))
    publisher = room.client()
    publisher.send(publish(5, room.topic(), b"1", qos=2, number=5, said=[(0x02, 1)]))
    publisher.expect(PUBREC)
    sent = first.expect(PUBLISH)
    room.pass_time()

    first.send(answer(PUBREC, sent.number))
    assert first.expect(PUBREL).number == sent.number
    publisher.send(answer(PUBREL, 5))
    assert publisher.expect(PUBCOMP).number == 5


@clauses(v311="2.3.1-3")
def test_a_message_that_comes_again_under_another_packet_identifier_is_another_message(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 2))
    first = room.kept(room.name("publisher"))
    first.send(publish(4, room.topic(), b"1", qos=2, number=5))
    first.expect(PUBREC)
    first.cut()

    second = room.kept(room.name("publisher"))
    second.send(publish(4, room.topic(), b"1", qos=2, number=6, dup=True))

    assert second.expect(PUBREC).number == 6
    assert [subscriber.message().payload, subscriber.message().payload] == [b"1", b"1"]
