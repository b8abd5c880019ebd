"""A log as a table for people: the columns that Spark, pandas and the bulk endpoints show. Imports pyarrow.

storage/arrow.py has the stored columns. A frame turns properties into a content type and headers, once per
distinct value.
"""

from collections.abc import Callable, Sequence
from typing import Final, final

import pyarrow as pa

from headrace.errors import Refused
from headrace.selector import header_text
from headrace.wire.encodings import decode_properties
from headrace.wire.properties import Properties, plain_value
from headrace.wire.typed import typed_value

_TIME: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = "headers"
TYPED_HEADERS: Final = "typed_headers"
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
        pa.field("message_id", pa.string()),
        pa.field("correlation_id", pa.string()),
        pa.field("reply_to", pa.string()),
        pa.field("type", pa.string()),
        pa.field("app_id", pa.string()),
        pa.field("user_id", pa.string()),
        pa.field("content_encoding", pa.string()),
        pa.field("expiration", pa.string()),
        pa.field("delivery_mode", pa.int32()),
        pa.field("sent_at", _TIME),
        pa.field("deliver_at", _TIME),
        pa.field("exchange", pa.string(), nullable=False),
        pa.field("client_id", pa.string(), nullable=False),
        pa.field("protocol", pa.string(), nullable=False),
        pa.field(
            TYPED_HEADERS,
            pa.list_(
                pa.struct(
                    [
                        pa.field("key", pa.string(), nullable=False),
                        pa.field("type", pa.string(), nullable=False),
                        pa.field("value", pa.binary()),
                    ]
                )
            ),
        ),
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
    "encoding": ("encoding",),
    "properties": ("properties",),
    "deliver_at": ("not_before",),
    "exchange": ("exchange",),
    "client_id": ("client_id",),
    "protocol": ("protocol",),
}
"""The stored columns that a column needs; all others need the properties."""
_RAW: Final = ("encoding", "properties")
_MAX_MEMORY: Final = 10_000


def _text_of(name: str) -> Callable[[Properties], object]:
    def text(properties: Properties) -> object:
        value: str = getattr(properties, name)
        return value.encode(errors="replace").decode() or None  # ids of AMQP 0-9-1 may be any bytes

    return text


def _text_headers(properties: Properties) -> object:
    headers = properties.headers.items()
    found = [(name, text) for name, value in headers if (text := header_text(plain_value(value))) is not None]
    return found or None


def _typed_headers(properties: Properties) -> object:
    found = [(name, *typed_value(value)) for name, value in properties.headers.items()]
    return [{"key": name, "type": kind, "value": raw} for name, kind, raw in found] or None


_READERS: Final[dict[str, Callable[[Properties], object]]] = {
    "content_type": _text_of("content_type"),
    HEADERS: _text_headers,
    TYPED_HEADERS: _typed_headers,
    "message_id": _text_of("message_id"),
    "correlation_id": _text_of("correlation_id"),
    "reply_to": _text_of("reply_to"),
    "type": _text_of("message_type"),
    "app_id": _text_of("app_id"),
    "user_id": _text_of("user_id"),
    "content_encoding": _text_of("content_encoding"),
    "expiration": _text_of("expiration"),
    "delivery_mode": lambda properties: properties.delivery_mode or None,
    "sent_at": lambda properties: (
        min(properties.timestamp_s, _LAST_S) * 1_000_000 if properties.timestamp_s >= 0 else None
    ),
}
"""The columns that come from properties; None for an absent value."""
_LAST_S: Final = 253_402_300_799
"""The last second of the year 9999."""


@final
class Frame:
    """Turns the stored columns of one queue into the named columns."""

    def __init__(self, queue: str, names: Sequence[str]) -> None:
        self._queue = queue
        self._names = list(names)
        self.schema = pa.schema([FRAME.field(name) for name in names])
        self._said = [name for name in names if name in _READERS]
        """Columns that come from properties."""
        self._known: dict[bytes, list[object]] = {}

    @property
    def stored(self) -> list[str]:
        """The stored columns that the named columns need."""
        return list(dict.fromkeys([column for name in self._names for column in ("offset", *_STORED.get(name, _RAW))]))

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The named columns of a batch of stored columns."""
        columns: dict[str, pa.Array] = {}
        if self._said:
            self._add_properties(batch, columns)
        for name in self._names:
            if name in columns:
                continue
            if name == "queue":
                columns[name] = pa.repeat(pa.scalar(self._queue, pa.string()), batch.num_rows)
            elif name in ("priority", "encoding"):
                columns[name] = batch.column(name).cast(pa.int32())
            else:
                (stored,) = _STORED[name]
                columns[name] = batch.column(stored)
        return pa.RecordBatch.from_arrays([columns[name] for name in self._names], schema=self.schema)

    def _add_properties(self, batch: pa.RecordBatch, columns: dict[str, pa.Array]) -> None:
        if _is_empty(batch.column("properties")):  # saves 70 ns a row
            for name in self._said:
                columns[name] = pa.nulls(batch.num_rows, FRAME.field(name).type)
            return
        coded = _with_encoding(batch.column("encoding"), batch.column("properties")).dictionary_encode()
        found = [self._properties(key) for key in coded.dictionary.to_pylist()]
        for at, name in enumerate(self._said):
            columns[name] = pa.array([each[at] for each in found], FRAME.field(name).type).take(coded.indices)

    def _properties(self, key: bytes) -> list[object]:
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MAX_MEMORY:
                self._known.clear()
            known = self._known[key] = self._read(int(key[:1]), key[1:])
        return known

    def _read(self, encoding: int, raw: bytes) -> list[object]:
        """The values of the columns; unreadable properties have none, as for a selector."""
        try:
            properties = decode_properties(encoding, raw) if raw else Properties()
        except Refused:
            properties = Properties()
        return [_READERS[name](properties) for name in self._said]


def _is_empty(texts: pa.Array) -> bool:
    """True if all texts are empty: the last ends where the first begins."""
    if not len(texts):
        return True
    bounds = memoryview(texts.buffers()[1]).cast("i")
    return bool(bounds[texts.offset] == bounds[texts.offset + len(texts)])


def _with_encoding(encodings: pa.Array, properties: pa.Array) -> pa.Array:
    """Prefix the properties with the digit of their encoding."""
    import pyarrow.compute as pc  # slow to import, and callers of the schema alone do not need it

    digits = encodings.cast(pa.string()).cast(pa.binary())
    return pc.binary_join_element_wise(digits, properties, pa.scalar(b"", pa.binary()))
