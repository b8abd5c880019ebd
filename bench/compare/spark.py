"""Spark as a client: rows written to a queue and read from it, in a process of its own with a JVM below it.

`python -m bench.compare.spark URL ROWS BYTES` is that process; it says as JSON what it did.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from bench.compare import amqp_session
from bench.compare.course import Pace, Target
from bench.compare.load import Load, Scenario
from bench.compare.processes import child_environment, usage_of_tree
from bench.compare.result import Result
from headrace.process import python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_SECOND: Final = 300_000
_LIMIT_SECONDS: Final = 600.0


@final
class SparkCourse:
    """Writes and reads once; the session's start is not counted."""

    def __init__(self, scenario: Scenario, load: Load, target: Target, pace: Pace) -> None:
        self._scenario = scenario
        self._load = load
        self._target = target
        self._pace = pace

    def run(self, round_number: int) -> list[Result]:
        name = self._target.name
        results = [
            Result(self._scenario.name, step.name, step.title, name, "spark", round_number, "ok")
            for step in self._scenario.rows()
        ]
        if find_spec("pyspark") is None or find_spec("pyarrow") is None:
            for result in results:
                result.verdict, result.why = "unsupported", "it needs pip install 'headrace[spark]'"
            return results
        queues, amqp = Load("amqp", queues=2), self._target.endpoints["amqp"]
        amqp_session.prepare(amqp, queues)
        try:
            said = self._measure(queues.queue_names())
        finally:
            amqp_session.clear(amqp, queues)
        for result, step in zip(results, ("write", "read"), strict=True):
            if "failed" in said:
                result.verdict, result.why = "failed", said["failed"]
            else:
                self._enter(result, said[step], int(said["rows"]))
        return results

    def _measure(self, queues: list[str]) -> dict[str, Any]:
        endpoint = self._target.endpoints["spark"]
        url = f"http://{endpoint.user}:{endpoint.password}@{endpoint.host}:{endpoint.port}"
        rows = max(1000, int(ROWS_PER_SECOND * self._pace.seconds))
        words = [url, str(rows), str(self._load.size), str(self._target.pid or 0), *queues]
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            try:
                run = subprocess.run(
                    python("-m", "bench.compare.spark", *words),
                    cwd=folder,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=_LIMIT_SECONDS,
                    env={**child_environment(), "PYSPARK_PYTHON": "", "SPARK_LOCAL_IP": endpoint.host},
                )
            except subprocess.TimeoutExpired:
                return {"failed": f"Spark did not end within {_LIMIT_SECONDS:.0f} s"}
        lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
        if run.returncode or not lines:
            return {"failed": (run.stderr.strip().splitlines() or ["Spark ended without a word"])[-1]}
        found: dict[str, Any] = json.loads(lines[-1])
        return found

    def _enter(self, result: Result, said: dict[str, Any], rows: int) -> None:
        result.messages, result.seconds = rows, said["seconds"]
        result.rate = round(rows / said["seconds"], 1)
        result.verified = f"{rows:,} rows: count and content are right"
        if self._target.pid is not None:
            result.server_us = round(said["cpu_seconds"] / rows * 1e6, 3)
            result.memory_after = said["memory"]


# -- the process -------------------------------------------------------------------------------------------------------


def _session(folder: Path) -> "SparkSession":
    from pyspark.sql import SparkSession

    from headrace.spark.interpreter import ensure_python
    from headrace.spark.java import ensure_java

    ensure_java()
    ensure_python(folder)
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # Spark's Pythons import nothing from the current directory
    (folder / "log4j2.properties").write_text("rootLogger.level = off\n")
    builder = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false")
    options = f"-Dlog4j2.configurationFile=file:{folder / 'log4j2.properties'}"
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.driver.extraJavaOptions", options)
    return builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()


def _timed(work: Callable[[], object], pid: int) -> dict[str, Any]:
    before = usage_of_tree(pid) if pid else None
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    if before is None:
        return {"seconds": seconds, "cpu_seconds": 0.0, "memory": 0}
    after = usage_of_tree(pid)
    return {"seconds": seconds, "cpu_seconds": after.cpu_seconds - before.cpu_seconds, "memory": after.resident_bytes}


def _measure(url: str, rows: int, size: int, pid: int, queues: list[str]) -> dict[str, Any]:
    """Write numbered rows, read them, and compare the sum of the numbers."""
    spark = _session(Path.cwd())
    warm, queue = queues
    payload = f"CAST(rpad(CAST(id AS STRING), {size}, ' ') AS BINARY) AS payload"

    def write(count: int, name: str) -> None:
        frame = spark.range(count).selectExpr(payload)
        frame.write.format("headrace").option("url", url).mode("append").save(name)

    def read(name: str) -> "DataFrame":
        return spark.read.format("headrace").option("url", url).load(name)

    write(100, warm)  # starts the workers
    read(warm).count()
    found: dict[str, Any] = {"rows": rows, "write": _timed(lambda: write(rows, queue), pid)}
    found["read"] = _timed(lambda: read(queue).write.format("noop").mode("overwrite").save(), pid)
    numbers = "CAST(trim(CAST(payload AS STRING)) AS BIGINT)"
    row = read(queue).selectExpr("count(*) AS rows", f"sum({numbers}) AS total").first()
    spark.stop()
    if row is None or row["rows"] != rows or row["total"] != rows * (rows - 1) // 2:
        return {"failed": f"{rows:,} rows were written and {row} read"}
    return found


def main() -> None:
    url, rows, size, pid, *queues = sys.argv[1:]
    try:
        said = _measure(url, int(rows), int(size), int(pid), queues)
    except Exception as error:  # the process ends here, and of Spark's errors the first lines say the most
        said = {"failed": " ".join(str(error).split("\n")[:2]) or type(error).__name__}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
