"""Clients of MQTT: retained messages, sessions, both levels of assurance, settlements by name."""

import random

from tests.crash.jobs.job import Opened, Step, Teller, channel_of, declare, http_of, payload_of
from tests.crash.ledger import Ledger, Life
from tests.paho_helpers import Paho, told, wait_for
from tests.servers import Server


def retaining(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Retained messages of MQTT that come, change and go."""
    client = Teller(server.mqtt_port, "retaining")
    opened.callback(client.close)

    def step(count: int) -> None:
        topic = f"state/{count % 5}"
        value = "" if chance.random() < 0.2 else f"{count}"
        with ledger.stating("retained", topic, value):
            client.tell(topic, f"={value}" if value else "", 1 + count % 2, True)

    return step


def assuring(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Messages of MQTT at QoS 1 and 2: for a queue, and for a session whose client is away."""
    declare(ledger, channel_of(server, opened), "mq")
    away, news = f"away-{chance.getrandbits(32)}", f"news/{chance.getrandbits(32)}"
    with ledger.stating("session", away), ledger.stating("subscription", f"{away} {news}"):
        client = Paho(server.mqtt_port, away, 4, clean=False)
        client.subscribe(news, 1)
    client.close()
    writer = Teller(server.mqtt_port, "assuring")
    opened.callback(writer.close)

    def step(count: int) -> None:
        payload = payload_of(chance, count)
        topic, queue = ("$queue/mq/x", "mq") if count % 2 else (news, f"$session/{away}")
        with ledger.publishing(payload, queue):
            writer.tell(topic, payload, 1 + count // 2 % 2)

    return step


def subscribing(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Sessions of MQTT and their subscriptions that come and go."""

    def step(count: int) -> None:
        name = f"guest-{count % 4}"
        with ledger.stating("session", name):
            client = Paho(server.mqtt_port, name, 4, clean=False)
        for number in range(2):
            with ledger.stating("subscription", f"{name} some/{number}"):
                client.subscribe(f"some/{number}", 1)
        client.close()
        if chance.random() < 0.6:
            with (
                ledger.stating("session", name, ""),
                ledger.stating("subscription", f"{name} some/0", ""),
                ledger.stating("subscription", f"{name} some/1", ""),
            ):
                client = Paho(server.mqtt_port, name, 4, clean=True)
            client.close()

    return step


def settling(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Messages of a queue that are settled by name, with $ack, $nack and $reject; answered by PUBACK or PUBCOMP."""
    channel = channel_of(server, opened)
    with ledger.stating("queue", "acked"):
        retry = {"max_retries": 1000, "initial_backoff": "1ms", "max_backoff": "1ms"}
        http = http_of(server, opened)
        http.put("/v1/queues/%2F/acked", json={"retry": retry, "dlq": {"enabled": True}}).raise_for_status()
    reader = Teller(server.mqtt_port, "settling")
    opened.callback(reader.close)
    reader.subscribe("$queue/acked", 1)

    def deliveries(payload: bytes) -> list[dict[str, str]]:
        return [told(message) for message in list(reader.messages) if message.payload == payload]

    def settle(verb: str, life: Life, qos: int) -> None:
        names = deliveries(life.payload)[-1]
        user = [(name, names[name]) for name in ("message-id", "group-id")]
        reader.tell(f"$queue/acked/{verb}", b"", qos, user=user)

    def step(count: int) -> None:
        payload = payload_of(chance, count)
        with ledger.publishing(payload, "acked"):
            channel.basic_publish("", "acked", payload)
        if count % 2:
            oldest = ledger.waiting("acked")[0]
            wait_for(lambda: bool(deliveries(oldest.payload)))
            qos = 1 + count // 2 % 2
            if count % 3 == 0:
                settle("$nack", oldest, qos)
                ledger.give_back("acked", oldest)
                wait_for(lambda: len(deliveries(oldest.payload)) > 1)
            if count % 5 == 0:
                with ledger.moving("acked", "$dlq/acked", oldest):
                    settle("$reject", oldest, qos)
            else:
                with ledger.removing(oldest):
                    settle("$ack", oldest, qos)

    return step


def committing(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """A reader of a stream that says how far it is, with $commit."""
    channel = channel_of(server, opened)
    declare(ledger, channel, "read", arguments={"x-queue-type": "stream"})
    reader = Teller(server.mqtt_port, "committing")
    opened.callback(reader.close)
    reader.subscribe("$queue/read", 1, user=[("consumer-group", "crowd"), ("x-auto-commit", "false")])

    def step(count: int) -> None:
        payload = payload_of(chance, count)
        with ledger.publishing(payload, "read"):
            channel.basic_publish("", "read", payload)
        wait_for(lambda: any([message.payload == payload for message in list(reader.messages)]))
        names = told(reader.messages[-1])
        user = [(name, names[name]) for name in ("message-id", "group-id")]
        with ledger.stating("progress", "read crowd", str(len(ledger.queues["read"]))):
            reader.tell("$queue/read/$commit", b"", 1 + count % 2, user=user)

    return step
