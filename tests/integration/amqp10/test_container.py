"""AMQP 1.0 with python-qpid-proton's container API: long links, transactions, $management."""

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from proton import Event, Message, Url
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container

from tests.servers import Server, drain


class _Pump(MessagingHandler):
    """Sends so many messages on one link, then receives them on another."""

    def __init__(self, url: str, queue: str, count: int, prefetch: int) -> None:
        super().__init__(prefetch=prefetch)
        self._url = url
        self._queue = queue
        self._count = count
        self._sent = 0
        self.accepted = 0
        self.received = 0
        self.in_order = True
        self._connection: Any = None

    def on_start(self, event: Event) -> None:
        self._connection = event.container.connect(self._url)
        event.container.create_sender(self._connection, self._queue)

    def on_sendable(self, event: Event) -> None:
        while event.sender.credit and self._sent < self._count:
            event.sender.send(Message(id=self._sent, body=f"m{self._sent}"))
            self._sent += 1

    def on_accepted(self, event: Event) -> None:
        self.accepted += 1
        if self.accepted == self._count:
            event.container.create_receiver(self._connection, self._queue)

    def on_message(self, event: Event) -> None:
        self.in_order = self.in_order and event.message.body == f"m{self.received}"
        self.received += 1
        if self.received == self._count:
            event.connection.close()

    def on_transport_error(self, event: Event) -> None:
        raise AssertionError(event.transport.condition)


@pytest.mark.parametrize(("count", "prefetch"), [(12_000, 10), (3_000, 2), (3_000, 1000)])
def test_a_long_link_does_not_stall(server: Server, queue: str, count: int, prefetch: int) -> None:
    """More than the credit of a link (1024), and more than the window of a session (4096), several times over."""
    pump = _Pump(f"127.0.0.1:{server.port}", queue, count, prefetch)

    Container(pump).run()

    assert (pump.accepted, pump.received, pump.in_order) == (count, count, True)


class _Transactions(MessagingHandler, TransactionHandler):
    """Sends five in a transaction that is aborted, five in one that is committed; then takes one back and one out."""

    def __init__(self, url: str, queue: str) -> None:
        super().__init__(prefetch=0)
        self._url = url
        self._queue = queue
        self._transaction: Any = None
        self._sender: Any = None
        self.ends: list[str] = []
        self.stages = iter(["abort", "commit"])
        self.stage = ""

    def on_start(self, event: Event) -> None:
        self._container = event.container
        self._connection = event.container.connect(self._url)
        self._sender = event.container.create_sender(self._connection, self._queue)
        self._begin()

    def _begin(self) -> None:
        self.stage = next(self.stages, "")
        if not self.stage:
            self._connection.close()
            return
        self._container.declare_transaction(self._connection, handler=self)

    def on_transaction_declared(self, event: Event) -> None:
        self._transaction = event.transaction
        for number in range(5):
            self._transaction.send(self._sender, Message(body=f"{self.stage}{number}"))
        if self.stage == "abort":
            self._transaction.abort()
        else:
            self._transaction.commit()

    def on_transaction_committed(self, event: Event) -> None:
        self.ends.append("committed")
        self._begin()

    def on_transaction_aborted(self, event: Event) -> None:
        self.ends.append("aborted")
        self._begin()


def test_a_transaction_publishes_all_or_nothing(server: Server, queue: str, channel: BlockingChannel) -> None:
    handler = _Transactions(f"127.0.0.1:{server.port}", queue)

    Container(handler).run()

    assert handler.ends == ["aborted", "committed"]
    assert drain(channel, queue, 5, quiet=1) == [b"commit%d" % number for number in range(5)]


class _Taking(MessagingHandler, TransactionHandler):
    """Takes messages in transactions: what an aborted one took comes again."""

    def __init__(self, url: str, queue: str) -> None:
        super().__init__(prefetch=0, auto_accept=False)
        self._url = url
        self._queue = queue
        self._transaction: Any = None
        self._aborts = 1
        self.got: list[tuple[bytes, int]] = []

    def on_start(self, event: Event) -> None:
        self._container = event.container
        self._connection = event.container.connect(self._url)
        self._receiver = event.container.create_receiver(self._connection, self._queue)
        self._container.declare_transaction(self._connection, handler=self, settle_before_discharge=True)

    def on_transaction_declared(self, event: Event) -> None:
        self._transaction = event.transaction
        self._receiver.flow(2)
        self._batch = 0

    def on_message(self, event: Event) -> None:
        self.got.append((bytes(event.message.body), event.message.delivery_count))
        self._transaction.accept(event.delivery)
        self._batch += 1
        if self._batch == 2:
            if self._aborts:
                self._aborts -= 1
                self._transaction.abort()
            else:
                self._transaction.commit()

    def on_transaction_aborted(self, event: Event) -> None:
        self._container.declare_transaction(self._connection, handler=self, settle_before_discharge=True)

    def on_transaction_committed(self, event: Event) -> None:
        self._connection.close()


def test_a_transaction_takes_all_or_nothing(server: Server, queue: str, channel: BlockingChannel) -> None:
    for number in range(3):
        channel.basic_publish("", queue, b"%d" % number)
    handler = _Taking(f"127.0.0.1:{server.port}", queue)

    Container(handler).run()

    assert [body for body, _ in handler.got] == [b"0", b"1", b"0", b"1"]
    assert [count for _, count in handler.got] == [0, 0, 1, 1]
    assert drain(channel, queue, 1, quiet=1) == [b"2"]


class _Requests(MessagingHandler):
    """Sends requests to $management one after the other and keeps the answers."""

    def __init__(self, url: str, requests: list[Message]) -> None:
        super().__init__()
        self._url = Url(url)
        self._requests = requests
        self.answers: list[tuple[int, object]] = []

    def on_start(self, event: Event) -> None:
        self._connection = event.container.connect(self._url)
        self._sender = event.container.create_sender(self._connection, "$management")
        self._receiver = event.container.create_receiver(self._connection, None, dynamic=True)

    def on_link_opened(self, event: Event) -> None:
        if event.receiver == self._receiver:
            self._next()

    def _next(self) -> None:
        request = self._requests[len(self.answers)]
        request.reply_to = self._receiver.remote_source.address
        request.correlation_id = len(self.answers)
        self._sender.send(request)

    def on_message(self, event: Event) -> None:
        assert event.message.correlation_id == len(self.answers)
        self.answers.append((event.message.properties["statusCode"], event.message.body))
        if len(self.answers) == len(self._requests):
            event.connection.close()
        else:
            self._next()


def _request(operation: str, name: str = "", body: object = None, **more: object) -> Message:
    properties = {"operation": operation, "type": "queue", **({"name": name} if name else {}), **more}
    return Message(properties=properties, body=body)


def test_queues_are_managed_by_messages(server: Server, name: str) -> None:
    handler = _Requests(
        f"127.0.0.1:{server.port}",
        [
            _request("CREATE", name, {"type": "stream", "retention": {"max_age": "1h"}}),
            _request("CREATE", name, {"type": "stream", "retention": {"max_age": "1h"}}),
            _request("READ", name),
            _request("CREATE", name + ".2", {"durable": True, "arguments": {"x-max-length": 5}}),
            _request("QUERY", body={"attributeNames": ["name", "type"]}),
            _request("DELETE", name),
            _request("READ", name),
            _request("CREATE", name, {"no-such-key": 1}),
            _request("FLY", name),
            Message(properties={"operation": "READ", "type": "cloud", "name": "x"}),
        ],
    )

    Container(handler).run()

    assert [status for status, _ in handler.answers] == [201, 200, 200, 201, 200, 204, 404, 400, 400, 400]
    read = handler.answers[2][1]
    assert isinstance(read, dict)
    assert (read["name"], read["type"], read["message_count"]) == (name, "stream", 0)
    found = handler.answers[4][1]
    assert isinstance(found, dict)
    assert [name, "stream"] in found["results"]
    assert [name + ".2", "classic"] in found["results"]
