"""A log as a table for people: the columns that Spark, pandas and the bulk endpoints show. Imports pyarrow.

storage/arrow.py has the stored columns. A frame turns properties into a content type and headers, once per
distinct value.
"""

from collections.abc import Sequence
from typing import Final, final

import pyarrow as pa

from headrace.wire.encodings import read_columns

_TIME: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = "headers"
FRAME: Final = pa.schema(
    [
        pa.field("queue", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", _TIME, nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("routing_key", pa.string(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("expires_at", _TIME),
        pa.field("priority", pa.int32(), nullable=False),
        pa.field("content_type", pa.string()),
        pa.field(HEADERS, pa.map_(pa.string(), pa.string())),
        pa.field("encoding", pa.int32(), nullable=False),
        pa.field("properties", pa.binary(), nullable=False),
    ]
)
"""One row per message. The topic is the topic or AMQP routing key that the message was published to.

`properties` are the bytes of the publisher's protocol, in that `encoding`."""

_STORED: Final = {
    "queue": (),
    "offset": ("offset",),
    "timestamp": ("timestamp",),
    "topic": ("topic",),
    "routing_key": ("topic",),
    "payload": ("payload",),
    "expires_at": ("expires_at",),
    "priority": ("priority",),
    "content_type": ("encoding", "properties"),
    HEADERS: ("encoding", "properties"),
    "encoding": ("encoding",),
    "properties": ("properties",),
}
_MAX_MEMORY: Final = 10_000


@final
class Frame:
    """Turns the stored columns of one queue into the named columns."""

    def __init__(self, queue: str, names: Sequence[str]) -> None:
        self._queue = queue
        self._names = list(names)
        self.schema = pa.schema([FRAME.field(name) for name in names])
        self._known: dict[bytes, tuple[str | None, dict[str, str] | None]] = {}

    @property
    def stored(self) -> list[str]:
        """The stored columns that the named columns need."""
        return list(dict.fromkeys([column for name in self._names for column in ("offset", *_STORED[name])]))

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The named columns of a batch of stored columns."""
        columns: dict[str, pa.Array] = {}
        if "content_type" in self._names or HEADERS in self._names:
            self._add_properties(batch, columns)
        for name in self._names:
            if name in columns:
                continue
            if name == "queue":
                columns[name] = pa.repeat(pa.scalar(self._queue, pa.string()), batch.num_rows)
            elif name in ("priority", "encoding"):
                columns[name] = batch.column(name).cast(pa.int32())
            else:
                columns[name] = batch.column("topic" if name == "routing_key" else name)
        return pa.RecordBatch.from_arrays([columns[name] for name in self._names], schema=self.schema)

    def _add_properties(self, batch: pa.RecordBatch, columns: dict[str, pa.Array]) -> None:
        if _is_empty(batch.column("properties")):  # saves 70 ns a row
            columns["content_type"] = pa.nulls(batch.num_rows, pa.string())
            columns[HEADERS] = pa.nulls(batch.num_rows, FRAME.field(HEADERS).type)
            return
        coded = _with_encoding(batch.column("encoding"), batch.column("properties")).dictionary_encode()
        found = [self._properties(key) for key in coded.dictionary.to_pylist()]
        if "content_type" in self._names:
            columns["content_type"] = pa.array([each[0] for each in found], pa.string()).take(coded.indices)
        if HEADERS in self._names:
            maps = [None if each[1] is None else list(each[1].items()) for each in found]
            columns[HEADERS] = pa.array(maps, FRAME.field(HEADERS).type).take(coded.indices)

    def _properties(self, key: bytes) -> tuple[str | None, dict[str, str] | None]:
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MAX_MEMORY:
                self._known.clear()
            known = self._known[key] = read_columns(int(key[:1]), key[1:])
        return known


def _is_empty(texts: pa.Array) -> bool:
    """Whether all texts are empty: the last ends where the first begins."""
    if not len(texts):
        return True
    bounds = memoryview(texts.buffers()[1]).cast("i")
    return bool(bounds[texts.offset] == bounds[texts.offset + len(texts)])


def _with_encoding(encodings: pa.Array, properties: pa.Array) -> pa.Array:
    """Prefix the properties with the digit of their encoding."""
    import pyarrow.compute as pc  # slow to import, and callers of the schema alone do not need it

    digits = encodings.cast(pa.string()).cast(pa.binary())
    return pc.binary_join_element_wise(digits, properties, pa.scalar(b"", pa.binary()))
