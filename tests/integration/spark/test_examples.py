"""What docs/spark.md shows works: every block in it is run, against a real broker and a real session."""

import re
import time
from pathlib import Path

import pika
import pytest
from pyspark.sql import SparkSession

from tests.integration.spark.conftest import Broker

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "spark.md"
WAIT_SECONDS = 120


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_what_the_readme_shows_runs(spark: SparkSession, broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    broker.publish("orders", 3)
    (text,) = re.findall(r"^```py\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)

    exec(text.replace("http://localhost:15672", broker.url), {"spark": spark})

    assert re.search(r"\|\s*orders\|\s*3\|", capsys.readouterr().out)


@pytest.mark.parametrize("text", blocks("py bulk"), ids=["pandas", "polars", "duckdb"])
def test_the_bulk_endpoints_are_used_in_a_few_lines(
    text: str, broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.publish("orders", 3)
    broker.declare("loud")

    exec(text, {"URL": f"http://127.0.0.1:{broker.server.http_port}"})

    assert capsys.readouterr().out
    assert broker.payloads("loud") == (["ORDERS 0", "ORDERS 1", "ORDERS 2"] if "loud" in text else [])


def test_the_first_lines_of_the_page_run(
    spark: SparkSession, broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    channel = broker.declare("orders", "alerts", **{"x-max-priority": 9})
    for priority in (1, 9):
        properties = pika.BasicProperties(priority=priority)
        channel.basic_publish("", "orders", f"priority {priority}".encode(), properties)
    (text,) = blocks("py")
    text = text.replace("http://localhost:15672", broker.url).replace('"cp"', repr(str(tmp_path / "cp")))

    exec(text, {"spark": spark})

    assert "orders" in capsys.readouterr().out
    deadline = time.monotonic() + WAIT_SECONDS
    while broker.payloads("alerts") != ["priority 9"]:
        assert time.monotonic() < deadline, broker.payloads("alerts")
        time.sleep(0.2)
    for query in spark.streams.active:
        query.stop()
