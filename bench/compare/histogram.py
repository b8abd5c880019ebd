"""Latencies, counted in bins two percent wide. No clock."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Final, final

_BINS_PER_E: Final = 50
PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}


@final
class Histogram:
    """Latencies of messages, in microseconds."""

    __slots__ = ("bins",)

    def __init__(self, bins: Mapping[int, int] | None = None) -> None:
        self.bins: Counter[int] = Counter(bins or {})

    def add(self, duration_us: int, count: int = 1) -> None:
        self.bins[int(math.log(max(duration_us, 1)) * _BINS_PER_E)] += count

    def merge(self, other: "Histogram") -> None:
        self.bins.update(other.bins)

    def percentiles(self) -> dict[str, float]:
        """The duration within which so large a part came; empty when nothing was measured."""
        total, seen = self.bins.total(), 0
        wanted = list(PERCENTILES.items())
        found: dict[str, float] = {}
        for number in sorted(self.bins):
            seen += self.bins[number]
            while wanted and seen >= wanted[0][1] * total:
                found[wanted.pop(0)[0]] = round(math.exp((number + 0.5) / _BINS_PER_E), 1)
        return found
