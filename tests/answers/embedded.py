"""Answers to a program with the broker inside: awaited ones, and those that return at once."""

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Final, final

from headrace.clock import SystemClock
from headrace.core.broker import Broker
from headrace.embedded import EmbeddedBroker, Received, Transaction
from headrace.storage.local.engine import LocalEngine
from tests.answers.decisions import SECONDS, Answers, Decision, NotPromised, Place, Request, Synced
from tests.held_server import HeldDisk

_CLASSES: Final = (EmbeddedBroker, Received, Transaction)


def in_the_code() -> set[str]:
    """All that a program may call."""
    return {
        f"{kind.__name__}.{name}"
        for kind in _CLASSES
        for name, value in vars(kind).items()
        if callable(value) and not name.startswith("_")
    }


@final
class Program:
    """A program with a broker in it, over a disk whose syncs the test holds back; its event loop has a thread."""

    def __init__(self, place: Place) -> None:
        self._loop = asyncio.new_event_loop()
        self._folder = tempfile.TemporaryDirectory()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._engine = LocalEngine(Path(self._folder.name), self._wake, disk=HeldDisk(place.held))
        self.broker = EmbeddedBroker(self._engine, Broker(self._engine, SystemClock(), self._soon), SystemClock())
        place.on_close(self._close)

    def ask(self, call: Callable[[EmbeddedBroker], Coroutine[object, object, object]]) -> object:
        """Have the program await this; returns when it does."""
        return asyncio.run_coroutine_threadsafe(call(self.broker), self._loop).result(SECONDS)

    def _soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the program has ended
            self._loop.call_soon_threadsafe(self._engine.poll)

    def _close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()
        self._engine.close()
        self._folder.cleanup()


async def _prepare(broker: EmbeddedBroker) -> None:
    await broker.declare("q")
    await broker.publish("q", b"x")


async def _commit(broker: EmbeddedBroker) -> None:
    async with broker.transaction() as transaction:
        transaction.publish("q", b"y")


async def _commit_ack(broker: EmbeddedBroker) -> None:
    async with broker.consume("q") as deliveries:
        received = await anext(deliveries)
        async with broker.transaction() as transaction:
            transaction.ack(received)


async def _ack(broker: EmbeddedBroker) -> None:
    async with broker.consume("q") as deliveries:
        (await anext(deliveries)).ack()


def _prepared(call: Callable[[EmbeddedBroker], Coroutine[object, object, object]]) -> Callable[[Place], Request]:
    def prepare(place: Place) -> Request:
        program = Program(place)
        program.ask(_prepare)
        return lambda: program.ask(call)

    return prepare


def _synced(call: Callable[[EmbeddedBroker], Coroutine[object, object, object]]) -> Decision:
    return Synced(_prepared(call))


_LATER = "it returns at once; docs/embedded.md says that it is stored within a second"
_STAGED = NotPromised("nothing of it happens before the block of the transaction ends")

ANSWERS: Answers = {
    "EmbeddedBroker.declare": _synced(lambda broker: broker.declare("new")),
    "EmbeddedBroker.declare_exchange": _synced(lambda broker: broker.declare_exchange("new")),
    "EmbeddedBroker.bind": _synced(lambda broker: broker.bind("amq.topic", "q")),
    "EmbeddedBroker.delete": _synced(lambda broker: broker.delete("q")),
    "EmbeddedBroker.publish": _synced(lambda broker: broker.publish("q", b"y")),
    "EmbeddedBroker.transaction": _synced(_commit),
    "EmbeddedBroker.transaction of an acknowledgement": _synced(_commit_ack),
    "EmbeddedBroker.consume": NotPromised("a delivery that is not settled comes again"),
    "Received.ack": NotPromised(_LATER, _prepared(_ack)),
    "Received.nack": NotPromised(_LATER),
    "Received.reject": NotPromised(_LATER),
    "Received.release": NotPromised(_LATER),
    "Received.renew": NotPromised("after a crash the message is back in line"),
    "Transaction.publish": _STAGED,
    "Transaction.ack": _STAGED,
    "Transaction.reject": _STAGED,
}
