"""Pipeline `assign`: every message of a log to each queue whose filter it matches, exactly once, in one commit a batch.

Tasks match and stage in one go, so that a payload crosses from Spark to Python once; the driver commits what they
staged under the pipeline's id and the number of the batch.
"""

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.errors import BadExpression, Refused
from headrace.selector import parse
from headrace.spark.client import Client
from headrace.spark.options import Server, write_options
from headrace.spark.pipelines.assign_batch import Batches, Part
from headrace.spark.pipelines.endpoint import Endpoint
from headrace.spark.pipelines.predicates import PredicateSet, check_columns
from headrace.spark.pipelines.progress import Progress, Tell, Watch, reason_of, say_nothing, wait
from headrace.spark.pipelines.sql import trigger
from headrace.spark.pipelines.state import open_state

MAX_BYTES: Final = "64m"
"""The most that is read for one batch: all of it, as often as it matches, is one commit of the broker if it can be."""
PART_BYTES: Final = 20 << 20
COLUMNS: Final = ("queue", "offset", "timestamp", "topic", "routing_key", "payload", "expires_at", "priority",
                  "content_type", "headers")  # fmt: skip
Filters = tuple[tuple[str, str], ...]
"""Queues and their filters, in the order of the queues' names."""


@dataclass(frozen=True)
class AssignSettings:
    """What a pipeline `assign` does."""

    name: str
    endpoint: Endpoint
    queues: str
    """The log that is read: a queue's name, several with commas between, or a pattern."""
    filters: Filters
    state: Path
    starting: str = "earliest"
    once: bool = False
    every: str = ""
    max_bytes: str = MAX_BYTES


def read_filters(said: Mapping[str, str]) -> Filters:
    """Filters by queue, checked. Raises Refused with the queue whose filter is wrong."""
    if not said:
        raise Refused("there are no filters: write QUEUE: EXPRESSION for each queue")
    for queue, text in said.items():
        try:
            check_columns(parse(text))
        except BadExpression as error:
            raise Refused(f"the filter of queue {queue!r}: {error}") from error
        except Refused as error:
            raise Refused(f"queue {queue!r}: {error}") from error
    return tuple(sorted(said.items()))


def run_assign(spark: SparkSession, settings: AssignSettings, tell: Tell = say_nothing) -> Progress:
    """Assign what is there now, or for good. Raises Refused when that cannot be done."""
    return wait([start_assign(spark, settings)], tell)[0]


def start_assign(spark: SparkSession, settings: AssignSettings) -> Watch:
    """Start assigning and return. Filters may change between runs: a message is assigned by those of its run."""
    if not settings.endpoint.is_broker:
        raise Refused(f"pipeline {settings.name!r}: {settings.endpoint.url} is no broker; assigning needs one")
    state = open_state(settings.state, settings.name, {"kind": "assign", "from": settings.queues})
    server = write_options({**settings.endpoint.options, "path": settings.filters[0][0]}).server
    options = {
        "includeHeaders": "true", "startingOffsets": settings.starting, "maxBytesPerTrigger": settings.max_bytes,
    }  # fmt: skip
    transaction = f"assign-{state.id}"

    def stage(frame: DataFrame, attempt: str) -> list[Part]:
        task = Stage(server, transaction, settings.filters, attempt)
        staged = frame.select(*COLUMNS).mapInArrow(task, "name STRING, size BIGINT, queue STRING, first BIGINT")
        return [Part(row.name, row.size, row.queue, row.first) for row in staged.collect()]

    assign = Batches(server, transaction, state, settings.filters, stage)
    try:
        frame = settings.endpoint.stream(spark, settings.queues, **options)
        writer = frame.writeStream.queryName(settings.name).option("checkpointLocation", state.checkpoint)
        query = trigger(writer.foreachBatch(assign), settings.once, settings.every).start()
    except PySparkException as error:
        raise Refused(f"pipeline {settings.name!r}: {reason_of(error)}") from error
    return Watch(settings.name, query)


@final
class Stage:
    """What a task does: match its messages, stage a copy for every queue, and say which parts it wrote."""

    def __init__(self, server: Server, transaction: str, filters: Filters, attempt: str) -> None:
        self._server = server
        self._transaction = transaction
        self._filters = filters
        self._attempt = attempt

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        predicates = PredicateSet([parse(text) for _, text in self._filters])
        queues = pa.array([queue for queue, _ in self._filters], pa.string())
        client = Client(self._server)
        context = TaskContext.get()
        # No other attempt ever writes under this name.
        name = f"p{context.partitionId() if context is not None else 0}-{uuid.uuid4().hex}"
        parts: list[Part] = []
        waiting = Waiting()
        try:
            for batch in batches:
                for each in _of_one_queue(batch):
                    queue = each.column("queue")[0].as_py()
                    if waiting.batches and waiting.queue != queue:
                        parts.append(self._put(client, f"{name}-{len(parts)}", waiting))
                    for first, copies in _assigned(each, predicates, queues):
                        waiting.add(queue, first, copies)
                        if waiting.size >= PART_BYTES:
                            parts.append(self._put(client, f"{name}-{len(parts)}", waiting))
            if waiting.batches:
                parts.append(self._put(client, f"{name}-{len(parts)}", waiting))
        finally:
            client.close()
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([part.name for part in parts], pa.string()),
                pa.array([part.size for part in parts], pa.int64()),
                pa.array([part.queue for part in parts], pa.string()),
                pa.array([part.first for part in parts], pa.int64()),
            ],
            ["name", "size", "queue", "first"],
        )

    def _put(self, client: Client, part: str, waiting: "Waiting") -> Part:
        """Stage what waits, and have nothing wait."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, waiting.batches[0].schema) as writer:
            for batch in waiting.batches:
                writer.write_batch(batch)
        path = f"/bulk/transactions/{self._transaction}/parts/{part}"
        query = {"queues": "queue", "attempt": self._attempt}
        client.send("PUT", path, query, bytes(memoryview(sink.getvalue())))
        staged = Part(part, waiting.size, waiting.queue, waiting.first)
        waiting.clear()
        return staged


@final
class Waiting:
    """Copies of messages of one queue that are not staged yet."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.size = 0
        self.queue = ""
        self.first = 0

    def add(self, queue: str, first: int, copies: pa.RecordBatch) -> None:
        """Have copies of messages wait, the first of which has this offset."""
        if not self.batches:
            self.queue = queue
            self.first = first
        self.batches.append(copies)
        self.size += copies.nbytes

    def clear(self) -> None:
        self.batches = []
        self.size = 0


def _of_one_queue(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The messages queue by queue; nearly always all of them at once."""
    names = pc.unique(batch.column("queue"))
    if len(names) == 1:
        yield batch
        return
    for name in names:
        yield batch.filter(pc.equal(batch.column("queue"), name))


def _assigned(
    batch: pa.RecordBatch, predicates: PredicateSet, queues: pa.Array
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The messages as often as they match, each with its queue, in order; in pieces, with the offset of the first."""
    rows, numbers = predicates.matches(batch)
    order = np.argsort(rows, kind="stable")
    rows, numbers = rows[order], numbers[order]
    per_row = max(1, batch.nbytes // max(1, batch.num_rows))
    step = max(1, (PART_BYTES // 2) // per_row)
    for at in range(0, len(rows), step):
        chosen = pa.array(rows[at : at + step])
        first = batch.column("offset")[chosen[0].as_py()].as_py()
        yield first, _copies(batch, chosen, queues.take(pa.array(numbers[at : at + step])))


def _copies(batch: pa.RecordBatch, rows: pa.Array, queues: pa.Array) -> pa.RecordBatch:
    chosen = batch.select(["payload", "topic", "headers", "content_type", "priority", "expires_at"]).take(rows)
    columns = {name: chosen.column(name) for name in chosen.schema.names}
    expires_at = columns.pop("expires_at")
    if expires_at.null_count < len(expires_at):
        columns["expires_in_ms"] = _remaining_ms(expires_at)
    else:
        columns["expires_in_ms"] = pa.nulls(len(rows), pa.int64())
    return pa.RecordBatch.from_arrays([queues, *columns.values()], ["queue", *columns])


def _remaining_ms(expires_at: pa.Array) -> pa.Array:
    """How long messages still live; what has expired meanwhile lives a millisecond more."""
    left = pc.subtract(expires_at.cast(pa.int64()), pa.scalar(time.time_ns() // 1000))
    return pc.max_element_wise(pc.divide(left, pa.scalar(1000)), pa.scalar(1), skip_nulls=False)
