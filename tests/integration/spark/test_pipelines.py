"""Pipelines between queues and files, through a running broker: every message once, also when started again."""

import json
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import httpx
import pika
import proton
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from proton import Message as ProtonMessage
from proton.utils import BlockingConnection
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headrace.errors import Refused, TooLarge
from headrace.model import AMQP091, AMQP10, MQTT5
from headrace.spark.client import Client, Query
from headrace.spark.pipelines.archive import ArchiveSettings, run_archive
from headrace.spark.pipelines.assign import AssignSettings, read_filters, run_assign
from headrace.spark.pipelines.compact import Compacted, CompactSettings, run_compact
from headrace.spark.pipelines.endpoint import Endpoint
from headrace.spark.pipelines.file import Defaults, read_job
from headrace.spark.pipelines.job import run_job
from headrace.spark.pipelines.replay import ReplaySettings, run_replay
from headrace.spark.pipelines.run import Progress
from headrace.spark.pipelines.sql import SqlSettings, SqlSource, run_sql
from tests.integration.spark.conftest import Broker
from tests.paho_helpers import Paho
from tests.servers import Server, serving
from tests.waiting import eventually


def publish_readings(broker: Broker, count: int, start: int = 0) -> None:
    """Readings of three devices; the temperature is the number, the topic in the body is not the message's."""
    channel = broker.declare("telemetry")
    for number in range(start, start + count):
        reading = {"device": f"d{number % 3}", "temperature": number + 0.5, "topic": "inner"}
        channel.basic_publish("", "telemetry", json.dumps(reading).encode())


def settings(broker: Broker, tmp_path: Path, query: str, **changes: object) -> SqlSettings:
    source = SqlSource("telemetry", watermark=str(changes.pop("watermark", "")), schema=str(changes.pop("schema", "")))
    name = str(changes.pop("name", "hot"))
    made = SqlSettings(name, Endpoint(broker.url), (source,), query, tmp_path / "state" / name, once=True)
    return SqlSettings(**{**vars(made), **({} if "parquet" in changes else {"queue": "alerts"}), **changes})


def test_rows_of_a_query_become_json_messages_each_once(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    publish_readings(broker, 100)
    broker.declare("alerts")
    query = settings(broker, tmp_path, "SELECT device, temperature, body.topic FROM telemetry WHERE temperature > 97")

    first = run_sql(spark, query)
    publish_readings(broker, 2, 100)
    second = run_sql(spark, query)

    assert [json.loads(text) for text in broker.payloads("alerts")] == [
        {"device": f"d{number % 3}", "temperature": number + 0.5, "topic": "inner"} for number in range(97, 102)
    ]
    assert (first.messages, second.messages, second.behind) == (100, 2, 0)


def test_messages_are_forwarded_as_they_are_when_the_payload_is_selected(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    publish_readings(broker, 3)
    broker.declare("alerts")

    run_sql(spark, settings(broker, tmp_path, "SELECT * FROM messages WHERE temperature > 2"))

    assert broker.payloads("alerts") == ['{"device": "d2", "temperature": 2.5, "topic": "inner"}']


def test_windows_with_a_watermark_are_written_to_parquet_when_they_are_over(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    channel = broker.declare("telemetry")
    for second in (0, 20, 40, 70, 900):
        reading = {"at": f"2026-01-31T12:{second // 60:02}:{second % 60:02}Z", "value": second}
        channel.basic_publish("", "telemetry", json.dumps(reading).encode())
    query = settings(
        broker,
        tmp_path,
        "SELECT window.start AS start, count(*) AS n FROM telemetry GROUP BY window(at, '1 minute')",
        parquet=str(tmp_path / "out"),
        schema="at TIMESTAMP, value INT",
        watermark="at 2 minutes",
    )

    run_sql(spark, query)

    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("start").collect()
    assert [(row.start.minute, row.n) for row in rows] == [(0, 3), (1, 1)]


@pytest.mark.parametrize(
    ("query", "changes", "said"),
    [
        ("SELECT nothing FROM telemetry", {}, "`nothing` cannot be resolved"),
        ("SELEC device FROM telemetry", {}, "Syntax error at or near 'SELEC'"),
        ("SELECT payload, 1 AS colour FROM telemetry", {}, "a message has no column 'colour'"),
        ("SELECT device FROM telemetry", {"queue": "nowhere"}, "no queue 'nowhere'"),
        ("SELECT device FROM telemetry", {"queue": ""}, "say where the rows go, once"),
        ("SELECT device FROM telemetry", {"mode": "some"}, "mode 'some' is none of append, update, complete"),
        ("SELECT device FROM telemetry", {"schema": "device STRIN"}, "STRIN"),
        ("SELECT device FROM telemetry", {"endpoint": Endpoint("/data")}, "/data is a data directory"),
    ],
)
def test_what_is_wrong_with_a_query_is_said(
    spark: SparkSession, broker: Broker, tmp_path: Path, query: str, changes: dict[str, object], said: str
) -> None:
    publish_readings(broker, 3)
    broker.declare("alerts")

    with pytest.raises(Refused, match=said):
        run_sql(spark, settings(broker, tmp_path, query, **changes))


def test_a_state_is_one_pipelines_own(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    publish_readings(broker, 3)
    broker.declare("alerts")
    run_sql(spark, settings(broker, tmp_path, "SELECT device FROM telemetry"))

    with pytest.raises(Refused, match="belongs to a pipeline whose query is 'SELECT device FROM telemetry'"):
        run_sql(spark, settings(broker, tmp_path, "SELECT temperature FROM telemetry"))


def test_pipelines_of_a_file_run_together(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    publish_readings(broker, 10)
    broker.declare("alerts", "d1", "d2")
    file = tmp_path / "pipelines.yaml"
    file.write_text(
        f"""
        pipelines:
          hot: {{from: telemetry, to: alerts, sql: SELECT device FROM telemetry WHERE temperature > 8}}
          keep: {{type: archive, from: telemetry, to: {tmp_path / "archive"}}}
          split:
            type: assign
            from: telemetry
            filters:
              d1: "offset IN (1, 4)"
              d2: "topic LIKE 'tele%' AND offset > 7"
        """
    )

    done = run_job(spark, read_job(file, Defaults(Endpoint(broker.url), True, tmp_path / "states")))

    assert [(each.name, each.messages) for each in done] == [("hot", 10), ("keep", 10), ("split", 10)]
    assert broker.payloads("alerts") == ['{"device":"d2"}', '{"device":"d0"}']
    assert [len(broker.payloads(queue)) for queue in ("d1", "d2")] == [2, 2]
    assert spark.read.parquet(str(tmp_path / "archive")).count() == 10


def test_an_archive_has_every_message_once_and_can_be_replayed(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.publish("orders", 20)
    broker.publish("returns", 5)
    broker.declare("again")
    archive = ArchiveSettings("archive", Endpoint(broker.url), "orders,returns", tmp_path / "archive", once=True)
    run_archive(spark, archive)
    broker.publish("orders", 5, 20)
    run_archive(spark, archive)

    rows = spark.read.parquet(str(archive.directory)).collect()
    assert sorted((row.queue, bytes(row.payload).decode()) for row in rows) == sorted(
        [("orders", f"orders {number}") for number in range(25)]
        + [("returns", f"returns {number}") for number in range(5)]
    )
    assert {row.date for row in rows} == {row.timestamp.date() for row in rows}

    replay = ReplaySettings(
        "replay", Endpoint(broker.url), "orders", "again", tmp_path / "replay", str(archive.directory), "5",
        filter="offset < 24 AND topic = 'orders'", rate=15, mark=True,
    )  # fmt: skip
    done = run_replay(spark, replay)

    assert broker.payloads("again") == [f"orders {number}" for number in range(5, 24)]
    assert (done.messages, done.batches) == (19, 2)  # a second's worth at a time
    copies = spark.read.format("headrace").option("url", broker.url).option("includeHeaders", "true").load("again")
    headers = {row.headers["x-original-offset"]: row.headers for row in copies.collect()}
    original = next(row for row in rows if row.queue == "orders" and row.offset == 7)
    assert headers["7"] == {
        "x-original-offset": "7",
        "x-original-queue": "orders",
        "x-original-timestamp": original.timestamp.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }


@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_an_archive_is_a_table_that_has_every_message_once_also_when_a_batch_comes_again(
    spark: SparkSession, broker: Broker, tmp_path: Path, format_: str
) -> None:
    broker.publish("orders", 20)
    broker.publish("returns", 5)
    archive = tmp_path / "archive"
    settings = ArchiveSettings(
        "archive", Endpoint(broker.url), "orders,returns", archive, once=True, max_bytes="1k", format=format_
    )
    run_archive(spark, settings)
    last = max((archive / "_headrace/checkpoint/commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()  # as if the driver was killed between the commit of the table and that of Spark
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    broker.publish("orders", 5, 20)
    run_archive(spark, settings)

    if format_ == "delta":
        rows = DeltaTable(str(archive)).to_pyarrow_table().to_pylist()
        assert DeltaTable(str(archive)).metadata().partition_columns == ["queue", "date"]
    else:
        catalog = SqlCatalog("headrace", uri=f"sqlite:///{archive / 'catalog.db'}", warehouse=archive.as_uri())
        rows = catalog.load_table("archive.messages").scan().to_arrow().to_pylist()
        for state in archive.rglob("*.metadata.json"):  # from the first one on
            found = json.loads(state.read_text())
            specs = {spec["spec-id"]: [field["name"] for field in spec["fields"]] for spec in found["partition-specs"]}
            assert specs[found["default-spec-id"]] == ["queue", "date"]
        catalog.close()
    assert sorted((row["queue"], row["payload"].decode()) for row in rows) == sorted(
        [("orders", f"orders {number}") for number in range(25)]
        + [("returns", f"returns {number}") for number in range(5)]
    )
    assert {row["date"] for row in rows} == {row["timestamp"].date() for row in rows}
    with pytest.raises(Refused, match=f"is an archive in the format {format_}; name another directory"):
        run_archive(spark, replace(settings, format="parquet"))


def stored(broker: Broker, queue: str) -> list[tuple[bytes, int, bytes, int, bool]]:
    """Payload, encoding, properties and priority of every message, and whether it expires."""
    query = {"queue": queue, "columns": "payload,encoding,properties,priority,expires_at"}
    answer = httpx.get(f"{broker.url}/bulk/messages", params=query, timeout=30)
    rows = pa.ipc.open_stream(answer.content).read_all().to_pylist()
    return [
        (row["payload"], row["encoding"], row["properties"], row["priority"], row["expires_at"] is not None)
        for row in rows
    ]


@pytest.mark.parametrize(
    "way", ["replay", "replay parquet", "replay delta", "replay iceberg", "compact", "compact in place"]
)
def test_every_property_survives_byte_for_byte(spark: SparkSession, broker: Broker, tmp_path: Path, way: str) -> None:
    queue = "orders of ä/1" if way == "replay delta" else "007"
    channel = broker.declare(queue, **{"x-queue-type": "stream"})
    headers = {"n": 5, "price": Decimal("1.50"), "nested": {"list": [1, b"\xff", None]}, "when": datetime(2026, 1, 1)}
    for number in (0, 0, 1):  # keys: of two messages, compact keeps the later one
        properties = pika.BasicProperties(
            "text/plain", "gzip", headers, 2, 7, f"correlation {number}", "replies", "3600000", f"id {number}",
            1_767_225_600, "order", "guest", "app",
        )  # fmt: skip
        channel.basic_publish("", queue, b'{"key": %d}' % number, properties)
    channel.basic_publish("", queue, b"bare")
    publish_elsewhere(broker, queue)
    before = stored(broker, queue)
    endpoint = Endpoint(broker.url)

    if way == "replay":
        broker.declare("again")
        run_replay(spark, ReplaySettings("r", endpoint, queue, "again", tmp_path / "state"))
    elif way.startswith("replay"):
        broker.declare("again")
        archive, format_ = tmp_path / "archive", way.split()[1]
        run_archive(spark, ArchiveSettings("a", endpoint, queue, archive, once=True, format=format_))
        run_replay(spark, ReplaySettings("r", endpoint, queue, "again", tmp_path / "state", str(archive)))
    else:
        target = "again" if way == "compact" else queue
        run_compact(spark, CompactSettings(endpoint, queue, target, tmp_path / "state", "json:$.key"))

    after = stored(broker, queue if way == "compact in place" else "again")
    assert {encoding for _, encoding, _, _, _ in before} == {AMQP091, MQTT5, AMQP10}
    assert after == (before if way.startswith("replay") else before[1:])
    if way == "replay":
        _, properties, _ = channel.basic_get("again", auto_ack=True)
        assert (properties.message_id, properties.timestamp, properties.expiration) == (
            "id 0",
            1_767_225_600,
            "3600000",
        )
        assert properties.headers == {**headers, "when": datetime(2026, 1, 1, tzinfo=UTC)}


def publish_elsewhere(broker: Broker, queue: str) -> None:
    """Publish with all properties that MQTT 5 and AMQP 1.0 have."""
    channel = broker.declare()
    channel.queue_bind(queue, "amq.topic", "devices.#")
    device = Paho(broker.server.mqtt_port, "device")
    device.sure(
        "devices/1", '{"key": 2}', user=[("tenant", "a"), ("tenant", "b")], ContentType="text/plain",
        ResponseTopic="answers/1", CorrelationData=b"\x00\xff", PayloadFormatIndicator=1, MessageExpiryInterval=3600,
    )  # fmt: skip
    device.close()
    url = f"amqp://127.0.0.1:{broker.server.port}"
    connection = BlockingConnection(url, timeout=60, user="guest", password="guest", allowed_mechs="PLAIN")
    message = ProtonMessage(
        body=b'{"key": 3}', id=uuid.UUID(int=7), correlation_id=2**40, reply_to="answers", subject="devices.2",
        content_type="text/plain", group_id="g", creation_time=1_767_225_600.0, durable=True, priority=7, inferred=True,
        properties={"n": proton.int32(5), "deep": [1, "two"]}, annotations={proton.symbol("x-opt-place"): 3},
    )  # fmt: skip
    connection.create_sender("/exchanges/amq.topic/devices.2").send(message)
    connection.close()


def test_an_archive_without_stored_properties_can_be_replayed(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.publish("orders", 2)
    broker.declare("again")
    archive = tmp_path / "archive"
    run_archive(spark, ArchiveSettings("a", Endpoint(broker.url), "orders", archive, once=True))
    old = spark.read.parquet(str(archive)).drop("encoding", "properties")
    old = old.withColumn("content_type", F.lit("text/plain")).withColumn("headers", F.expr("map('tenant', 'eu')"))
    old.write.partitionBy("queue", "date").parquet(str(tmp_path / "old"))

    run_replay(spark, ReplaySettings("r", Endpoint(broker.url), "", "again", tmp_path / "state", str(tmp_path / "old")))

    _, properties, body = broker.declare("again").basic_get("again")
    assert (body, properties.content_type, properties.headers) == (b"orders 0", "text/plain", {"tenant": "eu"})


def test_a_replay_that_was_interrupted_repeats_nothing(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.publish("orders", 30)
    broker.declare("again")
    replay = ReplaySettings("replay", Endpoint(broker.url), "orders", "again", tmp_path / "replay", rate=10)

    def interrupt(progress: Progress) -> None:
        if progress.batches:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_replay(spark, replay, interrupt)  # stored, and not yet known to be
    assert len(broker.payloads("again")) == 10
    run_replay(spark, ReplaySettings(**{**vars(replay), "rate": 0}))

    assert broker.payloads("again") == [f"orders {number}" for number in range(30)]
    assert not replay.state.exists()


def test_messages_are_assigned_to_every_queue_whose_filter_they_match(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    filters = read_filters({f"q{number}": f"offset >= {number * 3} AND NOT offset > 40" for number in range(20)})
    broker.publish("events", 50)
    broker.declare(*[queue for queue, _ in filters])
    assign = AssignSettings("assign", Endpoint(broker.url), "events", filters, tmp_path / "state", once=True)

    run_assign(spark, assign)
    broker.publish("events", 5, 50)
    run_assign(spark, assign)

    for number in range(20):
        assert broker.payloads(f"q{number}") == [f"events {offset}" for offset in range(number * 3, 41)]


@pytest.mark.parametrize("way", ["directory", "store"])
def test_a_log_that_is_read_from_its_files_is_assigned_as_through_the_broker(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    store = f"file://{tmp_path}/store" if way == "store" else ""
    with serving(Server(tmp_path, store=store)) as server:
        broker = Broker(server)
        filters = {
            f"q{number}": f"topic = 'events' AND offset BETWEEN {number} AND {3 * number}" for number in range(100)
        }
        queues = [*filters, "by-header"]
        texts = {**filters, "by-header": "region = 'eu' OR offset BETWEEN 40 AND 44"}
        channel = broker.declare("events", *queues, *[f"{queue}-2" for queue in queues])
        for number in range(120):
            properties = pika.BasicProperties(headers={"region": "eu"} if number < 5 else {})
            channel.basic_publish("", "events", f"events {number}".encode(), properties)
        through = AssignSettings(
            "through", Endpoint(broker.url), "events", read_filters(texts), tmp_path / "through", once=True
        )
        run_assign(spark, through)

        source = Endpoint(store or str(tmp_path / "data"))
        other = read_filters({f"{queue}-2": text for queue, text in texts.items()})
        files = replace(through, name="files", filters=other, state=tmp_path / "files", source=source)
        run_assign(spark, files)
        broker.publish("events", 3, 120)
        run_assign(spark, through)
        run_assign(spark, files)

        found = {queue: broker.payloads(queue) for queue in queues}
        assert found["q60"] == [f"events {number}" for number in range(60, 123)]
        assert found["by-header"] == [f"events {number}" for number in (*range(5), *range(40, 45))]
        assert {queue: broker.payloads(f"{queue}-2") for queue in queues} == found
        server.close_connections()


def test_a_batch_too_large_for_one_commit_is_assigned_in_pieces_each_once(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filters = read_filters({f"q{number}": f"offset >= {number}" for number in range(2)})
    for source in range(2):
        broker.publish(f"events-{source}", 4)
    broker.declare(*[queue for queue, _ in filters])
    settings = AssignSettings("assign", Endpoint(broker.url), "events-*", filters, tmp_path / "state", once=True)
    call = Client.json
    done: list[object] = []

    def take_little(client: Client, method: str, path: str, query: Query, body: object = None) -> object:
        """A broker that finds half of a queue enough."""
        if path.endswith("/commit"):
            pieces = json.loads(notes.read_text())["pieces"] if notes.exists() else []
            if len(pieces) < 4:
                raise TooLarge("too much")
            done.append(body)
            if len(done) == 3:
                raise Refused("the driver dies")
        return call(client, method, path, query, body)

    notes = tmp_path / "state" / "pieces.json"
    with monkeypatch.context() as patched:
        patched.setattr(Client, "json", take_little)
        with pytest.raises(Refused, match="the driver dies"):
            run_assign(spark, settings)
    with pytest.raises(Refused, match="finish that with the filters it had"):
        run_assign(spark, replace(settings, filters=read_filters({"q0": "TRUE"})))
    run_assign(spark, settings)

    for number in range(2):
        assert sorted(broker.payloads(f"q{number}")) == [
            f"events-{source} {offset}" for source in range(2) for offset in range(number, 4)
        ]


def test_what_a_batch_of_an_assignment_does_is_told_while_it_does_it(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.publish("events", 3)
    broker.declare("all")
    filters = read_filters({"all": "TRUE"})
    assign = AssignSettings("assign", Endpoint(broker.url), "events", filters, tmp_path / "state", once=True)
    call = Client.json
    phases: list[str] = []

    def wait_for_progress(client: Client, method: str, path: str, query: Query, body: object = None) -> object:
        """A broker that commits once the progress says so."""
        if path.endswith("/commit"):
            eventually(lambda: "storing" in phases)
        return call(client, method, path, query, body)

    monkeypatch.setattr(Client, "json", wait_for_progress)
    run_assign(spark, assign, lambda progress: phases.append(progress.phase))

    assert broker.payloads("all") == [f"events {number}" for number in range(3)]
    assert phases[-1] == ""


def test_a_batch_that_was_assigned_and_comes_again_is_stored_once(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.publish("events", 10)
    broker.declare("all")
    filters = read_filters({"all": "TRUE"})
    assign = AssignSettings("assign", Endpoint(broker.url), "events", filters, tmp_path / "state", once=True)
    run_assign(spark, assign)

    for file in (tmp_path / "state" / "checkpoint" / "commits").glob("*0*"):
        file.unlink()  # as if the driver died right behind the broker's commit
    run_assign(spark, assign)

    assert broker.payloads("all") == [f"events {number}" for number in range(10)]


def test_filters_that_cannot_be_used_are_named() -> None:
    with pytest.raises(Refused, match=r"(?s)the filter of queue 'eu': .*column 9"):
        read_filters({"eu": "region ="})
    with pytest.raises(Refused, match=r"queue 'eu': the filter .* reads delivery_mode"):
        read_filters({"eu": "delivery_mode = 2"})


@pytest.mark.parametrize(
    ("key", "left"),
    [("routing_key", [8, 9]), ("header:device", [4, 7, 8, 9]), ("json:$.n.unit", [1, 9])],
)
def test_the_last_message_of_every_key_is_left(
    spark: SparkSession, broker: Broker, tmp_path: Path, key: str, left: list[int]
) -> None:
    channel = broker.declare("prices")
    channel.queue_bind("prices", "amq.topic", "#")
    for number in range(10):
        headers = {} if number == 4 else {"device": f"d{number % 3}"}
        body = json.dumps({"number": number, "n": {"unit": "C" if number != 1 else "F"}})
        properties = pika.BasicProperties(headers=headers)
        channel.basic_publish("amq.topic", f"k{number % 2}", body.encode(), properties)
    settings = CompactSettings(Endpoint(broker.url), "prices", "now", tmp_path / "state", key)

    done = run_compact(spark, settings)

    assert [json.loads(text)["number"] for text in broker.payloads("now")] == left
    assert done == Compacted(10, len(left))
    with pytest.raises(Refused, match="queue 'now' has messages already"):
        run_compact(spark, settings)


def test_a_stream_is_compacted_in_its_place(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    channel = broker.declare("prices", **{"x-queue-type": "stream"})
    channel.queue_bind("prices", "amq.topic", "#")
    for number in range(10):
        channel.basic_publish("amq.topic", f"k{number % 3}", str(number).encode())
    settings = CompactSettings(Endpoint(broker.url), "prices", "prices", tmp_path / "state")

    assert run_compact(spark, settings) == Compacted(10, 3)

    assert broker.payloads("prices") == ["7", "8", "9"]
    broker.wait_for_start("prices", 10)
    channel.basic_publish("amq.topic", "k0", b"10")
    assert run_compact(spark, settings) == Compacted(4, 3)
    assert broker.payloads("prices") == ["7", "8", "10"]
    broker.publish("work", 1)
    with pytest.raises(Refused, match="queue 'work' is no stream"):
        run_compact(spark, CompactSettings(Endpoint(broker.url), "work", "work", tmp_path / "other"))


def test_what_cannot_be_compacted_is_said(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="there is no queue 'prices'"):
        run_compact(spark, CompactSettings(Endpoint(broker.url), "prices", "now", tmp_path / "state"))
    with pytest.raises(Refused, match="the key 'colour' is none"):
        run_compact(spark, CompactSettings(Endpoint(broker.url), "prices", "now", tmp_path / "state", "colour"))
