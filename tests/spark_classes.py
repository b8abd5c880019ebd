"""Makes the file of classes that every Java of a test run shares: `python -m tests.spark_classes FILE`. No tests here.

Starting Spark is mostly loading and checking its classes, and a test run starts it four dozen times. What a session
loads that computes something, writes a table and streams it is kept in the file.
"""

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import tests.conftest  # noqa: F401  how Java runs in tests
from tests.spark_session import session


def make(file: Path) -> None:
    """Start Spark once and have its Java write the file when it ends. Where Java cannot, there is none."""
    draft = file.with_suffix(".draft")
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={draft} -Xlog:disable"
    spark = session()
    _exercise(spark)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    java = gateway.proc
    spark.stop()
    java.stdin.close()
    if java.wait() == 0:
        draft.rename(file)


def _exercise(spark: SparkSession) -> None:
    frame = spark.range(10).selectExpr("id % 3 AS key", "CAST(id AS STRING) AS value")
    frame.groupBy("key").count().orderBy("key").collect()
    with tempfile.TemporaryDirectory() as directory:
        frame.write.parquet(f"{directory}/table")
        stream = spark.readStream.schema(frame.schema).parquet(f"{directory}/table").writeStream
        stream = stream.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True)
        stream.foreachBatch(_collect).start().awaitTermination()


def _collect(batch: DataFrame, _: int) -> None:
    batch.collect()


if __name__ == "__main__":
    make(Path(sys.argv[1]).resolve())
