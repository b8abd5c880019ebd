"""The feeds of one virtual host: checked, restored after a restart, woken. feed.py takes the steps.

A queue's messages and its position are in one commit, so it gets each message once, whatever happens. One bounded step
is on its way at a time, so other work gets the event loop and the disk between steps.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from headrace.clock import Clock
from headrace.core.batch import Batch
from headrace.core.feeds.feed import Budget, FedQueue, Feed
from headrace.core.pipeline import CommitPipeline
from headrace.core.queue.definition import QueueDefinition, parse_position
from headrace.core.queue.queue import Queue
from headrace.core.routing.topology import Topology
from headrace.errors import Corrupt, NotFound, PreconditionFailed, Unavailable

Find = Callable[[str], QueueDefinition | None]


def check_source(definition: QueueDefinition, find: Find) -> None:
    """Check that a queue's source, if any, is a stream that the queue itself does not fill.

    Raises NotFound when there is no such stream, PreconditionFailed when the two do not fit.
    """
    if not definition.source:
        return
    name, source = definition.name, find(definition.source)
    if definition.source == name:
        raise PreconditionFailed(f"queue '{name}' cannot be filled from itself: its source must be another one")
    if not definition.is_stored:
        raise PreconditionFailed(
            f"queue '{name}' cannot be filled from '{definition.source}': it would not be there after a restart, "
            f"make it durable and not exclusive"
        )
    if source is None:
        raise NotFound(f"no queue '{definition.source}' from which queue '{name}' could be filled: declare it first")
    if not source.is_stream or not source.is_stored:
        raise PreconditionFailed(
            f"queue '{name}' cannot be filled from '{source.name}', a {source.kind} queue: its source must be a stream"
        )
    way = [name]
    following: QueueDefinition | None = source
    while following is not None and following.name not in way:
        way.append(following.name)
        if following.source == name:
            raise PreconditionFailed(
                f"queue '{name}' cannot be filled from '{source.name}', which is filled from it: "
                + " from ".join([f"'{each}'" for each in [*way, name]])
            )
        following = find(following.source)


def sources_first(sources: Sequence[tuple[str, str]]) -> list[int]:
    """Order of queues, given as (name, source), in which each follows its source; returns indexes."""
    known = dict(sources)
    return sorted(range(len(sources)), key=lambda at: _depth(sources[at][0], known))


def _depth(name: str, known: Mapping[str, str]) -> int:
    depth = 0
    while (source := known.get(name, "")) and depth < len(known):
        name, depth = source, depth + 1
    return depth


_log: Final = logging.getLogger("headrace.core")

_TESTS: Final = 16_384
"""Filter tests per turn of the event loop: some 10 ms."""
_BYTES: Final = 4 << 20
"""Bytes copied per turn; one message may exceed it."""
_AGAIN_US: Final = 1_000_000


@final
class Assigner:
    """All queues of one virtual host that streams fill."""

    def __init__(self, topology: Topology, pipeline: CommitPipeline, clock: Clock) -> None:
        self._topology = topology
        self._pipeline = pipeline
        self._clock = clock
        self._fed: dict[Queue, FedQueue] = {}
        self._feeds: dict[Queue, Feed] = {}
        self._due: dict[Feed, None] = {}
        self._later: dict[Feed, None] = {}
        """Feeds that could not be read, to be tried again."""
        self._is_busy = False
        """True while a step is scheduled or not yet stored."""
        self._is_resting = False
        self.due_us = 0
        """Time of the next try; 0 = at the next change."""

    def load(self) -> None:
        """Restore the positions of all fed queues; they go on with the first tick."""
        for queue in self._topology.queues.values():
            if queue.definition.source:
                fed = self._fed[queue] = FedQueue(queue)
                source = self._source(queue.definition.source)
                if source is not None and not self._open_feed(source).restore(fed):
                    _log.warning("queue %r: what is stored of its place in its source is gone", queue.name)
                    self._begin(self._pipeline.open(), fed, source, self.start_of(queue, source))
        self._due = dict.fromkeys(self._feeds.values())
        self.due_us = self._clock.now_us() if self._due else 0

    def of(self, queue: Queue) -> FedQueue | None:
        """The state of a queue that a stream fills; None for other queues."""
        return self._fed.get(queue)

    # -- sources and queues --------------------------------------------------------------------------------------------

    def start_of(self, queue: Queue, source: Queue) -> int:
        """First offset of a queue in its source, by its definition. Raises Corrupt, Unavailable."""
        place = parse_position(queue.definition.source_from or "earliest")
        return min(max(source.offset_at(place), source.first_offset), source.log.next_offset)

    def follow(self, batch: Batch, queue: Queue) -> None:
        """Start to fill a new or changed queue from its source. Raises Corrupt, Unavailable."""
        source = self._source(queue.definition.source)
        start = self.start_of(queue, source) if source is not None else 0
        fed = self._fed[queue] = FedQueue(queue)
        if source is not None:
            self._begin(batch, fed, source, start)

    def unfollow(self, batch: Batch, queue: Queue) -> None:
        """Stop filling a queue."""
        fed = self._fed.pop(queue, None)
        feed = self._feeds.get(fed.source) if fed is not None and fed.source is not None else None
        if feed is not None:
            feed.remove(batch, queue)
            if not feed.fed_queues:
                self._forget(feed)

    def appeared(self, batch: Batch, queue: Queue) -> None:
        """Fill queues that waited for a stream of this name, from its first offset."""
        for fed in self._fed.values() if self._source(queue.name) is queue else ():
            if fed.source is None and fed.queue.definition.source == queue.name:
                self._begin(batch, fed, queue, queue.first_offset)

    def dropped(self, batch: Batch, queue: Queue) -> None:
        """Stop feeds of a deleted queue.

        Queues that it filled keep their messages and wait for a new stream of its name.
        """
        self.unfollow(batch, queue)
        feed = self._feeds.get(queue)
        if feed is not None:
            self._forget(feed)
            _log.warning("stream %r is gone: %d queues are filled from it no more", queue.name, len(feed.fed_queues))
            for fed in feed.fed_queues:
                fed.source = None
                fed.is_waiting = False

    def _begin(self, batch: Batch, fed: FedQueue, source: Queue, start: int) -> None:
        feed = self._open_feed(source)
        feed.add(batch, fed, start)
        self._wake(feed)

    def _open_feed(self, source: Queue) -> Feed:
        feed = self._feeds.get(source)
        if feed is None:
            feed = self._feeds[source] = Feed(source)
            source.feed = feed
        return feed

    def _forget(self, feed: Feed) -> None:
        del self._feeds[feed.source]
        self._due.pop(feed, None)
        self._later.pop(feed, None)
        feed.source.feed = None

    def _source(self, name: str) -> Queue | None:
        """The stream of this name, if it can fill queues."""
        source = self._topology.queues.get(name)
        if source is None or not source.definition.is_stream or not source.durable or source.is_gone:
            return None
        return source

    # -- steps ---------------------------------------------------------------------------------------------------------

    def grew(self, source: Queue) -> None:
        """Hear that a stream has new messages."""
        feed = self._feeds.get(source)
        if feed is not None:
            self._wake(feed)

    def has_room(self, queue: Queue) -> None:
        """Hear that a queue accepts messages again."""
        fed = self._fed.get(queue)
        feed = self._feeds.get(fed.source) if fed is not None and fed.source is not None else None
        if feed is not None:
            feed.has_room(queue)
            self._wake(feed)

    def on_time(self, now_us: int) -> None:
        """Try unreadable feeds again when they are due."""
        if self.due_us and now_us >= self.due_us:
            self.due_us = 0
            self._due.update(self._later)
            self._later.clear()
            self._go_on()

    def rest(self) -> None:
        """Take no more steps, because the broker stops."""
        self._is_resting = True

    def _wake(self, feed: Feed) -> None:
        self._due[feed] = None
        self._go_on()

    def _go_on(self) -> None:
        if self._due and not self._is_busy and not self._is_resting:
            self._is_busy = True
            self._pipeline.at_flush(self._step)

    def _step(self) -> None:
        """Serve streams, each once, until the budget is spent; the others follow next time."""
        self._is_busy = False
        if self._is_resting:
            return
        budget, now_us = Budget(_TESTS, _BYTES), self._clock.now_us()
        is_stored = False
        for feed in list(self._due):
            if budget.is_spent:
                break
            del self._due[feed]
            is_stored = self._serve(feed, budget, now_us) or is_stored
        if is_stored:
            self._is_busy = True
            self._pipeline.open().used.append(self._stored)
        else:
            self._go_on()

    def _serve(self, feed: Feed, budget: Budget, now_us: int) -> bool:
        try:
            is_stored = feed.is_due and feed.step(self._pipeline.open(), budget, now_us)
        except Corrupt as error:
            feed.source.refuse(error)
            return False
        except Unavailable:
            self._later[feed] = None
            self.due_us = self.due_us or now_us + _AGAIN_US
            return False
        if feed.is_due:
            self._due[feed] = None
        return is_stored

    def _stored(self) -> None:
        """Take the next step after the last one is visible."""
        self._is_busy = False
        self._go_on()
