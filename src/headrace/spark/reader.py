"""Reading queues as a batch: from where to where is settled when the query is planned. stream.py goes on from there."""

from collections.abc import Callable, Iterator, Sequence
from typing import final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from headrace.spark.columns import arrow_schema
from headrace.spark.filters import Filters, take
from headrace.spark.options import ReadOptions
from headrace.spark.partitioning import check_loss, grouped
from headrace.spark.place import Piece, Place, QueuePartition, open_place, read_partition

Range = tuple[str, list[Piece], bool]
"""What is read of one queue, and whether it is a loss when some of it is gone by then."""


@final
class BatchReader(DataSourceReader):
    """One read of one or several queues. Crosses to the executors, so it holds no open place."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._filters = Filters()
        # Spark refuses a source with a pushFilters of its own unless spark.sql.python.filterPushdown.enabled is set,
        # and calls it when it is set. This one is taken for the inherited one, so that reading works either way.
        self.pushFilters = _Pushed(self._push)  # type: ignore[method-assign]

    def _push(self, filters: Sequence[Filter]) -> list[Filter]:
        self._filters, left = take(filters)
        return left

    def partitions(self) -> Sequence[InputPartition]:
        place = open_place(self._options)
        ranges: list[Range] = []
        is_loss = self._options.fail_on_data_loss and self._options.starting.offset >= 0
        try:
            for queue in place.matching(self._options.queues):
                if self._filters.admits_queue(queue):
                    start, stop = self._range(place, queue)
                    pieces = place.pieces(queue, start, stop, self._options.partition_bytes)
                    ranges.append((queue, pieces, is_loss))
        finally:
            place.close()
        return make_partitions(ranges, self._options, self._filters, self._schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    def _range(self, place: Place, queue: str) -> tuple[int, int]:
        options, filters = self._options, self._filters
        first, following = place.bounds(queue)
        start = place.offset_at(queue, options.starting)
        if options.starting.offset >= 0:
            start = check_loss(options.fail_on_data_loss, queue, start, first)
        stop = min(place.offset_at(queue, options.ending), following, filters.max_offset + 1)
        start = max(start, first, filters.min_offset)
        if filters.needs_time and start < stop:
            start = max(start, place.find(queue, filters.min_time_us))
        return start, max(start, stop)


class _Pushed:
    """A method that Spark takes for DataSourceReader.pushFilters."""

    def __init__(self, push: Callable[[Sequence[Filter]], list[Filter]]) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._push = push

    def __call__(self, filters: Sequence[Filter]) -> list[Filter]:
        return self._push(filters)


def make_partitions(
    ranges: Sequence[Range], options: ReadOptions, filters: Filters, schema: pa.Schema
) -> list[QueuePartition]:
    """Partitions of whole blocks: none larger than the options say, and at least as many as they ask for."""
    total = max(1, sum(piece.size_bytes for _, pieces, _ in ranges for piece in pieces))
    return [
        QueuePartition(queue, group[0].start, group[-1].stop, group, filters, schema, is_loss)
        for queue, pieces, is_loss in ranges
        for group in grouped(pieces, options.partition_bytes, _share(options.min_partitions, pieces, total))
    ]


def _share(least: int, pieces: Sequence[Piece], total_bytes: int) -> int:
    """How many of so many partitions a queue gets, by its size."""
    return -(-least * sum(piece.size_bytes for piece in pieces) // total_bytes)
