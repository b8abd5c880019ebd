"""How many messages a second does `assign` get through with 1,000 filters? Matching alone, matching in Spark, stored.

python bench/assign.py [messages] [filters]; every message is 200 bytes with two headers and matches about 2.5 filters.
CPU is that of each kind of process while messages are stored: Spark's Java, its Python, the broker.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from tests.servers import Server

from headrace.selector import parse
from headrace.spark.pipelines.assign import AssignSettings, columns_read, read_filters, run_assign
from headrace.spark.pipelines.endpoint import Endpoint
from headrace.spark.pipelines.predicates import PredicateSet
from headrace.spark.pipelines.session import open_session

ROUNDS = 3


def filter_of(number: int) -> str:
    return (
        f"topic = 'orders/{number}'",
        f"topic LIKE 'orders/{number}%' AND priority < 3",
        f"region = 'r{number % 50}' AND amount BETWEEN {number % 600} AND {number % 600 + 20}",
        f"amount > {690 + number % 10} AND NOT region IN ('r1', 'r2', 'r{number % 50}')",
        f"topic IN ('orders/{number}', 'orders/{number + 1}') OR topic = 'x'",
    )[number % 5]


def messages(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).selectExpr(
        "rpad(CAST(id AS STRING), 200, 'x') AS payload",
        "concat('orders/', id % 1000) AS topic",
        "map('region', concat('r', id % 50), 'amount', CAST(id % 700 AS STRING)) AS headers",
    )


def columns_of(filters: list[str]) -> tuple[str, ...]:
    return columns_read(tuple(("", text) for text in filters))


def cpu_seconds() -> dict[str, float]:
    """What the processes below this one have used so far, by kind."""
    children: dict[int, list[int]] = {}
    used: dict[int, tuple[str, float]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        kind = "java" if "java" in command.partition("\0")[0] else "broker" if "serve" in command else "python"
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
        used[int(stat.parent.name)] = kind, sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    total = {"java": 0.0, "python": 0.0, "broker": 0.0}
    ahead = [os.getpid()]
    while ahead:
        pid = ahead.pop()
        kind, seconds = used.get(pid, ("python", 0.0))
        total[kind] += seconds
        ahead += children.get(pid, [])
    return total


def alone(frame: DataFrame, filters: list[str]) -> float:
    """Rows a second of one core, without Spark."""
    table = frame.select(*columns_of(filters)).where("offset < 100000").toArrow()
    predicates = PredicateSet([parse(text) for text in filters])
    batches = table.combine_chunks().to_batches(max_chunksize=20_000)
    started = time.perf_counter()
    for batch in batches:
        predicates.matches(batch)
    return len(table) / (time.perf_counter() - started)


def in_spark(frame: DataFrame, filters: list[str]) -> float:
    """Rows a second from the log to pairs of offset and filter."""

    def match(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        predicates = PredicateSet([parse(text) for text in filters])
        for batch in batches:
            rows, numbers = predicates.matches(batch)
            offsets = batch.column("offset").take(pa.array(rows))
            yield pa.RecordBatch.from_arrays([offsets, pa.array(numbers)], ["offset", "filter"])

    count = frame.count()
    started = time.perf_counter()
    frame.select(*columns_of(filters)).mapInArrow(match, "offset BIGINT, filter INT").write.format("noop").mode(
        "overwrite"
    ).save()
    return count / (time.perf_counter() - started)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000
    number = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        server.start()
        channel = server.connect().channel()
        channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream"})
        filters = {f"q{each:05}": filter_of(each) for each in range(number)}
        for queue in filters:
            channel.queue_declare(queue, durable=True)
        spark = open_session("local[*]")
        endpoint = Endpoint(server.http_url)
        messages(spark, count).write.format("headrace").options(**endpoint.options).mode("append").save("events")
        log = Endpoint(str(Path(folder) / "data")).read(spark, "events", includeHeaders="true")
        print(f"{count:,} messages, {number:,} filters; messages a second")
        for turn in range(ROUNDS):
            settings = AssignSettings(
                "bench", endpoint, "events", read_filters(filters), Path(folder) / f"state-{turn}", once=True
            )
            texts = list(filters.values())
            before = cpu_seconds()
            stored = run_assign(spark, settings).rate
            used = {kind: (after - before[kind]) / count * 1e6 for kind, after in cpu_seconds().items()}
            print(f"one core {alone(log, texts):,.0f}   in Spark {in_spark(log, texts):,.0f}   stored {stored:,.0f}")
            print("   us of CPU a message stored: " + ", ".join(f"{kind} {each:.1f}" for kind, each in used.items()))
        spark.stop()
        server.close_connections()
        server.stop()


if __name__ == "__main__":
    main()
