"""kill -9 of a real server with settlements in many queues; test_kill_rounds.py has everything else."""

import threading
import time
from pathlib import Path

import pika
import pytest
from pika.exceptions import AMQPError

from tests.servers import Server
from tests.waiting import eventually

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
