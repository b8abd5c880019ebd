"""Chapter 4: how surely messages are delivered, what is sent again, and in which order."""

import pytest

from tests.conformance.mqtt.clauses import clauses
from tests.conformance.mqtt.conftest import Room
from tests.conformance.mqtt.wire import (
    GOODBYE,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    answer,
    publish,
)


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
    timer = room.client(keep_alive=1)
    timer.expect_end()  # one and a half seconds later

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
    timer = room.client(keep_alive=1)
    timer.expect_end()  # one and a half seconds later

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
    first.send(GOODBYE)
    first.expect_end()
    publisher = room.client()
    for number in range(20):
        publisher.publish(room.topic(), str(number).encode(), 1)

    back = room.kept()
    publisher.publish(room.topic(), b"20", 1)

    assert [int(back.message().payload) for _ in range(21)] == list(range(21))


# -- shared subscriptions ----------------------------------------------------------------------------------------------


@clauses(v5="4.8.2-3")
def test_members_of_a_shared_subscription_get_messages_at_their_own_qos(room: Room) -> None:
    members = [room.subscriber((f"$share/g/{room.topic()}", qos)) for qos in (0, 1)]
    publisher = room.client()
    for number in range(20):
        publisher.publish(room.topic(), str(number).encode(), 1)

    received: list[bytes] = []
    for qos, member in enumerate(members):
        member.send(b"\xc0\x00")
        while (last := member.receive()).kind == PUBLISH:
            assert last.qos == qos
            received.append(last.payload)
            if qos:
                member.send(answer(PUBACK, last.number))
    assert sorted(int(payload) for payload in received) == list(range(20))


@clauses(v5="4.8.2-3")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_shared_subscription_keeps_to_the_qos_it_was_granted(room: Room, qos: int) -> None:
    member = room.client()

    suback = member.subscribe((f"$share/g/{room.topic()}", qos))
    room.client().publish(room.topic(), b"1", 2)

    assert suback.reason == qos
    assert member.message().qos == qos


@clauses(v5="4.8.2-4")
def test_a_message_of_qos_2_that_a_member_has_begun_is_completed_with_that_member(room: Room) -> None:
    shared = f"$share/g/{room.topic()}"
    member = room.kept()
    member.subscribe((shared, 2))
    room.client().publish(room.topic(), b"1", 2)
    first = member.expect(PUBLISH)
    member.cut()
    other = room.subscriber((shared, 2))

    again = room.kept().message()

    assert (again.payload, again.number, again.dup) == (b"1", first.number, True)
    other.expect_nothing()


@clauses(v5="4.8.2-5")
def test_a_message_of_qos_2_whose_member_ends_goes_to_nobody_else(room: Room) -> None:
    shared = f"$share/g/{room.topic()}"
    member, other = room.subscriber((shared, 2)), room.client()
    room.client().publish(room.topic(), b"1", 2)
    assert member.expect(PUBLISH).qos == 2

    other.subscribe((shared, 2))
    member.cut()

    other.expect_nothing()


@clauses(v5="4.8.2-6")
def test_a_message_that_a_member_refuses_goes_to_nobody_else(room: Room) -> None:
    shared = f"$share/g/{room.topic()}"
    members = [room.subscriber((shared, 1)), room.subscriber((shared, 1))]
    room.client().publish(room.topic(), b"1", 1)

    got = 0
    for member in members:
        member.send(b"\xc0\x00")
        received = member.receive()
        if received.kind == PUBLISH:
            got += 1
            member.send(answer(PUBACK, received.number, 0x83))
            member.receive()  # the answer to the ping

    assert got == 1
    for member in members:
        member.expect_nothing()
