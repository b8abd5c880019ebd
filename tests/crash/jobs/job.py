"""What the clients of a crowd have in common: connections, payloads, and the form of a job. No jobs."""

import contextlib
import random
from collections.abc import Callable
from typing import Any

import httpx
import pika
from paho.mqtt.client import MQTTMessageInfo
from paho.mqtt.packettypes import PacketTypes

from tests.crash.ledger import Ledger
from tests.paho_helpers import Paho, said
from tests.servers import Server

SECONDS = 60

Opened = contextlib.ExitStack
"""Takes what has to be closed in the end."""
Step = Callable[[int], None]
"""What a client does again and again, with the number of the time."""
Job = Callable[[Ledger, Server, random.Random, Opened], Step]


def payload_of(chance: random.Random, count: int) -> bytes:
    """Bytes that no other message has, mostly few and sometimes many."""
    most = 9000 if chance.random() < 0.03 else 300
    return b"%d %d:" % (count, chance.getrandbits(48)) + chance.randbytes(chance.randrange(most))


def channel_of(server: Server, opened: Opened, confirms: bool = True) -> Any:
    parameters = pika.ConnectionParameters("127.0.0.1", server.port, heartbeat=0)
    connection = pika.BlockingConnection(parameters)
    opened.callback(connection.close)
    channel = connection.channel()
    if confirms:
        channel.confirm_delivery()
    return channel


def http_of(server: Server, opened: Opened) -> httpx.Client:
    base = f"http://127.0.0.1:{server.http_port}/api"
    return opened.enter_context(httpx.Client(base_url=base, auth=("guest", "guest"), timeout=SECONDS))


def declare(ledger: Ledger, channel: Any, queue: str, **options: Any) -> None:
    with ledger.stating("queue", queue):
        channel.queue_declare(queue, durable=True, **options)


class Teller(Paho):
    """A client that waits for each answer without a pause."""

    def tell(self, topic: str, payload: str | bytes, qos: int, retain: bool = False, **options: Any) -> None:
        properties = said(PacketTypes.PUBLISH, **options) if options else None
        info: MQTTMessageInfo = self.client.publish(topic, payload, qos, retain, properties)
        info.wait_for_publish(SECONDS)
        assert info.is_published()
