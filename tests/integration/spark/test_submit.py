"""`spark-submit --py-files` of one's own program to a standalone cluster: both workers read, batches and streams.

The executors' Python has no Headrace; the driver's has, since Spark starts streaming sources there.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.spark.pipelines.session import pack
from tests.integration.spark.conftest import Broker, Directory, Filled
from tests.integration.spark.test_cluster import WAIT_SECONDS, Cluster
from tests.integration.spark.test_store import Store

MESSAGES = 4000
PROGRAM = """
import json, os, sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

url, folder = sys.argv[1:]
spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()

@F.udf("string")
def place(offset):
    return os.environ["SPARK_EXECUTOR_DIRS"]  # its own for each executor

@F.udf("boolean")
def has_ours(offset):
    return any(path.endswith("headrace.zip") for path in sys.path)

def told(frame):
    (row,) = frame.agg(
        F.count("*").alias("rows"), F.countDistinct("offset").alias("offsets"), F.max("offset").alias("last"),
        F.size(F.collect_set(place("offset"))).alias("executors"), F.every(has_ours("offset")).alias("shipped"),
    ).collect()
    return row.asDict()

source = {"url": url, "minPartitions": "8"}
found = {"batch": told(spark.read.format("headrace").options(**source).load("orders"))}
stream = spark.readStream.format("headrace").options(**source).load("orders")
query = stream.select("offset", place("offset").alias("place")).writeStream.format("parquet")
query = query.option("path", f"{folder}/rows").option("checkpointLocation", f"{folder}/cp")
query.trigger(availableNow=True).start().awaitTermination()
rows = spark.read.parquet(f"{folder}/rows")
found["stream"] = rows.agg(
    F.count("*").alias("rows"), F.countDistinct("offset").alias("offsets"),
    F.countDistinct("place").alias("executors"),
).first().asDict()
with open(f"{folder}/found.json", "w") as out:
    json.dump(found, out)
"""

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("cluster"))
    yield running
    running.stop()


def submit(cluster: Cluster, folder: Path, url: str) -> dict[str, dict[str, object]]:
    """Run the program on the cluster, as people submit one; return what it found."""
    folder.mkdir()
    program = folder / "program.py"
    program.write_text(PROGRAM)
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1",  # both executors are there before tasks are given out
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
        "spark.locality.wait": "0",
    }
    words = [f"{cluster.environment['SPARK_HOME']}/bin/spark-submit", "--master", cluster.master]
    words += ["--py-files", str(pack(folder))]
    words += [word for pair in settings.items() for word in ("--conf", "=".join(pair))]
    environment = {**cluster.environment, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    ended = subprocess.run(
        [*words, str(program), url, str(folder)],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=WAIT_SECONDS * 2, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4000:]
    found: dict[str, dict[str, object]] = json.loads((folder / "found.json").read_text())
    return found


def check(found: dict[str, dict[str, object]], messages: int) -> None:
    whole = {"rows": messages, "offsets": messages, "executors": 2}
    assert found["batch"] == {**whole, "last": messages - 1, "shipped": True}
    assert found["stream"] == whole


def fill(filled: Filled) -> None:
    """Messages in many blocks, so that there is something to share."""
    for _ in range(20):
        filled.append("orders", MESSAGES // 20, size=300)


def test_a_broker_is_read_by_both_workers(cluster: Cluster, broker: Broker, tmp_path: Path) -> None:
    broker.publish("orders", 200)

    check(submit(cluster, tmp_path / "job", broker.url), 200)


def test_a_store_is_read_by_both_workers_without_a_broker(cluster: Cluster, tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}/store")
    fill(store)
    store.engine.close()

    check(submit(cluster, tmp_path / "job", store.url), MESSAGES)


def test_a_data_directory_is_read_by_both_workers(cluster: Cluster, directory: Directory, tmp_path: Path) -> None:
    fill(directory)
    directory.reopen()

    check(submit(cluster, tmp_path / "job", directory.url), MESSAGES)
