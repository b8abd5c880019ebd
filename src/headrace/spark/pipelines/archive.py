"""Pipeline `archive`: queues to Parquet files by queue and date, as messages come, each exactly once. No reading back.

<archive>/queue=orders/date=2026-01-31/part-....parquet
<archive>/_headrace/                                       how far it has come; no reader of Parquet looks there
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headrace.errors import Refused
from headrace.spark.pipelines.endpoint import Endpoint
from headrace.spark.pipelines.progress import Progress, Tell, Watch, reason_of, say_nothing, wait
from headrace.spark.pipelines.sql import trigger
from headrace.spark.pipelines.state import open_state

STATE: Final = "_headrace"
EVERY: Final = "1 minute"
MAX_BYTES: Final = "512m"


@dataclass(frozen=True)
class ArchiveSettings:
    """What a pipeline `archive` does."""

    name: str
    endpoint: Endpoint
    queues: str
    """A name, several with commas between, or a pattern such as `sensor-*`; more may be added later."""
    directory: Path
    group: str = "archive"
    """How the broker knows the archive: retention can wait for it. Data directories have no groups to tell."""
    once: bool = False
    every: str = EVERY
    max_bytes: str = MAX_BYTES
    """The most that is archived in one step."""


def run_archive(spark: SparkSession, settings: ArchiveSettings, tell: Tell = say_nothing) -> Progress:
    """Archive what is there now, or for good. Raises Refused when that cannot be done."""
    return wait([start_archive(spark, settings)], tell)[0]


def start_archive(spark: SparkSession, settings: ArchiveSettings) -> Watch:
    """Start archiving and return. The state is in the archive itself, so that the two never part."""
    state = open_state(settings.directory / STATE, settings.name, {"kind": "archive"})
    options = {"includeHeaders": "true", "maxBytesPerTrigger": settings.max_bytes}
    if settings.endpoint.is_broker and settings.group:
        options["consumerGroup"] = settings.group
    try:
        frame = settings.endpoint.stream(spark, settings.queues, **options)
        writer = frame.withColumn("date", F.to_date("timestamp")).writeStream.format("parquet")
        writer = writer.partitionBy("queue", "date").outputMode("append").queryName(settings.name)
        writer = writer.option("checkpointLocation", state.checkpoint)
        query = trigger(writer, settings.once, settings.every).start(str(settings.directory.absolute()))
    except PySparkException as error:
        raise Refused(f"pipeline {settings.name!r}: {reason_of(error)}") from error
    return Watch(settings.name, query)
