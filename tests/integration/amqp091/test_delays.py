"""Messages through an exchange of the type `x-delayed-message` arrive when they are due, also over a crash."""

import time
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker
from proton import Message
from proton.utils import BlockingConnection

from tests.servers import Server, serving

KIND = "x-delayed-message"
_SECONDS = 60.0


def delayed(channel: BlockingChannel, name: str, inner: str = "direct") -> None:
    """An exchange that delays, with a queue of the same name and key."""
    channel.exchange_declare(name, KIND, durable=True, arguments={"x-delayed-type": inner})
    channel.queue_declare(name, durable=True)
    channel.queue_bind(name, name, name)


def waits(milliseconds: int) -> pika.BasicProperties:
    return pika.BasicProperties(headers={"x-delay": milliseconds, "other": "kept"}, message_id="1", delivery_mode=2)


def arrivals(channel: BlockingChannel, queue: str, count: int) -> list[tuple[bytes, float, object]]:
    """Body, time and delay of so many messages, as they come."""
    found: list[tuple[bytes, float, object]] = []
    for method, properties, body in channel.consume(queue, inactivity_timeout=_SECONDS):
        assert method is not None, f"{len(found)} messages of {count} came"
        assert properties.headers is not None
        found.append((body, time.time(), properties.headers.get("x-delay")))
        channel.basic_ack(method.delivery_tag)
        if len(found) == count:
            break
    channel.cancel()
    return found


def test_messages_come_when_they_are_due(channel: BlockingChannel, name: str) -> None:
    delayed(channel, name)
    channel.confirm_delivery()
    begun = time.time()
    for milliseconds in (600, 1, 300):
        channel.basic_publish(name, name, b"%d" % milliseconds, waits(milliseconds), mandatory=True)
    channel.basic_publish(name, name, b"now", pika.BasicProperties(headers={}))

    found = arrivals(channel, name, 4)

    assert [(body, delay) for body, _, delay in found if body != b"now"] == [(b"1", -1), (b"300", -300), (b"600", -600)]
    assert (b"now", None) in [(body, delay) for body, _, delay in found[:2]]
    assert all(came >= begun + -delay / 1000 for _, came, delay in found if isinstance(delay, int))


def test_a_message_that_waits_comes_after_a_crash_and_not_before_its_time(tmp_path: Path) -> None:
    with serving(Server(tmp_path)) as server:
        channel = server.connect().channel()
        delayed(channel, "later")
        channel.confirm_delivery()
        begun = time.time()
        channel.basic_publish("later", "later", b"1", waits(2500))
        channel.basic_publish("later", "later", b"2", waits(60))
        server.kill()
        server.start()
        channel = server.connect().channel()

        found = arrivals(channel, "later", 2)

        assert [(body, delay) for body, _, delay in found] == [(b"2", -60), (b"1", -2500)]
        assert found[1][1] >= begun + 2.5
        channel.exchange_declare("later", passive=True)


def test_transactions_and_copies_wait_too(channel: BlockingChannel, name: str) -> None:
    delayed(channel, name)
    channel.queue_declare(f"{name}-cc", durable=True)
    channel.queue_bind(f"{name}-cc", name, "copy")
    headers = {"x-delay": 300, "CC": ["copy"]}
    channel.tx_select()
    begun = time.time()
    channel.basic_publish(name, name, b"1", pika.BasicProperties(headers=headers))
    channel.tx_commit()

    for queue in (name, f"{name}-cc"):
        ((body, came, delay),) = arrivals(channel, queue, 1)
        assert (body, delay) == (b"1", -300)
        assert came >= begun + 0.3


def test_dead_letters_wait_on_their_way(channel: BlockingChannel, name: str) -> None:
    delayed(channel, name)
    arguments = {"x-dead-letter-exchange": name, "x-dead-letter-routing-key": name}
    channel.queue_declare(f"{name}-dying", arguments=arguments)
    begun = time.time()
    channel.basic_publish("", f"{name}-dying", b"1", waits(300))
    method, _, _ = next(channel.consume(f"{name}-dying", inactivity_timeout=_SECONDS))
    assert method is not None
    channel.basic_reject(method.delivery_tag, requeue=False)
    channel.cancel()

    ((body, came, delay),) = arrivals(channel, name, 1)

    assert (body, delay) == (b"1", -300)
    assert came >= begun + 0.3


def test_a_message_over_amqp_1_0_waits(channel: BlockingChannel, server: Server, name: str) -> None:
    delayed(channel, name)
    connection = BlockingConnection(f"amqp://guest:guest@127.0.0.1:{server.port}", allowed_mechs="PLAIN")
    sender = connection.create_sender(f"/exchange/{name}/{name}")
    begun = time.time()
    sender.send(Message(body="1", properties={"x-delay": 300}))
    connection.close()

    ((_, came, delay),) = arrivals(channel, name, 1)

    assert delay == -300
    assert came >= begun + 0.3


@pytest.mark.parametrize("arguments", [{}, {"x-delayed-type": 5}, {"x-delayed-type": KIND}])
def test_the_inner_type_must_be_one(channel: BlockingChannel, name: str, arguments: dict[str, object]) -> None:
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.exchange_declare(name, KIND, arguments=arguments)

    assert caught.value.reply_code == 406
    assert "'x-delayed-type' must be an existing exchange type" in caught.value.reply_text


def test_an_unknown_inner_type_ends_the_connection(channel: BlockingChannel, name: str) -> None:
    with pytest.raises(ConnectionClosedByBroker) as caught:
        channel.exchange_declare(name, KIND, arguments={"x-delayed-type": "x-none"})

    assert caught.value.reply_code == 503
    assert "unknown exchange type 'x-none'" in caught.value.reply_text
