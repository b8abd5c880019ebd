"""What RabbitMQ's clients see of the wire besides the methods themselves: with foreign clients and bare sockets."""

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from pamqp import commands
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from headrace.protocols.amqp091.codec import encode_content
from headrace.protocols.amqp091.frames import FRAME_MAX_SIZE
from headrace.protocols.amqp091.methods import encode_method
from tests.bare import Bare
from tests.servers import Server

STREAM = {"x-queue-type": "stream"}
QUORUM = {"x-queue-type": "quorum"}


@pytest.fixture
def client(server: Server) -> Iterator[Bare]:
    bare = Bare(server)
    bare.open()
    yield bare
    bare.socket.close()


def test_a_frame_may_have_frame_max_bytes_besides_its_eight(client: Bare, name: str) -> None:
    """AmqpStorm and rabbitpy fill frames so."""
    body = b"x" * FRAME_MAX_SIZE
    client.send(1, commands.Queue.Declare, queue=name)
    assert client.method().method.name == "Queue.DeclareOk"
    client.send(1, commands.Basic.Publish, exchange="", routing_key=name)
    client.socket.sendall(encode_content(1, b"\0\0", body, FRAME_MAX_SIZE + 8))
    client.send(1, commands.Queue.Declare, queue=name, passive=True)

    found = client.method().method
    assert isinstance(found, commands.Queue.DeclareOk)
    assert found.message_count == 1


def test_a_payload_of_more_than_the_size_of_a_frame_is_refused(client: Bare) -> None:
    client.socket.sendall(struct.pack(">BHI", 3, 1, FRAME_MAX_SIZE + 1) + b"x")

    assert client.close_code() == 501


def test_the_deletion_of_a_queue_is_confirmed_before_its_consumers_are_cancelled(server: Server, name: str) -> None:
    bare = Bare(server, {"consumer_cancel_notify": True})
    bare.open()
    bare.send(1, commands.Queue.Declare, queue=name)
    bare.send(1, commands.Basic.Consume, queue=name, consumer_tag="c")
    bare.send(1, commands.Queue.Delete, queue=name)

    assert [bare.method().method.name for _ in range(4)] == [
        "Queue.DeclareOk", "Basic.ConsumeOk", "Queue.DeleteOk", "Basic.Cancel",
    ]  # fmt: skip
    bare.socket.close()


def test_a_client_that_still_sends_reads_the_close_and_sees_no_reset(client: Bare) -> None:
    close = encode_method(0, commands.Connection.Close, {"reply_code": 200})
    client.socket.sendall(close + b"\x08\0\0\0\0\0\0\xce" * 100_000)

    assert client.method().method.name == "Connection.CloseOk"
    assert client.socket.recv(100) == b""
    client.socket.sendall(b"\x08\0\0\0\0\0\0\xce")


def test_exclusive_queues_are_gone_when_the_close_is_confirmed(server: Server, name: str, channel: Any) -> None:
    bare = Bare(server)
    bare.open()
    bare.send(1, commands.Queue.Declare, queue=name, exclusive=True)
    assert bare.method().method.name == "Queue.DeclareOk"
    bare.send(0, commands.Connection.Close, reply_code=200)
    assert bare.method().method.name == "Connection.CloseOk"

    channel.queue_declare(name)
    bare.socket.close()


def test_channels_are_counted_whatever_their_numbers_are(server: Server) -> None:
    bare = Bare(server)
    bare.open(channel_max=2)
    bare.send(2000, commands.Channel.Open)
    assert bare.method().method.name == "Channel.OpenOk"
    bare.send(3, commands.Channel.Open)

    found = bare.method().method
    assert isinstance(found, commands.Connection.Close)
    assert (found.reply_code, found.class_id, found.method_id) == (530, 20, 10)
    assert found.reply_text.endswith("number of channels opened (2) has reached the negotiated channel_max (2)")
    bare.socket.close()


def test_an_error_of_a_connection_names_the_publish_that_caused_it(client: Bare) -> None:
    client.send(7, commands.Basic.Ack, delivery_tag=1)

    found = client.method().method
    assert isinstance(found, commands.Connection.Close)
    assert (found.reply_code, found.class_id, found.method_id) == (504, 60, 80)


@pytest.mark.parametrize("method", ["basic_get", "queue_purge"])
def test_a_stream_has_no_single_messages(channel: BlockingChannel, name: str, method: str) -> None:
    channel.queue_declare(name, durable=True, arguments=STREAM)

    with pytest.raises(ConnectionClosedByBroker, match=rf"540.*not supported by stream queues queue '{name[:10]}"):
        getattr(channel, method)(name)


@pytest.mark.parametrize("arguments", [STREAM, QUORUM])
def test_a_prefetch_of_the_whole_channel_is_for_classic_queues(
    channel: BlockingChannel, name: str, arguments: dict[str, str]
) -> None:
    channel.queue_declare(name, durable=True, arguments=arguments)
    channel.basic_qos(prefetch_count=5, global_qos=True)

    with pytest.raises(ConnectionClosedByBroker, match=r"540.*does not support global qos"):
        channel.basic_consume(name, print)


def test_a_single_active_consumer_cannot_be_exclusive(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, arguments={"x-single-active-consumer": True})

    with pytest.raises(ChannelClosedByBroker, match=r"403.*in exclusive use"):
        channel.basic_consume(name, print, exclusive=True)


def test_a_message_of_a_quorum_queue_counts_from_the_first_get(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, durable=True, arguments=QUORUM)
    channel.confirm_delivery()
    channel.basic_publish("", name, b"x")

    counts: list[object] = []
    for _ in range(2):
        method, properties, _ = channel.basic_get(name)
        assert method is not None
        assert properties is not None
        counts.append((properties.headers or {}).get("x-delivery-count"))
        channel.basic_nack(method.delivery_tag)

    assert counts == [0, 1]


def test_a_stream_is_read_from_its_last_message(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, durable=True, arguments=STREAM)
    channel.confirm_delivery()
    for body in (b"1", b"2"):
        channel.basic_publish("", name, body)
    channel.basic_qos(prefetch_count=10)

    reading = channel.consume(name, arguments={"x-stream-offset": "last"}, inactivity_timeout=60)
    first = next(reading)[2]
    channel.basic_publish("", name, b"3")

    assert [first, next(reading)[2]] == [b"2", b"3"]


def test_a_stream_is_read_from_some_time_ago(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, durable=True, arguments=STREAM)
    channel.confirm_delivery()
    channel.basic_publish("", name, b"x")
    channel.basic_qos(prefetch_count=10)

    found = next(channel.consume(name, arguments={"x-stream-offset": "5m"}, inactivity_timeout=60))

    assert found[2] == b"x"
