"""A work group: finding the next message, claims, settlements, retries, messages taken on request. No wire.

Most messages are new ones in log order. Messages out of order (returned, delayed, kept, selected) are in backlog.py,
leases in leases.py, turns among the members in dispatch.py.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, final

from headrace.core.batch import Batch
from headrace.core.queue.backlog import DEAD, NONE, Failures, Selection, Waiting, next_attempt_us, patience_us
from headrace.core.queue.dispatch import Consumer, Delivery, Found
from headrace.core.queue.group import (
    ACK,
    DEALT_AT_ONCE,
    DELIVERY_LIMIT,
    DONE,
    EXPIRED,
    FILTERED_AT_ONCE,
    NACK,
    READ_AT_ONCE_BYTES,
    REJECT,
    REJECTED,
    RELEASE,
    Group,
    PendingEntry,
    most_bytes,
)
from headrace.core.queue.leases import Leases, UnstoredClaims, store_claim
from headrace.errors import AccessRefused, Refused, Unavailable
from headrace.model import Message
from headrace.storage.api import Commit
from headrace.storage.group_state import COMMITTED, GroupState, Pending, Transition

if TYPE_CHECKING:
    from headrace.core.queue.queue import Queue

_ENDED_AT_ONCE: Final = 500
"""Expired leases that one round ends."""
_INDEXED_AT_ONCE: Final = 4096


@final
class WorkGroup(Group):
    """Competing consumers: each message is claimed by one of them, until it is settled or the lease runs out.

    In memory, `state.pending` holds only messages that came back; claimed messages are in the leases. The end of a
    lease is not kept over a restart, for then nobody holds anything.

    A message that a member failed or let time out goes to a member that did not fail it. While no such member has
    room, the message waits for one, for a time that `patience_us` says.
    """

    def __init__(self, queue: "Queue", state: GroupState, unstored: UnstoredClaims | None) -> None:
        """`unstored` collects claims and settlements that are stored later; None if each is stored at once."""
        super().__init__(queue, state, queue.definition.single_active)
        self._unstored = unstored
        self.levels = queue.definition.max_priority + 1
        self.leases = Leases()
        self.waiting = Waiting(self.levels)
        """Messages that came back. In a queue with priorities, all messages that were not delivered yet."""
        self.passed = 0
        """No message from this offset on was ever picked out of order."""
        self.unstored_from = -1
        """First settled offset not yet stored; -1 if none. See leases.py."""
        self.unstored_since_us = 0
        self.returning = 0
        """Number of calls that are giving back many messages in steps. New messages wait, as they come later."""
        self._notes: dict[int, dict[str, object]] | None = None
        """Notes by offset, which consumers left on messages they gave back."""
        self.failures: Failures | None = None
        """The members that failed each message; None where nothing failed or there is no choice of members."""
        self._selection: Selection | None = None
        """Made for the first consumer with a selector: few groups have one."""
        self._restore()

    def _restore(self) -> None:
        """Go on from the stored state, within the log. Nobody holds anything: claimed messages are ready again."""
        state, log = self.state, self.queue.log
        if state.committed < log.first_offset:
            state.apply(Transition(COMMITTED, log.name, self.name, log.first_offset))
            self._done_before = self._done
        state.cursor = min(max(state.cursor, state.committed), log.next_offset)
        if state.committed == state.cursor and not state.has_pending:
            return
        passed: list[int] = []
        for start, stop in self._unsettled_ranges():
            if self.levels > 1:
                self._index(start, stop)
            else:
                passed += [offset for offset in range(start, stop) if not self._retry_due_us(offset)]
        if passed:
            self.waiting.add_all(passed)
        for offset, entry in state.pending.items():
            if self._retry_due_us(offset):
                level = self.level(self.queue.message(offset)) if self.levels > 1 else 0
                self.waiting.delay(offset, entry.due_us, level, is_retried=True)
                self.queue.wake_at(entry.due_us)

    def _unsettled_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges of unsettled offsets below the cursor."""
        state = self.state
        at = state.committed
        for start, stop in [*state.settled, (state.cursor, state.cursor)]:
            if at < min(start, state.cursor):
                yield at, min(start, state.cursor)
            at = max(at, stop)

    @property
    def ready(self) -> int:
        state = self.state
        return self.queue.log.next_offset - state.committed - state.settled_count - len(self.leases.held)

    @property
    def lag(self) -> int:
        state = self.state
        return self.queue.log.next_offset - state.committed - state.settled_count

    @property
    def delayed(self) -> int:
        return self.waiting.retried + self.queue.scheduled

    @property
    def is_drained(self) -> bool:
        return not (self.has_more() or self.waiting.has_kept or self.consumers.selective)

    @property
    def unsettled(self) -> int:
        return len(self.leases.held)

    def holder(self, offset: int) -> Consumer | None:
        lease = self.leases.held.get(offset)
        return lease.consumer if lease is not None else None

    def pending(self) -> list[PendingEntry]:
        entries = [PendingEntry(d.offset, d.consumer.name, d.attempts, d.due_us) for d in self.leases.held.values()]
        for offset, entry in self.state.pending.items():
            entries.append(PendingEntry(offset, "", entry.attempts, 0 if entry.consumer else entry.due_us))
        return sorted(entries, key=lambda entry: entry.offset)

    def level(self, message: Message) -> int:
        return min(message.priority, self.levels - 1)

    # -- delivering --------------------------------------------------------------------------------------------------

    def pump(self, batch: Batch, now_us: int) -> None:
        if self._deliver_new(batch, now_us):
            return
        if self.consumers.selective:
            if self._selection is None:
                self._selection = Selection(self)
            self._selection.pump(batch, now_us)
        if self.failures is not None and self.waiting.has_kept and self.failures.offer(self, now_us):
            self.queue.pump_soon()
        super().pump(batch, now_us)

    def _deliver_new(self, batch: Batch, now_us: int) -> bool:
        """Deliver new messages to the only consumer; returns whether nothing is left to do.

        Returns False, and does nothing, where more than that decides. Without this path a message in one queue with
        one consumer takes 7 % more instructions from publish to acknowledgement.
        """
        consumer, queue, state = self.consumers.only, self.queue, self.state
        if consumer is None or consumer.auto_ack or self.is_paused or queue.history is not None:
            return False
        if self.returning or self.waiting.count or not self._is_plain():
            return False
        start = max(state.cursor, state.committed)
        room = min(min(consumer.room, self.max_pending - len(self.leases.held)), DEALT_AT_ONCE)  # of three: 0.1 us more
        if room <= 0 or start >= queue.log.next_offset:
            return True
        last = queue.log.single(start)  # with one new message per queue, 400 instructions less than `read`
        deliveries: list[Delivery] = []
        stop = start
        for message in [last] if last is not None else queue.log.read(start, room, most_bytes(queue.log)):
            if message.expires_us or message.not_before_us:
                return False
            deliveries.append(Delivery(self, consumer, stop, message, 1, False))
            stop += 1
        state.cursor = stop
        consumer.take([delivery.offset for delivery in deliveries])
        self._count(stop - start, 0)
        self._lease(batch, consumer, deliveries, now_us)
        consumer.recipient.deliver(deliveries)
        return stop >= queue.log.next_offset

    def _deal(self, batch: Batch, found: list[Found], now_us: int) -> None:
        if self.failures is not None:
            found = self._deal_failed(batch, self.failures, found, now_us)
        if found:
            super()._deal(batch, found, now_us)

    def _deal_failed(self, batch: Batch, failures: Failures, found: list[Found], now_us: int) -> list[Found]:
        """Hand failed messages to members that did not fail them, or keep them; returns the messages for any member."""
        rest: list[Found] = []
        shares: dict[Consumer, list[Found]] = {}
        for offset, message in found:
            failure = failures.get(offset)
            consumer = self.consumers.next_but(failure.consumers) if failure is not None else None
            if consumer is not None:
                consumer.take([offset])
                consumer.took_us = now_us
                shares.setdefault(consumer, []).append((offset, message))
            elif failure is not None and (until_us := failures.kept_until(self, failure, offset, now_us)):
                failures.keep(self.waiting, failure, offset, until_us, self.level(message))
                self.queue.wake_at(until_us)
            else:
                rest.append((offset, message))
        self._hand_out(batch, shares, now_us)
        return rest

    def note_failure(self, consumer: Consumer, offset: int, wait_us: int) -> None:
        """Record that a member failed a message, which then goes to another member if there is one."""
        if len(self.consumers) < 2 or self.consumers.is_single or consumer.turns is not self.consumers:
            return
        if self.failures is None:
            self.failures = Failures()
        self.failures.note(self.consumers, consumer, offset, wait_us)

    def _hear(self, consumer: Consumer) -> None:
        """Trust a silent member again, as it settles something: it may have more."""
        self.consumers.trust(consumer)
        self.queue.pump_soon()

    def give(self, batch: Batch, consumer: Consumer, found: list[Found], now_us: int) -> None:
        """Deliver messages to a consumer that picked them, in order of offset."""
        self.passed = max(self.passed, found[-1][0] + 1)
        for offset, _ in found:
            if offset < self.state.cursor or offset in self.state.pending:
                self.waiting.pick(offset)
                if self.failures is not None and self.failures.get(offset) is not None:
                    consumer.took_us = now_us
        self._hand_all(batch, consumer, found, now_us)

    def claim(self, batch: Batch, consumer: Consumer, share: list[Found], now_us: int) -> list[Delivery]:
        pending = self.state.pending
        deliveries: list[Delivery] = []
        again = 0
        for offset, message in share:
            entry = pending.get(offset) if pending else None
            if entry is None:
                deliveries.append(Delivery(self, consumer, offset, message, 1, False))
            else:
                again += 1
                deliveries.append(Delivery(self, consumer, offset, message, entry.attempts + 1, True))
        self._count(len(share), again)
        if self._notes:
            for delivery in deliveries:
                delivery.notes = self._notes.get(delivery.offset)
        self.queue.note_claims(deliveries, now_us)
        if not consumer.auto_ack:
            if pending:
                for offset, _ in share:
                    self.state.drop_pending(offset)
            self._lease(batch, consumer, deliveries, now_us)
        return deliveries

    def _lease(self, batch: Batch, consumer: Consumer, deliveries: list[Delivery], now_us: int) -> None:
        """Start the leases of messages that go to a consumer."""
        due_us = now_us + (consumer.lease_us or self.queue.lease_us)
        self.leases.give(deliveries, due_us)
        self.record_claims(batch, deliveries)
        self.queue.wake_at(due_us)

    def record_claims(self, batch: Batch, deliveries: list[Delivery]) -> None:
        """Store that these are claimed: at once, or later unless they are settled before."""
        if self._unstored is not None and self.queue.history is None:
            self._unstored.add(deliveries)
            return
        commit = batch.commit_for(self.queue)
        for delivery in deliveries:
            store_claim(commit, delivery)

    def finish(self, batch: Batch, deliveries: list[Delivery], now_us: int) -> None:
        for delivery in deliveries:
            self._finish(batch, delivery.offset, delivery.message, delivery.attempts, now_us)

    def put_back(self, found: list[Found]) -> None:
        for offset, message in found:
            self.waiting.add(offset, self.level(message))

    def _take_back(self, batch: Batch, consumer: Consumer, deliveries: list[Delivery], now_us: int) -> None:
        if consumer.auto_ack:
            self.put_back([(delivery.offset, delivery.message) for delivery in deliveries])
        for delivery in deliveries:
            if self.leases.held.get(delivery.offset) is delivery:
                self.settle(batch, consumer, delivery.offset, RELEASE, now_us)

    # -- finding the next message ------------------------------------------------------------------------------------

    def has_more(self) -> bool:
        return self.state.cursor < self.queue.log.next_offset or self.waiting.has_ready

    def is_waiting(self, offset: int) -> bool:
        """Return whether a message waits for a consumer, or for the end of a delay."""
        state = self.state
        return offset >= state.committed and offset not in self.leases.held and offset not in state.settled

    def head(self) -> int:
        state, end = self.state, self.queue.log.next_offset
        new = min(state.settled.next_absent(max(state.cursor, state.committed)), end)
        while new < self.passed and new in self.leases.held:
            new = min(state.settled.next_absent(new + 1), end)
        low = self.waiting.lowest(self.is_waiting)
        return new if low == NONE else min(low, new)

    def due_us(self, offset: int, message: Message) -> int:
        """Return the time before which a waiting message may not be delivered; 0 for none."""
        return max(message.not_before_us, self._retry_due_us(offset))

    def _retry_due_us(self, offset: int) -> int:
        """Return until when a message that came back must wait; 0 for not at all."""
        entry = self.state.pending.get(offset)
        return entry.due_us if entry is not None and not entry.consumer else 0

    def _find(self, batch: Batch, room: int, now_us: int) -> list[Found]:
        return self._next(batch, room, now_us, self.returning == 0)

    def _next(self, batch: Batch, room: int, now_us: int, with_new: bool) -> list[Found]:
        """Return up to `room` messages that may be delivered now; without `with_new` only messages that came back.

        Returns none only after passing over messages that may not be delivered.
        """
        waiting = self.waiting
        waiting.end_delays(now_us)
        if self.levels > 1:
            self._index_new()
        found = self._find_returned(batch, room, now_us) if waiting.has_ready else []
        if with_new and len(found) < room and not waiting.has_ready:  # new messages come after all returned ones
            try:
                found += self._find_new(batch, room - len(found), now_us)
            except Unavailable:
                if not found:
                    raise
        return found

    def _find_returned(self, batch: Batch, room: int, now_us: int) -> list[Found]:
        """Return messages of `waiting`: the most urgent first, then the oldest."""
        waiting, state, log = self.waiting, self.state, self.queue.log
        found: list[Found] = []
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
                messages = log.read(start, run.stop - start)
            except Unavailable:
                waiting.add_all(run, self.levels - 1)  # they were the most urgent and stay so
                if found:
                    return found
                raise
            for offset, message in enumerate(messages, start):
                # To give up one message may commit its followers too, as far as they are settled.
                is_open = offset >= state.committed and offset not in state.settled
                if not waiting.use_up_pick(offset) and is_open and self.admits(batch, offset, message, now_us):
                    found.append((offset, message))
        return found

    def _index_new(self) -> None:
        """Sort new messages into `waiting` by priority."""
        state = self.state
        start, state.cursor = max(state.cursor, state.committed), self.queue.log.next_offset
        self._index(start, state.cursor)

    def _index(self, start: int, stop: int) -> None:
        state = self.state
        while start < stop:
            for message in self.queue.log.read(start, min(stop - start, _INDEXED_AT_ONCE)):
                is_picked = start < self.passed and (start in self.leases.held or start in state.pending)
                if start not in state.settled and not self._retry_due_us(start) and not is_picked:
                    self.waiting.add(start, self.level(message))
                start += 1

    def _is_plain(self) -> bool:
        """Return whether any consumer may have every message ahead: 0.1 us a message less than asking for each."""
        state = self.state
        if self.filter is not None or self.levels > 1 or not state.is_plain:
            return False
        return self.passed <= state.cursor

    def _find_new(self, batch: Batch, room: int, now_us: int) -> list[Found]:
        """Return messages that were never delivered, from the cursor on."""
        found: list[Found] = []
        state, log = self.state, self.queue.log
        state.cursor = state.settled.next_absent(max(state.cursor, state.committed))
        if state.cursor >= log.next_offset:
            return found
        skipped: list[Found] = []
        most = room if self.filter is None else max(room, FILTERED_AT_ONCE)
        messages = log.read(state.cursor, most, most_bytes(log))
        if self._is_plain() and not any([message.expires_us or message.not_before_us for message in messages]):
            found = list(enumerate(messages, state.cursor))
            state.cursor += len(messages)
            return found
        for offset, message in enumerate(messages, state.cursor):
            state.cursor = max(state.cursor, offset + 1)  # to give up a message may move it further
            if offset < state.committed or offset in state.settled:
                continue
            if offset < self.passed and (offset in self.leases.held or offset in state.pending):
                continue  # picked by a consumer with a selector, and perhaps given back since
            if self.filter is not None and not self.filter.matches(self.queue.key_of(message)):
                skipped.append((offset, message))
            elif self._admits(batch, offset, message, now_us):
                found.append((offset, message))
                if len(found) == room:
                    break
        if skipped:
            self.queue.statistics.passed += len(skipped)
            self._skip(batch, skipped)
        return found

    def admits(self, batch: Batch, offset: int, message: Message, now_us: int) -> bool:
        """Return whether a message may be delivered now; if not, it waits, is skipped or is given up."""
        if self.filter is not None and not self.filter.matches(self.queue.key_of(message)):
            self._skip(batch, [(offset, message)])
            return False
        return self._admits(batch, offset, message, now_us)

    def _admits(self, batch: Batch, offset: int, message: Message, now_us: int) -> bool:
        """Return the same for a message that the filter lets through."""
        queue = self.queue
        if message.expires_us and queue.is_expired(message, now_us):
            queue.disposal.give_up(batch, offset, message, EXPIRED, now_us)
            return False
        if message.not_before_us > now_us:
            self.waiting.delay(offset, message.not_before_us, self.level(message))
            queue.wake_at(message.not_before_us)
            return False
        entry = self.state.pending.get(offset)
        if entry is not None and next_attempt_us(queue.definition, entry.attempts, False, now_us) == DEAD:
            self._bury(batch, offset, message, entry.attempts, DELIVERY_LIMIT, now_us)  # its last try was cut short
            return False
        return True

    def _skip(self, batch: Batch, skipped: list[Found]) -> None:
        """Settle messages that the group's filter keeps out."""
        commit = batch.commit_for(self.queue)
        self._given_up += len(skipped)
        for offset, message in skipped:
            self.queue.settled(message)
            commit.ack_at(self.queue.log, self.name, offset, offset + 1)
            self.state.settle(offset, offset + 1)
        batch.touch(self.queue)

    # -- taking on request: the consumer need not be a member, and has the room it says ------------------------------

    def take(self, batch: Batch, consumer: Consumer, most: int, before: int, now_us: int) -> list[Delivery]:
        """Claim up to `most` messages below the offset `before`, whatever the consumer's credit; none if none waits.

        Raises AccessRefused when another consumer has the queue for itself.
        """
        self._check_exclusive(consumer)
        while most > 0 and not self.is_paused:
            found = self._next(batch, most, now_us, True)
            beyond = [each for each in found if each[0] >= before]
            if beyond:
                self.put_back(beyond)
                found = [each for each in found if each[0] < before]
            if found:
                consumer.take([offset for offset, _ in found])
                taken = self.claim(batch, consumer, found, now_us)
                if consumer.auto_ack:
                    self.finish(batch, taken, now_us)
                return taken
            # Messages that are kept for other members come last.
            if beyond or not (self.has_more() or self.waiting.offer_some(most)):
                break
        return []

    def take_offsets(self, batch: Batch, consumer: Consumer, offsets: Sequence[int], now_us: int) -> list[int]:
        """Claim these messages, in order of offset, as far as they wait; returns the claimed ones.

        Raises AccessRefused when another consumer has the queue for itself.
        """
        self._check_exclusive(consumer)
        found: list[Found] = []
        for offset in offsets:
            if offset < self.queue.log.next_offset and self.is_waiting(offset):
                message = self.queue.message(offset)
                if self.due_us(offset, message) <= now_us and self.admits(batch, offset, message, now_us):
                    found.append((offset, message))
        if found:
            self.give(batch, consumer, found, now_us)
        return [offset for offset, _ in found]

    def pass_on(self, holder: Consumer, offset: int, to: Consumer, due_us: int) -> Delivery:
        """Pass a claim on to another consumer until `due_us`. Raises Refused when `holder` does not hold it."""
        held = self.held_by(holder, offset)
        holder.release(offset)
        to.take([offset])
        to.allowance += 1  # it is passed on, not delivered
        passed = Delivery(self, to, offset, held.message, held.attempts, held.redelivered)
        passed.is_claimed = held.is_claimed
        passed.notes = held.notes
        self.leases.renew([passed], due_us)
        self.queue.wake_at(due_us)
        return passed

    def _check_exclusive(self, consumer: Consumer) -> None:
        if self.consumers.exclusive and consumer.turns is not self.consumers:
            raise AccessRefused(f"queue {self.queue.name!r} is in exclusive use by a consumer")

    # -- settling ----------------------------------------------------------------------------------------------------

    def settle(self, batch: Batch, consumer: Consumer, offset: int, outcome: int, now_us: int) -> None:
        lease = self.held_by(consumer, offset)
        self.leases.end(lease)
        consumer.release(offset)
        if outcome == ACK:
            self._finish(batch, offset, lease.message, lease.attempts, now_us)
            return
        if outcome == REJECT:
            self._bury(batch, offset, lease.message, lease.attempts, REJECTED, now_us)
            return
        if lease.notes:
            self._notes = self._notes or {}
            self._notes[offset] = lease.notes
        if outcome == NACK:
            self.note_failure(consumer, offset, patience_us(lease.attempts, self.queue.lease_us, False))
            self._retry(batch, lease, True, now_us)
        else:
            self.note_failure(consumer, offset, 0)
            self._requeue(batch, lease, lease.attempts - 1, now_us, now_us)

    def acknowledge(self, batch: Batch, deliveries: list[Delivery], first: int, stop: int, now_us: int) -> None:
        """Store one step for each run of neighbours: 0.2 us a message instead of 0.9 one by one."""
        consumer = deliveries[first].consumer
        if consumer.is_silent:
            self._hear(consumer)
        queue, state, committed = self.queue, self.state, self.state.committed
        is_traced = state.has_pending or self._notes is not None or self.failures is not None
        is_watched = queue.is_limited or queue.history is not None
        runs: list[tuple[int, int]] | None = None
        """All runs but the last."""
        start = end = -1
        for at in range(first, stop):
            offset = deliveries[at].offset
            lease = self.leases.end_of(consumer, offset)
            if lease is None:
                continue
            consumer.release(offset)
            if is_watched:
                queue.acknowledged(batch, self, lease, now_us)
            if is_traced:
                self._forget(offset)
            if offset != end:
                if end >= 0:
                    state.settle(start, end)
                    runs = runs or []
                    runs.append((start, end))
                start = offset
            end = offset + 1
        if end < 0:
            return
        state.settle(start, end)
        cut = queue.cut(batch, self)
        if cut and self._unstored is not None and not state.settled_count:
            self._store_later(self._unstored, committed, now_us)
            return
        commit = batch.commit_for(queue)
        if runs is not None:
            for low, high in runs:
                commit.ack_at(queue.log, self.name, low, high)
        commit.ack_at(queue.log, self.name, start, end, cut)

    @property
    def unstored(self) -> int:
        """Length of the contiguous settled range not yet stored."""
        return self.state.committed - self.unstored_from

    def _store_later(self, unstored: UnstoredClaims, committed: int, now_us: int) -> None:
        """Leave the settled range from the offset `committed` on to a later commit."""
        if self.unstored_from < 0:
            self.unstored_from = committed
            self.unstored_since_us = now_us
            unstored.add_settled(self)
        if unstored.has_many_settled:
            self.queue.log.let_go(self.queue.cut_below)

    def store_settled(self, commit: Commit) -> None:
        """Add the settled range that is not yet stored to a commit, unless the group is gone."""
        queue, start = self.queue, self.unstored_from
        if start >= 0:
            self.unstored_from = -1
            commit.ack_at(queue.log, self.name, start, self.state.committed, queue.cut_below)

    def renew(self, consumer: Consumer, offsets: Sequence[int], due_us: int) -> list[int]:
        """Extend a consumer's leases on these messages to `due_us`; returns the offsets that it holds."""
        found = self.leases.held
        held = [lease for offset in offsets if (lease := found.get(offset)) and lease.consumer is consumer]
        if held:
            self.leases.renew(held, due_us)
            self.queue.wake_at(due_us)
        return [lease.offset for lease in held]

    def held_by(self, consumer: Consumer, offset: int) -> Delivery:
        """Return the claim of a consumer. Raises Refused when it does not hold that offset."""
        if consumer.is_silent:
            self._hear(consumer)
        lease = self.leases.held.get(offset)
        if lease is None or lease.consumer is not consumer:
            raise Refused(
                f"offset {offset} of {self.queue.name!r} is not pending for consumer {consumer.name!r} in group "
                f"{self.name!r}: it was settled already, or its time ran out and it went to another"
            )
        return lease

    def leave(self, batch: Batch, consumer: Consumer, now_us: int) -> None:
        self.consumers.leave(consumer)
        if self._selection is not None:
            self._selection.forget(consumer)
        self.give_back(batch, consumer, consumer.held(), now_us)
        consumer.group = None

    def give_back(self, batch: Batch, consumer: Consumer, offsets: list[int], now_us: int) -> None:
        """Requeue these messages, as far as the consumer still holds them."""
        for offset in offsets:
            lease = self.leases.end_of(consumer, offset)
            if lease is not None:
                consumer.release(offset)
                self._retry(batch, lease, False, now_us)

    def close(self) -> None:
        for delivery in self.leases.held.values():
            delivery.consumer.release(delivery.offset)
            delivery.consumer.group = None
        self.leases.clear()
        self.waiting.clear()
        self.unstored_from = -1
        self._selection = None
        super().close()

    def on_time(self, batch: Batch, now_us: int) -> bool:
        ended = self.leases.take_ended(now_us, _ENDED_AT_ONCE)
        for lease in ended:
            consumer = lease.consumer
            consumer.release(lease.offset)
            self.consumers.doubt(consumer)
            self.note_failure(consumer, lease.offset, patience_us(lease.attempts, self.queue.lease_us, True))
            self._retry(batch, lease, False, now_us)
        self.waiting.end_delays(now_us)
        for consumer in {lease.consumer: None for lease in ended}:
            if consumer.overdue is not None:
                consumer.overdue()
        return len(ended) == _ENDED_AT_ONCE

    def next_due_us(self) -> int:
        dues = [due_us for due_us in (self.leases.next_end_us(), self.waiting.next_due_us()) if due_us]
        return min(dues) if dues else 0

    def _finish(self, batch: Batch, offset: int, message: Message, attempts: int, now_us: int) -> None:
        """Settle a message that nobody holds, as acknowledged."""
        queue = self.queue
        if queue.history is not None:
            queue.note_end(batch, self, offset, attempts, DONE, now_us)
        queue.settled(message)
        self._forget(offset)
        self.state.settle(offset, offset + 1)
        batch.commit_for(queue).ack_at(queue.log, self.name, offset, offset + 1, queue.cut(batch, self))

    def _retry(self, batch: Batch, lease: Delivery, delayed: bool, now_us: int) -> None:
        due_us = next_attempt_us(self.queue.definition, lease.attempts, delayed, now_us)
        if due_us == DEAD:
            self._bury(batch, lease.offset, lease.message, lease.attempts, DELIVERY_LIMIT, now_us)
        else:
            self._requeue(batch, lease, lease.attempts, due_us, now_us)

    def _requeue(self, batch: Batch, lease: Delivery, attempts: int, due_us: int, now_us: int) -> None:
        """Make a message ready again from `due_us` on."""
        offset, level = lease.offset, self.level(lease.message)
        commit = batch.commit_for(self.queue)
        store_claim(commit, lease)
        commit.requeue(self.queue.log.name, self.name, offset, offset + 1, due_us)
        self.state.set_pending(offset, Pending(attempts, due_us, ""))
        if self.failures is not None:
            self.failures.requeue(offset, due_us)
        if self._selection is not None:
            self._selection.requeue(offset, lease.message)
        if due_us <= now_us:
            self.waiting.add(offset, level)
        else:
            self.waiting.delay(offset, due_us, level, is_retried=True)
            self.queue.wake_at(due_us)

    def _bury(self, batch: Batch, offset: int, message: Message, attempts: int, reason: str, now_us: int) -> None:
        """Give up a message that nobody holds: it becomes a dead letter, for this reason."""
        batch.commit_for(self.queue).bury(self.queue.log.name, self.name, offset, offset + 1)
        self._given_up += 1
        self._forget(offset)
        self.state.settle(offset, offset + 1)
        batch.touch(self.queue)
        self.queue.settled(message)
        self.queue.note_end(batch, self, offset, attempts, reason, now_us)
        self.queue.dead_letter(batch, message, self.name, offset, attempts, reason, now_us)

    def _forget(self, offset: int) -> None:
        """Drop retries, notes and failures of a message that is about to be settled."""
        self.state.drop_pending(offset)
        if self._notes:
            self._notes.pop(offset, None)
        if self.failures is not None:
            self._forget_failures([offset])

    def _forget_failures(self, offsets: list[int]) -> None:
        if self.failures is not None and self.failures.forget(offsets):
            self.failures = None
            self.waiting.offer_some(self.waiting.kept_count)  # settled while they were kept

    # -- messages that the queue gives up ----------------------------------------------------------------------------

    def drop(self, batch: Batch, offset: int) -> None:
        if self.is_waiting(offset):
            batch.commit_for(self.queue).bury(self.queue.log.name, self.name, offset, offset + 1)
            self._given_up += 1
            self._forget(offset)
            self.state.settle(offset, offset + 1)
            self.waiting.forget(offset)
            batch.touch(self.queue)

    def purge(self, batch: Batch) -> None:
        log, state = self.queue.log, self.state
        commit = batch.commit_for(self.queue)
        held = [(offset, offset + 1) for offset in sorted([delivery.offset for delivery in self.leases.held.values()])]
        at = state.committed
        for start, stop in sorted([*state.settled, *held, (log.next_offset, log.next_offset)]):
            if at < start:
                self._given_up += start - at
                commit.bury(log.name, self.name, at, start)
                state.settle(at, start)
            at = max(at, stop)
        self.waiting.clear()
        self._forget_failures([offset for offset in state.pending if offset not in self.leases.held])
        state.pending = {}
        state.cursor = log.next_offset
        batch.touch(self.queue)

    def on_truncated(self, batch: Batch, first: int) -> None:
        if self.state.committed >= first:
            return
        for delivery in [delivery for delivery in self.leases.held.values() if delivery.offset < first]:
            self.leases.end(delivery)
            delivery.consumer.release(delivery.offset)
        if self.failures is not None:
            self._forget_failures(self.failures.below(first))
        commit = batch.commit_for(self.queue)
        done = self._done
        commit.commit_offset(self.queue.log.name, self.name, first)
        self.state.apply(commit.steps[-1])
        self._given_up += self._done - done
