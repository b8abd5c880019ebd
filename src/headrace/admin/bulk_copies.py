"""Messages of a log copied to queues as they are, in bulk: what they are never leaves the broker. No pages, no routing.

A part has a row for each copy: the column `offset` says which message, the column `queue` where it goes. Messages are
read when the part is committed.
"""

import asyncio
import json
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, final

from headrace.admin.problems import BadRequest
from headrace.core.queue import Queue
from headrace.errors import Refused, TooLarge, Truncated

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.storage.local.encoded import EncodedRows

COPY: Final = "copy"
"""The kind of a part that names messages of a queue, and the queues that they are copied to."""
_READ_ROWS: Final = 16_384
_OFFSET_BYTES: Final = 8
_COPY_BYTES: Final = 12
"""What is kept for each copy: its offset, and the number of its queue."""


def encode_copies(table: "pa.Table") -> tuple[str, bytes]:
    """The queues that a part is for, as JSON, and what is kept of its rows. Raises BadRequest."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from headrace.storage.local.column_bytes import bytes_of

    if set(table.schema.names) != {"offset", "queue"} or not pa.types.is_int64(table.schema.field("offset").type):
        raise BadRequest("a part of copies has the columns offset, whole numbers of 64 bits, and queue, and no others")
    offsets, queues = table.column("offset").combine_chunks(), table.column("queue").combine_chunks()
    if pa.types.is_dictionary(queues.type):
        queues = queues.dictionary_decode()
    if not pa.types.is_string(queues.type) or queues.null_count or offsets.null_count:
        raise BadRequest("the column queue must be texts, and no row may leave out its offset or its queue")
    if not len(offsets):
        return "[]", b""
    if pc.min(offsets).as_py() < 0:
        raise BadRequest("an offset is below 0")
    coded = queues.dictionary_encode()
    return json.dumps(coded.dictionary.to_pylist()), bytes_of(offsets) + bytes_of(coded.indices.cast(pa.int32()))


@final
class Copies:
    """What one commit copies from one queue."""

    def __init__(self, numbers: dict[str, int]) -> None:
        self._numbers = numbers
        """The queues that messages go to, in the order they were first named."""
        self._offsets: list[pa.Array] = []
        self._targets: list[pa.Array] = []
        self._tables: list[pa.Table] = []
        self._size = 0

    def add(self, names: Sequence[str], kept: bytes) -> None:
        """Add the copies of a part, as `encode_copies` kept them."""
        import pyarrow as pa

        count = len(kept) // _COPY_BYTES
        known = pa.array([self._numbers.setdefault(name, len(self._numbers)) for name in names], pa.int32())
        bytes_ = pa.py_buffer(kept)
        index = pa.Array.from_buffers(pa.int32(), count, [None, bytes_.slice(count * _OFFSET_BYTES)])
        self._offsets.append(pa.Array.from_buffers(pa.int64(), count, [None, bytes_.slice(0, count * _OFFSET_BYTES)]))
        self._targets.append(known.take(index))

    async def read(self, queue: Queue, most_bytes: int) -> int:
        """Read the messages; returns how many bytes all copies have.

        Raises TooLarge when they are more than so many, Truncated when messages are gone, and Refused when they are
        not there yet.
        """
        wanted, counts = await asyncio.to_thread(self._wanted)
        offsets = memoryview(wanted.buffers()[1]).cast("q")[wanted.offset : wanted.offset + len(wanted)]
        if len(offsets) and offsets[-1] >= queue.safe_offset:
            raise Refused(f"offset {offsets[-1]} of queue {queue.name!r} is not there: it ends at {queue.safe_offset}")
        at = 0
        while at < len(offsets):
            if queue.deleted or offsets[at] < queue.first_offset:
                raise Truncated(
                    f"offset {offsets[at]} of queue {queue.name!r} is gone: it begins at {queue.first_offset}"
                )
            until = min(offsets[at] + _READ_ROWS, offsets[-1] + 1)
            following = bisect_left(offsets, until, at)
            batches = list(queue.log.record_batches(offsets[at], until))
            own = slice(at, following)
            await asyncio.to_thread(self._keep, batches, wanted[own], counts[own])
            if self._size > most_bytes:
                raise TooLarge(f"the copies have more than {most_bytes >> 20} MiB, the most that is stored at once")
            at = following
        return self._size

    def merge(self, time_us: int) -> "list[tuple[str, EncodedRows]]":
        """What each queue gets, in the order of the parts. Raises Refused when it is too much."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from headrace.storage.local.merging import copy_to_logs

        if not self._tables:
            return []
        table = pa.concat_tables(self._tables)
        rows = pc.index_in(pa.concat_arrays(self._offsets), value_set=table.column("offset").combine_chunks())
        return copy_to_logs(table, rows, pa.concat_arrays(self._targets), list(self._numbers), time_us)

    def _wanted(self) -> "tuple[pa.Array, pa.Array]":
        """Every offset once, in order, and how often each is copied."""
        import pyarrow as pa

        all_ = pa.table({"offset": pa.concat_arrays(self._offsets)})
        counted = all_.group_by("offset", use_threads=False).aggregate([("offset", "count")]).sort_by("offset")
        return counted.column("offset").combine_chunks(), counted.column("offset_count").combine_chunks()

    def _keep(self, batches: "Sequence[pa.RecordBatch]", wanted: "pa.Array", counts: "pa.Array") -> None:
        """Keep those of the messages that are wanted, which are in order."""
        import pyarrow as pa
        import pyarrow.compute as pc

        table = pa.Table.from_batches(batches)
        if len(wanted) < table.num_rows:
            table = table.filter(pc.is_in(table.column("offset"), value_set=wanted))
        lengths = pc.add(pc.binary_length(table.column("payload")), pc.binary_length(table.column("properties")))
        self._size += pc.sum(pc.multiply(lengths.cast(pa.int64()), counts)).as_py() or 0
        self._tables.append(table)
