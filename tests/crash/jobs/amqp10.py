"""Clients of AMQP 1.0: acceptances, transactions, outcomes, durable subscriptions."""

import random
import threading
from typing import Any

from proton import Delivery, Event, Link, Message
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import ReceiverOption
from proton.utils import BlockingConnection

from headrace.protocols.amqp10.performatives import NEVER, UNSETTLED_STATE, Attach, Detach
from tests.amqp10_client import RawClient, receiver
from tests.crash.jobs.job import SECONDS, Opened, Step, channel_of, declare, payload_of
from tests.crash.ledger import Ledger, Life, Whole
from tests.servers import Server

_CONTAINER = "crowd"


def accepting(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Messages that AMQP 1.0 accepts."""
    declare(ledger, channel_of(server, opened), "ten")
    connection = BlockingConnection(f"127.0.0.1:{server.port}", timeout=SECONDS)
    opened.callback(connection.close)
    sender = connection.create_sender("/queues/ten")

    def step(count: int) -> None:
        payload = payload_of(chance, count)
        with ledger.publishing(payload, "ten"):
            sender.send(Message(body=payload, inferred=True, durable=True))

    return step


class Discharging(MessagingHandler, TransactionHandler):
    """Transactions of AMQP 1.0, one after the other."""

    def __init__(
        self, ledger: Ledger, url: str, chance: random.Random, stop: threading.Event, done: dict[str, int]
    ) -> None:
        super().__init__()
        self._ledger = ledger
        self._url = url
        self._stop = stop
        self._chance = chance
        self._comes: list[tuple[str, Life]] = []
        self._done = done
        self._count = 0

    def on_start(self, event: Event) -> None:
        self._container = event.container
        self._connection = event.container.connect(self._url)
        self._senders = {
            queue: event.container.create_sender(self._connection, f"/queues/{queue}") for queue in ("ten-a", "ten-b")
        }

    def on_sendable(self, event: Event) -> None:
        if not self._count and all(sender.credit for sender in self._senders.values()):
            self._count = 1
            self._declare()

    def _declare(self) -> None:
        self._container.declare_transaction(self._connection, handler=self)

    def on_transaction_declared(self, event: Event) -> None:
        self._comes = []
        for queue, sender in self._senders.items():
            payload = payload_of(self._chance, self._count)
            self._comes.append((queue, self._ledger.sends(queue, payload)))
            event.transaction.send(sender, Message(body=payload, inferred=True))
        self._ledger.wholes.append(Whole(self._comes, []))
        event.transaction.commit()

    def on_transaction_committed(self, event: Event) -> None:
        self._ledger.confirm(*[life for _, life in self._comes])
        self._done["_discharging"] = self._count
        self._count += 1
        if self._stop.is_set():
            self._connection.close()
        else:
            self._declare()


def settling_second(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Messages whose receiver of AMQP 1.0 settles second: it is told when its outcome is settled."""
    channel = channel_of(server, opened)
    declare(ledger, channel, "second")
    connection = BlockingConnection(f"127.0.0.1:{server.port}", timeout=SECONDS)
    opened.callback(connection.close)
    receiver = connection.create_receiver("/queues/second", credit=1, options=_Second())

    def step(count: int) -> None:
        payload = payload_of(chance, count)
        with ledger.publishing(payload, "second"):
            channel.basic_publish("", "second", payload)
        if count % 2:
            oldest = next(life for life in ledger.queues["second"] if life.is_waiting)
            receiver.receive(timeout=SECONDS)
            delivery = receiver.fetcher.unsettled.pop()
            with ledger.removing(oldest):
                delivery.update(Delivery.ACCEPTED)
                connection.wait(lambda: delivery.settled, timeout=SECONDS)
            delivery.settle()

    return step


class _Second(ReceiverOption):
    """Has a receiver settle after the broker."""

    def apply(self, receiver: Any) -> None:
        receiver.snd_settle_mode = Link.SND_UNSETTLED
        receiver.rcv_settle_mode = Link.RCV_SECOND


def subscribing(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Durable subscriptions: their queues get messages while nobody reads, until their links are closed for good."""
    channel = channel_of(server, opened)
    client = RawClient(server.port, _CONTAINER)
    opened.callback(client.close)
    client.begin()

    def step(count: int) -> None:
        name = f"sub{count % 3}"
        queue = f"{_CONTAINER}:{name}"
        with (
            ledger.stating("queue", queue),
            ledger.stating("binding", f"amq.topic>{queue}"),
            ledger.stating("source", f"{_CONTAINER} {name}"),
        ):
            client.send(_durable(name))
            client.expect(Attach)
        is_over = chance.random() < 0.4
        if not is_over:
            client.send(Detach(0, False))
            client.expect(Detach)
        payload = payload_of(chance, count)
        with ledger.publishing(payload, queue):
            channel.basic_publish("amq.topic", f"ten.{name}", payload)
        if is_over:
            with (
                ledger.removing(*ledger.queues[queue]),
                ledger.stating("queue", queue, ""),
                ledger.stating("binding", f"amq.topic>{queue}", ""),
                ledger.stating("source", f"{_CONTAINER} {name}", ""),
            ):
                client.send(Detach(0, True))
                client.expect(Detach)

    return step


def _durable(name: str) -> Attach:
    attach = receiver(name, f"ten/{name}")
    assert attach.source is not None
    attach.source.durable, attach.source.expiry_policy = UNSETTLED_STATE, NEVER
    return attach
