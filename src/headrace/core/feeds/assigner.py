"""Queues that streams fill: declared, checked, found again after a restart, woken. Steps are in feed.py.

What a queue gets and how far it is are in one commit, so it gets each message once, whatever happens. One step is on
its way at a time, and bounded; between steps everybody else has the event loop and the disk.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from headrace.clock import Clock
from headrace.core.batch import Batch
from headrace.core.feeds.feed import Budget, Follower, Tail
from headrace.core.pipeline import CommitPipeline
from headrace.core.properties import Codecs
from headrace.core.queue.definition import QueueDefinition, parse_position
from headrace.core.queue.queue import Queue
from headrace.core.routing.topology import Topology
from headrace.errors import Corrupt, NotFound, PreconditionFailed, Unavailable

Find = Callable[[str], QueueDefinition | None]


def check_source(definition: QueueDefinition, find: Find) -> None:
    """Accept a queue whose source, if it has one, is a stream that is not filled from the queue itself.

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
    """Where the named queues stand, given each with its source, such that every one comes behind its source."""
    known = dict(sources)
    return sorted(range(len(sources)), key=lambda at: _depth(sources[at][0], known))


def _depth(name: str, known: Mapping[str, str]) -> int:
    depth = 0
    while (source := known.get(name, "")) and depth < len(known):
        name, depth = source, depth + 1
    return depth


_log: Final = logging.getLogger("headrace.core")

_TESTS: Final = 16_384
"""How often messages are held against filters in one turn of the event loop: some 10 ms."""
_BYTES: Final = 4 << 20
"""How much queues get in one turn, one message aside."""
_AGAIN_US: Final = 1_000_000


@final
class Assigner:
    """All queues of one virtual host that are filled from streams."""

    def __init__(self, topology: Topology, pipeline: CommitPipeline, codecs: Codecs, clock: Clock) -> None:
        self._topology = topology
        self._pipeline = pipeline
        self._codecs = codecs
        self._clock = clock
        self._followers: dict[Queue, Follower] = {}
        self._tails: dict[Queue, Tail] = {}
        self._due: dict[Tail, None] = {}
        self._later: dict[Tail, None] = {}
        """Those that could not be read."""
        self._is_busy = False
        """Whether a step is on its way, or about to be made."""
        self._is_resting = False
        self.due_us = 0
        """When to look again; 0 for when something changes."""

    def load(self) -> None:
        """Have all queues be where they are stored to be; they go on with the first tick."""
        for queue in self._topology.queues.values():
            if queue.definition.source:
                follower = self._followers[queue] = Follower(queue)
                source = self._source(queue.definition.source)
                if source is not None and not self._tail(source).restore(follower):
                    _log.warning("queue %r: what is stored of its place in its source is gone", queue.name)
                    self._begin(self._pipeline.open(), follower, source, self.start_of(queue, source))
        self._due = dict.fromkeys(self._tails.values())
        self.due_us = self._clock.now_us() if self._due else 0

    def of(self, queue: Queue) -> Follower | None:
        """How far a queue is in the stream that it is filled from."""
        return self._followers.get(queue)

    # -- who is filled from where ------------------------------------------------------------------------------------

    def start_of(self, queue: Queue, source: Queue) -> int:
        """Where a queue begins in its source, by its definition. Raises Corrupt, Unavailable."""
        place = parse_position(queue.definition.source_from or "earliest")
        return min(max(source.offset_at(place), source.first_offset), source.log.next_offset)

    def follow(self, batch: Batch, queue: Queue) -> None:
        """Have a queue that is new, or became another, be filled from its source. Raises Corrupt, Unavailable."""
        source = self._source(queue.definition.source)
        start = self.start_of(queue, source) if source is not None else 0
        follower = self._followers[queue] = Follower(queue)
        if source is not None:
            self._begin(batch, follower, source, start)

    def unfollow(self, batch: Batch, queue: Queue) -> None:
        """Have a queue be filled from nowhere any more."""
        follower = self._followers.pop(queue, None)
        tail = self._tails.get(follower.source) if follower is not None and follower.source is not None else None
        if tail is not None:
            tail.remove(batch, queue)
            if not tail.followers:
                self._forget(tail)

    def appeared(self, batch: Batch, queue: Queue) -> None:
        """A queue is new: those that are to be filled from one of this name get everything that comes."""
        for follower in self._followers.values() if self._source(queue.name) is queue else ():
            if follower.source is None and follower.queue.definition.source == queue.name:
                self._begin(batch, follower, queue, queue.first_offset)

    def dropped(self, batch: Batch, queue: Queue) -> None:
        """A queue goes. Those that were filled from it keep what they have, and wait for another one of its name."""
        self.unfollow(batch, queue)
        tail = self._tails.get(queue)
        if tail is not None:
            self._forget(tail)
            _log.warning("stream %r is gone: %d queues are filled from it no more", queue.name, len(tail.followers))
            for follower in tail.followers:
                follower.source = None
                follower.is_waiting = False

    def _begin(self, batch: Batch, follower: Follower, source: Queue, start: int) -> None:
        tail = self._tail(source)
        tail.add(batch, follower, start)
        self._wake(tail)

    def _tail(self, source: Queue) -> Tail:
        tail = self._tails.get(source)
        if tail is None:
            tail = self._tails[source] = Tail(source, self._codecs)
            source.tail = tail
        return tail

    def _forget(self, tail: Tail) -> None:
        del self._tails[tail.source]
        self._due.pop(tail, None)
        self._later.pop(tail, None)
        tail.source.tail = None

    def _source(self, name: str) -> Queue | None:
        """The stream of that name, if queues can be filled from it."""
        source = self._topology.queues.get(name)
        if source is None or not source.definition.is_stream or not source.durable or source.is_gone:
            return None
        return source

    # -- what happens ------------------------------------------------------------------------------------------------

    def grew(self, source: Queue) -> None:
        """There is more in a stream."""
        tail = self._tails.get(source)
        if tail is not None:
            self._wake(tail)

    def has_room(self, queue: Queue) -> None:
        """A queue takes messages again."""
        follower = self._followers.get(queue)
        tail = self._tails.get(follower.source) if follower is not None and follower.source is not None else None
        if tail is not None:
            tail.has_room(queue)
            self._wake(tail)

    def on_time(self, now_us: int) -> None:
        """Go on if it is time."""
        if self.due_us and now_us >= self.due_us:
            self.due_us = 0
            self._due.update(self._later)
            self._later.clear()
            self._go_on()

    def rest(self) -> None:
        """Begin nothing more: the broker is about to stop."""
        self._is_resting = True

    def _wake(self, tail: Tail) -> None:
        self._due[tail] = None
        self._go_on()

    def _go_on(self) -> None:
        if self._due and not self._is_busy and not self._is_resting:
            self._is_busy = True
            self._pipeline.at_flush(self._step)

    def _step(self) -> None:
        """Serve as many streams as there is time for, each once, and go on with the others next time."""
        self._is_busy = False
        if self._is_resting:
            return
        budget, now_us = Budget(_TESTS, _BYTES), self._clock.now_us()
        is_stored = False
        for tail in list(self._due):
            if budget.is_spent:
                break
            del self._due[tail]
            is_stored = self._serve(tail, budget, now_us) or is_stored
        if is_stored:
            self._is_busy = True
            self._pipeline.open().used.append(self._stored)
        else:
            self._go_on()

    def _serve(self, tail: Tail, budget: Budget, now_us: int) -> bool:
        try:
            is_stored = tail.is_due and tail.step(self._pipeline.open(), budget, now_us)
        except Corrupt as error:
            tail.source.refuse(error)
            return False
        except Unavailable:
            self._later[tail] = None
            self.due_us = self.due_us or now_us + _AGAIN_US
            return False
        if tail.is_due:
            self._due[tail] = None
        return is_stored

    def _stored(self) -> None:
        """What a step brought is in the queues."""
        self._is_busy = False
        self._go_on()
