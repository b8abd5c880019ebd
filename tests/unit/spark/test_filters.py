"""Filters that are taken leave out exactly the rows that they must; the others are left to Spark."""

from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql.datasource import (
    ColumnPath,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from headrace.spark.filters import take

OFFSET: ColumnPath = ("offset",)
TIME: ColumnPath = ("timestamp",)
TOPIC: ColumnPath = ("topic",)


def at(second: int) -> datetime:
    return datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)


def passing(*filters: Filter) -> list[int]:
    """The offsets of the rows that pass, of ten a second apart whose topics take turns."""
    taken, left = take(filters)
    assert left == []
    batch = pa.RecordBatch.from_pydict(
        {
            "offset": list(range(10)),
            "timestamp": pa.array([at(second) for second in range(10)], pa.timestamp("us", tz="UTC")),
            "topic": ["a/x", "a/y", "b/x", "b/y", ""] * 2,
        }
    )
    offsets: list[int] = taken.rows(batch).column("offset").to_pylist()
    return [offset for offset in offsets if taken.min_offset <= offset <= taken.max_offset]


def test_offsets_are_bounded_from_both_sides() -> None:
    assert passing(GreaterThan(OFFSET, 2), LessThan(OFFSET, 6)) == [3, 4, 5]
    assert passing(GreaterThanOrEqual(OFFSET, 2), LessThanOrEqual(OFFSET, 3)) == [2, 3]
    assert passing(EqualTo(OFFSET, 4)) == [4]
    assert passing(EqualTo(OFFSET, 4), GreaterThan(OFFSET, 4)) == []


def test_times_are_bounded_to_the_microsecond() -> None:
    assert passing(GreaterThan(TIME, at(3)), LessThanOrEqual(TIME, at(5))) == [4, 5]
    assert passing(EqualTo(TIME, at(7))) == [7]


def test_topics_are_compared_whole_and_by_their_beginning() -> None:
    assert passing(EqualTo(TOPIC, "a/y")) == [1, 6]
    assert passing(In(TOPIC, ["a/y", "b/y"])) == [1, 3, 6, 8]  # type: ignore[arg-type]
    assert passing(StringStartsWith(("routing_key",), "b/")) == [2, 3, 7, 8]
    assert passing(StringStartsWith(TOPIC, "a/"), In(TOPIC, ("a/y", "b/y"))) == [1, 6]


def test_what_is_never_null_needs_no_look() -> None:
    assert passing(IsNotNull(OFFSET), IsNotNull(TOPIC)) == list(range(10))


def test_queues_that_are_not_wanted_are_not_read() -> None:
    taken, left = take([In(("queue",), ("a", "b")), EqualTo(("queue",), "b")])

    assert left == []
    assert (taken.admits_queue("b"), taken.admits_queue("a"), taken.admits_queue("c")) == (True, False, False)


def test_what_is_not_understood_is_left_to_spark() -> None:
    strange: list[Filter] = [
        IsNull(TOPIC),
        IsNotNull(("content_type",)),
        Not(EqualTo(TOPIC, "a")),
        StringContains(TOPIC, "x"),
        EqualTo(("priority",), 3),
        EqualTo(OFFSET, "3"),
        GreaterThan(TIME, datetime(2026, 1, 1)),
        EqualTo(("headers", "topic"), "a"),
        EqualTo(TOPIC, 5),
    ]

    _, left = take(strange)

    assert left == strange
