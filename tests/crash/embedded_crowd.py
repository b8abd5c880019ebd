"""A program with a broker of its own that does all that a broker in a program answers, and notes it in a ledger.

    python -m tests.crash.embedded_crowd DIRECTORY LEDGER SECONDS

It goes on for so long, stores the ledger in a file, and ends as a crash would.
"""

import asyncio
import os
import pickle
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from headrace.clock import SystemClock
from headrace.core.broker import Broker
from headrace.embedded import EmbeddedBroker
from headrace.storage.local.engine import LocalEngine
from tests.crash.jobs.job import payload_of
from tests.crash.ledger import Ledger, Life, Whole
from tests.crash.small_server import SMALL

_LEAST = 5
_TICK_SECONDS = 0.1


class Program:
    """What the program does, each with queues of its own."""

    def __init__(self, broker: EmbeddedBroker, seconds: float) -> None:
        self.ledger = Ledger()
        self._broker = broker
        self._chance = random.Random(1)
        self._until = time.monotonic() + seconds

    async def run(self) -> None:
        await asyncio.gather(self._publish(), self._transact(), self._declare())

    def _goes_on(self, count: int) -> bool:
        return count < _LEAST or time.monotonic() < self._until

    async def _declare_queue(self, queue: str) -> None:
        with self.ledger.stating("queue", queue):
            await self._broker.declare(queue)

    async def _publish(self) -> None:
        """Messages to one queue, and to two at once."""
        broker = self._broker
        with self.ledger.stating("exchange", "fan"):
            await broker.declare_exchange("fan", "fanout")
        for queue in ("plain", "fan-1", "fan-2"):
            await self._declare_queue(queue)
        for queue in ("fan-1", "fan-2"):
            with self.ledger.stating("binding", f"fan>{queue}"):
                await broker.bind("fan", queue)
        count = 0
        while self._goes_on(count):
            count += 1
            payload = payload_of(self._chance, count)
            if count % 2:
                with self.ledger.publishing(payload, "plain"):
                    await broker.publish("$queue/plain", payload)
            else:
                with self.ledger.publishing(payload, "fan-1", "fan-2"):
                    await broker.publish("key", payload, exchange="fan")

    async def _transact(self) -> None:
        """Messages that come to two queues when one goes from a third."""
        broker, ledger = self._broker, self.ledger
        for queue in ("tx-in", "tx-a", "tx-b"):
            await self._declare_queue(queue)
        count = 0
        async with broker.consume("tx-in", credit=1) as deliveries:
            while self._goes_on(count):
                count += 1
                payload = payload_of(self._chance, count)
                with ledger.publishing(payload, "tx-in"):
                    await broker.publish("$queue/tx-in", payload)
                received = await anext(deliveries)
                life = ledger.with_payload("tx-in", received.payload)
                comes: list[tuple[str, Life]] = []
                with ledger.removing(life):
                    async with broker.transaction() as transaction:
                        for queue in ("tx-a", "tx-b"):
                            payload = payload_of(self._chance, count)
                            comes.append((queue, ledger.sends(queue, payload)))
                            transaction.publish(f"$queue/{queue}", payload)
                        transaction.ack(received)
                        ledger.wholes.append(Whole(comes, [("tx-in", life)]))
                ledger.confirm(*[each for _, each in comes])

    async def _declare(self) -> None:
        """Queues that come and go."""
        count = 0
        while self._goes_on(count):
            count += 1
            queue = f"changing-{count % 3}"
            await self._declare_queue(queue)
            if self._chance.random() < 0.5:
                with self.ledger.stating("queue", queue, ""):
                    await self._broker.delete(queue)


def open_small(directory: Path) -> EmbeddedBroker:
    """What `headrace.open` gives, over files so small that a short run fills and recycles them."""
    loop = asyncio.get_running_loop()

    def wake() -> None:
        loop.call_soon_threadsafe(engine.poll)

    def soon(call: Callable[[], None]) -> None:
        loop.call_soon(call)

    def tick() -> None:
        broker.tick()
        loop.call_later(_TICK_SECONDS, tick)

    engine = LocalEngine(directory, wake, SMALL)
    broker = Broker(engine, SystemClock(), soon)
    tick()
    return EmbeddedBroker(engine, broker, SystemClock())


async def run(directory: Path, ledger: Path, seconds: float) -> None:
    program = Program(open_small(directory), seconds)
    await program.run()
    ledger.write_bytes(pickle.dumps(program.ledger))
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])))
