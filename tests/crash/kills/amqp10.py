"""Clients of AMQP 1.0, by python-qpid-proton: senders, receivers, transactions, durable subscriptions."""

from collections.abc import Callable
from typing import Any

from proton import Delivery, Event, Link, Message, Terminus
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container, ReceiverOption
from proton.utils import BlockingConnection

from tests.crash.kills.amqp091 import Moves
from tests.crash.kills.book import Book, Found
from tests.crash.kills.message import body_of, number_of, uid_of
from tests.crash.kills.part import Part
from tests.servers import Server

_CREDIT = 30
_SECONDS = 60
_SUBSCRIPTIONS = ("news0", "news1")
_CONTAINER = "kills"


class Durable(ReceiverOption):
    """A subscription that outlives its connection."""

    def apply(self, receiver: Link) -> None:
        receiver.source.durability = Terminus.DELIVERIES
        receiver.source.expiry_policy = Terminus.EXPIRE_NEVER


class Amqp10(Part):
    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.ten = Book("ten")
        self.settled = Book("ten.settled", is_watched=False)
        self.news = {name: Book(name, is_watched=False) for name in _SUBSCRIPTIONS}
        self.moves = Moves("ten.tx")

    def set_up(self) -> None:
        channel = self.server.connect().channel()
        for name in ("ten", "ten.settled", *self.moves.queues):
            channel.queue_declare(name, durable=True)
        connection = self._subscriber()
        for name in _SUBSCRIPTIONS:
            connection.create_receiver("news/#", name=name, options=Durable(), credit=0)
            self.facts.told(f"queue {_CONTAINER}:{name}", True)
        connection.close()

    def counts(self) -> dict[str, int]:
        return {
            "ten accepted": self.ten.confirmed,
            "ten settled": self.ten.settled,
            "ten news": self.news["news0"].confirmed,
            "ten tx": self.moves.committed,
            "ten facts": self.facts.count,
        }

    def work(self) -> list[Callable[[], None]]:
        return [self._run_sender, self._run_receiver, self._run_transactions, self._tell_news, self._subscribe]

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def _subscriber(self) -> BlockingConnection:
        container = Container()
        container.container_id = _CONTAINER
        return BlockingConnection(self.url, timeout=_SECONDS, container=container)

    def _run_sender(self) -> None:
        Container(_Sender(self)).run()

    def _run_receiver(self) -> None:
        Container(_Receiver(self)).run()

    def _run_transactions(self) -> None:
        Container(_Mover(self)).run()

    def _tell_news(self) -> None:
        """Send to a topic with two subscriptions whose subscriber is away, one by one."""
        connection = BlockingConnection(self.url, timeout=_SECONDS)
        sender = connection.create_sender("news/today")
        publisher = self.publisher("news")
        for number in range(1 << 30):
            uid = uid_of(publisher, number)
            for book in self.news.values():
                book.sending(uid)
            sender.send(_message(uid))
            for book in self.news.values():
                book.told(uid)

    def _subscribe(self) -> None:
        """Durable subscriptions that come and go."""
        container = Container()
        container.container_id = f"r{self.round}"
        connection = BlockingConnection(self.url, timeout=_SECONDS, container=container)
        number = 0
        while True:
            number += 1
            fact = f"queue r{self.round}:s{number}"
            self.facts.asking(fact, True)
            receiver = connection.create_receiver("elsewhere/#", name=f"s{number}", options=Durable())
            self.facts.told(fact, True)
            if number % 2:
                self.facts.asking(fact, False)
                receiver.close()
                self.facts.told(fact, False)

    def check(self, killed_at: float) -> list[str]:
        problems: list[str] = []
        for book in (self.ten, self.settled):
            found = self._received(book.name, book.name)
            problems += book.check(found, killed_at)
            book.drained(found)
        for name, book in self.news.items():
            found = self._received(f"{_CONTAINER}:{name}", "news/#", name=name, options=Durable())
            problems += book.check(found, killed_at)
            book.drained(found)
        return problems + self.moves.check(self.server, killed_at)

    def _received(self, queue: str, address: str, **options: Any) -> list[Found]:
        """All messages of a queue, accepted."""
        count = self.server.connect().channel().queue_declare(queue, passive=True).method.message_count
        connection = self._subscriber()
        receiver = connection.create_receiver(address, credit=100, **options)
        found: list[Found] = []
        for _ in range(count):
            message = receiver.receive(timeout=_SECONDS)
            receiver.accept()
            wrong = "" if bytes(message.body) == body_of(message.id) else "its body"
            if message.properties != {"uid": message.id, "number": number_of(message.id)}:
                wrong = f"its properties {message.properties}"
            found.append(Found(message.id, message.delivery_count > 0, wrong))
        connection.create_sender("ten")  # a round trip
        connection.close()
        return found


class _Client(MessagingHandler, TransactionHandler):
    """Ends with its connection."""

    def __init__(self, part: Amqp10, **options: Any) -> None:
        super().__init__(**options)
        self.part = part

    def on_start(self, event: Event) -> None:
        self.container = event.container
        self.connection = event.container.connect(self.part.url, reconnect=False)
        self.begin()

    def begin(self) -> None:
        raise NotImplementedError

    def on_transport_error(self, event: Event) -> None:
        self._end("the transport failed")

    def on_disconnected(self, event: Event) -> None:
        self._end("disconnected")

    def on_link_error(self, event: Event) -> None:
        self._end(f"a link failed: {event.link.remote_condition}")

    def on_connection_error(self, event: Event) -> None:
        self._end(f"the connection failed: {event.connection.remote_condition}")

    def _end(self, reason: str) -> None:
        self.container.stop()
        if not self.part.over.wait(0.5):
            raise AssertionError(reason)


class _Sender(_Client):
    """Sends all that it has credit for, and knows what was accepted; every fifth goes settled, to another queue."""

    def begin(self) -> None:
        self.publisher = self.part.publisher("ten")
        self.number = 0
        self.uids: dict[str, str] = {}
        self.sender = self.container.create_sender(self.connection, "/queues/ten")
        self.careless = self.container.create_sender(self.connection, "/queues/ten.settled")

    def on_sendable(self, event: Event) -> None:
        while self.sender.credit and len(self.uids) < _CREDIT:
            uid = uid_of(self.publisher, self.number)
            self.number += 1
            if self.number % 5 == 0 and self.careless.credit:
                self.part.settled.sending(uid)
                self.careless.send(_message(uid)).settle()
            else:
                self.part.ten.sending(uid)
                self.uids[self.sender.send(_message(uid)).tag] = uid

    def on_accepted(self, event: Event) -> None:
        self.part.ten.told(self.uids.pop(event.delivery.tag))
        self.on_sendable(event)

    def on_rejected(self, event: Event) -> None:
        raise AssertionError("a queue without limits refused a message")

    on_released = on_rejected


class _Receiver(_Client):
    """Accepts most, releases some, and keeps some."""

    def __init__(self, part: Amqp10) -> None:
        super().__init__(part, prefetch=_CREDIT, auto_accept=False, auto_settle=False)
        self.settled: list[str] = []

    def begin(self) -> None:
        self.receiver = self.container.create_receiver(self.connection, "ten")

    def on_message(self, event: Event) -> None:
        uid = event.message.id
        delivery = event.delivery
        self.part.ten.given(uid)
        kind = number_of(uid) % 10
        if kind == 0 and self.receiver.unsettled < _CREDIT // 2:
            return
        if kind == 1:
            delivery.update(Delivery.RELEASED)
            self.part.ten.released(uid)
        else:
            self.part.ten.settling(uid)
            delivery.update(Delivery.ACCEPTED)
            self.settled.append(uid)
        delivery.settle()
        if len(self.settled) >= 20:
            # The answer to an attach comes after everything sent before it was heard.
            settled, self.settled = self.settled, []
            link = self.container.create_sender(self.connection, "ten", name=settled[0])
            link.settled_before = settled

    def on_link_opened(self, event: Event) -> None:
        settled = getattr(event.link, "settled_before", None)
        if settled:
            self.part.ten.ended(settled)
            event.link.close()


class _Mover(_Client):
    """Moves messages from one queue to two others, in transactions that are committed or not."""

    def __init__(self, part: Amqp10) -> None:
        super().__init__(part, prefetch=0, auto_accept=False, auto_settle=False)
        self.number = 0

    def begin(self) -> None:
        inbox, left, right = self.part.moves.queues
        self.feeding = self.container.create_sender(self.connection, f"/queues/{inbox}")
        self.senders = [self.container.create_sender(self.connection, f"/queues/{name}") for name in (left, right)]
        self.receiver = self.container.create_receiver(self.connection, inbox)
        self.publisher = self.part.publisher("tentx")
        self.uid = ""

    def on_sendable(self, event: Event) -> None:
        if not self.uid and all([sender.credit for sender in (self.feeding, *self.senders)]):
            self._feed()

    def _feed(self) -> None:
        self.uid = uid_of(self.publisher, self.number)
        self.number += 1
        self.part.moves.inbox.sending(self.uid)
        self.feeding.send(_message(self.uid))

    def on_accepted(self, event: Event) -> None:
        if event.link == self.feeding:
            self.part.moves.inbox.told(self.uid)
            self.container.declare_transaction(self.connection, handler=self, settle_before_discharge=True)

    def on_transaction_declared(self, event: Event) -> None:
        self.transaction = event.transaction
        self.receiver.flow(1)

    def on_message(self, event: Event) -> None:
        moved = event.message.id
        for sender in self.senders:
            self.transaction.send(sender, _message(moved))
        self.transaction.accept(event.delivery)
        self.moved = moved
        if self.number % 4 == 3:
            self.transaction.abort()
        else:
            self.part.moves.committing(moved)
            self.transaction.commit()

    def on_transaction_committed(self, event: Event) -> None:
        self.part.moves.told(self.moved)
        self._feed()

    def on_transaction_aborted(self, event: Event) -> None:
        self._feed()

    def on_transaction_commit_failed(self, event: Event) -> None:
        raise AssertionError("a transaction failed")


def _message(uid: str) -> Message:
    return Message(id=uid, body=body_of(uid), durable=True, properties={"uid": uid, "number": number_of(uid)})
