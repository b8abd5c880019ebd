"""Reading queues as a stream; the offsets of the query are the offsets of the logs, one per queue. Batches: reader.py.

A task that reads a few rows spends its time on the way to a Python process and back. So the driver reads small batches
itself while it plans them, and Spark passes the rows on with the plan. Spark offers that only to wrappers of simple
readers, so the prefetching reader is one. Spark does not ask such readers for the latest offset, which matters where a
trigger takes less than there is: streams with such limits are read by tasks alone.
"""

from collections.abc import Iterator, Sequence
from typing import Final, final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace.errors import HeadraceError, NotFound, Truncated
from headrace.spark.options import ReadOptions
from headrace.spark.place import (
    Place,
    QueuePartition,
    Range,
    arrow_schema,
    check_loss,
    make_partitions,
    open_place,
    read_partition,
    within_bytes,
    within_rows,
)

PREFETCH_BYTES: Final = 64 << 10
"""The most bytes of rows that go with the plan."""
_PIECES_BYTES: Final = 512 << 10
"""The most stored bytes that the driver reads for a prefetch: a row may share a block with many others."""
Offsets = dict[str, int]
"""The offset of the next message, by queue. Spark compares offsets as text, so the queues are sorted."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream over one or several queues, in a process of its own on the driver."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._place: Place | None = None
        self._target: Offsets | None = None
        self._reported: Offsets = {}

    def __getstate__(self) -> dict[str, object]:
        """Return the state for executors: no open place, no progress."""
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
        """Return the end of the next batch. Batches up to `start` are done."""
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
            if begin > stop:  # the queue was deleted and declared again, and the options allow that
                begin = first
            is_loss = self._options.fail_on_data_loss and queue in start
            begin = check_loss(is_loss, queue, begin, first)
            ranges.append((queue, place.pieces(queue, begin, stop, self._options.partition_bytes), is_loss))
        return make_partitions(ranges, self._options, self._schema)

    def commit(self, end: Offsets) -> None:
        """Report a batch that is done. Spark calls this one batch late, so `latestOffset` reports too."""
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
        """Return the ends of the queues, now or at the last refresh."""
        if is_new:
            place.refresh()
        try:
            queues = place.matching(self._options.queues)
        except NotFound:  # one was deleted; `_checked` decides whether that matters
            known = set(place.names())
            queues = [queue for queue in self._options.queues if queue in known]
        return {queue: place.bounds(queue)[1] for queue in queues}

    def _checked(self, queue: str, reached: int, end: int | None) -> int:
        """Return the end of a queue that was read up to `reached`; `end` is None when the queue is gone."""
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


@final
class PrefetchingReader(StreamReader, _SimpleStreamReaderWrapper):
    """A stream that reads a batch on the driver where it is one small range, and leaves all others to tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        StreamReader.__init__(self, options, schema)
        self._fetched: list[pa.RecordBatch] | None = None

    @property
    def simple_reader(self) -> StreamReader:  # type: ignore[override]
        """The reader that Spark asks for the features of the stream."""
        return self

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        planned = super().partitions(start, end)
        self._fetched = self._fetch(planned[0]) if len(planned) == 1 else None
        return planned

    def getCache(self, start: Offsets, end: Offsets) -> Iterator[pa.RecordBatch] | None:  # noqa: N802
        """Return the rows of the last plan; None leaves them to the tasks."""
        fetched, self._fetched = self._fetched, None
        return None if fetched is None else iter(fetched)

    def _fetch(self, partition: InputPartition) -> list[pa.RecordBatch] | None:
        """Return the rows of a partition; None when they are many or cannot be read, so that a task reads them."""
        assert isinstance(partition, QueuePartition)
        if sum(piece.size_bytes for piece in partition.pieces) > _PIECES_BYTES:
            return None
        fetched: list[pa.RecordBatch] = []
        size = 0
        try:
            for batch in self._opened().read(partition):
                size += batch.nbytes
                if size > PREFETCH_BYTES:
                    return None
                fetched.append(batch)
        except (HeadraceError, OSError, pa.ArrowException):
            return None
        return fetched


def stream_reader(options: ReadOptions, schema: StructType) -> StreamReader:
    """Return the reader that fits the options."""
    is_limited = options.trigger_offsets or options.trigger_bytes
    return StreamReader(options, schema) if is_limited else PrefetchingReader(options, schema)
