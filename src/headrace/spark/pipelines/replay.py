"""Pipeline `replay`: messages of an archive or of a log's range to a queue again, with a filter and a rate.

It works in steps of offsets. Each step has a transaction id of its own, and is written down before it begins. So an
interrupted replay goes on with the same step, and no message is stored twice.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headrace.errors import Refused
from headrace.selector import parse, to_spark_sql
from headrace.spark.client import Client
from headrace.spark.options import RAW_PROPERTIES, write_options
from headrace.spark.pipelines.endpoint import FORMAT, Endpoint, declare_queue
from headrace.spark.pipelines.run import Progress, State, Tell, open_state, read_json, refusals, say_nothing, write_json
from headrace.spark.pipelines.tables import read_archive
from headrace.spark.place import RAW, read_schema

STEP_MESSAGES: Final = 50_000
STEP_SECONDS: Final = 1.0
ORIGINAL_TIMESTAMP: Final = "x-original-timestamp"
ORIGINAL_QUEUE: Final = "x-original-queue"
ORIGINAL_OFFSET: Final = "x-original-offset"


@dataclass(frozen=True)
class ReplaySettings:
    """The settings of a pipeline `replay`. It reads `archive`, or `queues` where there is no archive."""

    name: str
    endpoint: Endpoint
    queues: str
    queue: str
    """The queue that gets the messages."""
    state: Path
    archive: str = ""
    starting: str = "earliest"
    ending: str = "latest"
    filter: str = ""
    """A filter expression, as queues have them."""
    rate: int = 0
    """The most messages a second; 0 for no limit."""
    mark: bool = False
    """True if headers tell the former place and time of each message."""
    create: str = ""
    """The type of the queue that is declared where there is none; "" to declare none."""


@dataclass(frozen=True)
class Step:
    """Messages of one queue that are stored together."""

    queue: str
    start: int
    stop: int


def run_replay(spark: SparkSession, settings: ReplaySettings, tell: Tell = say_nothing) -> Progress:
    """Store the messages again, then remove the state, so that the same replay can run once more.

    Raises Refused.
    """
    if not settings.endpoint.is_broker:
        raise Refused(f"pipeline {settings.name!r}: {settings.endpoint.url} is no broker; name one to write to")
    condition = to_spark_sql(parse(settings.filter)) if settings.filter else "TRUE"
    state = open_state(settings.state, settings.name, _identity(settings))
    _create_queue(settings)
    with refusals(f"pipeline {settings.name!r}"):
        frame = _messages(spark, settings)
        done = _replay(frame.where(condition), _steps(frame, settings, state), settings, state, tell)
    state.remove()
    return done


def _create_queue(settings: ReplaySettings) -> None:
    """Declare the queue that gets the messages, if the settings ask for it and there is none."""
    if not settings.create:
        return
    server = write_options({**settings.endpoint.options, "path": settings.queue}).server
    client = Client(server)
    try:
        found = client.json("GET", "/bulk/queues", {"name": settings.queue})["queues"]
        if not isinstance(found, dict) or settings.queue not in found:
            declare_queue(client, settings.endpoint.vhost, settings.queue, settings.create)
    finally:
        client.close()


def _identity(settings: ReplaySettings) -> dict[str, object]:
    return {
        "kind": "replay",
        "from": settings.archive or settings.queues,
        "to": settings.queue,
        "starting": settings.starting,
        "ending": settings.ending,
        "filter": settings.filter,
    }


def _messages(spark: SparkSession, settings: ReplaySettings) -> DataFrame:
    """Return the messages of the settings, before the filter."""
    if not settings.archive:
        options = {"includeHeaders": "true", "startingOffsets": settings.starting, "endingOffsets": settings.ending}
        return settings.endpoint.read(spark, settings.queues, includeProperties=RAW_PROPERTIES, **options)
    frame = read_archive(spark, settings.archive, read_schema("true", RAW_PROPERTIES))
    if settings.queues:
        names = [name.strip() for name in settings.queues.split(",")]
        frame = frame.where(F.col("queue").isin(names))
    frame = _bounded(frame, settings.starting, ">=", "earliest")
    return _bounded(frame, settings.ending, "<", "latest")


def _bounded(frame: DataFrame, position: str, operator: str, open_end: str) -> DataFrame:
    if position == open_end:
        return frame
    if position.isascii() and position.isdecimal():
        return frame.where(f"offset {operator} {position}")
    return frame.where(f"timestamp {operator} TIMESTAMP '{position.replace(chr(39), '')}'")


def _steps(frame: DataFrame, settings: ReplaySettings, state: State) -> Iterator[Step]:
    """Yield the steps to do, first the one that an earlier run began."""
    if "bounds" not in state.kept:
        rows = frame.groupBy("queue").agg(F.min("offset").alias("first"), F.max("offset").alias("last")).collect()
        state.keep(bounds=sorted([row.queue, row.first, row.last + 1] for row in rows))
    bounds = state.kept["bounds"]
    assert isinstance(bounds, list)
    most = min(STEP_MESSAGES, max(1, int(settings.rate * STEP_SECONDS))) if settings.rate else STEP_MESSAGES
    under_way = _under_way(state)
    if under_way is not None:
        yield under_way
    for queue, first, stop in bounds:
        if under_way is not None and queue < under_way.queue:
            continue
        at = under_way.stop if under_way is not None and queue == under_way.queue else first
        for start in range(at, stop, most):
            step = Step(queue, start, min(stop, start + most))
            write_json(_step_file(state), vars(step))
            yield step


def _under_way(state: State) -> Step | None:
    noted = read_json(_step_file(state))
    return Step(**noted) if noted else None


def _step_file(state: State) -> Path:
    return state.directory / "step.json"


def _replay(frame: DataFrame, steps: Iterator[Step], settings: ReplaySettings, state: State, tell: Tell) -> Progress:
    started = time.monotonic()
    messages = batches = 0

    def say(phase: str) -> Progress:
        told = Progress(settings.name, messages, batches, time.monotonic() - started, phase=phase)
        tell(told)
        return told

    say("reading")
    for step in steps:
        chosen = frame.where(
            (F.col("queue") == step.queue) & (F.col("offset") >= step.start) & (F.col("offset") < step.stop)
        ).cache()
        try:
            messages += chosen.count()
            say("storing")
            _store_again(chosen, settings, f"replay-{state.id}-{_id(step)}")
        finally:
            chosen.unpersist()
        batches += 1
        if settings.rate:
            time.sleep(max(0.0, messages / settings.rate - (time.monotonic() - started)))
        say("reading")
    return say("")


def _id(step: Step) -> str:
    """Return a step's part of a transaction's id."""
    return f"{step.queue.encode().hex()[:80]}-{step.start}-{step.stop}"


def _store_again(frame: DataFrame, settings: ReplaySettings, transaction: str) -> None:
    """Store messages of one queue by offset, with their properties byte for byte, and with their time to live."""
    is_old = F.col("encoding").isNull()  # without stored properties: what the columns say of them
    headers = F.when(is_old, F.col("headers"))
    if settings.mark:
        headers = _marked(headers)
    life_us = F.unix_micros("expires_at") - F.unix_micros("timestamp")
    rows = frame.coalesce(1).sortWithinPartitions("offset")
    rows = rows.select(
        "payload", "topic", headers.alias("headers"), F.when(is_old, F.col("content_type")).alias("content_type"),
        "priority", F.floor(life_us / 1000).alias("expires_in_ms"), *RAW,
    )  # fmt: skip
    writer = rows.write.format(FORMAT).options(**settings.endpoint.options).option("transactionId", transaction)
    writer.mode("append").save(settings.queue)


def _marked(headers: Column) -> Column:
    """Return headers with the original place and time of their message."""
    original = F.create_map(
        F.lit(ORIGINAL_TIMESTAMP), F.date_format("timestamp", "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"),
        F.lit(ORIGINAL_QUEUE), F.col("queue"),
        F.lit(ORIGINAL_OFFSET), F.col("offset").cast("string"),
    )  # fmt: skip
    others = F.map_filter(
        F.coalesce(headers, F.create_map().cast("map<string,string>")),
        lambda name, _: ~name.isin(ORIGINAL_TIMESTAMP, ORIGINAL_QUEUE, ORIGINAL_OFFSET),
    )
    return F.map_concat(others, original)
