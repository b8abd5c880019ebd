"""Blocks as Arrow record batches whose arrays point into the block. Imports pyarrow, so import it where used."""

import pyarrow as pa

from headrace.storage.arrow import SCHEMA, columns_of_sources
from headrace.storage.local.block import EXPIRES, NOT_BEFORE, PRIORITY, PROPERTIES, SOURCE_INDEX, Block


def batch_of_block(block: Block, start: int, stop: int) -> pa.RecordBatch:
    """The rows `start` up to but not including `stop` of a block, without copying payloads."""
    count = block.count
    body = pa.py_buffer(block.body)
    index = None
    if block.columns & SOURCE_INDEX:
        index = pa.Array.from_buffers(pa.int32(), count, [None, body.slice(block.at_source_index, count * 4)])
    columns = columns_of_sources(block.sources(), index, count)
    columns["offset"] = pa.array(range(block.base, block.next), type=pa.int64())
    columns["timestamp"] = _times(body, 0, count)
    columns["payload"] = _binary(body, block.at_payload_at, block.at_payloads, count)
    columns["expires_at"] = _optional_times(body, block.at_expires, count, bool(block.columns & EXPIRES))
    columns["not_before"] = _optional_times(body, block.at_not_before, count, bool(block.columns & NOT_BEFORE))
    if block.columns & PRIORITY:
        columns["priority"] = pa.Array.from_buffers(pa.uint8(), count, [None, body.slice(block.at_priority, count)])
    else:
        columns["priority"] = pa.repeat(pa.scalar(0, pa.uint8()), count)
    if block.columns & PROPERTIES:
        columns["properties"] = _binary(body, block.at_properties_at, block.at_properties, count)
    else:
        columns["properties"] = pa.repeat(pa.scalar(b"", pa.binary()), count)
    batch = pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)
    return batch if stop - start == count else batch.slice(start, stop - start)


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
