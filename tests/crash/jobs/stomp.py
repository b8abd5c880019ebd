"""Clients of STOMP: receipts of messages, acknowledgements, transactions and durable subscriptions."""

import random
from typing import Any

from tests.crash.jobs.job import Opened, Step, channel_of, declare, payload_of
from tests.crash.kills.stomp import Line
from tests.crash.ledger import Ledger, Life, Whole
from tests.servers import Server


class _Line(Line):
    """A connection whose requests wait for their receipts."""

    def __init__(self, server: Server, opened: Opened) -> None:
        super().__init__(server)
        self._count = 0
        opened.callback(self.client.disconnect)

    def sure(self, call: Any, *arguments: object, **headers: str) -> None:
        self._count += 1
        name = f"r{self._count}"
        call(*arguments, receipt=name, **headers)
        self.receipt(name)

    def send(self, destination: str, payload: bytes) -> None:
        self.sure(self.client.send, destination, payload, persistent="true")


def sending(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """SEND, ACK, and COMMIT of two messages that come and one that goes."""
    channel = channel_of(server, opened)
    for queue in ("stomp", "stomp-in", "stomp-a", "stomp-b"):
        declare(ledger, channel, queue)
    line = _Line(server, opened)
    headers = {"prefetch-count": "1"}
    line.client.subscribe("/queue/stomp-in", id="in", ack="client-individual", headers=headers)

    def got() -> tuple[Life, str]:
        """A message, and the name by which it is acknowledged."""
        (frame,) = line.messages()
        return ledger.with_payload("stomp-in", frame.body), frame.headers["ack"]

    def step(count: int) -> None:
        payload = payload_of(chance, count)
        queue = "stomp" if count % 3 == 0 else "stomp-in"
        with ledger.publishing(payload, queue):
            line.send(f"/queue/{queue}", payload)
        if count % 3 == 1:
            life, name = got()
            with ledger.removing(life):
                line.sure(line.client.ack, name)
        elif count % 3 == 2:
            _commit(ledger, line, *got(), payloads=(payload_of(chance, count), payload_of(chance, count)))

    return step


def _commit(ledger: Ledger, line: _Line, life: Life, name: str, payloads: tuple[bytes, bytes]) -> None:
    transaction = line.client.begin()
    comes: list[tuple[str, Life]] = []
    for queue, payload in zip(("stomp-a", "stomp-b"), payloads, strict=True):
        comes.append((queue, ledger.sends(queue, payload)))
        line.client.send(f"/queue/{queue}", payload, transaction=transaction)
    line.client.ack(name, transaction=transaction)
    ledger.wholes.append(Whole(comes, [("stomp-in", life)]))
    with ledger.removing(life):
        line.sure(line.client.commit, transaction)
    ledger.confirm(*[each for _, each in comes])


def subscribing(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Durable subscriptions that come, hold what is published, and go."""
    line = _Line(server, opened)
    watched: set[str] = set()

    def step(count: int) -> None:
        queue, topic = f"watch-{count % 3}", f"/topic/watch.{count % 3}"
        if queue not in watched:
            with ledger.stating("queue", queue), ledger.stating("binding", f"amq.topic>{queue}"):
                headers = {"durable": "true", "x-queue-name": queue, "prefetch-count": "1"}
                line.sure(line.client.subscribe, topic, queue, "client", **headers)
            watched.add(queue)
        payload = payload_of(chance, count)
        with ledger.publishing(payload, queue):
            line.send(topic, payload)
        if chance.random() < 0.4:
            with (
                ledger.removing(*ledger.queues[queue]),
                ledger.stating("queue", queue, ""),
                ledger.stating("binding", f"amq.topic>{queue}", ""),
            ):
                line.sure(line.client.unsubscribe, queue, durable="true")
            watched.discard(queue)

    return step
