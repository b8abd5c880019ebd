"""`headrace pipeline --master sc://...`: a real Spark Connect server, with a Headrace of its own and without one."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pyspark
import pytest

from headrace.spark.java import ensure_java
from headrace.spark.pipelines.session import source_directory
from tests.integration.spark.conftest import Broker
from tests.integration.spark.test_cluster import python_without_us

WAIT_SECONDS = 300.0
PIPELINES = """
pipelines:
  copy: {from: in, to: out, sql: SELECT device FROM messages WHERE number >= 5}
  keep: {type: archive, from: in, to: archive}
  split: {type: assign, from: in, filters: {some: offset BETWEEN 3 AND 6}}
"""


class Connect:
    """A Connect server as a process; its Python has no Headrace once `hidden` is there."""

    def __init__(self, folder: Path) -> None:
        ensure_java()
        self.hidden = folder / "hidden"
        self._log = folder / "connect.log"
        python = folder / "python-of-the-server"
        python.write_text(
            f'#!/bin/sh\n[ -e {self.hidden} ] || export PYTHONPATH="{source_directory()}:$PYTHONPATH"\n'
            f'exec {python_without_us(folder)} "$@"\n'
        )
        python.chmod(0o755)
        home = Path(pyspark.__file__).parent
        environment = {
            **os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(python),
            "PYTHONPATH": "",
        }  # fmt: skip
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "1g",
        }
        words = [f"{home}/bin/spark-submit", "--master", "local[2]"]
        words += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        words += [word for pair in settings.items() for word in ("--conf", "=".join(pair))]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*words, "spark-internal"], stdout=log, stderr=log, env=environment, cwd=folder
            )
        self.master = f"sc://{self._wait_for_address()}"

    def _wait_for_address(self) -> str:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            log = self._log.read_text()
            found = re.search(r"Spark Connect server started at: (\S+)", log)
            if found:
                return found[1]
            assert self._process.poll() is None, log[-2000:]
            assert time.monotonic() < deadline, log[-2000:]
            time.sleep(0.1)

    def run(self, directory: Path, broker: Broker, *words: str) -> "subprocess.CompletedProcess[str]":
        """A pipeline, as people start it."""
        command = [sys.executable, "-m", "headrace", "pipeline", *words, "--master", self.master, "--url", broker.url]
        return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        finally:
            self._process.kill()


pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connect]:
    server = Connect(tmp_path_factory.mktemp("connect"))
    yield server
    server.stop()


def test_pipelines_run_where_the_server_has_headrace(connect: Connect, broker: Broker, tmp_path: Path) -> None:
    channel = broker.declare("in", "out", "some")
    for number in range(10):
        channel.basic_publish("", "in", json.dumps({"device": f"d{number}", "number": number}).encode())
    (tmp_path / "pipelines.yaml").write_text(PIPELINES)

    ended = connect.run(tmp_path, broker, "run", "pipelines.yaml", "--once")

    assert ended.returncode == 0, ended.stderr
    assert "copy: 10 messages in " in ended.stderr
    assert [json.loads(text) for text in broker.payloads("out")] == [
        {"device": f"d{number}"} for number in range(5, 10)
    ]
    assert [json.loads(text)["number"] for text in broker.payloads("some")] == [3, 4, 5, 6]
    archived = ds.dataset(tmp_path / "archive", format="parquet", exclude_invalid_files=True).to_table()
    assert sorted(archived.column("offset").to_pylist()) == list(range(10))


def test_a_server_without_headrace_is_sent_the_code(connect: Connect, broker: Broker, tmp_path: Path) -> None:
    broker.publish("in", 10)
    broker.declare("out")
    connect.hidden.touch()
    try:
        replayed = connect.run(tmp_path, broker, "replay", "--from", "in", "--to", "out", "--filter", "offset < 4")
        streamed = connect.run(tmp_path, broker, "archive", "--from", "in", "--to", "archive", "--once")
    finally:
        connect.hidden.unlink()

    assert replayed.returncode == 0, replayed.stderr
    assert broker.payloads("out") == [f"in {number}" for number in range(4)]
    assert streamed.returncode == 1
    assert "the Spark server has no Headrace of its own" in streamed.stderr
    assert "Traceback" not in streamed.stderr


def test_what_would_be_printed_on_the_server_is_refused(connect: Connect, broker: Broker, tmp_path: Path) -> None:
    ended = connect.run(tmp_path, broker, "sql", "--from", "in", "--console", "--once", "SELECT * FROM messages")

    assert ended.returncode == 1
    assert "rows on the console would be printed by the server" in ended.stderr


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace", "pipeline", "report", "--from", "in", "--to", "report"]
    words = [*command, "--master", "sc://127.0.0.1:1"]

    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)

    assert ended.returncode == 1
    assert "the Spark Connect server at sc://127.0.0.1:1 cannot be reached" in ended.stderr
