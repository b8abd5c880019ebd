"""Leases of claimed messages, and claims and settlements that are not yet stored. No retries: see work.py.

A claim is stored so that it counts as an attempt if the broker dies. Most messages are acknowledged before that could
matter, and their claim need not be stored at all: with a message in each of ten thousand queues, and consumers that
are 4,000 messages behind, that was a third of the cost of a message.

A settlement is stored so that the message does not come back, and nobody waits for that. With a message in each of many
queues, a step for each of them would cost as much as the message: it waits until one step covers several.
"""

import heapq
from typing import TYPE_CHECKING, Final, final

from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.storage.api import Commit

if TYPE_CHECKING:
    from headrace.core.queue.work import WorkGroup

STORED_AFTER_US: Final = 400_000
"""Least age of a delivery whose claim is stored along with something else. It is at most twice as old, and so durable
within a second, as settlements are. Where nothing else is to be stored, a claim does not wait."""
_FEW_GROUPS: Final = 256
"""Up to this many groups, all settlements are stored with the next commit."""
_WORTH_A_STEP: Final = 8
"""With more groups, so many settled messages of one group wait no longer. Fewer wait for STORED_AFTER_US."""
_CLAIMED_AT_ONCE: Final = 1000
"""Most claims in one commit. The next commits, which follow at once, have the others."""
_SWEPT_AFTER: Final = 256
"""From this many claims on, settled ones are dropped, as they would keep their messages in memory."""


@final
class UnstoredClaims:
    """Recent claims and settlements in durable queues that storage does not have yet."""

    __slots__ = ("_fresh", "_older", "_settled", "_since_us", "_swept_after", "has_overdue")

    def __init__(self) -> None:
        self._older: list[Delivery] = []
        self._fresh: list[Delivery] = []
        """Claims since `_since_us`."""
        self.has_overdue = False
        """True if the last commit had no room for all overdue claims."""
        self._since_us = 0
        self._swept_after = _SWEPT_AFTER
        self._settled: list[WorkGroup] = []
        """Groups with settlements that are not stored, the oldest first."""

    @property
    def is_empty(self) -> bool:
        return not (self._fresh or self._older or self._settled)

    def add(self, deliveries: list[Delivery]) -> None:
        """Note new claims."""
        self._fresh += deliveries
        if len(self._fresh) > self._swept_after:
            self._fresh = [delivery for delivery in self._fresh if delivery.is_held]
            self._swept_after = max(_SWEPT_AFTER, 2 * len(self._fresh))

    @property
    def has_many_settled(self) -> bool:
        """True if so many groups have settlements that storing all of them may take a while."""
        return len(self._settled) > _FEW_GROUPS

    def add_settled(self, group: "WorkGroup") -> None:
        """Note a group with settlements that is not in here yet."""
        self._settled.append(group)

    def store(self, commit: Commit, now_us: int) -> bool:
        """Add claims that are old enough and still held to a commit, and settlements that are worth a step.

        Returns whether settlements are left.
        """
        if self.has_overdue:
            self._store_older(commit)
        elif not _is_fresh(self._since_us, now_us):
            self._store_older(commit)
            self._since_us = now_us
        if len(self._settled) <= _FEW_GROUPS:
            if self._settled:
                self.store_settled(commit)
            return False
        count = 0
        for group in self._settled:
            if group.unstored < _WORTH_A_STEP and _is_fresh(group.unstored_since_us, now_us):
                break
            count += 1
        self._store_settled(commit, count)
        return len(self._settled) > 0

    def store_all(self, commit: Commit) -> None:
        """Add all claims, as far as they fit, and all settlements to a commit."""
        self._store_older(commit)
        if not self.has_overdue:
            self._store_older(commit)
        self.store_settled(commit)

    def store_settled(self, commit: Commit) -> None:
        """Add all settlements to a commit."""
        self._store_settled(commit, len(self._settled))

    def _store_settled(self, commit: Commit, count: int) -> None:
        for group in self._settled[:count]:
            group.store_settled(commit)
        del self._settled[:count]

    def _store_older(self, commit: Commit) -> None:
        older = self._older
        self.has_overdue = len(older) > _CLAIMED_AT_ONCE
        for delivery in older[-_CLAIMED_AT_ONCE:] if self.has_overdue else older:
            if delivery.is_held:
                store_claim(commit, delivery)
        if self.has_overdue:
            del older[-_CLAIMED_AT_ONCE:]
        else:
            self._older, self._fresh = self._fresh, []


def _is_fresh(since_us: int, now_us: int) -> bool:
    """Return whether a note of that time may wait; not if the clock was set back since."""
    return 0 <= now_us - since_us < STORED_AFTER_US


def store_claim(commit: Commit, delivery: Delivery) -> None:
    """Add the claim of a delivery to a commit, unless storage has it."""
    if not delivery.is_claimed:
        delivery.is_claimed = True
        group, offset = delivery.group, delivery.offset
        commit.claim(group.queue.log.name, group.name, offset, offset + 1, delivery.consumer.name, delivery.due_us)


_SLACK: Final = 64


@final
class Leases:
    """The claimed messages of a group by offset, and by the end of their leases.

    Leases usually end in the order in which they were given, and the dictionary has that order. Once a lease ends
    before an earlier one, a heap of ends is kept besides, until nothing is held. Ends of settled claims are swept out
    of the heap before they outnumber the others.
    """

    __slots__ = ("_ends", "_given", "_is_ordered", "_last_us", "_noted", "_numbers", "held")

    def __init__(self) -> None:
        self.held: dict[int, Delivery] = {}
        """The claimed messages by offset. Others only read it."""
        self._given = 0
        """Number of leases given since nothing was held."""
        self._is_ordered = True
        """True if the deliveries are in the order of their ends."""
        self._last_us = 0
        """The end of the last lease given."""
        self._ends: list[tuple[int, int, list[int]]] = []
        """A heap of (end, number, offsets). An offset counts only while its lease ends at that very time."""
        self._numbers = 0
        self._noted = 0
        """Number of offsets in `_ends`."""

    def give(self, deliveries: list[Delivery], due_us: int) -> None:
        """Lease messages that nobody holds, until `due_us`."""
        held = self.held
        if self._is_ordered and due_us < self._last_us and held:
            self._is_ordered = False
            self._sweep()
        self._last_us = due_us
        self._given += len(deliveries)
        for delivery in deliveries:
            delivery.due_us = due_us
            delivery.is_held = True
            held[delivery.offset] = delivery
        if not self._is_ordered:
            self._note(due_us, [delivery.offset for delivery in deliveries])
            if self._noted > 2 * len(held) + _SLACK:
                self._sweep()

    def renew(self, deliveries: list[Delivery], due_us: int) -> None:
        """Replace the leases of the same messages by these, until `due_us`."""
        for delivery in deliveries:
            self.held.pop(delivery.offset).is_held = False
        self.give(deliveries, due_us)

    def end(self, lease: Delivery) -> None:
        """End one lease."""
        lease.is_held = False
        held = self.held
        del held[lease.offset]
        if not held:
            self._reset()

    def end_of(self, consumer: Consumer, offset: int) -> Delivery | None:
        """End a lease if this consumer has it; returns None if it has not."""
        lease = self.held.get(offset)
        if lease is None or lease.consumer is not consumer:
            return None
        self.end(lease)
        return lease

    def clear(self) -> None:
        """End all leases."""
        for delivery in self.held.values():
            delivery.is_held = False
        self.held.clear()
        self._reset()

    def _reset(self) -> None:
        """Begin anew, as nothing is held. A large dictionary is dropped, a small one is used again."""
        if self._given > _SLACK:
            self.held = {}
        self._given = 0
        if not self._is_ordered:
            self._is_ordered = True
            self._ends.clear()
            self._noted = 0

    def take_ended(self, now_us: int, most: int) -> list[Delivery]:
        """End up to `most` leases whose time is over; returns them in order of offset."""
        found: list[Delivery] = []
        held = self.held
        if self._is_ordered:
            for delivery in held.values():
                if delivery.due_us > now_us or len(found) == most:
                    break
                found.append(delivery)
            for delivery in found:
                del held[delivery.offset]
        while self._ends and self._ends[0][0] <= now_us and len(found) < most:
            due_us, number, offsets = heapq.heappop(self._ends)
            room = most - len(found)
            if len(offsets) > room:
                heapq.heappush(self._ends, (due_us, number, offsets[room:]))
                offsets = offsets[:room]
            self._noted -= len(offsets)
            for offset in offsets:
                lease = held.get(offset)
                if lease is not None and lease.due_us == due_us:
                    found.append(held.pop(offset))
        for delivery in found:
            delivery.is_held = False
        found.sort(key=_offset)
        return found

    def next_end_us(self) -> int:
        """Return when the next lease ends; 0 when nothing is held. Stale ends are dropped."""
        held = self.held
        if self._is_ordered:
            for first in held.values():
                return first.due_us
        while self._ends:
            due_us, _, offsets = self._ends[0]
            for offset in offsets:
                delivery = held.get(offset)
                if delivery is not None and delivery.due_us == due_us:
                    return due_us
            heapq.heappop(self._ends)
            self._noted -= len(offsets)
        return 0

    def _note(self, due_us: int, offsets: list[int]) -> None:
        self._numbers += 1
        self._noted += len(offsets)
        heapq.heappush(self._ends, (due_us, self._numbers, offsets))

    def _sweep(self) -> None:
        by_end: dict[int, list[int]] = {}
        for delivery in self.held.values():
            by_end.setdefault(delivery.due_us, []).append(delivery.offset)
        self._ends.clear()
        self._noted = 0
        for due_us, offsets in by_end.items():
            self._note(due_us, offsets)


def _offset(delivery: Delivery) -> int:
    return delivery.offset
