"""Pipeline `archive`: queues to Parquet files by queue and date, each message exactly once. No reading back.

<archive>/queue=orders/date=2026-01-31/part-....parquet
<archive>/_headrace/                                       the state; readers of Parquet ignore it
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headrace.spark.options import RAW_PROPERTIES
from headrace.spark.pipelines.endpoint import Endpoint
from headrace.spark.pipelines.run import Progress, Tell, Watch, open_state, refusals, say_nothing, start_query, wait

STATE: Final = "_headrace"
EVERY: Final = "1 minute"
MAX_BYTES: Final = "512m"


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
    max_bytes: str = MAX_BYTES
    """The most bytes of one batch."""


def run_archive(spark: SparkSession, settings: ArchiveSettings, tell: Tell = say_nothing) -> Progress:
    """Archive once or continuously. Raises Refused."""
    return wait([start_archive(spark, settings)], tell)[0]


def start_archive(spark: SparkSession, settings: ArchiveSettings) -> Watch:
    """Start archiving and return. The archive contains its state, so that both are moved and removed together."""
    state = open_state(settings.directory / STATE, settings.name, {"kind": "archive"})
    options = {
        "includeHeaders": "true",
        "includeProperties": RAW_PROPERTIES,
        "maxBytesPerTrigger": settings.max_bytes,
    }
    if settings.endpoint.is_broker and settings.group:
        options["consumerGroup"] = settings.group
    with refusals(f"pipeline {settings.name!r}"):
        frame = settings.endpoint.stream(spark, settings.queues, **options)
        writer = frame.withColumn("date", F.to_date("timestamp")).writeStream.format("parquet")
        writer = writer.partitionBy("queue", "date").outputMode("append")
        directory = str(settings.directory.absolute())
        return Watch(settings.name, start_query(writer, settings.name, state, settings.once, settings.every, directory))
