"""The Arrow schema of a log, and record batches of plain messages. Imports pyarrow, so import it where used.

Importing it raises Unavailable where pyarrow is not installed.
"""

from collections.abc import Sequence
from typing import Final

from headrace.errors import missing_extra
from headrace.model import Message, Source

try:
    import pyarrow as pa
except ImportError as error:
    raise missing_extra("reading Arrow record batches", "arrow", error) from error

SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("exchange", pa.string(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("expires_at", pa.timestamp("us", tz="UTC")),
        pa.field("not_before", pa.timestamp("us", tz="UTC")),
        pa.field("priority", pa.uint8(), nullable=False),
        pa.field("client_id", pa.string(), nullable=False),
        pa.field("protocol", pa.string(), nullable=False),
        pa.field("encoding", pa.uint8(), nullable=False),
        pa.field("properties", pa.binary(), nullable=False),
    ]
)
"""One row per message. `properties` are the bytes that the publisher's protocol sent, in that `encoding`."""


BATCH_BYTES: Final = 4 << 20
"""The most bytes of messages in a batch, unless one message has more."""


def batch_of_messages(base: int, messages: Sequence[Message]) -> pa.RecordBatch:
    """A record batch of messages; `base` is the offset of the first."""
    sources = [message.source for message in messages]
    columns = [
        range(base, base + len(messages)),
        [message.timestamp_us for message in messages],
        [source.topic for source in sources],
        [source.exchange for source in sources],
        [message.payload for message in messages],
        [message.expires_us or None for message in messages],
        [message.not_before_us or None for message in messages],
        [message.priority for message in messages],
        [source.client_id for source in sources],
        [source.protocol for source in sources],
        [source.encoding for source in sources],
        [message.properties for message in messages],
    ]
    arrays = [pa.array(values, type=field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def columns_of_sources(
    sources: Sequence[Source], index: pa.Array | None, count: int, wanted: Sequence[str] = SCHEMA.names
) -> dict[str, pa.Array]:
    """The columns of each row's source; without an index every row has the first source."""
    columns = {}
    for name in ("topic", "exchange", "client_id", "protocol", "encoding"):
        if name not in wanted:
            continue
        distinct = pa.array([getattr(source, name) for source in sources], type=SCHEMA.field(name).type)
        columns[name] = distinct.take(index) if index is not None else pa.repeat(distinct[0], count)
    return columns


def counting(start: int, stop: int) -> pa.Array:
    """The numbers from `start` up to but not including `stop`."""
    return pa.arange(start, stop)
