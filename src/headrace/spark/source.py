"""The data source `headrace`: the entry for Spark. Reading and writing are in the other files.

Spark starts a Python of its own for every stream, so each method imports only its own modules.
"""

from typing import final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headrace.errors import Refused
from headrace.spark.options import read_options, write_options
from headrace.spark.place import read_schema


@final
class HeadraceDataSource(DataSource):
    """Queues as tables: `spark.read.format("headrace").option("url", "http://localhost:15672").load("orders")`."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType:
        options = read_options(self.options)
        return read_schema(options.headers, options.properties)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        if options.is_work:
            from headrace.spark.work import WorkReader

            return WorkReader(options, schema)
        from headrace.spark.reader import BatchReader

        return BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = read_options(self.options)
        if options.is_work:
            from headrace.spark.work import WorkStreamReader

            return WorkStreamReader(options, schema)
        from headrace.spark.stream import stream_reader

        return stream_reader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise Refused('messages are added to a queue, never put in place of others: use .mode("append")')
        from headrace.spark.writer import BatchWriter

        return BatchWriter(write_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        if overwrite:
            raise Refused('messages are added to a queue, never put in place of others: use .outputMode("append")')
        from headrace.spark.writer import StreamWriter

        return StreamWriter(write_options(self.options), schema)
