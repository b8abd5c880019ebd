"""Section 3.2 and what a CONNECT says about the client: what either side may expect of the other."""

import pytest

from tests.conformance.mqtt.clauses import clauses
from tests.conformance.mqtt.conftest import Room
from tests.conformance.mqtt.wire import (
    DISCONNECT,
    PUBACK,
    SUBACK,
    UNSUBACK,
    Will,
    connect,
    publish,
    subscribe,
    unsubscribe,
)


@clauses(v5="3.1.2-24 3.1.2-25")
def test_a_message_too_large_for_the_client_counts_as_sent(room: Room) -> None:
    subscriber = room.subscriber((room.topic(), 1), said=((0x27, 100),))
    publisher = room.client()
    publisher.publish(room.topic(), b"x" * 200, 1)
    publisher.publish(room.topic(), b"x" * 200, 0)
    publisher.publish(room.topic(), b"small", 1)

    assert subscriber.message().payload == b"small"
    subscriber.expect_nothing()


@clauses(v5="3.1.2-24 3.1.2-28")
def test_connack_is_no_larger_than_the_client_takes(room: Room) -> None:
    whole, least = room.client(said=((0x19, 1),)).connack, room.client().connack
    assert whole is not None
    assert least is not None
    assert whole.values(0x1A)
    most = len(least.body) + 2

    small = room.client(said=((0x19, 1), (0x27, most))).connack

    assert small is not None
    assert small.values(0x1A) == []
    assert len(small.body) + 2 <= most


@clauses(v5="3.1.2-24")
def test_a_client_that_takes_no_packet_as_large_as_its_connack_is_refused(room: Room) -> None:
    least = room.client().connack
    assert least is not None
    most = len(least.body) + 1

    assert room.refused(connect(5, room.name(), said=((0x27, most),))) == [0x95]
    assert room.refused(connect(5, room.name(), said=((0x27, 4),))) == []  # not even the refusal fits
    assert room.client(room.name(), clean=False).connack.session_present == 0  # type: ignore[union-attr]


@clauses(v5="3.1.2-26 3.1.2-27 3.3.2-8 3.3.2-10 3.3.2-11")
@pytest.mark.parametrize("most", [None, 0, 1, 2])
def test_the_server_uses_no_more_topic_aliases_than_the_client_allows(room: Room, most: int | None) -> None:
    said = () if most is None else ((0x22, most),)
    subscriber = room.subscriber((room.topic("#"), 0), said=said)
    publisher = room.client()
    known: dict[object, str] = {}
    topics = [room.topic(str(number)) for number in range(4)]
    for topic in topics * 2:
        publisher.publish(topic, b"")

    for topic in topics * 2:
        received = subscriber.message()
        for alias in received.values(0x23):
            assert isinstance(alias, int)
            assert 1 <= alias <= (most or 0)
            known.setdefault(alias, received.topic)
            if received.topic:
                known[alias] = received.topic
        assert (received.topic or known[received.values(0x23)[0]]) == topic


@clauses(v5="3.1.2-28")
@pytest.mark.parametrize("asked", [None, 0, 1])
def test_response_information_is_for_those_who_ask(room: Room, asked: int | None) -> None:
    client = room.client(said=() if asked is None else ((0x19, asked),))

    assert client.connack is not None
    assert (client.connack.values(0x1A) != []) <= (asked == 1)


@clauses(v5="3.1.2-29")
def test_reasons_are_not_explained_to_those_who_do_not_want_it(room: Room) -> None:
    for wants in (0, 1):
        client = room.client(said=((0x17, wants),))
        client.send(publish(5, "$SYS/broker/load", qos=1, number=1))
        puback = client.expect(PUBACK)
        assert puback.reason >= 0x80
        assert bool(puback.said) <= bool(wants)
        client.send(publish(5, "$SYS/broker/load", qos=2, number=2))
        assert bool(client.receive().said) <= bool(wants)
        client.send(subscribe(5, 3, ("$queue/", 1)))
        suback = client.expect(SUBACK)
        assert suback.reason >= 0x80
        assert bool(suback.said) <= bool(wants)
        client.send(unsubscribe(5, 4, "$queue/"))
        assert bool(client.expect(UNSUBACK).said) <= bool(wants)


@clauses(v5="3.2.2-9 3.2.2-10 3.2.2-11 3.2.2-12 3.2.2-13 3.2.2-14")
def test_every_qos_and_retained_messages_are_there_and_connack_says_nothing_else(room: Room) -> None:
    subscriber = room.client()
    assert subscriber.subscribe((room.topic("#"), 2)).reasons == [2]

    publisher = room.client(will=Will(room.topic("will"), b"will", 2, retain=True))

    assert publisher.connack is not None
    assert (publisher.connack.values(0x24), publisher.connack.values(0x25)) == ([], [])
    publisher.publish(room.topic("1"), b"1", 2, retain=True)
    publisher.cut()
    assert [(last.payload, last.qos) for last in (subscriber.message(), subscriber.message())] == [
        (b"1", 2),
        (b"will", 2),
    ]
    late = room.subscriber((room.topic("#"), 2))
    assert sorted(last.payload for last in (late.message(), late.message())) == [b"1", b"will"]


@clauses(v5="3.2.2-15")
def test_a_packet_is_as_large_as_connack_allows_and_no_larger(narrow: Room) -> None:
    client = narrow.client()
    assert client.connack is not None
    (most,) = client.connack.values(0x27)
    assert isinstance(most, int)
    around = len(publish(5, narrow.topic(), bytes(most // 2), qos=1, number=1)) - most // 2

    client.send(publish(5, narrow.topic(), bytes(most - around), qos=1, number=1))
    assert client.expect(PUBACK).number == 1
    client.send(publish(5, narrow.topic(), bytes(most - around + 1), qos=1, number=2))

    assert [(last.kind, last.reason) for last in client.expect_end()] == [(DISCONNECT, 0x95)]


@clauses(v5="3.2.2-1")
def test_the_flags_of_connack_are_the_session_only(room: Room) -> None:
    room.kept()

    again = room.kept()

    assert again.connack is not None
    assert again.connack.body[0] == 1


@clauses(v5="3.2.2-19 3.2.2-20 3.14.2-3 3.14.2-4")
def test_explanations_are_left_out_where_they_would_not_fit(room: Room) -> None:
    client = room.stranger()
    client.send(connect(5, room.name(), said=((0x27, 40), (0x17, 1)), user="guest", password=b"wrong"))
    connack = client.expect_end()[0]
    assert connack.reason == 0x86
    assert len(connack.body) + 2 <= 40

    ended = room.client(said=((0x27, 30),))
    ended.send(b"\x00\x00")
    last = ended.expect_end()[-1]
    assert (last.kind, last.reason) == (DISCONNECT, 0x82)
    assert len(last.body) + 2 <= 30
