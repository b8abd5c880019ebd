"""The data source `headrace`: what Spark asks for first. Reading and writing are in the other files."""

from typing import final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from headrace.spark.columns import read_schema
from headrace.spark.options import read_options
from headrace.spark.reader import BatchReader
from headrace.spark.stream import StreamReader


@final
class HeadraceDataSource(DataSource):
    """Queues as tables: `spark.read.format("headrace").option("url", "http://localhost:15672").load("orders")`."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType:
        return read_schema(read_options(self.options).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return StreamReader(read_options(self.options), schema)
