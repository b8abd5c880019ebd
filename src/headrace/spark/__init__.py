"""Queues as Spark DataFrames: the data source `headrace`. Imports pyspark, nothing of the server."""

from typing import TYPE_CHECKING

from headrace.errors import missing_extra

try:
    from headrace.spark.source import HeadraceDataSource
except ImportError as error:
    raise ImportError(str(missing_extra("headrace.spark", "spark,java", error)), name=error.name) from error

if TYPE_CHECKING:
    from headrace.spark.work import Work

__all__ = ["HeadraceDataSource", "Work"]


def __getattr__(name: str) -> object:
    """Import `Work` on first use: processes that only read do without it."""
    if name != "Work":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from headrace.spark.work import Work

    return Work
