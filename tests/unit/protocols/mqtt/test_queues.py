"""Queues over MQTT: addresses, groups, settlements, streams, and other protocols at the other end."""

import pytest

from headrace.core.queue.definition import STREAM, QueueDefinition, Retry, declared
from headrace.core.queue.group import ACK
from headrace.model import AMQP091, Message, Source
from headrace.wire.encodings import encode_properties, properties_of
from headrace.wire.properties import Properties
from tests.devices import PUBACK, Device, Field, Packet

GROUP = 0x26


def queue(field: Field, name: str = "q", **options: object) -> None:
    field.broker.declare(QueueDefinition(name, **options))  # type: ignore[arg-type]
    field.run()


def worker(field: Field, client_id: str, pattern: str = "$queue/q/#", group: str = "g", **said: str) -> Device:
    device = field.device(client_id)
    user = [("consumer-group", group)] if group else []
    user += [(name.replace("_", "-"), value) for name, value in said.items()]
    assert device.subscribe((pattern, 1), said={GROUP: user}) == [1]
    return device


def verb(device: Device, name: str, packet: Packet, **changes: str) -> tuple[int, str]:
    """Settle by the delivery's own word; returns the reason and what was said about it."""
    extra = packet.extra | {key.replace("_", "-"): value for key, value in changes.items()}
    user = [(key, extra[key]) for key in ("message-id", "group-id") if extra.get(key)]
    device.publish(f"$queue/{packet.extra['queue']}/${name}", b"", 1, said={GROUP: user})
    answer = device.take_one(PUBACK)
    return answer.reason, answer.said.get(0x1F, "")


def test_a_queue_message_says_all_it_takes_to_settle_it() -> None:
    field = Field()
    queue(field)
    device = worker(field, "w1")
    field.device("p", 4).publish("$queue/q/images/png", "x", 1)
    [message] = device.messages()
    assert (message.topic, message.payload, message.qos) == ("$queue/q/images/png", b"x", 1)
    assert message.extra == {
        "message-id": "q:0",
        "group-id": "g@#",
        "queue": "q",
        "offset": "0",
        "x-source-topic": "$queue/q/images/png",
        "client_id": "p",
        "protocol": "mqtt",
    }


def test_the_members_of_a_group_divide_the_messages_and_each_group_gets_all() -> None:
    field = Field()
    queue(field)
    one, two, other = worker(field, "1"), worker(field, "2"), worker(field, "3", group="h")
    writer = field.device("p")
    for number in range(6):
        writer.publish("$queue/q", str(number), 1)
    first, second = one.texts(), two.texts()
    assert sorted(first + second) == [str(number) for number in range(6)]
    assert len(first) == 3
    assert len(other.texts()) == 6


def test_an_acknowledged_message_is_gone_and_one_that_is_not_comes_again() -> None:
    field = Field()
    queue(field, lease_ms=30_000)
    device = worker(field, "w")
    writer = field.device("p")
    writer.publish("$queue/q", "done", 1)
    writer.publish("$queue/q", "not", 1)
    done, _ = device.messages()
    assert verb(device, "ack", done) == (0, "")
    field.advance(31)
    [again] = device.messages()
    assert (again.payload, again.dup) == (b"not", True)


def test_a_rejected_message_is_a_dead_letter_and_a_nacked_one_comes_after_its_backoff() -> None:
    field = Field()
    queue(field, retry=Retry(initial_backoff_ms=5000), dead_letter_queue="$dlq/q")
    device = worker(field, "w")
    writer = field.device("p")
    writer.publish("$queue/q", "bad", 1)
    writer.publish("$queue/q", "later", 1)
    bad, later = device.messages()
    assert verb(device, "reject", bad)[0] == 0
    assert verb(device, "nack", later)[0] == 0
    assert device.messages() == []
    field.advance(6)
    assert device.texts() == ["later"]
    assert [message.payload for _, message, _ in field.broker.dead_letters.list("q")] == [b"bad"]


@pytest.mark.parametrize("name", ["ack", "nack", "reject"])
def test_a_settlement_that_names_nothing_pending_is_refused_with_a_reason(name: str) -> None:
    field = Field()
    queue(field)
    device = worker(field, "w")
    field.device("p").publish("$queue/q", "x", 1)
    [message] = device.messages()
    for changes in (
        {"message_id": ""},
        {"group_id": ""},
        {"message_id": "q:9"},
        {"group_id": "no"},
        {"message_id": "z"},
    ):
        reason, said = verb(device, name, message, **changes)
        assert reason == 0x80
        assert said
    reason, said = verb(device, name, message, message_id="other:0")
    assert reason == 0x80
    assert verb(device, name, message, message_id="0")[0] == 0
    if name != "nack":
        assert verb(device, name, message)[0] == 0x80


def test_a_verb_may_follow_a_routing_key_but_nothing_may_follow_a_verb() -> None:
    field = Field()
    queue(field)
    device = worker(field, "w")
    field.device("p").publish("$queue/q/images", "x", 1)
    [message] = device.messages()
    user = [(key, message.extra[key]) for key in ("message-id", "group-id")]
    device.publish("$queue/q/$ack/images", b"", 1, said={GROUP: user})
    assert device.take_one(PUBACK).reason == 0x80
    device.publish("$queue/q/images/$ack", b"", 1, said={GROUP: user})
    assert device.take_one(PUBACK).reason == 0
    assert device.subscribe(("$queue/q/$ack", 1)) == [0x83]


def test_what_a_client_holds_goes_to_another_when_it_leaves_or_unsubscribes() -> None:
    field = Field()
    queue(field)
    one = worker(field, "1")
    field.device("p").publish("$queue/q", "a", 1)
    assert one.texts() == ["a"]
    other = worker(field, "2")
    one.unsubscribe("$queue/q/#")
    assert other.texts() == ["a"]
    third = worker(field, "3")
    other.lose()
    assert third.texts() == ["a"]


def test_a_client_of_version_3_settles_with_its_acknowledgement() -> None:
    field = Field()
    queue(field)
    device = field.device("workers-1", 4)
    assert device.subscribe(("$queue/q", 1)) == [1]
    writer = field.device("p", 4)
    writer.publish("$queue/q/images", "a", 1)
    writer.publish("$queue/q", "b", 1)
    first, second = device.messages(acknowledge=False)
    assert (first.topic, first.payload) == ("$queue/q/images", b"a")
    device.answer(PUBACK, second.number)
    assert [entry.offset for entry in field.broker.groups.pending("q", "workers")] == [0]
    device.lose()
    again = field.device("workers-2", 4)
    again.subscribe(("$queue/q", 1))
    [message] = again.messages()
    assert (message.payload, message.dup) == (b"a", True)
    assert field.broker.queue("q").messages == 0


@pytest.mark.parametrize(("version", "group"), [(4, "workers@#"), (5, "workers-1@#")])
def test_without_a_group_the_client_identifier_names_it(version: int, group: str) -> None:
    field = Field()
    queue(field)
    field.device("workers-1", version).subscribe(("$queue/q/#", 1))
    assert list(field.broker.queue("q").groups) == [group]


def test_filters_of_a_group_apply_at_delivery() -> None:
    field = Field()
    queue(field)
    device = worker(field, "w", "$queue/q/+/images/#")
    writer = field.device("p")
    for key in ("eu/images/resize", "eu/text", "us/images"):
        writer.publish(f"$queue/q/{key}", key, 1)
    assert device.texts() == ["eu/images/resize", "us/images"]
    assert "g@+/images/#" in field.broker.queue("q").groups


@pytest.mark.parametrize("version", [4, 5])
def test_subscriptions_that_make_no_sense_are_refused(version: int) -> None:
    field = Field()
    queue(field)
    device = field.device("c", version)
    refused = 0x80 if version == 4 else 0x83
    assert device.subscribe(("$queue/q", 0)) == [refused]
    assert device.subscribe(("$queue/+/x", 1)) == [refused]
    assert device.subscribe(("$queue/q/#", 1), ("plain", 0)) == [1, 0]


def test_a_group_has_one_mode() -> None:
    field = Field()
    queue(field, "s", kind=STREAM)
    field.house.consume("s", group="g", mode=1)
    device = field.device()
    assert device.subscribe(("$queue/s", 1), said={GROUP: [("consumer-group", "g")]}) == [0x83]
    assert "ErrGroupModeMismatch" in device.suback.said[0x1F]


def test_a_stream_is_read_from_where_the_subscription_says() -> None:
    field = Field()
    queue(field, "s", kind=STREAM, primary_group="w")
    writer = field.device("p")
    for number in range(5):
        writer.publish("$queue/s", str(number), 1)
    device = worker(field, "r", "$queue/s", x_stream_offset="offset=3")
    found = device.messages()
    assert [one.payload for one in found] == [b"3", b"4"]
    extra = found[0].extra
    assert (extra["x-stream-offset"], extra["message-id"]) == ("3", "s:3")
    assert extra["x-stream-timestamp"] == str(field.house.clock.now_us() // 1000)
    bad = field.device("b")
    assert bad.subscribe(("$queue/s", 1), said={GROUP: [("x-stream-offset", "soon")]}) == [0x83]


def test_a_stream_can_be_read_without_acknowledgements() -> None:
    field = Field()
    queue(field, "s", kind=STREAM)
    device = field.device("r")
    assert device.subscribe(("$queue/s", 0)) == [0]
    field.device("p").publish("$queue/s", "x", 1)
    [message] = device.messages()
    assert message.qos == 0


@pytest.mark.parametrize("version", [4, 5])
def test_puback_settles_what_is_read_from_a_stream(version: int) -> None:
    field = Field()
    queue(field, kind=STREAM)
    writer = field.device("p")
    for number in range(10):
        writer.publish("$queue/q", str(number), 1)
    reader = field.device("reader", version)
    reader.subscribe(("$queue/q", 1))
    for message in reader.messages(acknowledge=False)[:9]:
        reader.answer(PUBACK, message.number)
    reader.lose()

    again = field.device("reader", version)
    again.subscribe(("$queue/q", 1))

    assert again.texts() == ["9"]


def test_a_reader_of_a_stream_goes_beyond_its_receive_maximum() -> None:
    field = Field()
    queue(field, kind=STREAM)
    writer = field.device("p")
    for number in range(10):
        writer.publish("$queue/q", str(number), 1)
    reader = field.device("reader", said={0x21: 2})
    reader.subscribe(("$queue/q", 1))
    got: list[str] = []
    for _ in range(5):
        got += reader.texts()

    assert got == [str(number) for number in range(10)]


def test_a_word_for_what_puback_settled_is_no_error() -> None:
    field = Field()
    queue(field, kind=STREAM)
    reader = worker(field, "reader", "$queue/q")
    field.device("p").publish("$queue/q", "x", 1)
    [message] = reader.messages()

    assert [verb(reader, name, message)[0] for name in ("ack", "nack", "reject")] == [0, 0, 0]
    assert verb(reader, "ack", message, message_id="q:1")[0] == 0x80


def test_a_reader_that_commits_by_word_goes_beyond_its_receive_maximum() -> None:
    field = Field()
    queue(field, kind=STREAM)
    writer = field.device("p")
    for number in range(6):
        writer.publish("$queue/q", str(number), 1)
    reader = field.device("reader", said={0x21: 2})
    reader.subscribe(("$queue/q", 1), said={GROUP: [("x-auto-commit", "false")]})
    assert reader.texts() + reader.texts() + reader.texts() == [str(number) for number in range(6)]
    reader.lose()

    again = field.device("reader")
    again.subscribe(("$queue/q", 1), said={GROUP: [("x-auto-commit", "false")]})

    assert again.texts() == [str(number) for number in range(6)]


def test_progress_on_a_stream_is_committed_by_word() -> None:
    field = Field()
    queue(field, "s", kind=STREAM)
    writer = field.device("p")
    for number in range(5):
        writer.publish("$queue/s", str(number), 1)
    device = worker(field, "r", "$queue/s", x_auto_commit="false")
    found = device.messages()
    assert verb(device, "commit", found[2])[0] == 0
    device.publish("$queue/s/$commit", b"", 1, said={GROUP: [("group-id", "g"), ("x-offset", "99")]})
    assert device.take_one(PUBACK).reason == 0x80
    device.lose()
    assert worker(field, "r", "$queue/s", x_auto_commit="false").texts() == ["3", "4"]


def test_a_queue_that_is_full_says_so() -> None:
    field = Field()
    queue(field, max_length=1, overflow="reject-publish")
    device = field.device("p")
    device.publish("$queue/q", "1", 1)
    device.publish("$queue/q", "2", 1)
    device.publish("$queue/q", "3", 2)
    assert [one.reason for one in device.take()] == [0, 0x97, 0x97]
    old = field.device("o", 4)
    old.publish("$queue/q", "4", 1)
    assert old.take() == []
    assert old.line.is_closed


def test_a_queue_that_nobody_declared_is_made_for_its_readers() -> None:
    field = Field()
    queue(field, "any")
    device = field.device()
    assert device.subscribe(("$queue/new/#", 1)) == [1]
    field.device("p").publish("$queue/new/a", "x", 1)
    assert device.texts() == ["x"]


def test_a_flood_in_an_ephemeral_queue_does_not_pile_up_for_a_client_that_acknowledges_nothing() -> None:
    field = Field()
    queue(field, "any")
    device = field.device("c", said={0x21: 10})
    device.subscribe(("$queue/new", 1))
    writer = field.device("p")
    for number in range(3000):
        writer.publish("$queue/new", str(number))
    client = device.connection._receiver
    assert client is not None
    assert len(client.outbox._waiting) <= 1300
    assert device.texts() == [str(number) for number in range(3000)]


def test_a_session_that_comes_back_is_a_member_again() -> None:
    field = Field()
    queue(field)
    user = {GROUP: [("consumer-group", "g")]}
    first = field.device("c", clean=False, said={0x11: 3600})
    first.subscribe(("$queue/q", 1), said=user)
    first.lose()
    field.device("p").publish("$queue/q", "x", 1)
    field = field.restart()
    back = field.device("c", clean=False, said={0x11: 3600})
    assert [(one.payload, one.extra["group-id"]) for one in back.more] == [(b"x", "g")]


# -- other protocols -------------------------------------------------------------------------------------------------


def test_a_message_of_another_protocol_arrives_with_its_properties() -> None:
    field = Field()
    field.broker.declare(declared("q", durable=True))
    said = Properties({"k": 1}, "text/plain")
    said.correlation_id, said.reply_to, said.message_id = "id", "answers", "m1"
    raw = encode_properties(AMQP091, said)
    field.broker.publish(Message(Source("q", "", "svc", "amqp091", AMQP091), b"x", 1, raw))
    device = worker(field, "w", "$queue/q")
    [message] = device.messages()
    assert message.topic == "$queue/q"
    assert message.said[0x03] == "text/plain"
    assert message.said[0x09] == b"id"
    assert message.said[0x08] == "$queue/answers"
    assert message.extra["k"] == "1"
    assert (message.extra["message-id"], message.extra["protocol"]) == ("q:0", "amqp091")


def test_what_a_service_publishes_to_the_topic_exchange_reaches_devices() -> None:
    field = Field()
    reader = field.device("r")
    reader.subscribe(("a/+/c", 1))
    old = field.device("o", 4, clean=False)
    old.subscribe(("a/#", 1))
    raw = encode_properties(AMQP091, Properties({"k": "v"}, "text/plain"))
    field.broker.publish(Message(Source("a.b.c", "amq.topic", "svc", "amqp091", AMQP091), b"x", 1, raw))
    field.run()
    [message] = reader.messages()
    assert (message.topic, message.payload, message.qos) == ("a/b/c", b"x", 1)
    assert message.said[0x03] == "text/plain"
    assert message.user == [("k", "v")]
    assert [one.topic for one in old.messages()] == ["a/b/c"]


def test_a_device_feeds_a_queue_of_a_service() -> None:
    field = Field()
    queue(field)
    field.device("p").publish("$queue/q/x", "hello", 1, said={0x03: "text/plain", 0x26: [("k", "v")], 0x02: 60})
    inbox = field.house.consume("q")
    [delivery] = inbox.take()
    said = properties_of(delivery.message)
    assert (said.content_type, said.headers) == ("text/plain", {"k": "v"})
    assert delivery.message.expires_us == field.house.clock.now_us() + 60_000_000
    field.house.settle(ACK, delivery)
    assert field.broker.queue("q").messages == 0
