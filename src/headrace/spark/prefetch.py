"""Streams whose small batches are read by the driver when it plans them. What a batch has is stream.py's to decide.

A task that reads a few rows spends its time on reaching a Python process and back. Spark can take rows along with the
plan and keep them for its tasks; it asks that only of the readers that it wraps simple ones in, so this is one of them.
Those are not asked for the latest offset, which says something where a trigger takes less than there is: streams with
such limits are read by tasks alone.
"""

from collections.abc import Iterator, Sequence
from typing import Final, final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.types import StructType

from headrace.errors import HeadraceError
from headrace.spark.options import ReadOptions
from headrace.spark.place import QueuePartition
from headrace.spark.stream import Offsets, StreamReader

PREFETCH_BYTES: Final = 64 << 10
"""Rows of up to this size go along with the plan."""
_PIECES_BYTES: Final = 512 << 10
"""What is stored in more bytes than these is not looked into: a row may stand in a block with many others."""


def stream_reader(options: ReadOptions, schema: StructType) -> StreamReader:
    """The reader of a log that fits the options."""
    is_limited = options.trigger_offsets or options.trigger_bytes
    return StreamReader(options, schema) if is_limited else PrefetchingReader(options, schema)


@final
class PrefetchingReader(StreamReader, _SimpleStreamReaderWrapper):
    """A stream that reads a batch itself where that is one small range, and leaves all others to tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        StreamReader.__init__(self, options, schema)
        self._fetched: list[pa.RecordBatch] | None = None

    @property
    def simple_reader(self) -> StreamReader:  # type: ignore[override]
        """Of which Spark asks what a stream can do."""
        return self

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        planned = super().partitions(start, end)
        self._fetched = self._fetch(planned[0]) if len(planned) == 1 else None
        return planned

    def getCache(self, start: Offsets, end: Offsets) -> Iterator[pa.RecordBatch] | None:  # noqa: N802
        """The rows of what was planned last; None leaves them to the tasks."""
        fetched, self._fetched = self._fetched, None
        return None if fetched is None else iter(fetched)

    def _fetch(self, partition: InputPartition) -> list[pa.RecordBatch] | None:
        """The rows of a partition; None when they are many, or cannot be read now: a task tries again, and says why."""
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
