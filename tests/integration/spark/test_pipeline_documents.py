"""What docs/pipelines.md shows works: commands are understood, the file is read, the Python block runs."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer
from pyspark.sql import SparkSession

from headrace.cli.pipeline import app
from headrace.spark.pipelines.endpoint import Endpoint
from headrace.spark.pipelines.file import Defaults, read_job
from tests.integration.spark.conftest import Broker

PAGE = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


COMMANDS = [line for block in blocks("console") for line in block.splitlines() if line.startswith("headrace pipeline ")]


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_is_understood(line: str) -> None:
    words = shlex.split(line)[2:]
    group = typer.main.get_command(app)
    command = group.commands[words[0]]  # type: ignore[attr-defined]

    assert command.make_context(words[0], words[1:]).params


def test_the_file_is_read(tmp_path: Path) -> None:
    (block,) = blocks("yaml")
    file = tmp_path / "pipelines.yaml"
    file.write_text(block)

    names = [each.name for each in read_job(file, Defaults(Endpoint("http://localhost:15672"))).pipelines]

    assert names == ["hot", "hourly", "keep", "split"]


def test_the_python_block_runs(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = broker.declare("telemetry", "alerts")
    channel.basic_publish("", "telemetry", json.dumps({"device": "d1", "temperature": 91}).encode())
    (block,) = blocks("python")
    monkeypatch.chdir(tmp_path)

    exec(block.replace("http://guest:guest@127.0.0.1:15672", broker.url), {})

    assert broker.payloads("alerts") == ['{"device":"d1","temperature":91}']
