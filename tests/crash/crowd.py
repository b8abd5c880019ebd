"""Clients of every protocol that do all at once what a broker answers, and note each answer in a ledger. No tests."""

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pika
from paho.mqtt.client import MQTTMessageInfo
from paho.mqtt.packettypes import PacketTypes
from proton import Delivery, Event, Link, Message
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container, ReceiverOption
from proton.utils import BlockingConnection

from tests.crash.ledger import Ledger, Life, Whole
from tests.paho_helpers import Paho, said, told, wait_for
from tests.servers import Server

_SECONDS = 60

Opened = contextlib.ExitStack
"""Takes what has to be closed in the end."""
Step = Callable[[int], None]
"""What a client does again and again, with the number of the time."""
Job = Callable[[Ledger, Server, random.Random, Opened], Step]


class Crowd:
    """All clients, each with a connection, a thread and queues of its own."""

    def __init__(self, server: Server, ledger: Ledger, seed: int) -> None:
        self.ledger = ledger
        self._server = server
        self._seed = seed
        self._stop = threading.Event()
        self._go = threading.Event()
        self._go.set()
        self._errors: list[BaseException] = []
        self._done: dict[str, int] = {}
        """How often each client got through what it does."""

    def run(self, seconds: float, least: int) -> None:
        """Keep the broker busy for so long, and until each client got through so often."""
        jobs: list[Job] = [
            _confirming,
            _transacting,
            _declaring,
            _rejecting,
            _accepting,
            _retaining,
            _assuring,
            _subscribing,
            _administering,
            _getting,
            _acknowledging,
            _settling_second,
        ]
        threads = [
            threading.Thread(target=self._work, args=(job, number), daemon=True) for number, job in enumerate(jobs)
        ]
        threads.append(threading.Thread(target=self._discharge, daemon=True))
        for thread in threads:
            thread.start()
        with Opened() as opened:
            settle = _settling(self.ledger, self._server, random.Random(self._seed), opened)
            started = time.monotonic()
            count = 0
            while (
                time.monotonic() < started + seconds
                or len(self._done) < len(threads)
                or min(self._done.values()) < least
            ):
                assert time.monotonic() < started + _SECONDS, self._done
                if self._errors:
                    break
                settle(count, self._go)
                count += 1
                time.sleep(0.4)
        self._stop.set()
        for thread in threads:
            thread.join(_SECONDS)
        if self._errors:
            raise self._errors[0]

    def _work(self, job: Job, number: int) -> None:
        try:
            chance = random.Random(self._seed * 100 + number)
            with contextlib.ExitStack() as opened:
                step = job(self.ledger, self._server, chance, opened)
                for count in itertools.count():
                    self._go.wait()
                    if self._stop.is_set():
                        return
                    step(count)
                    self._done[job.__name__] = count
        except BaseException as error:
            self._errors.append(error)

    def _discharge(self) -> None:
        try:
            with Opened() as opened:
                for queue in ("ten-a", "ten-b"):
                    _declared(self.ledger, _channel(self._server, opened), queue)
            chance = random.Random(self._seed * 100 + 99)
            url = f"127.0.0.1:{self._server.port}"
            Container(_Discharging(self.ledger, url, chance, self._stop, self._done)).run()
        except BaseException as error:
            self._errors.append(error)


def _payload(chance: random.Random, count: int) -> bytes:
    """Bytes that no other message has, mostly few and sometimes many."""
    most = 9000 if chance.random() < 0.03 else 300
    return b"%d %d:" % (count, chance.getrandbits(48)) + chance.randbytes(chance.randrange(most))


def _channel(server: Server, opened: Opened, confirms: bool = True) -> Any:
    parameters = pika.ConnectionParameters("127.0.0.1", server.port, heartbeat=0)
    connection = pika.BlockingConnection(parameters)
    opened.callback(connection.close)
    channel = connection.channel()
    if confirms:
        channel.confirm_delivery()
    return channel


def _http(server: Server, opened: Opened) -> httpx.Client:
    base = f"http://127.0.0.1:{server.http_port}/api"
    return opened.enter_context(httpx.Client(base_url=base, auth=("guest", "guest"), timeout=_SECONDS))


def _declared(ledger: Ledger, channel: Any, queue: str, **options: Any) -> None:
    with ledger.stating("queue", queue):
        channel.queue_declare(queue, durable=True, **options)


def _confirming(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Publisher confirms of AMQP 0-9-1: to one queue, to two at once, and to one that is not durable."""
    channel = _channel(server, opened)
    for queue in ("plain", "fan-1", "fan-2"):
        _declared(ledger, channel, queue)
    with ledger.stating("exchange", "fan"):
        channel.exchange_declare("fan", "fanout", durable=True)
    for queue in ("fan-1", "fan-2"):
        with ledger.stating("binding", f"fan>{queue}"):
            channel.queue_bind(queue, "fan")
    channel.queue_declare("fleeting", durable=False)

    def step(count: int) -> None:
        payload = _payload(chance, count)
        if count % 3 == 0:
            channel.basic_publish("", "fleeting", payload)
        elif count % 3 == 1:
            with ledger.publishing(payload, "fan-1", "fan-2"):
                channel.basic_publish("fan", "", payload)
        else:
            with ledger.publishing(payload, "plain"):
                channel.basic_publish("", "plain", payload)

    return step


def _transacting(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """tx.commit: messages come to two queues and to a third, from which one goes."""
    channel = _channel(server, opened, confirms=False)
    for queue in ("tx-a", "tx-b", "tx-in"):
        _declared(ledger, channel, queue)
    channel.tx_select()

    def step(count: int) -> None:
        comes: list[tuple[str, Life]] = []
        goes: list[tuple[str, Life]] = []
        for queue in ("tx-a", "tx-b", "tx-in"):
            payload = _payload(chance, count)
            channel.basic_publish("", queue, payload)
            comes.append((queue, ledger.sends(queue, payload)))
        method, _, body = channel.basic_get("tx-in")
        if method is not None:
            (life,) = [life for life in ledger.queues["tx-in"] if life.payload == body]
            channel.basic_ack(method.delivery_tag)
            goes.append(("tx-in", life))
        ledger.wholes.append(Whole([pair for pair in comes if pair[0] != "tx-in"], goes))
        with ledger.removing(*[life for _, life in goes]):
            channel.tx_commit()
        ledger.confirm(*[life for _, life in comes])

    return step


def _declaring(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Queues, exchanges and bindings that come, hold something, are purged, go, and come again by the same names."""
    channel = _channel(server, opened)

    def step(count: int) -> None:
        queue, exchange = f"changing-{count % 3}", f"changing-{count % 2}"
        _declared(ledger, channel, queue)
        with ledger.stating("exchange", exchange):
            channel.exchange_declare(exchange, "direct", durable=True)
        with ledger.stating("binding", f"{exchange}>{queue}"):
            channel.queue_bind(queue, exchange, queue)
        for number in range(chance.randrange(6)):
            payload = _payload(chance, count * 10 + number)
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


def _rejecting(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Dead letters: each message is in its queue or, once it is rejected, in the other."""
    channel = _channel(server, opened)
    _declared(ledger, channel, "graves")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"}
    _declared(ledger, channel, "jobs", arguments=arguments)
    ledger.queues.setdefault("jobs", [])
    ledger.queues.setdefault("graves", [])
    ledger.moves.add(("jobs", "graves"))

    def step(count: int) -> None:
        payload = _payload(chance, count)
        with ledger.publishing(payload, "jobs"):
            channel.basic_publish("", "jobs", payload)
        if count % 3 == 2:
            method, _, body = channel.basic_get("jobs")
            if method is not None:
                (life,) = [life for life in ledger.queues["jobs"] if life.payload == body]
                life.leaving_ns = time.monotonic_ns()
                ledger.sends("graves", body)
                channel.basic_reject(method.delivery_tag, requeue=False)

    return step


def _accepting(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Messages that AMQP 1.0 accepts."""
    _declared(ledger, _channel(server, opened), "ten")
    connection = BlockingConnection(f"127.0.0.1:{server.port}", timeout=_SECONDS)
    opened.callback(connection.close)
    sender = connection.create_sender("/queues/ten")

    def step(count: int) -> None:
        payload = _payload(chance, count)
        with ledger.publishing(payload, "ten"):
            sender.send(Message(body=payload, inferred=True, durable=True))

    return step


class _Discharging(MessagingHandler, TransactionHandler):
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
            payload = _payload(self._chance, self._count)
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


def _retaining(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Retained messages of MQTT that come, change and go."""
    client = _Teller(server.mqtt_port, "retaining")
    opened.callback(client.close)

    def step(count: int) -> None:
        topic = f"state/{count % 5}"
        value = "" if chance.random() < 0.2 else f"{count}"
        with ledger.stating("retained", topic, value):
            client.tell(topic, f"={value}" if value else "", 1 + count % 2, True)

    return step


def _assuring(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Messages of MQTT at QoS 1 and 2: for a queue, and for a session whose client is away."""
    _declared(ledger, _channel(server, opened), "mq")
    away, news = f"away-{chance.getrandbits(32)}", f"news/{chance.getrandbits(32)}"
    with ledger.stating("session", away), ledger.stating("subscription", f"{away} {news}"):
        client = Paho(server.mqtt_port, away, 4, clean=False)
        client.subscribe(news, 1)
    client.close()
    writer = _Teller(server.mqtt_port, "assuring")
    opened.callback(writer.close)

    def step(count: int) -> None:
        payload = _payload(chance, count)
        topic, queue = ("$queue/mq/x", "mq") if count % 2 else (news, f"$session/{away}")
        with ledger.publishing(payload, queue):
            writer.tell(topic, payload, 1 + count // 2 % 2)

    return step


def _subscribing(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
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


def _administering(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Users, permissions, queues and messages over HTTP."""
    client = _http(server, opened)

    def ask(method: str, path: str, body: object = None) -> None:
        client.request(method, path, json=body).raise_for_status()

    def step(count: int) -> None:
        user, queue = f"user-{count % 3}", f"web-{count % 2}"
        with ledger.stating("user", user):
            ask("PUT", f"/users/{user}", {"password_hash": "", "tags": ""})
        with ledger.stating("permission", user, f"w{count}"):
            ask("PUT", f"/permissions/%2F/{user}", {"configure": "", "write": f"w{count}", "read": ""})
        with ledger.stating("queue", queue):
            ask("PUT", f"/queues/%2F/{queue}", {"durable": True})
        payload = f"{count}:{chance.random()}"
        with ledger.publishing(payload.encode(), queue):
            body = {"properties": {}, "routing_key": queue, "payload": payload, "payload_encoding": "string"}
            ask("POST", "/exchanges/%2F/amq.default/publish", body)
        if chance.random() < 0.4:
            with ledger.removing(*ledger.queues[queue]), ledger.stating("queue", queue, ""):
                ask("DELETE", f"/queues/%2F/{queue}")
        if chance.random() < 0.4:
            with ledger.stating("user", user, ""), ledger.stating("permission", user, ""):
                ask("DELETE", f"/users/{user}")

    return step


def _getting(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Messages that HTTP takes out of a queue: the answer says that they are settled."""
    channel = _channel(server, opened)
    _declared(ledger, channel, "got")
    client = _http(server, opened)

    def step(count: int) -> None:
        payload = _payload(chance, count)
        with ledger.publishing(payload, "got"):
            channel.basic_publish("", "got", payload)
        if count % 2:
            oldest = next(life for life in ledger.queues["got"] if life.is_waiting)
            with ledger.removing(oldest):
                body = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
                client.post("/queues/%2F/got/get", json=body).raise_for_status()

    return step


def _acknowledging(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Messages of a queue that MQTT settles by name, answered by PUBACK or PUBCOMP."""
    channel = _channel(server, opened)
    _declared(ledger, channel, "acked")
    reader = _Teller(server.mqtt_port, "acknowledging")
    opened.callback(reader.close)
    reader.subscribe("$queue/acked", 1)

    def step(count: int) -> None:
        payload = _payload(chance, count)
        with ledger.publishing(payload, "acked"):
            channel.basic_publish("", "acked", payload)
        if count % 2:
            oldest = next(life for life in ledger.queues["acked"] if life.is_waiting)
            wait_for(lambda: any(message.payload == oldest.payload for message in reader.messages))
            (message,) = [message for message in reader.messages if message.payload == oldest.payload]
            names = told(message)
            user = [(name, names[name]) for name in ("message-id", "group-id")]
            with ledger.removing(oldest):
                reader.tell("$queue/acked/$ack", b"", 1 + count // 2 % 2, user=user)

    return step


def _settling_second(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Messages whose receiver of AMQP 1.0 settles second: it is told when its outcome is settled."""
    channel = _channel(server, opened)
    _declared(ledger, channel, "second")
    connection = BlockingConnection(f"127.0.0.1:{server.port}", timeout=_SECONDS)
    opened.callback(connection.close)
    receiver = connection.create_receiver("/queues/second", credit=1, options=_Second())

    def step(count: int) -> None:
        payload = _payload(chance, count)
        with ledger.publishing(payload, "second"):
            channel.basic_publish("", "second", payload)
        if count % 2:
            oldest = next(life for life in ledger.queues["second"] if life.is_waiting)
            receiver.receive(timeout=_SECONDS)
            delivery = receiver.fetcher.unsettled.pop()
            with ledger.removing(oldest):
                delivery.update(Delivery.ACCEPTED)
                connection.wait(lambda: delivery.settled, timeout=_SECONDS)
            delivery.settle()

    return step


class _Second(ReceiverOption):
    """Has a receiver settle after the broker."""

    def apply(self, receiver: Any) -> None:
        receiver.snd_settle_mode = Link.SND_UNSETTLED
        receiver.rcv_settle_mode = Link.RCV_SECOND


def _settling(
    ledger: Ledger, server: Server, chance: random.Random, opened: Opened
) -> Callable[[int, threading.Event], None]:
    """Messages that go to segments and are settled while nobody else has anything synced: all may come again."""
    channel = _channel(server, opened)
    _declared(ledger, channel, "settled")

    def settle(count: int, go: threading.Event) -> None:
        lives: list[Life] = []
        for number in range(30):
            payload = _payload(chance, count * 100 + number) + bytes(700)
            with ledger.publishing(payload, "settled"):
                channel.basic_publish("", "settled", payload)
            lives.append(ledger.queues["settled"][-1])
        go.clear()
        try:
            time.sleep(0.03)  # for those that are on their way
            for life in lives:
                method, _, _ = channel.basic_get("settled")
                life.leaving_ns = time.monotonic_ns()
                if method is not None:
                    channel.basic_ack(method.delivery_tag)
            time.sleep(0.1)
        finally:
            go.set()

    return settle


class _Teller(Paho):
    """A client that waits for each answer without a pause."""

    def tell(self, topic: str, payload: str | bytes, qos: int, retain: bool = False, **options: Any) -> None:
        properties = said(PacketTypes.PUBLISH, **options) if options else None
        info: MQTTMessageInfo = self.client.publish(topic, payload, qos, retain, properties)
        info.wait_for_publish(_SECONDS)
        assert info.is_published()
