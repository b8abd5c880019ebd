"""A data directory as a stream: nothing is lost or repeated across batches, restarts and moving files."""

import json
from pathlib import Path
from typing import cast

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.query import StreamingQuery

from headrace.errors import Truncated
from headrace.spark import HeadraceDataSource
from headrace.spark.stream import PrefetchingReader, StreamReader
from tests.integration.spark.conftest import Directory

WAIT_SECONDS = 120


class Sink:
    """Keeps what every batch brought, by its number; a batch that comes again replaces itself, as in a real sink."""

    def __init__(self, spark: SparkSession, directory: Directory, checkpoint: Path) -> None:
        self._spark = spark
        self._directory = directory
        self._checkpoint = str(checkpoint)
        self.batches: dict[int, list[tuple[str, int]]] = {}
        self.fail_on = -1

    def take(self, frame: DataFrame, number: int) -> None:
        rows = [(row.queue, row.offset) for row in frame.select("queue", "offset").collect()]
        if number == self.fail_on:
            raise RuntimeError("the sink fails")
        self.batches[number] = rows

    def run(self, queues: str = "orders", **options: object) -> StreamingQuery:
        """Read all that there is now."""
        query = self.start(queues, available_now=True, **options)
        assert query.awaitTermination(WAIT_SECONDS)
        return query

    def start(self, queues: str = "orders", available_now: bool = False, **options: object) -> StreamingQuery:
        reader = self._spark.readStream.format("headrace").option("url", self._directory.url)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        writer = reader.load(queues).writeStream.foreachBatch(self.take).option("checkpointLocation", self._checkpoint)
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    @property
    def rows(self) -> list[tuple[str, int]]:
        return sorted(row for rows in self.batches.values() for row in rows)


@pytest.fixture
def sink(spark: SparkSession, directory: Directory, tmp_path: Path) -> Sink:
    return Sink(spark, directory, tmp_path / "checkpoint")


def test_a_stream_goes_on_where_its_checkpoint_says(sink: Sink, directory: Directory) -> None:
    directory.append("orders", 10)
    sink.run()
    assert sink.rows == [("orders", number) for number in range(10)]

    directory.append("orders", 5)
    sink.run()
    assert sink.rows == [("orders", number) for number in range(15)]


def test_a_batch_that_failed_comes_again_with_the_same_rows(sink: Sink, directory: Directory) -> None:
    directory.append("orders", 10)
    sink.fail_on = 0
    with pytest.raises(StreamingQueryException, match="the sink fails"):
        sink.run()
    directory.append("orders", 10)

    sink.fail_on = -1
    sink.run()

    assert [len(rows) for rows in sink.batches.values()] == [10, 10]
    assert sink.rows == [("orders", number) for number in range(20)]


def test_a_small_batch_goes_along_with_its_plan_and_a_large_one_is_left_to_tasks(directory: Directory) -> None:
    source = HeadraceDataSource({"url": directory.url, "path": "orders"})
    directory.append("orders", 10)
    reader = source.streamReader(source.schema())
    assert isinstance(reader, PrefetchingReader)

    (planned,) = reader.partitions({"orders": 2}, {"orders": 5})
    fetched = reader.getCache({"orders": 2}, {"orders": 5})

    assert fetched is not None
    assert [batch.column("offset").to_pylist() for batch in fetched] == [[2, 3, 4]]
    assert [batch.column("offset").to_pylist() for batch in reader.read(planned)] == [[2, 3, 4]]

    directory.append("orders", 100, size=1000)
    reader.latestOffset({"orders": 5}, ReadAllAvailable())
    (planned,) = reader.partitions({"orders": 5}, {"orders": 110})

    assert reader.getCache({"orders": 5}, {"orders": 110}) is None
    assert sum(batch.num_rows for batch in reader.read(planned)) == 105
    assert reader.partitions({"orders": 110}, {"orders": 110}) == []
    assert reader.getCache({"orders": 110}, {"orders": 110}) is None


def test_what_cannot_be_fetched_is_left_to_the_task(directory: Directory) -> None:
    source = HeadraceDataSource({"url": directory.url, "path": "orders"})
    directory.append("orders", 10)
    reader = source.streamReader(source.schema())
    assert isinstance(reader, PrefetchingReader)
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable())["orders"]["next"] == 10
    away = directory.path.rename(directory.path.with_name("away"))

    (planned,) = reader.partitions({"orders": 0}, {"orders": 10})
    assert reader.getCache({"orders": 0}, {"orders": 10}) is None

    away.rename(directory.path)
    assert [batch.column("offset").to_pylist() for batch in reader.read(planned)] == [list(range(10))]


def test_triggers_take_no_more_messages_or_bytes_than_they_may(sink: Sink, directory: Directory) -> None:
    for _ in range(4):
        directory.append("orders", 300, size=1000)

    sink.run(maxOffsetsPerTrigger=500)
    assert [len(rows) for rows in sink.batches.values()] == [500, 500, 200]

    directory.append("orders", 300, size=1000)
    directory.append("orders", 300, size=1000)
    sink.run(maxBytesPerTrigger=400_000)
    assert [len(rows) for rows in sink.batches.values()] == [500, 500, 200, 300, 300]
    assert sink.rows == [("orders", number) for number in range(1800)]


def test_available_now_ends_at_what_was_there_when_it_began(sink: Sink, directory: Directory) -> None:
    directory.append("orders", 300)
    take = sink.take

    def take_and_publish(frame: DataFrame, number: int) -> None:
        take(frame, number)
        directory.append("orders", 100)

    sink.take = take_and_publish  # type: ignore[method-assign]
    sink.run(maxOffsetsPerTrigger=100)

    assert sink.rows == [("orders", number) for number in range(300)]


def test_queues_that_match_a_pattern_join_as_they_appear(sink: Sink, directory: Directory) -> None:
    directory.append("sensor-1", 2)
    sink.run("sensor-*")
    directory.append("sensor-2", 2)
    directory.append("sensor-1", 1)

    sink.run("sensor-*")

    assert sink.rows == [("sensor-1", 0), ("sensor-1", 1), ("sensor-1", 2), ("sensor-2", 0), ("sensor-2", 1)]


def test_a_running_stream_sees_what_is_published_while_files_are_flushed_and_recycled(
    sink: Sink, directory: Directory
) -> None:
    directory.append("orders", 1)
    query = sink.start()
    for _ in range(16):
        directory.append("orders", 500, size=400)
    query.processAllAvailable()
    query.stop()

    assert sink.rows == [("orders", number) for number in range(8001)]


def test_messages_that_retention_took_fail_the_query_or_are_stepped_over(sink: Sink, directory: Directory) -> None:
    directory.append("orders", 10)
    sink.run()
    directory.append("orders", 10)
    directory.commit(lambda commit: commit.truncate("orders", 15))

    with pytest.raises(StreamingQueryException, match="offsets 10 to 14 of queue 'orders' are gone"):
        sink.run()

    sink.run(failOnDataLoss=False)
    assert sink.rows == [("orders", number) for number in [*range(10), *range(15, 20)]]


def test_a_queue_that_was_deleted_fails_the_query_or_begins_anew(sink: Sink, directory: Directory) -> None:
    directory.append("orders", 10)
    sink.run()
    directory.commit(lambda commit: commit.drop("orders"))

    with pytest.raises(StreamingQueryException, match="was read up to offset 10 and is gone"):
        sink.run()

    directory.append("orders", 4)
    with pytest.raises(StreamingQueryException, match="was read up to offset 10 and is another one now, up to 4"):
        sink.run()
    sink.run(failOnDataLoss=False)
    assert len(sink.rows) == 14


def test_a_queue_that_was_deleted_and_has_grown_beyond_its_old_end_is_another_one(
    sink: Sink, directory: Directory
) -> None:
    directory.append("orders", 10)
    sink.run()
    directory.commit(lambda commit: commit.drop("orders"))
    directory.append("orders", 15)

    with pytest.raises(StreamingQueryException, match="was read up to offset 10 and is another one now"):
        sink.run()
    sink.run(failOnDataLoss=False)

    assert sink.rows == sorted([("orders", number) for number in [*range(10), *range(15)]])


def test_the_batch_of_a_queue_that_was_deleted_meanwhile_is_empty_or_fails(directory: Directory) -> None:
    def reader(is_strict: str) -> StreamReader:
        source = HeadraceDataSource({"url": directory.url, "path": "orders", "failOnDataLoss": is_strict})
        return cast("StreamReader", source.streamReader(source.schema()))

    directory.append("orders", 10)
    planner = reader("true")
    start = planner.initialOffset()
    end = planner.latestOffset(start, ReadAllAvailable())
    directory.commit(lambda commit: commit.drop("orders"))
    directory.append("orders", 15)

    with pytest.raises(Truncated, match="queue 'orders' was read up to offset 0 and its next messages are gone"):
        list(reader("true").partitions(start, end))
    assert list(reader("false").partitions(start, end)) == []


def test_a_checkpoint_of_offsets_alone_goes_on(sink: Sink, directory: Directory, tmp_path: Path) -> None:
    directory.append("orders", 10)
    sink.run()
    (written,) = (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")
    *lines, offsets = written.read_text().splitlines()
    assert json.loads(offsets) == {"orders": {"log": 1, "next": 10}}
    written.write_text("\n".join([*lines, '{"orders": 10}']))
    (written.parent / f".{written.name}.crc").unlink()
    directory.append("orders", 5)

    sink.run()

    assert sink.rows == [("orders", number) for number in range(15)]


def test_bytes_of_a_trigger_are_counted_not_estimated(sink: Sink, directory: Directory) -> None:
    directory.append("orders", 2000)
    for _ in range(10):
        directory.append("orders", 1, size=1 << 20)
    sink.run(maxBytesPerTrigger="3m")

    assert sorted(offset for _, offset in sink.rows) == list(range(2010))
    assert max(sum(offset >= 2000 for _, offset in rows) for rows in sink.batches.values()) <= 3


def test_a_stream_may_start_at_the_end(sink: Sink, directory: Directory) -> None:
    directory.append("orders", 10)
    sink.run(startingOffsets="latest")
    assert sink.rows == []

    directory.append("orders", 2)
    sink.run()
    assert sink.rows == [("orders", 10), ("orders", 11)]
