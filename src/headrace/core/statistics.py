"""What is counted while the broker works: how long commits take, what was given up. Offsets tell the rest."""

from bisect import bisect_left
from typing import Final, final

COMMIT_BOUNDS_US: Final = (100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000)


@final
class Histogram:
    """How often a duration fell between each two bounds."""

    __slots__ = ("bounds_us", "counts", "sum_us")

    def __init__(self, bounds_us: tuple[int, ...]) -> None:
        self.bounds_us = bounds_us
        self.counts = [0] * (len(bounds_us) + 1)
        """One for each bound, of what was at most that long and longer than the one before, and one for the rest."""
        self.sum_us = 0

    def add(self, duration_us: int) -> None:
        self.counts[bisect_left(self.bounds_us, duration_us)] += 1
        self.sum_us += duration_us

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile_us(self, share: float, before: "list[int] | None" = None) -> int:
        """The bound below which this share of the durations is, of those since the counts were as in `before`."""
        counts = self.counts if before is None else [now - then for now, then in zip(self.counts, before, strict=True)]
        wanted = share * sum(counts)
        seen = 0
        for bound_us, count in zip(self.bounds_us, counts, strict=False):
            seen += count
            if seen >= wanted:
                return bound_us if sum(counts) else 0
        return self.bounds_us[-1]


@final
class Statistics:
    """The counters of one virtual host since it was opened. They only grow."""

    __slots__ = ("commits", "dead_letters", "delivered", "redelivered", "stored")

    def __init__(self) -> None:
        self.commits = Histogram(COMMIT_BOUNDS_US)
        """How long commits took, from being sent to storage until they were safe."""
        self.stored = 0
        """Messages that entered a queue; one that went to five counts five times."""
        self.delivered = 0
        """Messages handed to consumers, each time counted."""
        self.redelivered = 0
        self.dead_letters: dict[str, int] = {}
        """Messages given up, by reason, whether or not they went anywhere."""

    def died(self, reason: str) -> None:
        self.dead_letters[reason] = self.dead_letters.get(reason, 0) + 1
