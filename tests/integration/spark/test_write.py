"""DataFrames and streams written to queues: all rows or none, and each batch once."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.integration.spark.conftest import Broker

WAIT_SECONDS = 120


def write(frame: DataFrame, broker: Broker, queue: str | None = None, **options: str) -> None:
    writer = frame.write.format("headrace").option("url", broker.url).mode("append")
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save(queue)


def test_rows_become_messages_with_all_their_columns(spark: SparkSession, broker: Broker) -> None:
    channel = broker.declare("orders")
    later = datetime.now(UTC) + timedelta(hours=1)
    frame = spark.createDataFrame(
        [("a", "orders/new", {"tenant": "x"}, "text/plain", 7, 60_000, None), ("b", None, None, None, 0, None, later)],
        "payload STRING, topic STRING, headers MAP<STRING,STRING>, content_type STRING, priority INT, "
        "expires_in_ms BIGINT, deliver_at TIMESTAMP",
    )

    write(frame.coalesce(1), broker, "orders")

    written = spark.read.format("headrace").option("url", broker.url).load("orders").where("offset = 0").collect()
    assert [(row.priority, row.expires_at - row.timestamp) for row in written] == [(7, timedelta(minutes=1))]
    method, properties, body = channel.basic_get("orders", auto_ack=True)
    assert (body, method.routing_key) == (b"a", "orders/new")
    assert (properties.content_type, properties.headers) == ("text/plain", {"tenant": "x"})
    assert properties.priority == 7
    assert channel.basic_get("orders") == (None, None, None)  # the other is for later
    broker.wait_for_start("orders", 1)
    rows = spark.read.format("headrace").option("url", broker.url).load("orders").orderBy("offset").collect()
    assert [(row.topic, row.priority, row.expires_at is None) for row in rows] == [("orders", 0, True)]


def test_many_partitions_are_one_commit_in_parts(spark: SparkSession, broker: Broker) -> None:
    broker.declare("orders")

    write(spark.range(0, 5000, numPartitions=5).selectExpr("CAST(id AS STRING) AS payload"), broker, "orders")
    write(spark.range(0).selectExpr("CAST(id AS STRING) AS payload"), broker, "orders")

    frame = spark.read.format("headrace").option("url", broker.url).load("orders")
    (row,) = frame.selectExpr("count(*) AS n", "count(DISTINCT payload) AS d").collect()
    assert (row.n, row.d) == (5000, 5000)


def test_exchanges_and_topics_are_written_to(spark: SparkSession, broker: Broker) -> None:
    channel = broker.declare("eu", "plant")
    channel.queue_bind("eu", "amq.direct", "eu")
    channel.queue_bind("plant", "amq.topic", "plant.#")
    frame = spark.createDataFrame([("1", "eu"), ("2", "us")], "payload STRING, routing_key STRING")

    write(frame, broker, exchange="amq.direct")
    write(frame.select("payload"), broker, topic="plant/7")

    assert broker.payloads("eu") == ["1"]
    assert sorted(broker.payloads("plant")) == ["1", "2"]


def test_each_row_may_say_where_it_goes_and_when(spark: SparkSession, broker: Broker) -> None:
    channel = broker.declare("eu", "us", "later")
    channel.queue_bind("us", "amq.direct", "us")
    rows = [
        ("1", "eu", None, None, 3, "60000", None),
        ("2", None, "amq.direct", "us", 0, None, None),
        ("3", "later", None, None, 0, None, 3_600_000),
        ("4", "eu", None, "x", 5, None, None),
    ]
    frame = spark.createDataFrame(
        rows,
        "payload STRING, queue STRING, exchange STRING, routing_key STRING, priority INT, expiration STRING, "
        "delay BIGINT",
    )

    frame.coalesce(1).write.format("headrace").option("url", broker.url).mode("append").save()

    assert [broker.payloads(queue) for queue in ("eu", "us", "later")] == [["1", "4"], ["2"], ["3"]]
    assert channel.basic_get("later") == (None, None, None)
    read = spark.read.format("headrace").option("url", broker.url).load("eu").orderBy("offset").collect()
    assert [(row.routing_key, row.priority) for row in read] == [("eu", 3), ("x", 5)]
    assert read[0].expires_at - read[0].timestamp == timedelta(minutes=1)
    assert read[1].expires_at is None


def test_a_stream_goes_to_the_queues_that_its_rows_name(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.publish("in", 6)
    broker.declare("even", "odd")
    frame = spark.readStream.format("headrace").option("url", broker.url).load("in")
    routed = frame.selectExpr("payload", "IF(offset % 2 = 0, 'even', 'odd') AS queue")
    writer = routed.writeStream.format("headrace").option("url", broker.url)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)

    assert writer.start().awaitTermination(WAIT_SECONDS)

    assert [broker.payloads(queue) for queue in ("even", "odd")] == [
        [f"in {number}" for number in (0, 2, 4)],
        [f"in {number}" for number in (1, 3, 5)],
    ]


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.declare("orders")
    frame = spark.range(0, 100, numPartitions=4).selectExpr(
        "IF(id = 99, raise_error('no such message'), CAST(id AS STRING)) AS payload"
    )

    with pytest.raises(PySparkException, match="no such message"):
        write(frame, broker, "orders")

    assert broker.payloads("orders") == []
    deadline = time.monotonic() + WAIT_SECONDS
    while any((tmp_path / "data" / "staging").rglob("*.part")):  # of tasks that are being refused right now
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_same_transaction_is_stored_once(spark: SparkSession, broker: Broker) -> None:
    broker.declare("orders")
    frame = spark.createDataFrame([("a",)], "payload STRING")

    for _ in range(2):
        write(frame, broker, "orders", transactionId="night-2026-01-01")

    assert broker.payloads("orders") == ["a"]


@pytest.mark.parametrize(
    ("sql", "options", "said"),
    [
        ("SELECT 1 AS id", {}, "there is no column payload among id"),
        ("SELECT 1 AS payload", {}, "the column payload is int"),
        ("SELECT 'a' AS payload, 1 AS colour", {}, "a message has no column 'colour'"),
        ("SELECT 'a' AS payload", {"exchange": "amq.direct"}, "say where to write, once"),
        ("SELECT 'a' AS payload, 'x' AS queue", {}, "the column queue says where each row goes, and so does the write"),
        ("SELECT 'a' AS payload, 1 AS delay, now() AS deliver_at", {}, "one of the columns deliver_at and delay"),
        ("SELECT 'a' AS payload, 'soon' AS expiration", {}, "whole numbers of milliseconds"),
        ("SELECT 'a' AS payload, 300 AS priority", {}, "'priority' is not from 0 to 255"),
        ("SELECT 'a' AS payload", {"url": "/data"}, "cannot be written to directly"),
    ],
)
def test_what_cannot_be_written_is_refused(
    spark: SparkSession, broker: Broker, sql: str, options: dict[str, str], said: str
) -> None:
    broker.declare("orders")

    with pytest.raises(PySparkException, match=said):
        write(spark.sql(sql), broker, "orders", **options)


def test_names_of_columns_are_taken_in_any_case(spark: SparkSession, broker: Broker) -> None:
    broker.declare("orders")
    frame = spark.range(2).selectExpr("string(id) AS PAYLOAD", "'x' AS Topic")

    frame.write.format("headrace").option("url", broker.url).mode("append").save("orders")

    assert sorted(broker.payloads("orders")) == ["0", "1"]


def test_queues_are_never_overwritten(spark: SparkSession, broker: Broker) -> None:
    frame = spark.sql("SELECT 'a' AS payload")

    with pytest.raises(PySparkException, match=r'use .mode\("append"\)'):
        frame.write.format("headrace").option("url", broker.url).mode("overwrite").save("orders")


class Copy:
    """A streaming query from one queue to another."""

    def __init__(self, spark: SparkSession, broker: Broker, checkpoint: Path) -> None:
        self._spark = spark
        self._broker = broker
        self.checkpoint = checkpoint

    def run(self, expression: str = "payload") -> StreamingQuery:
        reader = self._spark.readStream.format("headrace").option("url", self._broker.url)
        frame = reader.option("maxOffsetsPerTrigger", "10").load("in").selectExpr(f"{expression} AS payload")
        writer = frame.writeStream.format("headrace").option("url", self._broker.url)
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start("out")
        assert query.awaitTermination(WAIT_SECONDS)
        return query


def test_a_stream_from_queue_to_queue_stores_every_message_once(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.publish("in", 25)
    broker.declare("out")
    copy = Copy(spark, broker, tmp_path / "checkpoint")

    copy.run()
    broker.publish("in", 5, 25)
    copy.run()

    assert broker.payloads("out") == [f"in {number}" for number in range(30)]


def test_a_batch_that_was_committed_and_comes_again_is_stored_once(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.publish("in", 25)
    broker.declare("out")
    copy = Copy(spark, broker, tmp_path / "checkpoint")
    copy.run()

    (copy.checkpoint / "commits" / "2").unlink()  # as if the driver died right behind the sink's commit
    for checksum in (copy.checkpoint / "commits").glob(".2.crc"):
        checksum.unlink()
    query = copy.run()

    assert [progress.numInputRows for progress in query.recentProgress] == [5]
    assert broker.payloads("out") == [f"in {number}" for number in range(25)]


def test_a_stream_whose_task_fails_goes_on_later_without_a_trace(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.publish("in", 25)
    broker.declare("out")
    copy = Copy(spark, broker, tmp_path / "checkpoint")

    with pytest.raises(StreamingQueryException, match="not this one"):
        copy.run("IF(payload = CAST('in 15' AS BINARY), CAST(raise_error('not this one') AS BINARY), payload)")
    assert broker.payloads("out") == [f"in {number}" for number in range(10)]

    copy.run()
    assert broker.payloads("out") == [f"in {number}" for number in range(25)]
