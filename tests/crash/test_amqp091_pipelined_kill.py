"""kill -9 with hundreds of confirms outstanding on several channels and connections: nothing confirmed is missing."""

import asyncio
import threading
import time
from pathlib import Path

import pika
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel

from tests.servers import Server

_CONNECTIONS = 3
_CHANNELS = 3
_OUTSTANDING = 300
_ENOUGH = 1500
_QUEUES = ("pipelined", "pipelined.copy")


class _Pipe:
    """One channel that keeps hundreds of publishes on their way and knows which of them were confirmed."""

    def __init__(self, channel: Channel, name: str) -> None:
        self.name = name
        self._channel = channel
        self.sent = 0
        self.open: set[int] = set()
        self.confirmed: set[int] = set()
        self.nacked = 0
        channel.confirm_delivery(self._on_confirm, lambda _: self._fill())

    def _fill(self) -> None:
        while len(self.open) < _OUTSTANDING and self._channel.is_open:
            self.sent += 1
            self.open.add(self.sent)
            body = f"{self.name}:{self.sent}".encode()
            self._channel.basic_publish("amq.fanout", "", body, pika.BasicProperties(delivery_mode=2), mandatory=True)

    def _on_confirm(self, frame: pika.frame.Method) -> None:
        method = frame.method
        tags = {tag for tag in self.open if tag <= method.delivery_tag} if method.multiple else {method.delivery_tag}
        self.open -= tags
        if isinstance(method, pika.spec.Basic.Nack):
            self.nacked += len(tags)
        else:
            self.confirmed |= tags
        self._fill()


class _Publisher(threading.Thread):
    """One connection with several pipes; ends with the server."""

    def __init__(self, port: int, name: str) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._name = name
        self.pipes: list[_Pipe] = []

    def run(self) -> None:
        loop = asyncio.new_event_loop()
        ended = loop.create_future()

        def opened(connection: AsyncioConnection) -> None:
            for number in range(_CHANNELS):
                connection.channel(
                    on_open_callback=lambda channel, name=f"{self._name}.{number}": self.pipes.append(
                        _Pipe(channel, name)
                    )
                )

        AsyncioConnection(
            pika.ConnectionParameters("127.0.0.1", self._port),
            on_open_callback=opened,
            on_close_callback=lambda *_: ended.set_result(None),
            on_open_error_callback=lambda *_: ended.set_result(None),
            custom_ioloop=loop,
        )
        loop.run_until_complete(asyncio.wait_for(ended, 60))
        loop.close()


def test_nothing_confirmed_is_missing_after_kill_9_with_many_confirms_outstanding(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.start()
    try:
        channel = server.connect().channel()
        for queue in _QUEUES:
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, "amq.fanout")
        pipes: list[_Pipe] = []
        for round_number in range(2):
            pipes += _publish_and_kill(server, round_number)
            server.start()
        for queue in _QUEUES:
            _check(_all_of(server, queue), pipes)
    finally:
        server.kill()
        server.close_connections()


def _publish_and_kill(server: Server, round_number: int) -> list[_Pipe]:
    publishers = [_Publisher(server.port, f"{round_number}.{number}") for number in range(_CONNECTIONS)]
    for publisher in publishers:
        publisher.start()
    deadline = time.monotonic() + 60

    def is_enough() -> bool:
        pipes = [pipe for publisher in publishers for pipe in publisher.pipes]
        return len(pipes) == _CONNECTIONS * _CHANNELS and all([len(pipe.confirmed) >= _ENOUGH for pipe in pipes])

    while not is_enough():
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.01)
    server.kill()
    for publisher in publishers:
        publisher.join(30)
        assert not publisher.is_alive()
    return [pipe for publisher in publishers for pipe in publisher.pipes]


def _check(found: dict[str, list[int]], pipes: list[_Pipe]) -> None:
    for pipe in pipes:
        numbers = found[pipe.name]
        assert numbers == list(range(1, len(numbers) + 1)), "order per channel is kept, nothing is doubled or left out"
        assert len(numbers) >= max(pipe.confirmed), (
            f"{pipe.name}: {max(pipe.confirmed)} confirmed, {len(numbers)} there"
        )
        assert pipe.nacked == 0
    assert any([pipe.open for pipe in pipes]), "the server was killed while publishers waited for it"


def _all_of(server: Server, queue: str) -> dict[str, list[int]]:
    channel = server.connect().channel()
    channel.basic_qos(prefetch_count=1000)
    left = channel.queue_declare(queue, passive=True).method.message_count
    found: dict[str, list[int]] = {}
    for method, _, body in channel.consume(queue, inactivity_timeout=20):
        assert method is not None, f"{left} messages are announced and do not come"
        name, _, number = body.decode().partition(":")
        found.setdefault(name, []).append(int(number))
        left -= 1
        if not left:
            channel.basic_ack(method.delivery_tag, multiple=True)
            break
        if left % 500 == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
    return found
