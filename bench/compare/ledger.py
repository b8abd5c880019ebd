"""The books of one consumer: how many messages came, which, in what order. What was sent is compared elsewhere."""

from array import array
from collections.abc import Sequence
from typing import final

from bench.compare.payload import LANE_SHIFT


@final
class Ledger:
    """Notices gaps, repetitions and disorder in each lane; keys are lane and sequence number as one number."""

    __slots__ = (
        "_expected",
        "_is_exclusive",
        "_lanes",
        "_taken",
        "count",
        "disorder",
        "gaps",
        "redelivered",
        "stripped",
        "total",
    )

    def __init__(self, is_exclusive: bool, taken: Sequence[int] = (), lanes: int = 1) -> None:
        self._taken = taken
        self._lanes = lanes
        self._is_exclusive = is_exclusive
        self._expected: dict[int, int] = {}
        self.count = 0
        self.total = 0
        self.gaps = 0
        self.disorder = 0
        self.redelivered = 0
        self.stripped = 0
        """Number of messages that came without the ids or headers they were sent with."""

    def add(self, raw: bytes | bytearray) -> None:
        """Enter messages in the order in which they came: eight bytes each, little endian."""
        keys = array("Q")
        keys.frombytes(raw)
        count, first = len(keys), keys[0]
        self.count += count
        if keys[-1] - first == count - 1 and keys == array("Q", range(first, first + count)):
            self.total += count * first + count * (count - 1) // 2
            self._enter(first, count)
            return
        self.total += sum(keys)
        expected = self._expected
        for key in keys:
            lane = key >> LANE_SHIFT
            if expected.get(lane) == key:
                expected[lane] = key + 1
            else:
                self._enter(key, 1)

    def _enter(self, first: int, count: int) -> None:
        lane = first >> LANE_SHIFT
        expected = self._expected.get(lane)
        if expected is None:
            expected = (lane << LANE_SHIFT) + self._begun(lane)
        if first < expected:
            self.disorder += 1
        elif first > expected and self._is_exclusive:
            self.gaps += first - expected
        self._expected[lane] = max(expected, first + count)

    def _begun(self, lane: int) -> int:
        """Number of messages of a lane that were consumed before; a lane that nobody publishes to has none."""
        publisher = lane // self._lanes
        return self._taken[publisher] if publisher < len(self._taken) else 0

    def complaint(self) -> str:
        """An error that shows whatever was sent; "" for none."""
        found = [
            f"{number:,} {what}"
            for number, what in (
                (self.gaps, "missing within the sequence"),
                (self.disorder, "out of order or twice"),
                (self.redelivered, "marked as redelivered"),
            )
            if number
        ]
        return ", ".join(found)
