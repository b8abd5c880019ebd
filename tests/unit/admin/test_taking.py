"""Messages taken over HTTP: what is settled is stored first, and what cannot be stored is not lost to the client."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from headrace.admin.messages import Taker
from headrace.clock import ManualClock
from headrace.core.broker import Broker
from headrace.core.client import ConsumeRequest, insider
from headrace.core.queue.definition import declared
from headrace.core.queue.dispatch import Delivery
from headrace.core.queue.group import ACK
from headrace.errors import Unavailable
from headrace.model import Message, Source
from headrace.net.connection import outcome
from tests.refusing_engine import RefusingEngine


class Place:
    """A broker in an event loop, with one message in the queue `q`."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.engine = RefusingEngine()

        def soon(call: Callable[[], None]) -> None:
            loop.call_soon(call)

        self.broker = Broker(self.engine, ManualClock(), soon)

    async def run(self) -> None:
        while True:
            self.engine.poll()
            await asyncio.sleep(0)

    async def prepare(self, kind: str) -> None:
        self.broker.declare(declared("q", durable=True, arguments={"x-queue-type": kind}))
        await outcome(lambda tell: self.broker.publish(Message(Source("q"), b"one", 1), tell))

    async def take(self, limit: int = 1, wait_ms: int = 0) -> list[bytes]:
        position = "first" if self.broker.queue("q").definition.is_stream else None
        request = ConsumeRequest("q")
        request.position = position
        taker = Taker(insider(self.broker, "http"), request, "http", limit)
        taken: list[Delivery] = await taker.take(wait_ms, ACK)
        return [delivery.message.payload for delivery in taken]


@asynccontextmanager
async def place(kind: str = "classic") -> AsyncIterator[Place]:
    made = Place()
    polling = asyncio.ensure_future(made.run())
    await made.prepare(kind)
    yield made
    polling.cancel()
    with suppress(asyncio.CancelledError):
        await polling


@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_the_answer_waits_until_the_settlement_is_stored(kind: str) -> None:
    async def run() -> None:
        async with place(kind) as here:
            here.engine.is_closed_door = True
            asking = asyncio.ensure_future(here.take())
            done, _ = await asyncio.wait([asking], timeout=0.3)
            assert not done

            here.engine.open_door()

            assert await asking == [b"one"]
            assert here.engine.waits[-1]

    asyncio.run(run())


def test_what_cannot_be_stored_as_settled_is_back_in_line() -> None:
    async def run() -> None:
        async with place() as here:
            here.engine.failure, here.engine.fails_all = Unavailable("the disk is full"), True
            with pytest.raises(Unavailable):
                await here.take()
            here.engine.failure = None

            assert here.broker.queue("q").messages == 1
            assert here.broker.queue("q").unsettled == 0

    asyncio.run(run())


def test_a_call_that_ends_while_it_waits_for_more_acknowledges_nothing() -> None:
    async def run() -> None:
        async with place() as here:
            asking = asyncio.ensure_future(here.take(limit=2, wait_ms=30_000))
            while not here.broker.queue("q").unsettled:
                await asyncio.sleep(0)

            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking

            assert here.broker.queue("q").messages == 1

    asyncio.run(run())
