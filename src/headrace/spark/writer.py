"""Writing to queues, exchanges and topics: tasks stage parts, the driver commits all of them at once, and only once.

A streaming query writes under its own id, batch number by batch number, so a batch that comes again is stored once,
whatever was killed in between. A batch write has an id of its own, or the one it is given.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from headrace.errors import HeadraceError, Refused
from headrace.spark.client import Client
from headrace.spark.options import WriteOptions

PART_BYTES: Final = 8 << 20
_ABORT_PATIENCE_SECONDS: Final = 5.0
COLUMNS: Final = (
    "payload", "topic", "routing_key", "headers", "content_type", "priority", "expires_in_ms", "deliver_at",
)  # fmt: skip


@dataclass
class Staged(WriterCommitMessage):
    """What one task wrote: the names of its parts, under which transaction."""

    transaction: str
    parts: tuple[str, ...]
    rows: int


def check_schema(schema: StructType) -> None:
    """Raises Refused when rows of this schema are no messages."""
    names = schema.fieldNames()
    if "payload" not in names:
        raise Refused(
            f"there is no column payload among {', '.join(names)}; make one, such as "
            f"selectExpr('to_json(struct(*)) AS payload')"
        )
    if not isinstance(schema["payload"].dataType, BinaryType | StringType):
        raise Refused(f"the column payload is {schema['payload'].dataType.simpleString()}; it must be binary or string")
    for name in names:
        if name not in COLUMNS:
            raise Refused(f"a message has no column {name!r}; it may have {', '.join(COLUMNS)}. Select only those")


def _write(
    options: WriteOptions, transaction: str, label: str, batches: Iterator[pa.RecordBatch], attempt: str = ""
) -> Staged:
    """Stage the rows of a task in parts of moderate size. Raises Refused when the attempt at the job is over."""
    query = {**_target(options), "attempt": attempt}
    client = Client(options.server)
    # Nothing else ever writes under this name: not another attempt, not an executor that was given up.
    name = f"{label}-{uuid.uuid4().hex}"
    parts: list[str] = []
    rows = 0
    waiting: list[pa.RecordBatch] = []
    size = 0
    try:
        for batch in batches:
            for piece in _cut(batch):
                if waiting and size + piece.nbytes > PART_BYTES:
                    parts.append(_stage(client, query, transaction, f"{name}-{len(parts)}", waiting))
                    waiting, size = [], 0
                waiting.append(piece)
                size += piece.nbytes
                rows += piece.num_rows
        if waiting:
            parts.append(_stage(client, query, transaction, f"{name}-{len(parts)}", waiting))
    finally:
        client.close()
    return Staged(transaction, tuple(parts), rows)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in pieces that fit into a part; a single row is never cut."""
    if batch.num_rows:
        per_row = max(1, batch.nbytes // batch.num_rows)
        count = max(1, PART_BYTES // per_row)
        for at in range(0, batch.num_rows, count):
            yield batch.slice(at, count)


def _stage(
    client: Client, query: dict[str, str | int], transaction: str, part: str, batches: Sequence[pa.RecordBatch]
) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    body = memoryview(sink.getvalue())
    client.send("PUT", f"/bulk/transactions/{transaction}/parts/{part}", query, bytes(body))
    return part


def _target(options: WriteOptions) -> dict[str, str | int]:
    if options.queue is not None:
        return {"queue": options.queue}
    if options.exchange is not None:
        return {"exchange": options.exchange}
    return {"topic": options.topic or ""}


def _commit(options: WriteOptions, messages: Sequence[Staged], sequence: int | None, attempt: str = "") -> None:
    by_transaction: dict[str, list[str]] = {}
    for message in messages:
        by_transaction.setdefault(message.transaction, []).extend(message.parts)
    client = Client(options.server)
    try:
        for transaction, parts in by_transaction.items():
            body: dict[str, object] = {"parts": parts, "attempt": attempt}
            if sequence is not None:
                body["sequence"] = sequence
            if options.replace_before >= 0:
                body["replace"] = {"queue": options.queue, "before": options.replace_before}
            client.json("POST", f"/bulk/transactions/{transaction}/commit", {}, body)
    finally:
        client.close()


def _abort(options: WriteOptions, transactions: set[str], attempt: str = "") -> None:
    """Best effort: what is not forgotten now is given up by the broker later."""
    client = Client(options.server, _ABORT_PATIENCE_SECONDS)
    try:
        for transaction in transactions:
            client.json("DELETE", f"/bulk/transactions/{transaction}", {"attempt": attempt})
    except HeadraceError:
        return
    finally:
        client.close()


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


@final
class BatchWriter(DataSourceArrowWriter):
    """One write of a DataFrame. Crosses to the executors and back with its transaction's id."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._transaction = options.transaction_id or f"batch-{uuid.uuid4().hex}"
        self._attempt = uuid.uuid4().hex
        """What tells the tasks of this job from those of another that writes under the same id."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        label = f"p{context.partitionId() if context is not None else 0}"
        return _write(self._options, self._transaction, label, iterator, self._attempt)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._options, _staged(messages) or [Staged(self._transaction, (), 0)], None, self._attempt)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._options, {self._transaction}, self._attempt)


@final
class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of a streaming query; Spark makes a new one for every batch and every commit."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(schema)
        if options.replace_before >= 0:
            raise Refused("option replaceBefore is for a batch: a stream would replace again and again")
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
        _abort(self._options, {message.transaction for message in _staged(messages)})
