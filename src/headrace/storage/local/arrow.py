"""Blocks as Arrow record batches, Arrow tables as blocks, and messages for many logs as one block. Imports pyarrow.

The arrays of a record batch point into its block. A table to encode has the column `payload` (binary or text) and may
have `topic` or `routing_key`, `headers` (map of texts), `content_type`, `priority`, `expires_in_ms` and `deliver_at`,
and `encoding` with `properties`: the bytes of a message that was read, to which a content type and headers are added.
No row is handled by itself, but for these bytes. Spark's tasks load this module without librt, so functions that encode
import it late.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import Refused
from headrace.model import NATIVE, Source
from headrace.storage.arrow import SCHEMA, columns_of_sources, counting
from headrace.storage.local.block import (
    EXPIRES,
    NOT_BEFORE,
    PRIORITY,
    PROPERTIES,
    SOURCE_INDEX,
    Block,
    Columns,
    Layout,
    assemble_block,
    decode_sources,
)
from headrace.storage.local.follower import SpanReader, place_in
from headrace.storage.local.stored import JOURNAL, Span
from headrace.wire.encodings import decode_properties, encode_properties

if TYPE_CHECKING:
    from headrace.storage.local.staging import EncodedBlock, EncodedRows


def bytes_of(column: pa.Array) -> bytes:
    """The values of a column of numbers as bytes."""
    width = column.type.bit_width // 8
    raw: bytes = column.buffers()[1].slice(column.offset * width, len(column) * width).to_pybytes()
    return raw


def var_length(column: pa.Array) -> tuple[bytes, bytes]:
    """The bounds and the bytes of a column of variable length."""
    _, bounds, data = column.buffers()
    at = pa.Array.from_buffers(pa.int32(), len(column) + 1, [None, bounds], offset=column.offset)
    first, last = at[0].as_py(), at[-1].as_py()
    if first:
        at = pc.subtract(at, pa.scalar(first, pa.int32()))
    values: bytes = data.slice(first, last - first).to_pybytes() if data is not None and last > first else b""
    return bytes_of(at), values


def first_rows(indices: pa.Array) -> pa.Array:
    """The first row of each number; new numbers count up from 0."""
    rows = pa.table({"number": indices, "row": counting(0, len(indices))})
    return rows.group_by("number", use_threads=False).aggregate([("row", "min")]).column("row_min")


def batch_of_block(
    block: Block, start: int, stop: int, names: Sequence[str] = SCHEMA.names, base: int = -1
) -> pa.RecordBatch:
    """The named columns of the rows `start` up to but not including `stop`, without copying payloads.

    `base` is the offset of the first of these rows, if the block's own does not count.
    """
    batch = _batch_of(block, pa.py_buffer(block.body), block.sources(), names, block.base if base < 0 else base - start)
    return batch if stop - start == block.count else batch.slice(start, stop - start)


def span_batches(reader: SpanReader, span: Span, names: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Read a span as record batches, each with the offset of its first row. Raises as SpanReader's `rows`.

    Arrow reuses the memory of a block for the next one. Python objects of 3.5 MB cost a page fault every 4 KiB: 350 ms
    of CPU for 1,000,000 messages of 200 bytes instead of 90.
    """
    if span[0] == JOURNAL:
        for base, block, first, last in reader.rows(span):
            yield base, batch_of_block(block, first, last, names, base)
        return
    body = _Body()
    layout = reader.read_into(span, body.allocate)
    base, first, last = place_in(span, layout)
    if first < last:
        batch = _batch_of(layout, body.buffer, body.sources(layout), names, base - first)
        yield base, batch if last - first == layout.count else batch.slice(first, last - first)


@final
class _Body:
    """The body of a block in Arrow's memory."""

    def allocate(self, length: int) -> memoryview:
        self.buffer = pa.allocate_buffer(length)
        return memoryview(self.buffer)

    def sources(self, layout: Layout) -> list[Source]:
        at = layout.at_source_table
        return decode_sources(self.buffer.slice(at, layout.source_bytes).to_pybytes(), layout.source_count)


def _batch_of(
    block: Layout, body: pa.Buffer, sources: Sequence[Source], names: Sequence[str], first: int
) -> pa.RecordBatch:
    """All rows of a block; the first has the offset `first`."""
    count = block.count
    index = None
    if block.columns & SOURCE_INDEX:
        index = pa.Array.from_buffers(pa.int32(), count, [None, body.slice(block.at_source_index, count * 4)])
    columns = columns_of_sources(sources, index, count, names)
    if "offset" in names:
        columns["offset"] = counting(first, first + count)
    for name in names:
        if name not in columns:
            columns[name] = _column(name, block, body)
    schema = SCHEMA if names is SCHEMA.names else pa.schema([SCHEMA.field(name) for name in names])
    return pa.RecordBatch.from_arrays([columns[name] for name in names], schema=schema)


def _column(name: str, block: Layout, body: pa.Buffer) -> pa.Array:
    """A column that does not come from the sources."""
    count = block.count
    if name == "timestamp":
        return _times(body, 0, count)
    if name == "payload":
        return _binary(body, block.at_payload_at, block.at_payloads, count)
    if name == "expires_at":
        return _optional_times(body, block.at_expires, count, bool(block.columns & EXPIRES))
    if name == "not_before":
        return _optional_times(body, block.at_not_before, count, bool(block.columns & NOT_BEFORE))
    if name == "priority":
        if block.columns & PRIORITY:
            return pa.Array.from_buffers(pa.uint8(), count, [None, body.slice(block.at_priority, count)])
        return pa.repeat(pa.scalar(0, pa.uint8()), count)
    assert name == "properties"
    if block.columns & PROPERTIES:
        return _binary(body, block.at_properties_at, block.at_properties, count)
    return pa.repeat(pa.scalar(b"", pa.binary()), count)


def _times(body: pa.Buffer, at: int, count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), count, [None, body.slice(at, count * 8)])


def _optional_times(body: pa.Buffer, at: int, count: int, present: bool) -> pa.Array:
    """A column of times, where 0 becomes null."""
    kind = pa.timestamp("us", tz="UTC")
    if not present:
        return pa.nulls(count, kind)
    numbers = pa.Array.from_buffers(pa.int64(), count, [None, body.slice(at, count * 8)])
    return pc.if_else(pc.equal(numbers, 0), pa.scalar(None, pa.int64()), numbers).cast(kind)


def _binary(body: pa.Buffer, at_bounds: int, at_bytes: int, count: int) -> pa.Array:
    bounds = body.slice(at_bounds, (count + 1) * 4)
    return pa.Array.from_buffers(pa.binary(), count, [None, bounds, body.slice(at_bytes)])


_STORED: Final = ("timestamp", "expires_at", "not_before", "priority", "properties", "payload")
_OF_SOURCE: Final = ("topic", "exchange", "client_id", "protocol", "encoding")
_NEVER: Final = (1 << 63) - 1


def merge_by_log(parts: Sequence[tuple[Block, pa.Array]], names: Sequence[str]) -> "list[tuple[str, EncodedRows]]":
    """Merge blocks into one, with the messages of each log in a row; a part has the number of each row's log.

    Raises Refused when the messages do not fit into a block.
    """
    if not parts:
        return []
    target = pa.concat_arrays([index for _, index in parts])
    order = pc.sort_indices(target)  # a stable sort
    table = pa.Table.from_batches([batch_of_block(block, 0, block.count, _STORED) for block, _ in parts])
    sources, index = _merged_sources([block for block, _ in parts])
    return _runs(table.take(order), sources, index.take(order), target.take(order), names, 0)


def copy_to_logs(
    table: pa.Table, rows: pa.Array, target: pa.Array, names: Sequence[str], time_us: int
) -> "list[tuple[str, EncodedRows]]":
    """Copy rows of a table to logs, as published at `time_us`: `rows` and `target` pair a row with a log's number.

    The table has the columns of storage/arrow.py. Raises Refused when the messages do not fit into a block.
    """
    if not len(rows):
        return []
    order = pc.sort_indices(target)
    chosen = rows.take(order)
    sources, index = _sources_of(table)
    stored = table.select(list(_STORED)).combine_chunks()
    return _runs(stored.take(chosen), sources, index.take(chosen), target.take(order), names, time_us)


def _runs(
    table: pa.Table, sources: Sequence[Source], index: pa.Array, target: pa.Array, names: Sequence[str], time_us: int
) -> "list[tuple[str, EncodedRows]]":
    """Encode sorted rows as one block, and find each log's run; messages keep their times unless `time_us` is set."""
    rows = table.combine_chunks()
    payloads = rows.column("payload").combine_chunks()
    columns = Columns(*var_length(payloads))
    if not time_us:
        columns.times = bytes_of(rows.column("timestamp").combine_chunks().cast(pa.int64()))
    expires = _merged_times(rows, "expires_at")
    columns.expires = _unless_zero(expires)
    columns.not_before = _unless_zero(_merged_times(rows, "not_before"))
    columns.priority = _unless_zero(rows.column("priority").combine_chunks())
    properties_at, columns.properties = var_length(rows.column("properties").combine_chunks())
    columns.properties_at = properties_at if columns.properties else b""
    if len(sources) > 1:
        columns.source_index = bytes_of(index)
    block = assemble_block(rows.num_rows, time_us, sources, columns)
    return _rows_by_log(block, target, names, payloads, expires)


def _rows_by_log(
    block: Block, target: pa.Array, names: Sequence[str], payloads: pa.Array, expires: pa.Array
) -> "list[tuple[str, EncodedRows]]":
    from headrace.storage.local.staging import EncodedRows

    ends = pc.if_else(pc.equal(expires, 0), pa.scalar(_NEVER, pa.int64()), expires)
    facts = pa.table({"log": target, "size": pc.binary_length(payloads), "end": ends})
    wanted = [("size", "count"), ("size", "sum"), ("size", "max"), ("end", "min")]
    found: list[tuple[str, EncodedRows]] = []
    start = 0
    for row in facts.group_by("log", use_threads=False).aggregate(wanted).to_pylist():
        first_us = row["end_min"] if row["end_min"] < _NEVER else 0
        rows = EncodedRows(block, start, row["size_count"], row["size_sum"], row["size_max"], first_us)
        found.append((names[row["log"]], rows))
        start += rows.count
    return found


def _merged_sources(blocks: Sequence[Block]) -> tuple[list[Source], pa.Array]:
    """The sources of all blocks, and the number of each row's source."""
    numbers: dict[Source, int] = {}
    index: list[pa.Array] = []
    for block in blocks:
        known = pa.array([numbers.setdefault(source, len(numbers)) for source in block.sources()], pa.int32())
        own = block.source_index() if block.columns & SOURCE_INDEX else None
        if own is None:
            index.append(pa.repeat(known[0], block.count))
        else:
            index.append(known.take(pa.Array.from_buffers(pa.int32(), block.count, [None, pa.py_buffer(own)])))
    return list(numbers), pa.concat_arrays(index)


def _sources_of(table: pa.Table) -> tuple[list[Source], pa.Array]:
    """The sources of a table, and the number of each row's source."""
    index = pa.repeat(pa.scalar(0, pa.int32()), table.num_rows)
    for name in _OF_SOURCE:
        coded = table.column(name).combine_chunks().dictionary_encode()
        if len(coded.dictionary) > 1:  # renumber each time, so that no number exceeds the rows
            both = pc.add(pc.multiply(index.cast(pa.int64()), len(coded.dictionary)), coded.indices.cast(pa.int64()))
            index = both.dictionary_encode().indices
    firsts = first_rows(index)
    values = [table.column(name).take(firsts).to_pylist() for name in _OF_SOURCE]
    return [Source(*each) for each in zip(*values, strict=True)], index


def _merged_times(rows: pa.Table, name: str) -> pa.Array:
    return rows.column(name).combine_chunks().cast(pa.int64()).fill_null(0)


def _unless_zero(column: pa.Array) -> bytes:
    """The values of a column as bytes; b"" when all are 0."""
    return bytes_of(column) if pc.max(column).as_py() else b""


BLOCK_ROWS: Final = 16_384
BLOCK_BYTES: Final = 4 << 20
MAX_TOPICS: Final = 65_536
_MAX_TIME_US: Final = 1 << 62
_MAX_TOPIC_CHARACTERS: Final = 16_383
_TEXTS: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
_KNOWN: Final = (
    "payload", "topic", "routing_key", "headers", "content_type", "priority", "expires_in_ms", "deliver_at", "encoding",
    "properties",
)  # fmt: skip
_MAX_ENCODING: Final = 255


@final
class Origin:
    """The facts that all messages of a write share."""

    __slots__ = ("client_id", "exchange", "protocol", "time_us", "topic")

    def __init__(self, topic: str, exchange: str, client_id: str, protocol: str, time_us: int) -> None:
        self.topic = topic
        """The topic of rows without one."""
        self.exchange = exchange
        self.client_id = client_id
        self.protocol = protocol
        self.time_us = time_us


def encode_table(table: pa.Table, origin: Origin) -> "Iterator[EncodedBlock]":
    """Encode the rows of a table as blocks of moderate size. Raises Refused when they are no messages."""
    _check_columns(table.schema)
    at = 0
    for batch in table.combine_chunks().to_batches():
        for piece in cut_batch(batch, BLOCK_BYTES, BLOCK_ROWS):
            yield _encode_batch(piece, origin, at)
            at += piece.num_rows


def cut_batch(batch: pa.RecordBatch, most_bytes: int, most_rows: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch into pieces of at most that many bytes and rows; a larger row is a piece of its own."""
    rows = batch.num_rows
    at = 0
    if rows and batch.nbytes > most_bytes:
        ends = pc.cumulative_sum(_row_bytes(batch))
        while at < rows:
            before = ends[at - 1].as_py() if at else 0
            fits = pc.sum(pc.less_equal(ends.slice(at, most_rows), before + most_bytes)).as_py() or 0
            yield batch.slice(at, max(1, fits))
            at += max(1, fits)
        return
    for at in range(0, rows, most_rows):
        yield batch.slice(at, most_rows)


def _row_bytes(batch: pa.RecordBatch) -> pa.Array:
    """The size of each row: exact for texts and bytes, the mean of the batch for all other columns."""
    rows = batch.num_rows
    sizes = pa.repeat(pa.scalar(0, pa.int64()), rows)
    others = batch.nbytes
    for column in batch.columns:
        if any([is_text(column.type) for is_text in _TEXTS]):
            sizes = pc.add(sizes, pc.fill_null(pc.binary_length(column), 0).cast(pa.int64()))
            others -= column.nbytes
    return pc.add(sizes, max(1, others // rows))


def _check_columns(schema: pa.Schema) -> None:
    if "payload" not in schema.names:
        raise Refused(f"the column payload is missing; there are: {', '.join(schema.names) or 'none'}")
    for field in schema:
        if field.name not in _KNOWN:
            raise Refused(f"there is no column {field.name!r} in a message; there may be {', '.join(_KNOWN)}")
        if schema.names.count(field.name) > 1:
            raise Refused(f"the column {field.name!r} is there twice")
    if "topic" in schema.names and "routing_key" in schema.names:
        raise Refused("give one of the columns topic and routing_key: they are the same")
    if ("encoding" in schema.names) != ("properties" in schema.names):
        raise Refused("give both of the columns encoding and properties: one says how to read the other")


def _encode_batch(batch: pa.RecordBatch, origin: Origin, row: int) -> "EncodedBlock":
    from headrace.storage.local.staging import EncodedBlock

    payloads = _binary_column(batch, "payload")
    if payloads.null_count:
        first = pc.index(payloads.is_null(), True).as_py()
        raise Refused(f"the payload of row {row + first} is null; a message has one, if only an empty one")
    payload_at, data = var_length(payloads)
    columns = Columns(payload_at, data)
    encodings = _numbers(batch, "encoding", pa.int64())
    sources = _sources(batch, origin, columns, encodings)
    first_expiry_us = _add_times(batch, origin, columns)
    _add_priority(batch, columns)
    if encodings is None:
        _add_properties(batch, columns)
    else:
        _add_kept_properties(batch, columns)
    block = assemble_block(batch.num_rows, origin.time_us, sources, columns)
    return EncodedBlock(block, pc.max(pc.binary_length(payloads)).as_py(), first_expiry_us)


def _binary_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not any(is_text(column.type) for is_text in _TEXTS) and not pa.types.is_null(column.type):
        raise Refused(f"the column {name!r} is {column.type}; it must be binary or text")
    try:
        return column.cast(pa.binary())
    except pa.ArrowInvalid as error:
        raise Refused(f"the column {name!r} cannot be stored: {error}") from error


def _sources(batch: pa.RecordBatch, origin: Origin, columns: Columns, encodings: pa.Array | None) -> list[Source]:
    name = next((name for name in ("topic", "routing_key") if name in batch.schema.names), "")
    topics, index = _topics(batch, name, origin.topic) if name else ([origin.topic], None)
    numbers: list[int] = [NATIVE] * len(topics)
    if encodings is not None:
        if pc.min(encodings).as_py() < 0 or pc.max(encodings).as_py() > _MAX_ENCODING:
            raise Refused(f"a value of the column 'encoding' is not from 0 to {_MAX_ENCODING}")
        wide = pa.scalar(_MAX_ENCODING + 1, pa.int64())
        both = encodings if index is None else pc.add(pc.multiply(index.cast(pa.int64()), wide), encodings)
        coded = both.dictionary_encode()
        pairs = [divmod(each, _MAX_ENCODING + 1) for each in coded.dictionary.to_pylist()]
        topics, numbers, index = [topics[topic] for topic, _ in pairs], [number for _, number in pairs], coded.indices
    if len(topics) > 1:
        assert index is not None
        columns.source_index = bytes_of(index.cast(pa.int32()))
    return [
        Source(topic, origin.exchange, origin.client_id, origin.protocol, number)
        for topic, number in zip(topics, numbers, strict=True)
    ]


def _topics(batch: pa.RecordBatch, name: str, default: str) -> tuple[list[str], pa.Array]:
    """The distinct topics of a column, and the number of each row's. Raises Refused."""
    try:
        texts = _binary_column(batch, name).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise Refused(f"the column {name!r} is not UTF-8: {error}") from error
    coded = texts.fill_null(default).dictionary_encode()
    topics: list[str] = coded.dictionary.to_pylist()
    if len(topics) > MAX_TOPICS or any([len(topic) > _MAX_TOPIC_CHARACTERS for topic in topics]):
        raise Refused(f"a topic has more than {_MAX_TOPIC_CHARACTERS} characters")
    return topics, coded.indices


def _add_times(batch: pa.RecordBatch, origin: Origin, columns: Columns) -> int:
    """Add the columns of expiry and delay; returns the first expiry, 0 without one."""
    due = _numbers(batch, "deliver_at", pa.timestamp("us", tz="UTC"))
    if due is not None:
        columns.not_before = bytes_of(due)
    lives = _numbers(batch, "expires_in_ms", pa.int64())
    if lives is None:
        return 0
    if pc.min(lives).as_py() < 0 or pc.max(lives).as_py() > _MAX_TIME_US // 1000:
        raise Refused("a value of the column 'expires_in_ms' is no time from now on")
    start = pa.scalar(origin.time_us, pa.int64()) if due is None else pc.max_element_wise(due, origin.time_us)
    ends = pc.add(pc.multiply(lives, 1000), start)
    given = batch.column("expires_in_ms").is_valid()
    expires = pc.if_else(given, ends, pa.scalar(0, pa.int64()))
    columns.expires = bytes_of(expires)
    first = pc.min(expires.filter(given)).as_py()
    return first or 0


def _numbers(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array | None:
    """A column of numbers or times with 0 for null; None when it is missing or all null."""
    if name not in batch.schema.names or batch.column(name).null_count == batch.num_rows:
        return None
    column = batch.column(name)
    if pa.types.is_timestamp(kind) and not pa.types.is_timestamp(column.type):
        raise Refused(f"the column {name!r} is {column.type}; it must be a timestamp")
    try:
        if pa.types.is_timestamp(kind) and column.type.tz is None:
            column = column.cast(pa.timestamp("us")).cast(kind)
        return column.cast(kind).cast(pa.int64()).fill_null(0)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Refused(f"the column {name!r} is {column.type} and cannot be stored: {error}") from error


def _add_priority(batch: pa.RecordBatch, columns: Columns) -> None:
    priorities = _numbers(batch, "priority", pa.int64())
    if priorities is None:
        return
    if pc.min(priorities).as_py() < 0 or pc.max(priorities).as_py() > 255:
        raise Refused("a value of the column 'priority' is not from 0 to 255")
    columns.priority = bytes_of(priorities.cast(pa.uint8()))


def _add_properties(batch: pa.RecordBatch, columns: Columns) -> None:
    """Add content type and headers in the native encoding; equal rows are encoded once."""
    types = _binary_column(batch, "content_type").cast(pa.string()) if "content_type" in batch.schema.names else None
    headers = _headers(batch)
    keys = [_key_of_text(types)] if types is not None and types.null_count < len(types) else []
    keys += [_key_of_headers(headers)] if headers is not None and headers.null_count < len(headers) else []
    if not keys:
        return
    coded = pc.binary_join_element_wise(*keys, pa.scalar("", pa.large_string())).dictionary_encode()
    firsts = first_rows(coded.indices)
    said = types.take(firsts).to_pylist() if types is not None else [None] * len(firsts)
    tables = headers.take(firsts).to_pylist() if headers is not None else [None] * len(firsts)
    distinct = pa.array([_encoded_row(kind, table) for kind, table in zip(said, tables, strict=True)], pa.binary())
    columns.properties_at, columns.properties = var_length(distinct.take(coded.indices))
    if not columns.properties:
        columns.properties_at = b""


def _add_kept_properties(batch: pa.RecordBatch, columns: Columns) -> None:
    """Add properties in their own encodings, and those of rows without any in the native one. Raises Refused."""
    rows = batch.num_rows
    nothing: list[None] = [None] * rows
    encodings = batch.column("encoding").to_pylist()
    kept = _binary_column(batch, "properties").to_pylist()
    types = nothing
    if "content_type" in batch.schema.names:
        types = _binary_column(batch, "content_type").cast(pa.string()).to_pylist()
    headers = _headers(batch)
    tables = nothing if headers is None else headers.to_pylist()
    known: dict[tuple[object, ...], bytes] = {}
    found: list[bytes] = []
    for key in zip(encodings, kept, types, [tuple(table) if table else () for table in tables], strict=True):
        raw = known.get(key)
        if raw is None:
            encoding, own, content_type, pairs = key
            given = {name: value for name, value in pairs if value is not None}
            if encoding is None:
                raw = _encoded_row(content_type, list(given.items()) or None)
            else:
                raw = _added(encoding, own or b"", content_type, given)
            if len(known) >= BLOCK_ROWS:
                known.clear()
            known[key] = raw
        found.append(raw)
    columns.properties_at, columns.properties = var_length(pa.array(found, pa.binary()))
    if not columns.properties:
        columns.properties_at = b""


def _added(encoding: int, raw: bytes, content_type: str | None, headers: Mapping[str, str]) -> bytes:
    """Check properties, and add a content type and headers to them if there are any. Raises Refused."""
    properties = decode_properties(encoding, raw)
    if content_type is None and not headers:
        return raw
    properties.content_type = properties.content_type if content_type is None else content_type
    properties.headers.update(headers)
    return encode_properties(encoding, properties)


def _headers(batch: pa.RecordBatch) -> pa.MapArray | None:
    """The column of headers; None when it is missing or all null. Raises Refused when it is no map of texts."""
    if "headers" not in batch.schema.names or pa.types.is_null(batch.column("headers").type):
        return None
    headers = batch.column("headers")
    kind = headers.type
    if not pa.types.is_map(kind) or not (_is_text(kind.key_type) and _is_text(kind.item_type)):
        raise Refused(f"the column 'headers' is {kind}; it must be a map of text to text")
    return headers


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _key_of_text(texts: pa.Array) -> pa.Array:
    """A key for each text, with its length, so that joined keys stay distinct."""
    known = texts.cast(pa.large_string())
    length = pc.binary_length(known).cast(pa.large_string()).fill_null("-")
    return pc.binary_join_element_wise(length, known.fill_null(""), pa.scalar(":", pa.large_string()))


def _key_of_headers(headers: pa.MapArray) -> pa.Array:
    """A key for each map of headers."""
    nothing = pa.scalar("", pa.large_string())
    pairs = pc.binary_join_element_wise(_key_of_text(headers.keys), _key_of_text(headers.items), nothing)
    lists = pa.LargeListArray.from_arrays(headers.offsets.cast(pa.int64()), pairs)
    return pc.if_else(headers.is_null(), pa.scalar("-", pa.large_string()), pc.binary_join(lists, nothing))


def _encoded_row(content_type: str | None, headers: object) -> bytes:
    values: dict[str, object] = {}
    if content_type:
        values["content_type"] = content_type
    if isinstance(headers, list):
        values["headers"] = {name: value for name, value in headers if value is not None}
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode() if values else b""
