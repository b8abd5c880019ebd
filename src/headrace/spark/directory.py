"""A data directory that tasks read themselves, whether or not a broker has it open. No network."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, final

import pyarrow as pa

from headrace.errors import Corrupt, NotFound, Unavailable
from headrace.spark.options import ReadOptions
from headrace.spark.place import Piece, QueuePartition, StoredPlace, check_deleted, check_loss
from headrace.storage.local.follower import Follower, SpanReader
from headrace.storage.local.stored import Span

_ATTEMPTS: Final = 5


@final
class Directory(StoredPlace):
    """One data directory, read from outside."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._follower: Follower | None = None

    def __str__(self) -> str:
        return f"the data directory {self.options.directory}"

    def refresh(self) -> None:
        self._opened().refresh()

    def _logs(self) -> list[str]:
        return list(self._opened().names())

    def bounds(self, queue: str) -> tuple[int, int]:
        return self._opened().bounds(self._prefix + queue)

    def log_id(self, queue: str) -> int:
        return self._opened().log_id(self._prefix + queue)

    def find(self, queue: str, timestamp_us: int) -> int:
        return self._opened().find(self._prefix + queue, timestamp_us)

    def pieces(self, queue: str, start: int, stop: int, most_bytes: int, enough_bytes: int = 0) -> list[Piece]:
        log_id = self._opened().log_id(self._prefix + queue)
        return [
            Piece(span[4], span[5], span[3] - span[2], (log_id, span))
            for span in self._opened().spans(self._prefix + queue, start, stop)
        ]

    def close(self) -> None:
        if self._follower is not None:
            self._follower.close()

    def _opened(self) -> Follower:
        """Return the view of the directory. A task opens it only when messages have moved since the plan."""
        if self._follower is None:
            self._follower = Follower(Path(self.options.directory))
        return self._follower

    def _batches(self, partition: QueuePartition, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Find messages again that have moved since the plan."""
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
        self._opened().refresh()
        try:
            first, following = self.bounds(queue)
            again = self.pieces(queue, at, partition.stop, 0)
        except NotFound:
            first, following, again = 0, 0, []
        known = {piece.proof[0] for piece in (*pieces, *again)}
        if len(known) > 1 or following < partition.stop:
            check_deleted(self.options, partition, at)
            return partition.stop, []
        at = check_loss(partition.gone_is_loss, queue, at, first)
        return at, [piece for piece in again if piece.stop > at]


def _read_pieces(pieces: list[Piece], names: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    from headrace.storage.local.arrow import span_batches

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
