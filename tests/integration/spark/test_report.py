"""The report: its numbers are those of the queues, and its page needs no other file."""

from pathlib import Path

import pandas as pd
from pyspark.sql import SparkSession

from headrace.spark.pipelines.endpoint import Endpoint
from headrace.spark.pipelines.report import ReportSettings, run_report
from tests.integration.spark.conftest import Broker, Directory


def test_a_report_has_the_numbers_of_the_queues(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"}
    channel = broker.declare("orders", **arguments)
    broker.declare("graves")
    channel.queue_bind("orders", "amq.topic", "orders.#")
    for number in range(12):
        channel.basic_publish("amq.topic", f"orders.{'eu' if number % 3 else '<us>'}", b"x" * (number + 1))
    for number in range(6):
        method, _, _ = channel.basic_get("orders")
        channel.basic_nack(method.delivery_tag, requeue=number < 2)  # twice again, four given up
    channel.basic_get("orders")
    broker.wait_for_start("orders", 4)

    done = run_report(spark, ReportSettings(Endpoint(broker.url), "*", tmp_path / "report"))

    tables = {name: table.to_dict("records") for name, table in done.tables.items()}
    assert done.messages == 12
    assert sum(row["messages"] for row in tables["throughput"]) == 12
    assert [(row["queue"], row["messages"], row["most_bytes"]) for row in tables["sizes"]] == [
        ("graves", 4, 4),
        ("orders", 8, 12),
    ]
    assert [(row["topic"], row["messages"]) for row in tables["topics"] if row["queue"] == "orders"] == [
        ("orders.eu", 6),
        ("orders.<us>", 2),
    ]
    assert [(row["origin"], row["reason"], row["messages"]) for row in tables["dead_letters"]] == [
        ("orders", "rejected", 4)
    ]
    (group,) = [row for row in tables["groups"] if row["queue"] == "orders"]
    assert (group["lag"], group["pending"], group["redelivered"]) == (8, 1, 2)
    assert [(row["queue"], row["messages"]) for row in tables["waiting"]] == [("orders", 8)]
    assert tables["attempts"] == [{"queue": "orders", "group": group["name"], "attempts": 1, "messages": 1}]

    page = done.page.read_text()
    assert "orders.&lt;us&gt;" in page
    assert "<us>" not in page
    assert not any(word in page for word in ("<script", "src=", "@import", "url(http"))
    assert len(pd.read_parquet(tmp_path / "report" / "tables" / "topics.parquet")) == len(tables["topics"])
    names = {path.name for path in (tmp_path / "report" / "plots").iterdir()}
    assert {"throughput.svg", "throughput.png", "lag.svg", "dead_letters.svg", "waiting.png"} <= names


def test_a_report_of_a_directory_and_of_nothing(spark: SparkSession, directory: Directory, tmp_path: Path) -> None:
    directory.append("orders", 50)
    endpoint = Endpoint(directory.url)

    whole = run_report(spark, ReportSettings(endpoint, "orders", tmp_path / "report"))
    later = ReportSettings(endpoint, "orders", tmp_path / "report", starting="2100-01-01")
    empty = run_report(spark, later)

    assert (whole.messages, len(whole.tables["groups"])) == (50, 0)
    assert empty.messages == 0
    assert "no messages in this period" in empty.page.read_text()
    assert list((tmp_path / "report" / "plots").iterdir()) == []
