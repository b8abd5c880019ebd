"""Messages for many logs, put together log by log: one block for a whole commit. Imports pyarrow."""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.model import Source
from headrace.storage.local.block import SOURCE_INDEX, Block
from headrace.storage.local.block_arrow import batch_of_block
from headrace.storage.local.block_columns import Columns, assemble_block
from headrace.storage.local.column_bytes import bytes_of, first_rows, var_length
from headrace.storage.local.encoded import EncodedRows

_STORED: Final = ("timestamp", "expires_at", "not_before", "priority", "properties", "payload")
_OF_SOURCE: Final = ("topic", "exchange", "client_id", "protocol", "encoding")
_NEVER: Final = (1 << 63) - 1


def merge_by_log(parts: Sequence[tuple[Block, pa.Array]], names: Sequence[str]) -> list[tuple[str, EncodedRows]]:
    """The messages of each log, in the order they have; a part says for every row which of the names it is for.

    Raises Refused when they are too many for a block.
    """
    if not parts:
        return []
    target = pa.concat_arrays([index for _, index in parts])
    order = pc.sort_indices(target)  # a stable sort
    table = pa.Table.from_batches([batch_of_block(block, 0, block.count, _STORED) for block, _ in parts])
    sources, index = _sources([block for block, _ in parts])
    return _runs(table.take(order), sources, index.take(order), target.take(order), names, 0)


def copy_to_logs(
    table: pa.Table, rows: pa.Array, target: pa.Array, names: Sequence[str], time_us: int
) -> list[tuple[str, EncodedRows]]:
    """Copies of messages for each log, as published at `time_us`: of this row of the table for that one of the names.

    The table has the columns of storage/arrow.py. Raises Refused when they are too many for a block.
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
) -> list[tuple[str, EncodedRows]]:
    """Rows that are in order as a block, and the run of them that each log has; times are their own, or `time_us`."""
    rows = table.combine_chunks()
    payloads = rows.column("payload").combine_chunks()
    columns = Columns(*var_length(payloads))
    if not time_us:
        columns.times = bytes_of(rows.column("timestamp").combine_chunks().cast(pa.int64()))
    expires = _times(rows, "expires_at")
    columns.expires = _unless_zero(expires)
    columns.not_before = _unless_zero(_times(rows, "not_before"))
    columns.priority = _unless_zero(rows.column("priority").combine_chunks())
    properties_at, columns.properties = var_length(rows.column("properties").combine_chunks())
    columns.properties_at = properties_at if columns.properties else b""
    if len(sources) > 1:
        columns.source_index = bytes_of(index)
    block = assemble_block(rows.num_rows, time_us, sources, columns)
    return _rows_by_log(block, target, names, payloads, expires)


def _rows_by_log(
    block: Block, target: pa.Array, names: Sequence[str], payloads: pa.Array, expires: pa.Array
) -> list[tuple[str, EncodedRows]]:
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


def _sources(blocks: Sequence[Block]) -> tuple[list[Source], pa.Array]:
    """All sources, and which of them each row has."""
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
    """The same for rows that have the columns of their sources."""
    index = pa.repeat(pa.scalar(0, pa.int32()), table.num_rows)
    for name in _OF_SOURCE:
        coded = table.column(name).combine_chunks().dictionary_encode()
        if len(coded.dictionary) > 1:  # numbered anew each time, so that no number is larger than there are rows
            both = pc.add(pc.multiply(index.cast(pa.int64()), len(coded.dictionary)), coded.indices.cast(pa.int64()))
            index = both.dictionary_encode().indices
    firsts = first_rows(index)
    values = [table.column(name).take(firsts).to_pylist() for name in _OF_SOURCE]
    return [Source(*each) for each in zip(*values, strict=True)], index


def _times(rows: pa.Table, name: str) -> pa.Array:
    return rows.column(name).combine_chunks().cast(pa.int64()).fill_null(0)


def _unless_zero(column: pa.Array) -> bytes:
    """The values of a column; nothing when all are 0."""
    return bytes_of(column) if pc.max(column).as_py() else b""
