"""Clients of AMQP 0-9-1: confirms, transactions, declarations, dead letters."""

import random

from tests.crash.jobs.job import Opened, Step, channel_of, declare, payload_of
from tests.crash.ledger import Ledger, Life, Whole
from tests.servers import Server


def confirming(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Publisher confirms of AMQP 0-9-1: to one queue, to two at once, and to one that is not durable."""
    channel = channel_of(server, opened)
    for queue in ("plain", "fan-1", "fan-2"):
        declare(ledger, channel, queue)
    with ledger.stating("exchange", "fan"):
        channel.exchange_declare("fan", "fanout", durable=True)
    for queue in ("fan-1", "fan-2"):
        with ledger.stating("binding", f"fan>{queue}"):
            channel.queue_bind(queue, "fan")
    channel.queue_declare("fleeting", durable=False)

    def step(count: int) -> None:
        payload = payload_of(chance, count)
        if count % 3 == 0:
            channel.basic_publish("", "fleeting", payload)
        elif count % 3 == 1:
            with ledger.publishing(payload, "fan-1", "fan-2"):
                channel.basic_publish("fan", "", payload)
        else:
            with ledger.publishing(payload, "plain"):
                channel.basic_publish("", "plain", payload)

    return step


def transacting(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """tx.commit: messages come to two queues and to a third, from which one goes."""
    channel = channel_of(server, opened, confirms=False)
    for queue in ("tx-a", "tx-b", "tx-in"):
        declare(ledger, channel, queue)
    channel.tx_select()

    def step(count: int) -> None:
        comes: list[tuple[str, Life]] = []
        goes: list[tuple[str, Life]] = []
        for queue in ("tx-a", "tx-b", "tx-in"):
            payload = payload_of(chance, count)
            channel.basic_publish("", queue, payload)
            comes.append((queue, ledger.sends(queue, payload)))
        method, _, body = channel.basic_get("tx-in")
        if method is not None:
            life = ledger.with_payload("tx-in", body)
            channel.basic_ack(method.delivery_tag)
            goes.append(("tx-in", life))
        ledger.wholes.append(Whole([pair for pair in comes if pair[0] != "tx-in"], goes))
        with ledger.removing(*[life for _, life in goes]):
            channel.tx_commit()
        ledger.confirm(*[life for _, life in comes])

    return step


def declaring(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Queues, exchanges and bindings that come, hold something, are purged, go, and come again by the same names."""
    channel = channel_of(server, opened)

    def step(count: int) -> None:
        queue, exchange = f"changing-{count % 3}", f"changing-{count % 2}"
        declare(ledger, channel, queue)
        with ledger.stating("exchange", exchange):
            channel.exchange_declare(exchange, "direct", durable=True)
        with ledger.stating("binding", f"{exchange}>{queue}"):
            channel.queue_bind(queue, exchange, queue)
        for number in range(chance.randrange(6)):
            payload = payload_of(chance, count * 10 + number)
            with ledger.publishing(payload, queue):
                channel.basic_publish(exchange, queue, payload)
            if number == 3:
                with ledger.removing(*ledger.queues[queue]):
                    channel.queue_purge(queue)
        if chance.random() < 0.3:
            with ledger.stating("binding", f"{exchange}>{queue}", ""):
                channel.queue_unbind(queue, exchange, queue)
        with (
            ledger.removing(*ledger.queues.get(queue, [])),
            ledger.stating("queue", queue, ""),
            ledger.stating("binding", f"{exchange}>{queue}", ""),
        ):
            channel.queue_delete(queue)
        if chance.random() < 0.3:
            with ledger.stating("exchange", exchange, ""):
                channel.exchange_delete(exchange)

    return step


def rejecting(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Dead letters: each message is in its queue or, once it is rejected, in the other."""
    channel = channel_of(server, opened)
    declare(ledger, channel, "graves")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"}
    declare(ledger, channel, "jobs", arguments=arguments)
    ledger.queues.setdefault("jobs", [])
    ledger.queues.setdefault("graves", [])

    def step(count: int) -> None:
        payload = payload_of(chance, count)
        with ledger.publishing(payload, "jobs"):
            channel.basic_publish("", "jobs", payload)
        if count % 3 == 2:
            method, _, body = channel.basic_get("jobs")
            if method is not None:
                ledger.leave_for("jobs", "graves", ledger.with_payload("jobs", body))
                channel.basic_reject(method.delivery_tag, requeue=False)

    return step
