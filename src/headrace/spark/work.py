"""Work queues in Spark: messages are claimed, worked on, and acknowledged. Logs are in reader.py and stream.py.

A claim lasts for its lease. Its holder renews it; when the holder dies, the broker gives the messages to others.

The claim is the offset of a streaming query, so a batch that is repeated after a crash has the same messages, except
those that others got meanwhile. Spark tells late or never that a batch is done (`commit`, `stop`), but it asks for the
batch behind it, also after a restart: that acknowledges the messages that the batch had. A process that did not plan
the batch knows only that they are among those that its claim still holds.

Spark tells a batch source nothing about the end of the job, so the caller's `with` does.
"""

import json
import logging
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Final, final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.errors import HeadraceError, Refused
from headrace.spark.client import Client
from headrace.spark.options import DEFAULT_LEASE_SECONDS, WORK_MODE, ReadOptions, read_options
from headrace.spark.place import (
    Place,
    QueuePartition,
    WorkPartition,
    arrow_schema,
    open_place,
    read_partition,
)

MOST: Final = 100_000
"""The most messages that a group lets be claimed at a time, and so the most of a batch."""
DEFAULT_ROWS: Final = 10_000
"""The default of the most messages of a batch: others cannot get claimed messages."""
_RENEWALS: Final = 3
"""Renewals of a claim within its lease."""
_WIDEST_GAP: Final = 4096
"""The most foreign offsets between two ranges that are read and dropped instead of asked for apart."""

Ranges = tuple[tuple[int, int], ...]
_log: Final = logging.getLogger("headrace.spark")


# -- claims ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """Ranges of offsets by queue, held under the name `by`; `number` counts the batches."""

    by: str
    number: int
    taken: Mapping[str, Ranges]

    @property
    def messages(self) -> int:
        return sum(stop - start for ranges in self.taken.values() for start, stop in ranges)

    def to_offset(self) -> dict[str, object]:
        """Return the offset of a streaming query; equal claims give equal texts."""
        return {"by": self.by, "number": self.number, "taken": {name: self.taken[name] for name in sorted(self.taken)}}


def _nothing() -> Claim:
    """Return an empty claim under a new name, before the first one."""
    return Claim(f"spark-{uuid.uuid4().hex}", 0, {})


def claim_of(offset: Mapping[str, object]) -> Claim:
    """Read an offset of `to_offset`. Raises Refused for other offsets: the checkpoint is another query's."""
    by, number, taken = offset.get("by"), offset.get("number"), offset.get("taken")
    if not isinstance(by, str) or not isinstance(number, int) or not isinstance(taken, Mapping):
        raise Refused(f"{json.dumps(offset)[:200]} is no claim: the checkpoint is of a query without mode=work")
    return Claim(by, number, {name: tuple((start, stop) for start, stop in ranges) for name, ranges in taken.items()})


@final
class Claims:
    """The calls that claim and settle. Every call may be repeated without effect."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.server is not None
        self._client = Client(options.server)
        self._group = options.consumer_group
        self._lease_ms = options.lease_seconds * 1000

    def take(self, by: str, queue: str, most: int, before: int | None = None) -> Ranges:
        """Claim up to `most` waiting messages, below an offset if one is given."""
        body: dict[str, object] = {"most": min(most, MOST), "lease_ms": self._lease_ms}
        if before is not None:
            body["before"] = before
        return self._ranges(by, "take", queue, body)

    def take_all(self, claim: Claim, queues: Mapping[str, int | None], most: int) -> Claim:
        """Claim up to `most` waiting messages of several queues, each below its offset if it has one.

        Return them as the claim behind this one.
        """
        taken: dict[str, Ranges] = {}
        left = most
        for queue, before in queues.items():
            ranges = self.take(claim.by, queue, left, before) if left > 0 else ()
            if ranges:
                taken[queue] = ranges
                left -= sum(stop - start for start, stop in ranges)
        return Claim(claim.by, claim.number + 1, taken)

    def hold(self, claim: Claim) -> Claim:
        """Renew a claim; return the part that is still held. The rest is done, or its lease ran out."""
        body: dict[str, object] = {"lease_ms": self._lease_ms}
        held = {
            queue: self._ranges(claim.by, "hold", queue, {**body, "ranges": ranges})
            for queue, ranges in claim.taken.items()
            if ranges
        }
        return Claim(claim.by, claim.number, held)

    def finish_held(self, claim: Claim) -> int:
        """Acknowledge the messages that the claim still holds; return their number."""
        answers = [
            self._call(claim.by, "finish", queue, {"ranges": ranges}) for queue, ranges in claim.taken.items() if ranges
        ]
        return sum(int(str(answer["messages"])) for answer in answers)

    def finish(self, done: Claim) -> None:
        """Acknowledge messages that were worked on, also those that wait again; others' claims stay."""
        if self.finish_held(done) < done.messages:
            self.finish_held(self.hold(done))

    def release(self, claim: Claim) -> None:
        """Put all messages of a claim back; it does not count as an attempt."""
        for queue in claim.taken:
            self._call(claim.by, "release", queue, {})

    def close(self) -> None:
        self._client.close()

    def _ranges(self, by: str, verb: str, queue: str, body: Mapping[str, object]) -> Ranges:
        found = self._call(by, verb, queue, body)["ranges"]
        assert isinstance(found, list)
        return tuple((start, stop) for start, stop in found)

    def _call(self, by: str, verb: str, queue: str, body: Mapping[str, object]) -> dict[str, object]:
        return self._client.json(
            "POST", f"/bulk/claims/{by}/{verb}", {}, {"queue": queue, "group": self._group, **body}
        )


@final
class ClaimKeeper:
    """Renews a claim in a thread, until it is replaced or the process ends."""

    def __init__(self, options: ReadOptions) -> None:
        self._claims = Claims(options)
        self._pause_seconds = options.lease_seconds / _RENEWALS
        self._claim: Claim | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-claims", daemon=True)
        self._thread.start()

    def keep(self, claim: Claim | None) -> None:
        """Renew only this claim from now on."""
        with self._lock:
            self._claim = claim

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._pause_seconds):
            with self._lock:  # so that a replaced claim is not renewed
                if self._claim is not None:
                    self._renew(self._claim)
        self._claims.close()

    def _renew(self, claim: Claim) -> None:
        try:
            lost = claim.messages - self._claims.hold(claim).messages
        except HeadraceError as error:
            _log.warning("a claim of %d messages could not be renewed: %s", claim.messages, error)
            return
        if lost:
            _log.warning("%d of %d claimed messages went to others: raise option leaseSeconds", lost, claim.messages)


def runs_of(ranges: Sequence[tuple[int, int]], widest_gap: int) -> list[Ranges]:
    """Group ranges that are read together: the gaps within a group are at most that wide."""
    if not ranges:
        return []
    cuts = [at + 1 for at, (one, other) in enumerate(pairwise(ranges)) if other[0] - one[1] > widest_gap]
    return [tuple(ranges[start:stop]) for start, stop in pairwise([0, *cuts, len(ranges)])]


def portions_of(ranges: Sequence[tuple[int, int]], rows: int) -> list[Ranges]:
    """Cut ranges into portions of `rows` offsets; the last one may have fewer."""
    portions: list[Ranges] = []
    current: list[tuple[int, int]] = []
    room = rows
    for start, stop in ranges:
        while start < stop:
            end = min(stop, start + room)
            current.append((start, end))
            room -= end - start
            start = end
            if not room:
                portions.append(tuple(current))
                current, room = [], rows
    return [*portions, tuple(current)] if current else portions


def work_partitions(claim: Claim, options: ReadOptions, schema: pa.Schema) -> list[WorkPartition]:
    """Return at least as many partitions as the options ask for, of about equal size."""
    rows = max(1, -(-claim.messages // options.min_partitions))
    return [
        WorkPartition(tuple(_run(queue, ranges, schema) for ranges in runs_of(portion, _WIDEST_GAP)))
        for queue, ranges in claim.taken.items()
        for portion in portions_of(ranges, rows)
    ]


def _run(queue: str, ranges: Ranges, schema: pa.Schema) -> QueuePartition:
    only = ranges if len(ranges) > 1 else ()
    return QueuePartition(queue, ranges[0][0], ranges[-1][1], (), schema, False, only)


# -- streams -----------------------------------------------------------------------------------------------------------


@final
class WorkStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream of claims, in a process of its own on the driver."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._driver: _Driver | None = None

    def __getstate__(self) -> dict[str, object]:
        """Return the state for executors: nothing of the claims."""
        return {**self.__dict__, "_driver": None}

    # -- on the driver -----------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        self._driving().queues()
        return _nothing().to_offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.trigger_offsets or DEFAULT_ROWS)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._driving().stop_at_present()

    def latestOffset(self, start: Mapping[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802
        """Claim the next batch. The batch of `start` is done."""
        driver = self._driving()
        driver.finish(claim_of(start))
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else DEFAULT_ROWS
        return driver.following(claim_of(start), most).to_offset()

    def partitions(self, start: Mapping[str, object], end: Mapping[str, object]) -> Sequence[InputPartition]:
        if start == end:
            return []
        return work_partitions(self._driving().held(claim_of(end)), self._options, self._schema)

    def commit(self, end: Mapping[str, object]) -> None:
        self._driving().finish(claim_of(end))

    def stop(self) -> None:
        """Close connections. The claim stays until its lease ends, because its batch may be done."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    # -- on executors ------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    def _driving(self) -> "_Driver":
        if self._driver is None:
            self._driver = _Driver(self._options)
        return self._driver


@final
class _Driver:
    """The state of the process on the driver: at most one claim, which it renews."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._place: Place = open_place(options)
        self._claims = Claims(options)
        self._keeper = ClaimKeeper(options)
        self._current: Claim | None = None
        """The messages that the current batch has."""
        self._finished = 0
        self._ends: Mapping[str, int | None] | None = None

    def close(self) -> None:
        self._keeper.close()
        self._claims.close()
        self._place.close()

    def queues(self) -> list[str]:
        """Return the queues to claim from. Raises NotFound."""
        self._place.refresh()
        return self._place.matching()

    def stop_at_present(self) -> None:
        """Claim no message that is published from now on."""
        self._ends = {queue: self._place.bounds(queue)[1] for queue in self.queues()}

    def finish(self, claim: Claim) -> None:
        """Acknowledge the messages that the batch of a claim had, once."""
        if claim.number <= self._finished:
            return
        if self._current is not None and self._current.number == claim.number:
            self._keeper.keep(None)
            self._claims.finish(self._current)
        else:  # another process planned the batch, perhaps without the messages that others had
            self._claims.finish_held(claim)
        self._finished = claim.number

    def following(self, last: Claim, most: int) -> Claim:
        """Return the claim behind `last`: a new one, the current one when asked twice, or `last` when nothing waits."""
        if self._current is not None and self._current.number == last.number + 1:
            return self._current
        queues = dict.fromkeys(self.queues()) if self._ends is None else self._ends
        claim = self._claims.take_all(last, queues, most)
        if not claim.taken:
            return last
        self._current = claim
        self._keeper.keep(claim)
        return claim

    def held(self, claim: Claim) -> Claim:
        """Return the held part of a claim: all of it, unless another process made the claim."""
        if self._current is not None and self._current.number == claim.number:
            return self._current
        self._current = self._claims.hold(claim)
        self._keeper.keep(self._current)
        return self._current


# -- batches -----------------------------------------------------------------------------------------------------------


@final
class Work:
    """Messages claimed from work queues, as a DataFrame; the end of the `with` acknowledges, an error gives back.

        with Work(spark, "orders", url="http://localhost:15672") as orders:
            orders.write.parquet("orders", mode="append")

    The claim is renewed within the `with`. When this process dies, the messages go to others after the lease.
    """

    def __init__(
        self,
        spark: SparkSession,
        queues: str,
        most: int = DEFAULT_ROWS,
        lease_seconds: int = DEFAULT_LEASE_SECONDS,
        **options: str,
    ) -> None:
        """`options` are those of the data source: url, user, password, vhost, consumerGroup, includeHeaders.

        Raises Refused when one of them is invalid.
        """
        self._spark = spark
        self._most = most
        self._given = {**options, "mode": WORK_MODE, "leaseSeconds": str(lease_seconds)}
        self._options = read_options({**self._given, "path": queues})
        self._queues = queues
        self._claims = Claims(self._options)
        self._keeper: ClaimKeeper | None = None
        self._claim = Claim("", 0, {})

    def __enter__(self) -> DataFrame:
        """Claim waiting messages, possibly none. Raises NotFound, Unavailable."""
        self._claim = self._take()
        self._keeper = ClaimKeeper(self._options)
        self._keeper.keep(self._claim)
        reader = self._spark.read.format("headrace").options(**self._given)
        return reader.option("claim", json.dumps(self._claim.to_offset())).load(self._queues)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._keeper is not None
        self._keeper.keep(None)
        self._keeper.close()
        try:
            if error is None:
                self._claims.finish(self._claim)
            else:
                self._claims.release(self._claim)
        finally:
            self._claims.close()

    def _take(self) -> Claim:
        place = open_place(self._options)
        try:
            queues = dict.fromkeys(place.matching())
        finally:
            place.close()
        return self._claims.take_all(_nothing(), queues, self._most)


@final
class WorkReader(DataSourceReader):
    """The frame of a `Work`: reads the claimed messages, as often as Spark asks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Raises Refused without a claim."""
        if not options.claim:
            raise Refused(
                "spark.read cannot say when a job is done, so mode=work needs somebody who does: "
                "`with headrace.spark.Work(spark, queue, url=...) as frame:` acknowledges at its end. "
                "spark.readStream takes mode=work as it is"
            )
        self._options = options
        self._schema = arrow_schema(schema)
        self._claim = claim_of(json.loads(options.claim))

    def partitions(self) -> Sequence[InputPartition]:
        return work_partitions(self._claim, self._options, self._schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)
