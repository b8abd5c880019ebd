"""Messages to and from clients: QoS, order, duplicates, sessions, flow."""

import pytest

from headrace.config.settings import MqttSettings
from headrace.core.queue.definition import QueueDefinition
from tests.devices import PUBACK, PUBCOMP, PUBREC, PUBREL, Device, Field, packet, properties, text

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
    client = reader.connection._receiver
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
