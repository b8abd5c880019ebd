"""The broker inside your own program: `async with headrace.open("./data") as broker`. Awaitable calls of core.

No network. Everything runs in the event loop that opened it; only the engine has threads of its own.
"""

import asyncio
import contextlib
import difflib
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Protocol, TypedDict, Unpack, final

from headrace.clock import Clock, SystemClock
from headrace.core.broker import Broker
from headrace.core.client import ConsumeRequest, insider
from headrace.core.queue.definition import QueueDefinition, declared
from headrace.core.queue.dispatch import Delivery
from headrace.core.queue.group import ACK, NACK, REJECT, RELEASE
from headrace.core.queue.queue import Queue
from headrace.core.routing.exchange import Binding, Exchange
from headrace.core.transaction import Publish
from headrace.errors import Fatal, HeadraceError, Refused
from headrace.model import Message, Source
from headrace.storage.api import Engine
from headrace.storage.local.engine import LocalEngine
from headrace.storage.memory import MemoryEngine
from headrace.wire.encodings import properties_of
from headrace.wire.properties import Properties, encode_native

_PROTOCOL: Final = "embedded"
_TICK_SECONDS: Final = 0.1
DEFAULT_CREDIT: Final = 100


class QueueArguments(TypedDict, total=False):
    """The arguments of `declare`: RabbitMQ's without `x-` and with underscores. Times are in milliseconds."""

    queue_type: Literal["classic", "quorum", "stream", "ephemeral"]
    expires: int
    max_length: int
    max_length_bytes: int
    max_age: str
    overflow: Literal["drop-head", "reject-publish", "reject-publish-dlx"]
    message_ttl: int
    max_priority: int
    single_active_consumer: bool
    consumer_timeout: int
    delivery_limit: int
    dead_letter_exchange: str
    dead_letter_routing_key: str
    filter: str
    source: str
    source_from: str | int | datetime


class Held(Protocol):
    """A message that a consumer holds."""

    @property
    def delivery(self) -> Delivery: ...


@final
class Received:
    """A message that you hold: settle it with `ack`, `nack`, `reject` or `release`, or let its lease run out."""

    __slots__ = ("_broker", "_delivery", "_properties")

    def __init__(self, broker: Broker, delivery: Delivery) -> None:
        self._broker = broker
        self._delivery = delivery
        self._properties: Properties | None = None

    @property
    def delivery(self) -> Delivery:
        """The delivery as core knows it, for transactions."""
        return self._delivery

    @property
    def payload(self) -> bytes:
        return self._delivery.message.payload

    @property
    def topic(self) -> str:
        return self._delivery.message.source.topic

    @property
    def headers(self) -> Mapping[str, object]:
        return self.properties.headers

    @property
    def properties(self) -> Properties:
        if self._properties is None:
            self._properties = properties_of(self._delivery.message)
        return self._properties

    @property
    def offset(self) -> int:
        return self._delivery.offset

    @property
    def attempts(self) -> int:
        """The number of deliveries in this group, this one included."""
        return self._delivery.attempts

    def ack(self) -> None:
        """Remove the message. Raises Refused if its lease ran out and another consumer has it."""
        self._broker.settle(self._delivery, ACK)

    def nack(self) -> None:
        """Retry the message after the queue's backoff; it becomes a dead letter after too many attempts."""
        self._broker.settle(self._delivery, NACK)

    def reject(self) -> None:
        """Make the message a dead letter, or drop it if the queue has no place for dead letters."""
        self._broker.settle(self._delivery, REJECT)

    def release(self) -> None:
        """Give the message back untried; any consumer may get it at once."""
        self._broker.settle(self._delivery, RELEASE)

    def renew(self, seconds: float) -> None:
        """Extend the lease to this many seconds from now."""
        self._broker.renew(self._delivery, round(seconds * 1000))


@final
class Transaction:
    """Publishes and settlements that happen together, or not at all, at the end of a block without an exception."""

    def __init__(self, now_us: int, most_bytes: int) -> None:
        self.publishes: list[Publish] = []
        self.settlements: list[tuple[Delivery, int]] = []
        self._now_us = now_us
        self._left_bytes = most_bytes

    def publish(self, key: str, payload: bytes, exchange: str = "") -> None:
        """Add a publish. Raises Refused if the transaction gets larger than memory may hold."""
        self._left_bytes -= len(payload)
        if self._left_bytes < 0:
            raise Refused("the transaction is too large to be held in memory; commit it in parts")
        self.publishes.append(Publish(Message(Source(key, exchange), payload, self._now_us)))

    def ack(self, received: Held) -> None:
        self.settlements.append((received.delivery, ACK))

    def reject(self, received: Held) -> None:
        self.settlements.append((received.delivery, REJECT))


@final
class EmbeddedBroker:
    """A durable broker in your process. `core` is the broker itself, for calls without a shorthand here."""

    def __init__(self, engine: Engine, core: Broker, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self.core = core
        self._client = insider(core, _PROTOCOL)

    async def declare(self, queue: str | QueueDefinition, **arguments: Unpack[QueueArguments]) -> Queue:
        """Declare a queue, durable unless its definition says otherwise; returns once that is durable.

        Arguments are RabbitMQ's without `x-` and with underscores: `declare("jobs", max_length=1000)`. Raises TypeError
        for others, and where a definition says all.
        """
        _check_arguments(arguments)
        if isinstance(queue, str):
            table = {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}
            queue = declared(queue, durable=True, arguments=table)
        elif arguments:
            raise TypeError(f"declare() takes a definition or arguments, not both: {', '.join(arguments)}")
        found = self.core.declare(queue)
        await self._safe()
        return found

    async def declare_exchange(self, name: str, kind: str = "topic") -> None:
        self.core.declare_exchange(Exchange(name, kind, durable=True))
        await self._safe()

    async def bind(self, exchange: str, queue: str, key: str = "#") -> None:
        self.core.bind(Binding(exchange, queue, key))
        await self._safe()

    async def delete(self, queue: str) -> int:
        """Delete a queue; returns how many messages it had."""
        count = self.core.delete(queue)
        await self._safe()
        return count

    async def publish(
        self,
        key: str,
        payload: bytes,
        *,
        exchange: str = "",
        headers: Mapping[str, object] | None = None,
        content_type: str = "",
        priority: int = 0,
        expires_in: float = 0,
        deliver_in: float = 0,
    ) -> int:
        """Publish to a queue by name, to a `$queue/` address, or to an exchange; returns how many queues took it.

        Returns once the message is durable in all of them. Times are in seconds.
        """
        now_us = self._clock.now_us()
        properties = b""
        if headers or content_type:
            properties = encode_native(Properties(headers, content_type))
        message = Message(
            Source(key, exchange, protocol=_PROTOCOL),
            payload,
            now_us,
            properties,
            priority,
            now_us + round(expires_in * 1_000_000) if expires_in else 0,
            now_us + round(deliver_in * 1_000_000) if deliver_in else 0,
        )
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        taken = self.core.publish(message, lambda error: _resolve(confirmed, error), headers)
        await confirmed
        return taken

    @contextlib.asynccontextmanager
    async def consume(
        self,
        queue: str,
        *,
        group: str = "",
        name: str = _PROTOCOL,
        credit: int = DEFAULT_CREDIT,
        key_filter: str = "",
        position: object = None,
        mode: str = "",
    ) -> AsyncIterator[AsyncIterator[Received]]:
        """Consume a queue for the length of a block; unsettled messages go back to the queue at its end.

        With the mode `work` a group shares the messages of a stream like those of a work queue. The iterator raises
        Corrupt if the queue is damaged, and NotFound if it is deleted.
        """
        arrived: asyncio.Queue[Received | HeadraceError] = asyncio.Queue()

        def deliver(deliveries: list[Delivery]) -> None:
            for delivery in deliveries:
                arrived.put_nowait(Received(self.core, delivery))

        request = ConsumeRequest(queue, group=group)
        request.key_filter = key_filter
        request.mode = mode
        request.position = position
        request.credit = credit
        plan = self._client.resolve(request)
        consumer = self._client.consumer(plan, name, deliver)
        consumer.cancelled = lambda: arrived.put_nowait(plan.queue.end)
        self._client.consume(plan, consumer)
        try:
            yield _Arrivals(arrived)
        finally:
            self.core.cancel(consumer)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Publish and acknowledge as one: `async with broker.transaction() as tx: tx.publish(...); tx.ack(...)`."""
        transaction = Transaction(self._clock.now_us(), self.core.intake.most_bytes)
        yield transaction
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.core.transaction(transaction.publishes, transaction.settlements, lambda error: _resolve(confirmed, error))
        await confirmed

    async def _safe(self) -> None:
        """Return once the effect of every earlier call is durable."""
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.core.when_safe(lambda error: _resolve(confirmed, error))
        await confirmed


@final
class OpenBroker:
    """The context manager of `headrace.open`: entering opens the broker, leaving stores everything and closes it."""

    def __init__(self, data: Path | None, clock: Clock) -> None:
        self._data = data
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine: Engine | None = None
        self._broker: EmbeddedBroker | None = None
        self._ticking: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> EmbeddedBroker:
        loop = self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        engine = self._engine = MemoryEngine(self._wake) if self._data is None else LocalEngine(self._data, self._wake)

        def soon(call: Callable[[], None]) -> None:
            loop.call_soon(call)

        core = Broker(engine, self._clock, soon)
        self._broker = EmbeddedBroker(engine, core, self._clock)
        self._tick()
        return self._broker

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        if self._broker is not None:
            self._broker.core.drain()
        if self._engine is not None:
            self._engine.close()

    def _wake(self) -> None:
        """Schedule a poll. The engine calls this, in any thread."""
        if self._loop is None:
            return
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._poll)
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended, nobody waits for results
                self._loop.call_soon_threadsafe(self._poll)

    def _poll(self) -> None:
        if self._engine is not None:
            with contextlib.suppress(Fatal):  # every caller that waits gets it, and so does the next one that calls
                self._engine.poll()

    def _tick(self) -> None:
        if self._broker is not None and self._loop is not None:
            self._broker.core.tick()
            self._poll()
            self._ticking = self._loop.call_later(_TICK_SECONDS, self._tick)


def open_broker(data: str | Path | None = "data", clock: Clock | None = None) -> OpenBroker:
    """A broker over a data directory, created if needed; with None everything is in memory.

    Raises, on entering, Unavailable when another process has the directory and Corrupt when it is damaged.
    """
    return OpenBroker(None if data is None else Path(data), clock or SystemClock())


def _check_arguments(arguments: Mapping[str, object]) -> None:
    known = list(QueueArguments.__annotations__)
    for name in arguments:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise TypeError(f"declare() has no argument {name!r}; {meant}")


@final
class _Arrivals(AsyncIterator[Received]):
    """The messages that arrive. A wait that is cancelled, as by a timeout, loses none; the next one goes on."""

    def __init__(self, arrived: "asyncio.Queue[Received | HeadraceError]") -> None:
        self._arrived = arrived

    async def __anext__(self) -> Received:
        received = await self._arrived.get()
        if isinstance(received, HeadraceError):
            raise received
        return received


def _resolve(future: "asyncio.Future[None]", error: HeadraceError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
