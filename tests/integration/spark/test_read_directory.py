"""A data directory as a DataFrame, by a real Spark session, while an engine has the directory open."""

import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.errors import Truncated
from headrace.model import Message, Source
from headrace.spark import HeadraceDataSource
from headrace.spark.pipelines.session import pack
from headrace.storage.api import QUEUES
from headrace.wire.properties import Properties, encode_native
from tests.integration.spark.conftest import START_US, Directory


def load(spark: SparkSession, directory: Directory, queues: str = "orders", **options: object) -> DataFrame:
    reader = spark.read.format("headrace").option("url", directory.url)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(queues)


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def test_a_queue_is_a_table_with_all_that_its_messages_say(spark: SparkSession, directory: Directory) -> None:
    headers = {"tenant": "a", "n": 5, "ok": True, "price": Decimal("1.50"), "nested": {"x": 1}}
    raw = encode_native(Properties(headers, "text/plain"))
    message = Message(Source("orders/paid"), b"paid", START_US, raw, 7, START_US + 1_000_000)
    directory.commit(lambda commit: commit.append("orders", [message]))

    (row,) = load(spark, directory, includeHeaders=True).collect()

    assert row.asDict() == {
        "queue": "orders",
        "offset": 0,
        "timestamp": datetime(2026, 1, 1),
        "topic": "orders/paid",
        "routing_key": "orders/paid",
        "payload": b"paid",
        "expires_at": datetime(2026, 1, 1, 0, 0, 1),
        "priority": 7,
        "content_type": "text/plain",
        "headers": {"tenant": "a", "n": "5", "ok": "true", "price": "1.50"},
    }


def test_messages_are_read_from_segments_and_from_the_journal_as_one(spark: SparkSession, directory: Directory) -> None:
    for _ in range(12):
        directory.append("orders", 500, size=400)

    rows = load(spark, directory, minPartitions=4).select("offset", "payload").collect()

    assert sorted((row.offset, bytes(row.payload)) for row in rows) == [
        (number, f"orders {number}".encode().ljust(400, b".")) for number in range(6000)
    ]


def test_partitions_are_as_many_as_asked_for_and_as_small(spark: SparkSession, directory: Directory) -> None:
    for _ in range(12):
        directory.append("orders", 500, size=400)

    assert load(spark, directory).rdd.getNumPartitions() == 1
    assert load(spark, directory, minPartitions=3).rdd.getNumPartitions() >= 3
    assert load(spark, directory, maxBytesPerPartition="300k").rdd.getNumPartitions() >= 8


def test_a_range_is_given_by_offsets_or_times(spark: SparkSession, directory: Directory) -> None:
    directory.append("orders", 20)

    assert offsets(load(spark, directory, startingOffsets=5, endingOffsets=8)) == [5, 6, 7]
    times = load(spark, directory, startingOffsets="2026-01-01T00:00:15Z", endingOffsets="2026-01-01T00:00:17Z")
    assert offsets(times) == [15, 16]
    assert offsets(load(spark, directory, startingOffsets="latest")) == []
    assert offsets(load(spark, directory, startingOffsets=99)) == []


def test_several_queues_and_patterns_are_one_table(spark: SparkSession, directory: Directory) -> None:
    for queue in ("sensor-1", "sensor-2", "orders"):
        directory.append(queue, 2)

    rows = load(spark, directory, "sensor-*,orders").select("queue", "offset").collect()

    assert sorted((row.queue, row.offset) for row in rows) == [
        ("orders", 0), ("orders", 1), ("sensor-1", 0), ("sensor-1", 1), ("sensor-2", 0), ("sensor-2", 1),
    ]  # fmt: skip


def test_only_the_columns_of_a_given_schema_are_read(spark: SparkSession, directory: Directory) -> None:
    directory.append("orders", 3)
    reader = spark.read.format("headrace").option("url", directory.url)

    frame = reader.schema("offset BIGINT, topic STRING").load("orders")

    assert [tuple(row) for row in frame.orderBy("offset").collect()] == [(n, "orders/created") for n in range(3)]


def test_what_was_truncated_is_missed_only_where_it_was_asked_for(spark: SparkSession, directory: Directory) -> None:
    directory.append("orders", 100)
    directory.commit(lambda commit: commit.truncate("orders", 60))

    assert offsets(load(spark, directory)) == list(range(60, 100))
    assert offsets(load(spark, directory, startingOffsets=10, failOnDataLoss=False)) == list(range(60, 100))
    with pytest.raises(PySparkException, match="offsets 10 to 59 of queue 'orders' are gone"):
        load(spark, directory, startingOffsets=10).count()


def crossing(directory: Directory, **options: object) -> bytes:
    """A reader and its partitions, as they go to a task."""
    given = {"url": directory.url, "path": "orders", **{name: str(value) for name, value in options.items()}}
    source = HeadraceDataSource(given)
    reader = source.reader(source.schema())
    return pickle.dumps((reader, reader.partitions()))


def planned(directory: Directory, **options: object) -> Callable[[], list[int]]:
    """A read whose partitions are settled now, to be read later, by a task in another process."""
    task = crossing(directory, **options)

    def read() -> list[int]:
        there, partitions = pickle.loads(task)
        return [
            offset for part in partitions for batch in there.read(part) for offset in batch.column("offset").to_pylist()
        ]

    return read


_ELSEWHERE = """
import pickle, sys

class NothingElse:
    there = {*sys.stdlib_module_names, "pyspark", "py4j", "pyarrow", "numpy"}

    def find_spec(self, name, path=None, target=None):
        if path is None and name[0] != "_" and name not in self.there | shipped:
            raise ModuleNotFoundError(name)

archive = sys.argv[1]
shipped = set(sys.argv[2:])
sys.meta_path.insert(0, NothingElse())
sys.path.insert(0, archive)
reader, partitions = pickle.load(sys.stdin.buffer)
rows = sum(batch.num_rows for part in partitions for batch in reader.read(part))
print(rows, all(archive in sys.modules[name].__file__ for name in shipped & sys.modules.keys()))
"""


def test_a_task_reads_with_shipped_code_beside_spark_and_arrow_alone(directory: Directory, tmp_path: Path) -> None:
    for _ in range(30):
        directory.append("orders", 500, size=400)
    archive = pack(tmp_path)
    shipped = {name.partition("/")[0].removesuffix(".py") for name in zipfile.ZipFile(archive).namelist()}

    found = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE, archive, *shipped],
        input=crossing(directory),
        capture_output=True,
        cwd=tmp_path,
        timeout=60,
    )

    assert (found.returncode, found.stdout.decode().split()) == (0, ["15000", "True"]), found.stderr.decode()


def test_a_range_that_moves_from_the_journal_to_segments_before_it_is_read_is_found(directory: Directory) -> None:
    directory.append("orders", 500, size=400)
    read = planned(directory)

    for _ in range(30):
        directory.append("other", 500, size=400)

    assert read() == list(range(500))


def test_retention_that_overtakes_a_planned_read_is_noticed(directory: Directory) -> None:
    for _ in range(12):
        directory.append("orders", 500, size=400)
    strict = planned(directory, startingOffsets=0)
    lenient = planned(directory, startingOffsets=0, failOnDataLoss=False)
    earliest = planned(directory)

    directory.commit(lambda commit: commit.truncate("orders", 5500))
    directory.reopen()

    with pytest.raises(Truncated, match="offsets 0 to 5499 of queue 'orders' are gone: retention"):
        strict()
    assert lenient() == earliest() == list(range(5500, 6000))


def test_a_queue_that_was_deleted_and_declared_again_is_not_mistaken(directory: Directory) -> None:
    directory.append("orders", 100)
    directory.reopen()
    strict, lenient = planned(directory), planned(directory, failOnDataLoss=False)

    directory.commit(lambda commit: commit.drop("orders"))
    directory.append("orders", 200)
    directory.reopen()

    with pytest.raises(Truncated, match="was deleted while offsets 0 to 100"):
        strict()
    assert lenient() == []


@pytest.mark.parametrize(
    ("queues", "options", "said"),
    [
        ("nothing", {}, "no queue 'nothing' in .*; there are: orders"),
        ("orders", {"startingOffset": 1}, "did you mean startingOffsets"),
        ("orders", {"url": "/nowhere/at/all"}, "is no data directory"),
        ("orders", {"url": "ftp://host/x"}, "ftp:// cannot be read"),
    ],
)
def test_what_cannot_be_read_is_said_on_the_driver(
    spark: SparkSession, directory: Directory, queues: str, options: dict[str, object], said: str
) -> None:
    directory.append("orders", 1)

    with pytest.raises(PySparkException, match=said):
        load(spark, directory, queues, **options).count()


def test_a_schema_that_a_queue_has_not_is_refused(spark: SparkSession, directory: Directory) -> None:
    directory.append("orders", 1)
    reader = spark.read.format("headrace").option("url", directory.url)

    with pytest.raises(PySparkException, match="a queue has no column 'body'"):
        reader.schema("body STRING").load("orders").count()
    with pytest.raises(PySparkException, match="column 'payload' of a queue is binary"):
        reader.schema("payload STRING").load("orders").count()


def test_a_queue_without_messages_is_empty(spark: SparkSession, directory: Directory) -> None:
    directory.commit(lambda commit: commit.put(QUEUES, b"orders", b"{}"))
    assert load(spark, directory).count() == 0
    directory.reopen()

    assert load(spark, directory).count() == 0
    directory.commit(lambda commit: commit.delete(QUEUES, b"orders"))
    with pytest.raises(PySparkException, match="there is no queue 'orders'"):
        load(spark, directory).count()


def test_names_of_columns_are_taken_in_any_case(spark: SparkSession, directory: Directory) -> None:
    directory.append("orders", 2)
    reader = spark.read.format("headrace").option("url", directory.url)

    frame = reader.schema("OFFSET BIGINT, Topic STRING").load("orders")

    assert frame.columns == ["OFFSET", "Topic"]
    assert [tuple(row) for row in frame.orderBy("offset").collect()] == [(n, "orders/created") for n in range(2)]


def test_damage_is_said_with_its_file_and_place(spark: SparkSession, directory: Directory) -> None:
    directory.append("orders", 200, size=200)
    directory.engine.close()
    (segment,) = (directory.path / "queues/orders/segments").glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[-20] ^= 1
    segment.write_bytes(data)

    with pytest.raises(PySparkException, match=f"{segment} is damaged at byte 32: the block's checksum"):
        load(spark, directory).count()
