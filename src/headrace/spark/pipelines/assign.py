"""Pipeline `assign`: every message of a log to each queue whose filter it matches, exactly once, in one commit a batch.

Spark gets to see what the filters read, never the payloads: tasks stage which message goes where, and the broker copies
them when the driver commits that, under the pipeline's id and the number of the batch.
"""

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, final

import numpy as np
import numpy.typing as npt
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
from headrace.spark.pipelines.session import parallelism
from headrace.spark.pipelines.sql import trigger
from headrace.spark.pipelines.state import open_state
from headrace.storage.frame import HEADERS

MAX_BYTES: Final = "64m"
"""The most that is read for one batch: all of it, as often as it matches, is one commit of the broker if it can be."""
PART_COPIES: Final = 1 << 20
"""The most copies that a part says something of: a message for a queue takes 12 bytes of it."""
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
        "startingOffsets": settings.starting,
        "maxBytesPerTrigger": settings.max_bytes,
        "minPartitions": str(parallelism(spark)),
    }
    transaction = f"assign-{state.id}"

    def stage(frame: DataFrame, attempt: str) -> list[Part]:
        task = Stage(server, transaction, settings.filters, attempt)
        staged = frame.mapInArrow(task, "name STRING, queue STRING, first BIGINT, last BIGINT")
        return [Part(row.name, row.queue, row.first, row.last) for row in staged.collect()]

    assign = Batches(server, transaction, state, settings.filters, stage)
    try:
        frame = settings.endpoint.stream(spark, settings.queues, columns_read(settings.filters), **options)
        writer = frame.writeStream.queryName(settings.name).option("checkpointLocation", state.checkpoint)
        query = trigger(writer.foreachBatch(assign), settings.once, settings.every).start()
    except PySparkException as error:
        raise Refused(f"pipeline {settings.name!r}: {reason_of(error)}") from error
    return Watch(settings.name, query)


def columns_read(filters: Filters) -> tuple[str, ...]:
    """The columns of a log that tasks need to see: what the filters read, and which message it is."""
    selectors = [parse(text) for _, text in filters]
    fields = {name for selector in selectors for name in selector.fields}
    headers = [HEADERS] if any(selector.headers for selector in selectors) else []
    return ("queue", "offset", *sorted(fields - {"queue", "offset"}), *headers)


@final
class Stage:
    """What a task does: match its messages, stage which of them goes to which queue, and say which parts it wrote."""

    def __init__(self, server: Server, transaction: str, filters: Filters, attempt: str) -> None:
        self._server = server
        self._transaction = transaction
        self._filters = filters
        self._attempt = attempt

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        predicates = _predicates(self._filters)
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
                    if waiting.count and waiting.queue != queue:
                        parts.append(self._put(client, f"{name}-{len(parts)}", waiting))
                    for offsets, numbers in _assigned(each, predicates):
                        if waiting.count + len(offsets) > PART_COPIES:
                            parts.append(self._put(client, f"{name}-{len(parts)}", waiting))
                        waiting.add(queue, offsets, numbers)
            if waiting.count:
                parts.append(self._put(client, f"{name}-{len(parts)}", waiting))
        finally:
            client.close()
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([part.name for part in parts], pa.string()),
                pa.array([part.queue for part in parts], pa.string()),
                pa.array([part.first for part in parts], pa.int64()),
                pa.array([part.last for part in parts], pa.int64()),
            ],
            ["name", "queue", "first", "last"],
        )

    def _put(self, client: Client, part: str, waiting: "Waiting") -> Part:
        """Stage what waits, and have nothing wait."""
        offsets, numbers = np.concatenate(waiting.offsets), np.concatenate(waiting.numbers)
        queues = pa.DictionaryArray.from_arrays(
            pa.array(numbers), pa.array([queue for queue, _ in self._filters], pa.string())
        )
        copies = pa.RecordBatch.from_arrays([pa.array(offsets), queues], ["offset", "queue"])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, copies.schema) as writer:
            writer.write_batch(copies)
        path = f"/bulk/transactions/{self._transaction}/parts/{part}"
        query = {"copy": waiting.queue, "attempt": self._attempt}
        client.send("PUT", path, query, bytes(memoryview(sink.getvalue())))
        staged = Part(part, waiting.queue, int(offsets.min()), int(offsets.max()))
        waiting.clear()
        return staged


@final
class Waiting:
    """Which messages of one queue go where, as far as it is not staged yet."""

    def __init__(self) -> None:
        self.offsets: list[npt.NDArray[np.int64]] = []
        self.numbers: list[npt.NDArray[np.int32]] = []
        self.count = 0
        self.queue = ""

    def add(self, queue: str, offsets: npt.NDArray[np.int64], numbers: npt.NDArray[np.int32]) -> None:
        """Have copies of messages of this queue wait, each with the number of its filter."""
        self.queue = queue
        self.offsets.append(offsets)
        self.numbers.append(numbers)
        self.count += len(offsets)

    def clear(self) -> None:
        self.offsets = []
        self.numbers = []
        self.count = 0


@lru_cache(maxsize=2)
def _predicates(filters: Filters) -> PredicateSet:
    """The filters, made once in a process that runs many tasks: a thousand of them take a quarter of a second."""
    return PredicateSet([parse(text) for _, text in filters])


def _of_one_queue(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The messages queue by queue; nearly always all of them at once."""
    names = pc.unique(batch.column("queue"))
    if len(names) == 1:
        yield batch
        return
    for name in names:
        yield batch.filter(pc.equal(batch.column("queue"), name))


def _assigned(
    batch: pa.RecordBatch, predicates: PredicateSet
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]]:
    """The offsets of messages as often as they match, each with its filter, in order; in pieces as large as parts."""
    rows, numbers = predicates.matches(batch)
    order = np.argsort(rows, kind="stable")
    offsets = batch.column("offset").to_numpy()[rows[order]]
    numbers = numbers[order]
    for at in range(0, len(offsets), PART_COPIES):
        yield offsets[at : at + PART_COPIES], numbers[at : at + PART_COPIES]
