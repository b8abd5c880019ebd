"""Queues as Spark DataFrames: the data source `headrace`. Imports pyspark, and nothing of the server."""

from headrace.spark.source import HeadraceDataSource
from headrace.spark.work import Work

__all__ = ["HeadraceDataSource", "Work"]
