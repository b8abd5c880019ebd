"""Rates and recent samples of virtual hosts and queues, in memory only.

Sampling starts with the first HTTP connection. Up to 500 queues have samples of their own.
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
    """Return the unsettled messages of the slowest group; 0 without groups."""
    return max([group.lag for group in queue.groups.values()], default=0)


def look_for_schedule(queue: Queue, now_us: int) -> None:
    """Find delayed messages after a start; an unreadable queue is tried again later."""
    with contextlib.suppress(HeadraceError):
        queue.look_for_schedule(now_us)


def oldest_age_ms(queue: Queue, now_us: int) -> int | None:
    """Return the age of the oldest waiting message; None if there is none, or if it is unreadable."""
    head = _oldest(queue)
    since_us = None if head is None else _timestamp_us(queue, head)
    return None if since_us is None else max(0, now_us - since_us) // 1000


@final
class OldestMessage:
    """The oldest message of one queue. It is read once, so an idle queue causes no disk reads."""

    __slots__ = ("_offset", "_since_us")

    def __init__(self) -> None:
        self._offset = -1
        self._since_us: int | None = None

    def age_ms(self, queue: Queue, now_us: int) -> int:
        """Return the age as `oldest_age_ms` does, with 0 for None."""
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
    except HeadraceError:  # the queue is damaged, or the store does not answer
        return None


INTERVAL_SECONDS: Final = 2.0
KEPT: Final = 150
"""Samples kept: five minutes."""
MAX_QUEUES: Final = 500
"""Queues with samples of their own: the first ones."""
_AT_ONCE: Final = 100

HOST_COUNTERS: Final = ("published", "delivered", "redelivered", "acknowledged", "dead_lettered", "commits")
HOST_GAUGES: Final = ("ready", "delayed", "unsettled", "commit_p50_us", "commit_p99_us")
QUEUE_COUNTERS: Final = ("published", "delivered", "redelivered", "acknowledged")
QUEUE_GAUGES: Final = ("ready", "delayed", "unsettled", "lag", "oldest_age_ms")


@final
class Series:
    """Recent samples of gauges, and rates of counters."""

    def __init__(self, counters: tuple[str, ...], gauges: tuple[str, ...]) -> None:
        self._counters = counters
        self._last: dict[str, float] = {}
        self.rates: dict[str, float] = dict.fromkeys(counters, 0.0)
        self._rings = {name: array("d") for name in (*counters, *gauges)}

    def add(self, values: Mapping[str, float], seconds: float) -> None:
        """Add a sample, `seconds` after the last one; a missing number clears its ring."""
        for name, ring in self._rings.items():
            value = values.get(name)
            if value is None:
                del ring[:]  # samples of a ring have equal intervals
                continue
            if name in self.rates:
                before = self._last.get(name, value)
                self._last[name] = value
                value = self.rates[name] = round(max(0.0, value - before) / seconds, 2)
            ring.append(value)
            if len(ring) > KEPT:
                del ring[: len(ring) - KEPT]

    def history(self) -> dict[str, list[float]]:
        """Return all samples, the oldest first; for counters, rates per second."""
        return {name: list(ring) for name, ring in self._rings.items()}


@final
class _Watched:
    """Samples of one queue."""

    __slots__ = ("_oldest", "looks", "series")

    def __init__(self) -> None:
        self.series = Series(QUEUE_COUNTERS, QUEUE_GAUGES)
        self._oldest = OldestMessage()
        self.looks = 0
        """Remaining samples with the age, which reads a message, so only after a visit to the queue's page."""

    def sample(self, queue: Queue, values: Mapping[str, float], now_us: int, seconds: float) -> None:
        found: dict[str, float] = {**values, "lag": lag_of(queue)}
        if self.looks:
            self.looks -= 1
            found["oldest_age_ms"] = self._oldest.age_ms(queue, now_us)
        self.series.add(found, seconds)


@final
class Sampler:
    """Samples every virtual host and its queues every two seconds."""

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
        """Return the samples of a queue; None if it has none."""
        watched = self._queues.get(host, {}).get(name)
        return None if watched is None else watched.series

    def watch(self, host: str, name: str) -> Series | None:
        """Return the samples of a queue and add its age to the next 150."""
        watched = self._queues.get(host, {}).get(name)
        if watched is not None:
            watched.looks = KEPT
        return self.queue(host, name)

    async def sample(self, seconds: float = INTERVAL_SECONDS) -> None:
        """Sample everything once, with other work in between."""
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
                watched.sample(queue, values, self._clock.now_us(), seconds)
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
    """Return the counters of a queue and its present messages."""
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
