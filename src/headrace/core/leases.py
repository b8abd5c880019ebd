"""Deliveries that consumers hold, and until when. No decision about what becomes of them: see group.py."""

import heapq
from collections.abc import Iterator
from typing import Final, final

from headrace.core.delivery import Consumer, Delivery

_SLACK: Final = 64


@final
class Leases:
    """The claimed messages of a group by offset, and by the time at which the claims end.

    Bounded by what is claimed: the ends of claims that were settled are swept out before they outnumber the others.
    """

    __slots__ = ("_batches", "_deliveries", "_ends", "_noted")

    def __init__(self) -> None:
        self._deliveries: dict[int, Delivery] = {}
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
        """These are held from now on, until `due_us`."""
        for delivery in deliveries:
            delivery.due_us = due_us
            self._deliveries[delivery.offset] = delivery
        self._note(due_us, [delivery.offset for delivery in deliveries])
        if self._noted > 2 * len(self._deliveries) + _SLACK:
            self._sweep()

    def renew(self, delivery: Delivery, due_us: int) -> None:
        """This one is held until `due_us` instead."""
        self.give([delivery], due_us)

    def end(self, offset: int) -> Delivery:
        """This one is held no more."""
        delivery = self._deliveries.pop(offset)
        if not self._deliveries:
            self._forget_ends()
        return delivery

    def end_all(self, deliveries: list[Delivery], consumer: Consumer) -> list[Delivery]:
        """Those of these that the consumer holds, which are held no more."""
        held = self._deliveries
        ended: list[Delivery] = []
        for delivery in deliveries:
            lease = held.get(delivery.offset)
            if lease is not None and lease.consumer is consumer:
                del held[delivery.offset]
                ended.append(lease)
        if not held:
            self._forget_ends()
        return ended

    def clear(self) -> None:
        """Nothing is held any more."""
        self._deliveries.clear()
        self._ends.clear()
        self._noted = 0

    def _forget_ends(self) -> None:
        """The last that was held is held no more. What took little room keeps it, and is not made anew each time."""
        if self._noted > _SLACK or len(self._ends) != 1:
            self.clear()
        else:
            self._ends.pop()
            self._noted = 0

    def ended(self, now_us: int) -> list[Delivery]:
        """Those whose time is over, in order of offset; they are held no more."""
        found: list[Delivery] = []
        while self._ends and self._ends[0][0] <= now_us:
            due_us, _, offsets = heapq.heappop(self._ends)
            self._noted -= len(offsets)
            for offset in offsets:
                delivery = self._deliveries.get(offset)
                if delivery is not None and delivery.due_us == due_us:
                    found.append(self._deliveries.pop(offset))
        found.sort(key=_offset)
        return found

    def next_end_us(self) -> int:
        """When the next claim ends; 0 when nothing is held."""
        while self._ends:
            due_us, _, offsets = self._ends[0]
            for offset in offsets:
                delivery = self._deliveries.get(offset)
                if delivery is not None and delivery.due_us == due_us:
                    return due_us
            heapq.heappop(self._ends)
            self._noted -= len(offsets)
        return 0

    def _note(self, due_us: int, offsets: list[int]) -> None:
        self._batches += 1
        self._noted += len(offsets)
        if self._ends:
            heapq.heappush(self._ends, (due_us, self._batches, offsets))
        else:
            self._ends.append((due_us, self._batches, offsets))

    def _sweep(self) -> None:
        by_end: dict[int, list[int]] = {}
        for delivery in self._deliveries.values():
            by_end.setdefault(delivery.due_us, []).append(delivery.offset)
        self._ends.clear()
        self._noted = 0
        for due_us, offsets in by_end.items():
            self._note(due_us, offsets)


def _offset(delivery: Delivery) -> int:
    return delivery.offset
