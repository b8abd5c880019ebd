"""Reading queues as a batch, whose bounds are fixed when Spark plans the query. Streams are in stream.py."""

from collections.abc import Callable, Iterator, Sequence
from typing import final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from headrace.spark.filters import Filters, take
from headrace.spark.options import ReadOptions
from headrace.spark.place import Place, Range, arrow_schema, check_loss, make_partitions, open_place, read_partition


@final
class BatchReader(DataSourceReader):
    """One read of one or several queues. Spark pickles it to the executors, so it holds no open place."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._filters = Filters()
        # Spark refuses a source with its own pushFilters unless spark.sql.python.filterPushdown.enabled is set.
        # Spark takes this attribute for the inherited method, so reading works with either setting.
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
    """A callable that looks like DataSourceReader.pushFilters to Spark."""

    def __init__(self, push: Callable[[Sequence[Filter]], list[Filter]]) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._push = push

    def __call__(self, filters: Sequence[Filter]) -> list[Filter]:
        return self._push(filters)
