"""Messages to and from clients: QoS, order, duplicates, flow, what they carry."""

import pytest

from headrace.config.settings import MqttSettings
from headrace.core.definition import QueueDefinition
from tests.devices import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Device, Field, packet, properties, text

PERSISTENT = {0x11: 3600}


def kept(field: Field, client_id: str = "c", clean: bool = False, **said: int) -> Device:
    return field.device(client_id, clean=clean, said={**PERSISTENT, **{int(key[1:], 16): said[key] for key in said}})


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_arrives_as_it_was_asked_for(version: int, qos: int) -> None:
    field = Field()
    reader, writer = field.device("r", version), field.device("w", version)
    reader.subscribe(("a/+", qos))
    number = writer.publish("a/b", "hello", qos)
    answers = writer.take()
    assert [one.kind for one in answers] == [[], [PUBACK], [PUBREC]][qos]
    if qos == 2:
        writer.answer(PUBREL, number)
        assert writer.take_one(PUBCOMP).number == number
    [message] = reader.messages()
    assert (message.topic, message.payload, message.qos) == ("a/b", b"hello", qos)
    assert (message.retain, message.dup) == (False, False)


def test_answers_come_in_the_order_of_the_messages() -> None:
    field = Field()
    kept(field, "k").subscribe(("stored", 1))
    device = field.device("w")
    sent = b""
    for number, topic in enumerate(["stored", "nowhere", "$SYS/x", "stored"], 1):
        sent += packet(0x32, text(topic), number.to_bytes(2), properties(None), b"x")
    device.send(sent)
    answers = device.take()
    assert [(one.number, one.reason) for one in answers] == [(1, 0), (2, 0x10), (3, 0x87), (4, 0)]


def test_a_message_sent_twice_at_qos_2_arrives_once() -> None:
    field = Field()
    reader, writer = field.device("r"), kept(field, "w")
    reader.subscribe(("a", 2))
    writer.publish("a", "once", 2, number=7)
    writer.publish("a", "once", 2, number=7, dup=True)
    assert [one.kind for one in writer.take()] == [PUBREC, PUBREC]
    writer.lose()
    back = kept(field, "w")
    back.publish("a", "once", 2, number=7, dup=True)
    back.answer(PUBREL, 7)
    assert [one.kind for one in back.take()] == [PUBREC, PUBCOMP]
    back.publish("a", "another", 2, number=7)
    assert reader.texts() == ["once", "another"]


def test_what_was_taken_exactly_once_is_known_after_a_restart() -> None:
    field = Field()
    kept(field, "r").subscribe(("a", 2))
    writer = kept(field, "w")
    writer.publish("a", "once", 2, number=7)
    field = field.restart()
    back = kept(field, "w")
    assert back.connack is not None
    assert back.connack.present
    back.publish("a", "once", 2, number=7, dup=True)
    back.answer(PUBREL, 7)
    reader = kept(field, "r")
    assert [one.payload for one in reader.more] == [b"once"]


def test_a_message_that_was_refused_while_its_client_was_gone_is_not_taken_for_a_duplicate() -> None:
    field = Field()
    field.broker.declare(QueueDefinition("q", max_length=1, overflow="reject-publish"))
    field.device("p").publish("$queue/q", "full", 1)
    writer = kept(field, "w")
    writer.connection.feed(packet(0x34, text("$queue/q"), b"\x00\x07", properties(None), b"late"))
    writer.lose()
    assert field.broker.purge("q") == 1
    field.run()

    back = kept(field, "w")
    back.publish("$queue/q", "late", 2, number=7, dup=True)

    assert back.take_one(PUBREC).reason == 0
    assert field.broker.queue("q").messages == 1


def test_a_release_of_nothing_is_answered() -> None:
    device = Field().device()
    device.answer(PUBREL, 9)
    answer = device.take_one(PUBCOMP)
    assert (answer.number, answer.reason) == (9, 0x92)


# -- sessions --------------------------------------------------------------------------------------------------------


def test_unacknowledged_messages_come_again_with_the_same_identifier_also_after_a_restart() -> None:
    field = Field()
    reader = kept(field)
    reader.subscribe(("a", 2))
    writer = field.device("w")
    writer.publish("a", "1", 1)
    writer.publish("a", "2", 2)
    first = reader.messages(acknowledge=False)
    reader.lose()
    again = kept(field).more
    field = field.restart()
    after = kept(field).more

    assert [(one.qos, one.payload, one.dup) for one in first] == [(1, b"1", False), (2, b"2", False)]
    assert [(one.number, one.dup) for one in again] == [(one.number, True) for one in first]
    assert [(one.number, one.dup) for one in after] == [(one.number, True) for one in first]


def test_a_received_message_is_not_sent_again_only_released() -> None:
    field = Field()
    reader = kept(field)
    reader.subscribe(("a", 2))
    field.device("w").publish("a", "x", 2)
    [message] = reader.messages(acknowledge=False)
    reader.answer(PUBREC, message.number)
    assert reader.take_one(PUBREL).number == message.number
    field = field.restart()
    back = kept(field)
    assert [(one.kind, one.number) for one in back.more] == [(PUBREL, message.number)]
    back.answer(PUBCOMP, message.number)
    back.lose()
    assert kept(field).more == []


def test_a_message_is_released_only_when_its_receipt_is_stored() -> None:
    field = Field()
    reader = kept(field)
    reader.subscribe(("a", 2))
    field.device("w").publish("a", "x", 2)
    [message] = reader.messages(acknowledge=False)
    reader.connection.feed(b"\x50\x02" + message.number.to_bytes(2))
    assert reader.take() == []
    field.run()
    assert reader.take_one(PUBREL)


def test_a_message_that_the_client_refuses_is_done_with() -> None:
    field = Field()
    reader = kept(field)
    reader.subscribe(("a", 2))
    writer = field.device("w")
    writer.publish("a", "1", 2)
    [message] = reader.messages(acknowledge=False)
    reader.answer(PUBREC, message.number, 0x80)
    reader.lose()
    assert kept(field).more == []


def test_a_session_of_version_3_that_is_not_clean_is_kept() -> None:
    field = Field()
    first = field.device("c", 4, clean=False)
    first.subscribe(("a", 1))
    first.disconnect()
    field.device("w").publish("a", "x", 1)
    field = field.restart()
    back = field.device("c", 4, clean=False)
    assert back.connack is not None
    assert back.connack.present
    assert [one.payload for one in back.more] == [b"x"]


def test_the_session_can_be_given_another_end_when_leaving() -> None:
    field = Field()
    kept(field).disconnect(said={0x11: 0})
    again = kept(field)
    assert again.connack is not None
    assert not again.connack.present
    plain = field.device("p")
    plain.send(b"\xe0\x07\x00\x05\x11\x00\x00\x00\x05")
    assert plain.take()[-1].reason == 0x82


def test_there_are_no_more_on_the_way_than_the_client_takes() -> None:
    field = Field()
    reader = field.device("r", said={0x21: 2})
    reader.subscribe(("a", 2))
    writer = field.device("w")
    for number in range(6):
        writer.publish("a", str(number), 1 + number % 2)
    first = reader.messages(acknowledge=False)
    assert [one.payload for one in first] == [b"0", b"1"]
    reader.answer(PUBREC, first[1].number)
    assert [one.kind for one in reader.take()] == [PUBREL]
    reader.answer(PUBCOMP, first[1].number)
    assert [one.payload for one in reader.messages(acknowledge=False)] == [b"2"]
    reader.answer(PUBACK, first[0].number)
    assert [one.payload for one in reader.messages(acknowledge=False)] == [b"3"]


@pytest.mark.parametrize("session", [{}, PERSISTENT])
def test_everything_arrives_through_a_narrow_window(session: dict[int, int]) -> None:
    field = Field()
    reader = field.device("r", clean=False, said={0x21: 3, **session})
    reader.subscribe(("a", 2))
    writer = field.device("w")
    for number in range(50):
        writer.publish("a", str(number), 1 + number % 2)
    assert reader.texts() == [str(number) for number in range(50)]


def test_identifiers_come_round_without_meeting() -> None:
    field = Field()
    reader = field.device("r", said={0x21: 1})
    reader.subscribe(("a", 1))
    client = reader.connection._client
    assert client is not None
    client.outbox._last = 65_534
    writer = field.device("w")
    for number in range(4):
        writer.publish("a", str(number), 1)
    found = []
    while new := reader.messages(acknowledge=False):
        found += [one.number for one in new]
        reader.answer(PUBACK, new[0].number)
    assert found == [65535, 32768, 32769, 32770]


# -- slow readers ----------------------------------------------------------------------------------------------------


def test_a_client_that_does_not_keep_up_misses_what_may_be_lost() -> None:
    field = Field()
    slow, quick = field.device("s"), field.device("q")
    slow.subscribe(("a", 0))
    quick.subscribe(("a", 0))
    slow.connection.hold_output(True)
    writer = field.device("w")
    writer.publish("a", "1")
    slow.connection.hold_output(False)
    writer.publish("a", "2")
    assert (slow.texts(), quick.texts()) == (["2"], ["1", "2"])


def test_what_waits_in_memory_for_a_client_is_bounded_and_the_newest_stay() -> None:
    field = Field(limits=MqttSettings(waiting_messages=3, waiting_bytes=1000))
    slow = field.device("s")
    slow.subscribe(("a", 1))
    slow.connection.hold_output(True)
    writer = field.device("w")
    for number in range(10):
        writer.publish("a", str(number), 1)
    slow.connection.hold_output(False)
    assert slow.texts() == ["7", "8", "9"]
    slow.connection.hold_output(True)
    for letter in ("a", "b", "c"):
        writer.publish("a", letter * 600, 1)
    slow.connection.hold_output(False)
    assert slow.texts() == ["c" * 600]


def test_what_is_stored_for_a_client_waits_while_it_does_not_keep_up() -> None:
    field = Field()
    slow = kept(field)
    slow.subscribe(("a", 1))
    slow.connection.hold_output(True)
    writer = field.device("w")
    for number in range(5):
        writer.publish("a", str(number), 1)
    assert slow.messages() == []
    slow.connection.hold_output(False)
    field.run()
    assert slow.texts() == ["0", "1", "2", "3", "4"]


def test_a_packet_that_is_too_large_for_a_client_is_not_sent_and_done_with() -> None:
    field = Field()
    small = kept(field, "s", x27=100)
    small.subscribe(("a", 1), ("b", 0))
    plain = field.device("p", said={0x27: 100})
    plain.subscribe(("a", 1), ("b", 0))
    writer = field.device("w")
    for topic in ("a", "b"):
        writer.publish(topic, "x" * 200, 1)
        writer.publish(topic, "short", 1)
    assert plain.texts() == ["short", "short"]
    assert sorted(small.texts()) == ["short", "short"]
    small.lose()
    assert kept(field, "s").more == []


# -- what messages carry ---------------------------------------------------------------------------------------------


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


# -- retained --------------------------------------------------------------------------------------------------------


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


# -- wills -----------------------------------------------------------------------------------------------------------


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
