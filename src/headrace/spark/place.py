"""Places that have queues, and the columns and partitions that tasks read of them. No query, no stream.

The places themselves are in directory.py, store.py and broker.py.
"""

import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from headrace.config.replication import MAIN
from headrace.errors import NotFound, Refused, Truncated, Unavailable
from headrace.spark.options import EARLIEST, RAW_PROPERTIES, TYPED, Position, ReadOptions
from headrace.storage.frame import FRAME, HEADERS, TYPED_HEADERS

NO_LOG: Final = -1
_HANDY_BYTES: Final = 1 << 20
_CROWDED: Final = 8
"""The share of a limit that may stay unused where queues have blocks that do not fit."""
_HOST_SEPARATOR: Final = "\0"


# -- columns -----------------------------------------------------------------------------------------------------------


RAW: Final = ("encoding", "properties")
"""Columns with the properties as they are stored."""
_USUAL: Final = FRAME.names.index(HEADERS)
"""The number of columns that rows have without options."""


def read_schema(headers: str, properties: str) -> StructType:
    """Return the columns of a queue for options of these values: headers and properties cost the most."""
    names = FRAME.names[:_USUAL]
    if headers == TYPED:
        names.append(TYPED_HEADERS)
    elif headers == "true":
        names.append(HEADERS)
    if properties == RAW_PROPERTIES:
        names += RAW
    elif properties == "true":
        names += [name for name in FRAME.names[_USUAL + 1 :] if name != TYPED_HEADERS]
    return schema_of(names)


def schema_of(names: Sequence[str]) -> StructType:
    """Return these columns of a queue in Spark's types; typed headers are under the name of headers."""
    fields = [FRAME.field(name) for name in names]
    return from_arrow_schema(
        pa.schema([field.with_name(HEADERS) if field.name == TYPED_HEADERS else field for field in fields])
    )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the columns of a query in Arrow's types, under the query's names, in any case as in Spark.

    Raises Refused where a queue has other columns.
    """
    wanted = to_arrow_schema(schema, timezone="UTC")
    for field in wanted:
        if field.name.lower() not in FRAME.names:
            raise Refused(f"a queue has no column {field.name!r}; it has {', '.join(FRAME.names)}")
        own = FRAME.field(_column_of(field))
        if field.type != own.type:
            spark_type = schema_of([own.name]).fields[0].dataType.simpleString()
            raise Refused(f"column {field.name!r} of a queue is {spark_type}; the schema asks for {field.type}")
        if own.nullable and not field.nullable:
            raise Refused(f"column {field.name!r} of a queue may be null; the schema says that it is not")
    return wanted


def columns_of(schema: pa.Schema) -> list[str]:
    """Return the columns of a queue that a query asks for."""
    return [_column_of(field) for field in schema]


def _column_of(field: pa.Field) -> str:
    """Return the name of a column; a list of headers is of typed ones."""
    name: str = field.name.lower()
    return TYPED_HEADERS if name == HEADERS and pa.types.is_list(field.type) else name


# -- partitions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """Neighbouring messages that are read together; `proof` is for their place, to find them again."""

    start: int
    stop: int
    size_bytes: int
    proof: tuple[object, ...] = ()


@dataclass
class QueuePartition(InputPartition):
    """A range of offsets of one queue, in whole blocks, that one task reads.

    `gone_is_loss` makes it an error when messages leave the queue before they are read: the query named their offsets.
    Other queries read the messages that are left. `only` are the ranges of offsets that the query wants, in order, each
    with the offset behind its last; () for all. `log` is the id of the log that the offsets are of, -1 for any.
    """

    queue: str
    start: int
    stop: int
    pieces: tuple[Piece, ...]
    schema: pa.Schema
    gone_is_loss: bool
    only: tuple[tuple[int, int], ...] = ()
    log: int = NO_LOG


@dataclass
class WorkPartition(InputPartition):
    """Claimed messages that one task reads: runs of offsets, with other messages between the claimed ones."""

    runs: tuple[QueuePartition, ...]


Range = tuple[str, list[Piece], bool, int]
"""A queue, its pieces to read, whether it is an error when some of them are gone by then, and the id of its log."""


def make_partitions(ranges: Sequence[Range], options: ReadOptions, schema: pa.Schema) -> list[QueuePartition]:
    """Return partitions of whole blocks, within the size and the number of the options."""
    total = max(1, sum(piece.size_bytes for _, pieces, _, _ in ranges for piece in pieces))
    return [
        QueuePartition(queue, group[0].start, group[-1].stop, group, schema, is_loss, log=log)
        for queue, pieces, is_loss, log in ranges
        for group in grouped(pieces, options.partition_bytes, _share(options.min_partitions, pieces, total))
    ]


def _share(least: int, pieces: Sequence[Piece], total_bytes: int) -> int:
    """Return a queue's share of the least number of partitions, by its size."""
    return -(-least * sum(piece.size_bytes for piece in pieces) // total_bytes)


def split(pieces: Sequence[Piece], most_bytes: int, least: int) -> list[Piece]:
    """Cut pieces without a proof into smaller ones of about equal size, so that there are at least so many."""
    parts = -(-least // max(1, len(pieces)))
    found: list[Piece] = []
    for piece in pieces:
        rows = max(1, -(-(piece.stop - piece.start) // max(parts, -(-piece.size_bytes // most_bytes))))
        for start in range(piece.start, piece.stop, rows):
            stop = min(piece.stop, start + rows)
            found.append(Piece(start, stop, piece.size_bytes * (stop - start) // (piece.stop - piece.start)))
    return found


def rows_per_piece(rows: int, bytes_per_row: int, most_bytes: int, options: ReadOptions) -> int:
    """Return the size of pieces where a place has no blocks: within the bytes, and enough pieces for the options."""
    return max(1, min(most_bytes // bytes_per_row, -(-rows // options.min_partitions)))


def wanted_rows(batch: pa.RecordBatch, only: Sequence[tuple[int, int]]) -> pa.RecordBatch:
    """Return the rows whose offsets are in these ranges; all rows if there are no ranges."""
    if not only:
        return batch
    import numpy as np  # reads of whole ranges do without

    offsets = batch.column("offset").to_numpy()
    starts, stops = np.array(only).T
    mask = pa.array(np.append(stops, -1)[np.searchsorted(starts, offsets, "right") - 1] > offsets)
    return batch if mask.true_count == len(mask) else batch.filter(mask)


def check_loss(is_loss: bool, queue: str, wanted: int, first: int) -> int:
    """Return the next offset to read, of a queue that begins at `first`, after `wanted` may have gone.

    Raises Truncated when messages are gone and that is a loss.
    """
    if wanted >= first:
        return wanted
    if is_loss:
        raise Truncated(
            f"offsets {wanted} to {first - 1} of queue {queue!r} are gone: retention, consumers or a purge took them. "
            f"Start anew from earliest, or set option failOnDataLoss=false to read on at {first}"
        )
    return first


def check_deleted(options: ReadOptions, partition: QueuePartition, at: int) -> None:
    """Accept that the queue of a partition was deleted while it was read, or raise Truncated."""
    if options.fail_on_data_loss:
        raise Truncated(
            f"queue {partition.queue!r} was deleted while offsets {at} to {partition.stop} of it were read; "
            f"option failOnDataLoss=false reads on without them"
        )


def grouped(pieces: Sequence[Piece], most_bytes: int, least_groups: int = 1) -> list[tuple[Piece, ...]]:
    """Group neighbouring pieces into few groups of about equal size, each at most that large.

    A larger piece is a group of its own. There are at least `least_groups` groups, or as many as pieces.
    """
    groups: list[tuple[Piece, ...]] = []
    current: list[Piece] = []
    size = share = 0
    left = sum(piece.size_bytes for piece in pieces)
    for number, piece in enumerate(pieces):
        wanted = least_groups - len(groups)
        is_full = size + piece.size_bytes > most_bytes or 2 * size + piece.size_bytes > 2 * share
        if current and (is_full or len(pieces) - number < wanted):
            groups.append(tuple(current))
            current, size = [], 0
            wanted -= 1
        if not current:
            share = left // max(1, wanted, -(-left // most_bytes))
        current.append(piece)
        size += piece.size_bytes
        left -= piece.size_bytes
    if current:
        groups.append(tuple(current))
    return groups


def within_rows(starts: dict[str, int], ends: dict[str, int], most: int) -> dict[str, int]:
    """Move the ends back to at most that many messages in total, the same share of each queue."""
    waiting = {queue: max(0, end - starts[queue]) for queue, end in ends.items()}
    total = sum(waiting.values())
    if total <= most:
        return ends
    moved = {queue: starts[queue] + waiting[queue] * most // total for queue in ends}
    left = most - sum(moved[queue] - starts[queue] for queue in ends if waiting[queue])
    for queue in sorted(ends):  # the rest of the rounding
        if left and moved[queue] < ends[queue] and waiting[queue]:
            moved[queue] += 1
            left -= 1
    return {queue: moved[queue] if waiting[queue] else ends[queue] for queue in ends}


def within_bytes(
    starts: dict[str, int],
    ends: dict[str, int],
    most_bytes: int,
    first: str,
    pieces_of: Callable[[str, int, int, int], Sequence[Piece]],
) -> tuple[dict[str, int], str]:
    """Move the ends back to at most that many bytes in total; return them, and the queue to begin with the next time.

    Queues take turns, from `first` on, and share what the ones before them left. The first one reads a piece of any
    size, so that every queue gets on. `pieces_of` returns pieces of a range of a queue, up to a number of bytes.
    """
    waiting = sorted(queue for queue in ends if ends[queue] > starts[queue])
    at = bisect_left(waiting, first)
    turns = waiting[at:] + waiting[:at]
    moved = dict(ends)
    left = most_bytes
    skipped: list[str] = []
    for number, queue in enumerate(turns):
        start = moved[queue] = starts[queue]
        if skipped and left < most_bytes // _CROWDED:  # what is left is not worth a look into all the others
            skipped.append(queue)
            continue
        share = left // (len(turns) - number)
        pieces = pieces_of(queue, start, ends[queue], max(1, share))
        if not pieces:
            moved[queue] = ends[queue]
        for piece in pieces:
            is_next = moved[queue] == start and (number == 0 or piece.size_bytes <= left)
            if not is_next and piece.size_bytes > share:
                break
            moved[queue] = min(ends[queue], piece.stop)
            left, share = left - piece.size_bytes, share - piece.size_bytes
        if moved[queue] == start:
            skipped.append(queue)
    return moved, skipped[0] if skipped else "".join(turns[1:2])


# -- places ------------------------------------------------------------------------------------------------------------


def check_named(positions: Position, option: str, queues: Sequence[str]) -> None:
    """Check that an option has positions of queues that are read, and of no others. Raises NotFound."""
    for name, _ in positions.queues:
        if name not in queues:
            raise NotFound(
                f"option {option} has queue {name!r}, which is not read: {', '.join(queues[:10]) or 'none is'}"
            )


class Place(ABC):
    """A data directory, a store, or a broker whose queues are read."""

    options: ReadOptions

    @abstractmethod
    def refresh(self) -> None:
        """Look for new messages and queues."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all queues that the options may name."""

    @abstractmethod
    def bounds(self, queue: str) -> tuple[int, int]:
        """Return the first offset and the one behind the last. Raises NotFound."""

    @abstractmethod
    def log_id(self, queue: str) -> int:
        """Return the id of the queue's log, which no other log of its name had; NO_LOG before its first message."""

    @abstractmethod
    def find(self, queue: str, timestamp_us: int) -> int:
        """Return the offset of the first message of at least this time, or the one behind the last."""

    @abstractmethod
    def pieces(self, queue: str, start: int, stop: int, most_bytes: int, enough_bytes: int = 0) -> list[Piece]:
        """Return the pieces of this range in order, each at most that large unless it is one block.

        With `enough_bytes`, sizes are exact, and pieces beyond so many bytes may be left out.
        """

    @abstractmethod
    def read(self, partition: QueuePartition) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of a partition, in the columns of its schema.

        Raises Truncated when messages are gone and `gone_is_loss`.
        """

    @abstractmethod
    def close(self) -> None:
        """Close files and connections."""

    def report(self, positions: dict[str, int]) -> None:
        """Report the position of the options' consumer group to the broker. Raises Unavailable where there is none."""
        raise Unavailable(f"{self} is only read: a consumer group's position is reported to a broker")

    def matching(self) -> list[str]:
        """Return the queues of the options' names and patterns. Raises NotFound for a name without a queue."""
        names = self.names()
        found: dict[str, None] = {}
        if self.options.pattern:
            return sorted([name for name in names if re.fullmatch(self.options.pattern, name)])
        for pattern in self.options.queues:
            if pattern in names:
                found[pattern] = None
            elif any(letter in pattern for letter in "*?["):
                found.update(dict.fromkeys(name for name in names if fnmatchcase(name, pattern)))
            else:
                known = ", ".join(sorted(self.all_names())[:10])
                raise NotFound(f"there is no queue {pattern!r} in {self}; there are: {known or 'none'}")
        return sorted(found)

    def all_names(self) -> list[str]:
        """Return the names of all queues, also of those that the options do not name."""
        return self.names()

    def offset_at(self, queue: str, positions: Position) -> int:
        """Return the offset of a position of the options in this queue."""
        first, following = self.bounds(queue)
        position = positions.of(queue)
        if position.offset >= 0:
            return position.offset
        if position.word:
            return first if position.word == EARLIEST else following
        return self.find(queue, position.time_us)


class StoredPlace(Place):
    """A place that tasks read without a broker. The name of a log begins with its virtual host, unless that is `/`."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._prefix = "" if options.vhost == "/" else options.vhost + _HOST_SEPARATOR

    @abstractmethod
    def _logs(self) -> list[str]:
        """Return the names of all logs."""

    @abstractmethod
    def _batches(self, partition: QueuePartition, names: Sequence[str]) -> "Iterator[pa.RecordBatch]":
        """Yield every message of a partition exactly once, in these stored columns."""

    def names(self) -> list[str]:
        prefix = self._prefix
        names = [name[len(prefix) :] for name in self._logs() if name.startswith(prefix)]
        return [name for name in names if _HOST_SEPARATOR not in name]

    def read(self, partition: QueuePartition) -> "Iterator[pa.RecordBatch]":
        from headrace.storage.frame import Frame  # only tasks read

        frame = Frame(partition.queue, columns_of(partition.schema))
        for found in self._batches(partition, frame.stored):
            rows = wanted_rows(found, partition.only)
            if rows.num_rows:
                yield pa.RecordBatch.from_arrays(frame.of(rows).columns, schema=partition.schema)


def open_place(options: ReadOptions) -> Place:
    """Open the place that the options name. Raises Unavailable."""
    if options.server is not None:
        from headrace.spark.broker import BrokerPlace

        return BrokerPlace(options)
    if options.store or is_store(options.directory):
        from headrace.spark.store import Store

        return Store(options)
    from headrace.spark.directory import Directory

    if options.replication_group != MAIN:
        raise Unavailable(f"{options.directory} is not the directory of a store, which alone has groups")
    return Directory(options)


def is_store(directory: str) -> bool:
    """Return whether a directory is a store: it has the manifest of some group's database."""
    return any(Path(directory).glob("*/manifest/*.manifest"))


def read_partition(options: ReadOptions, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
    """Yield the rows of a partition within a task. Spark's own partitions for empty reads have no rows."""
    runs = partition.runs if isinstance(partition, WorkPartition) else (partition,)
    place = open_place(options)
    try:
        for run in runs:
            if isinstance(run, QueuePartition):
                for batch in place.read(run):
                    yield from _handy(batch)
    finally:
        place.close()


def _handy(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield batches that fit into the caches of both processes: 870 instead of 970 ns of CPU a row of 270 bytes."""
    rows = batch.num_rows
    if batch.nbytes <= _HANDY_BYTES:
        yield batch
        return
    step = max(1, rows * _HANDY_BYTES // batch.nbytes)
    for at in range(0, rows, step):
        yield batch.slice(at, step)
