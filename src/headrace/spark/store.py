"""An object store that tasks read themselves, whether or not a broker has it open. No broker.

The driver makes a checkpoint when it plans a query. Tasks read the tables of the checkpoint, whatever the broker
removes meanwhile. They read younger messages from the current tables.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Final, final

import pyarrow as pa

from headrace.clock import SystemClock
from headrace.errors import Corrupt, Unavailable
from headrace.spark.options import ReadOptions
from headrace.spark.place import Piece, QueuePartition, StoredPlace, check_deleted, check_loss, rows_per_piece
from headrace.storage.objects.columns import ColumnReader
from headrace.storage.objects.follower import StoreFollower
from headrace.storage.objects.location import Location
from headrace.storage.objects.view import View

_TIMEOUT_MS: Final = 30_000
_LOOK_SECONDS: Final = 0.1
"""Shortest time between two reads of the catalog; an idle Spark asks every 10 ms, and stores charge for each."""
_CHECKPOINT: Final = "headrace-spark"
_LIFETIME_MS: Final = 3_600_000
"""Lifetime of a checkpoint, and so of a query's plan."""
_FRESH_MS: Final = 300_000
"""Age up to which queries share a checkpoint."""
_ATTEMPTS: Final = 5


@final
class Store(StoredPlace):
    """One replication group of a store, read from outside."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._url = options.store or f"file://{options.directory}"
        self._location = Location(self._url, create=False)
        self._group = options.replication_group
        self._clock = SystemClock()
        self._follower: StoreFollower | None = None
        self._looked = -1.0
        self._views: dict[str, View] = {}
        self._checkpoint = ""
        self._checkpointed_us = 0
        self._tables: dict[str, tuple[int, int]] = {}
        """The id of each log, and the offset behind its last message in the checkpoint."""

    def __str__(self) -> str:
        return f"the store {self._url}"

    # -- on the driver -----------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        if self._follower is None:
            self._opened()
            return
        time.sleep(max(0.0, self._looked + _LOOK_SECONDS - time.monotonic()))
        self._follower.refresh()
        self._looked = time.monotonic()

    def _logs(self) -> list[str]:
        return list(self._opened().names())

    def bounds(self, queue: str) -> tuple[int, int]:
        _, state = self._opened().log(self._prefix + queue)
        return state.first_offset, state.next_offset

    def log_id(self, queue: str) -> int:
        return self._opened().log(self._prefix + queue)[0]

    def find(self, queue: str, timestamp_us: int) -> int:
        return self._opened().find(self._prefix + queue, timestamp_us)

    def pieces(self, queue: str, start: int, stop: int, most_bytes: int, enough_bytes: int = 0) -> list[Piece]:
        log_id, state = self._opened().log(self._prefix + queue)
        start, stop = max(start, state.first_offset), min(stop, state.next_offset)
        if start >= stop:
            return []
        if enough_bytes:
            return self._sized(log_id, start, stop, enough_bytes)
        per_message = max(1, state.size_bytes // max(1, state.next_offset - state.first_offset))
        rows = rows_per_piece(stop - start, per_message, most_bytes, self.options)
        kept = self._kept(log_id, self._prefix + queue)
        found: list[Piece] = []
        while start < stop:
            end = min(stop, start + rows, kept if start < kept else stop)
            proof = (log_id, self._checkpoint if start < kept else "")
            found.append(Piece(start, end, per_message * (end - start), proof))
            start = end
        return found

    def _sized(self, log_id: int, start: int, stop: int, enough_bytes: int) -> list[Piece]:
        """Return pieces with the sizes that the metadata has, until they are enough; these are not read."""
        found: list[Piece] = []
        size = 0
        view, _ = self._view("")
        for at, until, piece_bytes in ColumnReader(view, self._group, log_id).extents(start, stop):
            found.append(Piece(at, until, piece_bytes))
            size += piece_bytes
            if size > enough_bytes:
                break
        return found

    def close(self) -> None:
        if self._follower is not None:
            self._follower.close()
        for view in self._views.values():
            view.close()
        self._views.clear()

    def _opened(self) -> StoreFollower:
        if self._follower is None:
            self._follower = StoreFollower(self._location, self._group, _TIMEOUT_MS, self._clock)
            self._looked = time.monotonic()
        return self._follower

    def _kept(self, log_id: int, name: str) -> int:
        """Return the offset behind a log's last message in the checkpoint."""
        now_us = self._clock.now_us()
        if now_us - self._checkpointed_us > _FRESH_MS * 1000:
            self._checkpoint = self._opened().checkpoint(_CHECKPOINT, _LIFETIME_MS, _FRESH_MS)
            self._checkpointed_us = now_us
            view = View(self._location, self._group, _TIMEOUT_MS, self._clock, self._checkpoint)
            try:
                self._tables = {name: (found, state.next_offset) for name, (found, state) in view.logs().items()}
            finally:
                view.close()
        found, stop = self._tables.get(name, (-1, 0))
        return stop if found == log_id else 0

    # -- on executors ------------------------------------------------------------------------------------------------

    def _batches(self, partition: QueuePartition, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for piece in partition.pieces:
            yield from self._read_piece(partition, piece, list(names))

    def _read_piece(self, partition: QueuePartition, piece: Piece, names: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield every remaining message of a piece exactly once."""
        log_id, checkpoint = piece.proof
        assert isinstance(log_id, int)
        at = piece.start
        for attempt in range(_ATTEMPTS):
            view, kept = self._view(str(checkpoint))
            try:
                at = at if kept else self._first(partition, view, log_id, at)
                for batch in ColumnReader(view, self._group, log_id).batches(at, piece.stop, names):
                    yield batch
                    at += batch.num_rows
                break
            except (Unavailable, Corrupt):
                # The broker replaced tables or removed messages meanwhile: look again.
                if attempt == _ATTEMPTS - 1:
                    raise
                self._forget(kept)

    def _view(self, checkpoint: str) -> tuple[View, str]:
        """Return the view of the checkpoint and its id; the current view and "" where the checkpoint is gone."""
        if checkpoint not in self._views:
            try:
                view = View(self._location, self._group, _TIMEOUT_MS, self._clock, checkpoint)
            except (Unavailable, Corrupt):
                if not checkpoint:
                    raise
                return self._view("")
            self._views[checkpoint] = view
        return self._views[checkpoint], checkpoint

    def _forget(self, checkpoint: str) -> None:
        view = self._views.pop(checkpoint, None)
        if view is not None:
            view.close()

    def _first(self, partition: QueuePartition, view: View, log_id: int, at: int) -> int:
        """Return the offset to read on at in the current view. Raises Truncated."""
        found = view.logs().get(self._prefix + partition.queue)
        if found is None or found[0] != log_id:
            check_deleted(self.options, partition, at)
            return partition.stop
        return check_loss(partition.gone_is_loss, partition.queue, at, found[1].first_offset)
