"""What `headrace pipeline ... --help` shows works: each example is run as it stands, by the command, in one session.

Those that would go on for ever are interrupted, as with Ctrl-C, when what they do is seen.
"""

import json
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from headrace.cli import cli
from headrace.spark.pipelines import session
from tests.examples import examples
from tests.integration.spark.conftest import WAIT_SECONDS, Broker
from tests.servers import Server, serving

LINES = list(dict.fromkeys(line for name, line in examples() if name.startswith("pipeline ")))
INTERRUPTED = 130
PIPELINES = """
pipelines:
  hot: {from: telemetry, to: alerts, sql: SELECT device FROM telemetry WHERE temperature > 90}
  split: {type: assign, from: events, filters: {urgent: offset >= 0}}
"""
FILTERS = "filters: {eu-orders: \"topic LIKE 'orders/%' AND region = 'eu'\", urgent: offset >= 0}\n"
QUEUES = ("telemetry", "alerts", "orders", "orders-again", "test", "eu", "urgent", "eu-orders", "sensor-1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serving(Server(folder)) as running:
        yield running


@pytest.fixture
def here(
    spark: SparkSession, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Broker, Path]]:
    """A directory and a broker with what the examples take for granted; Spark goes on when a command ends."""
    broker = Broker(server)
    _fill(broker)
    (tmp_path / "pipelines.yaml").write_text(PIPELINES)
    (tmp_path / "filters.yaml").write_text(FILTERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_URL", broker.url)
    monkeypatch.setattr(session, "open_session", lambda *_: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    # A command that was interrupted leaves Spark's side of this thread without a session to look data sources up in.
    SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
    yield broker, tmp_path
    for query in spark.streams.active:
        query.stop()


def _fill(broker: Broker) -> None:
    names = (*QUEUES, "events", "prices", "prices-now", "latest")
    for name in names:
        httpx.delete(f"{broker.url}/api/v1/queues/%2F/{name}", timeout=30, verify=False)
    broker.declare("events", "prices", **{"x-queue-type": "stream"})
    channel = broker.declare(*QUEUES)
    for number in range(3):
        body = {"device": {"id": f"d{number}"}} if number else {"device": "d0", "temperature": 95}
        channel.basic_publish("", "telemetry", json.dumps({"device": "d", "temperature": 95, **body}).encode())
        for queue in ("orders", "events", "prices", "sensor-1"):
            channel.basic_publish("", queue, str(number).encode())


def _is_done(line: str, broker: Broker, directory: Path) -> Callable[[], bool]:
    """What is seen of a pipeline that goes on."""
    if "--parquet" in line:  # windows are open for an hour: that it reads is all there is to see
        return lambda: any((directory / "pipelines" / "sql" / "checkpoint" / "commits").glob("[0-9]*"))
    if " archive " in line:
        return lambda: any((directory / "archive").glob("queue=orders/*/*.parquet"))
    return lambda: bool(broker.payloads("urgent" if " assign " in line else "alerts"))


@pytest.mark.parametrize("line", LINES)
def test_an_example_of_a_pipeline_works(here: tuple[Broker, Path], folder: Path, line: str) -> None:
    broker, directory = here
    words = shlex.split(line.replace("/var/lib/headrace", str(folder / "data")))[1:]
    if "--archive" in words:
        archived = CliRunner().invoke(cli, shlex.split("pipeline archive --from orders --to archive --once"))
        assert archived.exit_code == 0, archived.output
    ends = "--once" in words or words[1] in ("replay", "compact", "report", "status", "forget")
    over = threading.Event()
    watcher = threading.Thread(target=_interrupt_when, args=(_is_done(line, broker, directory), over))
    if not ends:
        watcher.start()

    result = CliRunner().invoke(cli, words)

    over.set()
    if not ends:
        watcher.join()
    assert result.exit_code == (0 if ends else INTERRUPTED), f"{result.output}{result.exception}"
    assert "Traceback" not in result.output


def _interrupt_when(is_done: Callable[[], bool], over: threading.Event) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_done() and time.monotonic() < deadline:
        if over.wait(0.1):
            return  # it ended by itself, and should not have
    signal.raise_signal(signal.SIGTERM)
