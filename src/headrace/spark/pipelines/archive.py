"""Pipeline `archive`: queues to files by queue and date, each message exactly once. No reading back; see tables.py.

<archive>/queue=orders/date=2026-01-31/part-....parquet
<archive>/_headrace/                                       the state; readers of Parquet ignore it
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headrace.errors import Refused
from headrace.spark.options import RAW_PROPERTIES
from headrace.spark.pipelines.endpoint import Endpoint
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
from headrace.spark.pipelines.tables import PARQUET, PARTITIONS, ArchiveTable, open_table

STATE: Final = "_headrace"
EVERY: Final = "1 minute"
MAX_BYTES: Final = "512m"
TABLE_BYTES: Final = "128m"


@dataclass(frozen=True)
class ArchiveSettings:
    """The settings of a pipeline `archive`."""

    name: str
    endpoint: Endpoint
    queues: str
    """A name, several with commas between, or a pattern such as `sensor-*`; more may be added later."""
    directory: Path
    group: str = "archive"
    """The consumer group that reports progress to the broker, so that retention can wait. Directories have none."""
    once: bool = False
    every: str = EVERY
    max_bytes: str = ""
    """The most bytes of one batch; "" for a usual size. Of tables, a batch is in this process's memory."""
    format: str = PARQUET


def run_archive(spark: SparkSession, settings: ArchiveSettings, tell: Tell = say_nothing) -> Progress:
    """Archive once or continuously. Raises Refused."""
    return wait([start_archive(spark, settings)], tell)[0]


def start_archive(spark: SparkSession, settings: ArchiveSettings) -> Watch:
    """Start archiving and return. The archive contains its state, so that both are moved and removed together."""
    state = open_state(settings.directory / STATE, settings.name, {"kind": "archive"})
    _check_format(state, settings)
    is_table = settings.format != PARQUET
    options = {
        "includeHeaders": "true",
        "includeProperties": RAW_PROPERTIES,
        "maxBytesPerTrigger": settings.max_bytes or (TABLE_BYTES if is_table else MAX_BYTES),
    }
    if settings.endpoint.is_broker and settings.group:
        options["consumerGroup"] = settings.group
    with refusals(f"pipeline {settings.name!r}"):
        frame = settings.endpoint.stream(spark, settings.queues, **options)
        stream = frame.withColumn("date", F.to_date("timestamp")).writeStream.outputMode("append")
        directory: str | None = None
        if is_table:
            table = open_table(settings.format, settings.directory, state.id)
            writer = stream.foreachBatch(partial(append_batch, table))
        else:
            directory = str(settings.directory.absolute())
            writer = stream.format("parquet").partitionBy(*PARTITIONS)
        return Watch(settings.name, start_query(writer, settings.name, state, settings.once, settings.every, directory))


def _check_format(state: State, settings: ArchiveSettings) -> None:
    """Check that an archive goes on in its format, and note that of a new one. Raises Refused."""
    begun = PARQUET if Path(state.checkpoint).exists() else settings.format
    found = state.kept.get("format", begun)
    if found != settings.format:
        raise Refused(f"{settings.directory} is an archive in the format {found}; name another directory")
    if "format" not in state.kept:
        state.keep(format=settings.format)


def append_batch(table: ArchiveTable, frame: DataFrame, batch: int) -> None:
    """Append a batch to a table, unless it is there already."""
    if batch > table.last_batch():
        rows = frame.toArrow()
        if rows.num_rows:
            table.append(rows, batch)
