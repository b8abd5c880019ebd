"""A data directory that tasks read themselves, whether or not a broker has it open. No network."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, final

import pyarrow as pa

from headrace.errors import Corrupt, NotFound, Unavailable
from headrace.spark.options import ReadOptions
from headrace.spark.place import HOST_SEPARATOR, Piece, Place, QueuePartition, check_deleted, check_loss
from headrace.storage.local.follower import Follower, Span, SpanReader

_ATTEMPTS: Final = 5


@final
class Directory(Place):
    """One data directory, read from outside."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._follower: Follower | None = None
        self._prefix = "" if options.vhost == "/" else options.vhost + HOST_SEPARATOR

    def __str__(self) -> str:
        return f"the data directory {self._options.directory}"

    def refresh(self) -> None:
        self._seen().refresh()

    def names(self) -> list[str]:
        prefix = self._prefix
        names = [name[len(prefix) :] for name in self._seen().names() if name.startswith(prefix)]
        return [name for name in names if HOST_SEPARATOR not in name]

    def bounds(self, queue: str) -> tuple[int, int]:
        return self._seen().bounds(self._prefix + queue)

    def find(self, queue: str, timestamp_us: int) -> int:
        return self._seen().find(self._prefix + queue, timestamp_us)

    def pieces(self, queue: str, start: int, stop: int, most_bytes: int) -> list[Piece]:
        log_id = self._seen().log_id(self._prefix + queue)
        return [
            Piece(span[4], span[5], span[3] - span[2], (log_id, span))
            for span in self._seen().spans(self._prefix + queue, start, stop)
        ]

    def close(self) -> None:
        if self._follower is not None:
            self._follower.close()

    def _seen(self) -> Follower:
        """Return the view of the directory. A task opens it only when messages have moved since the plan."""
        if self._follower is None:
            self._follower = Follower(Path(self._options.directory))
        return self._follower

    def read(self, partition: QueuePartition) -> Iterator[pa.RecordBatch]:
        from headrace.spark.properties import read_properties
        from headrace.storage.frame import Frame

        names = list(partition.schema.names)
        frame = Frame(partition.queue, names, read_properties)
        stored = list(dict.fromkeys([*frame.stored, *partition.filters.columns]))
        for found in self._batches(partition, stored):
            batch = partition.filters.rows(found)
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays(frame.of(batch).columns, schema=partition.schema)

    def _batches(self, partition: QueuePartition, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield every message of the partition exactly once, even if it has moved since the plan."""
        pieces = list(partition.pieces)
        at, stop = partition.start, partition.stop
        for attempt in range(_ATTEMPTS):
            try:
                for base, batch in _read_pieces(pieces, names):
                    if base != at:
                        break
                    yield batch
                    at += batch.num_rows
                if at >= stop:
                    return
            except (Unavailable, Corrupt):
                if attempt == _ATTEMPTS - 1:
                    raise
            at, pieces = self._look_again(partition, pieces, at)
            if at >= stop:
                return
        raise Unavailable(f"{self} changes faster than queue {partition.queue!r} can be read; try again")

    def _look_again(self, partition: QueuePartition, pieces: list[Piece], at: int) -> tuple[int, list[Piece]]:
        """Return the offset to read on at, and the pieces from there. Raises Truncated."""
        queue = partition.queue
        self._seen().refresh()
        try:
            first, following = self.bounds(queue)
            again = self.pieces(queue, at, partition.stop, 0)
        except NotFound:
            first, following, again = 0, 0, []
        known = {piece.proof[0] for piece in (*pieces, *again)}
        if len(known) > 1 or following < partition.stop:
            check_deleted(self._options, partition, at)
            return partition.stop, []
        at = check_loss(partition.gone_is_loss, queue, at, first)
        return at, [piece for piece in again if piece.stop > at]


def _read_pieces(pieces: list[Piece], names: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    from headrace.storage.local.block_arrow import span_batches

    reader: SpanReader | None = None
    try:
        for piece in pieces:
            log_id, span = piece.proof
            assert isinstance(log_id, int)
            if reader is None:
                reader = SpanReader(log_id)
            yield from span_batches(reader, _span(span), names)
    finally:
        if reader is not None:
            reader.close()


def _span(value: object) -> Span:
    assert isinstance(value, tuple)
    return value
