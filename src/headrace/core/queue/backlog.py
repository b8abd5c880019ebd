"""Messages of a work group out of log order: retries, delays, kept and selected messages. No claims: see work.py.

Waiting holds offsets that came back or are not due. Failures remembers which members failed a message, so that another
member gets it. Selection holds the position of each consumer with a selector: such a consumer reads the log by itself,
ahead of the group's cursor if need be, and claims the messages it wants. It looks at each message once, and again at
messages that came back, so a backlog that nobody wants costs one look per consumer and no memory.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, final

from headrace.core.batch import Batch
from headrace.core.queue.definition import QueueDefinition, Retry
from headrace.core.queue.dispatch import Consumer, Found, RoundRobin
from headrace.model import Message

if TYPE_CHECKING:
    from headrace.core.queue.work import WorkGroup

DEAD: Final = -1
"""The answer of `next_attempt_us` for a message that is given up."""
NONE: Final = -1
"""The answer of `Waiting.lowest` when nothing waits."""
_PATIENCE_US: Final = 1_000_000
_SLACK: Final = 64
_OFFERED_AT_ONCE: Final = 64
"""Most kept messages, and most sets of members, that are offered in one round."""
_MOST_REMEMBERED: Final = 8
"""Members remembered per failed message. After so many others failed it, the first of them may have it again."""
_READ_AT_ONCE: Final = 256
_LOOKS: Final = 256
"""Messages that one consumer looks at in one round, so that a long backlog does not hold up the event loop."""


# -- when a failed message is due again --------------------------------------------------------------------------------


def next_attempt_us(definition: QueueDefinition, attempts: int, delayed: bool, now_us: int) -> int:
    """Return when a message that was delivered `attempts` times may be delivered again; DEAD for never.

    A limit of n allows n tries beyond the first, a negative one any number. `delayed` says whether the queue's backoff
    applies: it does after a failure, not when a consumer just went away.
    """
    limit = definition.delivery_limit
    if limit is None and definition.retry is not None:
        limit = definition.retry.max_retries
    if limit is not None and 0 <= limit < attempts:
        return DEAD
    retry = definition.retry
    if not delayed or retry is None:
        return now_us
    return now_us + round(1000 * _backoff_ms(retry, attempts))


def patience_us(attempts: int, lease_us: int, is_timeout: bool) -> int:
    """Return how long a failed message waits for a member that did not fail it, while no such member has room.

    The wait grows with each attempt, as another try at the same member is likely to be lost. A member that failed a
    message in time is alive and may have it again soon; a member that let a lease run out may not.
    """
    return attempts * (lease_us if is_timeout else min(lease_us, _PATIENCE_US))


def _backoff_ms(retry: Retry, attempts: int) -> float:
    try:
        return min(retry.initial_backoff_ms * retry.multiplier ** (attempts - 1), retry.max_backoff_ms)
    except OverflowError:
        return retry.max_backoff_ms


# -- offsets out of order ----------------------------------------------------------------------------------------------


@final
class Waiting:
    """Ready offsets by priority and age, delayed offsets by time, and offsets that are kept for another consumer.

    Every operation takes logarithmic time.
    """

    __slots__ = ("_delayed", "_kept", "_kept_until", "_levels", "_lowest", "_picked", "_retried", "count")

    def __init__(self, levels: int) -> None:
        self._levels: list[list[int]] = [[] for _ in range(levels)]
        """A heap of ready offsets for each priority."""
        self._delayed: list[tuple[int, int, int]] = []
        """A heap of (due time, offset, level)."""
        self._kept: dict[int, tuple[int, int]] = {}
        """(end of the wait, level) by offset, for messages kept for a consumer that has no room yet."""
        self._kept_until: list[tuple[int, int]] = []
        """A heap of (end of the wait, offset). An entry counts only while `_kept` has the same time."""
        self._lowest: list[int] = []
        """A heap of all offsets above. Stale entries are swept out before they outnumber the others."""
        self.count = 0
        """Number of ready, delayed and kept offsets."""
        self._picked: dict[int, int] = {}
        """Number of stale places by offset: the message was taken out of order."""
        self._retried: set[int] = set()
        """Delayed offsets that wait for a retry. The other delayed messages were published for later."""

    @property
    def retried(self) -> int:
        """Number of messages that wait for a retry."""
        return len(self._retried)

    @property
    def has_kept(self) -> bool:
        return len(self._kept) > 0

    @property
    def kept_count(self) -> int:
        return len(self._kept)

    @property
    def has_ready(self) -> bool:
        return self.count > 0 and any(self._levels)

    def next_due_us(self) -> int:
        """Return when the next delayed or kept message becomes ready; 0 for never. Stale entries are dropped."""
        until = self._kept_until
        while until and self._kept.get(until[0][1], (0, 0))[0] != until[0][0]:
            heapq.heappop(until)
        delayed_us = self._delayed[0][0] if self._delayed else 0
        if not until:
            return delayed_us
        return min(delayed_us, until[0][0]) if delayed_us else until[0][0]

    def add(self, offset: int, level: int = 0) -> None:
        """Make an offset ready."""
        heapq.heappush(self._levels[level], offset)
        self._note(offset)

    def add_all(self, offsets: Iterable[int], level: int = 0) -> None:
        """Make many offsets ready: cheaper than one by one after a restart with a long backlog."""
        ready = self._levels[level]
        before = len(ready)
        ready.extend(offsets)
        heapq.heapify(ready)
        self.count += len(ready) - before
        self._sweep()

    def delay(self, offset: int, due_us: int, level: int = 0, is_retried: bool = False) -> None:
        """Make an offset ready at `due_us`."""
        heapq.heappush(self._delayed, (due_us, offset, level))
        if is_retried:
            self._retried.add(offset)
        self._note(offset)

    def forget(self, offset: int) -> None:
        """Count a message no longer as a retry: it is gone."""
        self._retried.discard(offset)

    def end_delays(self, now_us: int) -> None:
        """Make delayed and kept messages ready whose time has come."""
        while self._delayed and self._delayed[0][0] <= now_us:
            _, offset, level = heapq.heappop(self._delayed)
            self._retried.discard(offset)
            heapq.heappush(self._levels[level], offset)
        while self._kept_until and self._kept_until[0][0] <= now_us:
            until_us, offset = heapq.heappop(self._kept_until)
            if self._kept.get(offset, (0, 0))[0] == until_us:
                self.offer(offset)

    def keep(self, offset: int, until_us: int, level: int = 0) -> None:
        """Keep an offset back until it is offered, at most until `until_us`."""
        self._kept[offset] = (until_us, level)
        heapq.heappush(self._kept_until, (until_us, offset))
        if len(self._kept_until) > 2 * len(self._kept) + _SLACK:
            self._kept_until = [(until, kept) for kept, (until, _) in self._kept.items()]
            heapq.heapify(self._kept_until)
        self._note(offset)

    def is_kept(self, offset: int) -> bool:
        return offset in self._kept

    def offer(self, offset: int) -> None:
        """Make a kept offset ready."""
        _, level = self._kept.pop(offset)
        heapq.heappush(self._levels[level], offset)

    def offer_some(self, most: int) -> bool:
        """Make up to `most` kept offsets ready; returns whether there were any."""
        offsets = list(itertools.islice(self._kept, most))
        for offset in offsets:
            self.offer(offset)
        return len(offsets) > 0

    def pop_run(self, most: int) -> range:
        """Remove the oldest of the most urgent offsets and its direct followers; returns an empty range for none."""
        for ready in reversed(self._levels):
            if ready:
                start = heapq.heappop(ready)
                stop = start + 1
                while ready and ready[0] == stop and stop - start < most:
                    heapq.heappop(ready)
                    stop += 1
                self.count -= stop - start
                return range(start, stop)
        return range(0)

    def pick(self, offset: int) -> None:
        """Invalidate the place of a message that is taken out of order."""
        if self._kept.pop(offset, None) is not None:
            self.count -= 1
            return
        self._picked[offset] = self._picked.get(offset, 0) + 1
        self._retried.discard(offset)

    def use_up_pick(self, offset: int) -> bool:
        """Return whether the place just removed was invalid, and forget that: to be called once per place."""
        if not self._picked:
            return False
        count = self._picked.pop(offset, 0)
        if count > 1:
            self._picked[offset] = count - 1
        return count > 0

    def pass_over(self, start: int, stop: int) -> None:
        """Forget the invalid places among these, which were removed unread."""
        if self._picked:
            for offset in range(start, stop):
                self.use_up_pick(offset)

    def lowest(self, is_waiting: Callable[[int], bool]) -> int:
        """Return the lowest offset that still waits, NONE if there is none. Stale entries are dropped."""
        lowest = self._lowest
        while lowest and not is_waiting(lowest[0]):
            heapq.heappop(lowest)
        return lowest[0] if lowest else NONE

    def clear(self) -> None:
        for ready in self._levels:
            ready.clear()
        self._delayed.clear()
        self._kept.clear()
        self._kept_until.clear()
        self._lowest.clear()
        self._picked.clear()
        self._retried.clear()
        self.count = 0

    def _note(self, offset: int) -> None:
        self.count += 1
        heapq.heappush(self._lowest, offset)
        if len(self._lowest) > 2 * self.count + _SLACK:
            self._sweep()

    def _sweep(self) -> None:
        self._lowest = [offset for _, offset, _ in self._delayed]
        self._lowest.extend(self._kept)
        for ready in self._levels:
            self._lowest.extend(ready)
        heapq.heapify(self._lowest)


# -- members that failed a message -------------------------------------------------------------------------------------


@final
class Failure:
    """One message that failed."""

    __slots__ = ("consumers", "patience_us", "until_us")

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []
        """The members that failed it, the last one last."""
        self.patience_us = 0
        """The time that it waits for another member."""
        self.until_us = 0
        """The end of that wait; 0 while a member has the message."""


@final
class Failures:
    """The failed, unsettled messages of a work group. In memory only: after a restart all members are new."""

    __slots__ = ("_by_offset", "_kept")

    def __init__(self) -> None:
        self._by_offset: dict[int, Failure] = {}
        self._kept: dict[tuple[Consumer, ...], list[int]] = {}
        """Heaps of kept offsets by the members that failed them. Entries that are kept no more are passed over."""

    def get(self, offset: int) -> Failure | None:
        return self._by_offset.get(offset)

    def note(self, members: RoundRobin, consumer: Consumer, offset: int, patience_us: int) -> None:
        """Record that a member failed a message. Once all members did, only the last failure counts."""
        failure = self._by_offset.get(offset)
        if failure is None:
            failure = self._by_offset[offset] = Failure()
        failed = failure.consumers
        if consumer in failed:
            failed.remove(consumer)
        failed.append(consumer)
        if len(failed) > _MOST_REMEMBERED or not members.has_other(failed):
            failure.consumers = [consumer]
        failure.patience_us = patience_us

    def requeue(self, offset: int, due_us: int) -> None:
        """Start the wait for another member: the message is ready from `due_us` on."""
        failure = self._by_offset.get(offset)
        if failure is not None:
            failure.until_us = due_us + failure.patience_us

    def keep(self, waiting: Waiting, failure: Failure, offset: int, until_us: int, level: int) -> None:
        """Keep a message for members that did not fail it."""
        waiting.keep(offset, until_us, level)
        heap = self._kept.setdefault(tuple(failure.consumers), [])
        heapq.heappush(heap, offset)
        if len(heap) > 2 * waiting.kept_count + _OFFERED_AT_ONCE:
            heap[:] = sorted({each for each in heap if waiting.is_kept(each)})

    def offer(self, group: "WorkGroup", now_us: int) -> bool:
        """Make kept messages ready that somebody can take now; returns whether there may be more."""
        waiting, offered = group.waiting, 0
        for failed in list(itertools.islice(self._kept, _OFFERED_AT_ONCE)):
            heap = self._kept.pop(failed)
            while heap and offered < _OFFERED_AT_ONCE:
                if waiting.is_kept(heap[0]):
                    if not self._has_taker(group, list(failed), heap[0], now_us):
                        break
                    waiting.offer(heap[0])
                    offered += 1
                heapq.heappop(heap)
            if heap:
                self._kept[failed] = heap  # behind the other sets, which come first next time
        return offered >= _OFFERED_AT_ONCE

    def forget(self, offsets: Iterable[int]) -> bool:
        """Drop settled messages; returns whether nothing is left."""
        for offset in offsets:
            self._by_offset.pop(offset, None)
        return not self._by_offset

    def below(self, offset: int) -> list[int]:
        """Return the failed offsets below this one."""
        return [each for each in self._by_offset if each < offset]

    def kept_until(self, group: "WorkGroup", failure: Failure, offset: int, now_us: int) -> int:
        """Return until when a message is kept for members that did not fail it; 0 when any member may have it."""
        took_us = -1
        for member in group.consumers.members:
            if member in failure.consumers:
                continue
            if member.selector is None or group.queue.fits(member.selector, group.queue.message(offset)):
                if failure.until_us > now_us:
                    return failure.until_us
                took_us = max(took_us, member.took_us)
        # While other members still take failed messages, this one gets its turn too.
        return took_us + failure.patience_us if took_us + failure.patience_us > now_us else 0

    def _has_taker(self, group: "WorkGroup", failed: list[Consumer], offset: int, now_us: int) -> bool:
        failure = self._by_offset.get(offset)
        if failure is None or group.consumers.has_room_but(failed):
            return True
        return not self.kept_until(group, failure, offset, now_us)

    def is_kept_from(self, group: "WorkGroup", consumer: Consumer, offset: int, now_us: int) -> bool:
        """Return whether a member may not pick a message because other members come first."""
        failure = self._by_offset.get(offset)
        if failure is None or consumer not in failure.consumers:
            return False
        until_us = self.kept_until(group, failure, offset, now_us)
        if until_us:
            group.queue.wake_at(until_us)
        return until_us > 0


# -- consumers with a selector -----------------------------------------------------------------------------------------


@final
class Selection:
    """The positions of consumers with a selector in the log of one group."""

    __slots__ = ("_again", "_at", "_group", "_later", "_next")

    def __init__(self, group: "WorkGroup") -> None:
        self._group = group
        self._at: dict[Consumer, int] = {}
        self._again: dict[Consumer, list[int]] = {}
        """Heaps of offsets that a consumer wants and has passed: they came back."""
        self._later: dict[Consumer, list[tuple[int, int]]] = {}
        """Heaps of such offsets that are not due yet, by their due time."""
        self._next: Consumer | None = None
        """The consumer with which the next round begins, as the last one was over before its turn."""

    def pump(self, batch: Batch, now_us: int) -> None:
        """Deliver to each consumer that has room, silent ones last."""
        group = self._group
        for consumer in self._in_turn():
            if group.queue.statistics.is_round_over and self._next is not consumer:
                self._next = consumer
                group.queue.pump_soon()
                return
            room = min(group.consumers.room_of(consumer), group.max_pending - group.unsettled, _READ_AT_ONCE)
            if room <= 0 or consumer.turns is not group.consumers:
                continue
            found = self._find_again(batch, consumer, room, now_us)
            if len(found) < room:
                found += self._find_ahead(batch, consumer, room - len(found), now_us)
            if found:
                group.give(batch, consumer, found, now_us)
            if group.consumers.room_of(consumer) > 0 and self._at[consumer] < group.queue.log.next_offset:
                group.queue.pump_soon()
        self._next = None

    def _in_turn(self) -> list[Consumer]:
        """Consumers that take silent ones last; the one that the last round did not reach is first."""
        members = sorted(self._group.consumers.selective, key=_is_silent)
        if self._next is not None and self._next in members:
            at = members.index(self._next)
            members = members[at:] + members[:at]
        return members

    def requeue(self, offset: int, message: Message) -> None:
        """Show a message that came back again to consumers that want it and have passed it."""
        for consumer, at in self._at.items():
            if offset < at and self._wants(consumer, message):
                heapq.heappush(self._again[consumer], offset)

    def forget(self, consumer: Consumer) -> None:
        """Drop the position of a consumer that left."""
        self._at.pop(consumer, None)
        self._again.pop(consumer, None)
        self._later.pop(consumer, None)

    def _find_again(self, batch: Batch, consumer: Consumer, room: int, now_us: int) -> list[Found]:
        """Return messages that the consumer has passed and may have now."""
        group = self._group
        found: list[Found] = []
        waiting, later = self._again.setdefault(consumer, []), self._later.get(consumer)
        while later and later[0][0] <= now_us:
            heapq.heappush(waiting, heapq.heappop(later)[1])
        kept: list[int] = []
        while waiting and len(found) < room:
            offset = heapq.heappop(waiting)
            if not group.is_waiting(offset) or (found and found[-1][0] == offset):
                continue
            message = group.queue.message(offset)
            due_us = group.due_us(offset, message)
            if due_us > now_us:
                self._put_off(consumer, offset, due_us)
            elif self._is_kept(consumer, offset, now_us):
                kept.append(offset)
            elif group.admits(batch, offset, message, now_us):
                found.append((offset, message))
        for offset in kept:
            heapq.heappush(waiting, offset)
        return found

    def _put_off(self, consumer: Consumer, offset: int, due_us: int) -> None:
        heapq.heappush(self._later.setdefault(consumer, []), (due_us, offset))

    def _find_ahead(self, batch: Batch, consumer: Consumer, room: int, now_us: int) -> list[Found]:
        """Return messages from the consumer's position on, and move that."""
        group = self._group
        log = group.queue.log
        found: list[Found] = []
        at = max(self._at.get(consumer, 0), group.state.committed)
        last = min(log.next_offset, at + _LOOKS)
        start = at
        while at < last and len(found) < room:
            for message in log.read(at, min(last - at, _READ_AT_ONCE)):
                at += 1
                if group.is_waiting(at - 1) and self._wants(consumer, message):
                    self._pick(batch, consumer, at - 1, message, found, now_us)
                    if len(found) == room:
                        break
        self._at[consumer] = at
        group.queue.statistics.passed += at - start - len(found)
        return found

    def _pick(
        self, batch: Batch, consumer: Consumer, offset: int, message: Message, found: list[Found], now_us: int
    ) -> None:
        due_us = self._group.due_us(offset, message)
        if due_us > now_us:
            self._put_off(consumer, offset, due_us)
            self._group.queue.wake_at(due_us)
        elif self._is_kept(consumer, offset, now_us):
            heapq.heappush(self._again.setdefault(consumer, []), offset)
        elif self._group.admits(batch, offset, message, now_us):
            found.append((offset, message))

    def _is_kept(self, consumer: Consumer, offset: int, now_us: int) -> bool:
        """Return whether the consumer failed this message and other members come first."""
        failures = self._group.failures
        return failures is not None and failures.is_kept_from(self._group, consumer, offset, now_us)

    def _wants(self, consumer: Consumer, message: Message) -> bool:
        assert consumer.selector is not None
        return self._group.queue.fits(consumer.selector, message)


def _is_silent(consumer: Consumer) -> bool:
    return consumer.is_silent
