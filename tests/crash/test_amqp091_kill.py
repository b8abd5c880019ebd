"""kill -9 of a real server under confirmed publishing from several connections: nothing confirmed is missing."""

import threading
import time
from pathlib import Path

import pika
import pytest
from pika.exceptions import AMQPError

from tests.servers import Server, drain
from tests.waiting import eventually

_PUBLISHERS = 4
_QUEUE = "survivors"


class _Publisher(threading.Thread):
    """Publishes numbers on its own connection and remembers which of them were confirmed."""

    def __init__(self, port: int, number: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._number = number
        self.confirmed: list[int] = []

    def run(self) -> None:
        try:
            connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self._port))
            channel = connection.channel()
            channel.confirm_delivery()
            count = 0
            while True:
                body = b"%d:%d" % (self._number, count)
                channel.basic_publish("amq.fanout", "", body, pika.BasicProperties(delivery_mode=2), mandatory=True)
                self.confirmed.append(count)
                count += 1
        except (AMQPError, OSError):
            return  # the server was killed


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def test_nothing_confirmed_is_missing_after_kill_9_and_order_is_kept(server: Server) -> None:
    server.start()
    try:
        channel = server.connect().channel()
        for queue in (_QUEUE, _QUEUE + ".copy"):
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, "amq.fanout")
        confirmed: dict[int, int] = {}
        for round_number in range(3):
            publishers = [_Publisher(server.port, round_number * 10 + number) for number in range(_PUBLISHERS)]
            for publisher in publishers:
                publisher.start()
            for publisher in publishers:
                eventually(lambda publisher=publisher: len(publisher.confirmed) >= 50)  # type: ignore[misc]
            server.kill()
            for number, publisher in enumerate(publishers):
                publisher.join()
                confirmed[round_number * 10 + number] = len(publisher.confirmed)
            server.start()

        assert all([count >= 50 for count in confirmed.values()]), confirmed
        for queue in (_QUEUE, _QUEUE + ".copy"):
            _check(_all_of(server, queue), confirmed)
    finally:
        server.kill()
        server.close_connections()


def test_what_was_acknowledged_in_many_queues_a_second_ago_does_not_come_back(server: Server) -> None:
    """While another goes on publishing: settlements may wait for others then, but not for long."""
    queues = [f"errand{number}" for number in range(300)]
    server.start()
    try:
        channel = server.connect().channel()
        channel.queue_declare(_QUEUE, durable=True)
        channel.queue_bind(_QUEUE, "amq.fanout")
        for queue in queues:
            channel.queue_declare(queue, durable=True)
            channel.basic_publish("", queue, b"done", pika.BasicProperties(delivery_mode=2))
        channel.basic_publish("", queues[0], b"kept", pika.BasicProperties(delivery_mode=2))
        publisher = _Publisher(server.port, 0)
        publisher.start()
        eventually(lambda: len(publisher.confirmed) >= 50)
        tags = [channel.basic_get(queue)[0].delivery_tag for queue in queues]
        channel.basic_ack(tags[-1], multiple=True)
        channel.queue_declare(_QUEUE, passive=True)  # answered when the broker knows

        count = len(publisher.confirmed)
        time.sleep(1)
        assert len(publisher.confirmed) > count
        server.kill()
        publisher.join()
        server.start()

        channel = server.connect().channel()
        left = {queue: channel.queue_declare(queue, passive=True).method.message_count for queue in queues}
        assert left == {**dict.fromkeys(queues, 0), queues[0]: 1}
    finally:
        server.kill()
        server.close_connections()


def _check(found: dict[int, list[int]], confirmed: dict[int, int]) -> None:
    for publisher, count in confirmed.items():
        numbers = found[publisher]
        assert numbers == list(range(len(numbers))), "order is kept and nothing is doubled"
        assert len(numbers) >= count, f"publisher {publisher} had {count} confirmed, {len(numbers)} are there"


def _all_of(server: Server, queue: str) -> dict[int, list[int]]:
    channel = server.connect().channel()
    found: dict[int, list[int]] = {}
    for body in drain(channel, queue, channel.queue_declare(queue, passive=True).method.message_count):
        publisher, _, number = body.partition(b":")
        found.setdefault(int(publisher), []).append(int(number))
    return found
