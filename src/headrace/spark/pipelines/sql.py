"""Pipeline `sql`: a query over queues, continuous or once, into a queue, Parquet files or the console.

Every source is a table of the query: the columns of a queue, `body` with the fields of JSON payloads, and each field as
a column of its own unless the queue has a column of that name.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from headrace.errors import Refused
from headrace.spark.options import read_options
from headrace.spark.pipelines.endpoint import FORMAT, Endpoint, files_at
from headrace.spark.pipelines.run import (
    Progress,
    State,
    Tell,
    Watch,
    open_state,
    refusals,
    say_nothing,
    start_query,
    wait,
)
from headrace.spark.pipelines.session import close_separate, is_connect, separate
from headrace.spark.place import open_place
from headrace.spark.writer import COLUMNS, TARGETS

SAMPLE_MESSAGES: Final = 1000
SAMPLE_QUEUES: Final = 10
SAMPLE_BYTES: Final = 4 << 20
NO_SCHEMA: Final = "none"
"""A schema that leaves payloads unread."""
MODES: Final = ("append", "update", "complete")
_ANY_NAME: Final = "messages"


@dataclass(frozen=True)
class SqlSource:
    """The queues of one table of the query."""

    queues: str
    """A name, several with commas between, or a pattern such as `sensor-*`."""
    table: str = ""
    """The table's name; "" for the queue's."""
    schema: str = ""
    """Fields of JSON payloads, such as `device STRING, value DOUBLE`; "" takes them from a sample."""
    watermark: str = ""
    """The longest delay of messages, such as `10 minutes`; `column 10 minutes` for another time than the message's."""
    starting: str = "earliest"


@dataclass(frozen=True)
class SqlSettings:
    """The settings of a pipeline `sql`. One of `queue`, `parquet` and `console` is the target of the rows."""

    name: str
    endpoint: Endpoint
    sources: tuple[SqlSource, ...]
    query: str
    state: Path
    queue: str = ""
    parquet: str = ""
    console: bool = False
    mode: str = "append"
    once: bool = False
    every: str = ""
    """The interval of batches, such as `10 seconds`; "" begins each batch as soon as the last one is done."""
    max_messages: int = 0
    """The most messages of one batch; 0 for no limit."""


def run_sql(spark: SparkSession, settings: SqlSettings, tell: Tell = say_nothing) -> Progress:
    """Run the query once or continuously. Raises Refused with the query's error."""
    return wait([start_sql(spark, settings)], tell)[0]


def start_sql(spark: SparkSession, settings: SqlSettings) -> Watch:
    """Start the query and return. A query that is started again reads every message once."""
    _check(spark, settings)
    state = open_state(settings.state, settings.name, _identity(settings))
    own = separate(spark)  # so that pipelines that run together do not share tables
    with refusals(f"pipeline {settings.name!r}"):
        try:
            known = _make_tables(own, settings, state)
            writer = _writer(own.sql(settings.query), settings, known)
            path = settings.queue or files_at(settings.parquet) or None
            query = start_query(writer, settings.name, state, settings.once, settings.every, path)
        except PySparkException:
            close_separate(own)
            raise
    return Watch(settings.name, query, lambda: close_separate(own))


def message_table(frame: DataFrame, schema: StructType | str | None) -> DataFrame:
    """Add `body` and its fields to the columns of a queue; without a schema, add nothing."""
    if not schema:
        return frame
    wide = frame.withColumn("body", F.from_json(F.col("payload").cast("string"), schema))
    body = wide.schema["body"].dataType
    assert isinstance(body, StructType)
    taken = {name.lower() for name in wide.columns}
    fields = [name for name in body.fieldNames() if name.lower() not in taken]
    return wide.select("*", *[F.col("body").getField(name).alias(name) for name in fields])


def sample_schema(spark: SparkSession, endpoint: Endpoint, queues: str) -> str:
    """Return the fields of the JSON objects among the first payloads, as DDL; "" without such objects."""
    texts: list[str] = []
    size = 0
    for text in _sample(spark, endpoint, queues):
        if _is_object(text) and size + len(text) <= SAMPLE_BYTES:
            texts.append(text)
            size += len(text)
    if not texts:
        return ""
    (row,) = spark.range(1).select(F.schema_of_json(F.lit(f"[{','.join(texts)}]"))).collect()
    ddl = str(row[0])  # ARRAY<STRUCT<...>>
    return ddl.removeprefix("ARRAY<").removesuffix(">")


def _sample(spark: SparkSession, endpoint: Endpoint, queues: str) -> Iterator[str]:
    """Yield the first payloads of some of the queues. Offsets bound the read: a limit would kill the source's tasks."""
    options = read_options({**endpoint.options, "path": queues})
    place = open_place(options)
    try:
        names = place.matching()[:SAMPLE_QUEUES]
        bounds = {name: place.bounds(name) for name in names}
    finally:
        place.close()
    for name, (first, following) in bounds.items():
        stop = min(following, first + SAMPLE_MESSAGES // len(names))
        frame = endpoint.read(spark, name, startingOffsets=str(first), endingOffsets=str(stop))
        for row in frame.select(F.col("payload").cast("string")).collect() if first < stop else []:
            yield row[0]


def as_messages(frame: DataFrame, known: Sequence[str]) -> DataFrame:
    """Return rows as messages. Rows with a payload lose the columns that only readers have; others become JSON."""
    if "payload" not in frame.columns:
        row = F.to_json(F.struct("*")).alias("payload")
        return frame.select(row, F.lit("application/json").alias("content_type"))
    wanted = [name for name in frame.columns if (name in COLUMNS and name not in TARGETS) or name not in known]
    if "topic" in wanted and "routing_key" in wanted:
        wanted.remove("routing_key")
    return frame.select(*[F.col(f"`{name}`") for name in wanted])


def _check(spark: SparkSession, settings: SqlSettings) -> None:
    targets = [bool(settings.queue), bool(settings.parquet), settings.console]
    if sum(targets) != 1:
        raise Refused(f"pipeline {settings.name!r}: say where the rows go, once: a queue, Parquet files or the console")
    if settings.queue and not settings.endpoint.is_broker:
        raise Refused(
            f"pipeline {settings.name!r}: to write to queue {settings.queue!r}, name a broker such as "
            f"http://localhost:15672; {settings.endpoint.url} is a data directory, which is only read"
        )
    if settings.mode not in MODES:
        raise Refused(f"pipeline {settings.name!r}: mode {settings.mode!r} is none of {', '.join(MODES)}")
    if not settings.sources:
        raise Refused(f"pipeline {settings.name!r}: say which queues it reads")
    if settings.console and is_connect(spark):
        raise Refused(
            f"pipeline {settings.name!r}: through Spark Connect, rows on the console would be printed by the server, "
            f"not here; write them to a queue or to Parquet files"
        )


def _identity(settings: SqlSettings) -> dict[str, object]:
    """Return the settings that a checkpoint depends on."""
    return {
        "kind": "sql",
        "query": settings.query.strip(),
        "from": sorted(source.queues for source in settings.sources),
        "to": settings.queue or settings.parquet or "console",
    }


def _make_tables(spark: SparkSession, settings: SqlSettings, state: State) -> list[str]:
    """Make the tables of the query; return all of their columns."""
    known: dict[str, None] = {}
    for source in settings.sources:
        frame = message_table(_stream(spark, settings, source), _schema(spark, settings, source, state))
        if source.watermark:
            column, _, delay = f"timestamp {source.watermark}".rpartition("timestamp ")[2].partition(" ")
            if column[:1].isdigit():
                column, delay = "timestamp", source.watermark
            frame = frame.withWatermark(column, delay)
        names = [source.table or source.queues] + [_ANY_NAME] * (len(settings.sources) == 1)
        for name in names:
            frame.createOrReplaceTempView(f"`{name.replace('`', '``')}`")
        known.update(dict.fromkeys(frame.columns))
    return list(known)


def _stream(spark: SparkSession, settings: SqlSettings, source: SqlSource) -> DataFrame:
    options = {"includeHeaders": "true", "startingOffsets": source.starting}
    if settings.max_messages:
        options["maxOffsetsPerTrigger"] = str(settings.max_messages)
    return settings.endpoint.stream(spark, source.queues, **options)


def _schema(spark: SparkSession, settings: SqlSettings, source: SqlSource, state: State) -> str:
    """Return the given schema, or the one that the first run found."""
    if source.schema:
        return "" if source.schema == NO_SCHEMA else source.schema
    key = f"schema of {source.queues}"
    if key not in state.kept:
        state.keep(**{key: sample_schema(spark, settings.endpoint, source.queues)})
    return str(state.kept[key])


def _writer(frame: DataFrame, settings: SqlSettings, known: Sequence[str]) -> DataStreamWriter:
    if settings.queue:
        writer = as_messages(frame, known).writeStream.format(FORMAT).options(**settings.endpoint.options)
    elif settings.parquet:
        writer = frame.writeStream.format("parquet")
    else:
        writer = frame.writeStream.format("console").option("truncate", "false")
    return writer.outputMode(settings.mode)


def _is_object(text: str | None) -> bool:
    if text is None:
        return False
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
