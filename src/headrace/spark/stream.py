"""Reading queues as a stream: offsets of the query are offsets of the logs, one per queue. Batches are log.py's."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace.errors import NotFound, Truncated
from headrace.spark.columns import arrow_schema
from headrace.spark.filters import Filters
from headrace.spark.options import ReadOptions
from headrace.spark.partitioning import check_loss, within_bytes, within_rows
from headrace.spark.place import Place, open_place, read_partition
from headrace.spark.reader import Range, make_partitions

Offsets = dict[str, int]
"""By queue, the offset of the next message. Spark compares them as text, so the queues are always in order."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream over one or several queues, in the process that Spark keeps for it on the driver."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._place: Place | None = None
        self._target: Offsets | None = None
        self._reported: Offsets = {}

    def __getstate__(self) -> dict[str, object]:
        """What crosses to the executors: no open place, no progress."""
        return {**self.__dict__, "_place": None, "_target": None, "_reported": {}}

    # -- on the driver -----------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offsets:  # noqa: N802
        place = self._opened()
        return {queue: self._start_of(place, queue) for queue in place.matching(self._options.queues)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.trigger_offsets:
            return ReadMaxRows(self._options.trigger_offsets)
        if self._options.trigger_bytes:
            return ReadMaxBytes(self._options.trigger_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._ends(self._opened())

    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        return self._ends(self._opened(), is_new=False)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """How far the next batch goes. Everything below `start` is in batches that are done."""
        place = self._opened()
        self._report(place, start)
        ends = self._target if self._target is not None else self._ends(place)
        starts = {queue: start[queue] if queue in start else place.bounds(queue)[0] for queue in ends}
        for queue, reached in start.items():
            ends = {**ends, queue: self._checked(queue, reached, ends.get(queue))}
            starts[queue] = reached
        if not isinstance(limit, ReadAllAvailable):
            ends = self._limited(place, starts, ends)
        return {queue: ends[queue] for queue in sorted(ends)}

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        place = self._opened()
        ranges: list[Range] = []
        for queue, stop in end.items():
            if start.get(queue) == stop:
                continue
            first, following = place.bounds(queue)
            if following < stop:
                place.refresh()
                first, following = place.bounds(queue)
            begin = start.get(queue, first)
            if begin > stop:  # the queue was deleted and declared again, and that is to be lived with
                begin = first
            is_loss = self._options.fail_on_data_loss and queue in start
            begin = check_loss(is_loss, queue, begin, first)
            ranges.append((queue, place.pieces(queue, begin, stop, self._options.partition_bytes), is_loss))
        return make_partitions(ranges, self._options, Filters(), self._schema)

    def commit(self, end: Offsets) -> None:
        """A batch is done; said one batch late, so `latestOffset` reports too."""
        self._report(self._opened(), end)

    # -- on executors ------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    # -- decisions ---------------------------------------------------------------------------------------------------

    def _opened(self) -> Place:
        if self._place is None:
            self._place = open_place(self._options)
        return self._place

    def _start_of(self, place: Place, queue: str) -> int:
        offset = place.offset_at(queue, self._options.starting)
        first, following = place.bounds(queue)
        return min(check_loss(self._options.fail_on_data_loss, queue, offset, first), following)

    def _ends(self, place: Place, is_new: bool = True) -> Offsets:
        """Where the queues end now, or ended when that was last asked."""
        if is_new:
            place.refresh()
        try:
            queues = place.matching(self._options.queues)
        except NotFound:  # one was deleted: whether that matters is seen when its offset is looked at
            known = set(place.names())
            queues = [queue for queue in self._options.queues if queue in known]
        return {queue: place.bounds(queue)[1] for queue in queues}

    def _checked(self, queue: str, reached: int, end: int | None) -> int:
        """How far to read a queue that was read up to `reached` and ends at `end` now; None when it is gone."""
        if end is not None and end >= reached:
            return end
        if self._options.fail_on_data_loss:
            now = "is gone" if end is None else f"ends at {end} now"
            raise Truncated(
                f"queue {queue!r} was read up to offset {reached} and {now}: it was deleted. Start with a new "
                f"checkpoint, or set option failOnDataLoss=false to read what there is now"
            )
        return reached if end is None else end

    def _limited(self, place: Place, starts: Offsets, ends: Offsets) -> Offsets:
        options = self._options
        if options.trigger_offsets:
            ends = within_rows(starts, ends, options.trigger_offsets)
        if options.trigger_bytes:
            waiting = [queue for queue in ends if ends[queue] > starts[queue]]
            share = max(1, options.trigger_bytes // max(1, len(waiting)))
            for queue in waiting:
                pieces = place.pieces(queue, starts[queue], ends[queue], share)
                ends = {**ends, queue: within_bytes(pieces, starts[queue], ends[queue], share)}
        return ends

    def _report(self, place: Place, positions: Offsets) -> None:
        if self._options.consumer_group and positions != self._reported:
            place.report(positions)
            self._reported = dict(positions)
