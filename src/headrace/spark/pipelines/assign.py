"""Pipeline `assign`: every message of a log to each queue whose filter it matches, exactly once, in one commit a batch.

Spark reads the columns of the filters, never the payloads. Tasks stage pairs of a message and a queue; the broker
copies the messages when the driver commits, under the pipeline's id and the number of the batch. Tasks may read the log
from the broker's data directory or store instead; the commit names the log, so offsets of another one are refused.

Only the broker knows whether a batch is too large for one commit. Such a batch is cut into pieces, which are ranges of
offsets. The list of pieces is written before any of them is committed, and each has a number of its own, so a repeated
batch goes on with the piece that it had reached.
"""

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from headrace.errors import BadExpression, Refused, TooLarge
from headrace.selector import parse
from headrace.spark.options import ReadOptions, Server, read_options, write_options
from headrace.spark.pipelines.endpoint import Endpoint
from headrace.spark.pipelines.predicates import PredicateSet, check_columns
from headrace.spark.pipelines.run import (
    Progress,
    State,
    Tell,
    Watch,
    open_state,
    read_json,
    refusals,
    say_nothing,
    start_query,
    wait,
    write_json,
)
from headrace.spark.pipelines.session import parallelism
from headrace.spark.place import NO_LOG, Place, open_place
from headrace.spark.writer import Transaction
from headrace.storage.frame import HEADERS

MAX_BYTES: Final = "64m"
"""The most bytes of one batch; all copies of its messages are one commit, if the broker takes that much."""
PART_COPIES: Final = 1 << 20
"""The most copies in one part; each takes 12 bytes."""
_PIECES: Final = 1 << 20
"""The most pieces of a batch, so that sequence numbers grow from batch to batch."""
Filters = tuple[tuple[str, str], ...]
"""Queues and their filters, in the order of the queues' names."""
Logs = dict[str, int]
"""Queues and the ids of their logs."""
Range = tuple[str, int, int]
"""A queue that is read, the first offset, and the offset behind the last."""


@dataclass(frozen=True)
class AssignSettings:
    """The settings of a pipeline `assign`."""

    name: str
    endpoint: Endpoint
    queues: str
    """The log to read: a queue's name, several with commas between, or a pattern."""
    filters: Filters
    state: Path
    starting: str = "earliest"
    once: bool = False
    every: str = ""
    max_bytes: str = MAX_BYTES
    source: Endpoint | None = None
    """Where tasks read the log, if not through the broker: its data directory or its store."""


def read_filters(given: Mapping[str, str]) -> Filters:
    """Check filters by queue. Raises Refused with the queue whose filter is wrong."""
    if not given:
        raise Refused("there are no filters: write QUEUE: EXPRESSION for each queue")
    for queue, text in given.items():
        try:
            check_columns(parse(text))
        except BadExpression as error:
            raise Refused(f"the filter of queue {queue!r}: {error}") from error
        except Refused as error:
            raise Refused(f"queue {queue!r}: {error}") from error
    return tuple(sorted(given.items()))


def run_assign(spark: SparkSession, settings: AssignSettings, tell: Tell = say_nothing) -> Progress:
    """Assign once or continuously. Raises Refused."""
    return wait([start_assign(spark, settings)], tell)[0]


def start_assign(spark: SparkSession, settings: AssignSettings) -> Watch:
    """Start assigning and return. Filters may change between runs; each run uses its own."""
    if not settings.endpoint.is_broker:
        raise Refused(f"pipeline {settings.name!r}: {settings.endpoint.url} is no broker; assigning needs one")
    state = open_state(settings.state, settings.name, {"kind": "assign", "from": settings.queues})
    server = write_options({**settings.endpoint.options, "path": settings.filters[0][0]}).server
    options = {
        "startingOffsets": settings.starting,
        "maxBytesPerTrigger": settings.max_bytes,
        "minPartitions": str(parallelism(spark)),
    }
    source = settings.source or settings.endpoint
    assign = BatchAssigner(server, state, settings.filters, read_options({**source.options, "path": settings.queues}))
    with refusals(f"pipeline {settings.name!r}"):
        frame = source.stream(spark, settings.queues, columns_read(settings.filters), **options)
        writer = frame.writeStream.foreachBatch(assign)
        query = start_query(writer, settings.name, state, settings.once, settings.every)
        return Watch(settings.name, query, assign.close, lambda: assign.phase)


def columns_read(filters: Filters) -> tuple[str, ...]:
    """Return the columns that tasks read: queue and offset, and the inputs of the filters."""
    selectors = [parse(text) for _, text in filters]
    fields = {name for selector in selectors for name in selector.fields}
    headers = [HEADERS] if any(selector.headers for selector in selectors) else []
    return ("queue", "offset", *sorted(fields - {"queue", "offset"}), *headers)


# -- batches, on the driver --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Staged copies of messages of one queue, from the offset `first` to `last`."""

    name: str
    queue: str
    first: int
    last: int


@final
class BatchAssigner:
    """Assigns batch after batch; Spark calls it with a frame and the number of the batch."""

    def __init__(self, server: Server, state: State, filters: Filters, source: ReadOptions) -> None:
        self.phase = ""
        """What a batch does now; "" between batches."""
        self._server = server
        self._source = source
        self._place: Place | None = None
        """Opened by the first batch: Spark Connect sends this object to its server before."""
        self._transaction = f"assign-{state.id}"
        self._note = state.directory / "pieces.json"
        self._filters = filters
        self._digest = hashlib.sha256(json.dumps(filters).encode()).hexdigest()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        logs = self._logs()  # before the frame is read, which fails for messages of an earlier log
        pieces = self._noted(batch)
        at = 0
        while at < len(pieces):
            if at + 1 >= _PIECES:
                raise Refused(f"batch {batch} has more than {_PIECES} pieces: read less at once with max_bytes")
            halves = self._assign(_rows(frame, pieces[at]), logs, batch * _PIECES + at)
            if halves:
                pieces[at : at + 1] = halves  # no other piece has changed, and this one was not committed
                write_json(self._note, {"batch": batch, "filters": self._digest, "pieces": pieces})
            else:
                at += 1

    def close(self) -> None:
        if self._place is not None:
            self._place.close()

    def _logs(self) -> Logs:
        """Return the id of the log of each queue that has messages."""
        if self._place is None:
            self._place = open_place(self._source)
        self._place.refresh()
        found = {queue: self._place.log_id(queue) for queue in self._place.matching()}
        return {queue: log for queue, log in found.items() if log != NO_LOG}

    def _assign(self, frame: DataFrame, logs: Logs, sequence: int) -> list[list[Range]]:
        """Stage and commit a piece. Return its halves if the broker finds it too large."""
        attempt = uuid.uuid4().hex
        with Transaction(self._server, self._transaction, attempt) as opened:
            try:
                self.phase = "reading"
                parts = self._stage(frame, logs, attempt)
                self.phase = "storing"
            except Exception:
                opened.abort()
                raise
            try:
                opened.commit([part.name for part in parts], sequence)
            except TooLarge:
                opened.discard()
                halves = halved(parts)
                if not halves:
                    raise
                return halves
            finally:
                self.phase = ""
            return []

    def _stage(self, frame: DataFrame, logs: Logs, attempt: str) -> list[Part]:
        """Stage the copies of a frame's messages in tasks."""
        task = StageTask(self._server, self._transaction, self._filters, logs, attempt)
        staged = frame.mapInArrow(task, "name STRING, queue STRING, first BIGINT, last BIGINT")
        return [Part(row.name, row.queue, row.first, row.last) for row in staged.collect()]

    def _noted(self, batch: int) -> list[list[Range]]:
        """Return the pieces of a batch that an earlier run began, or one piece with everything.

        Raises Refused when that run had other filters: its finished pieces would differ from the rest.
        """
        noted = read_json(self._note)
        if noted.get("batch") != batch:
            return [[]]
        if noted["filters"] != self._digest:
            raise Refused("the last run ended within a batch of several pieces: finish that with the filters it had")
        return [[(queue, start, stop) for queue, start, stop in piece] for piece in noted["pieces"]]


def halved(parts: Sequence[Part]) -> list[list[Range]]:
    """Return two pieces with all messages of the parts; none where the parts have a single message."""
    extents: dict[str, tuple[int, int]] = {}
    for part in parts:
        first, last = extents.get(part.queue, (part.first, part.last))
        extents[part.queue] = min(first, part.first), max(last, part.last)
    ranges = [(queue, first, last + 1) for queue, (first, last) in sorted(extents.items())]
    if len(ranges) > 1:
        return [ranges[: len(ranges) // 2], ranges[len(ranges) // 2 :]]
    if not ranges or ranges[0][2] - ranges[0][1] < 2:
        return []
    ((queue, start, stop),) = ranges
    middle = (start + stop) // 2
    return [[(queue, start, middle)], [(queue, middle, stop)]]


def _rows(frame: DataFrame, piece: Sequence[Range]) -> DataFrame:
    """Return the messages of a piece; all messages where it has no ranges."""
    if not piece:
        return frame
    queue, offset = frame["queue"], frame["offset"]
    condition = (queue == piece[0][0]) & (offset >= piece[0][1]) & (offset < piece[0][2])
    for name, start, stop in piece[1:]:
        condition = condition | ((queue == name) & (offset >= start) & (offset < stop))
    return frame.where(condition)


# -- tasks, on executors -----------------------------------------------------------------------------------------------


@final
class StageTask:
    """A task: matches its messages, stages the copies, and yields its parts."""

    def __init__(self, server: Server, transaction: str, filters: Filters, logs: Logs, attempt: str) -> None:
        self._server = server
        self._transaction = transaction
        self._filters = filters
        self._logs = logs
        self._attempt = attempt

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        predicates = _predicates(self._filters)
        context = TaskContext.get()
        # The name is unique: no other attempt writes under it.
        name = f"p{context.partitionId() if context is not None else 0}-{uuid.uuid4().hex}"
        parts: list[Part] = []
        waiting = Waiting()
        with Transaction(self._server, self._transaction, self._attempt) as opened:
            for batch in batches:
                for each in _of_one_queue(batch):
                    queue = each.column("queue")[0].as_py()
                    if waiting.count and waiting.queue != queue:
                        parts.append(self._put(opened, f"{name}-{len(parts)}", waiting))
                    for offsets, numbers in _assigned(each, predicates):
                        if waiting.count + len(offsets) > PART_COPIES:
                            parts.append(self._put(opened, f"{name}-{len(parts)}", waiting))
                        waiting.add(queue, offsets, numbers)
            if waiting.count:
                parts.append(self._put(opened, f"{name}-{len(parts)}", waiting))
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([part.name for part in parts], pa.string()),
                pa.array([part.queue for part in parts], pa.string()),
                pa.array([part.first for part in parts], pa.int64()),
                pa.array([part.last for part in parts], pa.int64()),
            ],
            ["name", "queue", "first", "last"],
        )

    def _put(self, opened: Transaction, name: str, waiting: "Waiting") -> Part:
        """Stage the waiting copies as one part."""
        offsets, numbers = np.concatenate(waiting.offsets), np.concatenate(waiting.numbers)
        queues = pa.DictionaryArray.from_arrays(
            pa.array(numbers), pa.array([queue for queue, _ in self._filters], pa.string())
        )
        copies = pa.RecordBatch.from_arrays([pa.array(offsets), queues], ["offset", "queue"])
        log = {"log": str(self._logs[waiting.queue])} if waiting.queue in self._logs else {}
        opened.stage(name, {"copy": waiting.queue, **log}, [copies])
        staged = Part(name, waiting.queue, int(offsets.min()), int(offsets.max()))
        waiting.clear()
        return staged


@final
class Waiting:
    """Copies of messages of one queue that are not staged yet."""

    def __init__(self) -> None:
        self.offsets: list[npt.NDArray[np.int64]] = []
        self.numbers: list[npt.NDArray[np.int32]] = []
        self.count = 0
        self.queue = ""

    def add(self, queue: str, offsets: npt.NDArray[np.int64], numbers: npt.NDArray[np.int32]) -> None:
        """Add copies of messages of this queue, each with the number of its filter."""
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
    """Compile the filters once per process, which runs many tasks: a thousand take a quarter of a second."""
    return PredicateSet([parse(text) for _, text in filters])


def _of_one_queue(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the messages queue by queue; nearly always all of them at once."""
    names = pc.unique(batch.column("queue"))
    if len(names) == 1:
        yield batch
        return
    for name in names:
        yield batch.filter(pc.equal(batch.column("queue"), name))


def _assigned(
    batch: pa.RecordBatch, predicates: PredicateSet
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]]:
    """Yield offsets with the number of each filter that they match, by offset, in pieces no larger than a part."""
    rows, numbers = predicates.matches(batch)
    order = np.argsort(rows, kind="stable")
    offsets = batch.column("offset").to_numpy()[rows[order]]
    numbers = numbers[order]
    for at in range(0, len(offsets), PART_COPIES):
        yield offsets[at : at + PART_COPIES], numbers[at : at + PART_COPIES]
