"""Reading queues as a batch, whose bounds are fixed when Spark plans the query. Streams are in stream.py."""

from collections.abc import Iterator, Sequence
from typing import final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headrace.spark.options import ReadOptions
from headrace.spark.place import (
    Place,
    Range,
    arrow_schema,
    check_loss,
    check_named,
    make_partitions,
    open_place,
    read_partition,
)


@final
class BatchReader(DataSourceReader):
    """One read of one or several queues. Spark pickles it to the executors, so it holds no open place.

    It takes no filters from Spark. Spark keeps one plan for each DataFrame, not for each query: the filters of one
    query would be those of the next one, and of the other side of a union.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)

    def partitions(self) -> Sequence[InputPartition]:
        place = open_place(self._options)
        ranges: list[Range] = []
        options = self._options
        try:
            queues = place.matching()
            check_named(options.starting, "startingOffsets", queues)
            check_named(options.ending, "endingOffsets", queues)
            for queue in queues:
                is_loss = options.fail_on_data_loss and options.starting.of(queue).offset >= 0
                start, stop = self._range(place, queue)
                pieces = place.pieces(queue, start, stop, self._options.partition_bytes)
                ranges.append((queue, pieces, is_loss, place.log_id(queue)))
        finally:
            place.close()
        return make_partitions(ranges, self._options, self._schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    def _range(self, place: Place, queue: str) -> tuple[int, int]:
        options = self._options
        first, following = place.bounds(queue)
        start = place.offset_at(queue, options.starting)
        if options.starting.of(queue).offset >= 0:
            start = check_loss(options.fail_on_data_loss, queue, start, first)
        start = max(start, first)
        return start, max(start, min(place.offset_at(queue, options.ending), following))
