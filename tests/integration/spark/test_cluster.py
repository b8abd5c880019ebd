"""A standalone cluster on this machine, whose executors know nothing of us but what the command ships to them.

Executors, driver and broker are killed under three pipelines at once. Whatever is killed, what comes out equals what
went in, each message once.
"""

import contextlib
import json
import os
import random
import re
import signal
import site
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
import pyspark
import pytest

from headrace.spark.java import ensure_java
from tests.integration.spark.conftest import Broker

WAIT_SECONDS = 300.0
OURS = re.compile(r"_*editable.*|headrace.*|pyspark_headrace.*|.*\.pth", re.IGNORECASE)
PIPELINES = """
pipelines:
  copy: {{from: in, to: out, schema: none, max_messages: 60, sql: SELECT payload FROM messages}}
  keep: {{type: archive, from: in, to: {archive}, every: 1 second}}
  split:
    type: assign
    from: in
    every: 1 second
    filters: {{some: "offset BETWEEN 100 AND 399", all: "offset >= 0"}}
"""


def python_without_us(folder: Path) -> Path:
    """A Python with all packages that are installed here, except ours."""
    packages = folder / "packages"
    packages.mkdir()
    for place in site.getsitepackages():
        for path in Path(place).iterdir():
            if not OURS.fullmatch(path.name):
                (packages / path.name).symlink_to(path)
    python = folder / "python"
    # Before Spark's own archives, from which every Python would compile pyspark first.
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}:$PYTHONPATH" exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return python


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
            "PYSPARK_PYTHON": str(python_without_us(folder)),
            "PYTHONPATH": "",
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

    def driver(self, file: Path, broker: Broker, *more: str) -> subprocess.Popen[bytes]:
        """The command, as people start it, with its own code wherever that is."""
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.cores.max": "2",
            "spark.sql.shuffle.partitions": "2",
            "spark.task.maxFailures": "8",
        }
        words = [sys.executable, "-m", "headrace", "pipeline", "run", str(file), "--url", broker.url, *more]
        words += ["--master", self.master, *[word for pair in settings.items() for word in ("--conf", "=".join(pair))]]
        environment = {**self.environment, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        with (self._folder / "driver.log").open("ab") as log:
            return subprocess.Popen(
                words, stdout=log, stderr=log, env=environment, cwd=self._folder, start_new_session=True
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


def wait_for(broker: Broker, least: int, cluster: Cluster, driver: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while len(broker.payloads("out")) < least:
        assert driver.poll() is None, cluster.log()
        assert time.monotonic() < deadline, cluster.log()
        time.sleep(0.1)


def kill_driver(driver: subprocess.Popen[bytes]) -> None:
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait(30)


def archived(folder: Path) -> list[str]:
    """The payloads in the files that Spark lists: others may be of steps that were cut short."""
    logs = [path for path in (folder / "_spark_metadata").iterdir() if re.fullmatch(r"\d+(\.compact)?", path.name)]
    lines = [line for path in logs for line in path.read_text().splitlines()[1:]]
    files = sorted({json.loads(line)["path"] for line in lines})
    tables = [pq.ParquetFile(unquote(urlsplit(file).path)).read(["payload"]) for file in files]
    return [value.decode() for table in tables for value in table.column("payload").to_pylist()]


def test_the_executors_python_cannot_import_us(tmp_path: Path) -> None:
    python = python_without_us(tmp_path)
    environment = {**os.environ, "PYTHONPATH": ""}

    for module, code in (("pyarrow", 0), ("headrace", 1), ("pyspark_headrace", 1)):
        ended = subprocess.run([python, "-c", f"import {module}"], env=environment, capture_output=True, timeout=60)
        assert ended.returncode == code, (module, ended.stderr)


@pytest.mark.timeout(900)
def test_what_comes_out_is_what_went_in_whatever_is_killed(cluster: Cluster, broker: Broker, tmp_path: Path) -> None:
    chance = random.Random(os.environ.get("HEADRACE_SEED", "7"))
    ports = {"http_port": broker.server.http_port, "amqp_port": broker.server.port}
    file = tmp_path / "pipelines.yaml"
    file.write_text(PIPELINES.format(archive=tmp_path / "archive"))
    broker.declare("out", "some", "all")
    broker.publish("in", 150)
    driver = cluster.driver(file, broker)
    wait_for(broker, 60, cluster, driver)

    for pid in cluster.executors()[:1]:
        os.kill(pid, signal.SIGKILL)
    broker.publish("in", 150, 150)
    time.sleep(chance.uniform(0, 1))
    broker.server.kill()
    broker.server.start(**ports)
    wait_for(broker, 210, cluster, driver)
    broker.publish("in", 150, 300)
    time.sleep(chance.uniform(0, 1))
    kill_driver(driver)

    last = cluster.driver(file, broker, "--once")
    assert last.wait(WAIT_SECONDS) == 0, cluster.log()

    wanted = [f"in {number}" for number in range(450)]
    assert sorted(broker.payloads("out")) == sorted(wanted)
    assert sorted(broker.payloads("all")) == sorted(wanted)
    assert sorted(broker.payloads("some")) == sorted(wanted[100:400])
    assert sorted(archived(tmp_path / "archive")) == sorted(wanted)
