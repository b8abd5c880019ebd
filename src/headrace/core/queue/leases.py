"""Deliveries that consumers hold, until when, and which of them storage does not know yet. No decision what follows.

That a message is with a consumer is stored so that it counts as an attempt if the broker dies. Most are acknowledged
before that could matter, and their claim need not be stored at all: with a message in each of ten thousand queues, and
consumers that are 4,000 messages behind, that was a third of what a message cost.

That it is settled is stored so that it does not come back, and nobody waits for that. With a message in each of many
queues, a step for each of them would cost as much as the message: it waits until it is one for several.
"""

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, final

from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.storage.api import Commit

if TYPE_CHECKING:
    from headrace.core.queue.work import WorkGroup

STORED_AFTER_US: Final = 400_000
"""How old a delivery is, at least, when its claim is stored along with something else; at most it is twice as old, and
so safe within a second, as settlements are. Where there is nothing else to store, it does not wait for that."""
_FEW_GROUPS: Final = 256
"""Up to how many groups have their settlements stored with the next commit, whatever they are."""
_WORTH_A_STEP: Final = 8
"""How many settled messages of a group do not wait for more, however many groups there are. Those that are fewer wait
for STORED_AFTER_US."""
_CLAIMED_AT_ONCE: Final = 1000
"""How many claims go into one commit: the others go into those that follow at once."""
_SWEPT_AFTER: Final = 256
"""From how many on those that are settled are let go: their messages would else stay in memory."""


@final
class UnstoredClaims:
    """What consumers of durable queues got lately, and what they were done with."""

    __slots__ = ("_fresh", "_is_late", "_older", "_settled", "_since_us", "_swept_after")

    def __init__(self) -> None:
        self._older: list[Delivery] = []
        self._fresh: list[Delivery] = []
        """Those that came since `_since_us`."""
        self._is_late = False
        """Whether the older ones are on their way into storage, and too many for one commit."""
        self._since_us = 0
        self._swept_after = _SWEPT_AFTER
        self._settled: list[WorkGroup] = []
        """Those that settled what storage does not know of, the longest ago first."""

    @property
    def is_empty(self) -> bool:
        return not (self._fresh or self._older or self._settled)

    @property
    def has_overdue(self) -> bool:
        """Whether claims are left that did not all go into the last commit."""
        return self._is_late

    def add(self, deliveries: list[Delivery]) -> None:
        """These are with a consumer from now on."""
        for delivery in deliveries:
            self._fresh.append(delivery)
        if len(self._fresh) > self._swept_after:
            self._fresh = [delivery for delivery in self._fresh if delivery.is_held]
            self._swept_after = max(_SWEPT_AFTER, 2 * len(self._fresh))

    @property
    def has_many_settled(self) -> bool:
        """Whether so many groups settled something that it may take a while until all of it is stored."""
        return len(self._settled) > _FEW_GROUPS

    def add_settled(self, group: "WorkGroup") -> None:
        """This group is done with messages, and is not in here yet."""
        self._settled.append(group)

    def store(self, commit: Commit, now_us: int) -> None:
        """Have what is old enough, and still so, go into a commit, and settlements too that are worth a step."""
        if self._is_late:
            self._store_older(commit)
        elif not _is_fresh(self._since_us, now_us):
            self._store_older(commit)
            self._since_us = now_us
        if not self.has_many_settled:
            self.store_settled(commit)
            return
        count = 0
        for group in self._settled:
            if group.unstored < _WORTH_A_STEP and _is_fresh(group.unstored_since_us, now_us):
                break
            count += 1
        self._store_settled(commit, count)

    def store_all(self, commit: Commit) -> None:
        """The same for all there is, as far as it goes into one commit."""
        self._store_older(commit)
        if not self._is_late:
            self._store_older(commit)
        self.store_settled(commit)

    def store_settled(self, commit: Commit) -> None:
        """The same for all settlements."""
        self._store_settled(commit, len(self._settled))

    def _store_settled(self, commit: Commit, count: int) -> None:
        for group in self._settled[:count]:
            group.store_settled(commit)
        del self._settled[:count]

    def _store_older(self, commit: Commit) -> None:
        older = self._older
        self._is_late = len(older) > _CLAIMED_AT_ONCE
        for delivery in older[-_CLAIMED_AT_ONCE:] if self._is_late else older:
            if delivery.is_held:
                store_claim(commit, delivery)
        if self._is_late:
            del older[-_CLAIMED_AT_ONCE:]
        else:
            self._older, self._fresh = self._fresh, []


def _is_fresh(since_us: int, now_us: int) -> bool:
    """Whether what is so since then may wait; not if the clock was set back meanwhile."""
    return 0 <= now_us - since_us < STORED_AFTER_US


def store_claim(commit: Commit, delivery: Delivery) -> None:
    """Have a commit say that this is with its consumer, unless storage knows."""
    if not delivery.is_claimed:
        delivery.is_claimed = True
        group, offset = delivery.group, delivery.offset
        commit.claim(group.queue.log.name, group.name, offset, offset + 1, delivery.consumer.name, delivery.due_us)


_SLACK: Final = 64


@final
class Leases:
    """The claimed messages of a group by offset, and by the time at which the claims end.

    Claims usually end in the order in which they were made, and are then kept in that order alone. Where one ends
    before an earlier one does, there is a heap besides until nothing is held: bounded by what is claimed, for the ends
    of claims that were settled are swept out before they outnumber the others. With a message in each of many queues
    most groups have one claim or none: that one is in no dictionary, which would be made larger for every fifth claim.
    """

    __slots__ = ("_batches", "_deliveries", "_ends", "_given", "_is_ordered", "_last_us", "_noted")

    def __init__(self) -> None:
        self._deliveries: dict[int, Delivery] = {}
        self._given = 0
        """How many were given since nothing was held."""
        self._is_ordered = True
        """Whether the deliveries stand in the order of their ends."""
        self._last_us = 0
        """The last of these ends."""
        self._ends: list[tuple[int, int, list[int]]] = []
        """A heap of (when, number, offsets); an offset counts only while its delivery ends at that very time."""
        self._batches = 0
        self._noted = 0
        """How many offsets there are in `_ends`."""

    def __len__(self) -> int:
        return len(self._deliveries)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._deliveries.values())

    def __contains__(self, offset: int) -> bool:
        return offset in self._deliveries

    def get(self, offset: int) -> Delivery | None:
        return self._deliveries.get(offset)

    def give(self, deliveries: list[Delivery], due_us: int) -> None:
        """These, which nobody holds, are held from now on, until `due_us`."""
        held = self._deliveries
        if held and self._is_ordered and due_us < self._last_us:
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
        """These take the place of those that are held of the same messages, and are held until `due_us`."""
        held = self._deliveries
        for delivery in deliveries:
            held.pop(delivery.offset).is_held = False
        self.give(deliveries, due_us)

    def end(self, offset: int) -> Delivery:
        """This one is held no more."""
        delivery = self._deliveries.pop(offset)
        delivery.is_held = False
        if not self._deliveries:
            self._begin_anew()
        return delivery

    def end_all(self, deliveries: list[Delivery], consumer: Consumer) -> list[Delivery]:
        """Those of these that the consumer holds, which are held no more."""
        held = self._deliveries
        ended: list[Delivery] = []
        for delivery in deliveries:
            lease = held.get(delivery.offset)
            if lease is not None and lease.consumer is consumer:
                del held[delivery.offset]
                lease.is_held = False
                ended.append(lease)
        if not held:
            self._begin_anew()
        return ended

    def clear(self) -> None:
        """Nothing is held any more."""
        for delivery in self:
            delivery.is_held = False
        self._deliveries.clear()
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Nothing is held now. What took little room keeps it, and is not made anew each time."""
        if self._given > _SLACK:
            self._deliveries = {}
        self._given = 0
        if not self._is_ordered:
            self._is_ordered = True
            self._ends.clear()
            self._noted = 0

    def ended(self, now_us: int, most: int) -> list[Delivery]:
        """Those whose time is over, up to so many and in order of offset; they are held no more."""
        found: list[Delivery] = []
        if not len(self):
            return found
        held = self._deliveries
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
        """When the next claim ends; 0 when nothing is held."""
        if self._is_ordered:
            for first in self:
                return first.due_us
        while self._ends:
            due_us, _, offsets = self._ends[0]
            for offset in offsets:
                delivery = self.get(offset)
                if delivery is not None and delivery.due_us == due_us:
                    return due_us
            heapq.heappop(self._ends)
            self._noted -= len(offsets)
        return 0

    def _note(self, due_us: int, offsets: list[int]) -> None:
        self._batches += 1
        self._noted += len(offsets)
        heapq.heappush(self._ends, (due_us, self._batches, offsets))

    def _sweep(self) -> None:
        by_end: dict[int, list[int]] = {}
        for delivery in self:
            by_end.setdefault(delivery.due_us, []).append(delivery.offset)
        self._ends.clear()
        self._noted = 0
        for due_us, offsets in by_end.items():
            self._note(due_us, offsets)


def _offset(delivery: Delivery) -> int:
    return delivery.offset
