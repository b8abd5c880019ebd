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

from headrace.errors import HeadraceError, Refused
from headrace.spark.client import Client
from headrace.spark.options import Server, WriteOptions

PART_BYTES: Final = 8 << 20
PART_ROWS: Final = 1 << 20
_NOT_DONE: Final = "committing"
_ABORT_PATIENCE_SECONDS: Final = 5.0
COLUMNS: Final = (
    "payload", "topic", "routing_key", "headers", "content_type", "priority", "expires_in_ms", "deliver_at", "encoding",
    "properties",
)  # fmt: skip


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


def check_schema(schema: StructType) -> None:
    """Check that rows of this schema are messages. Raises Refused."""
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


def _write(
    options: WriteOptions, transaction: str, label: str, batches: Iterator[pa.RecordBatch], attempt: str = ""
) -> Staged:
    """Stage the rows of a task in parts of moderate size. Raises Refused when the attempt is over."""
    from headrace.storage.local.arrow import cut_batch  # the driver does without

    # The name is unique: no other attempt and no abandoned executor writes under it.
    name = f"{label}-{uuid.uuid4().hex}"
    parts: list[str] = []
    rows = 0
    waiting: list[pa.RecordBatch] = []
    size = 0
    with Transaction(options.server, transaction, attempt) as opened:
        for found in batches:
            batch = found.rename_columns([name.lower() for name in found.schema.names])
            for piece in cut_batch(batch, PART_BYTES, PART_ROWS):
                if waiting and size + piece.nbytes > PART_BYTES:
                    parts.append(opened.stage(f"{name}-{len(parts)}", _target(options), waiting))
                    waiting, size = [], 0
                waiting.append(piece)
                size += piece.nbytes
                rows += piece.num_rows
        if waiting:
            parts.append(opened.stage(f"{name}-{len(parts)}", _target(options), waiting))
    return Staged(transaction, tuple(parts), rows)


def _target(options: WriteOptions) -> dict[str, str]:
    if options.queue is not None:
        return {"queue": options.queue}
    if options.exchange is not None:
        return {"exchange": options.exchange}
    return {"topic": options.topic or ""}


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
        check_schema(schema)
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
        check_schema(schema)
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
