"""Several pipelines in one session, started in order and run together. What each does is its own file's."""

from collections.abc import Sequence

from pyspark.sql import SparkSession

from headrace.spark.pipelines.archive import ArchiveSettings, start_archive
from headrace.spark.pipelines.assign import AssignSettings, start_assign
from headrace.spark.pipelines.file import PipelineSettings
from headrace.spark.pipelines.progress import Progress, Tell, Watch, say_nothing, wait
from headrace.spark.pipelines.sql import start_sql


def run_together(
    spark: SparkSession, pipelines: Sequence[PipelineSettings], tell: Tell = say_nothing
) -> list[Progress]:
    """Run until all have ended. One that fails or cannot be started stops the others; raises Refused with its name."""
    watches: list[Watch] = []
    try:
        for pipeline in pipelines:
            watches.append(_start(spark, pipeline))
    except BaseException:
        for watch in watches:
            watch.query.stop()
        raise
    return wait(watches, tell)


def _start(spark: SparkSession, pipeline: PipelineSettings) -> Watch:
    match pipeline:
        case ArchiveSettings():
            return start_archive(spark, pipeline)
        case AssignSettings():
            return start_assign(spark, pipeline)
        case _:
            return start_sql(spark, pipeline)
