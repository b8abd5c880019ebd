"""What a channel asks after it published, with pika and without confirms: what it published is there by then."""

from collections.abc import Iterator

import pika
import pytest
from pamqp import commands
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from headrace.protocols.amqp091.codec import encode_content
from headrace.protocols.amqp091.methods import encode_method
from headrace.wire.amqp091 import NONE
from tests.bare import Bare
from tests.servers import Server, serving

_KINDS = pytest.mark.parametrize("durable", [True, False])
"""Queues that are on disk, and those that only memory holds."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(Server(tmp_path_factory.mktemp("server"))) as running:
        yield running


def _publish(channel: BlockingChannel, queue: str, count: int, size: int = 1) -> None:
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number * size)


@_KINDS
def test_what_was_published_can_be_got(channel: BlockingChannel, name: str, durable: bool) -> None:
    channel.queue_declare(name, durable=durable)

    for number in range(20):
        channel.basic_publish("", name, b"%d" % number)
        method, _, body = channel.basic_get(name, auto_ack=True)
        assert (body, method.message_count) == (b"%d" % number, 0)

    _publish(channel, name, 3)
    got = [channel.basic_get(name, auto_ack=True) for _ in range(4)]
    assert [body for _, _, body in got] == [b"0", b"1", b"2", None]
    assert [method.message_count for method, _, _ in got[:3]] == [2, 1, 0]


@_KINDS
def test_what_was_published_is_counted(channel: BlockingChannel, name: str, durable: bool) -> None:
    channel.queue_declare(name, durable=durable)

    _publish(channel, name, 5, size=200_000)

    assert channel.queue_declare(name, passive=True).method.message_count == 5


@_KINDS
def test_what_was_published_before_is_purged_and_what_follows_is_not(
    channel: BlockingChannel, name: str, durable: bool
) -> None:
    channel.queue_declare(name, durable=durable)
    purge = pika.spec.Queue.Purge(queue=name, nowait=True)

    _publish(channel, name, 3)
    assert channel.queue_purge(name).method.message_count == 3
    _publish(channel, name, 2)
    channel._impl._send_method(purge)
    channel.basic_publish("", name, b"last")

    assert channel.basic_get(name, auto_ack=True)[2] == b"last"
    assert channel.basic_get(name, auto_ack=True)[2] is None


@_KINDS
def test_a_queue_is_not_empty_for_who_published_to_it(channel: BlockingChannel, name: str, durable: bool) -> None:
    channel.queue_declare(name, durable=durable)
    channel.basic_publish("", name, b"")

    with pytest.raises(ChannelClosedByBroker, match="not empty"):
        channel.queue_delete(name, if_empty=True)


@_KINDS
def test_what_is_published_and_deleted_again_is_counted(channel: BlockingChannel, name: str, durable: bool) -> None:
    channel.queue_declare(name, durable=durable)
    _publish(channel, name, 4)

    assert channel.queue_delete(name).method.message_count == 4


def test_other_channels_of_the_connection_go_on_in_order(connection: pika.BlockingConnection, name: str) -> None:
    asking, other = connection.channel(), connection.channel()
    for queue in (name, name + "-other"):
        asking.queue_declare(queue, durable=True)

    _publish(asking, name, 2)
    asking._impl._send_method(pika.spec.Queue.Purge(queue=name, nowait=True))
    _publish(other, name + "-other", 2)
    other._impl._send_method(pika.spec.Queue.Purge(queue=name + "-other", nowait=True))
    other.basic_publish("", name + "-other", b"last")
    asking.basic_publish("", name, b"first")

    assert other.basic_get(name + "-other", auto_ack=True)[2] == b"last"
    assert asking.basic_get(name, auto_ack=True)[2] == b"first"


def test_a_connection_that_ends_while_it_asks_leaves_the_others(server: Server, name: str) -> None:
    staying = server.connect().channel()
    staying.queue_declare(name, durable=True)

    leaving = Bare(server)
    leaving.open()
    leaving.socket.sendall(
        encode_method(1, commands.Basic.Publish, {"exchange": "", "routing_key": name})
        + encode_content(1, NONE, b"theirs", 4096)
        + encode_method(1, commands.Basic.Get, {"queue": name})
    )
    leaving.socket.close()

    staying.basic_publish("", name, b"mine")
    assert b"mine" in {staying.basic_get(name, auto_ack=True)[2] for _ in range(2)}


@pytest.mark.parametrize("into", [True, False])
@_KINDS
def test_what_is_pushed_out_of_a_full_queue_is_a_dead_letter(
    channel: BlockingChannel, name: str, durable: bool, into: bool
) -> None:
    graves = [f"{name}-{number}" for number in range(2)]
    channel.queue_declare(
        name,
        durable=durable,
        arguments={"x-max-length": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": graves[0]},
    )
    channel.queue_declare(
        graves[0],
        durable=into,
        arguments={"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": graves[1]},
    )
    channel.queue_declare(graves[1], durable=into)
    channel.confirm_delivery()

    _publish(channel, name, 5)

    assert _taken(channel, graves[1], 2) == [b"0", b"1"]
    assert _taken(channel, graves[0], 1) == [b"2"]
    assert _taken(channel, name, 2) == [b"3", b"4"]


def _taken(channel: BlockingChannel, queue: str, count: int) -> list[bytes]:
    """What a queue has, waited for."""
    bodies: list[bytes] = []
    for _, _, body in channel.consume(queue, auto_ack=True, inactivity_timeout=30):
        assert body is not None, f"{queue} has {bodies} and no more"
        bodies.append(body)
        if len(bodies) == count:
            channel.cancel()
            break
    return bodies
