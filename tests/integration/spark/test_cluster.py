"""A standalone cluster on this machine: executors, driver and broker are killed while a query copies a queue.

Whatever is killed, what comes out equals what went in, each message once.
"""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from headrace.spark.java import ensure_java
from tests.integration.spark.conftest import Broker

WAIT_SECONDS = 150.0
DRIVER = """
import sys
from pyspark.sql import SparkSession

master, url, checkpoint, once = sys.argv[1:]
settings = {
    "spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m", "spark.executor.cores": "1",
    "spark.cores.max": "2", "spark.ui.enabled": "false", "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "2", "spark.task.maxFailures": "8",
}
builder = SparkSession.builder.master(master)
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
reader = spark.readStream.format("headrace").option("url", url).option("maxOffsetsPerTrigger", "60")
frame = reader.option("minPartitions", "2").load("in").select("payload")
writer = frame.writeStream.format("headrace").option("url", url).option("checkpointLocation", checkpoint)
query = (writer.trigger(availableNow=True) if once == "once" else writer).start("out")
print("started", flush=True)
query.awaitTermination()
"""


class Cluster:
    """A master and two workers, as processes."""

    def __init__(self, folder: Path) -> None:
        ensure_java()
        self._folder = folder
        self.environment = {
            **os.environ,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        self._start("master.Master", "--port", "0")
        self.master = self._wait_for_line(r"Starting Spark master at (spark://\S+)", 1)[0]
        for number in range(2):
            work = str(folder / f"worker-{number}")
            self._start("worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", work, self.master)
        self._wait_for_line("Registering worker", 2)

    def _start(self, role: str, *arguments: str) -> None:
        command = [f"{self.environment['SPARK_HOME']}/bin/spark-class", f"org.apache.spark.deploy.{role}"]
        address = ["--host", "127.0.0.1", "--webui-port", "0"]
        with (self._folder / f"{len(self._processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *address, *arguments], stdout=log, stderr=log, env=self.environment, cwd=self._folder
            )
        self._processes.append(process)

    def _wait_for_line(self, pattern: str, count: int) -> list[str]:
        """What the master says, so many times."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            log = (self._folder / "0.log").read_text()
            found = re.findall(pattern, log)
            if len(found) >= count:
                return found
            assert time.monotonic() < deadline, log[-2000:]
            time.sleep(0.1)

    def executors(self) -> list[int]:
        """The executors' process ids: the workers' children."""
        found: list[int] = []
        for worker in self._processes[1:]:
            path = Path(f"/proc/{worker.pid}/task")
            for task in path.iterdir():
                with contextlib.suppress(FileNotFoundError):  # a thread that ended
                    found += [int(pid) for pid in (task / "children").read_text().split()]
        return found

    def driver(self, broker: Broker, checkpoint: Path, once: bool) -> subprocess.Popen[bytes]:
        words = [self.master, broker.url, str(checkpoint), "once" if once else "on"]
        with (self._folder / "driver.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", DRIVER, *words],
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )

    def log(self) -> str:
        return (self._folder / "driver.log").read_text()[-3000:]

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(30)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    running = Cluster(folder)
    yield running
    running.stop()


def wait_for(broker: Broker, least: int, cluster: Cluster) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while len(broker.payloads("out")) < least:
        assert time.monotonic() < deadline, cluster.log()
        time.sleep(0.1)


def kill_driver(driver: subprocess.Popen[bytes]) -> None:
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait(30)


@pytest.mark.timeout(400)
def test_what_comes_out_is_what_went_in_whatever_is_killed(cluster: Cluster, broker: Broker, tmp_path: Path) -> None:
    chance = random.Random(os.environ.get("HEADRACE_SEED", "7"))
    ports = {"http_port": broker.server.http_port, "amqp_port": broker.server.port}
    checkpoint = tmp_path / "checkpoint"
    broker.declare("out")
    broker.publish("in", 300)
    driver = cluster.driver(broker, checkpoint, once=False)
    wait_for(broker, 60, cluster)

    for pid in cluster.executors()[:1]:
        os.kill(pid, signal.SIGKILL)
    broker.publish("in", 300, 300)
    time.sleep(chance.uniform(0, 1))
    broker.server.kill()
    broker.server.start(**ports)
    wait_for(broker, 360, cluster)
    broker.publish("in", 300, 600)
    time.sleep(chance.uniform(0, 1))
    kill_driver(driver)

    last = cluster.driver(broker, checkpoint, once=True)
    assert last.wait(WAIT_SECONDS) == 0, cluster.log()

    assert sorted(broker.payloads("out")) == sorted(f"in {number}" for number in range(900))
    offsets = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    assert json.loads(offsets[-1].read_text().splitlines()[-1]) == {"in": 900}
