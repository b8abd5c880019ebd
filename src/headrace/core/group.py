"""A consumer group: what it delivered, what is settled, what comes next. Work groups; stream groups are in stream.py.

Only a group moves a message between ready, pending and gone. Its state in memory is bounded by what is in flight:
the backlog is read from the log when it is that backlog's turn.
"""

import heapq
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, final

from headrace.core.dead_letter import DELIVERY_LIMIT, REJECTED
from headrace.core.delivery import Consumer, Delivery, Turns
from headrace.core.retry import DEAD, next_attempt_us
from headrace.core.topics import TopicFilter
from headrace.core.turn import Turn
from headrace.errors import Refused
from headrace.model import Message
from headrace.storage.group_state import GroupState, Pending

if TYPE_CHECKING:
    from headrace.core.queue import Queue

# How a delivery ends.
ACK: Final = 1
NACK: Final = 2
"""It failed: again after the queue's backoff."""
REJECT: Final = 3
"""Never again: a dead letter."""
RELEASE: Final = 4
"""Not tried: back in line at once."""

MAX_PENDING: Final = 100_000
_READ: Final = 256


class Group(ABC):
    """One group's progress on one queue, and its members."""

    def __init__(self, queue: "Queue", state: GroupState, single_active: bool = False) -> None:
        self.queue = queue
        self.name = state.name
        self.state = state
        self.consumers = Turns(single_active)
        self.filter = TopicFilter(state.filter, for_keys=True) if state.filter else None

    @property
    @abstractmethod
    def ready(self) -> int:
        """How many messages wait for a consumer."""

    @property
    @abstractmethod
    def unsettled(self) -> int:
        """How many messages are with consumers."""

    @abstractmethod
    def pump(self, turn: Turn, now_us: int) -> None:
        """Deliver what is ready to whoever has room."""

    @abstractmethod
    def settle(self, turn: Turn, consumer: Consumer, offset: int, outcome: int, now_us: int) -> None:
        """End one delivery. Raises Refused when this consumer does not hold that offset."""

    @abstractmethod
    def leave(self, turn: Turn, consumer: Consumer, now_us: int) -> None:
        """A member goes; what it holds goes back in line."""

    @abstractmethod
    def on_time(self, turn: Turn, now_us: int) -> None:
        """Do what has come due."""

    @abstractmethod
    def next_due_us(self) -> int:
        """When something comes due next; 0 for never."""

    @abstractmethod
    def on_truncated(self, turn: Turn, first: int) -> None:
        """The log starts at `first` from now on: what was below is gone."""


@final
class Lease:
    """A message with a consumer, and until when."""

    __slots__ = ("attempts", "consumer", "due_us", "message")

    def __init__(self, consumer: Consumer, message: Message, attempts: int, due_us: int) -> None:
        self.consumer = consumer
        self.message = message
        self.attempts = attempts
        self.due_us = due_us


@final
class WorkGroup(Group):
    """Competing consumers: each message is claimed by one, until it is settled or the claim runs out."""

    def __init__(self, queue: "Queue", state: GroupState) -> None:
        super().__init__(queue, state, queue.definition.single_active)
        self._leases: dict[int, Lease] = {}
        self._lease_ends: list[tuple[int, int]] = []
        """(when, offset) of every lease ever given and not yet looked at; those that ended earlier are passed over."""
        self._ready: list[list[int]] = [[] for _ in range(queue.definition.max_priority + 1)]
        """Heaps of offsets by priority: what came back and, where priorities count, everything that waits."""
        self._delayed: list[tuple[int, int]] = []
        self._low = 0
        """Below it nothing waits: everything is settled or with a consumer."""
        self._restore()

    @property
    def ready(self) -> int:
        return self._open - len(self._leases)

    @property
    def unsettled(self) -> int:
        return len(self._leases)

    @property
    def _open(self) -> int:
        """How many messages the group is not done with."""
        return self.queue.log.next_offset - self.state.committed - self.state.settled.size

    def lease(self, offset: int) -> Lease | None:
        return self._leases.get(offset)

    def attempts(self, offset: int) -> int:
        """How often this message was delivered, as far as the group remembers."""
        entry = self.state.pending.get(offset)
        return entry.attempts if entry is not None else 0

    # -- delivering --------------------------------------------------------------------------------------------------

    def pump(self, turn: Turn, now_us: int) -> None:
        while len(self._leases) < MAX_PENDING:
            consumer, room = self.consumers.next()
            if consumer is None:
                return
            given = self._give(turn, consumer, min(room, _READ), now_us)
            if given:
                consumer.deliver(given)
            elif not self._has_more():
                return

    def take(self, turn: Turn, consumer: Consumer, now_us: int) -> Delivery | None:
        """One message for a consumer that asks for one, whatever its credit."""
        while True:
            given = self._give(turn, consumer, 1, now_us)
            if given:
                return given[0]
            if not self._has_more():
                return None

    def _has_more(self) -> bool:
        return self.state.cursor < self.queue.log.next_offset or any(self._ready)

    def _give(self, turn: Turn, consumer: Consumer, room: int, now_us: int) -> list[Delivery]:
        """Claim up to `room` messages. None may be left over after passing over what is expired or not meant for us."""
        found = self._returned(turn, room, now_us)
        if len(found) < room:
            if len(self._ready) > 1:
                self._index_new(now_us)
                found += self._returned(turn, room - len(found), now_us)
            else:
                found += self._fresh(turn, room - len(found), now_us)
        if not found:
            return []
        due_us = now_us + (consumer.lease_us or self.queue.definition.lease_ms * 1000)
        commit = turn.commit_for(self.queue)
        pending = self.state.pending
        log = self.queue.log.name
        deliveries: list[Delivery] = []
        for offset, message in found:
            entry = pending.get(offset)
            attempts = entry.attempts + 1 if entry is not None else 1
            deliveries.append(Delivery(self, consumer, offset, message, attempts, attempts > 1))
            if consumer.auto_ack:
                self.queue.note_end(turn, self, offset, attempts, "done", now_us)
                self._settled(turn, offset, message)
                continue
            commit.claim(log, self.name, offset, offset + 1, consumer.name, due_us)
            pending[offset] = Pending(attempts, due_us, consumer.name)
            self._leases[offset] = Lease(consumer, message, attempts, due_us)
            heapq.heappush(self._lease_ends, (due_us, offset))
            consumer.take(offset)
        self.queue.note_claims(deliveries, now_us)
        self.queue.wake_at(due_us)
        return deliveries

    def _returned(self, turn: Turn, room: int, now_us: int) -> list[tuple[int, Message]]:
        """What came back, or all that waits where priorities count: the most urgent first, then the oldest."""
        found: list[tuple[int, Message]] = []
        for heap in reversed(self._ready):
            while heap and len(found) < room:
                offset = heapq.heappop(heap)
                if offset < self.state.committed or offset in self.state.settled:
                    continue
                message = self.queue.message(offset)
                if self._admit(turn, offset, message, now_us):
                    found.append((offset, message))
        return found

    def _fresh(self, turn: Turn, room: int, now_us: int) -> list[tuple[int, Message]]:
        """What was never delivered, from the cursor on."""
        found: list[tuple[int, Message]] = []
        state = self.state
        state.cursor = max(state.cursor, state.committed)
        messages = self.queue.log.read(state.cursor, room) if room > 0 else []
        for message in messages:
            offset = state.cursor
            state.cursor += 1
            if state.settled and offset in state.settled:
                continue
            if self._admit(turn, offset, message, now_us):
                found.append((offset, message))
        return found

    def _index_new(self, now_us: int) -> None:
        """Sort what was published since into the heaps of its priorities."""
        state = self.state
        log = self.queue.log
        state.cursor = max(state.cursor, state.committed)
        while state.cursor < log.next_offset:
            for message in log.read(state.cursor, 4096):
                heapq.heappush(self._heap(message), state.cursor)
                state.cursor += 1

    def _heap(self, message: Message) -> list[int]:
        return self._ready[min(message.priority, len(self._ready) - 1)]

    def _admit(self, turn: Turn, offset: int, message: Message, now_us: int) -> bool:
        """Whether this message may be delivered now; if not, see to it that it is dealt with."""
        if message.not_before_us > now_us:
            heapq.heappush(self._delayed, (message.not_before_us, offset))
            self.queue.wake_at(message.not_before_us)
            return False
        if message.expires_us and message.expires_us <= now_us:
            self.queue.expire(turn, offset, message, now_us)
            return False
        if self.filter is not None and not self.filter.matches(self.queue.key_of(message)):
            self._settled(turn, offset, message)
            return False
        return True

    # -- settling ----------------------------------------------------------------------------------------------------

    def settle(self, turn: Turn, consumer: Consumer, offset: int, outcome: int, now_us: int) -> None:
        lease = self._leases.get(offset)
        if lease is None or lease.consumer is not consumer:
            raise Refused(
                f"offset {offset} of {self.queue.name!r} is not pending for consumer {consumer.name!r} in group "
                f"{self.name!r}: it was settled already, or its time ran out and it went to another"
            )
        del self._leases[offset]
        consumer.release(offset)
        if outcome == ACK:
            self.queue.note_end(turn, self, offset, lease.attempts, "done", now_us)
            self._settled(turn, offset, lease.message)
        elif outcome == REJECT:
            self._bury(turn, offset, lease.message, lease.attempts, REJECTED, now_us)
        else:
            self._retry(turn, offset, lease, outcome == NACK, now_us)

    def renew(self, consumer: Consumer, offset: int, due_us: int, turn: Turn) -> None:
        """Give a consumer more time. Raises Refused when it does not hold that offset."""
        lease = self._leases.get(offset)
        if lease is None or lease.consumer is not consumer:
            raise Refused(f"offset {offset} of {self.queue.name!r} is not pending for consumer {consumer.name!r}")
        lease.due_us = due_us
        heapq.heappush(self._lease_ends, (due_us, offset))
        self.queue.wake_at(due_us)

    def leave(self, turn: Turn, consumer: Consumer, now_us: int) -> None:
        self.consumers.leave(consumer)
        consumer.group = None
        for offset in sorted(consumer.held):
            lease = self._leases.pop(offset)
            consumer.release(offset)
            self._retry(turn, offset, lease, False, now_us)

    def on_time(self, turn: Turn, now_us: int) -> None:
        ends = self._lease_ends
        while ends and ends[0][0] <= now_us:
            due_us, offset = heapq.heappop(ends)
            lease = self._leases.get(offset)
            if lease is not None and lease.due_us == due_us:
                del self._leases[offset]
                lease.consumer.release(offset)
                self._retry(turn, offset, lease, False, now_us)
        while self._delayed and self._delayed[0][0] <= now_us:
            _, offset = heapq.heappop(self._delayed)
            if offset >= self.state.committed and offset not in self.state.settled:
                heapq.heappush(self._ready_heap(offset), offset)

    def next_due_us(self) -> int:
        dues = [heap[0][0] for heap in (self._lease_ends, self._delayed) if heap]
        return min(dues) if dues else 0

    def drop(self, turn: Turn, offset: int) -> None:
        """The queue gave this message up: settle it as dead unless a consumer has it. It is then not ready any more."""
        if offset >= self.state.committed and offset not in self._leases and offset not in self.state.settled:
            turn.commit_for(self.queue).bury(self.queue.log.name, self.name, offset, offset + 1)
            self._forget(turn, offset)

    def purge(self, turn: Turn) -> None:
        """Settle everything that waits; what consumers hold stays with them. Takes a step for each gap, not message."""
        log = self.queue.log
        commit = turn.commit_for(self.queue)
        at = self.state.committed
        for held in [*sorted(self._leases), log.next_offset]:
            if at < held:
                commit.bury(log.name, self.name, at, held)
                self.state.settle(at, held)
            at = max(at, held + 1)
        for heap in self._ready:
            heap.clear()
        self._delayed.clear()
        for offset in [offset for offset in self.state.pending if offset not in self._leases]:
            del self.state.pending[offset]
        self.state.cursor = log.next_offset
        turn.touched.add(self.queue)

    def head(self) -> int:
        """The oldest offset that waits for a consumer, or the end of the log."""
        offset = max(self._low, self.state.committed)
        end = self.queue.log.next_offset
        while offset < end and (offset in self._leases or offset in self.state.settled):
            offset += 1
        self._low = offset
        return offset

    def on_truncated(self, turn: Turn, first: int) -> None:
        if self.state.committed < first:
            for offset in [offset for offset in self._leases if offset < first]:
                self._leases.pop(offset).consumer.release(offset)
            self.seek_committed(turn, first)

    def seek_committed(self, turn: Turn, offset: int) -> None:
        """Everything below `offset` is finished."""
        commit = turn.commit_for(self.queue)
        commit.commit_offset(self.queue.log.name, self.name, offset)
        self.state.apply(commit.steps[-1])

    def _retry(self, turn: Turn, offset: int, lease: Lease, delayed: bool, now_us: int) -> None:
        due_us = next_attempt_us(self.queue.definition, lease.attempts, delayed, now_us)
        if due_us == DEAD:
            self._bury(turn, offset, lease.message, lease.attempts, DELIVERY_LIMIT, now_us)
            return
        self._low = min(self._low, offset)
        turn.commit_for(self.queue).requeue(self.queue.log.name, self.name, offset, offset + 1, due_us)
        self.state.pending[offset] = Pending(lease.attempts, due_us, "")
        if due_us <= now_us:
            heapq.heappush(self._heap(lease.message) if len(self._ready) > 1 else self._ready[0], offset)
        else:
            heapq.heappush(self._delayed, (due_us, offset))
            self.queue.wake_at(due_us)

    def _bury(self, turn: Turn, offset: int, message: Message, attempts: int, reason: str, now_us: int) -> None:
        turn.commit_for(self.queue).bury(self.queue.log.name, self.name, offset, offset + 1)
        self._forget(turn, offset)
        self.queue.settled(message, self)
        self.queue.note_end(turn, self, offset, attempts, reason, now_us)
        self.queue.dead_letter(turn, message, self.name, offset, attempts, reason, now_us)

    def _settled(self, turn: Turn, offset: int, message: Message) -> None:
        self.queue.settled(message, self)
        turn.commit_for(self.queue).ack(self.queue.log.name, self.name, offset, offset + 1)
        self._forget(turn, offset)

    def _forget(self, turn: Turn, offset: int) -> None:
        self.state.pending.pop(offset, None)
        self.state.settle(offset, offset + 1)
        turn.touched.add(self.queue)

    # -- coming back -------------------------------------------------------------------------------------------------

    def _ready_heap(self, offset: int) -> list[int]:
        return self._ready[0] if len(self._ready) == 1 else self._heap(self.queue.message(offset))

    def _restore(self) -> None:
        """After a restart nobody holds anything: what was claimed or passed over is ready or delayed again."""
        state = self.state
        state.committed = max(state.committed, self.queue.log.first_offset)
        state.cursor = min(max(state.cursor, state.committed), self.queue.log.next_offset)
        for offset in self._passed():
            entry = state.pending.get(offset)
            if entry is not None and not entry.consumer and entry.due_us:
                heapq.heappush(self._delayed, (entry.due_us, offset))
                self.queue.wake_at(entry.due_us)
            else:
                heapq.heappush(self._ready_heap(offset), offset)

    def _passed(self) -> list[int]:
        """The offsets below the cursor that are not settled."""
        found: list[int] = []
        at = self.state.committed
        for start, stop in [*self.state.settled, (self.state.cursor, self.state.cursor)]:
            found.extend(range(at, min(start, self.state.cursor)))
            at = max(at, stop)
        return found


def copied(state: GroupState) -> GroupState:
    """A state of our own to move ahead of what is stored."""
    copy = GroupState(state.name, state.mode, state.filter, state.committed)
    copy.cursor = state.cursor
    for start, stop in state.settled:
        copy.settled.add(start, stop)
    copy.pending = {
        offset: Pending(entry.attempts, entry.due_us, entry.consumer) for offset, entry in state.pending.items()
    }
    return copy
