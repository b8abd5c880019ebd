"""Messages of subscribers: their properties, retained messages, wills, shared subscriptions."""

import pytest

from headrace.config.settings import MqttSettings
from headrace.core.pipeline import AT_ONCE
from headrace.core.queue.definition import QueueDefinition
from tests.devices import DISCONNECT, PINGRESP, PUBACK, PUBLISH, SUBACK, UNSUBACK, Field, packet, text
from tests.unit.protocols.mqtt.test_messages import PERSISTENT, kept


def test_properties_are_passed_on() -> None:
    field = Field()
    reader = field.device("r")
    reader.subscribe(("a", 1), said={0x0B: 5})
    said = {0x01: 1, 0x03: "text/plain", 0x08: "answers", 0x09: b"\x00\x01", 0x26: [("k", "v"), ("k", "w")]}
    field.device("w").publish("a", "x", said=said)
    [message] = reader.messages()
    assert message.said == {0x01: 1, 0x03: "text/plain", 0x08: "answers", 0x09: b"\x00\x01", 0x0B: [5]}
    assert message.user == [("k", "v"), ("k", "w")]


def test_all_identifiers_of_matching_subscriptions_are_told() -> None:
    field = Field()
    for reader in (field.device("r"), kept(field, "k")):
        reader.subscribe(("a/+", 1), said={0x0B: 268_435_455})
        reader.subscribe(("a/#", 1), said={0x0B: 2})
        field.device("w").publish("a/b", "x", 1)
        assert [one.said[0x0B] for one in reader.messages()] == [[2, 268_435_455]]


def test_the_expiry_of_a_message_runs_down() -> None:
    field = Field()
    kept(field).subscribe(("a", 1))
    kept(field).lose()
    field.device("w").publish("a", "x", 1, said={0x02: 10})
    field.device("w").publish("a", "gone", 1, said={0x02: 3})
    field.advance(4)
    assert [(one.payload, one.said[0x02]) for one in kept(field).more] == [(b"x", 6)]


def test_topic_aliases_of_the_client_are_understood() -> None:
    field = Field()
    reader, writer = field.device("r"), field.device("w")
    reader.subscribe("long/topic")
    writer.publish("long/topic", "1", said={0x23: 1})
    writer.publish("", "2", said={0x23: 1})
    assert [(one.topic, one.payload) for one in reader.messages()] == [("long/topic", b"1"), ("long/topic", b"2")]
    writer.publish("", "3", said={0x23: 9})
    assert writer.take()[-1].reason == 0x82


def test_clients_that_take_aliases_get_them() -> None:
    field = Field()
    reader = field.device("r", said={0x22: 1})
    reader.subscribe(("#", 1))
    writer = field.device("w")
    for topic in ("a", "a", "b", "b"):
        writer.publish(topic, "x")
    writer.publish("a", "sure", 1)
    found = [(one.topic, one.said.get(0x23)) for one in reader.messages()]
    assert found == [("a", 1), ("", 1), ("b", None), ("b", None), ("a", None)]


def test_an_alias_is_not_used_before_the_client_knows_it() -> None:
    field = Field()
    reader = field.device("r", said={0x22: 5, 0x27: 100})
    reader.subscribe(("#", 0))
    writer = field.device("w")
    writer.publish("a", "x" * 200)
    reader.connection.hold_output(True)
    writer.publish("b", "missed")
    reader.connection.hold_output(False)
    writer.publish("a", "1")
    writer.publish("b", "2")
    assert [one.topic for one in reader.messages()] == ["a", "b"]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("session", [{}, PERSISTENT])
def test_a_new_subscription_begins_with_what_is_retained(qos: int, session: dict[int, int]) -> None:
    field = Field()
    writer = field.device("w")
    for number in range(300):
        writer.publish(f"r/{number}", str(number), qos, retain=True)
    reader = field.device("r", clean=False, said={0x21: 20, **session})
    reader.subscribe(("r/#", 2))
    messages = reader.messages()
    assert sorted([int(one.payload) for one in messages]) == list(range(300))
    assert all(one.retain for one in messages)
    assert {one.qos for one in messages} == {qos}


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("session", [{}, PERSISTENT])
def test_very_many_retained_messages_come_in_parts_with_other_work_between(qos: int, session: dict[int, int]) -> None:
    field = Field()
    writer = field.device("w")
    for number in range(1000):
        writer.publish(f"r/{number % 7}/{number}", str(number), qos, retain=True)
    reader = field.device("r", clean=False, said=session)

    reader.connection.feed(packet(0x82, b"\x00\x01\x00", text("r/#"), bytes((qos,))))
    first = sum(one.kind == PUBLISH for one in reader.take())
    kept = field.broker.sessions.get("r")
    stored = kept.queue.log.next_offset if kept is not None and kept.queue is not None else 0
    field.run()

    assert first + stored <= AT_ONCE
    assert first + len(reader.messages()) == 1000


def test_a_packet_with_very_many_topic_filters_is_handled_in_parts_and_later_packets_wait() -> None:
    field = Field()
    device = field.device("r")
    session = field.broker.sessions.get("r")
    assert session is not None
    topics = [f"a/{number}" for number in range(1000)]
    filters = b"".join([text(topic) + b"\x01" for topic in topics])
    hello = packet(0x30, text("a/999"), b"\x00", b"hello")

    device.connection.feed(packet(0x82, b"\x00\x01\x00", filters) + packet(0xC0) + hello)
    assert (device.line.is_paused, len(session.subscriptions)) == (True, AT_ONCE)
    device.connection.feed(packet(0xA2, b"\x00\x02\x00", *map(text, topics)) + packet(0xC0))
    field.run()

    found = device.take()
    assert [one.kind for one in found] == [SUBACK, PINGRESP, PUBLISH, UNSUBACK, PINGRESP]
    assert found[0].reasons == [1] * 1000
    assert found[3].reasons == [0] * 1000
    assert (device.line.is_paused, len(session.subscriptions)) == (False, 0)


def test_a_client_that_leaves_while_its_topic_filters_are_taken_gets_no_more_of_them() -> None:
    field = Field()
    device = kept(field, "r")
    filters = b"".join([text(f"a/{number}") + b"\x01" for number in range(1000)])

    device.connection.feed(packet(0x82, b"\x00\x01\x00", filters))
    device.lose()
    field.run()

    session = field.broker.sessions.get("r")
    assert session is not None
    assert len(session.subscriptions) <= AT_ONCE
    assert [one.kind for one in device.take()] == []
    assert kept(field, "r").subscribe("b") == [1]


def test_an_invalid_filter_behind_very_many_ends_the_connection() -> None:
    field = Field()
    device = field.device("r")
    filters = b"".join([text(f"a/{number}") + b"\x01" for number in range(1000)])

    device.connection.feed(packet(0x82, b"\x00\x01\x00", filters, text("$share/g/a"), b"\x05") + packet(0xC0))
    field.run()

    assert [one.kind for one in device.take()] == [DISCONNECT]
    assert device.line.is_closed
    assert field.device("other").subscribe("b") == [1]


def test_an_unsubscribed_topic_filter_gets_no_more_retained_messages() -> None:
    field = Field()
    writer = field.device("w")
    for number in range(1000):
        writer.publish(f"r/{number}", str(number), retain=True)
    reader = field.device("r")

    reader.connection.feed(packet(0x82, b"\x00\x01\x00", text("r/#"), b"\x00"))
    reader.connection.feed(packet(0xA2, b"\x00\x02\x00", text("r/#")))
    field.run()

    assert 0 < len(reader.messages()) <= AT_ONCE


def test_retained_messages_survive_a_restart_and_can_be_cleared() -> None:
    field = Field()
    field.device("w").publish("r", "x", 1, retain=True)
    field = field.restart()
    reader = field.device("r")
    reader.subscribe("r")
    assert reader.texts() == ["x"]
    field.device("w").publish("r", "", 1, retain=True)
    other = field.device("o")
    other.subscribe("r")
    assert other.texts() == []
    assert reader.texts() == [""]


@pytest.mark.parametrize(("options", "first", "second"), [(0x00, 1, 1), (0x10, 1, 0), (0x20, 0, 0)])
def test_retain_handling(options: int, first: int, second: int) -> None:
    field = Field()
    field.device("w").publish("r", "x", retain=True)
    reader = field.device("r")
    reader.subscribe(("r", options))
    assert len(reader.messages()) == first
    reader.subscribe(("r", options))
    assert len(reader.messages()) == second


def test_retain_as_published_and_no_local() -> None:
    field = Field()
    reader = field.device("r")
    reader.subscribe(("a", 0x08), ("b", 0x00), ("c", 0x04))
    for topic in ("a", "b", "c"):
        reader.publish(topic, topic, retain=True)
    assert [(one.topic, one.retain) for one in reader.messages()] == [("a", True), ("b", False)]


def test_a_client_that_does_not_keep_up_gets_retained_messages_when_it_does() -> None:
    field = Field()
    writer = field.device("w")
    for number in range(10):
        writer.publish(f"r/{number}", str(number), retain=True)
    reader = field.device("r")
    reader.connection.hold_output(True)
    for _ in range(3):
        reader.subscribe("r/#")
    assert reader.messages() == []
    reader.connection.hold_output(False)
    assert sorted(reader.texts()) == [str(number) for number in range(10)]


def test_a_session_has_no_more_subscriptions_than_it_may() -> None:
    reader = Field(limits=MqttSettings(max_subscriptions=2)).device()
    assert reader.subscribe("a", "b", "c", "a") == [1, 1, 0x97, 1]
    reader.unsubscribe("a")
    assert reader.subscribe("c") == [1]


def test_a_will_is_published_with_its_properties() -> None:
    field = Field()
    watcher = field.device("w")
    watcher.subscribe(("wills", 2))
    about = {0x03: "text/plain", 0x02: 60, 0x26: [("k", "v")]}
    field.device("c", will=("wills", "gone", 2, False, about)).lose()
    [message] = watcher.messages()
    assert (message.payload, message.qos, message.said[0x03], message.user) == (b"gone", 2, "text/plain", [("k", "v")])
    assert message.said[0x02] == 60


@pytest.mark.parametrize(("version", "reason", "comes"), [(5, 0, False), (5, 4, True), (4, 0, False)])
def test_a_client_that_leaves_takes_its_will_with_it(version: int, reason: int, comes: bool) -> None:
    field = Field()
    watcher = field.device("w")
    watcher.subscribe("wills")
    field.device("c", version, will=("wills", "gone", 0, False, None)).disconnect(reason)
    assert watcher.texts() == (["gone"] if comes else [])


def test_a_will_that_may_not_be_published_is_refused_at_once() -> None:
    device = Field().device(will=("$SYS/x", "gone", 0, False, None))
    assert device.connack is not None
    assert device.connack.reason in (0x87, 0x90)


def test_shared_subscriptions_take_turns_and_give_back() -> None:
    field = Field()
    one, other = field.device("1"), field.device("2", 4)
    assert one.subscribe(("$share/g/a", 1)) == [1]
    assert other.subscribe(("$share/g/a", 1)) == [1]
    writer = field.device("w")
    for number in range(4):
        writer.publish("a", str(number), 1)
    held = [packet.payload for packet in one.messages(acknowledge=False)]
    assert len(held) == 2
    assert len(other.texts()) == 2
    one.lose()
    assert [text.encode() for text in other.texts()] == held


def test_what_one_of_those_who_share_gets_exactly_once_is_its_alone() -> None:
    field = Field()
    one = kept(field, "1")
    other = field.device("2")
    assert one.subscribe(("$share/g/a", 2)) == [2]
    assert other.subscribe(("$share/g/a", 2)) == [2]
    writer = field.device("w")
    for number in range(4):
        writer.publish("a", str(number), 2)
    mine = one.messages(acknowledge=False)
    others = other.messages(acknowledge=False)
    assert sorted([int(message.payload) for message in mine + others]) == [0, 1, 2, 3]
    assert {message.qos for message in mine + others} == {2}
    assert len(mine) == 2
    other.lose()
    one.lose()
    third = field.device("3")
    third.subscribe(("$share/g/a", 2))
    assert third.messages() == []
    back = kept(field.restart(), "1")
    assert [(message.number, message.dup) for message in back.more] == [(message.number, True) for message in mine]


def test_a_queue_that_captures_topics_confirms_when_it_has_them() -> None:
    field = Field()
    field.broker.declare(QueueDefinition("all", topics=("s/#",), capture=True))
    device = field.device()
    device.connection.feed(b"\x32\x08\x00\x03s/1\x00\x01\x00")
    assert device.take() == []
    field.run()
    assert device.take_one(PUBACK).reason == 0
    assert [one.kind for one in device.take() if one.kind == PUBLISH] == []


def test_the_topic_filters_of_a_session_have_a_size_in_all() -> None:
    field = Field(limits=MqttSettings(max_subscriptions=1000))
    reader = kept(field, "r")
    long = ["x" * 60_000 + f"/{number}" for number in range(6)]

    assert reader.subscribe(*long) == [1, 1, 1, 1, 0x97, 0x97]
    assert reader.subscribe(long[0], "short") == [1, 1]
    reader.unsubscribe(long[0], long[1])
    assert reader.subscribe(long[4], long[5], long[0]) == [1, 1, 0x97]
    again = kept(field.restart(), "r")
    assert again.subscribe(long[1]) == [0x97]
