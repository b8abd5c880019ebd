"""Scenarios to count: one message's way through the core, the codecs and the routes. Run by count.py, under callgrind.

Every scenario runs twice: first to make what is made once, then for the count, between two calls of `mark`.
"""

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from pamqp import commands, common

from bench.guard import others
from bench.guard.client import PERSISTENT, Client, House, ack_frame, publish_frames
from headrace.clock import ManualClock
from headrace.core.broker import Broker
from headrace.core.queue.definition import declared
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.core.queue.group import ACK
from headrace.core.routing.exchange import Binding, Exchange
from headrace.core.routing.exchanges import Exchanges
from headrace.model import Message, Source
from headrace.protocols.amqp091.codec import Decoder as AmqpDecoder
from headrace.protocols.amqp091.codec import DeliverEncoder
from headrace.protocols.amqp091.frames import FRAME_MAX_SIZE, PROTOCOL_HEADER
from headrace.protocols.mqtt.codec import Decoder as MqttDecoder
from headrace.protocols.mqtt.codec import PublishEncoder, encode_publish
from headrace.protocols.mqtt.packets import V5
from headrace.storage.api import Engine
from headrace.storage.local.engine import LocalEngine
from headrace.storage.memory import MemoryEngine

COUNT = 1000
BATCH = 100
PAYLOAD = b"x" * 100
TOPIC = "plant/7/line/3/temperature"
Run = Callable[[], object]


def mark() -> None:
    """callgrind writes down what it has counted so far whenever getsid is called, which nothing else does."""
    os.getsid(0)


class Cycle:
    """Publish, deliver and acknowledge in batches, on one durable queue."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._soon: list[Callable[[], None]] = []
        self._clock = ManualClock()
        self._broker = Broker(engine, self._clock, self._soon.append)
        self._inbox: list[Delivery] = []
        self._broker.declare(declared("orders", durable=True))
        self._broker.consume("orders", Consumer("guard", self._inbox.extend, credit=2 * BATCH))
        self._turn()

    def _turn(self) -> None:
        while self._soon:
            soon, self._soon[:] = list(self._soon), []
            for call in soon:
                call()
            self._engine.sync()

    def run(self) -> None:
        source = Source("orders", "", "guard", "guard")
        confirmed: list[object] = []
        for _ in range(COUNT // BATCH):
            now_us = self._clock.now_us()
            for _ in range(BATCH):
                self._broker.publish(Message(source, PAYLOAD, now_us), confirmed.append)
            self._turn()
            deliveries, self._inbox[:] = list(self._inbox), []
            for delivery in deliveries:
                self._broker.settle(delivery, ACK)
            self._turn()
        assert confirmed == [None] * COUNT, "a publish was refused"


def scenarios(folder: Path) -> Iterator[tuple[str, Run]]:
    local = LocalEngine(folder / "data")
    yield "core cycle, memory engine", Cycle(MemoryEngine()).run
    yield "core cycle, local engine", Cycle(local).run
    local.close()
    yield from amqp091()
    whole = LocalEngine(folder / "whole")
    yield from connections(whole)
    whole.close()
    real = LocalEngine(folder / "real")
    yield from real_messages(real)
    real.close()
    routed = LocalEngine(folder / "routed")
    yield from routed_messages(routed)
    routed.close()
    other = LocalEngine(folder / "others")
    yield from others.scenarios(other, COUNT)
    other.close()
    many = LocalEngine(folder / "many")
    yield f"AMQP 0-9-1, {COUNT} queues, one message each", scattered(many)
    many.close()
    yield from mqtt()
    yield "topic exchange, 1000 bindings, new key", routing()


def amqp091() -> Iterator[tuple[str, Run]]:
    publish = publish_frames("orders", PAYLOAD)
    acknowledge = ack_frame(1, False)
    decoder = AmqpDecoder()
    decoder.feed(PROTOCOL_HEADER + publish)
    encoder = DeliverEncoder(1, "ctag1.0", FRAME_MAX_SIZE)
    encoder.address(Source("orders", "", "guard", "amqp091"), "", "orders")

    def encode() -> None:
        out: list[bytes] = []
        for tag in range(COUNT):
            encoder.encode(out, tag, False, PERSISTENT, PAYLOAD)
        encoder.finish(out)
        b"".join(out)

    yield "AMQP 0-9-1, decode publish", lambda: decoder.feed(publish * COUNT)
    yield "AMQP 0-9-1, decode ack", lambda: decoder.feed(acknowledge * COUNT)
    yield "AMQP 0-9-1, encode deliver", encode


def connections(engine: Engine) -> Iterator[tuple[str, Run]]:
    """From the bytes that a client sends to those that it gets, stored in between; only the sockets are left out."""
    house = House(engine)
    client = Client(house, COUNT)
    for queue, kind in (("stream", "stream"), ("orders", "classic"), ("backlog", "classic")):
        client.declare(queue, kind)
    to_stream, to_orders, to_backlog = (publish_frames(queue, PAYLOAD) for queue in ("stream", "orders", "backlog"))
    client.take()
    tag = stored = 0

    def publish() -> None:
        nonlocal stored
        stored += COUNT
        for _ in range(COUNT // BATCH):
            client.feed(to_stream * BATCH)
            assert client.take().startswith(b"\1\0\1"), "nothing was confirmed"

    def acknowledge(one_by_one: bool) -> None:
        nonlocal tag
        for _ in range(COUNT // BATCH):
            if one_by_one:
                client.feed(b"".join([ack_frame(number, False) for number in range(tag + 1, tag + BATCH + 1)]))
            else:
                client.feed(ack_frame(tag + BATCH, True))
            tag += BATCH

    def consume(queue: str, one_by_one: bool) -> None:
        arguments: common.FieldTable = {"x-stream-offset": stored - COUNT} if queue == "stream" else {}
        client.call(commands.Basic.Consume(queue=queue, consumer_tag="guard", arguments=arguments))
        assert client.take().count(PAYLOAD) == COUNT, "not all was delivered"
        acknowledge(one_by_one)
        client.call(commands.Basic.Cancel(consumer_tag="guard"))

    def pass_on() -> None:
        nonlocal tag
        for _ in range(COUNT // BATCH):
            client.feed(to_orders * BATCH)
            assert client.take().count(PAYLOAD) == BATCH, "not all was delivered"
            tag += BATCH
            client.feed(ack_frame(tag, True))

    def fill() -> None:
        client.feed(to_backlog * COUNT)

    yield "AMQP 0-9-1 stream, publish, confirmed", publish
    yield "AMQP 0-9-1 stream, read, acked by 100", lambda: consume("stream", False)
    client.call(commands.Basic.Consume(queue="orders", consumer_tag="orders"))
    yield "AMQP 0-9-1 queue, end to end", pass_on
    yield "AMQP 0-9-1 queue, fill a backlog", fill
    yield "AMQP 0-9-1 queue, drain, acked one by one", lambda: consume("backlog", True)


def scattered(engine: Engine) -> Run:
    """End to end, with another queue for each message: all that is done per queue and turn is done per message."""
    client = Client(House(engine), COUNT)
    queues = [f"queue-{number}" for number in range(COUNT)]
    client.consume_all(queues)
    client.take()
    batches = [
        b"".join([publish_frames(queue, PAYLOAD) for queue in queues[start : start + BATCH]])
        for start in range(0, COUNT, BATCH)
    ]
    tag = 0

    def pass_on() -> None:
        nonlocal tag
        for batch in batches:
            client.feed(batch)
            assert client.take().count(PAYLOAD) == BATCH, "not all was delivered"
            tag += BATCH
            client.feed(ack_frame(tag, True))

    return pass_on


def with_ids(number: int, key: str = "real", exchange: str = "") -> bytes:
    """A message with an id and a timestamp of its own."""
    properties = commands.Basic.Properties(
        delivery_mode=2, message_id=f"{number:032x}", timestamp=datetime.fromtimestamp(1_700_000_000 + number, UTC)
    )
    return publish_frames(key, PAYLOAD, exchange, properties.marshal())


def mixed(number: int) -> bytes:
    """A message with ids, three headers and a body of 24 bytes to 8 KiB."""
    properties = commands.Basic.Properties(
        content_type="application/json",
        headers={"traceparent": f"00-{number:032x}-{number:016x}-01", "tenant": f"tenant-{number % 50}", "try": number},
        delivery_mode=2,
        correlation_id=f"{number * 7:032x}",
        message_id=f"{number:032x}",
        timestamp=datetime.fromtimestamp(1_700_000_000 + number, UTC),
        app_id="shop",
    )
    size = 24 + number * 7919 % 1000 if number % 10 else 24 + number * 7919 % 8168
    return publish_frames("real", b"x" * size, properties=properties.marshal())


def pass_on(client: Client, make: Callable[[int], bytes], batch: int = BATCH) -> Run:
    """End to end: each batch of messages is published, delivered and acknowledged."""
    sent = [make(number) for number in range(COUNT)]
    batches = [b"".join(sent[start : start + batch]) for start in range(0, COUNT, batch)]

    def run() -> None:
        for frames in batches:
            client.feed(frames)
            assert client.take().count(b"\0\x3c\0\x3c") == batch, "not all was delivered"
            client.delivered += batch
            client.feed(ack_frame(client.delivered, True))

    return run


def real_messages(engine: Engine) -> Iterator[tuple[str, Run]]:
    """Messages that all differ; then one by one, each after the confirm of the last."""
    client = Client(House(engine), COUNT)
    client.declare("real", "classic")
    client.call(commands.Basic.Consume(queue="real", consumer_tag="real"))
    client.take()
    yield "AMQP 0-9-1 queue, messages with ids", pass_on(client, with_ids)
    yield "AMQP 0-9-1 queue, mixed messages", pass_on(client, mixed)
    yield "AMQP 0-9-1 queue, one by one", pass_on(client, with_ids, 1)


def routed_messages(engine: Engine) -> Iterator[tuple[str, Run]]:
    """Messages with ids that get to their queue in other ways, or to one with limits."""
    client = Client(House(engine), COUNT)
    client.declare("events", "classic")
    client.declare("bounded", "classic", {"x-max-length": 10 * COUNT, "x-message-ttl": 60_000})
    client.call(commands.Exchange.Declare(exchange="shop", exchange_type="topic", durable=True))
    client.call(commands.Queue.Bind(queue="events", exchange="shop", routing_key="eu.#"))
    for queue in ("events", "bounded"):
        client.call(commands.Basic.Consume(queue=queue, consumer_tag=queue))
    client.take()
    yield (
        f"AMQP 0-9-1 topic exchange, {COUNT} keys",
        pass_on(client, lambda number: with_ids(number, f"eu.order-{number}", "shop")),
    )
    yield "AMQP 0-9-1 queue, by its address", pass_on(client, lambda number: with_ids(number, "$queue/events"))
    yield (
        "AMQP 0-9-1 queue, limit and time to live",
        pass_on(client, lambda number: with_ids(number, "bounded")),
    )


def mqtt() -> Iterator[tuple[str, Run]]:
    decoder = MqttDecoder(1 << 28, 16)
    connect = b"\0\4MQTT" + bytes((V5, 2, 0, 60)) + b"\0" + b"\0\1a"
    decoder.feed(bytes((0x10, len(connect))) + connect)
    publish = encode_publish(V5, TOPIC, PAYLOAD, 1, packet_id=7)
    encoder = PublishEncoder(V5, TOPIC, PAYLOAD)

    def encode() -> None:
        for number in range(1, COUNT + 1):
            encoder.encode(1, False, number)

    yield "MQTT 5, decode publish", lambda: decoder.feed(publish * COUNT)
    yield "MQTT 5, encode publish", encode


def routing() -> Run:
    exchanges = Exchanges()
    exchanges.declare(Exchange("x", "topic"))
    for number in range(1000):
        exchanges.bind(Binding("x", f"queue-{number}", f"*.order-{number}.#" if number % 2 else f"eu.order-{number}"))
    keys = iter([f"eu.order-7.{number}" for number in range(2 * COUNT)])

    def route() -> None:
        for _ in range(COUNT):
            exchanges.route("x", next(keys))

    return route


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    gc.disable()  # when it runs depends on all that was made before
    try:
        with Path(sys.argv[1]).open("w") as names:
            for name, run in scenarios(folder):
                run()
                mark()
                run()
                mark()
                names.write(f"{name}\n")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
