"""An object store as a DataFrame and as a stream, read without a broker while an engine has it open."""

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from headrace.clock import SystemClock
from headrace.config.replication import MAIN
from headrace.errors import NotFound, Refused, Truncated, Unavailable
from headrace.model import Message, Source
from headrace.spark import HeadraceDataSource
from headrace.spark.place import Piece, QueuePartition
from headrace.spark.reader import BatchReader
from headrace.spark.stream import Offsets, StreamReader
from headrace.storage.api import QUEUES, Commit
from headrace.storage.objects.engine import ObjectEngine, ObjectSettings
from headrace.storage.objects.location import Location
from headrace.storage.objects.view import Admin
from headrace.wire.properties import Properties, encode_native
from tests.integration.spark.conftest import SECOND, START_US, Filled
from tests.spark_session import store_listener
from tests.stores import S3, moto
from tests.waiting import eventually

WAIT_SECONDS = 120


class Store(Filled):
    """A store."""

    def __init__(self, url: str, group: str = MAIN) -> None:
        super().__init__(url, ObjectEngine(url, settings=ObjectSettings(flush_interval_ms=1), group=group))

    def reader(self, queues: str = "orders", **options: object) -> BatchReader:
        return batch_reader(self.url, queues, **options)

    def stream(self, queues: str = "orders", **options: object) -> StreamReader:
        source = HeadraceDataSource({"url": self.url, "path": queues, **{name: str(options[name]) for name in options}})
        reader = source.streamReader(source.schema())
        assert isinstance(reader, StreamReader)
        return reader


def batch_reader(url: str, queues: str = "orders", **options: object) -> BatchReader:
    source = HeadraceDataSource({"url": url, "path": queues, **{name: str(options[name]) for name in options}})
    reader = source.reader(source.schema())
    assert isinstance(reader, BatchReader)
    return reader


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(f"file://{tmp_path}/store")
    yield made
    made.engine.close()


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with moto() as port:
        bucket = S3(port)
        with bucket.here():
            yield bucket
        bucket.close()


@pytest.fixture
def s3_of_spark() -> Iterator[S3]:
    """A bucket that Spark's own processes find."""
    with moto() as port:
        bucket = S3(port, listener=store_listener())
        with bucket.here():
            yield bucket
        bucket.close()


def rows(reader: BatchReader | StreamReader, partitions: list[InputPartition] | None = None) -> list[dict[str, object]]:
    """What the tasks of a query read, each of them with what crosses to it."""
    planned = list(reader.partitions()) if partitions is None and isinstance(reader, BatchReader) else partitions or []
    task = pickle.loads(pickle.dumps(reader))
    batches = [batch for each in pickle.loads(pickle.dumps(planned)) for batch in task.read(each)]
    return [row for batch in batches for row in batch.to_pylist()]


def pieces(partitions: list[InputPartition]) -> list[Piece]:
    return [piece for each in partitions if isinstance(each, QueuePartition) for piece in each.pieces]


def offsets(reader: BatchReader | StreamReader, partitions: list[InputPartition] | None = None) -> list[int]:
    return [int(str(row["offset"])) for row in rows(reader, partitions)]


def test_a_queue_is_a_table_with_all_that_its_messages_say(spark: SparkSession, store: Store) -> None:
    headers = {"tenant": "a", "n": 5, "ok": True}
    raw = encode_native(Properties(headers, "text/plain"))
    message = Message(Source("orders/paid"), b"paid", START_US, raw, 7, START_US + SECOND)
    store.commit(lambda commit: commit.append("orders", [message]))
    store.append("returns", 3000)
    options = {"url": store.url, "includeHeaders": "true", "minPartitions": "3"}

    frame = spark.read.format("headrace").options(**options).load("orders,ret*")
    (paid,) = frame.where("queue = 'orders'").collect()
    returned = frame.where("queue = 'returns'").select("offset", "payload").collect()

    assert paid.asDict() == {
        "queue": "orders",
        "offset": 0,
        "timestamp": datetime(2026, 1, 1),
        "topic": "orders/paid",
        "routing_key": "orders/paid",
        "payload": b"paid",
        "expires_at": datetime(2026, 1, 1, 0, 0, 1),
        "priority": 7,
        "content_type": "text/plain",
        "headers": {"tenant": "a", "n": "5", "ok": "true"},
    }
    assert sorted((row.offset, bytes(row.payload)) for row in returned) == [
        (number, f"returns {number}".encode()) for number in range(3000)
    ]


def test_a_stream_over_a_bucket_goes_on_where_its_checkpoint_says(
    spark: SparkSession, s3_of_spark: S3, tmp_path: Path
) -> None:
    """Credentials and address are in the environment of the driver's and the executors' processes."""
    store = Store(s3_of_spark.url)
    seen: dict[int, list[int]] = {}

    def take(frame: DataFrame, number: int) -> None:
        seen[number] = [row.offset for row in frame.select("offset").collect()]

    def run() -> None:
        frame = spark.readStream.format("headrace").option("url", store.url).option("maxOffsetsPerTrigger", 400)
        writer = frame.load("orders").writeStream.foreachBatch(take)
        query = writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_SECONDS)

    store.append("orders", 1000, size=400)  # too much for the driver to read it as it plans
    run()
    store.append("orders", 100)
    store.engine.close()
    run()

    assert sorted(offset for batch in seen.values() for offset in batch) == list(range(1100))
    assert max(map(len, seen.values())) <= 400


def nexts(reached: Offsets) -> dict[str, int]:
    return {queue: each["next"] for queue, each in reached.items()}


def test_a_bucket_is_read_as_a_directory_is(s3: S3) -> None:
    store = Store(s3.url)
    store.append("orders", 300)
    store.append("returns", 3)
    stream = store.stream("ord*,returns", startingOffsets=298)
    start = stream.initialOffset()
    store.append("orders", 2)
    end = stream.latestOffset(start, ReadAllAvailable())

    assert [row["payload"] for row in rows(store.reader(minPartitions=3))] == [
        f"orders {number}".encode() for number in range(302)
    ]
    assert (nexts(start), nexts(end)) == ({"orders": 298, "returns": 3}, {"orders": 302, "returns": 3})
    assert offsets(stream, list(stream.partitions(start, end))) == list(range(298, 302))
    store.engine.close()


def test_a_group_of_a_store_is_read_by_its_name(tmp_path: Path) -> None:
    hot = Store(f"file://{tmp_path}/store", "hot")
    hot.append("orders", 5)

    found = rows(hot.reader(group="hot"))

    assert [row["payload"] for row in found] == [b"orders %d" % number for number in range(5)]
    with pytest.raises(Unavailable, match="has no replication group 'main'; there are: hot"):
        hot.reader().partitions()
    with pytest.raises(Unavailable, match="is not the directory of a store"):
        batch_reader(str(tmp_path), group="hot").partitions()
    hot.engine.close()


def test_where_reading_begins_and_ends_can_be_said(store: Store) -> None:
    for _ in range(5):
        store.append("orders", 20)
    noon = datetime.fromtimestamp((START_US + 30 * SECOND) / 1e6, UTC).isoformat()

    assert offsets(store.reader(startingOffsets=90)) == list(range(90, 100))
    assert offsets(store.reader(startingOffsets=noon, endingOffsets=35)) == list(range(30, 35))
    assert offsets(store.reader(startingOffsets="latest")) == []
    assert len(store.reader(minPartitions=4).partitions()) >= 4


def _append_both(messages: list[Message], commit: Commit) -> None:
    commit.append("orders", messages)
    commit.append("copies", messages[::2])


def test_messages_of_all_kinds_come_as_they_are_stored(store: Store) -> None:
    messages = [
        Message(
            Source(f"topic/{number % 7}"),
            b"x" * (number % 50),
            START_US + number,
            encode_native(Properties({"n": number})) if number % 3 else b"",
            number % 10,
            START_US + number if number % 4 == 0 else 0,
        )
        for number in range(3000)
    ]
    for at in range(0, 3000, 250):
        part = messages[at : at + 250]
        # The same messages in another log share their payloads; single ones lie between those of the others.
        store.commit(partial(_append_both, part))
        store.append("others", 1)

    found = rows(store.reader(includeHeaders=True))
    copies = rows(store.reader("copies"))

    assert [row["payload"] for row in found] == [message.payload for message in messages]
    assert [row["topic"] for row in found] == [message.source.topic for message in messages]
    assert [row["priority"] for row in found] == [message.priority for message in messages]
    assert [row["expires_at"] is not None for row in found] == [bool(message.expires_us) for message in messages]
    assert [dict(row["headers"] or []) for row in found] == [  # type: ignore[call-overload]
        {"n": str(number)} if number % 3 else {} for number in range(3000)
    ]
    assert [row["payload"] for row in copies] == [message.payload for message in messages[::2]]


def test_what_is_in_tables_when_a_query_is_planned_is_read_whatever_happens_meanwhile(store: Store) -> None:
    for _ in range(40):
        store.append("orders", 100, size=5000)  # more than the database keeps in memory
    admin = Admin(Location(store.url), MAIN, WAIT_SECONDS * 1000, SystemClock())
    eventually(lambda: admin.replayed() > 0)
    reader = store.reader(startingOffsets=0)
    partitions = list(reader.partitions())
    kept = max(piece.stop for piece in pieces(partitions) if piece.proof[1])

    store.commit(lambda commit: commit.truncate("orders", kept))

    assert kept > 0
    assert offsets(reader, partitions) == list(range(4000))
    assert len(admin.checkpoints()) == 1
    assert offsets(store.reader()) == list(range(kept, 4000))
    assert len(admin.checkpoints()) == 1  # queries share one


def test_what_is_gone_before_it_is_read_is_a_loss_when_it_was_asked_for_by_number(store: Store) -> None:
    store.append("orders", 100)
    strict, lenient = store.reader(startingOffsets=0), store.reader()
    lossy = store.reader(startingOffsets=0, failOnDataLoss="false")
    plans = [list(reader.partitions()) for reader in (strict, lenient, lossy)]

    store.commit(lambda commit: commit.truncate("orders", 60))

    with pytest.raises(Truncated, match="offsets 0 to 59 of queue 'orders' are gone"):
        offsets(strict, plans[0])
    assert offsets(lenient, plans[1]) == list(range(60, 100))
    assert offsets(lossy, plans[2]) == list(range(60, 100))
    with pytest.raises(Truncated, match="are gone"):
        store.reader(startingOffsets=10).partitions()


def test_a_queue_that_was_made_again_is_not_taken_for_the_one_before(store: Store) -> None:
    store.append("orders", 100)
    strict, lossy = store.reader(), store.reader(failOnDataLoss="false")
    plans = [list(reader.partitions()) for reader in (strict, lossy)]

    store.commit(lambda commit: commit.drop("orders"))
    store.append("orders", 100)

    with pytest.raises(Truncated, match="was deleted while offsets 0 to 100"):
        offsets(strict, plans[0])
    assert offsets(lossy, plans[1]) == []


def test_a_stream_sees_everything_that_was_stored_before_it_looked(store: Store) -> None:
    store.append("orders", 10)
    stream = store.stream("ord*")
    start = stream.initialOffset()

    for round_number in range(1, 6):
        store.append("orders", 10)
        store.append(f"orders-{round_number}", 1)
        end = stream.latestOffset(start, ReadAllAvailable())
        assert end["orders"]["next"] == 10 + 10 * round_number
        assert f"orders-{round_number}" in end
        found = offsets(stream, list(stream.partitions(start, end)))
        assert sorted(found) == sorted([*range(start["orders"]["next"], end["orders"]["next"]), 0])
        start = end

    store.engine.close()  # another owner goes on with the write-ahead log
    store.engine = ObjectEngine(store.url, settings=ObjectSettings(flush_interval_ms=1))
    store.append("orders", 1)
    end = stream.latestOffset(start, ReadAllAvailable())
    assert end["orders"] == {**start["orders"], "next": start["orders"]["next"] + 1}


def test_a_queue_without_messages_is_empty(store: Store) -> None:
    store.append("orders", 1)
    store.commit(lambda commit: commit.put(QUEUES, b"returns", b"{}"))
    stream = store.stream("*")
    start = stream.initialOffset()

    assert offsets(store.reader("returns")) == []
    assert nexts(start) == {"orders": 0, "returns": 0}
    store.commit(lambda commit: commit.put(QUEUES, b"claims", b"{}"))
    store.commit(lambda commit: commit.delete(QUEUES, b"returns"))
    assert nexts(stream.latestOffset({}, ReadAllAvailable())) == {"claims": 0, "orders": 1}


def test_bytes_of_a_trigger_are_counted_not_estimated(store: Store) -> None:
    store.append("orders", 2000)
    for _ in range(10):
        store.append("orders", 1, size=1 << 20)
    stream = store.stream("orders", maxBytesPerTrigger="3m")
    start, sizes = stream.initialOffset(), []
    while (end := stream.latestOffset(start, ReadMaxBytes(3 << 20))) != start:
        batches = [batch for each in stream.partitions(start, end) for batch in stream.read(each)]
        sizes.append(sum(batch.column("payload").nbytes for batch in batches))
        start = end

    assert start["orders"]["next"] == 2010
    assert max(sizes) < 3.2 * (1 << 20), sizes
    assert len(sizes) < 8, sizes


def test_what_cannot_be_read_is_said_on_the_driver(store: Store, tmp_path: Path, s3: S3) -> None:
    store.append("orders", 1)
    (tmp_path / "empty").mkdir()

    with pytest.raises(NotFound, match=r"no queue 'nothing' in the store .*; there are: orders"):
        store.reader("nothing").partitions()
    with pytest.raises(Unavailable, match=r"there is no store at .*empty/main"):
        batch_reader(f"s3://{s3.bucket}/empty").partitions()
    with pytest.raises(Unavailable, match=r"no-such-bucket/x/main cannot be used: (?s:.*)NoSuchBucket"):
        batch_reader("s3://no-such-bucket/x").partitions()
    with pytest.raises(Unavailable, match="is no data directory"):
        batch_reader(f"file://{tmp_path}/empty").partitions()
    with pytest.raises(Refused, match="needs a broker"):
        store.stream(consumerGroup="etl")
