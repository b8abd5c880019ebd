"""A stream and the queues that it fills: their positions, the order of service, and single steps.

Queues at the same position move together, so each message is read once for all of them. Most are at the front and share
one position. The others catch up: the last goes first, up to the next one, so that they meet and move on as one. Steps
of the front and of the last alternate.

Positions are hidden groups of the source's log: `$assign` for all queues at the front, `$assign/<queue>` for each
other. They are deleted, copied and verified with the log, as groups are.
"""

import logging
from typing import TYPE_CHECKING, Final, final

from headrace.core.batch import Batch
from headrace.core.queue.entry import accept_copy, add_copies, no_copies
from headrace.errors import Refused
from headrace.model import Message
from headrace.selector import Selector
from headrace.storage.api import Append
from headrace.storage.group_state import STREAM
from headrace.wire.encodings import MessageRow

if TYPE_CHECKING:
    from headrace.core.queue.queue import Queue

FRONT: Final = "$assign"
"""Group of the front: all queues without a position of their own."""
MOST_PACE: Final = 1024
LEAST_PACE: Final = 16

# States of a fed queue.
FOLLOWING: Final = "following"
BEHIND: Final = "behind"
FULL: Final = "full"
NO_SOURCE: Final = "no source"
DAMAGED: Final = "damaged"


def cursor_of(queue: str) -> str:
    """Group that holds this queue's own position in its source."""
    return f"{FRONT}/{queue}"


def is_cursor(group: str) -> bool:
    """True for groups that hold positions of fed queues."""
    return group.startswith(FRONT) and (group == FRONT or group[len(FRONT)] == "/")


@final
class FedQueue:
    """A queue and its position in its source."""

    __slots__ = ("is_waiting", "missed", "oversized", "pace", "position", "queue", "source", "stored")

    def __init__(self, queue: "Queue", source: "Queue | None" = None, position: int = 0) -> None:
        self.queue = queue
        self.source = source
        """None while the stream is missing."""
        self.position = position
        """Next offset to read; matching messages below it are in the queue or in the open batch."""
        self.stored = position
        """The stored position. No message between it and `position` matches."""
        self.is_waiting = False
        """True while the queue is full."""
        self.pace = MOST_PACE
        """Messages to read per step; few while the queue has little room."""
        self.missed = 0
        """Messages that retention removed unread, since the broker was opened."""
        self.oversized = 0
        """Messages above the queue's size limit."""

    @property
    def lag(self) -> int:
        """Unread messages of the source."""
        return max(0, self.source.log.next_offset - self.position) if self.source is not None else 0

    @property
    def state(self) -> str:
        """One of the states above."""
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
    """One step of queues at the same position. A queue that cannot take a message stays behind; the others go on."""

    def __init__(self, source: "Queue", cohort: list[FedQueue], start: int, now_us: int, most_bytes: int) -> None:
        self.at = start
        """Offset of the next message."""
        self.start = start
        self.copies: dict[FedQueue, Append] = {}
        self.left: dict[FedQueue, None] = {}
        """Queues that stay behind, at their own position."""
        self.size_bytes = 0
        self._source = source
        self._active = cohort
        self._now_us = now_us
        self._most_bytes = most_bytes

    @property
    def is_full(self) -> bool:
        """True if the step must end."""
        return not self._active or (bool(self.copies) and self.size_bytes >= self._most_bytes)

    def give(self, message: Message) -> None:
        """Copy the next message to every queue that selects it, unless it expires there."""
        if not self._source.is_expired(message, self._now_us):
            is_late = 0 < message.expires_us <= self._now_us
            row = MessageRow(message, self._now_us)
            before = len(self.left)
            for fed in self._active:
                selector = fed.queue.selector
                if (selector is None or _fits(selector, row)) and (not is_late or fed.queue.is_stream):
                    self._hand(fed, message)
            if len(self.left) > before:
                self._active = [fed for fed in self._active if fed not in self.left]
        self.at += 1

    def _hand(self, fed: FedQueue, message: Message) -> None:
        queue = fed.queue
        size = len(message.payload) + len(message.properties)
        if len(message.payload) > queue.definition.max_message_bytes:
            fed.oversized += 1
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
            self._leave(fed)
            return
        copies = self.copies.get(fed)
        if copies is None:
            copies = no_copies(queue, self._source.log.name)
        if not accept_copy(queue, copies, self.at, message, self._now_us):
            fed.is_waiting = True
            fed.pace = max(LEAST_PACE, self.at - self.start)
            self._leave(fed)
            return
        self.copies[fed] = copies
        self.size_bytes += size

    def _leave(self, fed: FedQueue) -> None:
        fed.position = self.at
        self.left[fed] = None


def _fits(selector: Selector, row: MessageRow) -> bool:
    """Evaluate a selector as Queue.fits does, over properties decoded once for all queues."""
    try:
        return selector.matches(row)
    except Refused:
        return False


READ_BYTES: Final = 1 << 20
_UNSTORED: Final = 4096
"""Distance that a position may move without a match before it is stored."""


@final
class Budget:
    """Work that all feeds may do in one turn of the event loop."""

    __slots__ = ("size_bytes", "tests")

    def __init__(self, tests: int, size_bytes: int) -> None:
        self.tests = tests
        """Filter tests left."""
        self.size_bytes = size_bytes

    @property
    def is_spent(self) -> bool:
        return self.tests <= 0 or self.size_bytes <= 0


@final
class Feed:
    """One source with the queues that it fills."""

    def __init__(self, source: "Queue") -> None:
        self.source = source
        self._front = 0
        self._front_stored = 0
        self._joined: dict[Queue, FedQueue] = {}
        """Queues at the front. The front is stored while there are any."""
        self._apart: dict[Queue, FedQueue] = {}
        """Queues with a position of their own."""
        self._is_fronts_turn = False
        self.is_held = False
        """True while no queue may move."""

    @property
    def fed_queues(self) -> list[FedQueue]:
        return [*self._joined.values(), *self._apart.values()]

    # -- queues --------------------------------------------------------------------------------------------------------

    def restore(self, fed: FedQueue) -> bool:
        """Add a queue at its stored position; False if none is stored."""
        groups = self.source.log.groups
        own = groups.get(cursor_of(fed.queue.name))
        place = own or groups.get(FRONT)
        if place is None:
            return False
        fed.source = self.source
        fed.position = fed.stored = place.committed
        if own is not None:
            self._apart[fed.queue] = fed
        else:
            self._joined[fed.queue] = fed
            self._front = self._front_stored = place.committed
        return True

    def add(self, batch: Batch, fed: FedQueue, position: int) -> None:
        """Add a queue at an offset."""
        fed.source = self.source
        fed.is_waiting = False
        fed.position = position
        self._part(batch, fed)

    def remove(self, batch: Batch, queue: "Queue") -> None:
        """Remove a queue."""
        if self._apart.pop(queue, None) is not None:
            batch.durable.delete_group(self.source.log.name, cursor_of(queue.name))
        elif self._joined.pop(queue, None) is not None and not self._joined:
            batch.durable.delete_group(self.source.log.name, FRONT)

    def has_room(self, queue: "Queue") -> None:
        """Hear that a queue accepts messages again."""
        fed = self._apart.get(queue)
        if fed is not None:
            fed.is_waiting = False

    def hold(self, batch: Batch) -> None:
        """Stop all queues and store their positions with this batch, before the stream changes."""
        self.is_held = True
        if self._joined and self._front != self._front_stored:
            self._store_front(batch, self._front)
        for fed in self._apart.values():
            self._store(batch, fed)

    def replaced(self, end: int, new_end: int) -> None:
        """Move queues at or past `end` to `new_end`, after newer messages replaced all below `end`.

        The new positions are stored already.
        """
        if self._joined and self._front >= end:
            self._front = self._front_stored = new_end
        for fed in self.fed_queues:
            if fed.position >= end:
                fed.position = fed.stored = new_end

    # -- steps ---------------------------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """True if a step has work."""
        if self.is_held or self.source.refusal is not None:
            return False
        end = self.source.safe_offset
        return (bool(self._joined) and self._front < end) or any([self._can_go(f, end) for f in self._apart.values()])

    def step(self, batch: Batch, budget: Budget, now_us: int) -> bool:
        """Serve the next queues; returns True if the step has to be stored. Raises Corrupt, Unavailable.

        A step that raises has no effect.
        """
        end = self.source.safe_offset
        cohort, is_front = self._next(end)
        if not cohort:
            return False
        start = max(cohort[0].position, self.source.first_offset)
        stop = self._stop(start, end)
        pace = max([fed.pace for fed in cohort])
        count = min(max(1, budget.tests // len(cohort)), pace, stop - start)
        messages = self.source.log.read(start, count, READ_BYTES) if count > 0 else []
        self._note_missed(cohort, start)
        given = Assignment(self.source, cohort, start, now_us, max(1, budget.size_bytes))
        for message in messages:
            given.give(message)
            if given.is_full:
                break
        budget.tests -= len(cohort) * max(1, given.at - start)
        budget.size_bytes -= given.size_bytes
        for fed, copies in given.copies.items():
            add_copies(fed.queue, batch, copies)
        stayed = [fed for fed in cohort if fed not in given.left]
        for fed in stayed:
            fed.position = given.at
            fed.pace = min(MOST_PACE, fed.pace * 2)
        settled = self._settle_front(batch, given, end) if is_front else self._settle(batch, given, stayed, end)
        return settled or bool(given.copies)

    def _next(self, end: int) -> tuple[list[FedQueue], bool]:
        """The queues to serve, all at the same position, and True if they are the front."""
        waiting = [fed for fed in self._apart.values() if self._can_go(fed, end)]
        if self._joined and self._front < end and (self._is_fronts_turn or not waiting):
            self._is_fronts_turn = False
            return list(self._joined.values()), True
        self._is_fronts_turn = True
        if not waiting:
            return [], False
        last = min([fed.position for fed in waiting])
        return [fed for fed in waiting if fed.position == last], False

    def _can_go(self, fed: FedQueue, end: int) -> bool:
        """True if a queue with its own position can move on, or join the front."""
        if fed.is_waiting:
            return False
        return fed.position < end or not self._joined or fed.position == self._front

    def _stop(self, start: int, end: int) -> int:
        """End of a step: the position of the next queue ahead, so that they meet."""
        places = [f.position for f in self._apart.values() if f.position > start and not f.is_waiting]
        if self._joined and self._front > start:
            places.append(self._front)
        return max(start, min([*places, end]))

    def _note_missed(self, cohort: list[FedQueue], first: int) -> None:
        gone = first - cohort[0].position
        if gone > 0:
            for fed in cohort:
                fed.missed += gone
            _log.warning(
                "the retention of stream %r took %d messages before the queues that are filled from it had looked at "
                "them, %r and %d others",
                self.source.name,
                gone,
                cohort[0].queue.name,
                len(cohort) - 1,
            )

    # -- stored positions ----------------------------------------------------------------------------------------------

    def _settle_front(self, batch: Batch, given: Assignment, end: int) -> bool:
        """Store the front's new position; queues that stayed behind get positions of their own."""
        for fed in given.left:
            del self._joined[fed.queue]
            self._part(batch, fed)
        at = self._front = given.at
        if not self._joined:
            batch.durable.delete_group(self.source.log.name, FRONT)
            return True
        if given.copies or given.left or at == end or at - self._front_stored >= _UNSTORED:
            self._store_front(batch, at)
            return True
        return False

    def _settle(self, batch: Batch, given: Assignment, stayed: list[FedQueue], end: int) -> bool:
        """Store new positions of queues apart; at the front, or at the end without a front, they join it."""
        at = given.at
        is_stored = False
        for fed in given.left:
            is_stored = self._store(batch, fed) or is_stored
        if stayed and (at == self._front if self._joined else at == end):
            self._join(batch, stayed, at)
            return True
        for fed in stayed:
            if fed in given.copies or at - fed.stored >= _UNSTORED:
                is_stored = self._store(batch, fed) or is_stored
        return is_stored

    def _join(self, batch: Batch, fed_queues: list[FedQueue], at: int) -> None:
        log = self.source.log.name
        if not self._joined:
            batch.durable.create_group(log, FRONT, STREAM, "", at)
            self._front = self._front_stored = at
        for fed in fed_queues:
            batch.durable.delete_group(log, cursor_of(fed.queue.name))
            del self._apart[fed.queue]
            self._joined[fed.queue] = fed

    def _part(self, batch: Batch, fed: FedQueue) -> None:
        fed.stored = fed.position
        self._apart[fed.queue] = fed
        batch.durable.create_group(self.source.log.name, cursor_of(fed.queue.name), STREAM, "", fed.position)

    def _store(self, batch: Batch, fed: FedQueue) -> bool:
        if fed.position == fed.stored:
            return False
        fed.stored = fed.position
        batch.durable.commit_offset(self.source.log.name, cursor_of(fed.queue.name), fed.position)
        return True

    def _store_front(self, batch: Batch, at: int) -> None:
        self._front = self._front_stored = at
        batch.durable.commit_offset(self.source.log.name, FRONT, at)
