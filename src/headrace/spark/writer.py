"""Writing to queues, exchanges and topics: tasks stage parts, and the driver commits all of them once.

A streaming query writes under its own id with the number of each batch, so a repeated batch is stored once, whatever
was killed in between. A batch write has an id of its own, or the one in its options.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from headrace.clock import SystemClock
from headrace.errors import HeadraceError, Refused
from headrace.spark.client import Client
from headrace.spark.options import Server, WriteOptions

PART_BYTES: Final = 8 << 20
PART_ROWS: Final = 1 << 20
_WAITING_BYTES: Final = 4 * PART_BYTES
"""The most bytes that wait in a task, over all targets."""
_NOT_DONE: Final = "committing"
_ABORT_PATIENCE_SECONDS: Final = 5.0
COLUMNS: Final = (
    "payload", "topic", "routing_key", "headers", "content_type", "priority", "expires_in_ms", "expiration",
    "deliver_at", "delay", "encoding", "properties", "queue", "exchange",
)  # fmt: skip
TARGETS: Final = ("queue", "exchange")
"""Columns that say where a row goes."""
_TWINS: Final = (("topic", "routing_key"), ("expires_in_ms", "expiration"), ("deliver_at", "delay"))
"""Columns that say the same in two ways."""
_TIME: Final = pa.timestamp("us", tz="UTC")


@final
class Transaction:
    """A bulk transaction of the broker: parts that are staged, then become visible together in one commit.

    `attempt` tells the parts of one job from those of another job with the same id.
    """

    def __init__(self, server: Server, id_: str, attempt: str = "") -> None:
        self._server = server
        self._path = f"/bulk/transactions/{id_}"
        self._attempt = attempt
        self._client = Client(server)

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def stage(self, part: str, target: Mapping[str, str], batches: Sequence[pa.RecordBatch]) -> str:
        """Stage batches of one schema as a part; return its name. Raises Refused when the attempt is over."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        body = bytes(memoryview(sink.getvalue()))
        self._client.send("PUT", f"{self._path}/parts/{part}", {**target, "attempt": self._attempt}, body)
        return part

    def commit(self, parts: Sequence[str], sequence: int | None, **more: object) -> None:
        """Commit these parts. A sequence that is committed already changes nothing. Raises TooLarge."""
        body = {"parts": parts, "attempt": self._attempt, **more}
        if sequence is not None:
            body["sequence"] = sequence
        while self._client.json("POST", f"{self._path}/commit", {}, body).get("status") == _NOT_DONE:
            continue  # the broker answers after a while

    def discard(self) -> None:
        """Drop the staged parts of this attempt."""
        self._client.json("DELETE", self._path, {"attempt": self._attempt})

    def abort(self) -> None:
        """Try for a few seconds to discard; the broker drops abandoned parts later anyway."""
        self._client.close()
        self._client = Client(self._server, _ABORT_PATIENCE_SECONDS)
        try:
            self.discard()
        except HeadraceError:
            return


@dataclass
class Staged(WriterCommitMessage):
    """The parts of one task, and their transaction."""

    transaction: str
    parts: tuple[str, ...]
    rows: int


def check_schema(schema: StructType, options: WriteOptions) -> None:
    """Check that rows of this schema are messages, and that somebody says where they go. Raises Refused."""
    names = schema.fieldNames()
    types = {field.name.lower(): field.dataType for field in schema.fields}  # in any case, as in Spark
    if "payload" not in types:
        raise Refused(
            f"there is no column payload among {', '.join(names)}; make one, such as "
            f"selectExpr('to_json(struct(*)) AS payload')"
        )
    if not isinstance(types["payload"], BinaryType | StringType):
        raise Refused(f"the column payload is {types['payload'].simpleString()}; it must be binary or string")
    for name in names:
        if name.lower() not in COLUMNS:
            raise Refused(f"a message has no column {name!r}; it may have {', '.join(COLUMNS)}. Select only those")
    if len(types) < len(names):
        raise Refused(f"a column is there twice among {', '.join(names)}")
    for one, other in _TWINS:
        if one in types and other in types:
            raise Refused(f"give one of the columns {one} and {other}: they say the same")
    named = [name for name in TARGETS if name in types]
    is_named = (options.queue, options.exchange, options.topic) != (None, None, None)
    if is_named and named:
        raise Refused(f"the column {named[0]} says where each row goes, and so does the write; leave out one of them")
    if not is_named and not named:
        raise Refused(
            'say where to write, once: a queue with .save("orders") or .start("orders"), or option("exchange", ...), '
            'or option("topic", ...), or for each row a column queue or exchange'
        )


def _write(
    options: WriteOptions, transaction: str, label: str, batches: Iterator[pa.RecordBatch], attempt: str = ""
) -> Staged:
    """Stage the rows of a task in parts of moderate size. Raises Refused when the attempt is over."""
    from headrace.storage.local.arrow import cut_batch  # the driver does without

    # The name is unique: no other attempt and no abandoned executor writes under it.
    name = f"{label}-{uuid.uuid4().hex}"
    parts: list[str] = []
    rows = 0
    waiting: dict[tuple[str, str], list[pa.RecordBatch]] = {}
    with Transaction(options.server, transaction, attempt) as opened:

        def stage(target: tuple[str, str]) -> None:
            parts.append(opened.stage(f"{name}-{len(parts)}", dict([target]), waiting.pop(target)))

        for batch in batches:
            for target, found in _by_target(_plain(batch), options):
                for piece in cut_batch(found, PART_BYTES, PART_ROWS):
                    if _size(waiting.get(target, ())) + piece.nbytes > PART_BYTES and target in waiting:
                        stage(target)
                    waiting.setdefault(target, []).append(piece)
                    rows += piece.num_rows
            if len(waiting) > 1 and sum(_size(pieces) for pieces in waiting.values()) > _WAITING_BYTES:
                for target in list(waiting):
                    stage(target)
        for target in list(waiting):
            stage(target)
    return Staged(transaction, tuple(parts), rows)


def _size(pieces: Sequence[pa.RecordBatch]) -> int:
    return sum(piece.nbytes for piece in pieces)


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with the names of columns that the broker knows. Raises Refused."""
    import pyarrow.compute as pc

    names = [name.lower() for name in batch.schema.names]
    columns = dict(zip(names, batch.columns, strict=True))
    try:
        if "expiration" in columns:
            columns["expires_in_ms"] = columns.pop("expiration").cast(pa.int64())
        if "delay" in columns:
            due = pc.add(pc.multiply(columns.pop("delay").cast(pa.int64()), 1000), SystemClock().now_us())
            columns["deliver_at"] = due.cast(_TIME)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Refused(f"the columns expiration and delay are whole numbers of milliseconds: {error}") from error
    return pa.RecordBatch.from_pydict(columns)


def _by_target(batch: pa.RecordBatch, options: WriteOptions) -> Iterator[tuple[tuple[str, str], pa.RecordBatch]]:
    """Yield the rows for each target: those for queues together, those for each exchange apart. Raises Refused."""
    import pyarrow.compute as pc

    names = batch.schema.names
    if "queue" not in names and "exchange" not in names:
        yield _target(options), batch
        return
    left = batch
    if "queue" in names:
        named = pc.is_valid(batch.column("queue"))
        for_queues = batch.filter(named).drop_columns([name for name in ("exchange",) if name in names])
        if for_queues.num_rows:
            yield ("queues", "queue"), for_queues
        left = batch.filter(pc.invert(named)).drop_columns(["queue"])
    if not left.num_rows:
        return
    if "exchange" not in names or left.column("exchange").null_count:
        raise Refused("a row has neither a queue nor an exchange: say where it goes in the column queue or exchange")
    for exchange in pc.unique(left.column("exchange")):
        chosen = left.filter(pc.equal(left.column("exchange"), exchange))
        yield ("exchange", exchange.as_py()), chosen.drop_columns(["exchange"])


def _target(options: WriteOptions) -> tuple[str, str]:
    if options.queue is not None:
        return "queue", options.queue
    if options.exchange is not None:
        return "exchange", options.exchange
    return "topic", options.topic or ""


def _commit(options: WriteOptions, messages: Sequence[Staged], sequence: int | None, attempt: str = "") -> None:
    by_transaction: dict[str, list[str]] = {}
    for message in messages:
        by_transaction.setdefault(message.transaction, []).extend(message.parts)
    for transaction, parts in by_transaction.items():
        with Transaction(options.server, transaction, attempt) as opened:
            opened.commit(parts, sequence)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


@final
class BatchWriter(DataSourceArrowWriter):
    """One write of a DataFrame. Spark pickles it to the executors, with the id of its transaction."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options
        self._transaction = options.transaction_id or f"batch-{uuid.uuid4().hex}"
        self._attempt = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        label = f"p{context.partitionId() if context is not None else 0}"
        return _write(self._options, self._transaction, label, iterator, self._attempt)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._options, _staged(messages) or [Staged(self._transaction, (), 0)], None, self._attempt)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        with Transaction(self._options.server, self._transaction, self._attempt) as opened:
            opened.abort()


@final
class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of a streaming query. Spark makes a new one for every batch and every commit."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        if context is None or query is None:
            raise Refused("this sink writes for streaming queries only; Spark says not for which one")
        batch = context.getLocalProperty("streaming.sql.batchId") or "x"
        label = f"b{batch}-p{context.partitionId()}"
        return _write(self._options, f"query-{query}", label, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _commit(self._options, _staged(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        for transaction in {message.transaction for message in _staged(messages)}:
            with Transaction(self._options.server, transaction) as opened:
                opened.abort()
