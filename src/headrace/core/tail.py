"""A stream and the queues that are filled from it: who is how far, and who is served next. Woken by assigner.py.

Queues that are equally far go on together, and what they get is read once. Most are at the front and have one place for
all of them. The others catch up: the last of them goes first, as far as the next is, so that they meet and go on as
one. Steps of the front and of the last alternate.
"""

import logging
from typing import TYPE_CHECKING, Final, final

from headrace.core.assignment import Assignment
from headrace.core.follower import FRONT, MOST_PACE, Follower, cursor_of
from headrace.core.properties import Codecs
from headrace.core.turn import Turn
from headrace.storage.group_state import STREAM

if TYPE_CHECKING:
    from headrace.core.queue import Queue

_log: Final = logging.getLogger("headrace.core")

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

    def add(self, turn: Turn, follower: Follower, position: int) -> None:
        """Have a queue begin at an offset."""
        follower.source = self.source
        follower.is_waiting = False
        follower.position = position
        self._part(turn, follower)

    def remove(self, turn: Turn, queue: "Queue") -> None:
        """The queue is filled from here no more."""
        if self._apart.pop(queue, None) is not None:
            turn.durable.delete_group(self.source.log.name, cursor_of(queue.name))
        elif self._joined.pop(queue, None) is not None and not self._joined:
            turn.durable.delete_group(self.source.log.name, FRONT)

    def has_room(self, queue: "Queue") -> None:
        """The queue takes messages again."""
        follower = self._apart.get(queue)
        if follower is not None:
            follower.is_waiting = False

    def hold(self, turn: Turn) -> None:
        """Have everybody stay where they are, which is stored with this turn: something is about to happen there."""
        self.is_held = True
        if self._joined and self._front != self._front_stored:
            self._store_front(turn, self._front)
        for follower in self._apart.values():
            self._store(turn, follower)

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

    def step(self, turn: Turn, budget: Budget, now_us: int) -> bool:
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
        turn.copied += given.copies.values()
        stayed = [follower for follower in cohort if follower not in given.left]
        for follower in stayed:
            follower.position = given.at
            follower.pace = min(MOST_PACE, follower.pace * 2)
        settled = self._settle_front(turn, given, end) if is_front else self._settle(turn, given, stayed, end)
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

    def _settle_front(self, turn: Turn, given: Assignment, end: int) -> bool:
        """The front went on; those who stay behind have places of their own from now on."""
        for follower in given.left:
            del self._joined[follower.queue]
            self._part(turn, follower)
        at = self._front = given.at
        if not self._joined:
            turn.durable.delete_group(self.source.log.name, FRONT)
            return True
        if given.copies or given.left or at == end or at - self._front_stored >= _UNSTORED:
            self._store_front(turn, at)
            return True
        return False

    def _settle(self, turn: Turn, given: Assignment, stayed: list[Follower], end: int) -> bool:
        """Those who are apart went on; where the front is, or at the end if there is none, they become part of it."""
        at = given.at
        is_stored = False
        for follower in given.left:
            is_stored = self._store(turn, follower) or is_stored
        if stayed and (at == self._front if self._joined else at == end):
            self._join(turn, stayed, at)
            return True
        for follower in stayed:
            if follower in given.copies or at - follower.stored >= _UNSTORED:
                is_stored = self._store(turn, follower) or is_stored
        return is_stored

    def _join(self, turn: Turn, followers: list[Follower], at: int) -> None:
        log = self.source.log.name
        if not self._joined:
            turn.durable.create_group(log, FRONT, STREAM, "", at)
            self._front = self._front_stored = at
        for follower in followers:
            turn.durable.delete_group(log, cursor_of(follower.queue.name))
            del self._apart[follower.queue]
            self._joined[follower.queue] = follower

    def _part(self, turn: Turn, follower: Follower) -> None:
        follower.stored = follower.position
        self._apart[follower.queue] = follower
        turn.durable.create_group(self.source.log.name, cursor_of(follower.queue.name), STREAM, "", follower.position)

    def _store(self, turn: Turn, follower: Follower) -> bool:
        if follower.position == follower.stored:
            return False
        follower.stored = follower.position
        turn.durable.commit_offset(self.source.log.name, cursor_of(follower.queue.name), follower.position)
        return True

    def _store_front(self, turn: Turn, at: int) -> None:
        self._front = self._front_stored = at
        turn.durable.commit_offset(self.source.log.name, FRONT, at)
