"""Blocks whose rows are for many logs, put together log by log: one block for a whole commit. Imports pyarrow."""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.model import Source
from headrace.storage.local.block import SOURCE_INDEX, Block, Columns, assemble_block
from headrace.storage.local.block_arrow import batch_of_block
from headrace.storage.local.column_bytes import bytes_of, var_length
from headrace.storage.local.encoded import EncodedRows

_STORED: Final = ("timestamp", "expires_at", "not_before", "priority", "properties", "payload")
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
    rows = table.take(order).combine_chunks()
    payloads = rows.column("payload").combine_chunks()
    columns = Columns(*var_length(payloads))
    columns.times = bytes_of(rows.column("timestamp").combine_chunks().cast(pa.int64()))
    expires = _times(rows, "expires_at")
    columns.expires = _unless_zero(expires)
    columns.not_before = _unless_zero(_times(rows, "not_before"))
    columns.priority = _unless_zero(rows.column("priority").combine_chunks())
    properties_at, columns.properties = var_length(rows.column("properties").combine_chunks())
    columns.properties_at = properties_at if columns.properties else b""
    sources, index = _sources([block for block, _ in parts])
    if len(sources) > 1:
        columns.source_index = bytes_of(index.take(order))
    block = assemble_block(len(order), 0, sources, columns)
    return _runs(block, target.take(order), names, payloads, expires)


def _runs(
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


def _times(rows: pa.Table, name: str) -> pa.Array:
    return rows.column(name).combine_chunks().cast(pa.int64()).fill_null(0)


def _unless_zero(column: pa.Array) -> bytes:
    """The values of a column; nothing when all are 0."""
    return bytes_of(column) if pc.max(column).as_py() else b""
