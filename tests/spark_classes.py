"""Makes the file of classes that every Java of a test run shares: `python -m tests.spark_classes FILE`. No tests here.

Starting Spark is mostly loading and checking its classes, and a test run starts it some thirty times. What a first
session loads while it does a little of everything is kept in the file, and costs the others half of what it did.
"""

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import tests.conftest  # noqa: F401  how Java runs in tests
from headrace.spark import HeadraceDataSource
from tests.integration.spark.conftest import Directory
from tests.spark_session import session


def make(file: Path) -> None:
    """Run Spark once and have its Java write the file when it ends. Where Java cannot, there is none."""
    draft = file.with_suffix(".draft")
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={draft} -Xlog:disable"
    spark = session()
    with tempfile.TemporaryDirectory() as folder:
        _work(spark, Path(folder))
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    java = gateway.proc
    spark.stop()
    java.stdin.close()
    if java.wait() == 0:
        draft.rename(file)


def _work(spark: SparkSession, folder: Path) -> None:
    """What pipelines do: read queues, in batches and as a stream, ask by SQL, keep rows as Parquet."""
    spark.dataSource.register(HeadraceDataSource)
    directory = Directory(folder / "data")
    directory.append("orders", 100)
    url, kept = directory.url, str(folder / "kept")
    spark.read.format("headrace").option("url", url).load("orders").createOrReplaceTempView("orders")
    spark.sql("SELECT topic, count(*) AS n, max(payload) FROM orders GROUP BY topic ORDER BY n").collect()
    stream = spark.readStream.format("headrace").option("url", url).load("orders")
    writer = stream.writeStream.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    writer.start(kept).awaitTermination()
    rows = spark.read.parquet(kept)
    rows.mapInPandas(lambda parts: parts, rows.schema).join(spark.table("orders"), "offset").count()
    directory.engine.close()


if __name__ == "__main__":
    make(Path(sys.argv[1]).resolve())
