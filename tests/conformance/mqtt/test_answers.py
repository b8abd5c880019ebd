"""Sections 3.3.4 to 3.7: how messages are answered, what overlapping subscriptions get, flow control."""

import pytest

from tests.conformance.mqtt.clauses import clauses
from tests.conformance.mqtt.clients import Client
from tests.conformance.mqtt.conftest import Room
from tests.conformance.mqtt.wire import (
    CONNACK,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    answer,
    connect,
    packet,
    publish,
)

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

    client.ends_with(0x82)


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

    client.ends_with(0x81)


@clauses(v5="4.3.3-4 4.4.0-2")
def test_a_refusal_of_an_unknown_message_has_no_pubrel(room: Room) -> None:
    client = room.client()

    client.send(answer(PUBREC, 4, 0x83))

    client.expect_nothing()


@clauses(v5="4.3.3-4 4.3.3-9")
def test_a_message_that_is_refused_behind_its_pubrec_has_no_second_pubrel_and_leaves_room(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 2), said=((0x21, 1),))
    publisher = room.client()
    for payload in (b"1", b"2"):
        publisher.publish(room.topic(), payload, 2)
    number = subscriber.expect(PUBLISH).number
    subscriber.send(answer(PUBREC, number))
    subscriber.expect(PUBREL)

    subscriber.send(answer(PUBREC, number, 0x83))

    assert subscriber.expect(PUBLISH).payload == b"2"
    subscriber.expect_nothing()


@clauses(v311="4.8.0-1")
@pytest.mark.parametrize(("qos", "kind"), [(1, PUBREC), (1, PUBCOMP), (2, PUBACK), (2, PUBCOMP)])
def test_an_acknowledgement_of_another_qos_ends_the_connection(room: Room, qos: int, kind: int) -> None:
    first = room.kept()
    first.subscribe((room.topic(), qos))
    room.client().publish(room.topic(), b"1", qos)

    first.send(answer(kind, first.expect(PUBLISH).number))

    first.ends_with()
    assert room.kept().message().payload == b"1"


@clauses(v311="4.8.0-1")
def test_a_puback_behind_pubrec_ends_the_connection(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 2))
    room.client().publish(room.topic(), b"1", 2)
    number = subscriber.expect(PUBLISH).number
    subscriber.send(answer(PUBREC, number))
    subscriber.expect(PUBREL)

    subscriber.send(answer(PUBACK, number))

    subscriber.ends_with()


@clauses(v311="4.8.0-1", v5="4.13.1-1")
@pytest.mark.parametrize("kind", [PUBACK, PUBCOMP])
def test_an_acknowledgement_of_an_unknown_message_is_passed_over(room: Room, kind: int) -> None:
    client = room.client()

    client.send(answer(kind, 9))

    client.expect_nothing()


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

    client.ends_with(0x82)


# -- flow control ------------------------------------------------------------------------------------------------------


@clauses(v5="3.3.4-7")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_that_sends_more_than_the_receive_maximum_is_ended(narrow: Room, qos: int) -> None:
    client, most = _filled(narrow)

    client.send(publish(5, narrow.topic(), qos=qos, number=most + 1))

    client.ends_with(0x93)


@clauses(v5="3.3.4-8")
def test_other_packets_of_a_client_that_has_sent_the_receive_maximum_are_taken(narrow: Room) -> None:
    client, most = _filled(narrow)

    client.expect_nothing()
    assert client.subscribe((narrow.topic("x"), 1)).reasons == [1]
    client.send(publish(5, narrow.topic("x"), b"at QoS 0"))
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
