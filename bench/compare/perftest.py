"""RabbitMQ's own load generator, PerfTest, as a client that we did not write. It runs in Java; Maven fetches it."""

import re
import shutil
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Final, final

from bench.compare import amqp_session
from bench.compare.course import Pace, Target
from bench.compare.load import Endpoint, Load, Scenario, Unsupported, Wrong
from bench.compare.processes import usage_of_tree
from bench.compare.result import Result

VERSION: Final = "2.22.1"
_MAIN: Final = "com.rabbitmq.perf.PerfTest"
_FETCH_SECONDS: Final = 300.0
_END_SECONDS: Final = 60.0
_POM: Final = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>bench</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>com.rabbitmq</groupId><artifactId>perf-test</artifactId><version>{VERSION}</version>
  </dependency></dependencies>
</project>
"""
_RATES: Final = re.compile(r"(sending|receiving) rate avg: (\d+) msg/s")
_LATENCY: Final = re.compile(r"consumer latency: \d+/(\d+)/\d+/\d+/(\d+) (\S+)")
_TO_US: Final = {"µs": 1.0, "us": 1.0, "ns": 1e-3, "ms": 1e3}


@cache
def class_path() -> str:
    """The files that Java needs. Raises Unsupported with what is missing."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise Unsupported(f"PerfTest needs {program}, which is not installed here")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        (Path(folder) / "pom.xml").write_text(_POM)
        found = Path(folder) / "classes"
        command = ["mvn", "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={found}"]
        try:
            ended = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, check=False, timeout=_FETCH_SECONDS
            )
        except subprocess.TimeoutExpired:
            raise Unsupported(f"Maven does not find PerfTest within {_FETCH_SECONDS:.0f} s") from None
        if ended.returncode or not found.exists():
            why = [line for line in ended.stdout.splitlines() if "ERROR" in line] or ["Maven says nothing"]
            raise Unsupported(f"PerfTest {VERSION} cannot be fetched: {why[0][:200]}")
        return found.read_text().strip()


@final
class PerfTestCourse:
    """One run: it publishes and consumes in one process, and says itself how fast that was."""

    def __init__(self, scenario: Scenario, load: Load, target: Target, pace: Pace) -> None:
        self._step = scenario.steps[0]
        self._scenario = scenario
        self._load = load
        self._target = target
        self._seconds = max(1, round(pace.seconds))

    def run(self, round_number: int) -> list[Result]:
        step, target = self._step, self._target
        result = Result(self._scenario.name, step.name, step.title, target.name, "amqp", round_number, "ok")
        endpoint = target.endpoints["amqp"]
        try:
            classes = class_path()
            amqp_session.prepare(endpoint, self._load)
            try:
                self._measure(result, classes, endpoint)
            finally:
                amqp_session.clear(endpoint, self._load)
        except Unsupported as error:
            result.verdict, result.why = "unsupported", str(error)
        except (Wrong, OSError) as error:
            result.verdict, result.why = "failed", str(error)
        return [result]

    def _measure(self, result: Result, classes: str, endpoint: Endpoint) -> None:
        pid = self._target.pid
        before = usage_of_tree(pid) if pid else None
        started = time.monotonic()
        said = self._said(classes, endpoint)
        result.seconds = round(time.monotonic() - started, 3)
        rates = {kind: int(rate) for kind, rate in _RATES.findall(said)}
        if not rates.get("receiving"):
            raise Wrong(f"PerfTest received nothing: {said[-200:]}")
        result.rate = float(rates["receiving"])
        result.messages = rates["receiving"] * self._seconds
        result.latency_us = _latency(said)
        result.verified = f"about {result.messages:,} received, as PerfTest counts"
        if before is not None and pid is not None:
            after = usage_of_tree(pid)
            result.server_us = round((after.cpu_seconds - before.cpu_seconds) / result.messages * 1e6, 3)
            result.memory_after = after.resident_bytes

    def _said(self, classes: str, endpoint: Endpoint) -> str:
        load, queue = self._load, self._load.queue_names()[0]
        login = f"{endpoint.user or 'guest'}:{endpoint.password or 'guest'}"
        words = ["java", "-cp", classes, _MAIN, "--uri", f"amqp://{login}@{endpoint.host}:{endpoint.port}"]
        words += ["--predeclared", "--queue", queue, "--exchange", "", "--routing-key", queue]
        words += ["--flag", "persistent", "--confirm", str(load.window), "--size", str(load.size)]
        words += ["--qos", str(load.prefetch), "--time", str(self._seconds), "--producers", "1", "--consumers", "1"]
        try:
            ended = subprocess.run(
                words, capture_output=True, text=True, check=False, timeout=self._seconds + _END_SECONDS
            )
        except subprocess.TimeoutExpired:
            raise Wrong(f"PerfTest does not end within {_END_SECONDS:.0f} s") from None
        if ended.returncode:
            raise Wrong(f"PerfTest ends with {ended.returncode}: {(ended.stderr or ended.stdout).strip()[-200:]}")
        return ended.stdout


def _latency(said: str) -> dict[str, float]:
    """Of the last second that it reports: the median and p99."""
    found = _LATENCY.findall(said)
    if not found:
        return {}
    median, high, unit = found[-1]
    return {"p50": float(median) * _TO_US.get(unit, 1.0), "p99": float(high) * _TO_US.get(unit, 1.0)}
