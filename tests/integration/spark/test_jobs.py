"""`headrace pipeline run`: the pipelines of a job fail, start again, wait for their time and are seen at the broker."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from headrace.errors import Refused
from headrace.spark.pipelines.endpoint import Endpoint
from headrace.spark.pipelines.file import Defaults, read_job
from headrace.spark.pipelines.job import Job, run_job
from headrace.spark.pipelines.run import Progress
from headrace.spark.pipelines.schedule import dated
from tests.integration.spark.conftest import Broker

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipelines"
WAIT_SECONDS = 300.0
NUMBERS = "{from: in, to: out, schema: none, sql: SELECT payload FROM messages}"

pytestmark = pytest.mark.timeout(900)


class Enough(Exception):
    """A test has seen what it waited for."""


def job_of(folder: Path, broker: Broker, text: str, once: bool = False) -> Job:
    file = folder / "plant.yaml"
    file.write_text(text)
    return read_job(file, Defaults(Endpoint(broker.url), once, folder / "states"))


def run_until(spark: SparkSession, job: Job, is_enough: Callable[[], bool]) -> None:
    """Run a job that goes on, until something is seen."""
    deadline = time.monotonic() + WAIT_SECONDS

    def tell(progress: Progress) -> None:
        assert time.monotonic() < deadline, progress
        if is_enough():
            raise Enough

    with pytest.raises(Enough):
        run_job(spark, job, tell)


def pipelines(broker: Broker) -> dict[str, dict[str, Any]]:
    """What the broker shows of pipelines, by name."""
    answer = httpx.get(f"{broker.url}/api/v1/pipelines", timeout=30)
    return {each["name"]: each for each in answer.json()["items"]}


def test_a_pipeline_that_fails_is_started_again_and_the_others_go_on(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.publish("in", 10)
    broker.declare("other")
    text = f"restarts: 50\npipelines:\n  late: {NUMBERS}\n  fine: {NUMBERS.replace('to: out', 'to: other')}\n"
    seen: list[dict[str, Any]] = []

    def is_enough() -> bool:
        found = pipelines(broker)
        if not seen and found.get("late", {}).get("restarts") and len(broker.payloads("other")) == 10:
            seen.append(found["late"])
            broker.publish("out", 0)  # declared: the next start finds it
        return bool(seen) and len(broker.payloads("out")) == 10

    run_until(spark, job_of(tmp_path, broker, text), is_enough)

    (late,) = seen
    assert late["job"] == "plant"
    assert "'out'" in late["reason"]
    assert broker.payloads("out") == broker.payloads("other") == [f"in {number}" for number in range(10)]
    after = pipelines(broker)
    assert {each["state"] for each in after.values()} == {"over"}
    metrics = httpx.get(f"{broker.url}/metrics", timeout=30).text
    assert 'headrace_pipeline_messages_total{vhost="/",job="plant",pipeline="fine"} 10\n' in metrics
    assert 'headrace_pipeline_state{vhost="/",job="plant",pipeline="late",type="sql",state="over"} 1\n' in metrics
    assert 'headrace_pipeline_restarts_total{vhost="/",job="plant",pipeline="fine"} 0\n' in metrics


def test_a_pipeline_that_goes_on_failing_ends_the_job(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.publish("in", 3)
    broker.declare("out")
    text = "SELECT CAST(CAST(payload AS STRING) AS INT) AS number FROM messages"
    bad = f"{{from: in, to: out, schema: none, restarts: 1, sql: {text}}}"
    job = job_of(tmp_path, broker, f"pipelines:\n  bad: {bad}\n  fine: {NUMBERS}\n")

    with pytest.raises(Refused, match="pipeline 'bad' failed"):
        run_job(spark, job)

    found = pipelines(broker)
    assert (found["bad"]["state"], found["bad"]["restarts"]) == ("failed", 1)
    assert "CAST_INVALID_INPUT" in found["bad"]["reason"]
    assert found["fine"]["state"] == "over"
    assert not [query for query in spark.streams.active if query.name in ("bad", "fine")]


def test_a_mistake_in_the_settings_is_not_tried_again(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.publish("in", 1)
    broker.declare("out")
    bad = NUMBERS.replace("SELECT payload", "SELECT nothing")
    job = job_of(tmp_path, broker, f"restarts: 9\npipelines:\n  bad: {bad}\n")

    with pytest.raises(Refused, match="nothing"):
        run_job(spark, job)

    assert pipelines(broker)["bad"]["restarts"] == 0


def test_a_scheduled_run_that_was_missed_is_made_up_and_the_next_is_waited_for(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.publish("in", 5)
    yearly = NUMBERS.replace("to: out", "to: 'made-up', schedule: '@yearly'")
    broker.declare("made-up", "out")
    job = job_of(tmp_path, broker, f"restarts: 9\npipelines:\n  yearly: {yearly}\n  goes: {NUMBERS}\n")
    run_until(spark, job, lambda: len(broker.payloads("out")) == 5 and pipelines(broker).get("goes") is not None)
    waiting = datetime(datetime.now(UTC).year + 1, 1, 1, tzinfo=UTC)
    assert broker.payloads("made-up") == []  # the first time is a new year's day

    memory = tmp_path / "states" / "plant.json"
    before = (waiting - timedelta(days=800)).isoformat()
    memory.write_text(json.dumps({"yearly": {"due": before, "is_over": True}}))

    def is_enough() -> bool:
        found = pipelines(broker).get("yearly")
        return found is not None and found["state"] == "waiting" and found["messages"] == 5

    run_until(spark, job, is_enough)

    assert broker.payloads("made-up") == [f"in {number}" for number in range(5)]
    assert json.loads(memory.read_text())["yearly"] == {
        "due": waiting.replace(year=waiting.year - 1).isoformat(),
        "is_over": True,
    }


def test_the_broker_counts_what_waits_for_a_stream_without_limits(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.publish("in", 7)
    broker.declare("out")
    job = job_of(tmp_path, broker, f"restarts: 9\npipelines:\n  slow: {NUMBERS[:-1]}, every: 1 hour}}\n")
    published: list[int] = []

    def is_enough() -> bool:
        found = pipelines(broker).get("slow")
        if found is None or found["messages"] < 7:
            return False
        if not published:
            broker.publish("in", 4, 7)
            published.append(4)
        return bool(found["behind"] == 4)

    run_until(spark, job, is_enough)

    assert 'headrace_pipeline_lag{vhost="/",job="plant",pipeline="slow"} 4\n' in httpx.get(f"{broker.url}/metrics").text


# -- the command -------------------------------------------------------------------------------------------------------


def start(folder: Path, broker: Broker, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headrace", "pipeline", *words, "--url", broker.url, "--master", "local[1]"]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)


def wait_for(is_there: Callable[[], bool], job: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_there():
        assert job.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.1)


def test_a_job_goes_on_over_a_killed_broker_and_after_a_killed_driver(broker: Broker, tmp_path: Path) -> None:
    ports = {"http_port": broker.server.http_port, "amqp_port": broker.server.port}
    broker.publish("in", 30)
    broker.declare("out")
    numbers = NUMBERS.replace("{", "{max_messages: 7, ")
    (tmp_path / "plant.yaml").write_text(f"restarts: 5\npipelines:\n  numbers: {numbers}\n")
    job = start(tmp_path, broker, "run", "plant.yaml")
    wait_for(lambda: len(broker.payloads("out")) >= 7, job, tmp_path)

    broker.server.kill()
    broker.server.start(**ports)
    broker.publish("in", 10, 30)
    wait_for(lambda: len(broker.payloads("out")) == 40, job, tmp_path)
    wait_for(lambda: pipelines(broker).get("numbers", {}).get("state") == "running", job, tmp_path)
    os.killpg(job.pid, signal.SIGKILL)
    job.wait(30)
    broker.publish("in", 10, 40)
    job = start(tmp_path, broker, "run", "plant.yaml")
    wait_for(lambda: len(broker.payloads("out")) == 50, job, tmp_path)
    job.terminate()

    assert job.wait(WAIT_SECONDS) == 130, (tmp_path / "log").read_text()
    assert broker.payloads("out") == [f"in {number}" for number in range(50)]
    assert pipelines(broker)["numbers"]["state"] == "over"
    assert "Traceback" not in (tmp_path / "log").read_text()
    said = subprocess.run(
        [sys.executable, "-m", "headrace", "pipeline", "status", "--url", broker.url],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "numbers" in said.stdout
    assert "over" in said.stdout


# -- examples ----------------------------------------------------------------------------------------------------------


def run_example(spark: SparkSession, broker: Broker, name: str) -> list[Progress]:
    """Run an example once, in the current directory."""
    return run_job(
        spark,
        read_job(EXAMPLES / f"{name}.yaml", Defaults(Endpoint(broker.url), True)),
        tell=print,
        ignores_schedules=True,
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_readings_of_sensors_become_a_message_a_minute(spark: SparkSession, broker: Broker, here: Path) -> None:
    channel = broker.declare("readings", "minutes")
    for second in range(0, 200, 10):
        at = f"2026-01-31T12:{second // 60:02}:{second % 60:02}Z"
        for device in ("a", "b"):
            reading = {"device": device, "at": at, "temperature": second / 10 + (device == "b")}
            channel.basic_publish("", "readings", json.dumps(reading).encode())

    run_example(spark, broker, "sensors")

    found = sorted(
        (json.loads(text) for text in broker.payloads("minutes")), key=lambda row: (row["minute"], row["device"])
    )
    assert [(row["minute"][11:16], row["device"], row["readings"], row["mean"], row["highest"]) for row in found] == [
        ("12:00", "a", 6, 2.5, 5.0),
        ("12:00", "b", 6, 3.5, 6.0),
        ("12:01", "a", 6, 8.5, 11.0),
        ("12:01", "b", 6, 9.5, 12.0),
    ]  # the minute of 12:02 may still get readings


def test_dead_letters_are_rows_and_a_report(spark: SparkSession, broker: Broker, here: Path) -> None:
    answer = httpx.put(f"{broker.url}/api/v1/queues/%2F/orders", json={"type": "classic"}, timeout=30)
    assert answer.status_code == 201, answer.text
    for number in range(6):
        message = {"routing_key": "orders", "payload": f"order {number}"}
        httpx.post(f"{broker.url}/api/v1/publish/%2F", json=message, timeout=30).raise_for_status()
    taken = {"limit": 4, "then": "reject"}
    httpx.post(f"{broker.url}/api/v1/queues/%2F/orders/consume", json=taken, timeout=30).raise_for_status()

    done = {each.name: each.messages for each in run_example(spark, broker, "dead-letters")}

    causes = ds.dataset("causes", format="parquet", exclude_invalid_files=True).to_table().to_pylist()
    assert [(row["origin"], row["reason"], row["bytes"]) for row in causes] == [("orders", "rejected", 7)] * 4
    assert done["causes"] == 4
    (report,) = (here / "reports").iterdir()
    assert "no messages in this period" in (report / "index.html").read_text()  # they died today


def test_clicks_become_training_data_each_hour_the_new_ones(spark: SparkSession, broker: Broker, here: Path) -> None:
    channel = broker.declare("clicks")
    for number in range(300):
        click = {"user": f"u{number % 100}", "item": f"i{number}", "seconds": number - 5, "bought": number % 2 == 0}
        channel.basic_publish("", "clicks", json.dumps(click).encode())

    run_example(spark, broker, "training")
    first = ds.dataset("training", format="parquet", exclude_invalid_files=True).to_table()
    channel.basic_publish("", "clicks", b'{"user": "u1", "item": "new", "seconds": 1.5}')
    run_example(spark, broker, "training")

    rows = ds.dataset("training", format="parquet", exclude_invalid_files=True).to_table().to_pylist()
    assert len(first) == 295
    assert sorted(row["item"] for row in rows) == sorted([*(f"i{number}" for number in range(5, 300)), "new"])
    by_user = {(row["user"], row["split"]) for row in rows}
    assert len(by_user) == 100  # nobody is in two parts
    assert {split for _, split in by_user} == {"train", "validation", "test"}
    assert {row["label"] for row in rows if row["item"] == "new"} == {0}


def test_a_day_is_replayed_into_a_new_stream(spark: SparkSession, broker: Broker, here: Path) -> None:
    broker.publish("orders", 12)
    job = read_job(EXAMPLES / "replay.yaml", Defaults(Endpoint(broker.url), True))
    keep, day = job.pipelines
    run_job(spark, Job(job.name, (keep,), job.states))
    now = datetime.now(UTC)
    for due in (now, now + timedelta(days=1)):  # the second run is about today
        planned = replace(day, settings=dated(day.settings, due))
        run_job(spark, Job(job.name, (planned,), job.states), ignores_schedules=True)

    yesterday, today = (f"orders-{now + timedelta(days=days):%Y-%m-%d}" for days in (-1, 0))
    assert broker.payloads(today) == [f"orders {number}" for number in range(12)]
    assert broker.payloads(yesterday) == []
    answer = httpx.get(f"{broker.url}/api/v1/queues/%2F/{today}", timeout=30).json()
    assert answer["type"] == "stream"
