"""The broker for programs without an event loop: `with headrace.open_sync("./data") as broker`. Calls that wait.

An event loop in a thread of its own runs the broker of embedded.py. Every other thread may call it.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack, final

from headrace.core.queue.definition import QueueDefinition
from headrace.core.queue.dispatch import Delivery
from headrace.core.queue.queue import Queue
from headrace.embedded import DEFAULT_CREDIT, EmbeddedBroker, QueueArguments, Received, Transaction, open_broker
from headrace.errors import Unavailable
from headrace.wire.properties import Properties

_NAME: Final = "embedded"
_Result = TypeVar("_Result")


@final
class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace", daemon=True)
        self._thread.start()

    def run(self, call: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine in the loop and return its result. Raises Unavailable after `close`."""
        if not self._thread.is_alive() or self._loop.is_closed():
            call.close()
            raise Unavailable("the broker is closed")
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C while it waits
            raise

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@final
class SyncReceived:
    """A message that you hold: settle it with `ack`, `nack`, `reject` or `release`, or let its lease run out."""

    __slots__ = ("_loop", "_received")

    def __init__(self, loop: _Loop, received: Received) -> None:
        self._loop = loop
        self._received = received

    @property
    def delivery(self) -> Delivery:
        """The delivery as core knows it, for transactions."""
        return self._received.delivery

    @property
    def payload(self) -> bytes:
        return self._received.payload

    @property
    def topic(self) -> str:
        return self._received.topic

    @property
    def headers(self) -> Mapping[str, object]:
        return self._received.headers

    @property
    def properties(self) -> Properties:
        return self._received.properties

    @property
    def offset(self) -> int:
        return self._received.offset

    @property
    def attempts(self) -> int:
        """The number of deliveries in this group, this one included."""
        return self._received.attempts

    def ack(self) -> None:
        """Remove the message. Raises Refused if its lease ran out and another consumer has it."""
        self._loop.run(_call(self._received.ack))

    def nack(self) -> None:
        """Retry the message after the queue's backoff; it becomes a dead letter after too many attempts."""
        self._loop.run(_call(self._received.nack))

    def reject(self) -> None:
        """Make the message a dead letter, or drop it if the queue has no place for dead letters."""
        self._loop.run(_call(self._received.reject))

    def release(self) -> None:
        """Give the message back untried; any consumer may get it at once."""
        self._loop.run(_call(self._received.release))

    def renew(self, seconds: float) -> None:
        """Extend the lease to this many seconds from now."""
        self._loop.run(_call(lambda: self._received.renew(seconds)))


@final
class Messages:
    """The messages of a consumer, one after the other: iterate, or ask for the next one with a limit of time."""

    def __init__(self, loop: _Loop, receive: Callable[[], Coroutine[Any, Any, Received]]) -> None:
        self._loop = loop
        self._receive = receive

    def __iter__(self) -> Iterator[SyncReceived]:
        while True:
            yield self.get()

    def get(self, timeout: float | None = None) -> SyncReceived:
        """Wait for the next message. Raises TimeoutError after so many seconds; None waits for ever.

        Raises Corrupt if the queue is damaged, and NotFound if it is deleted.
        """
        return SyncReceived(self._loop, self._loop.run(asyncio.wait_for(self._receive(), timeout)))


@final
class SyncBroker:
    """A durable broker in your process, open from its making to `close` or the end of its block."""

    def __init__(self, data: str | Path | None = "data") -> None:
        self._loop = _Loop()
        self._opened = open_broker(data)
        try:
            self._broker: EmbeddedBroker = self._loop.run(self._opened.__aenter__())
        except BaseException:
            self._loop.close()
            raise
        self._is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Store everything and close the broker; a second call does nothing."""
        if self._is_open:
            self._is_open = False
            try:
                self._loop.run(self._opened.__aexit__(None, None, None))
            finally:
                self._loop.close()

    def declare(self, queue: str | QueueDefinition, **arguments: Unpack[QueueArguments]) -> Queue:
        """Declare a queue, durable unless its definition says otherwise; returns once that is durable.

        Arguments are RabbitMQ's without `x-` and with underscores: `declare("jobs", max_length=1000)`.
        """
        return self._loop.run(self._broker.declare(queue, **arguments))

    def declare_exchange(self, name: str, kind: str = "topic") -> None:
        self._loop.run(self._broker.declare_exchange(name, kind))

    def bind(self, exchange: str, queue: str, key: str = "#") -> None:
        self._loop.run(self._broker.bind(exchange, queue, key))

    def delete(self, queue: str) -> int:
        """Delete a queue; returns how many messages it had."""
        return self._loop.run(self._broker.delete(queue))

    def messages(self, queue: str) -> int:
        """Return the number of messages that wait for a consumer; those that consumers hold do not count.

        Raises NotFound.
        """
        return self._loop.run(_call(lambda: self._broker.core.queue(queue).messages))

    def publish(
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
        return self._loop.run(
            self._broker.publish(
                key,
                payload,
                exchange=exchange,
                headers=headers,
                content_type=content_type,
                priority=priority,
                expires_in=expires_in,
                deliver_in=deliver_in,
            )
        )

    @contextlib.contextmanager
    def consume(
        self,
        queue: str,
        *,
        group: str = "",
        name: str = _NAME,
        credit: int = DEFAULT_CREDIT,
        key_filter: str = "",
        position: object = None,
        mode: str = "",
    ) -> Iterator[Messages]:
        """Consume a queue for the length of a block; unsettled messages go back to the queue at its end."""
        consuming = self._broker.consume(
            queue, group=group, name=name, credit=credit, key_filter=key_filter, position=position, mode=mode
        )
        received = self._loop.run(consuming.__aenter__())
        try:
            yield Messages(self._loop, lambda: _next(received))
        finally:
            self._loop.run(consuming.__aexit__(None, None, None))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Publish and acknowledge as one: `with broker.transaction() as tx: tx.publish(...); tx.ack(...)`."""
        together = self._broker.transaction()
        transaction = self._loop.run(together.__aenter__())
        try:
            yield transaction
        except BaseException as error:
            self._loop.run(together.__aexit__(type(error), error, error.__traceback__))
            raise
        self._loop.run(together.__aexit__(None, None, None))


async def _call(call: Callable[[], _Result]) -> _Result:
    return call()


async def _next(received: AsyncIterator[Received]) -> Received:
    return await anext(received)
