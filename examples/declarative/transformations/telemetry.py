"""Readings of a queue become a table; the hot ones go to another queue. HEADRACE_URL names the broker."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

dp.create_sink("alerts", "headrace", {"path": "alerts"})


@dp.table
def readings() -> DataFrame:
    """Every reading, with the fields of its payload."""
    spark = SparkSession.active()
    messages = spark.readStream.format("headrace").load("telemetry")
    fields = "from_json(CAST(payload AS STRING), 'device STRING, temperature DOUBLE') AS body"
    return messages.selectExpr("timestamp", fields).select("timestamp", "body.*")


@dp.append_flow(target="alerts")
def hot() -> DataFrame:
    """The readings above 90 degrees, as JSON."""
    spark = SparkSession.active()
    hot_ones = spark.readStream.table("readings").where("temperature > 90")
    return hot_ones.selectExpr("to_json(struct(device, temperature)) AS payload")
