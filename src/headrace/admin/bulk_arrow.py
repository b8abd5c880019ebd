"""Arrow streams to stored messages and back, and bulk copies; most of it runs in threads. No pages.

The first request loads pyarrow; without it, the request is refused with a hint to install it.

A part of copies has a row for each copy, with the columns `offset` and `queue`. The commit reads the messages.
"""

import asyncio
import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, final

from headrace.admin.pages import BadRequest
from headrace.admin.site import Site
from headrace.core.publishing import TO_EXCHANGE, TO_TOPIC
from headrace.core.queue.queue import Queue
from headrace.core.routing.topology import scoped
from headrace.errors import Refused, TooLarge, Truncated, missing_extra
from headrace.storage.local.staging import EXPIRE_SECONDS

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.storage.local.block import Block
    from headrace.storage.local.staging import EncodedBlock, EncodedRows

COPY: Final = "copy"
"""Kind of a part that copies messages of a queue to other queues."""
_READ_ROWS: Final = 16_384
_OFFSET_BYTES: Final = 8
_COPY_BYTES: Final = 12
"""Bytes staged for each copy: its offset, and the number of its queue."""


def encode_copies(table: "pa.Table") -> tuple[str, bytes]:
    """Return the target queues of a part as JSON, and its staged rows. Raises BadRequest."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from headrace.storage.local.arrow import bytes_of

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


def log_id(queue: Queue) -> int:
    """Return the id of the queue's log; -1 before its first message."""
    return queue.log.id if queue.log.next_offset else -1


def check_log(queue: Queue, log: int) -> None:
    """Check that offsets of this log are the queue's. Raises Truncated."""
    if log != log_id(queue):
        raise Truncated(f"queue {queue.name!r} was deleted and declared again: its log {log} is gone")


@final
class Copies:
    """Copies of one commit from one queue."""

    def __init__(self, numbers: dict[str, int]) -> None:
        self._numbers = numbers
        """Numbers of target queues, in the order of their first mention."""
        self._offsets: list[pa.Array] = []
        self._targets: list[pa.Array] = []
        self._tables: list[pa.Table] = []
        self._size = 0
        self._logs: set[int] = set()
        """The logs that the offsets are of, where parts say so."""

    def add(self, names: Sequence[str], kept: bytes, log: str) -> None:
        """Add the copies of a part, in the form of `encode_copies`; `log` is the id of their log, "" for any."""
        import pyarrow as pa

        if log:
            self._logs.add(int(log))

        count = len(kept) // _COPY_BYTES
        known = pa.array([self._numbers.setdefault(name, len(self._numbers)) for name in names], pa.int32())
        bytes_ = pa.py_buffer(kept)
        index = pa.Array.from_buffers(pa.int32(), count, [None, bytes_.slice(count * _OFFSET_BYTES)])
        self._offsets.append(pa.Array.from_buffers(pa.int64(), count, [None, bytes_.slice(0, count * _OFFSET_BYTES)]))
        self._targets.append(known.take(index))

    async def read(self, queue: Queue, most_bytes: int) -> int:
        """Read the messages; return the bytes of all copies.

        Raises TooLarge above `most_bytes`, Truncated for dropped messages and for offsets of another log, Refused for
        offsets that do not exist yet.
        """
        for log in self._logs:
            check_log(queue, log)
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
        """Return the rows of each queue, in the order of the parts. Raises Refused if they are too many."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from headrace.storage.local.arrow import copy_to_logs

        if not self._tables:
            return []
        table = pa.concat_tables(self._tables)
        rows = pc.index_in(pa.concat_arrays(self._offsets), value_set=table.column("offset").combine_chunks())
        return copy_to_logs(table, rows, pa.concat_arrays(self._targets), list(self._numbers), time_us)

    def _wanted(self) -> "tuple[pa.Array, pa.Array]":
        """Return each offset once, in order, and the number of its copies."""
        import pyarrow as pa

        all_ = pa.table({"offset": pa.concat_arrays(self._offsets)})
        counted = all_.group_by("offset", use_threads=False).aggregate([("offset", "count")]).sort_by("offset")
        return counted.column("offset").combine_chunks(), counted.column("offset_count").combine_chunks()

    def _keep(self, batches: "Sequence[pa.RecordBatch]", wanted: "pa.Array", counts: "pa.Array") -> None:
        """Keep the wanted messages, which are in order."""
        import pyarrow as pa
        import pyarrow.compute as pc

        table = pa.Table.from_batches(batches)
        if len(wanted) < table.num_rows:
            table = table.filter(pc.is_in(table.column("offset"), value_set=wanted))
        lengths = pc.add(pc.binary_length(table.column("payload")), pc.binary_length(table.column("properties")))
        self._size += pc.sum(pc.multiply(lengths.cast(pa.int64()), counts)).as_py() or 0
        self._tables.append(table)


COLUMNS: Final = (
    "queue", "offset", "timestamp", "topic", "routing_key", "payload", "expires_at", "priority", "content_type",
    "headers", "encoding", "properties", "message_id", "correlation_id", "reply_to", "type", "app_id", "user_id",
    "content_encoding", "expiration", "delivery_mode", "sent_at", "deliver_at", "exchange", "client_id", "protocol",
    "typed_headers",
)  # fmt: skip
_USUAL: Final = COLUMNS[:9]
PROTOCOL: Final = "bulk"
BY_COLUMN: Final = "queues"
"""Kind of a part whose rows name their queues in a column."""


def columns_named(text: str) -> list[str]:
    """Return the columns of `columns=offset,payload`; by default those that cost little. Raises BadRequest."""
    names = [name for name in text.split(",") if name] or list(_USUAL)
    for name in names:
        if name not in COLUMNS:
            raise BadRequest(f"there is no column {name[:64]!r}; there are {', '.join(COLUMNS)}")
    return list(dict.fromkeys(names))


@final
class ArrowCodec:
    """Encodes answers as Arrow streams and stages parts."""

    def __init__(self, site: Site) -> None:
        self._site = site

    @property
    def now_us(self) -> int:
        return self._site.clock.now_us()

    def stream(self, queue: str, names: Sequence[str]) -> "Stream":
        """Make the encoder of one answer. Raises Unavailable without pyarrow."""
        _need_arrow()
        return Stream(queue, names)

    def part_writer(
        self, host: str, transaction: str, part: str, target: tuple[str, str, str], user: str, attempt: str
    ) -> Callable[[bytes], tuple[int, int, list[str]]]:
        """Make a function that stages a body as a part and returns its rows, bytes and topics.

        A target has a kind, a name, and the id of the log that copies are of, "" for any.
        """
        _need_arrow()
        kind, name, log = target
        area, now_us = self._site.staging, self._site.clock.now_us()

        def write(body: bytes) -> tuple[int, int, list[str]]:
            from headrace.storage.local.arrow import Origin, encode_table

            area.sweep(now_us / 1_000_000 - EXPIRE_SECONDS)
            rows, beside = _table(body), b""
            kept = {"kind": kind, "name": name}
            if kind == COPY:
                kept["names"], beside = encode_copies(rows)
                kept["log"] = log
                area.put(scoped(host, transaction), part, kept, [], beside, attempt)
                return rows.num_rows, len(beside), []
            if kind == BY_COLUMN:
                rows, names, beside = _by_queue(rows, name)
                kept["names"] = json.dumps(names)
            default, exchange = ("", name) if kind == TO_EXCHANGE else (name, "")
            origin = Origin(default, exchange, f"{PROTOCOL}:{user}", PROTOCOL, now_us)
            blocks = list(encode_table(rows, origin))
            size = area.put(scoped(host, transaction), part, kept, blocks, beside, attempt)
            topics: set[str] = set()
            if kind in (TO_EXCHANGE, TO_TOPIC):
                topics = {source.topic for each in blocks for source in each.sources()}
            return rows.num_rows, size, sorted(topics)

        return write

    def part(self, host: str, transaction: str, part: str) -> "Part":
        """Return a staged part. Raises NotFound."""
        target, blocks, beside = self._site.staging.get(scoped(host, transaction), part)
        names: list[str] = json.loads(target.get("names", "[]"))
        return Part(target["kind"], target["name"], blocks, names, beside, target.get("log", ""))

    def plan(self, host: str, transaction: str, parts: Sequence[str], most_bytes: int) -> "list[Sequence[str]]":
        """Return the parts in portions that are stored one after the other; one portion for those that must be.

        Raises NotFound.
        """
        area, key = self._site.staging, scoped(host, transaction)
        portions: list[Sequence[str]] = [[]]
        size = 0
        for part in parts:
            target, part_bytes = area.outline(key, part)
            if target["kind"] == COPY:
                return [list(parts)]
            if portions[-1] and size + part_bytes > most_bytes:
                portions.append([])
                size = 0
            portions[-1] = [*portions[-1], part]
            size += part_bytes
        return portions

    def begin(self, host: str, transaction: str, sequence: int, parts: Sequence[str]) -> None:
        """Make the parts durable, to be stored one after the other. Raises Unavailable."""
        self._site.staging.begin(scoped(host, transaction), sequence, parts)

    def begun(self, host: str, transaction: str, sequence: int) -> list[str]:
        """Return the parts that `begin` was given. Raises NotFound."""
        return self._site.staging.begun(scoped(host, transaction), sequence)

    def merge(self, parts: "Sequence[Part]") -> "list[tuple[str, EncodedRows]]":
        """Return the rows of each queue of parts whose rows name queues. Raises Refused if they are too many."""
        from headrace.storage.local.arrow import merge_by_log

        numbers: dict[str, int] = {}
        blocks = [block for part in parts for block in part.by_row(numbers)]
        return merge_by_log(blocks, list(numbers))

    def forget(self, host: str, transaction: str, attempt: str) -> None:
        """Forget the parts of a transaction, and refuse later parts of this attempt."""
        self._site.staging.remove(scoped(host, transaction), attempt)


@final
class Part:
    """A staged part: blocks of messages, and their target."""

    def __init__(
        self, kind: str, name: str, blocks: "Sequence[EncodedBlock]", names: Sequence[str], beside: bytes, log: str
    ) -> None:
        self.kind = kind
        self.name = name
        self.blocks = blocks
        self.names = names
        """Queues that its rows name, if they do."""
        self._beside = beside
        self._log = log

    @property
    def payload_bytes(self) -> int:
        return sum([each.payload_bytes for each in self.blocks])

    def copy_to(self, copies: Copies) -> None:
        """Add the copies of the part."""
        copies.add(self.names, self._beside, self._log)

    def by_row(self, numbers: dict[str, int]) -> "Iterator[tuple[Block, pa.Array]]":
        """Yield its blocks with the queue number of each row; a new queue gets the next number."""
        import pyarrow as pa

        known = pa.array([numbers.setdefault(name, len(numbers)) for name in self.names], pa.int32())
        kept = pa.py_buffer(self._beside)
        index = known.take(pa.Array.from_buffers(pa.int32(), len(self._beside) // 4, [None, kept]))
        at = 0
        for each in self.blocks:
            yield each.block, index.slice(at, each.count)
            at += each.count


@final
class Stream:
    """Messages as an Arrow stream, batch by batch."""

    def __init__(self, queue: str, names: Sequence[str]) -> None:
        import pyarrow as pa

        from headrace.storage.frame import Frame

        self._frame = Frame(queue, names)
        self._sink = _Sink()
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._sink, "w"), self._frame.schema)

    def head(self) -> bytes:
        return self._sink.take()

    def encode(self, batch: "pa.RecordBatch") -> bytes:
        self._writer.write_batch(self._frame.of(batch))
        return self._sink.take()

    def end(self) -> bytes:
        self._writer.close()
        return self._sink.take()


class _Sink:
    """A file that buffers writes until `take`."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: "pa.Buffer | bytes") -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:
        return

    def close(self) -> None:
        return


def _by_queue(table: "pa.Table", column: str) -> "tuple[pa.Table, list[str], bytes]":
    """Return the rows without the column of queues, the queues, and the queue of each row. Raises BadRequest."""
    import pyarrow as pa

    if column not in table.schema.names or not pa.types.is_string(table.schema.field(column).type):
        raise BadRequest(f"there is no column {column!r} of texts that says which queue a row is for")
    coded = table.column(column).combine_chunks().dictionary_encode()
    if coded.null_count:
        raise BadRequest(f"the column {column!r} is null in some row; it must name the row's queue")
    from headrace.storage.local.arrow import bytes_of

    names: list[str] = coded.dictionary.to_pylist()
    return _with_topics(table, column).drop_columns([column]), names, bytes_of(coded.indices) if names else b""


def _with_topics(table: "pa.Table", column: str) -> "pa.Table":
    """Return the rows with the queue's name as the topic where a row has none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    name = next((name for name in ("topic", "routing_key") if name in table.schema.names), "")
    if not name:
        return table.append_column("topic", table.column(column))
    own = table.column(name)
    if not own.null_count or not pa.types.is_string(own.type):
        return table
    return table.set_column(table.schema.get_field_index(name), name, pc.coalesce(own, table.column(column)))


def _table(body: bytes) -> "pa.Table":
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(body) as reader:
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, OSError, ValueError) as error:
        raise BadRequest(f"the body is not an Arrow IPC stream: {error}") from error
    return table


def _need_arrow() -> None:
    try:
        import pyarrow.compute  # noqa: F401
    except ImportError as error:
        raise missing_extra("this", "arrow", error) from error
