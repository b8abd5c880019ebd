"""Rates and recent history of queues, and how far behind their readers are. Nothing here is stored.

Nothing is kept before somebody asks over HTTP. Virtual hosts have their rings, and so do queues, up to a number.
"""

import asyncio
import contextlib
from array import array
from collections.abc import Mapping
from typing import Final, final

from headrace.clock import Clock
from headrace.core.broker import Broker
from headrace.core.hosts import Hosts
from headrace.core.queue.queue import Queue
from headrace.errors import HeadraceError


def lag_of(queue: Queue) -> int:
    """How many messages the group furthest behind has not finished; 0 where no group ever read."""
    return max([group.lag for group in queue.groups.values()], default=0)


def look_for_schedule(queue: Queue, now_us: int) -> None:
    """Have a queue know after a start what was published for later; where it cannot be read now, another time."""
    with contextlib.suppress(HeadraceError):
        queue.look_for_schedule(now_us)


def oldest_age_ms(queue: Queue, now_us: int) -> int | None:
    """For how long the oldest message that waits has been there; None when none waits, or it cannot be read."""
    head = _oldest(queue)
    since_us = None if head is None else _timestamp_us(queue, head)
    return None if since_us is None else max(0, now_us - since_us) // 1000


@final
class OldestMessage:
    """The oldest message of one queue as time goes by. It is read once: a queue at rest costs no disk anything."""

    __slots__ = ("_offset", "_since_us")

    def __init__(self) -> None:
        self._offset = -1
        self._since_us: int | None = None

    def age_ms(self, queue: Queue, now_us: int) -> int:
        """The same as `oldest_age_ms`, with 0 for None."""
        head = _oldest(queue)
        if head is None:
            return 0
        if head != self._offset:
            self._offset, self._since_us = head, _timestamp_us(queue, head)
        return 0 if self._since_us is None else max(0, now_us - self._since_us) // 1000


def _oldest(queue: Queue) -> int | None:
    if queue.is_gone:
        return None
    head = queue.first_offset if queue.definition.is_stream else queue.head()
    return head if head < queue.log.next_offset else None


def _timestamp_us(queue: Queue, offset: int) -> int | None:
    try:
        return queue.message(offset).timestamp_us
    except HeadraceError:  # damaged, or a store that does not answer
        return None


INTERVAL_SECONDS: Final = 2.0
KEPT: Final = 150
"""How many samples are kept: five minutes."""
MAX_QUEUES: Final = 500
"""How many queues have their own; those that came first."""
_AT_ONCE: Final = 100

HOST_COUNTERS: Final = ("published", "delivered", "redelivered", "acknowledged", "dead_lettered", "commits")
HOST_GAUGES: Final = ("ready", "delayed", "unsettled", "commit_p50_us", "commit_p99_us")
QUEUE_COUNTERS: Final = ("published", "delivered", "redelivered", "acknowledged")
QUEUE_GAUGES: Final = ("ready", "delayed", "unsettled", "lag", "oldest_age_ms")


@final
class Series:
    """The last samples of a few numbers, and how fast those that only grow did so."""

    def __init__(self, counters: tuple[str, ...], gauges: tuple[str, ...]) -> None:
        self._counters = counters
        self._last: dict[str, float] = {}
        self.rates: dict[str, float] = dict.fromkeys(counters, 0.0)
        self._rings = {name: array("d") for name in (*counters, *gauges)}

    def add(self, values: Mapping[str, float], seconds: float) -> None:
        """Take a sample, so long after the last one; what is not in it begins anew."""
        for name, ring in self._rings.items():
            value = values.get(name)
            if value is None:
                del ring[:]  # samples are neighbours in time
                continue
            if name in self.rates:
                before = self._last.get(name, value)
                self._last[name] = value
                value = self.rates[name] = round(max(0.0, value - before) / seconds, 2)
            ring.append(value)
            if len(ring) > KEPT:
                del ring[: len(ring) - KEPT]

    def history(self) -> dict[str, list[float]]:
        """All samples, the oldest first; of what only grows, how much a second."""
        return {name: list(ring) for name, ring in self._rings.items()}


@final
class _Watched:
    """A queue with samples of its own."""

    __slots__ = ("_oldest", "looks", "series")

    def __init__(self) -> None:
        self.series = Series(QUEUE_COUNTERS, QUEUE_GAUGES)
        self._oldest = OldestMessage()
        self.looks = 0
        """In how many samples more there is its age: that reads a message, so only for who looks at the queue."""

    def look(self, queue: Queue, values: Mapping[str, float], now_us: int, seconds: float) -> None:
        found: dict[str, float] = {**values, "lag": lag_of(queue)}
        if self.looks:
            self.looks -= 1
            found["oldest_age_ms"] = self._oldest.age_ms(queue, now_us)
        self.series.add(found, seconds)


@final
class Sampler:
    """Looks at every virtual host and its queues every two seconds."""

    def __init__(self, hosts: Hosts, clock: Clock) -> None:
        self._hosts = hosts
        self._clock = clock
        self.series: dict[str, Series] = {}
        """By virtual host."""
        self._queues: dict[str, dict[str, _Watched]] = {}
        self._commits: dict[str, list[int]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def queue(self, host: str, name: str) -> Series | None:
        """The samples of a queue; None when it has none yet, or is one too many."""
        watched = self._queues.get(host, {}).get(name)
        return None if watched is None else watched.series

    def watch(self, host: str, name: str) -> Series | None:
        """The same for somebody who looks at this queue: for as long as samples are kept they have its age too."""
        watched = self._queues.get(host, {}).get(name)
        if watched is not None:
            watched.looks = KEPT
        return self.queue(host, name)

    async def sample(self, seconds: float = INTERVAL_SECONDS) -> None:
        """Look at everything once, letting others have the event loop in between."""
        names = self._hosts.names()
        for host in [host for host in self.series if host not in names]:
            del self.series[host], self._queues[host], self._commits[host]
        for host in names:
            broker = self._hosts.find(host)
            if broker is not None:
                await self._sample(host, broker, seconds)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        await self.sample()
        while True:
            before = loop.time()
            await asyncio.sleep(INTERVAL_SECONDS)
            await self.sample(max(0.001, loop.time() - before))

    async def _sample(self, host: str, broker: Broker, seconds: float) -> None:
        kept = self._queues.setdefault(host, {})
        room = MAX_QUEUES - sum(len(queues) for queues in self._queues.values())
        ready = delayed = unsettled = acknowledged = 0
        queues = broker.topology.queues
        for name in [name for name in kept if name not in queues]:
            del kept[name]
        for number, queue in enumerate(list(queues.values()), 1):
            if not queue.knows_schedule:
                look_for_schedule(queue, self._clock.now_us())
                await asyncio.sleep(0)
            values = queue_values(queue)
            ready += 0 if queue.is_stream else values["ready"]
            delayed += values["delayed"]
            unsettled += values["unsettled"]
            acknowledged += values["acknowledged"]
            watched = kept.get(queue.name)
            if watched is None and room > 0:
                room -= 1
                watched = kept[queue.name] = _Watched()
            if watched is not None:
                watched.look(queue, values, self._clock.now_us(), seconds)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        statistics = broker.statistics
        before = self._commits.get(host)
        self._commits[host] = list(statistics.commits.counts)
        values = {
            "published": statistics.stored,
            "delivered": statistics.delivered,
            "redelivered": statistics.redelivered,
            "acknowledged": acknowledged,
            "dead_lettered": sum(statistics.dead_letters.values()),
            "commits": statistics.commits.count,
            "ready": ready,
            "delayed": delayed,
            "unsettled": unsettled,
            "commit_p50_us": statistics.commits.quantile_us(0.5, before),
            "commit_p99_us": statistics.commits.quantile_us(0.99, before),
        }
        self.series.setdefault(host, Series(HOST_COUNTERS, HOST_GAUGES)).add(values, seconds)


def queue_values(queue: Queue) -> dict[str, int]:
    """What a queue has counted, and what is in it now."""
    groups, delayed = queue.groups.values(), queue.delayed
    return {
        "published": queue.log.next_offset,
        "delivered": sum([group.delivered for group in groups]),
        "redelivered": sum([group.redelivered for group in groups]),
        "acknowledged": sum([group.acknowledged for group in groups]),
        "ready": queue.messages - delayed,
        "delayed": delayed,
        "unsettled": queue.unsettled,
    }
