"""Section 4.8.2: shared subscriptions."""

import pytest

from tests.conformance.mqtt.clauses import clauses
from tests.conformance.mqtt.conftest import Room
from tests.conformance.mqtt.wire import PUBACK, PUBLISH, answer


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
