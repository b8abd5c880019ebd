"""A stream group: a shared cursor over a log that keeps everything. No claims, no retries: see work.py for those."""

import heapq
from collections import deque
from typing import TYPE_CHECKING, Final, final

from headrace.core.batch import Batch
from headrace.core.queue.dispatch import Consumer, Delivery, Found
from headrace.core.queue.filter_values import ValueFilter
from headrace.core.queue.group import ACK, FILTERED_AT_ONCE, REJECT, Group, PendingEntry, most_bytes
from headrace.errors import Refused, Unavailable
from headrace.model import Message
from headrace.selector import Selector
from headrace.storage.group_state import GroupState

if TYPE_CHECKING:
    from headrace.core.queue.queue import Queue

_SLACK: Final = 1024


@final
class _Run:
    """Neighbouring offsets that were delivered together, without the settled ones at its start."""

    __slots__ = ("start", "stop")

    def __init__(self, start: int, stop: int) -> None:
        self.start = start
        self.stop = stop


@final
class StreamGroup(Group):
    """Readers that share a cursor. Their progress is committed as they acknowledge, or every few seconds."""

    def __init__(self, queue: "Queue", state: GroupState, auto_commit: bool = True) -> None:
        super().__init__(queue, state)
        self.auto_commit = auto_commit
        self._selector: Selector | None = None
        self._values: ValueFilter | None = None
        """The filter values that its readers want; None for all messages."""
        state.cursor = max(state.committed, queue.first_offset)  # uncommitted messages are read again
        self._held: dict[int, Consumer] = {}
        self._runs: deque[_Run] = deque()
        """Held messages in order, among others that were settled since the last checkpoint."""
        self._late: list[int] = []
        """A heap of the same, for messages delivered after others of higher offset."""
        self._again: list[int] = []
        """A heap of offsets that members held when they left: other members read them."""
        self._given = state.cursor
        """Messages below this offset were delivered before."""
        self._given_before = self._given
        """The same before the present round of deliveries, in which every message is a first delivery."""
        self._acknowledged = False
        self._commit_at_us = 0

    @property
    def deliver_before_sync(self) -> bool:
        return False

    @property
    def ready(self) -> int:
        return max(0, self.queue.log.next_offset - self.state.cursor) + len(self._again)

    @property
    def lag(self) -> int:
        """Number of unfinished messages: uncommitted ones if readers commit, otherwise unread and held ones."""
        if self.auto_commit:
            return self.ready + len(self._held)
        return max(0, self.queue.log.next_offset - max(self.state.committed, self.queue.first_offset))

    @property
    def unsettled(self) -> int:
        return len(self._held)

    def pending(self) -> list[PendingEntry]:
        return [PendingEntry(offset, self._held[offset].name, 1, 0) for offset in sorted(self._held)]

    def holder(self, offset: int) -> Consumer | None:
        return self._held.get(offset)

    def work_progress(self) -> tuple[str, int] | None:
        """Return the queue's primary work group and its committed offset; None without one."""
        primary = self.queue.definition.primary_group
        groups = [
            group
            for name, group in self.queue.groups.items()
            if primary and group.is_work and primary in (name, name.partition("@")[0])
        ]
        return (primary, min([group.state.committed for group in groups])) if groups else None

    def work_headers(self, offset: int) -> dict[str, object]:
        """Return that for one message, as headers that readers of streams know; empty without such a group."""
        progress = self.work_progress()
        if progress is None:
            return {}
        primary, committed = progress
        is_done = offset < committed
        return {
            "x-work-group": primary,
            "x-work-committed-offset": committed,
            "x-work-acked": is_done,
            "x-primary-group-processed": is_done,
        }

    def agree(self, auto_commit: bool) -> None:
        """Set whether progress is committed automatically. Raises Refused if other readers want otherwise."""
        if auto_commit != self.auto_commit and len(self.consumers):
            raise Refused(
                f"group {self.name!r} of queue {self.queue.name!r} "
                f"{'commits by itself' if self.auto_commit else 'is committed by its readers'}: all of them must agree"
            )
        self.auto_commit = auto_commit

    def select(self, selector: Selector | None, values: ValueFilter | None) -> None:
        """Set the selector and the filter values of the group. Raises Refused if other readers want others."""
        text, current = ["" if one is None else one.text for one in (selector, self._selector)]
        asked, agreed = ["no filter values" if one is None else one.text for one in (values, self._values)]
        if len(self.consumers) and (text != current or asked != agreed):
            wishes = f"the selector {current!r}" if text != current else agreed
            raise Refused(
                f"group {self.name!r} of queue {self.queue.name!r} reads with {wishes}: its readers "
                f"share one position, so all of them must agree"
            )
        self._selector = selector
        self._values = values

    # -- reading -----------------------------------------------------------------------------------------------------

    def pump(self, batch: Batch, now_us: int) -> None:
        if self._acknowledged:
            self._acknowledged = False
            self._checkpoint(batch)
        super().pump(batch, now_us)

    def has_more(self) -> bool:
        return self.state.cursor < self.queue.log.next_offset or bool(self._again)

    def _find(self, batch: Batch, room: int, now_us: int) -> list[Found]:
        found: list[Found] = []
        self._given_before = self._given
        first = self.queue.first_offset
        state = self.state
        start = state.cursor = max(state.cursor, first)
        messages: list[Message] = []
        is_filtered = self.filter is not None or self._selector is not None or self._values is not None
        try:
            self._find_again(found, room, first, now_us)
            left = room - len(found)
            most = max(left, FILTERED_AT_ONCE) if is_filtered else left
            messages = self.queue.log.read(start, most, most_bytes(self.queue.log)) if left else []
        except Unavailable:
            if not found:
                raise
        offset = start
        for message in messages:
            if (message.expires_us or is_filtered) and not self._admits(message, now_us):
                offset += 1
                self.queue.statistics.passed += 1
                continue
            found.append((offset, message))
            offset += 1
            if len(found) == room:
                break
        state.cursor = offset
        if offset > start or found:
            self._commit_later(now_us)
        return found

    def _find_again(self, found: list[Found], room: int, first: int, now_us: int) -> None:
        while self._again and len(found) < room:
            offset = self._again[0]
            if offset >= first and self._admits(message := self.queue.message(offset), now_us):
                found.append((offset, message))
            heapq.heappop(self._again)

    def _admits(self, message: Message, now_us: int) -> bool:
        if message.expires_us and self.queue.is_expired(message, now_us):
            return False
        if self.filter is not None and not self.filter.matches(self.queue.key_of(message)):
            return False
        if self._values is not None and not self._values.admits(message):
            return False
        return self._selector is None or self.queue.fits(self._selector, message)

    def claim(self, batch: Batch, consumer: Consumer, share: list[Found], now_us: int) -> list[Delivery]:
        before = self._given_before
        again = sum([offset < before for offset, _ in share]) if share[0][0] < before else 0
        self._count(len(share), again)
        if not consumer.auto_ack:
            self._hold(consumer, share, before)
        self._given = max(self._given, share[-1][0] + 1)
        return [Delivery(self, consumer, offset, message, 1, offset < before) for offset, message in share]

    def _hold(self, consumer: Consumer, share: list[Found], before: int) -> None:
        held = self._held
        first = last = -1
        for offset, _ in share:
            held[offset] = consumer
            if offset < before:
                heapq.heappush(self._late, offset)
            elif first < 0:
                first = offset
            last = offset
        if first >= 0:
            self._runs.append(_Run(first, last + 1))
        if len(self._runs) + len(self._late) > 2 * len(held) + _SLACK:
            self._late.clear()
            self._runs = deque([_Run(offset, offset + 1) for offset in sorted(held)])

    def finish(self, batch: Batch, deliveries: list[Delivery], now_us: int) -> None:
        return  # the cursor has moved, nothing else is to be done

    def put_back(self, found: list[Found]) -> None:
        for offset, _ in found:
            heapq.heappush(self._again, offset)

    def _take_back(self, batch: Batch, consumer: Consumer, deliveries: list[Delivery], now_us: int) -> None:
        if consumer.auto_ack or consumer.holding:
            self._give_up(consumer, [delivery.offset for delivery in deliveries])

    def was_read(self, offset: int) -> bool:
        """Return whether the group has read this message, and the log still has it."""
        return self.queue.first_offset <= offset < self.state.cursor

    # -- settling ----------------------------------------------------------------------------------------------------

    def settle(self, batch: Batch, consumer: Consumer, offset: int, outcome: int, now_us: int) -> None:
        """End one delivery. Nothing happens if the consumer does not hold it: it was settled, or a seek took it."""
        if self._held.get(offset) is not consumer:
            return
        del self._held[offset]
        consumer.release(offset)
        if outcome in (ACK, REJECT):
            self._acknowledged = self.auto_commit
        else:
            self._commit_later(now_us)  # only a seek reads it again, so it is done even if it failed

    def acknowledge(self, batch: Batch, deliveries: list[Delivery], first: int, stop: int, now_us: int) -> None:
        held, consumer = self._held, deliveries[first].consumer
        for at in range(first, stop):
            offset = deliveries[at].offset
            if held.get(offset) is consumer:
                del held[offset]
                consumer.release(offset)
                self._acknowledged = self.auto_commit

    def commit(self, batch: Batch, offset: int) -> None:
        """Mark everything below `offset` as processed; going back takes a seek. Raises Refused above the cursor."""
        if offset > self.state.cursor:
            raise Refused(
                f"offset {offset} of {self.queue.name!r} cannot be committed: group {self.name!r} has read to "
                f"{self.state.cursor}"
            )
        if offset > self.state.committed:
            self._commit(batch, offset)
        self._let_go_below(offset)

    def _let_go_below(self, offset: int) -> None:
        """Release all messages below this offset: processed messages take no room."""
        runs, late = self._runs, self._late
        while late and late[0] < offset:
            self._let_go(heapq.heappop(late))
        while runs and runs[0].start < offset:
            run = runs[0]
            for each in range(run.start, min(run.stop, offset)):
                self._let_go(each)
            run.start = min(run.stop, offset)
            if run.start < run.stop:
                break
            runs.popleft()

    def _let_go(self, offset: int) -> None:
        consumer = self._held.pop(offset, None)
        if consumer is not None:
            consumer.release(offset)

    def seek(self, batch: Batch, offset: int) -> None:
        """Go on reading at `offset`, within the log; nobody holds anything any more."""
        log = self.queue.log
        offset = min(max(offset, self.queue.first_offset), log.next_offset)
        for held, consumer in self._held.items():
            consumer.release(held)
        self._held.clear()
        self._runs.clear()
        self._late.clear()
        self._again.clear()
        self._given = offset
        commit = batch.commit_for(self.queue)
        commit.seek(log.name, self.name, offset)
        self.state.apply(commit.steps[-1])
        if self.auto_commit and offset > self.state.committed:
            self._commit(batch, offset)

    def leave(self, batch: Batch, consumer: Consumer, now_us: int) -> None:
        """Remove a member; others read its messages. The last one resets the cursor to the committed offset."""
        self.consumers.leave(consumer)
        self._give_up(consumer, consumer.held())
        consumer.group = None
        if self.auto_commit:
            self._checkpoint(batch)
        if not len(self.consumers) and not self._held:
            self._again.clear()
            self.state.cursor = max(self.state.committed, self.queue.first_offset)

    def close(self) -> None:
        for offset, consumer in self._held.items():
            consumer.release(offset)
            consumer.group = None
        self._held.clear()
        super().close()

    def on_time(self, batch: Batch, now_us: int) -> bool:
        if self._commit_at_us and self._commit_at_us <= now_us:
            self._commit_at_us = 0
            if self.auto_commit:
                self._checkpoint(batch)
        return False

    def next_due_us(self) -> int:
        return self._commit_at_us

    def on_truncated(self, batch: Batch, first: int) -> None:
        if self.state.committed < first:
            self._commit(batch, first)

    def _give_up(self, consumer: Consumer, offsets: list[int]) -> None:
        for offset in offsets:
            heapq.heappush(self._again, offset)
            self._held.pop(offset, None)
            consumer.release(offset)

    def _commit_later(self, now_us: int) -> None:
        if self.auto_commit and not self._commit_at_us:
            self._commit_at_us = now_us + self.queue.auto_commit_us
            self.queue.wake_at(self._commit_at_us)

    def _checkpoint(self, batch: Batch) -> None:
        """Commit up to the oldest message that a reader still holds, or that is to be read again."""
        held, runs, late = self._held, self._runs, self._late
        while late and late[0] not in held:
            heapq.heappop(late)
        safe = min([self.state.cursor, *late[:1], *self._again[:1]])
        while runs and runs[0].start < safe:
            run = runs[0]
            while run.start < run.stop and run.start not in held:
                run.start += 1
            if run.start < run.stop:
                safe = min(safe, run.start)
                break
            runs.popleft()
        if safe > self.state.committed:
            self._commit(batch, safe)

    def _commit(self, batch: Batch, offset: int) -> None:
        commit = batch.commit_for(self.queue)
        commit.commit_offset(self.queue.log.name, self.name, offset)
        self.state.apply(commit.steps[-1])
