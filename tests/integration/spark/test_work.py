"""Work queues read by Spark: shared with ordinary consumers, acknowledged when it is done, given back when it dies."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import httpx
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery

from headrace.errors import Refused
from headrace.spark import HeadraceDataSource, Work
from headrace.spark.work import WorkStreamReader
from tests.integration.spark.conftest import WAIT_SECONDS, Broker
from tests.servers import drain

JOB = """
import json, sys, time
from pyspark.sql.streaming.datasource import ReadMaxRows
from headrace.spark import HeadraceDataSource

source = HeadraceDataSource({"url": sys.argv[1], "path": "orders", "mode": "work", "leaseSeconds": "2"})
reader = source.streamReader(source.schema())
print(json.dumps(reader.latestOffset(reader.initialOffset(), ReadMaxRows(5))), flush=True)
time.sleep(600)
"""


class Copy:
    """A query that moves messages from one work queue to another."""

    def __init__(self, spark: SparkSession, broker: Broker, checkpoint: Path) -> None:
        self._spark = spark
        self._broker = broker
        self._checkpoint = checkpoint

    def run(self, expression: str = "payload") -> StreamingQuery:
        """Move all that waits now."""
        reader = self._spark.readStream.format("headrace").option("url", self._broker.url).option("mode", "work")
        frame = reader.option("maxOffsetsPerTrigger", "40").option("minPartitions", "2").load("in")
        writer = frame.selectExpr(f"{expression} AS payload").writeStream.format("headrace")
        writer = writer.option("url", self._broker.url).option("checkpointLocation", str(self._checkpoint))
        query = writer.trigger(availableNow=True).start("out")
        assert query.awaitTermination(WAIT_SECONDS)
        return query


@contextmanager
def stream_reader(broker: Broker, **options: str) -> Iterator[WorkStreamReader]:
    source = HeadraceDataSource({"url": broker.url, "path": "orders", "mode": "work", **options})
    reader = cast("WorkStreamReader", source.streamReader(source.schema()))
    try:
        yield reader
    finally:
        reader.stop()


def offsets(reader: WorkStreamReader, start: dict[str, object], end: dict[str, object]) -> list[int]:
    crossed = [json.loads(json.dumps(offset)) for offset in (start, end)]
    batches = [batch for partition in reader.partitions(*crossed) for batch in reader.read(partition)]
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_a_stream_shares_a_queue_with_consumers_and_leaves_nothing_behind(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.publish("in", 100)
    channel = broker.declare("out")
    held = [channel.basic_get("in") for _ in range(10)]
    copy = Copy(spark, broker, tmp_path / "checkpoint")

    copy.run()
    for method, _, _ in held[:9]:
        channel.basic_ack(method.delivery_tag)
    channel.basic_nack(held[9][0].delivery_tag, requeue=True)
    copy.run()

    assert sorted(broker.payloads("out")) == sorted(f"in {number}" for number in range(9, 100))
    broker.wait_for_start("in", 100)


def test_a_batch_that_failed_comes_again_with_the_same_messages(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.publish("in", 100)
    broker.declare("out")
    copy = Copy(spark, broker, tmp_path / "checkpoint")

    with pytest.raises(StreamingQueryException, match="not this one"):
        copy.run("IF(payload = CAST('in 55' AS BINARY), CAST(raise_error('not this one') AS BINARY), payload)")
    assert sorted(broker.payloads("out")) == sorted(f"in {number}" for number in range(40))
    copy.run()

    assert sorted(broker.payloads("out")) == sorted(f"in {number}" for number in range(100))
    broker.wait_for_start("in", 100)


def test_a_batch_is_acknowledged_when_the_next_one_is_asked_for_also_by_another_process(broker: Broker) -> None:
    broker.publish("orders", 8)
    with stream_reader(broker) as first:
        start = first.initialOffset()
        end = first.latestOffset(start, ReadMaxRows(5))
        assert first.latestOffset(start, ReadMaxRows(5)) == end

    with stream_reader(broker) as other:  # the driver died, and its successor reads the checkpoint
        assert offsets(other, start, end) == [0, 1, 2, 3, 4]
        following = other.latestOffset(end, ReadMaxRows(5))
        broker.wait_for_start("orders", 5)
        assert offsets(other, end, following) == [5, 6, 7]
        other.commit(following)
        broker.wait_for_start("orders", 8)
        assert other.latestOffset(following, ReadMaxRows(5)) == following


def test_claims_survive_the_broker_as_far_as_nobody_else_has_them(broker: Broker) -> None:
    broker.publish("orders", 8)
    ports = {"http_port": broker.server.http_port, "amqp_port": broker.server.port}
    with stream_reader(broker, leaseSeconds="2") as reader:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadMaxRows(5))

        broker.server.kill()
        broker.server.start(**ports)
        deadline = time.monotonic() + WAIT_SECONDS
        while len(pending(broker)) < 5:  # renewed by the reader in the background
            assert time.monotonic() < deadline
            time.sleep(0.05)

        assert drain(broker.declare("orders"), "orders", 3) == [b"orders 5", b"orders 6", b"orders 7"]
        assert offsets(reader, start, end) == [0, 1, 2, 3, 4]
        assert reader.latestOffset(end, ReadMaxRows(5)) == end
    broker.wait_for_start("orders", 8)


@pytest.mark.parametrize("planner", ["the process that read them", "the process behind it"])
def test_messages_that_others_had_when_a_batch_came_again_are_not_acknowledged_with_it(
    broker: Broker, planner: str
) -> None:
    broker.publish("orders", 8)
    with stream_reader(broker, leaseSeconds="1") as first:
        start = first.initialOffset()
        end = first.latestOffset(start, ReadMaxRows(5))
    channel = broker.declare("orders")  # its driver died, and others get its messages after the lease
    taken = [channel.basic_get("orders") for _ in range(3)]  # those behind them
    deadline = time.monotonic() + WAIT_SECONDS
    while len(taken) < 6:
        assert time.monotonic() < deadline
        found = channel.basic_get("orders")
        taken += [found] if found[0] is not None else []
    with stream_reader(broker, leaseSeconds="60") as other:
        assert offsets(other, start, end) == [3, 4]
        for method, _, _ in taken:
            channel.basic_nack(method.delivery_tag)  # they need another try
        wait_until_ready(broker, 6)
        if planner == "the process that read them":
            other.latestOffset(end, ReadMaxRows(1))
    if planner == "the process behind it":
        with stream_reader(broker, leaseSeconds="60") as last:
            last.latestOffset(end, ReadMaxRows(1))

    again = drain(channel, "orders", 5)
    assert len(again) == 5
    assert {b"orders 3", b"orders 4"}.isdisjoint(again)


def wait_until_ready(broker: Broker, count: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    ready = -1
    while ready < count:
        assert time.monotonic() < deadline, f"{ready} messages are ready"
        time.sleep(0.05)
        answer = httpx.get(f"{broker.url}/api/queues/%2F/orders", timeout=30, verify=False)
        ready = answer.json()["messages_ready"]


def pending(broker: Broker) -> dict[int, str]:
    """By offset, until when a message is held."""
    answer = httpx.get(f"{broker.url}/api/v1/queues/%2F/orders/groups/default/pending", timeout=30, verify=False)
    if answer.status_code == 404:  # not stored yet when the broker was killed
        return {}
    assert answer.status_code == 200, answer.text
    return {each["offset"]: each["due"] for each in answer.json()["items"] if each["consumer"]}


def test_the_claims_of_a_killed_job_are_renewed_until_it_dies_and_then_go_to_others(broker: Broker) -> None:
    broker.publish("orders", 8)
    with subprocess.Popen([sys.executable, "-c", JOB, broker.url], stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert json.loads(job.stdout.readline())["taken"] == {"orders": [[0, 5]]}
        before = pending(broker)
        deadline = time.monotonic() + WAIT_SECONDS
        while min(pending(broker).values()) <= max(before.values()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        channel = broker.declare("orders")
        assert drain(channel, "orders", 3) == [b"orders 5", b"orders 6", b"orders 7"]
        os.kill(job.pid, signal.SIGKILL)

    assert drain(channel, "orders", 5) == [f"orders {number}".encode() for number in range(5)]
    broker.wait_for_start("orders", 8)


def test_a_batch_acknowledges_at_the_end_and_gives_back_when_it_failed(spark: SparkSession, broker: Broker) -> None:
    broker.publish("orders", 6)
    channel = broker.declare("orders")
    _, _, body = channel.basic_get("orders", auto_ack=True)

    def fail() -> None:
        with Work(spark, "orders", url=broker.url) as frame:
            assert frame.count() == 5
            assert channel.basic_get("orders") == (None, None, None)
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fail()
    with Work(spark, "orders", most=4, url=broker.url, includeHeaders="true") as frame:
        taken = [bytes(row.payload) for row in frame.orderBy("offset").collect()]
    broker.wait_for_start("orders", 5)
    with Work(spark, "orders", url=broker.url) as frame:
        rest = [bytes(row.payload) for row in frame.collect()]
    with Work(spark, "orders", url=broker.url) as frame:
        assert frame.count() == 0

    assert [body, *taken, *rest] == [f"orders {number}".encode() for number in range(6)]
    broker.wait_for_start("orders", 6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, r"with headrace\.spark\.Work\(spark, queue, url=\.\.\.\) as frame"),
        ({"url": "/data"}, "option mode=work needs a broker"),
        ({"startingOffsets": "5"}, "option startingOffsets means nothing with mode=work"),
        ({"mode": "play"}, "option mode is 'play'; it may be log or work"),
        ({"mode": "log", "leaseSeconds": "5"}, "option leaseSeconds means nothing without mode=work"),
    ],
)
def test_what_makes_no_sense_is_refused(
    spark: SparkSession, broker: Broker, options: dict[str, str], said: str
) -> None:
    reader = spark.read.format("headrace").options(**{"url": broker.url, "mode": "work", **options})

    with pytest.raises(PySparkException, match=said):
        reader.load("orders").count()


def test_streams_are_not_work(broker: Broker) -> None:
    broker.declare("orders", **{"x-queue-type": "stream"})

    with (
        stream_reader(broker) as reader,
        pytest.raises(Refused, match="is a stream: read it, there is nothing to claim"),
    ):
        reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))
