"""Section 3.1.2: wills, from CONNECT until they are published or taken back."""

import pytest

from tests.conformance.mqtt.clauses import clauses
from tests.conformance.mqtt.conftest import Room
from tests.conformance.mqtt.wire import Will, connect, packet


@clauses(v311="3.1.2-8 3.1.2-9", v5="3.1.2-7 3.1.2-8 3.1.2-9 3.1.2-12")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_will_is_published_when_the_connection_is_lost(room: Room, qos: int) -> None:
    subscriber = room.subscriber((room.topic("will"), 2))

    room.client(will=Will(room.topic("will"), b"\0\xffgone", qos)).cut()

    received = subscriber.message()
    assert (received.payload, received.qos, received.retain) == (b"\0\xffgone", qos, False)


@clauses(v311="3.1.2-8", v5="3.1.2-8")
def test_a_will_is_published_when_the_client_breaks_the_protocol(room: Room) -> None:
    subscriber = room.subscriber((room.topic("will"), 0))

    room.client(will=Will(room.topic("will"))).send(b"\x00\x00")

    assert subscriber.message().payload == b"will"


@clauses(v311="3.1.2-10 3.14.4-3", v5="3.1.2-10 3.14.4-3")
def test_a_client_that_says_goodbye_leaves_no_will(room: Room) -> None:
    subscriber = room.subscriber((room.topic("will"), 0))
    leaving = room.client(will=Will(room.topic("will")))

    leaving.leave()

    subscriber.expect_nothing()


@clauses(v5="3.1.2-8")
def test_a_goodbye_with_0x04_leaves_the_will(room: Room) -> None:
    subscriber = room.subscriber((room.topic("will"), 0))

    room.client(will=Will(room.topic("will"))).send(packet(0xE0, b"\x04"))

    assert subscriber.message().payload == b"will"


@clauses(v311="3.1.2-9", v5="3.1.2-9")
def test_a_will_flag_without_a_will_is_malformed(room: Room) -> None:
    assert room.refused(connect(room.version, room.name(), flags=0x06)) == room.malformed


@clauses(v311="3.1.2-11 3.1.2-13", v5="3.1.2-11")
@pytest.mark.parametrize("qos", [1, 2, 3])
def test_a_will_qos_without_a_will_is_malformed(room: Room, qos: int) -> None:
    assert room.refused(connect(room.version, room.name(), flags=0x02 | qos << 3)) == room.malformed


@clauses(v311="3.1.2-11", v5="3.1.4-1")
def test_a_will_without_its_flag_is_malformed(room: Room) -> None:
    data = connect(room.version, room.name(), will=Will("a"), flags=0x02)

    assert room.refused(data) == room.malformed


@clauses(v311="3.1.2-12")
def test_without_a_will_nothing_is_published(room: Room) -> None:
    subscriber = room.subscriber(("#", 0))
    leaving = room.client()

    leaving.cut()
    room.client().publish(room.topic("last"), b"")

    while (received := subscriber.message()).topic != room.topic("last"):
        assert not received.topic.startswith(room.topic())


@clauses(v311="3.1.2-14", v5="3.1.2-12")
def test_a_will_qos_of_3_is_malformed(room: Room) -> None:
    data = connect(room.version, room.name(), will=Will("a"), flags=0x1E)

    assert room.refused(data) == room.malformed


@clauses(v311="3.1.2-15", v5="3.1.2-13")
def test_will_retain_without_a_will_is_malformed(room: Room) -> None:
    assert room.refused(connect(room.version, room.name(), flags=0x22)) == room.malformed


@clauses(v311="3.1.2-16 3.1.2-17", v5="3.1.2-14 3.1.2-15")
@pytest.mark.parametrize("retain", [False, True])
def test_a_will_is_retained_if_it_is_to_be(room: Room, retain: bool) -> None:
    subscriber = room.subscriber((room.topic("will"), 1))

    room.client(will=Will(room.topic("will"), b"will", 1, retain)).cut()
    assert not subscriber.message().retain

    late = room.subscriber((room.topic("will"), 1))
    if retain:
        received = late.message()
        assert (received.payload, received.retain) == (b"will", True)
    else:
        late.expect_nothing()


@clauses(v5="3.1.2-8")
def test_a_will_is_sent_when_its_delay_is_over(room: Room) -> None:
    subscriber = room.subscriber((room.topic("will"), 0))

    room.kept(will=Will(room.topic("will"), said=((0x18, 1),))).cut()

    assert subscriber.message().payload == b"will"


@clauses(v5="3.1.2-8 3.1.3-9")
def test_a_will_is_not_sent_for_a_client_that_came_back_before_it_was_due(room: Room) -> None:
    subscriber = room.subscriber((room.topic("will"), 0))
    room.kept(will=Will(room.topic("will"), said=((0x18, 3600),))).cut()
    room.kept().cut()

    room.client(room.name("kept"), clean=True)  # ends the session, and would end the waiting of its will

    subscriber.expect_nothing()


@clauses(v5="3.1.2-8")
def test_a_will_is_sent_when_the_session_ends_before_its_delay(room: Room) -> None:
    subscriber = room.subscriber((room.topic("will"), 0))

    room.client(will=Will(room.topic("will"), said=((0x18, 3600),))).cut()

    assert subscriber.message().payload == b"will"


@clauses(v5="3.1.3-10")
def test_a_will_keeps_its_properties_and_their_order(room: Room) -> None:
    subscriber = room.subscriber((room.topic("will"), 0))
    said = (
        (0x26, ("b", "1")),
        (0x01, 1),
        (0x26, ("a", "2")),
        (0x03, "text/plain"),
        (0x26, ("b", "3")),
        (0x09, b"\xff"),
    )

    room.client(will=Will(room.topic("will"), said=said)).cut()

    received = subscriber.message()
    assert received.values(0x26) == [("b", "1"), ("a", "2"), ("b", "3")]
    assert (received.values(0x01), received.values(0x03), received.values(0x09)) == ([1], ["text/plain"], [b"\xff"])
