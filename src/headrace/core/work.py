"""A work group: claims, settlements, retries. What comes next is in backlog.py, when a try is due in retry.py."""

from typing import TYPE_CHECKING, final

from headrace.core.backlog import next_messages, oldest_waiting, restore_backlog
from headrace.core.dead_letter import DELIVERY_LIMIT, REJECTED
from headrace.core.delivery import Consumer, Delivery
from headrace.core.given import Given, store_claim
from headrace.core.group import ACK, DEALT_AT_ONCE, NACK, REJECT, RELEASE, Found, Group, PendingEntry
from headrace.core.history import DONE
from headrace.core.leases import Leases
from headrace.core.retry import DEAD, next_attempt_us
from headrace.core.selection import Selection
from headrace.core.turn import Turn
from headrace.core.waiting import NOTHING, Waiting
from headrace.errors import Refused
from headrace.model import Message
from headrace.storage.api import Commit
from headrace.storage.group_state import COMMITTED, GroupState, Pending, Transition

if TYPE_CHECKING:
    from headrace.core.queue import Queue


@final
class WorkGroup(Group):
    """Competing consumers: each message is claimed by one, until it is settled or the claim runs out.

    In memory, `state.pending` has only what came back; what consumers hold is in the leases. When a claim ends is
    not kept over a restart, for then nobody holds anything.
    """

    def __init__(self, queue: "Queue", state: GroupState) -> None:
        super().__init__(queue, state, queue.definition.single_active)
        self.levels = queue.definition.max_priority + 1
        self.leases = Leases()
        self.waiting = NOTHING
        """What came back and, where priorities count, everything that was not delivered yet."""
        self.passed = 0
        """Nothing from here on was ever picked out of order."""
        self.unstored_from = -1
        """Where that begins of which storage does not know yet that it is settled: see given.py; -1 for nothing."""
        self.unstored_since_us = 0
        self._notes: dict[int, dict[str, object]] | None = None
        """What consumers noted on messages that they gave back."""
        self._selection = Selection(self)
        self._restore()

    @property
    def ready(self) -> int:
        state = self.state
        return self.queue.log.next_offset - state.committed - state.settled_count - len(self.leases)

    @property
    def is_drained(self) -> bool:
        if self.has_more():
            return False
        return self.only is not None or not self.consumers.selective

    @property
    def unsettled(self) -> int:
        return len(self.leases)

    def holder(self, offset: int) -> Consumer | None:
        lease = self.leases.get(offset)
        return lease.consumer if lease is not None else None

    def pending(self) -> list[PendingEntry]:
        entries = [PendingEntry(d.offset, d.consumer.name, d.attempts, d.due_us) for d in self.leases]
        for offset, entry in self.state.pending.items():
            entries.append(PendingEntry(offset, "", entry.attempts, 0 if entry.consumer else entry.due_us))
        return sorted(entries, key=lambda entry: entry.offset)

    def glance(self) -> int:
        queue, only = self.queue, self.only
        seen = self.state.glance() + self.passed + len(self.leases) + queue.lease_us + queue.cut_below
        seen += queue.log.next_offset
        return seen + only.holding + only.lease_us if only is not None else seen

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
        if not (self.waiting.is_empty and self.is_plain()):
            return False
        start = max(state.cursor, state.committed)
        room = min(min(consumer.room, self.max_pending - len(self.leases)), DEALT_AT_ONCE)  # of three: 0.1 us more
        if room <= 0 or start >= queue.log.next_offset:
            return True
        lone, stop = queue.log.lone(start), start + 1
        if lone is not None:  # 400 instructions less than by way of a list of messages
            if lone.expires_us or lone.not_before_us:
                return False
            deliveries = [Delivery(self, consumer, start, lone, 1, False)]
        else:
            deliveries, stop = [], start
            for message in queue.log.read(start, room):
                if message.expires_us or message.not_before_us:
                    return False
                deliveries.append(Delivery(self, consumer, stop, message, 1, False))
                stop += 1
        state.cursor = stop
        consumer.take_run(start, stop)
        self._count(stop - start, 0)
        due_us = now_us + (consumer.lease_us or queue.lease_us)
        self.leases.give(deliveries, due_us)
        if queue.given is not None:
            queue.given.add(deliveries)
        else:
            self.note_given(turn, deliveries)
        queue.wake_at(due_us)
        consumer.recipient.deliver(deliveries)
        return stop >= queue.log.next_offset

    def own_waiting(self) -> Waiting:
        """What waits, to be added to."""
        if self.waiting is NOTHING:
            self.waiting = Waiting(self.levels)
        return self.waiting

    def give(self, turn: Turn, consumer: Consumer, found: list[Found], now_us: int) -> None:
        """Deliver these to a consumer that picked them, in order of offset."""
        for offset, _ in found:
            if offset < self.state.cursor or offset in self.state.pending:
                self.own_waiting().pick(offset)
        consumer.take([offset for offset, _ in found])
        hand = self.claim(turn, consumer, found, now_us)
        if consumer.auto_ack:
            self.finish(turn, hand, now_us)
        consumer.recipient.deliver(hand)

    def has_more(self) -> bool:
        return self.state.cursor < self.queue.log.next_offset or self.waiting.has_ready

    def _find(self, turn: Turn, room: int, now_us: int) -> list[Found]:
        return next_messages(self, turn, room, now_us)

    def is_plain(self) -> bool:
        """Whether all that lies ahead is for whoever comes: 0.1 us a message less than asking so for each."""
        state = self.state
        if self.filter is not None or self.levels > 1 or not state.is_plain:
            return False
        return self.passed <= state.cursor

    def skip(self, turn: Turn, skipped: list[Found]) -> None:
        """Be done with what the filter does not let through: a step for each run, not for each message."""
        commit = turn.commit_for(self.queue)
        self._given_up += len(skipped)
        for offset, message in skipped:
            self.queue.settled(message)
            commit.ack_at(self.queue.log, self.name, offset, offset + 1)
            self.state.settle(offset, offset + 1)
        turn.touch(self.queue)

    def level(self, message: Message) -> int:
        return min(message.priority, self.levels - 1)

    def claim(self, turn: Turn, consumer: Consumer, share: list[Found], now_us: int) -> list[Delivery]:
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
        self.leases.give(deliveries, due_us)
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

    def finish(self, turn: Turn, deliveries: list[Delivery], now_us: int) -> None:
        for delivery in deliveries:
            self.finish_one(turn, delivery.offset, delivery.message, delivery.attempts, now_us)

    def finish_one(self, turn: Turn, offset: int, message: Message, attempts: int, now_us: int) -> None:
        """Be done with a message that nobody holds, as with one that was acknowledged."""
        if self.queue.has_history:
            self.queue.note_end(turn, self, offset, attempts, DONE, now_us)
        self._settled(turn, offset, message)

    def put_back(self, found: list[Found]) -> None:
        for offset, message in found:
            self.own_waiting().add(offset, self.level(message))

    def _take_back(self, turn: Turn, consumer: Consumer, deliveries: list[Delivery], now_us: int) -> None:
        if consumer.auto_ack:
            self.put_back([(delivery.offset, delivery.message) for delivery in deliveries])
        for delivery in deliveries:
            if self.leases.get(delivery.offset) is delivery:
                self.settle(turn, consumer, delivery.offset, RELEASE, now_us)

    # -- settling ----------------------------------------------------------------------------------------------------

    def settle(self, turn: Turn, consumer: Consumer, offset: int, outcome: int, now_us: int) -> None:
        lease = self.held_by(consumer, offset)
        self.leases.let_go(lease)
        consumer.release(offset)
        if outcome == ACK:
            self.finish_one(turn, offset, lease.message, lease.attempts, now_us)
        elif outcome == REJECT:
            self.bury(turn, offset, lease.message, lease.attempts, REJECTED, now_us)
        elif outcome == NACK:
            self._note(lease)
            self._retry(turn, lease, True, now_us)
        else:
            self._note(lease)
            self._wait_again(turn, lease, lease.attempts - 1, now_us, now_us)

    def acknowledge(self, turn: Turn, consumer: Consumer, deliveries: list[Delivery], now_us: int) -> None:
        """A step and a range for each run of neighbours: 0.2 us a message instead of 0.9 one by one."""
        ended = self.leases.end_all(deliveries, consumer)
        if not ended:
            return
        queue, state, committed = self.queue, self.state, self.state.committed
        offsets = [lease.offset for lease in ended]
        consumer.release_all(offsets)
        queue.settled_all(turn, self, ended, now_us)
        if state.has_pending:
            for offset in offsets:
                state.pending.pop(offset, None)
        if self._notes:
            for offset in offsets:
                self._notes.pop(offset, None)
        runs = _runs(offsets)
        for start, stop in runs:
            state.settle(start, stop)
        cut = queue.cut(turn, self)
        if cut and not state.settled_count and queue.given is not None:
            self._store_later(queue.given, committed, now_us)
            return
        start, stop = runs.pop()
        for before, behind in runs:
            turn.commit_for(queue).ack_at(queue.log, self.name, before, behind)
        turn.commit_for(queue).ack_at(queue.log, self.name, start, stop, cut)

    def acknowledge_one(self, turn: Turn, consumer: Consumer, delivery: Delivery, now_us: int) -> None:
        """The same for one, without looking for what is at hand: with a message in each of many queues all are such."""
        offset = delivery.offset
        if not delivery.is_held:
            if self.holder(offset) is consumer:  # it came back from a transaction that failed
                self.settle(turn, consumer, offset, ACK, now_us)
            return
        queue, committed = self.queue, self.state.committed
        self.leases.let_go(delivery)
        consumer.release(offset)
        if queue.has_history:
            queue.note_end(turn, self, offset, delivery.attempts, DONE, now_us)
        queue.settled(delivery.message)
        self._forget(offset)
        cut = queue.cut(turn, self)
        if cut > offset and queue.given is not None:
            self._store_later(queue.given, committed, now_us)
        else:
            turn.commit_for(queue).ack_at(queue.log, self.name, offset, offset + 1, cut)

    @property
    def unstored(self) -> int:
        """How many messages are settled, with none in between, of which storage does not know that yet."""
        return self.state.committed - self.unstored_from

    def _store_later(self, given: Given, committed: int, now_us: int) -> None:
        """Have it stored with other settlements that the group is done with all from there up to where it is now."""
        if self.unstored_from < 0:
            self.unstored_from = committed
            self.unstored_since_us = now_us
            given.add_settled(self)
        if given.has_many_settled:
            self.queue.log.let_go(self.queue.cut_below)

    def store_settled(self, commit: Commit) -> None:
        """Have a commit say so, unless the group is gone."""
        queue, start = self.queue, self.unstored_from
        if start >= 0:
            self.unstored_from = -1
            commit.ack_at(queue.log, self.name, start, self.state.committed, queue.cut_below)

    def _note(self, lease: Delivery) -> None:
        if lease.notes:
            self._notes = self._notes or {}
            self._notes[lease.offset] = lease.notes

    def renew(self, consumer: Consumer, offset: int, due_us: int) -> None:
        """Give a consumer until `due_us`. Raises Refused when it does not hold that offset."""
        self.leases.renew([self.held_by(consumer, offset)], due_us)
        self.queue.wake_at(due_us)

    def held_by(self, consumer: Consumer, offset: int) -> Delivery:
        """What a consumer holds. Raises Refused when it does not hold that offset."""
        lease = self.leases.get(offset)
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
            self._retry(turn, self.leases.end(offset), False, now_us)
        consumer.group = None

    def close(self) -> None:
        for delivery in self.leases:
            delivery.consumer.release(delivery.offset)
            delivery.consumer.group = None
        self.leases.clear()
        self.waiting.clear()
        self.unstored_from = -1
        super().close()

    def on_time(self, turn: Turn, now_us: int) -> None:
        ended = self.leases.ended(now_us)
        for lease in ended:
            lease.consumer.release(lease.offset)
            self._retry(turn, lease, False, now_us)
        self.waiting.end_delays(now_us)
        for consumer in {lease.consumer: None for lease in ended}:
            if consumer.overdue is not None:
                consumer.overdue()

    def next_due_us(self) -> int:
        dues = [due_us for due_us in (self.leases.next_end_us(), self.waiting.next_due_us) if due_us]
        return min(dues) if dues else 0

    # -- what the queue gives up -------------------------------------------------------------------------------------

    def drop(self, turn: Turn, offset: int) -> None:
        """The queue gave this message up: settle it as dead unless a consumer has it. It is then not ready any more."""
        if self.is_waiting(offset):
            turn.commit_for(self.queue).bury(self.queue.log.name, self.name, offset, offset + 1)
            self._given_up += 1
            self._forget(offset)
            turn.touch(self.queue)

    def purge(self, turn: Turn) -> None:
        """Settle everything that waits; what consumers hold stays with them. Takes a step for each gap, not message."""
        log = self.queue.log
        commit = turn.commit_for(self.queue)
        held = [(offset, offset + 1) for offset in sorted([delivery.offset for delivery in self.leases])]
        at = self.state.committed
        for start, stop in sorted([*self.state.settled, *held, (log.next_offset, log.next_offset)]):
            if at < start:
                self._given_up += start - at
                commit.bury(log.name, self.name, at, start)
                self.state.settle(at, start)
            at = max(at, stop)
        self.waiting.clear()
        self.state.pending.clear()
        self.state.cursor = log.next_offset
        turn.touch(self.queue)

    def head(self) -> int:
        """The oldest offset that waits for a consumer, delayed ones too, or the end of the log."""
        return oldest_waiting(self)

    def on_truncated(self, turn: Turn, first: int) -> None:
        if self.state.committed >= first:
            return
        for delivery in [delivery for delivery in self.leases if delivery.offset < first]:
            self.leases.end(delivery.offset)
            delivery.consumer.release(delivery.offset)
        commit = turn.commit_for(self.queue)
        done = self._done
        commit.commit_offset(self.queue.log.name, self.name, first)
        self.state.apply(commit.steps[-1])
        self._given_up += self._done - done

    def is_waiting(self, offset: int) -> bool:
        """Whether this message waits for a consumer, or for the end of a delay."""
        state = self.state
        return offset >= state.committed and offset not in self.leases and offset not in state.settled

    def _retry(self, turn: Turn, lease: Delivery, delayed: bool, now_us: int) -> None:
        due_us = next_attempt_us(self.queue.definition, lease.attempts, delayed, now_us)
        if due_us == DEAD:
            self.bury(turn, lease.offset, lease.message, lease.attempts, DELIVERY_LIMIT, now_us)
        else:
            self._wait_again(turn, lease, lease.attempts, due_us, now_us)

    def _wait_again(self, turn: Turn, lease: Delivery, attempts: int, due_us: int, now_us: int) -> None:
        offset, level = lease.offset, self.level(lease.message)
        commit = turn.commit_for(self.queue)
        store_claim(commit, lease)
        commit.requeue(self.queue.log.name, self.name, offset, offset + 1, due_us)
        self.state.pending[offset] = Pending(attempts, due_us, "")
        self._selection.returned(offset, lease.message)
        if due_us <= now_us:
            self.own_waiting().add(offset, level)
        else:
            self.own_waiting().delay(offset, due_us, level)
            self.queue.wake_at(due_us)

    def bury(self, turn: Turn, offset: int, message: Message, attempts: int, reason: str, now_us: int) -> None:
        """Give a message up that nobody holds: a dead letter, for this reason."""
        turn.commit_for(self.queue).bury(self.queue.log.name, self.name, offset, offset + 1)
        self._given_up += 1
        self._forget(offset)
        turn.touch(self.queue)
        self.queue.settled(message)
        self.queue.note_end(turn, self, offset, attempts, reason, now_us)
        self.queue.dead_letter(turn, message, self.name, offset, attempts, reason, now_us)

    def _settled(self, turn: Turn, offset: int, message: Message) -> None:
        queue = self.queue
        queue.settled(message)
        self._forget(offset)
        turn.commit_for(queue).ack_at(queue.log, self.name, offset, offset + 1, queue.cut(turn, self))

    def _forget(self, offset: int) -> None:
        if self.state.has_pending:
            self.state.pending.pop(offset, None)
        if self._notes:
            self._notes.pop(offset, None)
        self.state.settle(offset, offset + 1)

    def _restore(self) -> None:
        """Go on where the stored state says, within what there is."""
        state = self.state
        log = self.queue.log
        if state.committed < log.first_offset:
            state.apply(Transition(COMMITTED, log.name, self.name, log.first_offset))
            self._done_before = self._done
        state.cursor = min(max(state.cursor, state.committed), log.next_offset)
        restore_backlog(self)


def _runs(offsets: list[int]) -> list[tuple[int, int]]:
    """Neighbours as the first of them and the one behind the last."""
    runs: list[tuple[int, int]] = []
    start = stop = offsets[0]
    for offset in offsets:
        if offset != stop:
            runs.append((start, stop))
            start = offset
        stop = offset + 1
    runs.append((start, stop))
    return runs
