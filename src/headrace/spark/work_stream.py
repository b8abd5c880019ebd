"""Work queues as a stream: every batch is a claim, acknowledged when Spark has done with it. Logs are in stream.py.

The claim is the query's offset, so a batch that comes again after a crash is of the same messages, as far as nobody
else got them meanwhile. Spark says late or never that a batch is done (`commit`, `stop`), but it asks for the next one
from there, also after a restart: that is when the last one is acknowledged.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.spark.claims import Claim, ClaimKeeper, Claims, Ranges, claim_of, portions_of, runs_of
from headrace.spark.columns import arrow_schema
from headrace.spark.filters import Filters
from headrace.spark.options import ReadOptions
from headrace.spark.place import Place, QueuePartition, WorkPartition, open_place, read_partition

DEFAULT_ROWS: Final = 10_000
"""The most messages of a batch, unless an option says otherwise: what is claimed is kept from others."""
_WIDEST_GAP: Final = 4096
"""Offsets of others between two ranges that are rather read and left out than asked around."""


@final
class WorkStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream of claims, in the process that Spark keeps for it on the driver."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._driver: _Driver | None = None

    def __getstate__(self) -> dict[str, object]:
        """What crosses to the executors: nothing of the claims."""
        return {**self.__dict__, "_driver": None}

    # -- on the driver -----------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        self._driving().queues()
        return Claim(f"spark-{uuid.uuid4().hex}", 0, {}).to_offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.trigger_offsets or DEFAULT_ROWS)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._driving().stop_at_present()

    def latestOffset(self, start: Mapping[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802
        """The next claim. Whatever `start` has is done."""
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
        """Let go of connections. What is claimed stays so until its lease is over: its batch may have been done."""
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
    """What the process on the driver holds: one claim at most, which it renews."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._place: Place = open_place(options)
        self._claims = Claims(options)
        self._keeper = ClaimKeeper(options)
        self._current: Claim | None = None
        self._finished = 0
        self._ends: Mapping[str, int] | None = None

    def close(self) -> None:
        self._keeper.close()
        self._claims.close()
        self._place.close()

    def queues(self) -> list[str]:
        """The queues to claim from. Raises NotFound."""
        self._place.refresh()
        return self._place.matching(self._options.queues)

    def stop_at_present(self) -> None:
        """Claim nothing that is published from now on."""
        self._ends = {queue: self._place.bounds(queue)[1] for queue in self.queues()}

    def finish(self, claim: Claim) -> None:
        """Acknowledge a claim, once."""
        if claim.number <= self._finished:
            return
        if self._current is not None and self._current.number == claim.number:
            self._keeper.keep(None)
        self._claims.finish(claim)
        self._finished = claim.number

    def following(self, last: Claim, most: int) -> Claim:
        """The claim behind this one; the same again when nothing waits, and when it is asked for twice."""
        if self._current is not None and self._current.number == last.number + 1:
            return self._current
        taken: dict[str, Ranges] = {}
        left = most
        for queue in self.queues() if self._ends is None else self._ends:
            before = None if self._ends is None else self._ends[queue]
            ranges = self._claims.take(last.by, queue, left, before)
            if ranges:
                taken[queue] = ranges
                left -= sum(stop - start for start, stop in ranges)
            if left <= 0:
                break
        if not taken:
            return last
        self._current = Claim(last.by, last.number + 1, taken)
        self._keeper.keep(self._current)
        return self._current

    def held(self, claim: Claim) -> Claim:
        """What is held of a claim: all of it, unless another process made it."""
        if self._current is not None and self._current.number == claim.number:
            return self._current
        self._current = claim
        held = self._claims.hold(claim)
        self._keeper.keep(held)
        return held


def work_partitions(claim: Claim, options: ReadOptions, schema: pa.Schema) -> list[WorkPartition]:
    """At least as many partitions as asked for, of about equal size, if there are so many messages."""
    rows = max(1, -(-claim.messages // options.min_partitions))
    return [
        WorkPartition(tuple(_run(queue, ranges, schema) for ranges in runs_of(portion, _WIDEST_GAP)))
        for queue, ranges in claim.taken.items()
        for portion in portions_of(ranges, rows)
    ]


def _run(queue: str, ranges: Ranges, schema: pa.Schema) -> QueuePartition:
    filters = Filters(ranges=ranges) if len(ranges) > 1 else Filters()
    return QueuePartition(queue, ranges[0][0], ranges[-1][1], (), filters, schema, gone_is_loss=False)
