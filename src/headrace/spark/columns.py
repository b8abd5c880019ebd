"""The columns of a queue in Spark's types, and which of them a read gives. storage/frame.py has Arrow's."""

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from headrace.errors import Refused
from headrace.storage.frame import FRAME, HEADERS


def read_schema(include_headers: bool) -> StructType:
    """All columns of a queue; headers only when asked for, since they cost the most."""
    names = [name for name in FRAME.names if include_headers or name != HEADERS]
    return schema_of(names)


def schema_of(names: Sequence[str]) -> StructType:
    """These columns of a queue."""
    return from_arrow_schema(pa.schema([FRAME.field(name) for name in names]))


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns that were asked for, as Arrow has to deliver them. Raises Refused for others than a queue has."""
    wanted = to_arrow_schema(schema, timezone="UTC")
    for field in wanted:
        if field.name not in FRAME.names:
            raise Refused(f"a queue has no column {field.name!r}; it has {', '.join(FRAME.names)}")
        own = FRAME.field(field.name)
        if field.type != own.type:
            spark_type = from_arrow_schema(pa.schema([own]))[field.name].dataType.simpleString()
            raise Refused(f"column {field.name!r} of a queue is {spark_type}; the schema asks for {field.type}")
        if own.nullable and not field.nullable:
            raise Refused(f"column {field.name!r} of a queue may be null; the schema says that it is not")
    return wanted
