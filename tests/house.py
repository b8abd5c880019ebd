"""A broker without a network: every call is made by the test, time moves only when told, nothing sleeps."""

from collections.abc import Callable

from headrace.clock import ManualClock
from headrace.core.broker import Broker
from headrace.core.queue.dispatch import Consumer, Credit, Delivery
from headrace.core.routing.exchange import Binding, Exchange
from headrace.errors import HeadraceError
from headrace.model import Message, Source
from headrace.storage.api import Engine
from headrace.storage.memory import MemoryEngine
from headrace.wire.encodings import encode_properties
from headrace.wire.properties import Properties


class Inbox:
    """A consumer that keeps what it gets."""

    def __init__(
        self, house: "House", name: str, credit: int, auto_ack: bool, priority: int, shared: Credit | None
    ) -> None:
        self._house = house
        self.got: list[Delivery] = []
        self.is_cancelled = False
        self.consumer = Consumer(name, self.got.extend, credit, auto_ack, priority, shared, owner=house.owner)
        self.consumer.cancelled = self._cancel

    def _cancel(self) -> None:
        self.is_cancelled = True

    @property
    def payloads(self) -> list[str]:
        return [delivery.message.payload.decode() for delivery in self.got]

    def take(self) -> list[Delivery]:
        """Deliveries since the last look."""
        taken = list(self.got)
        self.got.clear()
        return taken

    def texts(self) -> list[str]:
        """The payloads of what came since the last look."""
        return [delivery.message.payload.decode() for delivery in self.take()]


class House:
    """One broker over an engine; `run` lets everything happen that was started."""

    def __init__(self, engine: Engine | None = None, clock: ManualClock | None = None, host: str = "/") -> None:
        self.clock = clock or ManualClock()
        self.engine = engine or MemoryEngine()
        self.owner: object = None
        self._soon: list[Callable[[], None]] = []
        self.broker = Broker(self.engine, self.clock, self._soon.append, host)

    def run(self) -> None:
        """Let everything happen that was called for, and be stored, also what nobody waits for."""
        self.turn()
        self.broker.flush()
        self.turn()

    def turn(self) -> None:
        """Let everything happen that was called for."""
        while self._soon or self.engine.staged_bytes:
            soon, self._soon[:] = list(self._soon), []
            for call in soon:
                call()
            self.engine.sync()
        self.engine.sync()
        if self._soon:
            self.turn()

    def advance(self, seconds: float) -> None:
        """Let time pass, and whatever comes due happen."""
        self.clock.advance(seconds)
        self.broker.tick()
        self.run()

    def message(self, payload: str, topic: str, exchange: str = "", **options: object) -> Message:
        headers = options.pop("headers", None)
        properties = encode_properties(0, Properties(headers)) if isinstance(headers, dict) else b""
        source = Source(topic, exchange)
        return Message(source, payload.encode(), self.clock.now_us(), properties, **options)  # type: ignore[arg-type]

    def publish(self, topic: str, *payloads: str, exchange: str = "", **options: object) -> list[HeadraceError | None]:
        """Publish each payload; what was confirmed, in order."""
        confirmed: list[HeadraceError | None] = []
        for payload in payloads:
            headers = options.get("headers")
            message = self.message(payload, topic, exchange, **dict(options))
            self.broker.publish(message, confirmed.append, headers if isinstance(headers, dict) else None)
        self.run()
        return confirmed

    def publish_topic(self, topic: str, *payloads: str) -> int:
        taken = 0
        for payload in payloads:
            taken = self.broker.publish_topic(self.message(payload, topic))
        self.run()
        return taken

    def consume(
        self,
        queue: str,
        name: str = "consumer",
        credit: int = 0,
        auto_ack: bool = False,
        priority: int = 0,
        shared: Credit | None = None,
        **options: object,
    ) -> Inbox:
        inbox = Inbox(self, name, credit, auto_ack, priority, shared)
        self.broker.consume(queue, inbox.consumer, **options)  # type: ignore[arg-type]
        self.run()
        return inbox

    def settle(self, outcome: int, *deliveries: Delivery) -> None:
        for delivery in deliveries:
            self.broker.settle(delivery, outcome)
        self.run()

    def exchange(self, name: str, kind: str = "direct", **options: object) -> None:
        self.broker.declare_exchange(Exchange(name, kind, durable=True, **options))  # type: ignore[arg-type]
        self.run()

    def bind(self, exchange: str, queue: str, key: str = "", arguments: dict[str, object] | None = None) -> None:
        self.broker.bind(Binding(exchange, queue, key, arguments))
        self.run()
