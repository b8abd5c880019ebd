"""Arrow streams to what the broker stores and back, away from the event loop where it takes long. No pages.

pyarrow is loaded with the first request that needs it; where it is not installed, that request hears how to.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, final

from headrace.admin.problems import BadRequest
from headrace.admin.site import Site
from headrace.core.broker import Broker
from headrace.core.bulk import TO_QUEUE
from headrace.core.properties import plain_value
from headrace.core.topology import scoped
from headrace.errors import NotFound, Refused, Unavailable
from headrace.model import Message, Source
from headrace.selector.values import header_text
from headrace.storage.api import Encoded

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.storage.local.arrow_block import Memory
    from headrace.storage.local.encoded import EncodedBlock

COLUMNS: Final = (
    "queue", "offset", "timestamp", "topic", "routing_key", "payload", "expires_at", "priority", "content_type",
    "headers",
)  # fmt: skip
EXPIRE_SECONDS: Final = 3600
"""Parts of a transaction of which nothing was heard for so long are given up."""
PROTOCOL: Final = "bulk"
BY_COLUMN: Final = "queues"
"""The kind of a part whose rows name their queues themselves, in a column."""


def columns_named(text: str) -> list[str]:
    """The columns of `columns=offset,payload`; all but the headers without. Raises BadRequest."""
    names = [name for name in text.split(",") if name] or [name for name in COLUMNS if name != "headers"]
    for name in names:
        if name not in COLUMNS:
            raise BadRequest(f"there is no column {name[:64]!r}; there are {', '.join(COLUMNS)}")
    return list(dict.fromkeys(names))


@final
class ArrowCodec:
    """What the pages need done with Arrow and with staged parts."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def stream(self, broker: Broker, queue: str, names: Sequence[str]) -> "Stream":
        """The encoder of one answer. Raises Unavailable without pyarrow."""
        _need_arrow()
        return Stream(broker, queue, names)

    def part_writer(
        self, host: str, transaction: str, part: str, kind: str, name: str, user: str
    ) -> Callable[[bytes], tuple[int, int, list[str]]]:
        """What turns a body into a staged part; returns how many rows and bytes it has, and which topics."""
        _need_arrow()
        area, now_us = self._site.staging, self._site.clock.now_us()

        def write(body: bytes) -> tuple[int, int, list[str]]:
            from headrace.storage.local.arrow_block import Origin, encode_table

            area.sweep(now_us / 1_000_000 - EXPIRE_SECONDS)
            exchange = name if kind == "exchange" else ""
            named: list[str] = []
            memory: Memory = {}
            blocks: list[EncodedBlock] = []
            for target, rows in _by_queue(_table(body), name) if kind == BY_COLUMN else [(name, _table(body))]:
                default = target if kind != "exchange" else ""
                origin = Origin(default, exchange, f"{PROTOCOL}:{user}", PROTOCOL, now_us)
                encoded = list(encode_table(rows, origin, memory))
                blocks += encoded
                named += [target] * len(encoded)
            kept = {"kind": kind, "name": name, "names": json.dumps(named)}
            size = area.put(scoped(host, transaction), part, kept, blocks)
            topics = {source.topic for each in blocks for source in each.sources()}
            return sum(each.count for each in blocks), size, sorted(topics)

        return write

    def part(self, host: str, transaction: str, part: str) -> list[tuple[str, str, Encoded]]:
        """A staged part: blocks of messages, and where each of them goes. Raises NotFound."""
        target, blocks = self._site.staging.get(scoped(host, transaction), part)
        if "names" not in target:
            raise NotFound(f"part {part!r} says not where it goes; write it again")
        kind = TO_QUEUE if target["kind"] == BY_COLUMN else target["kind"]
        return [(kind, name, rows) for name, rows in zip(json.loads(target["names"]), blocks, strict=True)]

    def forget(self, host: str, transaction: str) -> None:
        """The parts of a transaction are not needed any more."""
        self._site.staging.remove(scoped(host, transaction))


@final
class Stream:
    """Messages as an Arrow stream, batch by batch."""

    def __init__(self, broker: Broker, queue: str, names: Sequence[str]) -> None:
        import pyarrow as pa

        from headrace.storage.frame import Frame

        self._codecs = broker.codecs
        self._frame = Frame(queue, names, self._read_properties)
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

    def _read_properties(self, encoding: int, raw: bytes) -> tuple[str | None, dict[str, str] | None]:
        if not raw:
            return None, None
        try:
            properties = self._codecs.decode(Message(Source("", encoding=encoding), b"", 0, raw))
        except Refused:
            return None, None
        texts = {
            name: text
            for name, value in properties.headers.items()
            if (text := header_text(plain_value(value))) is not None
        }
        return properties.content_type or None, texts or None


class _Sink:
    """A file that keeps what is written until it is taken."""

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


def _by_queue(table: "pa.Table", column: str) -> "Iterator[tuple[str, pa.Table]]":
    """The rows queue by queue, as the column names them, in the order they have. Raises BadRequest."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column not in table.schema.names or not pa.types.is_string(table.schema.field(column).type):
        raise BadRequest(f"there is no column {column!r} of texts that says which queue a row is for")
    coded = table.column(column).combine_chunks().dictionary_encode()
    if coded.null_count:
        raise BadRequest(f"the column {column!r} is null in some row; it must name the row's queue")
    order = pc.sort_indices(coded.indices)  # a stable sort
    rows = table.drop_columns([column]).take(order)
    counts = {each["values"]: each["counts"] for each in pc.value_counts(coded.indices).to_pylist()}
    at = 0
    for number, queue in enumerate(coded.dictionary.to_pylist()):
        yield queue, rows.slice(at, counts[number])
        at += counts[number]


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
        raise Unavailable(f"this needs pyarrow ({error}): pip install 'headrace[arrow]'") from error
