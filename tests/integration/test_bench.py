"""The load generator against real brokers: every scenario in small, and what goes wrong is noticed."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench.compare.brokers import Broker
from bench.compare.catalog import scenarios
from bench.compare.course import Course, Pace, Target
from bench.compare.load import Load, Scenario, Step
from bench.compare.payload import MAGIC, SEQUENCE_AT
from bench.compare.peers import PEERS, found_peers
from bench.compare.perftest import PerfTestCourse
from bench.compare.processes import child_environment
from bench.compare.result import Result
from bench.compare.scaling import AXES, points
from bench.compare.shape import Shape
from bench.compare.spark import SparkCourse

from tests.examples import bench_examples
from tests.fault_proxy import Change, FaultProxy

ROOT = Path(__file__).parents[2]
PACE = Pace(0.1, stall_seconds=30.0, limit_seconds=60.0)
WIRED = [scenario for scenario in scenarios() if scenario.name not in ("spark", "client-perftest")]
FLOW = Scenario("flow", (Load("amqp"),), (Step("flow", "flow", "flow", messages=2048),))


@pytest.fixture(scope="module")
def ours() -> Iterator[Target]:
    broker = Broker(PEERS[0])
    yield broker.start()
    broker.stop()


def small(scenario: Scenario) -> Scenario:
    """The same with few of everything."""
    loads = tuple(
        replace(
            load,
            publishers=min(load.publishers, 5),
            consumers=min(load.consumers, 5),
            queues=min(load.queues, 5 if load.exchange else 100),
            bindings=min(load.bindings, 200),
            idle=min(load.idle, 10),
        )
        for load in scenario.loads
    )
    steps = tuple(replace(step, messages=min(step.messages, 5000)) for step in scenario.steps)
    return replace(scenario, loads=loads, steps=steps)


def run(scenario: Scenario, target: Target, pace: Pace = PACE) -> list[Result]:
    load = scenario.load_for(target.endpoints)
    assert load is not None
    return Course(scenario, load, target, pace).run(1)


@pytest.mark.parametrize("scenario", WIRED, ids=[scenario.name for scenario in WIRED])
def test_a_scenario_gives_verified_figures_for_each_of_its_rows(scenario: Scenario, ours: Target) -> None:
    results = run(small(scenario), ours)

    assert [(result.row, result.verdict, result.why) for result in results] == [
        (step.name, "ok", "") for step in scenario.rows()
    ]
    for result in results:
        assert result.messages > 0
        assert result.rate
        assert result.server_us is not None
        assert result.memory_after
        assert result.latency_us or result.confirm_us or result.row.endswith("drain")
        assert not result.stripped
    assert "count, order and content are right" in results[-1].verified


@pytest.mark.parametrize("axis", AXES)
def test_a_point_of_an_axis_gives_what_a_message_costs(axis: str, ours: Target) -> None:
    scenario = next(scenario for scenario in points() if scenario.axis == axis and scenario.point >= 100)

    (result,) = run(small(scenario), ours)

    assert (result.verdict, result.why) == ("ok", "")
    assert (result.axis, result.point) == (axis, scenario.point)
    assert result.server_us is not None


@pytest.mark.parametrize("peer", found_peers()[1:], ids=lambda peer: peer.name)
def test_a_peer_that_is_installed_is_measured_the_same_way(peer: Any) -> None:
    broker = Broker(peer)
    try:
        target = broker.start()
        known = [scenario for scenario in WIRED if scenario.load_for(target.endpoints) and not scenario.is_fresh]
        found = {result.row: result for scenario in known for result in run(small(scenario), target)}
    finally:
        broker.stop()

    assert target.version != "?"
    wrong = {row: result.why for row, result in found.items() if result.verdict == "failed"}
    assert wrong == {}
    assert any(result.verdict == "ok" for result in found.values())


def test_rows_are_written_and_read_by_spark(ours: Target) -> None:
    spark = next(scenario for scenario in scenarios() if scenario.name == "spark")

    results = SparkCourse(spark, spark.loads[0], ours, Pace(0.01)).run(1)

    assert [(result.verdict, result.why) for result in results] == [("ok", "")] * 2
    assert all(result.rate for result in results)


def test_perftest_measures_with_a_client_of_others_or_says_what_is_missing(ours: Target) -> None:
    scenario = next(scenario for scenario in scenarios() if scenario.name == "client-perftest")

    (result,) = PerfTestCourse(scenario, scenario.loads[0], ours, Pace(1.0)).run(1)

    if result.verdict == "unsupported":
        assert "PerfTest" in result.why
    else:
        assert (result.verdict, result.why) == ("ok", "")
        assert result.rate
        assert result.server_us


# -- what goes wrong is noticed ----------------------------------------------------------------------------------------


def meddled(
    ours: Target,
    change: Change,
    scenario: Scenario = FLOW,
    head: bytes = b"",
    stall_seconds: float = 30.0,
    marker: bytes = MAGIC,
) -> Result:
    """The result when deliveries are changed on their way."""
    load = scenario.loads[0]
    with FaultProxy(ours.endpoints[load.family].port, change, head, marker) as proxy:
        endpoint = replace(ours.endpoints[load.family], port=proxy.port)
        target = Target("meddled", {load.family: endpoint}, ours.pid)
        return run(scenario, target, Pace(0.2, stall_seconds, limit_seconds=60.0))[-1]


MQTT = Scenario("mqtt", (Load("mqtt", qos=0),), (Step("mqtt", "mqtt", "flow", messages=2048),))


@pytest.mark.parametrize("scenario", [FLOW, MQTT], ids=lambda scenario: scenario.name)
def test_a_changed_number_is_noticed(scenario: Scenario, ours: Target) -> None:
    def renumbered(body: bytes) -> bytes:
        return body[:4] + (1_000_000).to_bytes(6, "little") + body[10:] if body[4] == 77 and not body[5] else body

    result = meddled(ours, renumbered, scenario)

    assert result.verdict == "failed"
    assert "missing within the sequence" in result.why


@pytest.mark.parametrize("scenario", [FLOW, MQTT], ids=lambda scenario: scenario.name)
def test_a_changed_body_is_noticed(scenario: Scenario, ours: Target) -> None:
    def damaged(body: bytes) -> bytes:
        return body[:-1] + b"?" if body[4] == 77 else body

    result = meddled(ours, damaged, scenario)

    assert result.verdict == "failed"
    assert "never sent" in result.why


def shaped(shape: Shape) -> Scenario:
    load = Load("amqp", shape=shape, size=100, ack_every=1)
    return Scenario(shape, (load,), (Step(shape, shape, "flow", messages=2048),))


def test_a_changed_body_among_different_messages_is_noticed(ours: Target) -> None:
    def damaged(body: bytes) -> bytes:
        return body[:-1] + b"?" if body[4] == 77 else body

    result = meddled(ours, damaged, shaped("ids"))

    assert result.verdict == "failed"
    assert "never sent" in result.why


def test_lost_headers_are_counted(ours: Target) -> None:
    result = meddled(ours, lambda text: text.replace(b"-01", b"-00"), shaped("mixed"), marker=b"traceparentS")

    assert (result.verdict, result.why) == ("ok", "")
    assert result.stripped == 2048


def test_two_messages_in_the_wrong_order_are_noticed(ours: Target) -> None:
    def swapped(body: bytes) -> bytes:
        other = {77: 78, 78: 77}.get(body[4], body[4])
        return body[:4] + bytes((other,)) + body[5:]

    result = meddled(ours, swapped)

    assert result.verdict == "failed"
    assert "out of order or twice" in result.why


def test_a_message_that_never_comes_is_noticed(ours: Target) -> None:
    head = b"\x30\x6d\x00\x07bench/t"
    number = len(head) + SEQUENCE_AT

    def lost(packet: bytes) -> bytes:
        return b"" if packet[number : number + 2] == b"\x4d\x00" else packet

    result = meddled(ours, lost, MQTT, head, stall_seconds=5.0)

    assert result.verdict == "failed"
    assert "2,047 received" in result.why


def test_a_broker_that_is_not_there_is_a_failed_row(ours: Target) -> None:
    endpoint = replace(ours.endpoints["amqp"], port=1)

    (result,) = run(FLOW, Target("nowhere", {"amqp": endpoint}))

    assert result.verdict == "failed"
    assert "refused" in result.why
    assert result.rate is None


# -- the command -------------------------------------------------------------------------------------------------------


def headrace(*arguments: str, scratch: Path | None = None) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
    if scratch is not None:
        environment["TMPDIR"] = str(scratch)
    return subprocess.run(
        [sys.executable, "-m", "bench.compare", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment,
    )


def test_the_list_names_every_scenario_and_broker() -> None:
    said = headrace("--list")

    assert said.returncode == 0
    for scenario in scenarios():
        assert scenario.name in said.stdout
    assert re.search(r"^headrace: installed", said.stdout, re.MULTILINE)


def test_a_short_run_leaves_a_table_and_a_file_and_nothing_else(tmp_path: Path) -> None:
    scratch, out = tmp_path / "tmp", tmp_path / "out"
    scratch.mkdir()
    options = ("--seconds", "0.2", "--rounds", "1", "--peer", "none", "--out", str(out))

    said = headrace("--scenario", "amqp-end-to-end", *options, scratch=scratch)

    assert said.returncode == 0, said.stderr
    assert "AMQP end to end, 1 x 1" in said.stdout
    record = json.loads((out / "results.json").read_text())
    (result,) = record["results"]
    assert (result["row"], result["broker"], result["verdict"]) == ("amqp-end-to-end", "headrace", "ok")
    assert result["messages"] > 0
    assert {"p50", "p99"} <= set(result["latency_us"])
    assert record["settings"] == {"rounds": 1, "seconds": 0.2, "scenarios": ["amqp-end-to-end"], "scale": False}
    assert list(scratch.iterdir()) == []


def test_growth_is_measured_at_the_points_that_are_named(tmp_path: Path) -> None:
    named = ("--scenario", "scale-connections-1", "--scenario", "scale-backlog-0")
    said = headrace("--scale", *named, "--seconds", "0.2", "--rounds", "1", "--out", str(tmp_path))

    assert said.returncode == 0, said.stderr
    record = json.loads((tmp_path / "scale.json").read_text())
    assert [(result["axis"], result["point"], result["verdict"]) for result in record["results"]] == [
        ("connections", 1, "ok"),
        ("backlog", 0, "ok"),
    ]


def test_a_run_that_is_ended_leaves_no_broker(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "bench.compare",
            "--seconds",
            "60",
            "--peer",
            "none",
            "--out",
            str(tmp_path / "out"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("headrace-bench-*/counters")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (ready,) = tmp_path.glob("headrace-bench-headrace-*/ready.json")
    broker = json.loads(ready.read_text())["pid"]

    process.terminate()
    said, _ = process.communicate(timeout=60)

    assert process.returncode == 128 + signal.SIGTERM, said
    assert not Path(f"/proc/{broker}").exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", bench_examples())
def test_an_example_shows_its_first_row_and_can_be_ended_then(ours: Target, tmp_path: Path, line: str) -> None:
    line = line.replace("127.0.0.1:5672", f"127.0.0.1:{ours.endpoints['amqp'].port}").replace("4242", str(ours.pid))
    line = line.replace("mqtt://127.0.0.1", f"mqtt://127.0.0.1:{ours.endpoints['mqtt'].port}")
    process = subprocess.Popen(
        [sys.executable, "-m", *shlex.split(line)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**child_environment(), "NO_COLOR": "1", "COLUMNS": "200", "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    said = ""
    for row in process.stdout:
        said += row
        if re.search(r"^(headrace|given) \S+: ok ", row):
            process.send_signal(signal.SIGINT)
            break
    said += process.communicate(timeout=60)[0]

    if "--list" in line:
        assert process.returncode == 0, said
    elif "--peer rabbitmq" in line and "rabbitmq" not in [peer.name for peer in found_peers()]:
        assert "rabbitmq is not installed" in said
    else:
        assert process.returncode == 128 + signal.SIGINT, said
    assert "Traceback" not in said


def test_a_broker_that_runs_is_measured_where_it_is(ours: Target, tmp_path: Path) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{ours.endpoints['amqp'].port}"
    options = ("--scenario", "amqp-queue", "--seconds", "0.2", "--rounds", "1", "--out", str(tmp_path))

    said = headrace("--url", url, *options)
    with_pid = headrace("--url", url, "--pid", str(ours.pid), *options)

    assert (said.returncode, with_pid.returncode) == (0, 0), said.stderr + with_pid.stderr
    assert "given amqp-queue-drain: ok" in said.stderr
    assert "us CPU/message" not in said.stderr
    assert "us CPU/message" in with_pid.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--scenario", "nonsense"), "there is no scenario 'nonsense'"),
        (("--peer", "kafka"), "there is no peer 'kafka'"),
        (("--url", "http://127.0.0.1"), "--url takes amqp://host:port"),
        (("--pid", "1"), "--pid says which process"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(arguments: tuple[str, ...], words: str) -> None:
    said = headrace(*arguments)

    assert said.returncode == 2
    assert words in said.stderr
