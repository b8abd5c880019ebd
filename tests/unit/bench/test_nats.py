"""The NATS client of the load generator against the server's side of the protocol, byte by byte."""

import json
import re
import select
import socket
import threading
from collections.abc import Iterator

import pytest
from bench.compare.load import Endpoint, Job, Load, Step, Unsupported, Wrong
from bench.compare.nats import NatsConsumer
from bench.compare.payload import make_body

_SIZE = 100
_DEADLINE_SECONDS = 30.0


def delivery(number: int, body: bytes = b"") -> bytes:
    """A message that JetStream pushes; the reply subject grows with the number in it."""
    body = body or make_body(_SIZE, 0)[:4] + number.to_bytes(6, "little") + make_body(_SIZE, 0)[10:]
    return b"MSG inbox.d 2 $JS.ACK.bench.c.1.%d.%d.7.0 %d\r\n%s\r\n" % (number, number, len(body), body)


class Server:
    """Answers one client: agrees to everything, says what it was given to say, and keeps what it hears."""

    def __init__(self, answer: dict[str, object], pushed: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_DEADLINE_SECONDS)
        self._said = json.dumps(answer).encode()
        self._pushed = pushed
        self.heard = b""
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1", self._listener.getsockname()[1])

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        with client:
            client.settimeout(_DEADLINE_SECONDS)
            client.sendall(b'INFO {"version":"2.9.10"}\r\n')
            self._hear(client, rb"PING\r\n")
            client.sendall(b"PONG\r\n")
            self._hear(client, rb"CONSUMER\.CREATE.*\}\}\r\n")
            client.sendall(b"MSG inbox 1 %d\r\n%s\r\n" % (len(self._said), self._said) + self._pushed)
            while data := client.recv(65536):
                self.heard += data

    def _hear(self, client: socket.socket, pattern: bytes) -> None:
        while not re.search(pattern, self.heard, re.DOTALL):
            data = client.recv(65536)
            assert data
            self.heard += data

    def close(self) -> None:
        self._thread.join(_DEADLINE_SECONDS)
        self._listener.close()


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    started: list[Server] = []
    yield started
    for server in started:
        server.close()


def consumed(server: Server, count: int) -> NatsConsumer:
    """A consumer that has taken so many messages and answered them."""
    step = Step("drain", "drain", "drain")
    consumer = NatsConsumer(Job(Load("nats", ack_every=1), step, server.endpoint, 1.0), 0)
    try:
        consumer.begin()
        while consumer.ledger.count < count:
            assert select.select([consumer.wire], [], [], _DEADLINE_SECONDS)[0]
            consumer.read()
        consumer.finish()
    finally:
        consumer.wire.close()
    return consumer


def test_messages_are_taken_and_acknowledged_and_the_servers_question_answered(servers: list[Server]) -> None:
    numbers = [delivery(number) for number in range(300)]
    servers.append(Server({}, b"".join(numbers[:150]) + b"PING\r\n" + b"".join(numbers[150:])))

    consumer = consumed(servers[0], 300)
    servers[0].close()

    assert consumer.ledger.complaint() == ""
    acks = re.findall(rb"PUB \$JS\.ACK\.bench\.c\.1\.(\d+)\.\d+\.7\.0 4\r\n\+ACK\r\n", servers[0].heard)
    assert [int(number) for number in acks] == list(range(300))
    assert servers[0].heard.count(b"PONG\r\n") == 1


def test_a_damaged_message_is_noticed(servers: list[Server]) -> None:
    damaged = delivery(1, b"?" * _SIZE)
    servers.append(Server({}, delivery(0) + damaged + b"".join([delivery(number) for number in range(2, 20)])))

    with pytest.raises(Wrong, match="never sent"):
        consumed(servers[0], 20)


def test_a_consumer_that_is_refused_is_what_the_broker_cannot_do(servers: list[Server]) -> None:
    servers.append(Server({"error": {"description": "JetStream not enabled"}}, b""))

    with pytest.raises(Unsupported, match="JetStream not enabled"):
        consumed(servers[0], 1)
