"""Pipeline `sql`: a query over queues, continuous or up to now, into a queue, Parquet files or the console.

Every source is a table of the query: the columns of a queue, `body` with the fields of JSON payloads, and these fields
as columns of their own unless the message has a column of that name.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from headrace.errors import Refused
from headrace.spark.options import read_options
from headrace.spark.pipelines.endpoint import FORMAT, Endpoint, files_at
from headrace.spark.pipelines.progress import Progress, Tell, Watch, reason_of, say_nothing, wait
from headrace.spark.pipelines.session import close_separate, is_connect, separate
from headrace.spark.pipelines.state import State, open_state
from headrace.spark.place import open_place
from headrace.spark.writer import COLUMNS

SAMPLE_MESSAGES: Final = 1000
SAMPLE_QUEUES: Final = 10
SAMPLE_BYTES: Final = 4 << 20
NO_SCHEMA: Final = "none"
"""Given as a schema: payloads are not looked into."""
MODES: Final = ("append", "update", "complete")
_ANY_NAME: Final = "messages"


@dataclass(frozen=True)
class SqlSource:
    """Queues that one table of the query stands for."""

    queues: str
    """A name, several with commas between, or a pattern such as `sensor-*`."""
    table: str = ""
    """The table's name; without, it is the queue's."""
    schema: str = ""
    """Fields of JSON payloads, such as `device STRING, value DOUBLE`; without, they are found in a sample."""
    watermark: str = ""
    """How late messages may come, such as `10 minutes`; of another time than the message's: `column 10 minutes`."""
    starting: str = "earliest"


@dataclass(frozen=True)
class SqlSettings:
    """What a pipeline `sql` does. One of `queue`, `parquet` and `console` says where the rows go."""

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
    """How often to look for messages, such as `10 seconds`; without, as soon as the last ones are done."""
    max_messages: int = 0
    """The most messages that are read at once; 0 for all there are."""


def run_sql(spark: SparkSession, settings: SqlSettings, tell: Tell = say_nothing) -> Progress:
    """Run until everything that is there now is done, or for good. Raises Refused with what is wrong with the query."""
    watch = start_sql(spark, settings)
    return wait([watch], tell)[0]


def start_sql(spark: SparkSession, settings: SqlSettings) -> Watch:
    """Start the query and return; every message is taken into account once, however often it is started again."""
    _check(spark, settings)
    state = open_state(settings.state, settings.name, _identity(settings))
    own = separate(spark)  # the tables of pipelines that run together are not each other's business
    try:
        known = _make_tables(own, settings, state)
        writer = _writer(own.sql(settings.query), settings, known)
        return Watch(settings.name, _start(writer, settings, state), lambda: close_separate(own))
    except PySparkException as error:
        close_separate(own)
        raise Refused(f"pipeline {settings.name!r}: {reason_of(error)}") from error


def message_table(frame: DataFrame, schema: StructType | str | None) -> DataFrame:
    """The columns of a queue with `body` and its fields beside them; nothing is added without a schema."""
    if not schema:
        return frame
    wide = frame.withColumn("body", F.from_json(F.col("payload").cast("string"), schema))
    body = wide.schema["body"].dataType
    assert isinstance(body, StructType)
    taken = {name.lower() for name in wide.columns}
    fields = [name for name in body.fieldNames() if name.lower() not in taken]
    return wide.select("*", *[F.col("body").getField(name).alias(name) for name in fields])


def sample_schema(spark: SparkSession, endpoint: Endpoint, queues: str) -> str:
    """The fields of the JSON objects among the first payloads, as DDL; empty when there are none."""
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
    """The first payloads of some of the queues. By offsets: a limit would cut the source's processes off."""
    options = read_options({**endpoint.options, "path": queues})
    place = open_place(options)
    try:
        names = place.matching(options.queues)[:SAMPLE_QUEUES]
        bounds = {name: place.bounds(name) for name in names}
    finally:
        place.close()
    for name, (first, following) in bounds.items():
        stop = min(following, first + SAMPLE_MESSAGES // len(names))
        frame = endpoint.read(spark, name, startingOffsets=str(first), endingOffsets=str(stop))
        for row in frame.select(F.col("payload").cast("string")).collect() if first < stop else []:
            yield row[0]


def as_messages(frame: DataFrame, known: Sequence[str]) -> DataFrame:
    """Rows as a queue takes them: as they are when they have a payload, without the columns that only a reader sees;
    otherwise as JSON objects of all columns."""
    if "payload" not in frame.columns:
        row = F.to_json(F.struct("*")).alias("payload")
        return frame.select(row, F.lit("application/json").alias("content_type"))
    wanted = [name for name in frame.columns if name in COLUMNS or name not in known]
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
    """What must stay the same for a checkpoint to be gone on with."""
    return {
        "kind": "sql",
        "query": settings.query.strip(),
        "from": sorted(source.queues for source in settings.sources),
        "to": settings.queue or settings.parquet or "console",
    }


def _make_tables(spark: SparkSession, settings: SqlSettings, state: State) -> list[str]:
    """Have the query find its sources by name; returns all of their columns."""
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
    """The schema that was given, or the one that was found when the pipeline first ran."""
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


def _start(writer: DataStreamWriter, settings: SqlSettings, state: State) -> StreamingQuery:
    writer = writer.queryName(settings.name).option("checkpointLocation", state.checkpoint)
    writer = trigger(writer, settings.once, settings.every)
    return writer.start(settings.queue or files_at(settings.parquet) or None)


def trigger(writer: DataStreamWriter, once: bool, every: str) -> DataStreamWriter:
    """Once through what is there, or for good, as often as `every` says."""
    if once:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=every or "0 seconds")


def _is_object(text: str | None) -> bool:
    if text is None:
        return False
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
