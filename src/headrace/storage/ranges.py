"""A set of integers as sorted, disjoint, half-open ranges. Its size depends on gaps, not on members."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import final

from mypy_extensions import mypyc_attr


@final
@mypyc_attr(acyclic=True)
class RangeSet:
    """Offsets as ranges: `add` merges touching ranges, so a contiguous run is one entry of any length."""

    __slots__ = ("_starts", "_stops", "size")

    def __init__(self) -> None:
        self.size = 0
        """The number of offsets in all ranges."""
        self._starts: list[int] = []
        self._stops: list[int] = []

    def __len__(self) -> int:
        """The number of ranges, not of offsets."""
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._starts, self._stops, strict=True))

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._stops[at]

    def add(self, start: int, stop: int) -> None:
        """Include every offset from `start` up to but not including `stop`."""
        if start >= stop:
            return
        starts, stops = self._starts, self._stops
        low = bisect_left(stops, start)
        high = bisect_right(starts, stop)
        if low < high:
            start = min(start, starts[low])
            stop = max(stop, stops[high - 1])
            self.size -= sum(stops[low:high]) - sum(starts[low:high])
        starts[low:high] = [start]
        stops[low:high] = [stop]
        self.size += stop - start

    def next_absent(self, offset: int) -> int:
        """The first offset from `offset` on that is in no range."""
        at = bisect_right(self._starts, offset) - 1
        return self._stops[at] if at >= 0 and offset < self._stops[at] else offset

    def discard_below(self, offset: int) -> None:
        """Forget everything below `offset`."""
        if not self.size:
            return
        gone = bisect_right(self._stops, offset)
        self.size -= sum(self._stops[:gone]) - sum(self._starts[:gone])
        del self._starts[:gone], self._stops[:gone]
        if self._starts and self._starts[0] < offset:
            self.size -= offset - self._starts[0]
            self._starts[0] = offset

    def take_from(self, offset: int) -> int:
        """Remove the range that holds `offset`, if any, and return its stop; otherwise return `offset`."""
        if self.size and self._starts[0] <= offset < self._stops[0]:
            offset = self._stops[0]
            self.size -= offset - self._starts[0]
            del self._starts[0], self._stops[0]
        return offset
