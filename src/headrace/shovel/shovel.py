"""The shovel: takes messages from one end to the other, and lets go of them at the source once they are confirmed.

At least once: a message that was confirmed, but not settled before a connection broke, comes twice.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from headrace.errors import HeadraceError, Unavailable
from headrace.shovel.amqp091 import QueueDestination, QueueSource
from headrace.shovel.ends import WINDOW_BYTES, Destination, Place, Shipment, Source
from headrace.shovel.mqtt import TopicDestination, TopicSource

_LOOK_SECONDS: Final = 0.05
"""Time between two looks whether the source is empty."""
_PATIENCE_SECONDS: Final = 30.0
"""Time for which a shovel that stops waits for confirms."""
_QUIET_SECONDS: Final = 10.0
"""Time after which a source counts as empty that was to have more messages."""
_FIRST_WAIT_SECONDS: Final = 0.5
_LONGEST_WAIT_SECONDS: Final = 30.0

Fail = Callable[[HeadraceError], None]


@dataclass
class Tally:
    """Counts of messages that a shovel has moved, over all its connections."""

    messages: int = 0
    """Messages that are confirmed."""
    size_bytes: int = 0
    offset: int = -1
    """Offset of the last of them in the stream it is from; -1 if unknown."""


@final
class Shovel:
    """One run between two open ends, until it is done, stopped, or an end breaks."""

    def __init__(self, tally: Tally, skip: int = 0, most: int = -1) -> None:
        """`skip` passes over that many messages at the beginning; `most` ends the run after so many, -1 for never."""
        self.tally = tally
        self._skip = skip
        self._most = most
        self._source: Source | None = None
        self._destination: Destination | None = None
        self._ahead: deque[tuple[int, int, int]] = deque()
        """Messages without a confirm: number of the delivery, bytes, offset."""
        self._early: set[int] = set()
        """Numbers that were confirmed before a lower one."""
        self._delivered = 0
        self._sent = 0
        self._confirmed = 0
        self._settled = 0
        """Number of the last delivery that is confirmed with all before it."""
        self._told = 0
        """The same, as far as the source knows."""
        self._bytes = 0
        self._heard = 0.0
        """Time of the last delivery."""
        self._is_paused = False
        self._failure: HeadraceError | None = None
        self._news = asyncio.Event()

    def fail(self, failure: HeadraceError) -> None:
        """End the run: an end is broken."""
        self._failure = self._failure or failure
        self._news.set()

    async def run(self, source: Source, destination: Destination, is_endless: bool, stop: asyncio.Event) -> None:
        """Move messages until the source is empty, or until `stop` if it is endless. Raises what broke it.

        What is on its way at the end is waited for, so that nothing comes twice.
        """
        self._source, self._destination = source, destination
        loop = asyncio.get_running_loop()
        await destination.open(self._on_confirmed)
        await source.open(self._on_shipments)
        self._heard = loop.time()
        while self._failure is None and not stop.is_set():
            if self._most >= 0:
                if self._sent >= self._most or (not self._ahead and loop.time() - self._heard > _QUIET_SECONDS):
                    break
            elif not is_endless and not self._ahead and await self._is_empty():
                break
            await self._some_news(stop, _LOOK_SECONDS)
        await self._finish(source)
        if self._failure is not None:
            raise self._failure

    async def _is_empty(self) -> bool:
        assert self._source is not None
        before = self._delivered
        try:
            return await self._source.waiting() == 0 and not self._ahead and self._delivered == before
        except HeadraceError as error:
            self.fail(error)
            return False

    async def _finish(self, source: Source) -> None:
        if self._failure is None:
            self._most = self._sent  # whatever still arrives goes back
            await source.silence()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _PATIENCE_SECONDS
        while self._ahead and self._failure is None and loop.time() < deadline:
            await self._some_news(None, 1.0)

    async def _some_news(self, stop: asyncio.Event | None, seconds: float) -> None:
        """Wait for a confirm, an error, a stop, or this long."""
        self._news.clear()
        waits = [asyncio.ensure_future(event.wait()) for event in (self._news, stop) if event is not None]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()

    # -- the way -----------------------------------------------------------------------------------------------------

    def _on_shipments(self, shipments: list[Shipment]) -> None:
        assert self._destination is not None
        if self._failure is not None:
            return
        self._heard = asyncio.get_running_loop().time()
        if self._delivered < self._skip:
            passed = min(self._skip - self._delivered, len(shipments))
            self._delivered += passed
            shipments = shipments[passed:]
        if self._most >= 0:
            shipments = shipments[: max(0, self._most - self._sent)]
        for shipment in shipments:
            self._delivered += 1
            size = len(shipment.body)
            self._bytes += size
            self._ahead.append((self._delivered, size, shipment.offset))
        self._sent += len(shipments)
        if shipments:
            self._destination.send(shipments)
        self._regulate()

    def _on_confirmed(self, number: int, is_multiple: bool) -> None:
        if not is_multiple and number != self._confirmed + 1:
            self._early.add(number)
            return
        while self._ahead and (self._confirmed < number or self._confirmed + 1 in self._early):
            self._early.discard(self._confirmed + 1)
            self._confirmed += 1
            delivery, size, offset = self._ahead.popleft()
            self._bytes -= size
            self.tally.messages += 1
            self.tally.size_bytes += size
            self.tally.offset = max(self.tally.offset, offset)
            self._settled = delivery
        self._news.set()
        self._settle()
        self._regulate()

    def _settle(self) -> None:
        if self._settled > self._told and self._source is not None:
            self._told = self._settled
            self._source.settle(self._settled)

    def _regulate(self) -> None:
        """Read from the source only while few bytes are on their way."""
        is_paused = self._bytes > WINDOW_BYTES
        if is_paused != self._is_paused and self._source is not None:
            self._is_paused = is_paused
            self._source.pause(is_paused)


def make_ends(there: Place, here: Place, fail: Fail) -> tuple[Source, Destination]:
    """Return the ends for these places, by their protocols."""
    source: Source = TopicSource(there, fail) if there.has_topics else QueueSource(there, fail)
    destination: Destination = TopicDestination(here, fail) if here.has_topics else QueueDestination(here, fail)
    return source, destination


MakeEnds = Callable[[Fail], tuple[Source, Destination]]


async def move(
    make: MakeEnds,
    tally: Tally,
    is_endless: bool,
    stop: asyncio.Event,
    said: Callable[[str], None],
    most_tries: int = 0,
) -> None:
    """Shovel until done or stopped; connect again where a connection broke.

    Raises Refused for what does not pass, and Unavailable after so many tries without a message; 0 for never.
    """
    wait = _FIRST_WAIT_SECONDS / 2
    tries = 0
    while True:
        before = tally.messages
        shovel = Shovel(tally)
        source, destination = make(shovel.fail)
        try:
            await shovel.run(source, destination, is_endless, stop)
        except Unavailable as error:
            if stop.is_set():
                return
            tries = 1 if tally.messages > before else tries + 1
            if tries == most_tries:
                raise
            wait = _FIRST_WAIT_SECONDS if tally.messages > before else min(2 * wait, _LONGEST_WAIT_SECONDS)
            said(f"{error}; again in {wait:g} s")
        else:
            return
        finally:
            await source.close()
            await destination.close()
        try:
            async with asyncio.timeout(wait):
                await stop.wait()
        except TimeoutError:
            continue
        return
