"""kill -9 of a real server under AMQP 1.0: what was accepted is there, what was not settled comes again."""

import threading
import time
from pathlib import Path

import pytest
from proton import ConnectionException, Message, ProtonException
from proton.utils import BlockingConnection

from tests.servers import Server
from tests.waiting import eventually

_SENDERS = 3
_QUEUE = "survivors"
_SECONDS = 60


class _Sender(threading.Thread):
    """Sends numbers on its own connection and remembers which of them were accepted."""

    def __init__(self, port: int, number: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._number = number
        self.accepted: list[int] = []

    def run(self) -> None:
        try:
            connection = BlockingConnection(f"127.0.0.1:{self._port}", timeout=_SECONDS)
            sender = connection.create_sender(f"/queues/{_QUEUE}")
            while True:
                sender.send(Message(body=f"{self._number}:{len(self.accepted)}", durable=True))
                self.accepted.append(len(self.accepted))
        except (ProtonException, ConnectionException, OSError):
            return  # the server was killed

    def wait_for(self, count: int) -> None:
        eventually(lambda: len(self.accepted) >= count)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def test_what_was_accepted_is_there_and_what_was_not_settled_comes_again(server: Server) -> None:
    server.start()
    try:
        server.connect().channel().queue_declare(_QUEUE, durable=True)
        senders = [_Sender(server.port, number) for number in range(_SENDERS)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.wait_for(40)
        receiving = BlockingConnection(f"127.0.0.1:{server.port}", timeout=_SECONDS)
        receiver = receiving.create_receiver(f"/queues/{_QUEUE}", credit=30)
        held = [receiver.receive(timeout=_SECONDS).body for _ in range(30)]
        for _ in range(10):
            receiver.accept()  # the oldest ten
        receiving.create_sender(f"/queues/{_QUEUE}")  # a round trip: the server has heard it
        time.sleep(1.2)  # a settlement is safe within a second, of the server's own
        for sender in senders:
            sender.wait_for(len(sender.accepted) + 2)
        server.kill()
        for sender in senders:
            sender.join()
        server.start()

        found = _drained(server)
        assert all([len(sender.accepted) >= 40 for sender in senders])
        for number, sender in enumerate(senders):
            for count in sender.accepted:
                body = f"{number}:{count}"
                assert (body in found) != (body in held[:10]), body
        assert all([found[body] == 1 for body in held[10:]]), "delivered before, so the count says so"
    finally:
        server.kill()
        server.close_connections()


def _drained(server: Server) -> dict[str, int]:
    """All messages and how often each was delivered before."""
    waiting = server.connect().channel().queue_declare(_QUEUE, passive=True).method.message_count
    connection = BlockingConnection(f"127.0.0.1:{server.port}", timeout=_SECONDS)
    receiver = connection.create_receiver(f"/queues/{_QUEUE}", credit=100)
    found: dict[str, int] = {}
    for _ in range(waiting):
        message = receiver.receive(timeout=_SECONDS)
        found[message.body] = message.delivery_count
        receiver.accept()
    assert len(found) == waiting, "nothing comes twice"
    connection.close()
    return found
