"""Arrow columns as a block has them: as bytes, and as numbers of what comes more than once. Imports pyarrow."""

import pyarrow as pa
import pyarrow.compute as pc

from headrace.storage.arrow import counting


def bytes_of(column: pa.Array) -> bytes:
    """The values of a column of numbers, as they stand in memory."""
    width = column.type.bit_width // 8
    raw: bytes = column.buffers()[1].slice(column.offset * width, len(column) * width).to_pybytes()
    return raw


def var_length(column: pa.Array) -> tuple[bytes, bytes]:
    """Where each value starts, and all of them."""
    _, bounds, data = column.buffers()
    at = pa.Array.from_buffers(pa.int32(), len(column) + 1, [None, bounds], offset=column.offset)
    first, last = at[0].as_py(), at[-1].as_py()
    if first:
        at = pc.subtract(at, pa.scalar(first, pa.int32()))
    values: bytes = data.slice(first, last - first).to_pybytes() if data is not None and last > first else b""
    return bytes_of(at), values


def first_rows(indices: pa.Array) -> pa.Array:
    """In which row each number comes first; numbers are given as they come."""
    rows = pa.table({"number": indices, "row": counting(0, len(indices))})
    return rows.group_by("number", use_threads=False).aggregate([("row", "min")]).column("row_min")
