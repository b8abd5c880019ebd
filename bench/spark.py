"""Speed of Spark with queues: against Parquet, against a Python source of tuples, through a running broker.

    python -m bench.spark [--messages 1000000] [--rounds 3] [--only write|read|latency|assign] [--filters 1000]

All contenders of a question are run in turn, round by round, in one session; ratios are of the medians. CPU is that of
this process, its JVM and all their Python workers, and of the broker apart; it says more than time on a busy machine.
For `assign` every message has two headers and matches about 2.5 filters: matched on one core, matched in Spark, stored.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from headrace.selector import parse
from headrace.spark.interpreter import ensure_python
from headrace.spark.java import ensure_java
from headrace.spark.pipelines.assign import AssignSettings, columns_read, read_filters, run_assign
from headrace.spark.pipelines.endpoint import Endpoint
from headrace.spark.pipelines.predicates import PredicateSet
from headrace.storage.local.encoding import decode_messages
from headrace.storage.local.follower import Follower, SpanReader

PAYLOAD_BYTES = 200
WARMUP_ROUNDS = 3
"""Until Java has compiled what all of them run."""
LATENCY_ROUNDS = 10
KINDS = ("Java", "Python", "broker")
ALONE_ROWS = 100_000
ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


class Contest:
    """Things that are measured in turn; `report` prints them beside each other."""

    def __init__(self, title: str, messages: int) -> None:
        self._title = title
        self._messages = messages
        self._contenders: dict[str, Callable[[], None]] = {}
        self.wall: dict[str, list[float]] = {}
        self.cpu: dict[str, list[dict[str, float]]] = {}
        """Seconds of CPU by kind of process, of each round."""

    def add(self, name: str, run: Callable[[], None]) -> None:
        self._contenders[name] = run
        self.wall[name] = []
        self.cpu[name] = []

    def run(self, rounds: int) -> None:
        for number in range(-WARMUP_ROUNDS, rounds):
            for name, run in self._contenders.items():
                before, start = cpu_seconds(), time.perf_counter()
                run()
                if number >= 0:
                    self.wall[name].append(time.perf_counter() - start)
                    self.cpu[name].append({kind: after - before[kind] for kind, after in cpu_seconds().items()})

    def median(self, name: str) -> float:
        return statistics.median(self.wall[name])

    def cpu_us(self, name: str, *kinds: str) -> float:
        """Return the median microseconds of CPU a row, of all processes or of these kinds."""
        spent = [sum(each[kind] for kind in kinds or KINDS) for each in self.cpu[name]]
        return statistics.median(spent) / self._messages * 1e6

    def report(self) -> None:
        print(f"\n{self._title}")
        for name, times in self.wall.items():
            median = statistics.median(times)
            spread = f"{min(times):.2f} to {max(times):.2f} s"
            kinds = ", ".join(f"{kind} {self.cpu_us(name, kind):.2f}" for kind in KINDS)
            print(
                f"  {name:<34} {self._messages / median:>12,.0f} rows/s   {spread:<18} "
                f"{self.cpu_us(name):.2f} us CPU a row ({kinds})"
            )


def ratio(text: str, found: float, wanted: float) -> None:
    print(f"  {text}: {found:.2f}" + (f" (at least {wanted:.1f} wanted)" if wanted else ""))


def at_most(text: str, found: float, wanted: float) -> None:
    print(f"  {text}: {found:.2f} (at most {wanted:.1f} wanted)")


class TupleSource(DataSource):
    """Cost of a Python source that yields a tuple for each message."""

    @classmethod
    def name(cls) -> str:
        return "tuples"

    def schema(self) -> str:
        return (
            "queue STRING, offset BIGINT, timestamp TIMESTAMP, topic STRING, routing_key STRING, payload BINARY, "
            "expires_at TIMESTAMP, priority INT, content_type STRING"
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        return TupleReader(self.options["path"])


class TupleReader(DataSourceReader):
    def __init__(self, path: str) -> None:
        self._path = path

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(part) for part in range(2)]

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        follower = Follower(Path(self._path))
        first, following = follower.bounds("orders")
        middle = (first + following) // 2
        start, stop = (first, middle) if partition.value == 0 else (middle, following)
        reader = SpanReader(follower.log_id("orders"))
        for span in follower.spans("orders", start, stop):
            for base, block, low, high in reader.rows(span):
                for offset, message in enumerate(decode_messages(block, low, high), base):
                    topic = message.source.topic
                    time = datetime.fromtimestamp(message.timestamp_us / 1e6, UTC)
                    yield "orders", offset, time, topic, topic, message.payload, None, message.priority, None


class Broker:
    """A `headrace serve` of our own."""

    def __init__(self, folder: Path) -> None:
        ready = folder / "ready.json"
        self.data = folder / "data"
        command = [sys.executable, "-m", "headrace", "serve", "--data", str(self.data), "--ready-file", str(ready)]
        ports = [word for name in ("amqp", "mqtt", "ws", "http") for word in (f"--{name}", "0")]
        self._process = subprocess.Popen([*command, *ports], stdout=subprocess.DEVNULL)
        while not ready.exists():
            time.sleep(0.05)
        self.url = f"http://guest:guest@127.0.0.1:{json.loads(ready.read_text())['ports']['http']}"

    def declare(self, *queues: str, kind: str = "classic") -> None:
        body = {"durable": True, "auto_delete": False, "arguments": {"x-queue-type": kind}}
        with httpx.Client() as client:
            for queue in queues:
                client.put(f"{self.url}/api/queues/%2F/{queue}", json=body).raise_for_status()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)


def cpu_seconds() -> dict[str, float]:
    """Processor time of this process and everything below it so far, by kind: Java, the broker, all other Python."""
    children: dict[int, list[int]] = {}
    used: dict[int, tuple[str, float]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        pid = int(stat.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        is_broker = b"serve" in command or b"kafka.Kafka" in command
        kind = "broker" if is_broker else "Java" if b"java" in command[0] else "Python"
        used[pid] = kind, sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    total, ahead = dict.fromkeys(KINDS, 0.0), [os.getpid()]
    while ahead:
        pid = ahead.pop()
        kind, seconds = used.get(pid, ("Python", 0.0))
        total[kind] += seconds
        ahead += children.get(pid, [])
    return total


def make_session(folder: Path, settings: dict[str, str] | None = None) -> SparkSession:
    ensure_java()
    ensure_python(folder)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # packages that are installed are compiled
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_CONF_DIR"] = str(folder)
    (folder / "log4j2.properties").write_text("rootLogger.level = off\n")
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.driver.memory", "2g")
    manager = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    builder = builder.config("spark.sql.streaming.checkpointFileManagerClass", manager)
    for key, value in (settings or {}).items():
        builder = builder.config(key, value)
    return builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()


def consume(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _read(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.read.format("headrace").option("url", url).options(**options).load("orders")


def _stream(spark: SparkSession, url: str, checkpoint: Path) -> float:
    """All of it in one batch; returns the rows a second that Spark counts for the batch, without the query's start."""
    frame = spark.readStream.format("headrace").option("url", url).load("orders")
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    progress = query.lastProgress
    assert progress is not None
    return progress.processedRowsPerSecond


def _stream_parquet(spark: SparkSession, path: str, checkpoint: Path) -> None:
    frame = spark.readStream.schema(spark.read.parquet(path).schema).parquet(path)
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()


def _write(source: DataFrame, url: str, queue: str) -> None:
    source.write.format("headrace").option("url", url).mode("append").save(queue)


def fill(spark: SparkSession, broker: Broker, folder: Path, messages: int) -> DataFrame:
    """Messages in a queue, and the frame that they came from."""
    broker.declare("orders")
    source = str(folder / "source.parquet")
    text = f"CAST(rpad(CAST(id AS STRING), {PAYLOAD_BYTES}, 'x') AS BINARY) AS payload"
    spark.range(messages).selectExpr(text).write.parquet(source)
    frame = spark.read.parquet(source)
    _write(frame, broker.url, "orders")
    return frame


def bench_write(frame: DataFrame, broker: Broker, folder: Path, messages: int, rounds: int) -> None:
    contest = Contest(f"Writing {messages:,} messages of {PAYLOAD_BYTES} B into a durable queue", messages)
    contest.add("headrace, through a running broker", lambda: _write(frame, broker.url, "sink"))
    contest.add("parquet", lambda: frame.write.mode("overwrite").parquet(str(folder / "copy.parquet")))
    contest.run(rounds)
    contest.report()
    ratio("rows/s / 100,000", messages / contest.median("headrace, through a running broker") / 100_000, 1.0)
    at_most("us of CPU a row, Spark and broker together", contest.cpu_us("headrace, through a running broker"), 2.0)


def bench_read(spark: SparkSession, broker: Broker, folder: Path, messages: int, rounds: int) -> None:
    url = str(broker.data)
    parquet = str(folder / "orders.parquet")
    _read(spark, url).write.option("compression", "none").parquet(parquet)
    spark.dataSource.register(TupleSource)
    contest = Contest(f"Reading {messages:,} messages of {PAYLOAD_BYTES} B, all columns", messages)
    checkpoints = iter(range(1000))
    rates: list[float] = []
    contest.add("parquet, uncompressed", lambda: consume(spark.read.parquet(parquet)))
    contest.add("headrace, data directory", lambda: consume(_read(spark, url)))
    contest.add("headrace, 8 partitions", lambda: consume(_read(spark, url, minPartitions="8")))
    contest.add("headrace, through the broker", lambda: consume(_read(spark, broker.url)))
    stream = "headrace, stream from directory"
    contest.add(stream, lambda: rates.append(_stream(spark, url, folder / f"cp{next(checkpoints)}")))
    contest.add("parquet, as a stream", lambda: _stream_parquet(spark, parquet, folder / f"cp{next(checkpoints)}"))
    contest.add("a source of tuples", lambda: consume(spark.read.format("tuples").load(url)))
    contest.run(rounds)
    contest.report()
    own = contest.median("headrace, data directory")
    ratio("of parquet's rate", contest.median("parquet, uncompressed") / own, 0.5)
    ratio("of the tuples' rate", contest.median("a source of tuples") / own, 4.0)
    ratio("catching up as a stream, the query's start included, of the batch rate", own / contest.median(stream), 0.6)
    batches = statistics.median(rates[-rounds:])
    ratio("the stream's batch by itself, as Spark counts it, of the batch rate", batches * own / messages, 0.6)
    found = contest.median("parquet, uncompressed") / contest.median("parquet, as a stream")
    ratio("parquet as a stream, of its batch rate", found, 0.0)
    ratio("through the broker, of the directory's rate", own / contest.median("headrace, through the broker"), 0.0)
    files = contest.cpu_us("parquet, uncompressed")
    at_most("CPU of the directory, of parquet's", contest.cpu_us("headrace, data directory") / files, 1.3)
    at_most("the same with 8 partitions", contest.cpu_us("headrace, 8 partitions") / files, 1.3)
    through = "headrace, through the broker"
    at_most("CPU of Spark through the broker, of parquet's", contest.cpu_us(through, "Java", "Python") / files, 1.5)
    at_most("us of the broker a row", contest.cpu_us(through, "broker"), 0.4)
    at_most("us of CPU a row of the stream, its start included", contest.cpu_us(stream), 2.0)


def bench_latency(spark: SparkSession, broker: Broker, folder: Path, rounds: int) -> None:
    """The duration of micro-batches of one row, against those of Spark's own rate source, in turn."""
    rate = spark.readStream.format("rate").option("rowsPerSecond", "1").load()
    own = spark.readStream.format("headrace").option("startingOffsets", "latest")
    frames = {
        "rate": rate,
        "headrace, data directory": own.option("url", str(broker.data)).load("sink"),
        "headrace, through the broker": own.option("url", broker.url).load("sink"),
    }
    durations: dict[str, list[int]] = {name: [] for name in frames}
    for number in range(rounds + 1):  # the first warms up
        for name, frame in frames.items():
            writer = frame.writeStream.format("noop")
            query = writer.option("checkpointLocation", str(folder / f"latency-{name}-{number}")).start()
            found = _single_rows(query, broker)
            query.stop()
            if number:
                durations[name] += found
    print(f"\nA micro-batch of one row to the same sink, {rounds} times {LATENCY_ROUNDS}")
    medians = {name: statistics.median(found) for name, found in durations.items()}
    for name, median in medians.items():
        print(f"  {name:<34} {median:.0f} ms, {min(durations[name])} to {max(durations[name])} ms")
    for name in [*frames][1:]:
        print(f"  {name} / rate: {medians[name] / medians['rate']:.2f} (at most 1.5 wanted)")


def _single_rows(query: StreamingQuery, broker: Broker) -> list[int]:
    """Durations of batches of one row, without the first two of a query; a message is published every second."""
    found: list[int] = []
    deadline = time.monotonic() + 120
    while len(found) < LATENCY_ROUNDS + 2 and time.monotonic() < deadline:
        body = {"topic": "$queue/sink", "payload": "eA==", "qos": 1}
        httpx.post(f"{broker.url}/publish", json=body).raise_for_status()
        time.sleep(1.0)
        found = [each.batchDuration for each in query.recentProgress if each.numInputRows == 1]
    return found[2:]


def filter_of(number: int) -> str:
    return (
        f"topic = 'orders/{number}'",
        f"topic LIKE 'orders/{number}%' AND priority < 3",
        f"region = 'r{number % 50}' AND amount BETWEEN {number % 600} AND {number % 600 + 20}",
        f"amount > {690 + number % 10} AND NOT region IN ('r1', 'r2', 'r{number % 50}')",
        f"topic IN ('orders/{number}', 'orders/{number + 1}') OR topic = 'x'",
    )[number % 5]


def bench_assign(
    spark: SparkSession, broker: Broker, folder: Path, messages: int, filters: dict[str, str], rounds: int
) -> None:
    """Every message of a log to each durable queue whose filter it matches."""
    spark.conf.set(ARROW_ROWS, "20000")  # as `headrace pipeline` has it
    broker.declare("events", kind="stream")
    broker.declare(*filters)
    rows = spark.range(messages).selectExpr(
        f"rpad(CAST(id AS STRING), {PAYLOAD_BYTES}, 'x') AS payload",
        "concat('orders/', id % 1000) AS topic",
        "map('region', concat('r', id % 50), 'amount', CAST(id % 700 AS STRING)) AS headers",
    )
    _write(rows, broker.url, "events")
    log = Endpoint(str(broker.data)).read(spark, "events", includeHeaders="true")
    log = log.select(*columns_read(tuple(("", text) for text in filters.values())))
    texts = list(filters.values())
    print(f"\nAssigning {messages:,} messages of {PAYLOAD_BYTES} B by {len(filters):,} filters")
    stored: list[float] = []
    for number in range(rounds):
        state = folder / f"assign-{number}"
        settings = AssignSettings("bench", Endpoint(broker.url), "events", read_filters(filters), state, once=True)
        before = cpu_seconds()
        stored.append(run_assign(spark, settings).rate)
        used = {kind: (after - before[kind]) / messages * 1e6 for kind, after in cpu_seconds().items()}
        matched = f"matched: on one core {_matched_alone(log, texts):,.0f} rows/s, in Spark"
        print(f"  stored {stored[-1]:,.0f} rows/s; {matched} {_matched_in_spark(log, texts, messages):,.0f} rows/s")
        print("    us of CPU a message stored: " + ", ".join(f"{kind} {each:.1f}" for kind, each in used.items()))
    ratio("rows/s stored / 50,000", statistics.median(stored) / 50_000, 1.0)
    spark.conf.unset(ARROW_ROWS)


def _matched_alone(log: DataFrame, filters: list[str]) -> float:
    """Rows a second of one core, without Spark."""
    table = log.where(f"offset < {ALONE_ROWS}").toArrow()
    predicates = PredicateSet([parse(text) for text in filters])
    started = time.perf_counter()
    for batch in table.combine_chunks().to_batches(max_chunksize=20_000):
        predicates.matches(batch)
    return len(table) / (time.perf_counter() - started)


def _matched_in_spark(log: DataFrame, filters: list[str], messages: int) -> float:
    """Rows a second from the log to pairs of offset and filter."""

    def match(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        predicates = PredicateSet([parse(text) for text in filters])
        for batch in batches:
            rows, numbers = predicates.matches(batch)
            offsets = batch.column("offset").take(pa.array(rows))
            yield pa.RecordBatch.from_arrays([offsets, pa.array(numbers)], ["offset", "filter"])

    started = time.perf_counter()
    consume(log.mapInArrow(match, "offset BIGINT, filter INT"))
    return messages / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("write", "read", "latency", "assign"), default="")
    parser.add_argument("--filters", type=int, default=1000)
    arguments = parser.parse_args()
    filters = {f"q{number:05}": filter_of(number) for number in range(arguments.filters)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spark = make_session(folder)
        broker = Broker(folder)
        try:
            broker.declare("sink")
            if arguments.only in ("", "write", "read"):
                frame = fill(spark, broker, folder, arguments.messages)
            if arguments.only in ("", "write"):
                bench_write(frame, broker, folder, arguments.messages, arguments.rounds)
            if arguments.only in ("", "read"):
                bench_read(spark, broker, folder, arguments.messages, arguments.rounds)
            if arguments.only in ("", "latency"):
                bench_latency(spark, broker, folder, arguments.rounds)
            if arguments.only in ("", "assign"):
                bench_assign(spark, broker, folder, arguments.messages, filters, arguments.rounds)
        finally:
            spark.stop()
            broker.stop()


if __name__ == "__main__":
    main()
