"""A running broker's queues as DataFrames and streams, and its restarts in the middle of them."""

import json
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import cast

import httpx
import pika
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from headrace.errors import Truncated
from headrace.spark import HeadraceDataSource
from headrace.spark.client import Client
from headrace.spark.options import read_options
from headrace.spark.reader import BatchReader
from headrace.spark.stream import StreamReader
from tests.integration.spark.conftest import WAIT_SECONDS, Broker
from tests.paho_helpers import Paho
from tests.servers import drain


def load(spark: SparkSession, broker: Broker, queues: str, **options: object) -> DataFrame:
    reader = spark.read.format("headrace").option("url", broker.url)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(queues)


def test_the_broker_and_its_directory_give_the_same_table(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.publish("orders", 50)
    broker.publish("returns", 5)
    device = Paho(broker.server.mqtt_port, "device")
    device.sure("$queue/returns/6", "returns 5", user=[("tenant", "a"), ("n", "5")], ContentType="text/plain")
    device.close()

    through = load(spark, broker, "orders,returns", includeHeaders=True).orderBy("queue", "offset").collect()
    beside = spark.read.format("headrace").option("url", str(tmp_path / "data")).option("includeHeaders", "true")
    direct = beside.load("orders,returns").orderBy("queue", "offset").collect()

    assert through == direct
    assert (through[-1].content_type, through[-1].headers) == ("text/plain", {"tenant": "a", "n": "5"})
    assert [bytes(row.payload) for row in through[:50]] == [f"orders {number}".encode() for number in range(50)]


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "100"}], ids=["with its plan", "by tasks"])
def test_a_small_batch_of_a_stream_has_the_rows_of_a_batch_read(
    spark: SparkSession, broker: Broker, tmp_path: Path, limit: dict[str, str]
) -> None:
    broker.publish("orders", 3)
    device = Paho(broker.server.mqtt_port, "device")
    device.sure("$queue/orders/4", "orders 3", user=[("tenant", "a"), ("n", "5")], ContentType="text/plain")
    device.close()
    found: list[Row] = []
    stream = spark.readStream.format("headrace").option("url", broker.url).option("includeHeaders", "true")
    writer = stream.options(**limit).load("orders").writeStream.option("checkpointLocation", str(tmp_path / "at"))

    query = writer.foreachBatch(lambda frame, _: found.extend(frame.collect())).trigger(availableNow=True).start()

    assert query.awaitTermination(WAIT_SECONDS)
    assert len(found) == 4
    assert found == load(spark, broker, "orders", includeHeaders=True).collect()
    assert found[-1].headers == {"tenant": "a", "n": "5"}


def test_no_plan_shows_a_password(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    secret = "hunter2hunter2"
    for path, body in (
        ("users/reader", {"password": secret, "tags": ""}),
        ("permissions/%2F/reader", {"configure": "", "write": "", "read": ".*"}),
    ):
        assert httpx.put(f"{broker.url}/api/{path}", json=body, timeout=30, verify=False).is_success
    broker.publish("orders", 3)
    url = f"http://reader:{secret}@127.0.0.1:{broker.server.http_port}"
    reader = spark.read.format("headrace").option("url", url)
    frame = reader.load("orders").where("offset > 0")

    assert frame.count() == 2
    shown = [str(frame._jdf.queryExecution()), frame._jdf.queryExecution().stringWithStats()]
    shown += [str(reader.option("password", secret).load("orders")._jdf.queryExecution())]
    stream = spark.readStream.format("headrace").option("url", url).load("orders").writeStream
    stream = stream.format("memory").queryName("secrets").option("checkpointLocation", str(tmp_path / "at"))
    query = stream.trigger(availableNow=True).start()
    assert query.awaitTermination(WAIT_SECONDS)
    shown += [str(query._jsq.explainInternal(True)), str(query.lastProgress)]
    shown += [file.read_text(errors="replace") for file in (tmp_path / "at").rglob("*") if file.is_file()]

    assert all("orders" in text or "headrace" in text for text in shown[:4])
    assert [text for text in shown if secret in text] == []


def test_ranges_patterns_and_filters_work_through_the_broker(spark: SparkSession, broker: Broker) -> None:
    for queue in ("sensor-1", "sensor-2"):
        broker.publish(queue, 20)

    frame = load(spark, broker, "sensor-*", startingOffsets=5, endingOffsets=15, minPartitions=4)

    assert sorted((row.queue, row.offset) for row in frame.where("offset % 5 = 0").collect()) == [
        ("sensor-1", 5), ("sensor-1", 10), ("sensor-2", 5), ("sensor-2", 10),
    ]  # fmt: skip
    assert load(spark, broker, "sensor-1", startingOffsets="2100-01-01").count() == 0


def test_positions_are_by_queue_and_names_by_regular_expression(spark: SparkSession, broker: Broker) -> None:
    for queue in ("sensor-1", "sensor-2", "sensor-x"):
        broker.publish(queue, 5)
    reader = spark.read.format("headrace").option("url", broker.url).option("subscribePattern", "sensor-[0-9]{1,2}")
    reader = reader.option("startingOffsets", '{"sensor-1": {"0": 3}, "sensor-2": "2020-01-01"}')
    rows = reader.option("endingOffsets", '{"sensor-2": 2, "sensor-1": -1}').load().collect()

    assert sorted((row.queue, row.offset) for row in rows) == [
        ("sensor-1", 3), ("sensor-1", 4), ("sensor-2", 0), ("sensor-2", 1),
    ]  # fmt: skip
    with pytest.raises(PySparkException, match="option startingOffsets has queue 'other', which is not read: sensor-1"):
        reader.option("startingOffsets", '{"other": 1}').load().count()


@pytest.mark.parametrize("place", ["broker", "directory"])
def test_all_properties_are_columns_and_headers_keep_their_types(
    spark: SparkSession, broker: Broker, tmp_path: Path, place: str
) -> None:
    channel = broker.declare("orders")
    properties = pika.BasicProperties(
        "text/plain", "gzip", {"n": 5, "deep": {"a": [1]}}, 2, 7, "c1", "replies", "60000", "m1", 1_767_225_600,
        "order", "guest", "app",
    )  # fmt: skip
    channel.basic_publish("", "orders", b"x", properties)
    channel.basic_publish("", "orders", b"bare")
    url = broker.url if place == "broker" else str(tmp_path / "data")
    reader = spark.read.format("headrace").option("url", url).option("includeProperties", "true")

    full, bare = reader.option("includeHeaders", "typed").load("orders").orderBy("offset").collect()

    assert (full.message_id, full.correlation_id, full.reply_to, full.type) == ("m1", "c1", "replies", "order")
    assert (full.app_id, full.user_id, full.content_encoding, full.expiration) == ("app", "guest", "gzip", "60000")
    assert (full.delivery_mode, full.sent_at, full.protocol) == (2, datetime(2026, 1, 1), "amqp091")
    assert [(each.key, each.type, bytes(each.value)) for each in full.headers] == [
        ("n", "int", b"\0\0\0\5"),
        ("deep", "map", b'{"a":[1]}'),
    ]
    assert (bare.message_id, bare.delivery_mode, bare.sent_at, bare.headers) == (None, None, None, None)


def test_a_secret_in_a_file_shows_in_no_plan(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.publish("orders", 2)
    (tmp_path / "secret").write_text("guest")
    url = broker.url.replace("guest:guest@", "")
    reader = spark.read.format("headrace").option("url", url).option("user", "guest")
    frame = reader.option("passwordFile", str(tmp_path / "secret")).load("orders")

    assert frame.count() == 2
    plan = frame._jdf.queryExecution().toString()
    assert "guest:" not in plan
    assert "password=guest" not in plan


def test_a_batch_waits_for_enough_messages_or_long_enough(broker: Broker) -> None:
    broker.publish("orders", 3)
    reader = stream_reader(broker, minOffsetsPerTrigger="5", maxTriggerDelay="1h")
    hasty = stream_reader(broker, minOffsetsPerTrigger="5", maxTriggerDelay="1ms")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert end["orders"]["next"] == 3  # the first batch waits for nothing

    broker.publish("orders", 4, 3)
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    broker.publish("orders", 1, 7)
    assert reader.latestOffset(end, ReadAllAvailable())["orders"]["next"] == 8
    assert hasty.latestOffset(end, ReadAllAvailable())["orders"]["next"] == 8
    assert hasty.latestOffset({"orders": {**end["orders"], "next": 7}}, ReadAllAvailable())["orders"]["next"] == 8
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset({"orders": {**end["orders"], "next": 7}}, ReadAllAvailable())["orders"]["next"] == 8
    reader.stop()
    hasty.stop()


def test_a_query_that_begins_without_messages_waits_for_enough(broker: Broker) -> None:
    broker.publish("orders", 3)
    reader = stream_reader(broker, minOffsetsPerTrigger="5", maxTriggerDelay="1h", startingOffsets="latest")
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())

    broker.publish("orders", 4, 3)
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    broker.publish("orders", 1, 7)

    assert reader.latestOffset(start, ReadAllAvailable())["orders"]["next"] == 8
    reader.stop()


@pytest.mark.parametrize(
    ("url", "queue", "said"),
    [
        ("http://guest:wrong@127.0.0.1:{port}", "orders", "check options user and password"),
        ("http://127.0.0.1:{port}", "nothing", "no queue 'nothing' in virtual host '/' of .*; there are: orders"),
    ],
)
def test_what_the_broker_refuses_is_said(spark: SparkSession, broker: Broker, url: str, queue: str, said: str) -> None:
    broker.publish("orders", 1)
    reader = spark.read.format("headrace").option("url", url.format(port=broker.server.http_port))

    with pytest.raises(PySparkException, match=said):
        reader.load(queue).count()


def test_a_broker_that_cannot_be_reached_is_said_to_be_so() -> None:
    server = read_options({"url": "http://127.0.0.1:1", "path": "orders"}).server
    assert server is not None

    with pytest.raises(Exception, match=r"the broker at http://127\.0\.0\.1:1 cannot be reached"):
        Client(server, patience_seconds=0.3).json("GET", "/bulk/queues", {})


def test_a_stream_survives_restarts_of_the_broker_and_reports_how_far_it_is(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.publish("orders", 10)
    seen: list[int] = []

    def take(frame: DataFrame, _: int) -> None:
        seen.extend(row.offset for row in frame.select("offset").collect())

    reader = spark.readStream.format("headrace").option("consumerGroup", "spark")
    http_port, amqp_port = broker.server.http_port, broker.server.port
    frame = reader.option("url", broker.url).load("orders")
    query = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.processAllAvailable()

    broker.server.kill()
    broker.server.start(http_port=http_port, amqp_port=amqp_port)
    broker.publish("orders", 10, 10)
    deadline = time.monotonic() + WAIT_SECONDS
    while len(seen) < 20:
        assert time.monotonic() < deadline, query.exception()
        time.sleep(0.1)
    broker.publish("orders", 1, 20)
    query.processAllAvailable()

    assert seen == list(range(21))
    bounds: dict[str, int] = {}
    while bounds.get("spark") != 21:
        assert time.monotonic() < deadline, bounds
        answer = httpx.get(f"{broker.url}/bulk/queues", params={"name": "orders"}, timeout=60, verify=False)
        bounds = answer.json()["queues"]["orders"]["groups"]
        time.sleep(0.05)
    query.stop()


def test_a_read_goes_on_where_the_broker_was_killed(broker: Broker) -> None:
    broker.publish("orders", 100)
    source = HeadraceDataSource({"url": broker.url, "path": "orders"})
    reader = source.reader(source.schema())
    there = cast("BatchReader", reader)
    (partition,) = reader.partitions()
    http_port = broker.server.http_port

    broker.server.kill()
    starting = threading.Timer(0.5, lambda: broker.server.start(http_port=http_port))
    starting.start()
    found = [offset for batch in there.read(partition) for offset in batch.column("offset").to_pylist()]
    starting.join()

    assert found == list(range(100))


def planned(broker: Broker, **options: object) -> Callable[[], list[int]]:
    """A read whose partitions are settled now, to be read later."""
    given = {"url": broker.url, "path": "orders", **{name: str(value) for name, value in options.items()}}
    source = HeadraceDataSource(given)
    reader = source.reader(source.schema())
    there, partitions = cast("BatchReader", reader), reader.partitions()

    def read() -> list[int]:
        batches = [batch for partition in partitions for batch in there.read(partition)]
        return [offset for batch in batches for offset in batch.column("offset").to_pylist()]

    return read


def test_a_read_has_as_many_partitions_as_were_asked_for(broker: Broker) -> None:
    broker.publish("orders", 10)
    source = HeadraceDataSource({"url": broker.url, "path": "orders", "minPartitions": "4"})
    reader = source.reader(source.schema())

    partitions = reader.partitions()

    assert len(partitions) >= 4
    read = cast("BatchReader", reader).read
    batches = [batch for partition in partitions for batch in read(partition)]
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == list(range(10))


def test_what_is_consumed_before_it_is_read_is_missed_only_where_it_was_asked_for(broker: Broker) -> None:
    broker.publish("orders", 10)
    reads = [planned(broker), planned(broker, startingOffsets="2020-01-01"), planned(broker, minPartitions=10)]
    lenient = planned(broker, startingOffsets=2, failOnDataLoss=False)
    strict = planned(broker, startingOffsets=2)

    drain(broker.declare("orders"), "orders", 4)
    broker.wait_for_start("orders", 4)

    assert [read() for read in (*reads, lenient)] == [[4, 5, 6, 7, 8, 9]] * 4
    with pytest.raises(Truncated, match="offsets 2 to 3 of queue 'orders' are gone"):
        strict()

    broker.declare().queue_purge("orders")
    broker.wait_for_start("orders", 10)
    assert [read() for read in reads] == [[], [], []]


def test_messages_that_are_gone_fail_a_stream(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    channel = broker.declare("log", **{"x-queue-type": "stream", "x-max-length": 10})
    for number in range(5):
        channel.basic_publish("", "log", str(number).encode())
    frame = spark.readStream.format("headrace").option("url", broker.url).load("log")

    def run() -> None:
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_SECONDS)

    run()
    for number in range(40):
        channel.basic_publish("", "log", str(number).encode())

    with pytest.raises(StreamingQueryException, match="of queue 'log' are gone"):
        run()
    offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))
    assert json.loads(offsets[0].read_text().splitlines()[-1])["log"]["next"] == 5


def test_a_queue_that_was_deleted_and_declared_again_is_noticed(broker: Broker) -> None:
    broker.publish("orders", 5)
    strict, lossy = stream_reader(broker, failOnDataLoss="true"), stream_reader(broker, failOnDataLoss="false")
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    (planned,) = strict.partitions(start, end)
    channel = broker.declare()
    channel.queue_delete("orders")
    broker.publish("orders", 8)

    with pytest.raises(Truncated, match="was read up to offset 5 and is another one now, up to 8"):
        strict.latestOffset(end, ReadAllAvailable())
    with pytest.raises(Truncated, match="queue 'orders' was deleted while offsets 0 to 5 of it were read"):
        list(strict.read(planned))
    assert list(lossy.read(planned)) == []
    following = lossy.latestOffset(end, ReadAllAvailable())
    batches = [batch for each in lossy.partitions(end, following) for batch in lossy.read(each)]
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == list(range(8))
    strict.stop()
    lossy.stop()


def test_bytes_of_a_trigger_are_counted_not_estimated(broker: Broker) -> None:
    channel = broker.declare("orders")
    broker.publish("orders", 2000)
    for _ in range(12):
        channel.basic_publish("", "orders", bytes(1 << 20))
    reader = stream_reader(broker, maxBytesPerTrigger="4m", minPartitions="3")
    start, sizes = reader.initialOffset(), []
    while (end := reader.latestOffset(start, ReadMaxBytes(4 << 20))) != start:
        batches = [batch for each in reader.partitions(start, end) for batch in reader.read(each)]
        sizes.append(sum(batch.column("payload").nbytes for batch in batches))
        start = end
    reader.stop()

    assert start["orders"]["next"] == 2012
    assert max(sizes) < 4.2 * (1 << 20), sizes
    assert len(sizes) < 8, sizes


def stream_reader(broker: Broker, **options: str) -> StreamReader:
    source = HeadraceDataSource({"url": broker.url, "path": "orders", **options})
    return cast("StreamReader", source.streamReader(source.schema()))
