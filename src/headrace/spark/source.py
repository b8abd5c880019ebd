"""The data source `headrace`: what Spark asks for first. Reading and writing are in the other files."""

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
from headrace.spark.columns import read_schema
from headrace.spark.options import read_options, write_options
from headrace.spark.reader import BatchReader
from headrace.spark.stream import StreamReader
from headrace.spark.work import WorkReader
from headrace.spark.work_stream import WorkStreamReader
from headrace.spark.writer import BatchWriter, StreamWriter


@final
class HeadraceDataSource(DataSource):
    """Queues as tables: `spark.read.format("headrace").option("url", "http://localhost:15672").load("orders")`."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType:
        return read_schema(read_options(self.options).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        return WorkReader(options, schema) if options.is_work else BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = read_options(self.options)
        return WorkStreamReader(options, schema) if options.is_work else StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise Refused('messages are added to a queue, never put in place of others: use .mode("append")')
        return BatchWriter(write_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        if overwrite:
            raise Refused('messages are added to a queue, never put in place of others: use .outputMode("append")')
        return StreamWriter(write_options(self.options), schema)
