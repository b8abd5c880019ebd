"""The demo's Spark pipeline, in a process of its own: the mean temperature per site, over the stream as it grows."""

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from headrace.spark.interpreter import ensure_python
from headrace.spark.source import HeadraceDataSource

_SECONDS = 5


def main(data: str, scratch: str) -> None:
    """Print the mean of each site every few seconds, until the process ends."""
    home = Path(scratch)
    os.environ.pop("PYSPARK_PYTHON", None)  # that Python may be without our packages
    ensure_python(home)
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # Spark's Pythons import nothing from the current directory
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[1]").appName("headrace-demo")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(HeadraceDataSource)
    reading = f.from_json(f.col("payload").cast("string"), "site string, device string, celsius double")
    stream = spark.readStream.format("headrace").option("url", Path(data).as_uri()).load("telemetry")
    stream.select(reading.alias("r")).writeStream.foreachBatch(_show).option(
        "checkpointLocation", str(home / "checkpoint")
    ).trigger(processingTime=f"{_SECONDS} seconds").start().awaitTermination()


def _show(batch: DataFrame, number: int) -> None:
    rows = (
        batch.groupBy("r.site")
        .agg(f.count("*").alias("n"), f.round(f.avg("r.celsius"), 2).alias("mean"), f.max("r.celsius").alias("most"))
        .orderBy("site")
        .collect()
    )
    for row in rows:
        print(
            f"spark: {row.site:<8} {row.n:>5} readings, mean {row['mean']:.2f} C, at most {row.most:.2f} C", flush=True
        )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
