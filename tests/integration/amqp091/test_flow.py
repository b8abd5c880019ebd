"""Prefetch, priorities, single active consumers, channel.flow, and publishers that must wait."""

import asyncio
import time
from collections.abc import Callable

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ConnectionClosedByBroker

from headrace.clock import SystemClock
from headrace.core.broker import Broker
from headrace.net.listener import Listener
from headrace.protocols.amqp091.connection import Connection
from headrace.protocols.amqp091.server import Server as Amqp091Server
from headrace.storage.memory import MemoryEngine
from tests.endpoints import access_to
from tests.servers import Server

_SECONDS = 60.0


class _Inbox:
    """What one consumer got."""

    def __init__(self, channel: BlockingChannel, queue: str, **options: object) -> None:
        self.channel = channel
        self.tags: list[int] = []
        self.bodies: list[bytes] = []
        self.consumer_tag = channel.basic_consume(queue, self._take, **options)

    def _take(self, channel: object, method: pika.spec.Basic.Deliver, properties: object, body: bytes) -> None:
        self.tags.append(method.delivery_tag)
        self.bodies.append(body)


def _settle(count: int, *inboxes: _Inbox) -> None:
    """Let so many messages arrive, and whatever else is on its way."""
    connection = inboxes[0].channel.connection
    deadline = time.monotonic() + _SECONDS
    while sum(len(inbox.bodies) for inbox in inboxes) < count and time.monotonic() < deadline:
        connection.process_data_events(1)
    connection.sleep(0.3)


def _publish(channel: BlockingChannel, queue: str, count: int) -> None:
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number)


def test_prefetch_bounds_each_consumer(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)
    channel.basic_qos(prefetch_count=2)
    first, second = _Inbox(channel, name), _Inbox(channel, name)
    _publish(channel.connection.channel(), name, 10)
    _settle(4, first, second)
    assert (len(first.bodies), len(second.bodies)) == (2, 2)

    channel.basic_ack(first.tags[0])
    _settle(5, first, second)
    assert (len(first.bodies), len(second.bodies)) == (3, 2)


def test_global_prefetch_bounds_all_consumers_of_a_channel(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)
    before = _Inbox(channel, name)
    channel.basic_qos(prefetch_count=3, global_qos=True)
    after = _Inbox(channel, name)
    _publish(channel.connection.channel(), name, 10)
    _settle(3, before, after)
    assert len(before.bodies) + len(after.bodies) == 3

    channel.basic_ack(0, multiple=True)
    _settle(6, before, after)
    assert len(before.bodies) + len(after.bodies) == 6


def test_consumers_of_higher_priority_come_first(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)
    channel.basic_qos(prefetch_count=2)
    low = _Inbox(channel, name)
    high = _Inbox(channel, name, arguments={"x-priority": 10})
    _publish(channel.connection.channel(), name, 3)
    _settle(3, low, high)

    assert high.bodies == [b"0", b"1"]
    assert low.bodies == [b"2"]


def test_a_single_active_consumer_is_followed_by_the_next(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, arguments={"x-single-active-consumer": True})
    first, second = _Inbox(channel, name, auto_ack=True), _Inbox(channel, name, auto_ack=True)
    other = channel.connection.channel()
    _publish(other, name, 2)
    _settle(2, first, second)
    channel.basic_cancel(first.consumer_tag)
    other.basic_publish("", name, b"next")
    _settle(3, first, second)

    assert (first.bodies, second.bodies) == ([b"0", b"1"], [b"next"])


def test_channel_flow_cannot_be_stopped(channel: BlockingChannel) -> None:
    assert channel.flow(True) is True
    with pytest.raises(ConnectionClosedByBroker, match="540"):
        channel.flow(False)


def test_publishers_are_told_to_wait_and_to_go_on(name: str) -> None:
    """The broker's word that it has too much in hand goes to those who publish, and to no others."""

    async def run() -> tuple[list[str], list[str]]:
        loop = asyncio.get_running_loop()

        def soon(call: Callable[[], None]) -> None:
            loop.call_soon(call)

        broker = Broker(MemoryEngine(), SystemClock(), soon)
        server = Amqp091Server(*access_to(broker), "test")
        listener = Listener(lambda: Connection(server, SystemClock()))
        await listener.open("127.0.0.1", 0)
        told = await loop.run_in_executor(None, lambda: _blocked(listener.port, name, loop, broker))
        await listener.close()
        return told

    publisher, consumer = asyncio.run(run())

    assert publisher == ["blocked", "unblocked"]
    assert consumer == []


def _blocked(port: int, name: str, loop: asyncio.AbstractEventLoop, broker: Broker) -> tuple[list[str], list[str]]:
    told: tuple[list[str], list[str]] = ([], [])
    connections = []
    for notes in told:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
        connection.add_on_connection_blocked_callback(lambda *_, notes=notes: notes.append("blocked"))
        connection.add_on_connection_unblocked_callback(lambda *_, notes=notes: notes.append("unblocked"))
        connections.append(connection)
    channel = connections[0].channel()
    channel.queue_declare(name)
    channel.basic_publish("", name, b"x")
    channel.queue_declare(name, passive=True)
    for count, blocked in enumerate((True, False), start=1):
        for tell in list(broker.on_flow.values()):
            loop.call_soon_threadsafe(tell, blocked)
        deadline = time.monotonic() + _SECONDS
        while len(told[0]) < count and time.monotonic() < deadline:
            connections[0].process_data_events(1)
        connections[1].sleep(0.2)
    for connection in connections:
        connection.close()
    return told


@pytest.mark.parametrize("count", [3000])
def test_a_consumer_without_prefetch_gets_everything(server: Server, name: str, count: int) -> None:
    channel = server.connect().channel()
    channel.queue_declare(name)
    for number in range(count):
        channel.basic_publish("", name, b"%d" % number)
    inbox = _Inbox(channel, name, auto_ack=True)
    _settle(count, inbox)

    assert inbox.bodies == [b"%d" % number for number in range(count)]
