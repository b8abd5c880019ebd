"""Blocks as Arrow record batches whose arrays point into the block. Imports pyarrow, so import it where used."""

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from headrace.storage.arrow import SCHEMA, columns_of_sources, counting
from headrace.storage.local.block import EXPIRES, NOT_BEFORE, PRIORITY, PROPERTIES, SOURCE_INDEX, Block


def batch_of_block(
    block: Block, start: int, stop: int, names: Sequence[str] = SCHEMA.names, base: int = -1
) -> pa.RecordBatch:
    """The rows `start` up to but not including `stop` of a block, without copying payloads; only the columns named.

    `base` is the offset of the first of these rows where the block itself says another.
    """
    count = block.count
    body = pa.py_buffer(block.body)
    index = None
    if block.columns & SOURCE_INDEX:
        index = pa.Array.from_buffers(pa.int32(), count, [None, body.slice(block.at_source_index, count * 4)])
    columns = columns_of_sources(block.sources(), index, count, names)
    if "offset" in names:
        first = block.base if base < 0 else base - start
        columns["offset"] = counting(first, first + count)
    for name in names:
        if name not in columns:
            columns[name] = _COLUMNS[name](block, body)
    schema = SCHEMA if names is SCHEMA.names else pa.schema([SCHEMA.field(name) for name in names])
    batch = pa.RecordBatch.from_arrays([columns[name] for name in names], schema=schema)
    return batch if stop - start == count else batch.slice(start, stop - start)


def _timestamps(block: Block, body: pa.Buffer) -> pa.Array:
    return _times(body, 0, block.count)


def _payloads(block: Block, body: pa.Buffer) -> pa.Array:
    return _binary(body, block.at_payload_at, block.at_payloads, block.count)


def _expiries(block: Block, body: pa.Buffer) -> pa.Array:
    return _optional_times(body, block.at_expires, block.count, bool(block.columns & EXPIRES))


def _not_before(block: Block, body: pa.Buffer) -> pa.Array:
    return _optional_times(body, block.at_not_before, block.count, bool(block.columns & NOT_BEFORE))


def _priorities(block: Block, body: pa.Buffer) -> pa.Array:
    if block.columns & PRIORITY:
        return pa.Array.from_buffers(pa.uint8(), block.count, [None, body.slice(block.at_priority, block.count)])
    return pa.repeat(pa.scalar(0, pa.uint8()), block.count)


def _properties(block: Block, body: pa.Buffer) -> pa.Array:
    if block.columns & PROPERTIES:
        return _binary(body, block.at_properties_at, block.at_properties, block.count)
    return pa.repeat(pa.scalar(b"", pa.binary()), block.count)


_COLUMNS: Final[dict[str, Callable[[Block, pa.Buffer], pa.Array]]] = {
    "timestamp": _timestamps,
    "payload": _payloads,
    "expires_at": _expiries,
    "not_before": _not_before,
    "priority": _priorities,
    "properties": _properties,
}


def _times(body: pa.Buffer, at: int, count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), count, [None, body.slice(at, count * 8)])


def _optional_times(body: pa.Buffer, at: int, count: int, present: bool) -> pa.Array:
    """Times of which 0 means none."""
    kind = pa.timestamp("us", tz="UTC")
    if not present:
        return pa.nulls(count, kind)
    import pyarrow.compute as pc

    numbers = pa.Array.from_buffers(pa.int64(), count, [None, body.slice(at, count * 8)])
    return pc.if_else(pc.equal(numbers, 0), pa.scalar(None, pa.int64()), numbers).cast(kind)


def _binary(body: pa.Buffer, at_bounds: int, at_bytes: int, count: int) -> pa.Array:
    bounds = body.slice(at_bounds, (count + 1) * 4)
    return pa.Array.from_buffers(pa.binary(), count, [None, bounds, body.slice(at_bytes)])
