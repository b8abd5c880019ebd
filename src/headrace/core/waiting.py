"""Offsets that wait apart from the log's order: what came back, what is delayed, what has a priority. No messages."""

import heapq
from collections.abc import Callable, Iterable
from typing import Final, final

NONE: Final = -1
_SLACK: Final = 64


@final
class Waiting:
    """Ready offsets by priority and age, and delayed ones by their time. Every operation takes logarithmic time."""

    __slots__ = ("_count", "_delayed", "_levels", "_lowest", "_picked")

    def __init__(self, levels: int) -> None:
        self._levels: list[list[int]] = [[] for _ in range(levels)]
        self._delayed: list[tuple[int, int, int]] = []
        """A heap of (when, offset, level)."""
        self._lowest: list[int] = []
        """A heap of all offsets above; those that wait no more are swept out before they outnumber the others."""
        self._count = 0
        """How many offsets are ready or delayed."""
        self._picked: dict[int, int] = {}
        """How many of an offset's places count no more, as its message was taken out of line."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is ready and nothing delayed."""
        return self._count == 0

    @property
    def has_ready(self) -> bool:
        return self._count > 0 and any(self._levels)

    @property
    def next_due_us(self) -> int:
        """When the next delay ends; 0 when nothing is delayed."""
        return self._delayed[0][0] if self._delayed else 0

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

    def delay(self, offset: int, due_us: int, level: int = 0) -> None:
        """Ready at `due_us`."""
        heapq.heappush(self._delayed, (due_us, offset, level))
        self._note(offset)

    def end_delays(self, now_us: int) -> None:
        """What was delayed until now is ready."""
        while self._delayed and self._delayed[0][0] <= now_us:
            _, offset, level = heapq.heappop(self._delayed)
            heapq.heappush(self._levels[level], offset)

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
        self._picked[offset] = self._picked.get(offset, 0) + 1

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
        self._lowest.clear()
        self._picked.clear()
        self._count = 0

    def _note(self, offset: int) -> None:
        self._count += 1
        heapq.heappush(self._lowest, offset)
        if len(self._lowest) > 2 * self._count + _SLACK:
            self._sweep()

    def _sweep(self) -> None:
        self._lowest = [offset for _, offset, _ in self._delayed]
        for ready in self._levels:
            self._lowest.extend(ready)
        heapq.heapify(self._lowest)


NOTHING: Final = Waiting(1)
"""Stands in the place of those that are empty, and stays so: with ten thousand queues few of them have their own."""
