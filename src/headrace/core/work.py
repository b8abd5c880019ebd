"""A work group: claims, settlements, retries. Who gets a message is in group.py, when a try is due in retry.py."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, final

from headrace.core.dead_letter import DELIVERY_LIMIT, REJECTED
from headrace.core.delivery import Consumer, Delivery
from headrace.core.given import store_claim
from headrace.core.group import ACK, DEALT_AT_ONCE, FILTERED_AT_ONCE, NACK, REJECT, RELEASE, Found, Group, PendingEntry
from headrace.core.leases import Leases
from headrace.core.retry import DEAD, next_attempt_us
from headrace.core.selection import Selection
from headrace.core.turn import Turn
from headrace.core.waiting import NONE, NOTHING, Waiting
from headrace.errors import AccessRefused, Refused, Unavailable
from headrace.model import Message
from headrace.storage.group_state import COMMITTED, GroupState, Pending, Transition

if TYPE_CHECKING:
    from headrace.core.queue import Queue

_INDEXED_AT_ONCE: Final = 4096


@final
class WorkGroup(Group):
    """Competing consumers: each message is claimed by one, until it is settled or the claim runs out.

    In memory, `state.pending` has only what came back; what consumers hold is in the leases. When a claim ends is
    not kept over a restart, for then nobody holds anything.
    """

    def __init__(self, queue: "Queue", state: GroupState) -> None:
        super().__init__(queue, state, queue.definition.single_active)
        self._levels = queue.definition.max_priority + 1
        self._leases = Leases()
        self._waiting = NOTHING
        """What came back and, where priorities count, everything that was not delivered yet."""
        self._selection = Selection(self)
        self.passed = 0
        """Nothing from here on was ever picked out of order."""
        self._picked: dict[int, int] = {}
        """How many places in line of a message count no more, as a consumer with a selector took it out of line."""
        self._notes: dict[int, dict[str, object]] | None = None
        """What consumers noted on messages that they gave back."""
        self._restore()

    @property
    def ready(self) -> int:
        state = self.state
        return self.queue.log.next_offset - state.committed - state.settled_count - len(self._leases)

    @property
    def is_drained(self) -> bool:
        if self._has_more():
            return False
        return self.only is not None or not self.consumers.selective

    @property
    def unsettled(self) -> int:
        return len(self._leases)

    def holder(self, offset: int) -> Consumer | None:
        lease = self._leases.get(offset)
        return lease.consumer if lease is not None else None

    def pending(self) -> list[PendingEntry]:
        entries = [PendingEntry(d.offset, d.consumer.name, d.attempts, d.due_us) for d in self._leases]
        for offset, entry in self.state.pending.items():
            entries.append(PendingEntry(offset, "", entry.attempts, 0 if entry.consumer else entry.due_us))
        return sorted(entries, key=lambda entry: entry.offset)

    # -- delivering --------------------------------------------------------------------------------------------------

    def pump(self, turn: Turn, now_us: int) -> None:
        if self._serve(turn, now_us):
            return
        if self.consumers.selective:
            self._selection.pump(turn, now_us)
        super().pump(turn, now_us)

    def _serve(self, turn: Turn, now_us: int) -> bool:
        """Hand what is new to the only consumer; returns whether there is nothing more to do.

        False, and nothing done, where it is not as simple as that. With a message in each of many queues this is most
        of what there is to do for each.
        """
        consumer, queue, state = self.only, self.queue, self.state
        if consumer is None or consumer.auto_ack or self.is_paused or queue.has_history:
            return False
        if not (self._waiting.is_empty and self._is_plain()):
            return False
        start = max(state.cursor, state.committed)
        room = min(min(consumer.room, self.max_pending - len(self._leases)), DEALT_AT_ONCE)  # of three: 0.1 us more
        if room <= 0 or start >= queue.log.next_offset:
            return True
        deliveries: list[Delivery] = []
        stop = start
        for message in queue.log.read(start, room):
            if message.expires_us or message.not_before_us:
                return False
            deliveries.append(Delivery(self, consumer, stop, message, 1, False))
            stop += 1
        state.cursor = stop
        consumer.take_run(start, stop)
        self._count(stop - start, 0)
        due_us = now_us + (consumer.lease_us or queue.lease_us)
        self._leases.give(deliveries, due_us)
        if queue.given is not None:
            queue.given.add(deliveries)
        else:
            self.note_given(turn, deliveries)
        queue.wake_at(due_us)
        consumer.deliver(deliveries)
        return not self._has_more()

    def _own_waiting(self) -> Waiting:
        """What waits, to be added to."""
        if self._waiting is NOTHING:
            self._waiting = Waiting(self._levels)
        return self._waiting

    def is_free(self, offset: int) -> bool:
        """Whether this message waits for a consumer, or for the end of a delay."""
        return self._is_waiting(offset)

    def due_us(self, offset: int) -> int:
        """Until when a message that came back must wait; 0 for not at all."""
        entry = self.state.pending.get(offset)
        return entry.due_us if entry is not None and not entry.consumer else 0

    def admit(self, turn: Turn, offset: int, message: Message, now_us: int) -> bool:
        """Whether a message that is not due later may be delivered; if not, it is dealt with."""
        if self.filter is not None and not self.filter.matches(self.queue.key_of(message)):
            self._skip(turn, [(offset, message)])
            return False
        return self._admit(turn, offset, message, now_us)

    def give(self, turn: Turn, consumer: Consumer, found: list[Found], now_us: int) -> None:
        """Deliver these to a consumer that picked them, in order of offset."""
        for offset, _ in found:
            if offset < self.state.cursor or offset in self.state.pending:
                self._picked[offset] = self._picked.get(offset, 0) + 1
        consumer.take([offset for offset, _ in found])
        hand = self._claim(turn, consumer, found, now_us)
        if consumer.auto_ack:
            self._finish(turn, hand, now_us)
        consumer.deliver(hand)

    def take(self, turn: Turn, consumer: Consumer, now_us: int) -> Delivery | None:
        """One message for a consumer that asks for one, whatever its credit.

        Raises AccessRefused when another consumer has the queue for itself.
        """
        self._check_exclusive(consumer)
        if self.is_paused:
            return None
        while True:
            found = self._find(turn, 1, now_us)
            if found:
                consumer.take([found[0][0]])
                given = self._claim(turn, consumer, found, now_us)
                if consumer.auto_ack:
                    self._finish(turn, given, now_us)
                return given[0]
            if not self._has_more():
                return None

    def take_many(self, turn: Turn, consumer: Consumer, most: int, before: int, now_us: int) -> list[Delivery]:
        """Up to `most` messages from below the offset `before` for a consumer that asks for them, none when none waits.

        Raises AccessRefused when another consumer has the queue for itself.
        """
        self._check_exclusive(consumer)
        most = min(most, self.max_pending - self.unsettled)
        while most > 0 and not self.is_paused:
            found = self._find(turn, most, now_us)
            beyond = [each for each in found if each[0] >= before]
            if beyond:
                self._put_back(beyond)
                found = [each for each in found if each[0] < before]
            if found:
                consumer.take([offset for offset, _ in found])
                return self._claim(turn, consumer, found, now_us)
            if beyond or not self._has_more():
                break
        return []

    def take_these(self, turn: Turn, consumer: Consumer, offsets: Sequence[int], now_us: int) -> list[int]:
        """Have a consumer hold those of these messages, in order of offset, that wait; returns which.

        Raises AccessRefused when another consumer has the queue for itself.
        """
        self._check_exclusive(consumer)
        found: list[Found] = []
        for offset in offsets:
            if offset < self.queue.log.next_offset and self._is_waiting(offset):
                message = self.queue.message(offset)
                is_due = max(message.not_before_us, self.due_us(offset)) <= now_us
                if is_due and self.admit(turn, offset, message, now_us):
                    found.append((offset, message))
        if found:
            self.passed = max(self.passed, found[-1][0] + 1)
            self.give(turn, consumer, found, now_us)
        return [offset for offset, _ in found]

    def _check_exclusive(self, consumer: Consumer) -> None:
        if self.consumers.exclusive and consumer.turns is not self.consumers:
            raise AccessRefused(f"queue {self.queue.name!r} is in exclusive use by a consumer")

    def _has_more(self) -> bool:
        return self.state.cursor < self.queue.log.next_offset or self._waiting.has_ready

    def _find(self, turn: Turn, room: int, now_us: int) -> list[Found]:
        """Up to `room` messages that may be delivered now: none only after passing over what may not."""
        if self._waiting.next_due_us <= now_us:
            self._waiting.end_delays(now_us)
        if self._levels > 1:
            self._index_new()
        found = self._returned(turn, room, now_us) if self._waiting.has_ready else []
        if len(found) < room:
            try:
                found += self._fresh(turn, room - len(found), now_us)
            except Unavailable:
                if not found:
                    raise
        return found

    def _returned(self, turn: Turn, room: int, now_us: int) -> list[Found]:
        """What came back, or all that waits where priorities count: the most urgent first, then the oldest."""
        found: list[Found] = []
        looks = room + FILTERED_AT_ONCE
        while len(found) < room and looks > 0 and (run := self._waiting.pop_run(room - len(found))):
            looks -= len(run)
            start = max(run.start, self.state.committed)
            if self._picked:
                for offset in range(run.start, min(start, run.stop)):
                    self._was_picked(offset)
            if start >= run.stop:
                continue
            try:
                messages = self.queue.log.read(start, run.stop - start)
            except Unavailable:
                self._own_waiting().add_all(run, self._levels - 1)  # they were the most urgent, and are so still
                if found:
                    return found
                raise
            for offset, message in enumerate(messages, start):
                is_open = offset not in self.state.settled and not (self._picked and self._was_picked(offset))
                if is_open and self._admit(turn, offset, message, now_us):
                    found.append((offset, message))
        return found

    def _was_picked(self, offset: int) -> bool:
        """Whether this place in line is that of a message which a consumer with a selector took out of line."""
        count = self._picked.pop(offset, 0)
        if count > 1:
            self._picked[offset] = count - 1
        return count > 0

    def _fresh(self, turn: Turn, room: int, now_us: int) -> list[Found]:
        """What was never delivered, from the cursor on."""
        found: list[Found] = []
        state = self.state
        state.cursor = state.settled.next_absent(max(state.cursor, state.committed))
        if state.cursor >= self.queue.log.next_offset:
            return found
        skipped: list[Found] = []
        most = room if self.filter is None else max(room, FILTERED_AT_ONCE)
        messages = self.queue.log.read(state.cursor, most)
        if self._is_plain() and not any([message.expires_us or message.not_before_us for message in messages]):
            found = list(enumerate(messages, state.cursor))
            state.cursor += len(messages)
            return found
        for message in messages:
            offset = state.cursor
            state.cursor += 1
            if state.settled and offset in state.settled:
                continue
            if offset < self.passed and (offset in self._leases or offset in state.pending):
                continue  # picked by a consumer with a selector, and perhaps given back since
            if self.filter is not None and not self.filter.matches(self.queue.key_of(message)):
                skipped.append((offset, message))
            elif self._admit(turn, offset, message, now_us):
                found.append((offset, message))
                if len(found) == room:
                    break
        if skipped:
            self._skip(turn, skipped)
        return found

    def _is_plain(self) -> bool:
        """Whether all that lies ahead is for whoever comes: 0.1 us a message less than asking so for each."""
        state = self.state
        if state.settled_count or state.has_pending or self.filter is not None or self._levels > 1:
            return False
        return self.passed <= state.cursor

    def _skip(self, turn: Turn, skipped: list[Found]) -> None:
        """Be done with what the filter does not let through: a step for each run, not for each message."""
        commit = turn.commit_for(self.queue)
        self._given_up += len(skipped)
        for offset, message in skipped:
            self.queue.settled(message)
            commit.ack(self.queue.log.name, self.name, offset, offset + 1)
            self.state.settle(offset, offset + 1)
        turn.touch(self.queue)

    def _index_new(self) -> None:
        """Sort what was published since by its priorities."""
        state = self.state
        start, state.cursor = max(state.cursor, state.committed), self.queue.log.next_offset
        self._index(start, state.cursor)

    def _index(self, start: int, stop: int) -> None:
        while start < stop:
            for message in self.queue.log.read(start, min(stop - start, _INDEXED_AT_ONCE)):
                is_picked = start < self.passed and (start in self._leases or start in self.state.pending)
                if start not in self.state.settled and not self._is_delayed(start) and not is_picked:
                    self._own_waiting().add(start, self._level(message))
                start += 1

    def _level(self, message: Message) -> int:
        return min(message.priority, self._levels - 1)

    def _admit(self, turn: Turn, offset: int, message: Message, now_us: int) -> bool:
        """Whether this message may be delivered now; if not, see to it that it is dealt with."""
        if message.expires_us and message.expires_us <= now_us:
            self.queue.expire(turn, offset, message, now_us)
            return False
        if message.not_before_us > now_us:
            self._own_waiting().delay(offset, message.not_before_us, self._level(message))
            self.queue.wake_at(message.not_before_us)
            return False
        if self._levels > 1 and self.filter is not None and not self.filter.matches(self.queue.key_of(message)):
            self._skip(turn, [(offset, message)])
            return False
        entry = self.state.pending.get(offset)
        if entry is not None and next_attempt_us(self.queue.definition, entry.attempts, False, now_us) == DEAD:
            self._bury(turn, offset, message, entry.attempts, DELIVERY_LIMIT, now_us)  # its last try was cut short
            return False
        return True

    def _claim(self, turn: Turn, consumer: Consumer, share: list[Found], now_us: int) -> list[Delivery]:
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
        if consumer.auto_ack:
            return deliveries
        due_us = now_us + (consumer.lease_us or self.queue.lease_us)
        if pending:
            for offset, _ in share:
                pending.pop(offset, None)
        self._leases.give(deliveries, due_us)
        self.note_given(turn, deliveries)
        self.queue.wake_at(due_us)
        return deliveries

    def note_given(self, turn: Turn, deliveries: list[Delivery]) -> None:
        """Have it stored that these are with a consumer: at once, or if they are not settled soon."""
        given = self.queue.given
        if given is not None and not self.queue.has_history:
            given.add(deliveries)
            return
        commit = turn.commit_for(self.queue)
        for delivery in deliveries:
            store_claim(commit, delivery)

    def _finish(self, turn: Turn, deliveries: list[Delivery], now_us: int) -> None:
        for delivery in deliveries:
            self.queue.note_end(turn, self, delivery.offset, delivery.attempts, "done", now_us)
            self._settled(turn, delivery.offset, delivery.message)

    def _put_back(self, found: list[Found]) -> None:
        for offset, message in found:
            self._own_waiting().add(offset, self._level(message))

    def _take_back(self, turn: Turn, consumer: Consumer, deliveries: list[Delivery], now_us: int) -> None:
        if consumer.auto_ack:
            self._put_back([(delivery.offset, delivery.message) for delivery in deliveries])
        for delivery in deliveries:
            if self._leases.get(delivery.offset) is delivery:
                self.settle(turn, consumer, delivery.offset, RELEASE, now_us)

    # -- settling ----------------------------------------------------------------------------------------------------

    def settle(self, turn: Turn, consumer: Consumer, offset: int, outcome: int, now_us: int) -> None:
        lease = self._held_by(consumer, offset)
        self._leases.end(offset)
        consumer.release(offset)
        if outcome == ACK:
            self.queue.note_end(turn, self, offset, lease.attempts, "done", now_us)
            self._settled(turn, offset, lease.message)
        elif outcome == REJECT:
            self._bury(turn, offset, lease.message, lease.attempts, REJECTED, now_us)
        elif outcome == NACK:
            self._note(lease)
            self._retry(turn, lease, True, now_us)
        else:
            self._note(lease)
            self._wait_again(turn, lease, lease.attempts - 1, now_us, now_us)

    def acknowledge(self, turn: Turn, consumer: Consumer, deliveries: list[Delivery], now_us: int) -> None:
        """A step and a range for each run of neighbours: 0.2 us a message instead of 0.9 one by one."""
        ended = self._leases.end_all(deliveries, consumer)
        if not ended:
            return
        queue, commit, name = self.queue, turn.commit_for(self.queue), self.queue.log.name
        offsets = [lease.offset for lease in ended]
        consumer.release_all(offsets)
        queue.settled_all(turn, self, ended, now_us)
        if self.state.has_pending:
            for offset in offsets:
                self.state.pending.pop(offset, None)
        if self._notes:
            for offset in offsets:
                self._notes.pop(offset, None)
        start = stop = offsets[0]
        for offset in offsets:
            if offset != stop:
                commit.ack(name, self.name, start, stop)
                self.state.settle(start, stop)
                start = offset
            stop = offset + 1
        commit.ack(name, self.name, start, stop)
        self.state.settle(start, stop)
        turn.touch(queue)

    def acknowledge_one(self, turn: Turn, consumer: Consumer, delivery: Delivery, now_us: int) -> None:
        """The same for one, without looking for what is at hand: with a message in each of many queues all are such."""
        offset = delivery.offset
        if not delivery.is_held:
            if self.holder(offset) is consumer:  # it came back from a transaction that failed
                self.settle(turn, consumer, offset, ACK, now_us)
            return
        self._leases.let_go(delivery)
        consumer.release(offset)
        if self.queue.has_history:
            self.queue.note_end(turn, self, offset, delivery.attempts, "done", now_us)
        self._settled(turn, offset, delivery.message)

    def _note(self, lease: Delivery) -> None:
        if lease.notes:
            self._notes = self._notes or {}
            self._notes[lease.offset] = lease.notes

    def renew(self, consumer: Consumer, offset: int, due_us: int) -> None:
        """Give a consumer until `due_us`. Raises Refused when it does not hold that offset."""
        self._leases.renew([self._held_by(consumer, offset)], due_us)
        self.queue.wake_at(due_us)

    def renew_these(self, consumer: Consumer, offsets: Sequence[int], due_us: int) -> list[int]:
        """Give a consumer until `due_us` for those of these messages that it holds; returns which."""
        held = [lease for offset in offsets if (lease := self._leases.get(offset)) and lease.consumer is consumer]
        if held:
            self._leases.renew(held, due_us)
            self.queue.wake_at(due_us)
        return [lease.offset for lease in held]

    def finish_waiting(self, turn: Turn, offset: int, now_us: int) -> bool:
        """Be done with a message that waits in line and that somebody, whose claim ran out, says is done."""
        if offset >= self.queue.log.next_offset or not self._is_waiting(offset):
            return False
        entry = self.state.pending.get(offset)
        attempts = entry.attempts if entry is not None else 0
        self.queue.note_end(turn, self, offset, attempts, "done", now_us)
        self._settled(turn, offset, self.queue.message(offset))
        return True

    def pass_on(self, holder: Consumer, offset: int, to: Consumer, due_us: int) -> Delivery:
        """Let another consumer hold this until `due_us`. Raises Refused when the one said to hold it does not."""
        held = self._held_by(holder, offset)
        holder.release(offset)
        to.take([offset])
        to.allowance += 1  # it is passed on, not delivered
        passed = Delivery(self, to, offset, held.message, held.attempts, held.redelivered)
        passed.is_claimed = held.is_claimed
        passed.notes = held.notes
        self._leases.renew([passed], due_us)
        self.queue.wake_at(due_us)
        return passed

    def _held_by(self, consumer: Consumer, offset: int) -> Delivery:
        lease = self._leases.get(offset)
        if lease is None or lease.consumer is not consumer:
            raise Refused(
                f"offset {offset} of {self.queue.name!r} is not pending for consumer {consumer.name!r} in group "
                f"{self.name!r}: it was settled already, or its time ran out and it went to another"
            )
        return lease

    def leave(self, turn: Turn, consumer: Consumer, now_us: int) -> None:
        self.consumers.leave(consumer)
        self._selection.forget(consumer)
        for offset in consumer.held():
            consumer.release(offset)
            self._retry(turn, self._leases.end(offset), False, now_us)
        consumer.group = None

    def close(self) -> None:
        for delivery in self._leases:
            delivery.consumer.release(delivery.offset)
            delivery.consumer.group = None
        self._leases.clear()
        self._waiting.clear()
        super().close()

    def on_time(self, turn: Turn, now_us: int) -> None:
        ended = self._leases.ended(now_us)
        for lease in ended:
            lease.consumer.release(lease.offset)
            self._retry(turn, lease, False, now_us)
        self._waiting.end_delays(now_us)
        for consumer in {lease.consumer: None for lease in ended}:
            if consumer.overdue is not None:
                consumer.overdue()

    def next_due_us(self) -> int:
        dues = [due_us for due_us in (self._leases.next_end_us(), self._waiting.next_due_us) if due_us]
        return min(dues) if dues else 0

    # -- what the queue gives up -------------------------------------------------------------------------------------

    def drop(self, turn: Turn, offset: int) -> None:
        """The queue gave this message up: settle it as dead unless a consumer has it. It is then not ready any more."""
        if self._is_waiting(offset):
            turn.commit_for(self.queue).bury(self.queue.log.name, self.name, offset, offset + 1)
            self._given_up += 1
            self._forget(turn, offset)

    def purge(self, turn: Turn) -> None:
        """Settle everything that waits; what consumers hold stays with them. Takes a step for each gap, not message."""
        log = self.queue.log
        commit = turn.commit_for(self.queue)
        held = [(offset, offset + 1) for offset in sorted([delivery.offset for delivery in self._leases])]
        at = self.state.committed
        for start, stop in sorted([*self.state.settled, *held, (log.next_offset, log.next_offset)]):
            if at < start:
                self._given_up += start - at
                commit.bury(log.name, self.name, at, start)
                self.state.settle(at, start)
            at = max(at, stop)
        self._waiting.clear()
        self._picked.clear()
        self.state.pending.clear()
        self.state.cursor = log.next_offset
        turn.touch(self.queue)

    def head(self) -> int:
        """The oldest offset that waits for a consumer, delayed ones too, or the end of the log."""
        state = self.state
        fresh = min(state.settled.next_absent(max(state.cursor, state.committed)), self.queue.log.next_offset)
        while fresh < self.passed and fresh in self._leases:
            fresh = min(state.settled.next_absent(fresh + 1), self.queue.log.next_offset)
        low = self._waiting.lowest(self._is_waiting)
        return fresh if low == NONE else min(low, fresh)

    def on_truncated(self, turn: Turn, first: int) -> None:
        if self.state.committed >= first:
            return
        for delivery in [delivery for delivery in self._leases if delivery.offset < first]:
            self._leases.end(delivery.offset)
            delivery.consumer.release(delivery.offset)
        commit = turn.commit_for(self.queue)
        done = self._done
        commit.commit_offset(self.queue.log.name, self.name, first)
        self.state.apply(commit.steps[-1])
        self._given_up += self._done - done

    def _is_waiting(self, offset: int) -> bool:
        state = self.state
        return offset >= state.committed and offset not in self._leases and offset not in state.settled

    def _retry(self, turn: Turn, lease: Delivery, delayed: bool, now_us: int) -> None:
        due_us = next_attempt_us(self.queue.definition, lease.attempts, delayed, now_us)
        if due_us == DEAD:
            self._bury(turn, lease.offset, lease.message, lease.attempts, DELIVERY_LIMIT, now_us)
        else:
            self._wait_again(turn, lease, lease.attempts, due_us, now_us)

    def _wait_again(self, turn: Turn, lease: Delivery, attempts: int, due_us: int, now_us: int) -> None:
        offset, level = lease.offset, self._level(lease.message)
        commit = turn.commit_for(self.queue)
        store_claim(commit, lease)
        commit.requeue(self.queue.log.name, self.name, offset, offset + 1, due_us)
        self.state.pending[offset] = Pending(attempts, due_us, "")
        self._selection.returned(offset, lease.message)
        if due_us <= now_us:
            self._own_waiting().add(offset, level)
        else:
            self._own_waiting().delay(offset, due_us, level)
            self.queue.wake_at(due_us)

    def _bury(self, turn: Turn, offset: int, message: Message, attempts: int, reason: str, now_us: int) -> None:
        turn.commit_for(self.queue).bury(self.queue.log.name, self.name, offset, offset + 1)
        self._given_up += 1
        self._forget(turn, offset)
        self.queue.settled(message)
        self.queue.note_end(turn, self, offset, attempts, reason, now_us)
        self.queue.dead_letter(turn, message, self.name, offset, attempts, reason, now_us)

    def _settled(self, turn: Turn, offset: int, message: Message) -> None:
        self.queue.settled(message)
        turn.commit_for(self.queue).ack(self.queue.log.name, self.name, offset, offset + 1)
        self._forget(turn, offset)

    def _forget(self, turn: Turn, offset: int) -> None:
        if self.state.has_pending:
            self.state.pending.pop(offset, None)
        if self._notes:
            self._notes.pop(offset, None)
        self.state.settle(offset, offset + 1)
        turn.touch(self.queue)

    # -- coming back -------------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        """After a restart nobody holds anything: what was claimed or passed over is ready or delayed again."""
        state = self.state
        log = self.queue.log
        if state.committed < log.first_offset:
            state.apply(Transition(COMMITTED, log.name, self.name, log.first_offset))
            self._done_before = self._done
        state.cursor = min(max(state.cursor, state.committed), log.next_offset)
        passed: list[int] = []
        for start, stop in self._passed():
            if self._levels > 1:
                self._index(start, stop)
            else:
                passed += [offset for offset in range(start, stop) if not self._is_delayed(offset)]
        if passed:
            self._own_waiting().add_all(passed)
        for offset, entry in state.pending.items():
            if self._is_delayed(offset):
                level = self._level(self.queue.message(offset)) if self._levels > 1 else 0
                self._own_waiting().delay(offset, entry.due_us, level)
                self.queue.wake_at(entry.due_us)

    def reclaim(self, consumer: Consumer, now_us: int) -> list[Delivery]:
        """Have a consumer hold again what was claimed under its name before a restart; as the same attempt."""
        pending = self.state.pending
        due_us = now_us + (consumer.lease_us or self.queue.lease_us)
        held: list[Delivery] = []
        for offset in sorted([offset for offset, entry in pending.items() if entry.consumer == consumer.name]):
            message = self.queue.message(offset)
            if self._is_waiting(offset) and not 0 < message.expires_us <= now_us:
                attempts = pending.pop(offset).attempts
                self._picked[offset] = self._picked.get(offset, 0) + 1
                delivery = Delivery(self, consumer, offset, message, attempts, attempts > 1)
                delivery.is_claimed = True
                held.append(delivery)
        if held:
            self.passed = max(self.passed, held[-1].offset + 1)
            consumer.take([delivery.offset for delivery in held])
            consumer.group = self
            self._leases.give(held, due_us)
            self.queue.wake_at(due_us)
        return held

    def _is_delayed(self, offset: int) -> bool:
        entry = self.state.pending.get(offset)
        return entry is not None and not entry.consumer and entry.due_us > 0

    def _passed(self) -> Iterator[tuple[int, int]]:
        """The ranges of offsets below the cursor that are not settled."""
        at = self.state.committed
        for start, stop in [*self.state.settled, (self.state.cursor, self.state.cursor)]:
            if at < min(start, self.state.cursor):
                yield at, min(start, self.state.cursor)
            at = max(at, stop)
