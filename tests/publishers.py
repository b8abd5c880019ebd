"""Publishers for tests that go on through anything: each message is tried until it is confirmed, then the next."""

import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

import paho.mqtt.client as paho
import pika
from paho.mqtt.enums import CallbackAPIVersion
from pika.adapters.blocking_connection import BlockingConnection

_PAUSE_SECONDS = 0.1
_BETWEEN_SECONDS = 0.05
"""There are several of them, and the store's server, in one process."""
_AGAIN_SECONDS = 0.5
logging.getLogger("pika").setLevel(logging.CRITICAL)  # it tells every connection that is refused, at length
PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Publisher(ABC):
    """A thread that publishes `name:0`, `name:1`, ... to a queue, and knows which of them were confirmed."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.port = port
        self.confirmed = 0
        """So many were, from the first on."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def wait_for(self, more: int) -> None:
        """Return when so many more were confirmed."""
        wanted, deadline = self.confirmed + more, time.monotonic() + 120
        while self.confirmed < wanted:
            assert time.monotonic() < deadline, f"{self.name} stopped at {self.confirmed}"
            time.sleep(_PAUSE_SECONDS)

    def _run(self) -> None:
        while not self._ending.is_set():
            with contextlib.suppress(Exception):  # whatever it is, it is tried again
                self._publish_all()
            self._ending.wait(_AGAIN_SECONDS)

    @abstractmethod
    def _publish_all(self) -> None:
        """Connect, and publish until something goes wrong or it is to end."""

    def _body(self) -> bytes:
        return b"%s:%d" % (self.name.encode(), self.confirmed)


class PikaPublisher(Publisher):
    """AMQP 0-9-1, with publisher confirms."""

    def __init__(self, name: str, port: int, queue: str) -> None:
        super().__init__(name, port)
        self._queue = queue

    def _publish_all(self) -> None:
        parameters = pika.ConnectionParameters("127.0.0.1", self.port, heartbeat=0, socket_timeout=5, stack_timeout=10)
        connection = BlockingConnection(parameters)
        try:
            channel = connection.channel()
            channel.queue_declare(self._queue, durable=True)
            channel.confirm_delivery()
            while not self._ending.is_set():
                channel.basic_publish("", self._queue, self._body(), PERSISTENT, mandatory=True)
                self.confirmed += 1
                time.sleep(_BETWEEN_SECONDS)
        finally:
            with contextlib.suppress(Exception):
                connection.close()


class PahoPublisher(Publisher):
    """MQTT 5, QoS 1: what is acknowledged is confirmed."""

    def __init__(self, name: str, port: int, queue: str) -> None:
        super().__init__(name, port)
        self._topic = f"$queue/{queue}/all"

    def _publish_all(self) -> None:
        client = paho.Client(CallbackAPIVersion.VERSION2, self.name, protocol=paho.MQTTv5)
        refused = threading.Event()
        client.on_publish = lambda _1, _2, _3, code, _4: refused.set() if code.is_failure else None
        client.connect("127.0.0.1", self.port, keepalive=60)
        self._turn(client, client.is_connected)
        while not self._ending.is_set() and not refused.is_set():
            sent = client.publish(self._topic, self._body(), qos=1)
            self._turn(client, sent.is_published)
            if not refused.is_set():
                self.confirmed += 1
            time.sleep(_BETWEEN_SECONDS)
        client.disconnect()

    def _turn(self, client: paho.Client, done: Callable[[], bool]) -> None:
        """Send and receive until this is so. Who gives up while the connection stands cannot tell what comes of it."""
        while not done():
            if client.loop(_PAUSE_SECONDS) != paho.MQTT_ERR_SUCCESS or self._ending.is_set():
                raise ConnectionError("the connection is lost")


def check(bodies: list[bytes], publisher: Publisher) -> None:
    """Everything confirmed is there, and nothing came after what was published later: one writer at a time wrote it."""
    mine = [int(body.rpartition(b":")[2]) for body in bodies if body.startswith(publisher.name.encode() + b":")]
    assert set(range(publisher.confirmed)) <= set(mine), f"{publisher.name}: confirmed messages are missing"
    assert mine == sorted(mine), f"{publisher.name}: a message was stored after a later one"
