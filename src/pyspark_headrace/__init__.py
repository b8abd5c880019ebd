"""Spark looks for data sources in modules named pyspark_*. The source is headrace.spark's."""

from headrace.spark.source import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
