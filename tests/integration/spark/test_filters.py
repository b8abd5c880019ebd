"""Filters, unions, caches and frames that are used again give the rows that the same messages give as Parquet."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from headrace.model import Message, Source
from headrace.storage.api import Commit
from tests.integration.spark.conftest import SECOND, START_US, Directory

TOPICS = ("orders/created", "orders/paid", "returns", "")
QUEUES = ("orders", "returns")
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

atoms = st.one_of(
    st.builds("offset {} {}".format, st.sampled_from(("<", "<=", "=", ">=", ">", "<=>")), st.integers(-1, 41)),
    st.builds("queue {} '{}'".format, st.sampled_from(("=", "<>", "<=>")), st.sampled_from((*QUEUES, "other"))),
    st.builds("topic {} '{}'".format, st.sampled_from(("=", "<>", "LIKE")), st.sampled_from((*TOPICS, "orders/%"))),
    st.builds("routing_key IN ('{}', '{}')".format, st.sampled_from(TOPICS), st.sampled_from(TOPICS)),
    st.builds(
        "timestamp {} TIMESTAMP'2026-01-01 00:00:{:02}'".format, st.sampled_from(("<", ">=", "=")), st.integers(0, 41)
    ),
    st.builds("priority > {}".format, st.integers(-1, 5)),
    st.sampled_from(("content_type IS NULL", "queue IS NOT NULL", "expires_at IS NOT NULL")),
)
conditions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=4,
)
uses = st.lists(
    st.tuples(st.sampled_from(("all", "filtered", "union", "cached", "joined")), conditions, conditions),
    min_size=2,
    max_size=4,
)
"""What is done with one frame, one after the other."""


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """A session that pushes filters down to sources."""
    spark.conf.set(PUSHDOWN, "true")
    yield spark
    spark.conf.set(PUSHDOWN, "false")


def fill(directory: Directory, path: Path, spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    """Messages in queues and as Parquet; a frame of each."""
    for queue in QUEUES:
        messages = [
            Message(
                Source(TOPICS[number % len(TOPICS)]),
                f"{queue} {number}".encode(),
                START_US + number * SECOND,
                b"",
                number % 6,
                START_US + 10**14 if number % 5 == 0 else 0,
            )
            for number in range(40)
        ]
        directory.commit(partial(Commit.append, log=queue, messages=messages))
    frame = spark.read.format("headrace").option("url", directory.url).option("minPartitions", "2").load("*")
    frame.write.parquet(str(path))
    return spark.read.format("headrace").option("url", directory.url).load("*"), spark.read.parquet(str(path))


def rows_of(frame: DataFrame, kind: str, one: str, other: str) -> Counter[tuple[str, int]]:
    used = frame
    if kind == "filtered":
        used = frame.where(one)
    elif kind == "union":
        used = frame.where(one).unionAll(frame.where(other)).unionAll(frame.where("offset = 3"))
    elif kind == "cached":
        used = frame.where(one).cache()
        used.count()
        used = used.where(other)
    elif kind == "joined":
        used = frame.where(one).join(frame.where(other).select("queue", "offset"), ["queue", "offset"], "left_semi")
    found = Counter((row.queue, row.offset) for row in used.select("queue", "offset").collect())
    used.unpersist()
    return found


def test_the_filters_of_one_query_are_not_those_of_the_next(pushing: SparkSession, directory: Directory) -> None:
    directory.append("orders", 100)
    frame = pushing.read.format("headrace").option("url", directory.url).load("orders")

    assert frame.where("offset < 3").count() == 3
    assert frame.count() == 100
    assert frame.where("offset < 3").unionAll(frame.where("offset >= 90")).count() == 13
    assert frame.where("offset < 3 OR topic = 'orders/created'").count() == 100
    assert frame.where("queue = 'other'").count() == 0
    assert frame.where("timestamp < TIMESTAMP'2026-01-01 00:00:05'").count() == 5


def test_any_use_of_a_frame_gives_the_rows_of_the_same_messages_as_parquet(
    pushing: SparkSession, directory: Directory, tmp_path: Path
) -> None:
    queues, files = fill(directory, tmp_path / "parquet", pushing)

    @settings(max_examples=10, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(uses)
    def check(steps: list[tuple[str, str, str]]) -> None:
        for step in steps:
            assert rows_of(queues, *step) == rows_of(files, *step), step

    check()
