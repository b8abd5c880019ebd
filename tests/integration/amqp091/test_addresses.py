"""`$queue/` addresses, consumer groups and stream commits over 0-9-1."""

from datetime import datetime

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from tests.servers import drain


def _take(
    channel: BlockingChannel, queue: str, count: int, **arguments: object
) -> list[tuple[pika.BasicProperties, bytes]]:
    got: list[tuple[pika.BasicProperties, bytes]] = []
    table = {name.replace("_", "-"): value for name, value in arguments.items()}
    for method, properties, body in channel.consume(queue, arguments=table, inactivity_timeout=60):
        if method is None:
            break
        assert properties is not None
        assert body is not None
        got.append((properties, body))
        channel.basic_ack(method.delivery_tag)
        if len(got) == count:
            break
    channel.cancel()
    return got


def test_an_address_reaches_the_queue_of_its_name(channel: BlockingChannel) -> None:
    channel.queue_declare("addressed", durable=True)
    channel.basic_publish("", "$queue/addressed/eu/images", b"resize")

    assert drain(channel, "addressed", 1) == [b"resize"]


def test_groups_read_independently_and_see_where_messages_are_from(channel: BlockingChannel) -> None:
    channel.confirm_delivery()
    channel.queue_declare("grouped", durable=True)
    channel.basic_qos(prefetch_count=10)
    for group in ("billing", "audit"):
        tag = channel.basic_consume(
            "$queue/grouped/orders/#", lambda *arguments: None, arguments={"x-consumer-group": group}
        )
        channel.basic_cancel(tag)
    channel.basic_publish("", "$queue/grouped/orders/eu", b"one", pika.BasicProperties(headers={"mine": 1}))

    for group in ("billing", "audit"):
        properties, body = _take(channel, "$queue/grouped/orders/#", 1, x_consumer_group=group)[0]
        assert body == b"one"
        assert properties.message_id == "grouped:0"
        assert properties.headers["group-id"] == f"{group}@orders/#"
        assert properties.headers["queue"] == "grouped"
        assert properties.headers["offset"] == 0
        assert properties.headers["x-source-topic"] == "$queue/grouped/orders/eu"
        assert properties.headers["mine"] == 1


def test_a_stream_group_commits_by_hand_and_resumes_there(channel: BlockingChannel) -> None:
    channel.confirm_delivery()
    channel.queue_declare("committed", durable=True, arguments={"x-queue-type": "stream"})
    channel.basic_qos(prefetch_count=10)
    for number in range(4):
        channel.basic_publish("", "committed", b"%d" % number)
    arguments = {"x-consumer-group": "readers", "x-auto-commit": False}
    first: list[tuple[pika.BasicProperties, bytes]] = []
    tag = channel.basic_consume(
        "committed", lambda ch, method, props, body: first.append((props, body)), arguments=arguments
    )
    while len(first) < 4:
        channel.connection.process_data_events(0.05)
    headers = {"x-group-id": "readers", "x-offset": 2}
    channel.basic_publish("", "$queue/committed/$commit", b"", pika.BasicProperties(headers=headers))
    channel.basic_cancel(tag)

    again = _take(channel, "committed", 2, x_consumer_group="readers", x_auto_commit=False)

    assert [body for _, body in first] == [b"0", b"1", b"2", b"3"]
    assert [properties.headers["x-stream-offset"] for properties, _ in first] == [0, 1, 2, 3]
    assert all([properties.headers["x-stream-timestamp"] > 1_600_000_000_000 for properties, _ in first])
    assert [body for _, body in again] == [b"2", b"3"]


def test_a_commit_above_the_cursor_or_on_a_classic_queue_is_refused(channel: BlockingChannel) -> None:
    channel.confirm_delivery()
    channel.queue_declare("plain", durable=True)
    headers = {"x-group-id": "default", "x-offset": 2}

    with pytest.raises(ChannelClosedByBroker):
        channel.basic_publish("", "$queue/plain/$commit", b"", pika.BasicProperties(headers=headers))


def test_an_ephemeral_queue_is_made_for_its_reader_and_takes_acknowledgements(channel: BlockingChannel) -> None:
    got: list[bytes] = []

    def take(ch: BlockingChannel, method: pika.spec.Basic.Deliver, properties: object, body: bytes) -> None:
        got.append(body)
        ch.basic_ack(method.delivery_tag)

    channel.basic_consume("$queue/passing", take)
    for number in range(3):
        channel.basic_publish("", "$queue/passing/by", b"%d" % number)
    while len(got) < 3:
        channel.connection.process_data_events(60)
    channel.connection.sleep(0.1)

    assert got == [b"0", b"1", b"2"]
    assert channel.is_open


def test_a_stream_is_read_from_a_time(channel: BlockingChannel) -> None:
    channel.confirm_delivery()
    channel.queue_declare("timed", durable=True, arguments={"x-queue-type": "stream"})
    channel.basic_qos(prefetch_count=10)
    channel.basic_publish("", "timed", b"now")

    for moment in (datetime(2020, 1, 1), "timestamp=1577836800", "timestamp=1577836800000"):
        assert [body for _, body in _take(channel, "timed", 1, x_stream_offset=moment)] == [b"now"]
