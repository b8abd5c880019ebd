"""Queues inside Spark's own declarative pipelines: the example runs as it stands."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from headrace.spark.interpreter import ensure_python
from headrace.spark.java import ensure_java
from tests.integration.spark.conftest import Broker

EXAMPLE = Path(__file__).parents[3] / "examples" / "declarative"


def test_the_declarative_example_runs(broker: Broker, tmp_path: Path) -> None:
    channel = broker.declare("telemetry", "alerts")
    for number in range(100):
        channel.basic_publish("", "telemetry", json.dumps({"device": "d1", "temperature": number + 0.5}).encode())
    project = tmp_path / "declarative"
    shutil.copytree(EXAMPLE, project)
    specification = (project / "spark-pipeline.yml").read_text()
    (project / "spark-pipeline.yml").write_text(
        specification.replace("file:///tmp/headrace-telemetry", (tmp_path / "storage").as_uri())
    )
    ensure_java()
    command = Path(sys.executable).parent / "spark-pipelines"
    environment = {
        **os.environ,
        "HEADRACE_URL": broker.url,
        "PYSPARK_PYTHON": "",
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    ensure_python(tmp_path, environment)

    ended = subprocess.run(
        [command, "run", "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert sorted(json.loads(text)["temperature"] for text in broker.payloads("alerts")) == [
        number + 0.5 for number in range(90, 100)
    ]
