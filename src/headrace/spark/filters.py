"""Filters that Spark pushes down: bounds of the read, and a test of the rows. No I/O."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST: Final = (1 << 63) - 1
_NEVER_NULL: Final = frozenset({"queue", "offset", "timestamp", "topic", "routing_key", "payload", "priority"})


@dataclass(frozen=True)
class Filters:
    """Conditions of rows. Bounds are inclusive; None stands for any topic or queue."""

    min_offset: int = 0
    max_offset: int = _LARGEST
    min_time_us: int = -_LARGEST
    max_time_us: int = _LARGEST
    topics: frozenset[str] | None = None
    prefixes: tuple[str, ...] = ()
    queues: frozenset[str] | None = None
    ranges: tuple[tuple[int, int], ...] = ()
    """Ranges of offsets that pass, in order, each with the offset behind its last; () for all."""

    @property
    def needs_time(self) -> bool:
        return self.min_time_us > -_LARGEST or self.max_time_us < _LARGEST

    @property
    def needs_topic(self) -> bool:
        return self.topics is not None or bool(self.prefixes)

    @property
    def columns(self) -> list[str]:
        """The stored columns that the conditions read."""
        return ["timestamp"] * self.needs_time + ["topic"] * self.needs_topic + ["offset"] * bool(self.ranges)

    def admits_queue(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of stored columns that pass; their offsets are within the bounds already."""
        if not self.columns:
            return batch
        import pyarrow.compute as pc  # slow to import, and streams do without

        masks: list[pa.Array] = []
        if self.ranges:
            offsets = batch.column("offset").to_numpy()
            starts, stops = np.array(self.ranges).T
            masks.append(pa.array(np.append(stops, -1)[np.searchsorted(starts, offsets, "right") - 1] > offsets))
        if self.needs_time:
            times = batch.column("timestamp").cast(pa.int64())
            masks.append(pc.greater_equal(times, self.min_time_us))
            masks.append(pc.less_equal(times, self.max_time_us))
        if self.topics is not None:
            masks.append(pc.is_in(batch.column("topic"), pa.array(sorted(self.topics), pa.string())))
        masks += [pc.starts_with(batch.column("topic"), prefix) for prefix in self.prefixes]
        mask = masks[0]
        for other in masks[1:]:
            mask = pc.and_(mask, other)
        return batch if mask.true_count == len(mask) else batch.filter(mask)


def take(filters: Sequence[Filter]) -> tuple[Filters, list[Filter]]:
    """Return the filters that the source applies, and those that Spark has to apply."""
    taken = Filters()
    left: list[Filter] = []
    for each in filters:
        after = _add(taken, each)
        if after is None:
            left.append(each)
        else:
            taken = after
    return taken, left


def _add(taken: Filters, each: Filter) -> Filters | None:
    attribute: Sequence[str] = getattr(each, "attribute", ())
    column = attribute[0] if len(attribute) == 1 else ""
    if isinstance(each, IsNotNull):
        return taken if column in _NEVER_NULL else None
    if column == "offset":
        return _add_bound(taken, each, "min_offset", "max_offset", _whole)
    if column == "timestamp":
        return _add_bound(taken, each, "min_time_us", "max_time_us", _microseconds)
    if column in ("topic", "routing_key"):
        return _add_topic(taken, each)
    if column == "queue":
        wanted = _texts(each)
        if wanted is None:
            return None
        return replace(taken, queues=wanted if taken.queues is None else taken.queues & wanted)
    return None


def _add_topic(taken: Filters, each: Filter) -> Filters | None:
    if isinstance(each, StringStartsWith):
        return replace(taken, prefixes=(*taken.prefixes, each.value))
    wanted = _texts(each)
    if wanted is None:
        return None
    return replace(taken, topics=wanted if taken.topics is None else taken.topics & wanted)


def _texts(each: Filter) -> frozenset[str] | None:
    """Return the texts of an equality or an IN; None for other filters."""
    values = each.value if isinstance(each, In) else [each.value] if isinstance(each, EqualTo) else None
    if values is None or not all(isinstance(value, str) for value in values):
        return None
    return frozenset(values)


def _add_bound(
    taken: Filters, each: Filter, low: str, high: str, read: Callable[[object], int | None]
) -> Filters | None:
    if not isinstance(each, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return None
    value = read(each.value)
    if value is None:
        return None
    least, most = getattr(taken, low), getattr(taken, high)
    if isinstance(each, EqualTo | GreaterThan | GreaterThanOrEqual):
        least = max(least, value + isinstance(each, GreaterThan))
    if isinstance(each, EqualTo | LessThan | LessThanOrEqual):
        most = min(most, value - isinstance(each, LessThan))
    return replace(taken, **{low: least, high: most})


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _microseconds(value: object) -> int | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // timedelta(microseconds=1)
