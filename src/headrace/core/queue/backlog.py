"""What a work group delivers next: returned, delayed, selected and new messages, and when a failed one is due again.

The group has the state, for most messages are delivered without a look at what is here; these are its questions.

Such a consumer goes through the log by itself, ahead of the group's cursor if need be, and claims what it wants; what
it does not want stays for others. It looks at each message once, and again at those that came back. So a backlog
that nobody wants costs one look for each consumer, and no memory.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, final

from headrace.core.batch import Batch
from headrace.core.queue.definition import QueueDefinition, Retry
from headrace.core.queue.dispatch import Consumer
from headrace.core.queue.group import FILTERED_AT_ONCE, READ_AT_ONCE_BYTES, Found, most_bytes
from headrace.core.queue.history import DELIVERY_LIMIT, EXPIRED
from headrace.errors import Unavailable
from headrace.model import Message

if TYPE_CHECKING:
    from headrace.core.queue.work import WorkGroup

DEAD: Final = -1
"""The answer that says: give it up."""
_PATIENCE_US: Final = 1_000_000


def next_attempt_us(definition: QueueDefinition, attempts: int, delayed: bool, now_us: int) -> int:
    """When a message that was delivered `attempts` times may be delivered again; DEAD when never.

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
    """How long a message that failed waits for a member that did not fail it, while none of these has room.

    Longer with each attempt, as one at the same member again is likely to be lost. A member that failed a message in
    time is alive and may have it again soon; one that let a lease run out may not.
    """
    return attempts * (lease_us if is_timeout else min(lease_us, _PATIENCE_US))


def _backoff_ms(retry: Retry, attempts: int) -> float:
    try:
        return min(retry.initial_backoff_ms * retry.multiplier ** (attempts - 1), retry.max_backoff_ms)
    except OverflowError:
        return retry.max_backoff_ms


NONE: Final = -1
_SLACK: Final = 64


@final
class Waiting:
    """Ready offsets by priority and age, delayed ones by their time, and those that are kept for another consumer.

    Every operation takes logarithmic time.
    """

    __slots__ = ("_count", "_delayed", "_kept", "_kept_until", "_levels", "_lowest", "_picked", "_retried")

    def __init__(self, levels: int) -> None:
        self._levels: list[list[int]] = [[] for _ in range(levels)]
        self._delayed: list[tuple[int, int, int]] = []
        """A heap of (when, offset, level)."""
        self._kept: dict[int, tuple[int, int]] = {}
        """(until when, level) by offset: kept for a consumer that has no room yet."""
        self._kept_until: list[tuple[int, int]] = []
        """A heap of (until when, offset); one counts only while `_kept` says the same."""
        self._lowest: list[int] = []
        """A heap of all offsets above; those that wait no more are swept out before they outnumber the others."""
        self._count = 0
        """How many offsets are ready, delayed or kept."""
        self._picked: dict[int, int] = {}
        """How many of an offset's places count no more, as its message was taken out of line."""
        self._retried: set[int] = set()
        """Which of the delayed came back to be tried again; the others were published for later."""

    @property
    def retried(self) -> int:
        """How many that came back wait for the end of a delay."""
        return len(self._retried)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is ready, delayed or kept."""
        return self._count == 0

    @property
    def has_kept(self) -> bool:
        return len(self._kept) > 0

    @property
    def kept_count(self) -> int:
        return len(self._kept)

    @property
    def has_ready(self) -> bool:
        return self._count > 0 and any(self._levels)

    @property
    def next_due_us(self) -> int:
        """When something delayed or kept is ready next; 0 when nothing is either."""
        until = self._kept_until
        while until and self._kept.get(until[0][1], (0, 0))[0] != until[0][0]:
            heapq.heappop(until)
        delayed_us = self._delayed[0][0] if self._delayed else 0
        if not until:
            return delayed_us
        return min(delayed_us, until[0][0]) if delayed_us else until[0][0]

    def add(self, offset: int, level: int = 0) -> None:
        """Ready now."""
        heapq.heappush(self._levels[level], offset)
        self._note(offset)

    def add_all(self, offsets: Iterable[int], level: int = 0) -> None:
        """Ready now, all of them: cheaper than one by one."""
        ready = self._levels[level]
        before = len(ready)
        ready.extend(offsets)
        heapq.heapify(ready)
        self._count += len(ready) - before
        self._sweep()

    def delay(self, offset: int, due_us: int, level: int = 0, is_retried: bool = False) -> None:
        """Ready at `due_us`."""
        heapq.heappush(self._delayed, (due_us, offset, level))
        if is_retried:
            self._retried.add(offset)
        self._note(offset)

    def forget(self, offset: int) -> None:
        """The message of a place here is gone."""
        self._retried.discard(offset)

    def end_delays(self, now_us: int) -> None:
        """What was delayed until now is ready."""
        while self._delayed and self._delayed[0][0] <= now_us:
            _, offset, level = heapq.heappop(self._delayed)
            self._retried.discard(offset)
            heapq.heappush(self._levels[level], offset)
        while self._kept_until and self._kept_until[0][0] <= now_us:
            until_us, offset = heapq.heappop(self._kept_until)
            if self._kept.get(offset, (0, 0))[0] == until_us:
                self.offer(offset)

    def keep(self, offset: int, until_us: int, level: int = 0) -> None:
        """Ready when it is offered, or else at `until_us`."""
        self._kept[offset] = (until_us, level)
        heapq.heappush(self._kept_until, (until_us, offset))
        if len(self._kept_until) > 2 * len(self._kept) + _SLACK:
            self._kept_until = [(until, kept) for kept, (until, _) in self._kept.items()]
            heapq.heapify(self._kept_until)
        self._note(offset)

    def is_kept(self, offset: int) -> bool:
        return offset in self._kept

    def offer(self, offset: int) -> None:
        """What was kept is ready now."""
        _, level = self._kept.pop(offset)
        heapq.heappush(self._levels[level], offset)

    def offer_some(self, most: int) -> bool:
        """Have up to `most` of what is kept ready now; returns whether there was anything."""
        offsets = list(itertools.islice(self._kept, most))
        for offset in offsets:
            self.offer(offset)
        return len(offsets) > 0

    def pop_run(self, most: int) -> range:
        """Remove the most urgent offset, of those the oldest, and what follows it without a gap; empty when none is."""
        for ready in reversed(self._levels):
            if ready:
                start = heapq.heappop(ready)
                stop = start + 1
                while ready and ready[0] == stop and stop - start < most:
                    heapq.heappop(ready)
                    stop += 1
                self._count -= stop - start
                return range(start, stop)
        return range(0)

    def pick(self, offset: int) -> None:
        """A message that has a place here was taken out of line: that place counts no more."""
        if self._kept.pop(offset, None) is not None:
            self._count -= 1
            return
        self._picked[offset] = self._picked.get(offset, 0) + 1
        self._retried.discard(offset)

    def was_picked(self, offset: int) -> bool:
        """Whether a place that was removed counts no more; to be asked once for each."""
        if not self._picked:
            return False
        count = self._picked.pop(offset, 0)
        if count > 1:
            self._picked[offset] = count - 1
        return count > 0

    def pass_over(self, start: int, stop: int) -> None:
        """These places were removed and are of no interest."""
        if self._picked:
            for offset in range(start, stop):
                self.was_picked(offset)

    def lowest(self, is_waiting: Callable[[int], bool]) -> int:
        """The lowest offset, ready or delayed, that still waits; NONE when there is none."""
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
        self._count = 0

    def _note(self, offset: int) -> None:
        self._count += 1
        heapq.heappush(self._lowest, offset)
        if len(self._lowest) > 2 * self._count + _SLACK:
            self._sweep()

    def _sweep(self) -> None:
        self._lowest = [offset for _, offset, _ in self._delayed]
        self._lowest.extend(self._kept)
        for ready in self._levels:
            self._lowest.extend(ready)
        heapq.heapify(self._lowest)


@final
class Later:
    """Times at which messages of a queue are due that were published for later. No offsets."""

    __slots__ = ("_counts", "_times", "count")

    def __init__(self) -> None:
        self.count = 0
        self._counts: dict[int, int] = {}
        self._times: list[int] = []
        """A heap of the times, each once."""

    @property
    def next_us(self) -> int:
        """When the next is due; 0 for never."""
        return self._times[0] if self._times else 0

    def add(self, due_us: int) -> None:
        before = self._counts.get(due_us)
        if before is None:
            heapq.heappush(self._times, due_us)
        self._counts[due_us] = (before or 0) + 1
        self.count += 1

    def remove(self, due_us: int) -> None:
        """A message that is due then is gone; nothing where none is known."""
        before = self._counts.get(due_us, 0)
        if before:
            self._counts[due_us] = before - 1
            self.count -= 1

    def end(self, now_us: int) -> None:
        """What was due by now waits like any other message."""
        while self._times and self._times[0] <= now_us:
            self.count -= self._counts.pop(heapq.heappop(self._times))


NOTHING: Final = Waiting(1)
"""Stands in the place of those that are empty, and stays so: with ten thousand queues few of them have their own."""


_INDEXED_AT_ONCE: Final = 4096


def next_messages(group: "WorkGroup", batch: Batch, room: int, now_us: int, with_new: bool = True) -> list[Found]:
    """Up to `room` messages that may be delivered now: none only after passing over what may not.

    Without what is new, only what came back.
    """
    if group.waiting.next_due_us <= now_us:
        group.waiting.end_delays(now_us)
    if group.levels > 1:
        _index_new(group)
    found = _returned(group, batch, room, now_us) if group.waiting.has_ready else []
    if with_new and len(found) < room and not group.waiting.has_ready:  # the rest of what came back is first
        try:
            found += _fresh(group, batch, room - len(found), now_us)
        except Unavailable:
            if not found:
                raise
    return found


def admit(group: "WorkGroup", batch: Batch, offset: int, message: Message, now_us: int) -> bool:
    """Whether a message that is not due later may be delivered; if not, it is dealt with."""
    if group.filter is not None and not group.filter.matches(group.queue.key_of(message)):
        group.skip(batch, [(offset, message)])
        return False
    return _admit(group, batch, offset, message, now_us)


def delayed_until(group: "WorkGroup", offset: int) -> int:
    """Until when a message that came back must wait; 0 for not at all."""
    entry = group.state.pending.get(offset)
    return entry.due_us if entry is not None and not entry.consumer else 0


def oldest_waiting(group: "WorkGroup") -> int:
    """The oldest offset that waits for a consumer, delayed ones too, or the end of the log."""
    state, end = group.state, group.queue.log.next_offset
    fresh = min(state.settled.next_absent(max(state.cursor, state.committed)), end)
    while fresh < group.passed and fresh in group.leases:
        fresh = min(state.settled.next_absent(fresh + 1), end)
    low = group.waiting.lowest(group.is_waiting)
    return fresh if low == NONE else min(low, fresh)


def restore_backlog(group: "WorkGroup") -> None:
    """After a restart nobody holds anything: what was claimed or passed over is ready or delayed again."""
    state = group.state
    if state.committed == state.cursor and not state.has_pending:
        return
    passed: list[int] = []
    for start, stop in _passed(group):
        if group.levels > 1:
            _index(group, start, stop)
        else:
            passed += [offset for offset in range(start, stop) if not delayed_until(group, offset)]
    if passed:
        group.own_waiting().add_all(passed)
    for offset, entry in state.pending.items():
        if delayed_until(group, offset):
            level = group.level(group.queue.message(offset)) if group.levels > 1 else 0
            group.own_waiting().delay(offset, entry.due_us, level, is_retried=True)
            group.queue.wake_at(entry.due_us)


# -- what came back ----------------------------------------------------------------------------------------------------


def _returned(group: "WorkGroup", batch: Batch, room: int, now_us: int) -> list[Found]:
    """What came back, or all that waits where priorities count: the most urgent first, then the oldest."""
    waiting, state = group.waiting, group.state
    found: list[Found] = []
    log = group.queue.log
    if log.size_bytes > READ_AT_ONCE_BYTES:
        room = min(room, max(1, READ_AT_ONCE_BYTES * (log.next_offset - log.first_offset) // log.size_bytes))
    looks = room + FILTERED_AT_ONCE
    while len(found) < room and looks > 0 and (run := waiting.pop_run(room - len(found))):
        looks -= len(run)
        start = max(run.start, state.committed)
        waiting.pass_over(run.start, min(start, run.stop))
        if start >= run.stop:
            continue
        try:
            messages = group.queue.log.read(start, run.stop - start)
        except Unavailable:
            waiting.add_all(run, group.levels - 1)  # they were the most urgent, and are so still
            if found:
                return found
            raise
        for offset, message in enumerate(messages, start):
            is_open = offset not in state.settled and not waiting.was_picked(offset)
            if is_open and _admit(group, batch, offset, message, now_us):
                found.append((offset, message))
    return found


def _index_new(group: "WorkGroup") -> None:
    """Sort what was published since by its priorities."""
    state = group.state
    start, state.cursor = max(state.cursor, state.committed), group.queue.log.next_offset
    _index(group, start, state.cursor)


def _index(group: "WorkGroup", start: int, stop: int) -> None:
    state = group.state
    while start < stop:
        for message in group.queue.log.read(start, min(stop - start, _INDEXED_AT_ONCE)):
            is_picked = start < group.passed and (start in group.leases or start in state.pending)
            if start not in state.settled and not delayed_until(group, start) and not is_picked:
                group.own_waiting().add(start, group.level(message))
            start += 1


def _passed(group: "WorkGroup") -> Iterator[tuple[int, int]]:
    """The ranges of offsets below the cursor that are not settled."""
    state = group.state
    at = state.committed
    for start, stop in [*state.settled, (state.cursor, state.cursor)]:
        if at < min(start, state.cursor):
            yield at, min(start, state.cursor)
        at = max(at, stop)


# -- what is new -------------------------------------------------------------------------------------------------------


def _fresh(group: "WorkGroup", batch: Batch, room: int, now_us: int) -> list[Found]:
    """What was never delivered, from the cursor on."""
    found: list[Found] = []
    state = group.state
    state.cursor = state.settled.next_absent(max(state.cursor, state.committed))
    if state.cursor >= group.queue.log.next_offset:
        return found
    skipped: list[Found] = []
    most = room if group.filter is None else max(room, FILTERED_AT_ONCE)
    messages = group.queue.log.read(state.cursor, most, most_bytes(group.queue.log))
    if group.is_plain() and not any([message.expires_us or message.not_before_us for message in messages]):
        found = list(enumerate(messages, state.cursor))
        state.cursor += len(messages)
        return found
    for message in messages:
        offset = state.cursor
        state.cursor += 1
        if state.settled and offset in state.settled:
            continue
        if offset < group.passed and (offset in group.leases or offset in state.pending):
            continue  # picked by a consumer with a selector, and perhaps given back since
        if group.filter is not None and not group.filter.matches(group.queue.key_of(message)):
            skipped.append((offset, message))
        elif _admit(group, batch, offset, message, now_us):
            found.append((offset, message))
            if len(found) == room:
                break
    if skipped:
        group.skip(batch, skipped)
    return found


def _admit(group: "WorkGroup", batch: Batch, offset: int, message: Message, now_us: int) -> bool:
    """Whether this message may be delivered now; if not, see to it that it is dealt with."""
    queue = group.queue
    if message.expires_us and queue.is_expired(message, now_us):
        queue.disposal.give_up(batch, offset, message, EXPIRED, now_us)
        return False
    if message.not_before_us > now_us:
        group.own_waiting().delay(offset, message.not_before_us, group.level(message))
        queue.wake_at(message.not_before_us)
        return False
    if group.levels > 1 and group.filter is not None and not group.filter.matches(queue.key_of(message)):
        group.skip(batch, [(offset, message)])
        return False
    entry = group.state.pending.get(offset)
    if entry is not None and next_attempt_us(queue.definition, entry.attempts, False, now_us) == DEAD:
        group.bury(batch, offset, message, entry.attempts, DELIVERY_LIMIT, now_us)  # its last try was cut short
        return False
    return True


_READ_AT_ONCE: Final = 256
_LOOKS: Final = 4096
"""How many messages a consumer looks at in one turn; whoever has the loop next should not wait for a whole backlog."""


@final
class Selection:
    """Where each consumer with a selector is in the log of one group."""

    __slots__ = ("_again", "_at", "_group")

    def __init__(self, group: "WorkGroup") -> None:
        self._group = group
        self._at: dict[Consumer, int] = {}
        self._again: dict[Consumer, list[int]] = {}
        """Heaps of what a consumer wants and has passed: it came back, or it is not due yet."""

    def pump(self, batch: Batch, now_us: int) -> None:
        """Let each that has room look on."""
        group = self._group
        for consumer in sorted(group.consumers.selective, key=_is_silent):
            room = min(group.consumers.room_of(consumer), group.max_pending - group.unsettled, _READ_AT_ONCE)
            if room <= 0 or consumer.turns is not group.consumers:
                continue
            found = self._once_more(batch, consumer, room, now_us)
            if len(found) < room:
                found += self._onwards(batch, consumer, room - len(found), now_us)
            if found:
                group.passed = max(group.passed, found[-1][0] + 1)
                group.give(batch, consumer, found, now_us)
            if group.consumers.room_of(consumer) > 0 and self._at[consumer] < group.queue.log.next_offset:
                group.queue.pump_soon()

    def returned(self, offset: int, message: Message) -> None:
        """A message is back in line: those that want it and have passed it look again."""
        for consumer, at in self._at.items():
            if offset < at and self._wants(consumer, message):
                heapq.heappush(self._again[consumer], offset)

    def forget(self, consumer: Consumer) -> None:
        """It left."""
        self._at.pop(consumer, None)
        self._again.pop(consumer, None)

    def _once_more(self, batch: Batch, consumer: Consumer, room: int, now_us: int) -> list[Found]:
        found: list[Found] = []
        waiting = self._again.setdefault(consumer, [])
        later: list[int] = []
        while waiting and len(found) < room:
            offset = heapq.heappop(waiting)
            if not self._group.is_waiting(offset) or (found and found[-1][0] == offset):
                continue
            message = self._group.queue.message(offset)
            is_delayed = max(message.not_before_us, delayed_until(self._group, offset)) > now_us
            if is_delayed or self._is_kept(consumer, offset, now_us):
                later.append(offset)
            elif admit(self._group, batch, offset, message, now_us):
                found.append((offset, message))
        for offset in later:
            heapq.heappush(waiting, offset)
        return found

    def _onwards(self, batch: Batch, consumer: Consumer, room: int, now_us: int) -> list[Found]:
        group = self._group
        log = group.queue.log
        found: list[Found] = []
        at = max(self._at.get(consumer, 0), group.state.committed)
        last = min(log.next_offset, at + _LOOKS)
        while at < last and len(found) < room:
            for message in log.read(at, min(last - at, _READ_AT_ONCE)):
                at += 1
                if group.is_waiting(at - 1) and self._wants(consumer, message):
                    self._pick(batch, consumer, at - 1, message, found, now_us)
                    if len(found) == room:
                        break
        self._at[consumer] = at
        return found

    def _pick(
        self, batch: Batch, consumer: Consumer, offset: int, message: Message, found: list[Found], now_us: int
    ) -> None:
        due_us = max(message.not_before_us, delayed_until(self._group, offset))
        if due_us > now_us:
            heapq.heappush(self._again.setdefault(consumer, []), offset)
            self._group.queue.wake_at(due_us)
        elif self._is_kept(consumer, offset, now_us):
            heapq.heappush(self._again.setdefault(consumer, []), offset)
        elif admit(self._group, batch, offset, message, now_us):
            found.append((offset, message))

    def _is_kept(self, consumer: Consumer, offset: int, now_us: int) -> bool:
        """Whether the consumer failed this message, and others come first."""
        failures = self._group.failures
        return failures is not None and failures.is_kept_from(self._group, consumer, offset, now_us)

    def _wants(self, consumer: Consumer, message: Message) -> bool:
        assert consumer.selector is not None
        return self._group.queue.fits(consumer.selector, message)


def _is_silent(consumer: Consumer) -> bool:
    return consumer.is_silent
