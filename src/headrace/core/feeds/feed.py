"""A stream and the queues that it fills: how far each is, who is served next, what one step gives them.

Queues that are equally far go on together, and what they get is read once. Most are at the front and have one place for
all of them. The others catch up: the last of them goes first, as far as the next is, so that they meet and go on as
one. Steps of the front and of the last alternate.

Places are kept as groups of the source's log that nobody sees: one for all queues that are equally far, `$assign`, and
one for each that is elsewhere, `$assign/<queue>`. They go with the log, and are copied and verified as groups are.
"""

import logging
from typing import TYPE_CHECKING, Final, final

from headrace.core.batch import Batch
from headrace.core.properties import Codecs, MessageRow
from headrace.core.queue.entry import accept_copy, add_copies, no_copies
from headrace.errors import Refused
from headrace.model import Message
from headrace.selector import Selector
from headrace.storage.api import Append
from headrace.storage.group_state import STREAM

if TYPE_CHECKING:
    from headrace.core.queue.queue import Queue

FRONT: Final = "$assign"
"""The place of all queues that are equally far and have none of their own."""
MOST_PACE: Final = 1024
LEAST_PACE: Final = 16

# How it goes.
FOLLOWING: Final = "following"
BEHIND: Final = "behind"
FULL: Final = "full"
NO_SOURCE: Final = "no source"
DAMAGED: Final = "damaged"


def cursor_of(queue: str) -> str:
    """The group that is the place of this queue in its source's log."""
    return f"{FRONT}/{queue}"


def is_cursor(group: str) -> bool:
    """Whether a group of a log is the place of queues that are filled from it."""
    return group.startswith(FRONT) and (group == FRONT or group[len(FRONT)] == "/")


@final
class Follower:
    """A queue and its place in its source."""

    __slots__ = ("is_waiting", "missed", "oversized", "pace", "position", "queue", "source", "stored")

    def __init__(self, queue: "Queue", source: "Queue | None" = None, position: int = 0) -> None:
        self.queue = queue
        self.source = source
        """None where there is no such stream."""
        self.position = position
        """Everything below was looked at; what matched is in the queue, or on its way in the turn that is open."""
        self.stored = position
        """The same as it is stored, or on its way. Nothing that matches is between the two."""
        self.is_waiting = False
        """Whether it takes nothing for now."""
        self.pace = MOST_PACE
        """How many messages are read for it at once: few while there is never room for many."""
        self.missed = 0
        """Messages that retention took before they were looked at, since the broker was opened."""
        self.oversized = 0
        """Messages that were larger than the queue takes."""

    @property
    def lag(self) -> int:
        """How many messages of the source are still to be looked at."""
        return max(0, self.source.log.next_offset - self.position) if self.source is not None else 0

    @property
    def state(self) -> str:
        """One of the words above."""
        if self.source is None:
            return NO_SOURCE
        if self.source.refusal is not None or self.queue.refusal is not None:
            return DAMAGED
        if self.is_waiting:
            return FULL
        return BEHIND if self.lag else FOLLOWING


_log: Final = logging.getLogger("headrace.core")


@final
class Assignment:
    """One step of queues that are equally far. Whoever cannot take a message stays behind at it; the others go on."""

    def __init__(
        self, source: "Queue", cohort: list[Follower], start: int, codecs: Codecs, now_us: int, most_bytes: int
    ) -> None:
        self.at = start
        """The next message."""
        self.start = start
        self.copies: dict[Follower, Append] = {}
        self.left: dict[Follower, None] = {}
        """Those who stay behind: what they are at is their position."""
        self.size_bytes = 0
        self._source = source
        self._active = cohort
        self._codecs = codecs
        self._now_us = now_us
        self._most_bytes = most_bytes

    @property
    def is_full(self) -> bool:
        """Whether it is enough."""
        return not self._active or (bool(self.copies) and self.size_bytes >= self._most_bytes)

    def give(self, message: Message) -> None:
        """Have everybody get the next message who wants it and in whose queue its time would not be over."""
        if not self._source.is_expired(message, self._now_us):
            is_late = 0 < message.expires_us <= self._now_us
            row = MessageRow(message, self._codecs)
            before = len(self.left)
            for follower in self._active:
                selector = follower.queue.selector
                if (selector is None or _fits(selector, row)) and (not is_late or follower.queue.is_stream):
                    self._hand(follower, message)
            if len(self.left) > before:
                self._active = [follower for follower in self._active if follower not in self.left]
        self.at += 1

    def _hand(self, follower: Follower, message: Message) -> None:
        queue = follower.queue
        size = len(message.payload) + len(message.properties)
        if len(message.payload) > queue.definition.max_message_bytes:
            follower.oversized += 1
            _log.warning(
                "queue %r does not get offset %d of stream %r: %d bytes are too large for it, %d at most",
                queue.name,
                self.at,
                self._source.name,
                len(message.payload),
                queue.definition.max_message_bytes,
            )
            return
        if self.copies and self.size_bytes + size > self._most_bytes:
            self._leave(follower)
            return
        copies = self.copies.get(follower)
        if copies is None:
            copies = no_copies(queue, self._source.log.name)
        if not accept_copy(queue, copies, self.at, message, self._now_us):
            follower.is_waiting = True
            follower.pace = max(LEAST_PACE, self.at - self.start)
            self._leave(follower)
            return
        self.copies[follower] = copies
        self.size_bytes += size

    def _leave(self, follower: Follower) -> None:
        follower.position = self.at
        self.left[follower] = None


def _fits(selector: Selector, row: MessageRow) -> bool:
    """As Queue.fits, over properties that are decoded once for all queues."""
    try:
        return selector.matches(row)
    except Refused:
        return False


READ_BYTES: Final = 1 << 20
_UNSTORED: Final = 4096
"""How far a place that nothing was found behind may be ahead of what is stored of it."""


@final
class Budget:
    """What may be done in one turn of the event loop, for all streams together."""

    __slots__ = ("size_bytes", "tests")

    def __init__(self, tests: int, size_bytes: int) -> None:
        self.tests = tests
        """How often a message may be held against a filter."""
        self.size_bytes = size_bytes

    @property
    def is_spent(self) -> bool:
        return self.tests <= 0 or self.size_bytes <= 0


@final
class Tail:
    """One source."""

    def __init__(self, source: "Queue", codecs: Codecs) -> None:
        self.source = source
        self._codecs = codecs
        self._front = 0
        self._front_stored = 0
        self._joined: dict[Queue, Follower] = {}
        """Those at the front. As long as there are any, the front is stored."""
        self._apart: dict[Queue, Follower] = {}
        """Those with places of their own."""
        self._is_fronts_turn = False
        self.is_held = False
        """Whether everybody stays where they are for now."""

    @property
    def followers(self) -> list[Follower]:
        return [*self._joined.values(), *self._apart.values()]

    # -- who is here -------------------------------------------------------------------------------------------------

    def restore(self, follower: Follower) -> bool:
        """Take in a queue where it is stored to be; False when nothing is stored of it."""
        groups = self.source.log.groups
        own = groups.get(cursor_of(follower.queue.name))
        place = own or groups.get(FRONT)
        if place is None:
            return False
        follower.source = self.source
        follower.position = follower.stored = place.committed
        if own is not None:
            self._apart[follower.queue] = follower
        else:
            self._joined[follower.queue] = follower
            self._front = self._front_stored = place.committed
        return True

    def add(self, batch: Batch, follower: Follower, position: int) -> None:
        """Have a queue begin at an offset."""
        follower.source = self.source
        follower.is_waiting = False
        follower.position = position
        self._part(batch, follower)

    def remove(self, batch: Batch, queue: "Queue") -> None:
        """The queue is filled from here no more."""
        if self._apart.pop(queue, None) is not None:
            batch.durable.delete_group(self.source.log.name, cursor_of(queue.name))
        elif self._joined.pop(queue, None) is not None and not self._joined:
            batch.durable.delete_group(self.source.log.name, FRONT)

    def has_room(self, queue: "Queue") -> None:
        """The queue takes messages again."""
        follower = self._apart.get(queue)
        if follower is not None:
            follower.is_waiting = False

    def hold(self, batch: Batch) -> None:
        """Have everybody stay where they are, which is stored with this turn: something is about to happen there."""
        self.is_held = True
        if self._joined and self._front != self._front_stored:
            self._store_front(batch, self._front)
        for follower in self._apart.values():
            self._store(batch, follower)

    def replaced(self, end: int, new_end: int) -> None:
        """What the stream had below `end` gave way to what is between that and `new_end`. Those who had looked at
        all of it go on behind, as is stored already."""
        if self._joined and self._front >= end:
            self._front = self._front_stored = new_end
        for follower in self.followers:
            if follower.position >= end:
                follower.position = follower.stored = new_end

    # -- steps -------------------------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether there is something to do."""
        if self.is_held or self.source.refusal is not None:
            return False
        end = self.source.safe_offset
        return (bool(self._joined) and self._front < end) or any([self._can_go(f, end) for f in self._apart.values()])

    def step(self, batch: Batch, budget: Budget, now_us: int) -> bool:
        """Serve those whose turn it is; returns whether something of it has to be stored. Raises Corrupt, Unavailable.

        When it raises, nothing happened.
        """
        end = self.source.safe_offset
        cohort, is_front = self._next(end)
        if not cohort:
            return False
        start = max(cohort[0].position, self.source.first_offset)
        stop = self._stop(start, end)
        pace = max([follower.pace for follower in cohort])
        count = min(max(1, budget.tests // len(cohort)), pace, stop - start)
        messages = self.source.log.read(start, count, READ_BYTES) if count > 0 else []
        self._note_missed(cohort, start)
        given = Assignment(self.source, cohort, start, self._codecs, now_us, max(1, budget.size_bytes))
        for message in messages:
            given.give(message)
            if given.is_full:
                break
        budget.tests -= len(cohort) * max(1, given.at - start)
        budget.size_bytes -= given.size_bytes
        for follower, copies in given.copies.items():
            add_copies(follower.queue, batch, copies)
        stayed = [follower for follower in cohort if follower not in given.left]
        for follower in stayed:
            follower.position = given.at
            follower.pace = min(MOST_PACE, follower.pace * 2)
        settled = self._settle_front(batch, given, end) if is_front else self._settle(batch, given, stayed, end)
        return settled or bool(given.copies)

    def _next(self, end: int) -> tuple[list[Follower], bool]:
        """Those to serve, who are equally far, and whether they are the front."""
        waiting = [follower for follower in self._apart.values() if self._can_go(follower, end)]
        if self._joined and self._front < end and (self._is_fronts_turn or not waiting):
            self._is_fronts_turn = False
            return list(self._joined.values()), True
        self._is_fronts_turn = True
        if not waiting:
            return [], False
        last = min([follower.position for follower in waiting])
        return [follower for follower in waiting if follower.position == last], False

    def _can_go(self, follower: Follower, end: int) -> bool:
        """Whether one that is apart can take a step: on, or to the front if that is where it is."""
        if follower.is_waiting:
            return False
        return follower.position < end or not self._joined or follower.position == self._front

    def _stop(self, start: int, end: int) -> int:
        """How far a step may go: to the next who is further, so that they meet."""
        places = [f.position for f in self._apart.values() if f.position > start and not f.is_waiting]
        if self._joined and self._front > start:
            places.append(self._front)
        return max(start, min([*places, end]))

    def _note_missed(self, cohort: list[Follower], first: int) -> None:
        gone = first - cohort[0].position
        if gone > 0:
            for follower in cohort:
                follower.missed += gone
            _log.warning(
                "the retention of stream %r took %d messages before the queues that are filled from it had looked at "
                "them, %r and %d others",
                self.source.name,
                gone,
                cohort[0].queue.name,
                len(cohort) - 1,
            )

    # -- what is stored ----------------------------------------------------------------------------------------------

    def _settle_front(self, batch: Batch, given: Assignment, end: int) -> bool:
        """The front went on; those who stay behind have places of their own from now on."""
        for follower in given.left:
            del self._joined[follower.queue]
            self._part(batch, follower)
        at = self._front = given.at
        if not self._joined:
            batch.durable.delete_group(self.source.log.name, FRONT)
            return True
        if given.copies or given.left or at == end or at - self._front_stored >= _UNSTORED:
            self._store_front(batch, at)
            return True
        return False

    def _settle(self, batch: Batch, given: Assignment, stayed: list[Follower], end: int) -> bool:
        """Those who are apart went on; where the front is, or at the end if there is none, they become part of it."""
        at = given.at
        is_stored = False
        for follower in given.left:
            is_stored = self._store(batch, follower) or is_stored
        if stayed and (at == self._front if self._joined else at == end):
            self._join(batch, stayed, at)
            return True
        for follower in stayed:
            if follower in given.copies or at - follower.stored >= _UNSTORED:
                is_stored = self._store(batch, follower) or is_stored
        return is_stored

    def _join(self, batch: Batch, followers: list[Follower], at: int) -> None:
        log = self.source.log.name
        if not self._joined:
            batch.durable.create_group(log, FRONT, STREAM, "", at)
            self._front = self._front_stored = at
        for follower in followers:
            batch.durable.delete_group(log, cursor_of(follower.queue.name))
            del self._apart[follower.queue]
            self._joined[follower.queue] = follower

    def _part(self, batch: Batch, follower: Follower) -> None:
        follower.stored = follower.position
        self._apart[follower.queue] = follower
        batch.durable.create_group(self.source.log.name, cursor_of(follower.queue.name), STREAM, "", follower.position)

    def _store(self, batch: Batch, follower: Follower) -> bool:
        if follower.position == follower.stored:
            return False
        follower.stored = follower.position
        batch.durable.commit_offset(self.source.log.name, cursor_of(follower.queue.name), follower.position)
        return True

    def _store_front(self, batch: Batch, at: int) -> None:
        self._front = self._front_stored = at
        batch.durable.commit_offset(self.source.log.name, FRONT, at)
