"""A work group: claims, settlements, retries, and messages taken on request. What comes next is in backlog.py.

Whoever asks need not be a member of the group, and has the room that it says.

A message that a member let time out or gave back goes to a member that did not fail it. While none of these has room,
it waits for one, for a time that backlog.py says. In memory only: after a restart all members are new.
"""

import heapq
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, final

from headrace.core.batch import Batch
from headrace.core.queue.backlog import (
    DEAD,
    NOTHING,
    Selection,
    Waiting,
    admit,
    delayed_until,
    next_attempt_us,
    next_messages,
    oldest_waiting,
    patience_us,
    restore_backlog,
)
from headrace.core.queue.dispatch import Consumer, Delivery, RoundRobin
from headrace.core.queue.group import ACK, DEALT_AT_ONCE, NACK, REJECT, RELEASE, Found, Group, PendingEntry, most_bytes
from headrace.core.queue.history import DELIVERY_LIMIT, DONE, REJECTED
from headrace.core.queue.leases import Leases, UnstoredClaims, store_claim
from headrace.errors import AccessRefused, Refused
from headrace.model import Message
from headrace.storage.api import Commit
from headrace.storage.group_state import COMMITTED, GroupState, Pending, Transition

if TYPE_CHECKING:
    from headrace.core.queue.queue import Queue

_OFFERED_AT_ONCE: Final = 64
"""How many messages that are kept are offered in one turn, and for how many sets of members."""
_MOST_REMEMBERED: Final = 8
"""How many members are remembered of a message: one of them may have it again after so many others failed it too."""


@final
class Failure:
    """One message that failed."""

    __slots__ = ("consumers", "patience_us", "until_us")

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []
        """The members that failed it, the last one last."""
        self.patience_us = 0
        """How long it waits for another member."""
        self.until_us = 0
        """The end of that wait; 0 while a member has the message."""


@final
class Failures:
    """The messages of a work group that failed and are not settled."""

    __slots__ = ("_by_offset", "_kept")

    def __init__(self) -> None:
        self._by_offset: dict[int, Failure] = {}
        self._kept: dict[tuple[Consumer, ...], list[int]] = {}
        """Heaps of what is kept, by the members that failed it; those that are not kept any more are passed over."""

    def get(self, offset: int) -> Failure | None:
        return self._by_offset.get(offset)

    def note(self, members: RoundRobin, consumer: Consumer, offset: int, patience_us: int) -> None:
        """This member failed that message. Once all of them did, only the last one counts."""
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

    def in_line(self, offset: int, due_us: int) -> None:
        """This message is in line again, from `due_us` on."""
        failure = self._by_offset.get(offset)
        if failure is not None:
            failure.until_us = due_us + failure.patience_us

    def keep(self, waiting: Waiting, failure: Failure, offset: int, until_us: int, level: int) -> None:
        """Have a message wait for members that did not fail it."""
        waiting.keep(offset, until_us, level)
        heap = self._kept.setdefault(tuple(failure.consumers), [])
        heapq.heappush(heap, offset)
        if len(heap) > 2 * waiting.kept_count + _OFFERED_AT_ONCE:
            heap[:] = sorted({each for each in heap if waiting.is_kept(each)})

    def offer(self, group: "WorkGroup", now_us: int) -> bool:
        """Have ready what may go to somebody now; returns whether there may be more."""
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
                self._kept[failed] = heap  # behind the others, whose turn it is next time
        return offered >= _OFFERED_AT_ONCE

    def forget(self, offsets: list[int]) -> bool:
        """These are done with; returns whether nothing is left."""
        for offset in offsets:
            self._by_offset.pop(offset, None)
        return not self._by_offset

    def below(self, offset: int) -> list[int]:
        """The offsets below this one."""
        return [each for each in self._by_offset if each < offset]

    def kept_until(self, group: "WorkGroup", failure: Failure, offset: int, now_us: int) -> int:
        """Until when a message is kept for members that did not fail it; 0 when it is for all members."""
        took_us = -1
        for member in group.consumers.members:
            if member in failure.consumers:
                continue
            if member.selector is None or group.queue.fits(member.selector, group.queue.message(offset)):
                if failure.until_us > now_us:
                    return failure.until_us
                took_us = max(took_us, member.took_us)
        # As long as others take what failed, its turn comes.
        return took_us + failure.patience_us if took_us + failure.patience_us > now_us else 0

    def _has_taker(self, group: "WorkGroup", failed: list[Consumer], offset: int, now_us: int) -> bool:
        failure = self._by_offset.get(offset)
        if failure is None or group.consumers.has_room_but(failed):
            return True
        return not self.kept_until(group, failure, offset, now_us)

    def is_kept_from(self, group: "WorkGroup", consumer: Consumer, offset: int, now_us: int) -> bool:
        """Whether this member may not pick that message, as others come first."""
        failure = self._by_offset.get(offset)
        if failure is None or consumer not in failure.consumers:
            return False
        until_us = self.kept_until(group, failure, offset, now_us)
        if until_us:
            group.queue.wake_at(until_us)
        return until_us > 0


def take_one(group: "WorkGroup", batch: Batch, consumer: Consumer, now_us: int) -> Delivery | None:
    """One message for a consumer that asks for one, whatever its credit.

    Raises AccessRefused when another consumer has the queue for itself.
    """
    _check_exclusive(group, consumer)
    if group.is_paused:
        return None
    while True:
        found = next_messages(group, batch, 1, now_us)
        if found:
            consumer.take([found[0][0]])
            given = group.claim(batch, consumer, found, now_us)
            if consumer.auto_ack:
                group.finish(batch, given, now_us)
            return given[0]
        if not _has_more(group, 1):
            return None


def take_many(
    group: "WorkGroup", batch: Batch, consumer: Consumer, most: int, before: int, now_us: int
) -> list[Delivery]:
    """Up to `most` messages from below the offset `before` for a consumer that asks for them, none when none waits.

    Raises AccessRefused when another consumer has the queue for itself.
    """
    _check_exclusive(group, consumer)
    most = min(most, group.max_pending - group.unsettled)
    while most > 0 and not group.is_paused:
        found = next_messages(group, batch, most, now_us)
        beyond = [each for each in found if each[0] >= before]
        if beyond:
            group.put_back(beyond)
            found = [each for each in found if each[0] < before]
        if found:
            consumer.take([offset for offset, _ in found])
            return group.claim(batch, consumer, found, now_us)
        if beyond or not _has_more(group, most):
            break
    return []


def _has_more(group: "WorkGroup", most: int) -> bool:
    """Whether looking on may find more messages: at last, those that are kept for other members."""
    return group.has_more() or group.waiting.offer_some(most)


def take_these(group: "WorkGroup", batch: Batch, consumer: Consumer, offsets: Sequence[int], now_us: int) -> list[int]:
    """Have a consumer hold those of these messages, in order of offset, that wait; returns which.

    Raises AccessRefused when another consumer has the queue for itself.
    """
    _check_exclusive(group, consumer)
    found: list[Found] = []
    for offset in offsets:
        if offset < group.queue.log.next_offset and group.is_waiting(offset):
            message = group.queue.message(offset)
            is_due = max(message.not_before_us, delayed_until(group, offset)) <= now_us
            if is_due and admit(group, batch, offset, message, now_us):
                found.append((offset, message))
    if found:
        group.passed = max(group.passed, found[-1][0] + 1)
        group.give(batch, consumer, found, now_us)
    return [offset for offset, _ in found]


def renew_these(group: "WorkGroup", consumer: Consumer, offsets: Sequence[int], due_us: int) -> list[int]:
    """Give a consumer until `due_us` for those of these messages that it holds; returns which."""
    leases = group.leases
    held = [lease for offset in offsets if (lease := leases.get(offset)) and lease.consumer is consumer]
    if held:
        leases.renew(held, due_us)
        group.queue.wake_at(due_us)
    return [lease.offset for lease in held]


def finish_waiting(group: "WorkGroup", batch: Batch, offset: int, now_us: int) -> bool:
    """Be done with a message that waits in line and that somebody, whose claim ran out, says is done."""
    queue = group.queue
    if offset >= queue.log.next_offset or not group.is_waiting(offset):
        return False
    entry = group.state.pending.get(offset)
    attempts = entry.attempts if entry is not None else 0
    group.finish_one(batch, offset, queue.message(offset), attempts, now_us)
    return True


def pass_on(group: "WorkGroup", holder: Consumer, offset: int, to: Consumer, due_us: int) -> Delivery:
    """Let another consumer hold this until `due_us`. Raises Refused when the one said to hold it does not."""
    held = group.held_by(holder, offset)
    holder.release(offset)
    to.take([offset])
    to.allowance += 1  # it is passed on, not delivered
    passed = Delivery(group, to, offset, held.message, held.attempts, held.redelivered)
    passed.is_claimed = held.is_claimed
    passed.notes = held.notes
    group.leases.renew([passed], due_us)
    group.queue.wake_at(due_us)
    return passed


def reclaim(group: "WorkGroup", consumer: Consumer, now_us: int) -> list[Delivery]:
    """Have a consumer hold again what was claimed under its name before a restart; as the same attempt."""
    queue, pending = group.queue, group.state.pending
    due_us = now_us + (consumer.lease_us or queue.lease_us)
    held: list[Delivery] = []
    for offset in sorted([offset for offset, entry in pending.items() if entry.consumer == consumer.name]):
        message = queue.message(offset)
        if group.is_waiting(offset) and not queue.is_expired(message, now_us):
            attempts = pending.pop(offset).attempts
            group.own_waiting().pick(offset)
            delivery = Delivery(group, consumer, offset, message, attempts, attempts > 1)
            delivery.is_claimed = True
            held.append(delivery)
    if held:
        group.passed = max(group.passed, held[-1].offset + 1)
        consumer.take([delivery.offset for delivery in held])
        consumer.group = group
        group.leases.give(held, due_us)
        queue.wake_at(due_us)
    return held


def _check_exclusive(group: "WorkGroup", consumer: Consumer) -> None:
    if group.consumers.exclusive and consumer.turns is not group.consumers:
        raise AccessRefused(f"queue {group.queue.name!r} is in exclusive use by a consumer")


_ENDED_AT_ONCE: Final = 500
"""How many claims that ran out are seen to in one turn."""


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
        """Where that begins of which storage does not know yet that it is settled: see leases.py; -1 for nothing."""
        self.unstored_since_us = 0
        self.returning = 0
        """How many times much is on its way back in line: what is new waits for that, as it is behind it."""
        self._notes: dict[int, dict[str, object]] | None = None
        """What consumers noted on messages that they gave back."""
        self.failures: Failures | None = None
        """Which members failed which messages, where there is a choice of members."""
        self._selection = Selection(self)
        self._restore()

    @property
    def ready(self) -> int:
        state = self.state
        return self.queue.log.next_offset - state.committed - state.settled_count - len(self.leases)

    @property
    def lag(self) -> int:
        state = self.state
        return self.queue.log.next_offset - state.committed - state.settled_count

    @property
    def delayed(self) -> int:
        return self.waiting.retried + self.queue.scheduled

    @property
    def is_drained(self) -> bool:
        if self.has_more() or self.waiting.has_kept:
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
        seen = self.passed + len(self.leases) + queue.lease_us + queue.cut_below
        seen += queue.log.next_offset
        return seen + only.holding + only.lease_us if only is not None else seen

    # -- delivering --------------------------------------------------------------------------------------------------

    def pump(self, batch: Batch, now_us: int) -> None:
        if self._serve(batch, now_us):
            return
        if self.consumers.selective:
            self._selection.pump(batch, now_us)
        if self.failures is not None and self.waiting.has_kept and self.failures.offer(self, now_us):
            self.queue.pump_soon()
        super().pump(batch, now_us)

    def _serve(self, batch: Batch, now_us: int) -> bool:
        """Hand what is new to the only consumer; returns whether there is nothing more to do.

        False, and nothing done, where it is not as simple as that. With a message in each of many queues this is most
        of what there is to do for each.
        """
        consumer, queue, state = self.only, self.queue, self.state
        if consumer is None or consumer.auto_ack or self.is_paused or queue.has_history:
            return False
        if self.returning or not (self.waiting.is_empty and self.is_plain()):
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
            for message in queue.log.read(start, room, most_bytes(queue.log)):
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
            self.note_given(batch, deliveries)
        queue.wake_at(due_us)
        consumer.recipient.deliver(deliveries)
        return stop >= queue.log.next_offset

    def _deal(self, batch: Batch, found: list[Found], now_us: int) -> None:
        if self.failures is not None:
            found = self._deal_failed(batch, self.failures, found, now_us)
        if found:
            super()._deal(batch, found, now_us)

    def _deal_failed(self, batch: Batch, failures: Failures, found: list[Found], now_us: int) -> list[Found]:
        """Hand what failed to members that did not fail it, or keep it for them; returns what is for all members."""
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
                failures.keep(self.own_waiting(), failure, offset, until_us, self.level(message))
                self.queue.wake_at(until_us)
            else:
                rest.append((offset, message))
        self._hand_out(batch, shares, now_us)
        return rest

    def note_failure(self, consumer: Consumer, offset: int, wait_us: int) -> None:
        """A member did not get a message done: it is for another member, as long as there is one that takes it."""
        if len(self.consumers) < 2 or self.consumers.is_single or consumer.turns is not self.consumers:
            return
        if self.failures is None:
            self.failures = Failures()
        self.failures.note(self.consumers, consumer, offset, wait_us)

    def _hear(self, consumer: Consumer) -> None:
        """A silent member settles something, or wants to, and so may have more."""
        self.consumers.trust(consumer)
        self.queue.pump_soon()

    def own_waiting(self) -> Waiting:
        """What waits, to be added to."""
        if self.waiting is NOTHING:
            self.waiting = Waiting(self.levels)
        return self.waiting

    def give(self, batch: Batch, consumer: Consumer, found: list[Found], now_us: int) -> None:
        """Deliver these to a consumer that picked them, in order of offset."""
        for offset, _ in found:
            if offset < self.state.cursor or offset in self.state.pending:
                self.own_waiting().pick(offset)
                if self.failures is not None and self.failures.get(offset) is not None:
                    consumer.took_us = now_us
        consumer.take([offset for offset, _ in found])
        hand = self.claim(batch, consumer, found, now_us)
        if consumer.auto_ack:
            self.finish(batch, hand, now_us)
        consumer.recipient.deliver(hand)

    def has_more(self) -> bool:
        return self.state.cursor < self.queue.log.next_offset or self.waiting.has_ready

    def _find(self, batch: Batch, room: int, now_us: int) -> list[Found]:
        return next_messages(self, batch, room, now_us, self.returning == 0)

    def is_plain(self) -> bool:
        """Whether all that lies ahead is for whoever comes: 0.1 us a message less than asking so for each."""
        state = self.state
        if self.filter is not None or self.levels > 1 or not state.is_plain:
            return False
        return self.passed <= state.cursor

    def skip(self, batch: Batch, skipped: list[Found]) -> None:
        """Be done with what the filter does not let through: a step for each run, not for each message."""
        commit = batch.commit_for(self.queue)
        self._given_up += len(skipped)
        for offset, message in skipped:
            self.queue.settled(message)
            commit.ack_at(self.queue.log, self.name, offset, offset + 1)
            self.state.settle(offset, offset + 1)
        batch.touch(self.queue)

    def level(self, message: Message) -> int:
        return min(message.priority, self.levels - 1)

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
        if consumer.auto_ack:
            return deliveries
        due_us = now_us + (consumer.lease_us or self.queue.lease_us)
        if pending:
            for offset, _ in share:
                pending.pop(offset, None)
        self.leases.give(deliveries, due_us)
        self.note_given(batch, deliveries)
        self.queue.wake_at(due_us)
        return deliveries

    def note_given(self, batch: Batch, deliveries: list[Delivery]) -> None:
        """Have it stored that these are with a consumer: at once, or if they are not settled soon."""
        given = self.queue.given
        if given is not None and not self.queue.has_history:
            given.add(deliveries)
            return
        commit = batch.commit_for(self.queue)
        for delivery in deliveries:
            store_claim(commit, delivery)

    def finish(self, batch: Batch, deliveries: list[Delivery], now_us: int) -> None:
        for delivery in deliveries:
            self.finish_one(batch, delivery.offset, delivery.message, delivery.attempts, now_us)

    def finish_one(self, batch: Batch, offset: int, message: Message, attempts: int, now_us: int) -> None:
        """Be done with a message that nobody holds, as with one that was acknowledged."""
        if self.queue.has_history:
            self.queue.note_end(batch, self, offset, attempts, DONE, now_us)
        self._settled(batch, offset, message)

    def put_back(self, found: list[Found]) -> None:
        for offset, message in found:
            self.own_waiting().add(offset, self.level(message))

    def _take_back(self, batch: Batch, consumer: Consumer, deliveries: list[Delivery], now_us: int) -> None:
        if consumer.auto_ack:
            self.put_back([(delivery.offset, delivery.message) for delivery in deliveries])
        for delivery in deliveries:
            if self.leases.get(delivery.offset) is delivery:
                self.settle(batch, consumer, delivery.offset, RELEASE, now_us)

    # -- settling ----------------------------------------------------------------------------------------------------

    def settle(self, batch: Batch, consumer: Consumer, offset: int, outcome: int, now_us: int) -> None:
        lease = self.held_by(consumer, offset)
        self.leases.let_go(lease)
        consumer.release(offset)
        if outcome == ACK:
            self.finish_one(batch, offset, lease.message, lease.attempts, now_us)
        elif outcome == REJECT:
            self.bury(batch, offset, lease.message, lease.attempts, REJECTED, now_us)
        elif outcome == NACK:
            self._note(lease)
            self.note_failure(consumer, offset, patience_us(lease.attempts, self.queue.lease_us, False))
            self._retry(batch, lease, True, now_us)
        else:
            self._note(lease)
            self.note_failure(consumer, offset, 0)
            self._wait_again(batch, lease, lease.attempts - 1, now_us, now_us)

    def acknowledge(self, batch: Batch, consumer: Consumer, deliveries: list[Delivery], now_us: int) -> None:
        """A step and a range for each run of neighbours: 0.2 us a message instead of 0.9 one by one."""
        ended = self.leases.end_all(deliveries, consumer)
        if consumer.is_silent:
            self._hear(consumer)
        if not ended:
            return
        queue, state, committed = self.queue, self.state, self.state.committed
        offsets = [lease.offset for lease in ended]
        consumer.release_all(offsets)
        queue.settled_all(batch, self, ended, now_us)
        if state.has_pending:
            for offset in offsets:
                state.pending.pop(offset, None)
        if self._notes:
            for offset in offsets:
                self._notes.pop(offset, None)
        if self.failures is not None:
            self._forget_failures(offsets)
        runs = _runs(offsets)
        for start, stop in runs:
            state.settle(start, stop)
        cut = queue.cut(batch, self)
        if cut and not state.settled_count and queue.given is not None:
            self._store_later(queue.given, committed, now_us)
            return
        start, stop = runs.pop()
        for before, behind in runs:
            batch.commit_for(queue).ack_at(queue.log, self.name, before, behind)
        batch.commit_for(queue).ack_at(queue.log, self.name, start, stop, cut)

    def acknowledge_one(self, batch: Batch, consumer: Consumer, delivery: Delivery, now_us: int) -> None:
        """The same for one, without looking for what is at hand: with a message in each of many queues all are such."""
        offset = delivery.offset
        if consumer.is_silent:
            self._hear(consumer)
        if not delivery.is_held:
            if self.holder(offset) is consumer:  # it came back from a transaction that failed
                self.settle(batch, consumer, offset, ACK, now_us)
            return
        queue, committed = self.queue, self.state.committed
        self.leases.let_go(delivery)
        consumer.release(offset)
        if queue.has_history:
            queue.note_end(batch, self, offset, delivery.attempts, DONE, now_us)
        queue.settled(delivery.message)
        self._forget(offset)
        cut = queue.cut(batch, self)
        if cut > offset and queue.given is not None:
            self._store_later(queue.given, committed, now_us)
        else:
            batch.commit_for(queue).ack_at(queue.log, self.name, offset, offset + 1, cut)

    @property
    def unstored(self) -> int:
        """How many messages are settled, with none in between, of which storage does not know that yet."""
        return self.state.committed - self.unstored_from

    def _store_later(self, given: UnstoredClaims, committed: int, now_us: int) -> None:
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
        """What a consumer that asks for it holds. Raises Refused when it does not hold that offset."""
        if consumer.is_silent:
            self._hear(consumer)
        lease = self.leases.get(offset)
        if lease is None or lease.consumer is not consumer:
            raise Refused(
                f"offset {offset} of {self.queue.name!r} is not pending for consumer {consumer.name!r} in group "
                f"{self.name!r}: it was settled already, or its time ran out and it went to another"
            )
        return lease

    def leave(self, batch: Batch, consumer: Consumer, now_us: int) -> None:
        self.consumers.leave(consumer)
        self._selection.forget(consumer)
        self.give_back(batch, consumer, consumer.held(), now_us)
        consumer.group = None

    def give_back(self, batch: Batch, consumer: Consumer, offsets: list[int], now_us: int) -> None:
        """Have some of what a member holds go back in line; what it does not hold any more stays where it is."""
        for offset in offsets:
            if consumer.holds(offset):
                consumer.release(offset)
                self._retry(batch, self.leases.end(offset), False, now_us)

    def close(self) -> None:
        for delivery in self.leases:
            delivery.consumer.release(delivery.offset)
            delivery.consumer.group = None
        self.leases.clear()
        self.waiting.clear()
        self.unstored_from = -1
        super().close()

    def on_time(self, batch: Batch, now_us: int) -> bool:
        ended = self.leases.ended(now_us, _ENDED_AT_ONCE)
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
        dues = [due_us for due_us in (self.leases.next_end_us(), self.waiting.next_due_us) if due_us]
        return min(dues) if dues else 0

    # -- what the queue gives up -------------------------------------------------------------------------------------

    def drop(self, batch: Batch, offset: int) -> None:
        """The queue gave this message up: settle it as dead unless a consumer has it. It is then not ready any more."""
        if self.is_waiting(offset):
            batch.commit_for(self.queue).bury(self.queue.log.name, self.name, offset, offset + 1)
            self._given_up += 1
            self._forget(offset)
            self.waiting.forget(offset)
            batch.touch(self.queue)

    def purge(self, batch: Batch) -> None:
        """Settle everything that waits; what consumers hold stays with them. Takes a step for each gap, not message."""
        log = self.queue.log
        commit = batch.commit_for(self.queue)
        held = [(offset, offset + 1) for offset in sorted([delivery.offset for delivery in self.leases])]
        at = self.state.committed
        for start, stop in sorted([*self.state.settled, *held, (log.next_offset, log.next_offset)]):
            if at < start:
                self._given_up += start - at
                commit.bury(log.name, self.name, at, start)
                self.state.settle(at, start)
            at = max(at, stop)
        self.waiting.clear()
        self._forget_failures([offset for offset in self.state.pending if offset not in self.leases])
        self.state.pending.clear()
        self.state.cursor = log.next_offset
        batch.touch(self.queue)

    def head(self) -> int:
        """The oldest offset that waits for a consumer, delayed ones too, or the end of the log."""
        return oldest_waiting(self)

    def on_truncated(self, batch: Batch, first: int) -> None:
        if self.state.committed >= first:
            return
        for delivery in [delivery for delivery in self.leases if delivery.offset < first]:
            self.leases.end(delivery.offset)
            delivery.consumer.release(delivery.offset)
        if self.failures is not None:
            self._forget_failures(self.failures.below(first))
        commit = batch.commit_for(self.queue)
        done = self._done
        commit.commit_offset(self.queue.log.name, self.name, first)
        self.state.apply(commit.steps[-1])
        self._given_up += self._done - done

    def is_waiting(self, offset: int) -> bool:
        """Whether this message waits for a consumer, or for the end of a delay."""
        state = self.state
        return offset >= state.committed and offset not in self.leases and offset not in state.settled

    def _retry(self, batch: Batch, lease: Delivery, delayed: bool, now_us: int) -> None:
        due_us = next_attempt_us(self.queue.definition, lease.attempts, delayed, now_us)
        if due_us == DEAD:
            self.bury(batch, lease.offset, lease.message, lease.attempts, DELIVERY_LIMIT, now_us)
        else:
            self._wait_again(batch, lease, lease.attempts, due_us, now_us)

    def _wait_again(self, batch: Batch, lease: Delivery, attempts: int, due_us: int, now_us: int) -> None:
        offset, level = lease.offset, self.level(lease.message)
        commit = batch.commit_for(self.queue)
        store_claim(commit, lease)
        commit.requeue(self.queue.log.name, self.name, offset, offset + 1, due_us)
        self.state.pending[offset] = Pending(attempts, due_us, "")
        if self.failures is not None:
            self.failures.in_line(offset, due_us)
        self._selection.returned(offset, lease.message)
        if due_us <= now_us:
            self.own_waiting().add(offset, level)
        else:
            self.own_waiting().delay(offset, due_us, level, is_retried=True)
            self.queue.wake_at(due_us)

    def bury(self, batch: Batch, offset: int, message: Message, attempts: int, reason: str, now_us: int) -> None:
        """Give a message up that nobody holds: a dead letter, for this reason."""
        batch.commit_for(self.queue).bury(self.queue.log.name, self.name, offset, offset + 1)
        self._given_up += 1
        self._forget(offset)
        batch.touch(self.queue)
        self.queue.settled(message)
        self.queue.note_end(batch, self, offset, attempts, reason, now_us)
        self.queue.dead_letter(batch, message, self.name, offset, attempts, reason, now_us)

    def _settled(self, batch: Batch, offset: int, message: Message) -> None:
        queue = self.queue
        queue.settled(message)
        self._forget(offset)
        batch.commit_for(queue).ack_at(queue.log, self.name, offset, offset + 1, queue.cut(batch, self))

    def _forget(self, offset: int) -> None:
        if self.state.has_pending:
            self.state.pending.pop(offset, None)
        if self._notes:
            self._notes.pop(offset, None)
        if self.failures is not None:
            self._forget_failures([offset])
        self.state.settle(offset, offset + 1)

    def _forget_failures(self, offsets: list[int]) -> None:
        if self.failures is not None and self.failures.forget(offsets):
            self.failures = None
            self.waiting.offer_some(self.waiting.kept_count)  # settled while they were kept

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
