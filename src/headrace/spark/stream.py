"""Reading queues as a stream; the offsets of the query are the offsets of the logs, one per queue. Batches: reader.py.

A task that reads a few rows spends its time on the way to a Python process and back. So the driver reads small batches
itself while it plans them, and Spark passes the rows on with the plan. Spark offers that only to wrappers of simple
readers, so the prefetching reader is one. Spark does not ask such readers for the latest offset, which matters where a
trigger takes less than there is: streams with such limits are read by tasks alone.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, final

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

from headrace.errors import HeadraceError, NotFound, Refused, Truncated
from headrace.spark.options import ReadOptions
from headrace.spark.place import (
    NO_LOG,
    Piece,
    Place,
    QueuePartition,
    Range,
    arrow_schema,
    check_loss,
    check_named,
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
Offsets = dict[str, dict[str, int]]
"""By queue: the id of its log, and the offset of the next message. Spark compares offsets as text, so keys are sorted.

Checkpoints of earlier releases have the offset alone."""


class Reached(NamedTuple):
    """Reading position in a queue. The id of its log is NO_LOG where nobody knows it."""

    next: int
    log: int = NO_LOG

    def is_of(self, other: "Reached") -> bool:
        """Return whether both are, or may be, offsets of one log."""
        return self.log in (NO_LOG, other.log)


def to_offsets(reached: Mapping[str, Reached]) -> Offsets:
    return {queue: {"log": reached[queue].log, "next": reached[queue].next} for queue in sorted(reached)}


def from_offsets(offsets: Mapping[str, object]) -> dict[str, Reached]:
    """Read offsets of a checkpoint. Raises Refused for those of another query."""
    found: dict[str, Reached] = {}
    for queue, value in offsets.items():
        if isinstance(value, Mapping) and isinstance(value.get("next"), int) and isinstance(value.get("log"), int):
            found[queue] = Reached(value["next"], value["log"])
        elif isinstance(value, int):
            found[queue] = Reached(value)
        else:
            raise Refused(f"{json.dumps(offsets)[:200]} are no offsets of queues: the checkpoint is another query's")
    return found


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream over one or several queues, in a process of its own on the driver."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._place: Place | None = None
        self._target: dict[str, Reached] | None = None
        self._reported: dict[str, Reached] = {}
        self._planned: dict[str, Reached] = {}
        """The end of the last batch that was planned."""
        self._first = ""
        """The queue that the next batch begins with where bytes are limited."""
        self._batched_s = -math.inf
        """The time when the last batch was planned, or could have been."""

    def __getstate__(self) -> dict[str, object]:
        """Return the state for executors: no open place, no progress."""
        return {**self.__dict__, "_place": None, "_target": None, "_reported": {}}

    # -- on the driver -----------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offsets:  # noqa: N802
        place = self._opened()
        queues = place.matching()
        check_named(self._options.starting, "startingOffsets", queues)
        return to_offsets({queue: self._start_of(place, queue) for queue in queues})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.trigger_offsets:
            return ReadMaxRows(self._options.trigger_offsets)
        if self._options.trigger_bytes:
            return ReadMaxBytes(self._options.trigger_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._ends(self._opened())

    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        """Return the ends of the queues for the progress of the query, with the messages behind the last batch."""
        found = to_offsets(self._ends(self._opened(), is_new=False))
        for queue, end in found.items():
            reached = self._planned.get(queue)
            if reached is not None and reached.is_of(Reached(end["next"], end["log"])):
                end["lag"] = max(0, end["next"] - reached.next)
        return found

    def latestOffset(self, start: Mapping[str, object], limit: ReadLimit) -> Offsets:  # noqa: N802
        """Return the end of the next batch. Batches up to `start` are done."""
        place = self._opened()
        done = from_offsets(start)
        self._report(place, done)
        ends = dict(self._target if self._target is not None else self._ends(place))
        for queue, reached in done.items():
            ends[queue] = self._checked(queue, reached, ends.get(queue))
        starts = {
            queue: done[queue].next if queue in done and done[queue].is_of(end) else place.bounds(queue)[0]
            for queue, end in ends.items()
        }
        if self._waits(sum(end.next - starts[queue] for queue, end in ends.items())):
            return to_offsets(done)
        if not isinstance(limit, ReadAllAvailable):
            stops = self._limited(place, starts, {queue: end.next for queue, end in ends.items()})
            ends = {queue: Reached(stops[queue], end.log) for queue, end in ends.items()}
        self._planned = ends
        return to_offsets(ends)

    def partitions(self, start: Mapping[str, object], end: Mapping[str, object]) -> Sequence[InputPartition]:
        place = self._opened()
        begins = from_offsets(start)
        ranges: list[Range] = []
        for queue, stop in from_offsets(end).items():
            if begins.get(queue) != stop:
                found = self._range(place, queue, begins.get(queue), stop)
                ranges += [found] if found is not None else []
        return make_partitions(ranges, self._options, self._schema)

    def commit(self, end: Mapping[str, object]) -> None:
        """Report a batch that is done. Spark calls this one batch late, so `latestOffset` reports too."""
        self._report(self._opened(), from_offsets(end))

    def stop(self) -> None:
        """Close files and connections. Spark ends the process of the stream instead."""
        if self._place is not None:
            self._place.close()
            self._place = None

    # -- on executors ------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    # -- decisions ---------------------------------------------------------------------------------------------------

    def _opened(self) -> Place:
        if self._place is None:
            self._place = open_place(self._options)
        return self._place

    def _start_of(self, place: Place, queue: str) -> Reached:
        offset = place.offset_at(queue, self._options.starting)
        first, following = place.bounds(queue)
        start = min(check_loss(self._options.fail_on_data_loss, queue, offset, first), following)
        return Reached(start, place.log_id(queue))

    def _ends(self, place: Place, is_new: bool = True) -> dict[str, Reached]:
        """Return the ends of the queues, now or at the last refresh."""
        if is_new:
            place.refresh()
        try:
            queues = place.matching()
        except NotFound:  # one was deleted; `_checked` decides whether that matters
            known = set(place.names())
            queues = [queue for queue in self._options.queues if queue in known]
        return {queue: Reached(place.bounds(queue)[1], place.log_id(queue)) for queue in queues}

    def _checked(self, queue: str, reached: Reached, end: Reached | None) -> Reached:
        """Return the end of a queue that was read up to `reached`; `end` is None when the queue is gone."""
        if end is not None and reached.is_of(end) and end.next >= reached.next:
            return end
        self._check_deleted(queue, reached, "is gone" if end is None else f"is another one now, up to {end.next}")
        return reached if end is None else end

    def _check_deleted(self, queue: str, reached: Reached, now: str) -> None:
        """Accept that a queue was deleted, or raise Truncated."""
        if self._options.fail_on_data_loss:
            raise Truncated(
                f"queue {queue!r} was read up to offset {reached.next} and {now}: it was deleted. Start with a new "
                f"checkpoint, or set option failOnDataLoss=false to read what there is now"
            )

    def _range(self, place: Place, queue: str, begin: Reached | None, stop: Reached) -> Range | None:
        """Return what a batch reads of a queue; None where its messages went with the queue."""
        try:
            first, following = place.bounds(queue)
            if following < stop.next:
                place.refresh()
                first, following = place.bounds(queue)
            log = place.log_id(queue)
        except NotFound:
            log, following = NO_LOG, -1
        if not stop.is_of(Reached(following, log)) or following < stop.next:
            self._check_deleted(queue, begin or stop, "its next messages are gone")
            return None
        start = first
        is_same = begin is not None and begin.is_of(stop) and begin.next <= stop.next
        is_loss = self._options.fail_on_data_loss and is_same
        if begin is not None and is_same:
            start = check_loss(is_loss, queue, begin.next, first)
        return queue, place.pieces(queue, start, stop.next, self._options.partition_bytes), is_loss, log

    def _limited(self, place: Place, starts: dict[str, int], ends: dict[str, int]) -> dict[str, int]:
        options = self._options
        if options.trigger_offsets:
            ends = within_rows(starts, ends, options.trigger_offsets)
        if options.trigger_bytes:

            def pieces_of(queue: str, start: int, end: int, enough: int) -> Sequence[Piece]:
                return place.pieces(queue, start, end, enough, enough)

            ends, self._first = within_bytes(starts, ends, options.trigger_bytes, self._first, pieces_of)
        return ends

    def _waits(self, messages: int) -> bool:
        """Return whether the next batch waits for more messages; an available-now run does not wait."""
        if not self._options.least_offsets or self._target is not None:
            return False
        now_s = time.monotonic()
        is_due = now_s - self._batched_s >= self._options.delay_ms / 1000
        if messages >= self._options.least_offsets or is_due:  # also without messages, as Kafka's source counts it
            self._batched_s = now_s
            return False
        return True

    def _report(self, place: Place, done: dict[str, Reached]) -> None:
        if self._options.consumer_group and done != self._reported:
            place.report({queue: reached.next for queue, reached in done.items()})
            self._reported = done


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

    def partitions(self, start: Mapping[str, object], end: Mapping[str, object]) -> Sequence[InputPartition]:
        planned = super().partitions(start, end)
        self._fetched = self._fetch(planned[0]) if len(planned) == 1 else None
        return planned

    def getCache(self, start: Mapping[str, object], end: Mapping[str, object]) -> Iterator[pa.RecordBatch] | None:  # noqa: N802
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
