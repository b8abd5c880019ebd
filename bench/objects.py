"""Figures of the engine over an object store: confirmed messages, latency, and memory over a backlog.

    python -m bench.objects [--store URL] [--messages N]     throughput and latency of the engine alone
    python -m bench.objects [--store URL] --backlog N        memory while a backlog grows, is read, and is worked off
    python -m bench.objects [--store URL] --read N           a queue of so many messages read without a broker
    python -m bench.objects [--store URL] --broker           end to end: a broker in its own process, over AMQP

Without --store a directory is used. "Confirmed" is what the engine called back for: durable in the store.
Another script, objects_cost.py, measures the bytes and the CPU of a message.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.compare.brokers import RunningBroker
from bench.compare.course import Pace
from bench.compare.load import Endpoint, Load, Scenario, Step
from bench.compare.result import Result
from bench.compare.runner import Audience, Runner
from headrace.clock import SystemClock
from headrace.config.replication import MAIN
from headrace.errors import HeadraceError
from headrace.model import Message, Source
from headrace.storage.api import Commit
from headrace.storage.arrow import SCHEMA
from headrace.storage.group_state import WORK
from headrace.storage.objects.columns import ColumnReader
from headrace.storage.objects.engine import ObjectEngine, ObjectSettings
from headrace.storage.objects.location import Location
from headrace.storage.objects.view import View

PAYLOAD = b"x" * 100
SOURCE = Source("orders/eu", "amq.topic", "publisher-1", "amqp091", 1)
BATCHES = (500, 5000)


def batch(count: int) -> Commit:
    commit = Commit()
    now_us = time.time_ns() // 1000
    commit.append("orders", [Message(SOURCE, PAYLOAD, now_us) for _ in range(count)])
    return commit


def run(engine: ObjectEngine, commit: Commit) -> None:
    def done(error: HeadraceError | None) -> None:
        if error is not None:
            raise error

    engine.commit(commit, done)
    engine.sync()


def confirmed(engine: ObjectEngine, count: int, size: int) -> float:
    """Messages a second, published in batches that wait for each other."""
    start = time.perf_counter()
    for _ in range(0, count, size):
        run(engine, batch(size))
    return count / (time.perf_counter() - start)


def worked(engine: ObjectEngine, count: int, size: int) -> float:
    """Messages a second that are published, claimed and acknowledged, with what was settled truncated."""
    commit = Commit()
    base = engine.log("orders").next_offset
    commit.create_group("orders", f"workers-{size}", WORK, start=base)
    run(engine, commit)
    start = time.perf_counter()
    for at in range(base, base + count, size):
        commit = batch(size)
        commit.claim("orders", f"workers-{size}", at, at + size, "worker", 1)
        if at > base:
            commit.ack("orders", f"workers-{size}", at - size, at)
            commit.truncate("orders", at)
        run(engine, commit)
    return count / (time.perf_counter() - start)


def latencies(engine: ObjectEngine, count: int) -> list[float]:
    """Milliseconds for one message at a time."""
    found = []
    for _ in range(count):
        start = time.perf_counter()
        run(engine, batch(1))
        found.append((time.perf_counter() - start) * 1000)
    return sorted(found)


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def backlog(engine: ObjectEngine, count: int) -> None:
    """Memory while a backlog grows that nobody reads, while it is read from the start, and while it is worked off."""
    marks = [count // 10, count // 4, count // 2, count * 3 // 4, count]
    waiting = 0
    while waiting < count:
        run(engine, batch(5000))
        waiting += 5000
        if waiting in marks:
            print(f"  {waiting:>9,} waiting: {resident_mb():6.0f} MB", flush=True)
    log = engine.log("orders")
    start, at = time.perf_counter(), log.next_offset - count
    while at < log.next_offset:
        at += len(log.read(at, 1000))
    print(f"  read at {count / (time.perf_counter() - start):,.0f} messages/s: {resident_mb():6.0f} MB", flush=True)
    start = time.perf_counter()
    drain(engine, log.next_offset - count, log.next_offset)
    rate = count / (time.perf_counter() - start)
    print(f"  claimed and acknowledged at {rate:,.0f} messages/s: {resident_mb():6.0f} MB", flush=True)


def drain(engine: ObjectEngine, first: int, stop: int) -> None:
    """Claim and acknowledge everything, as a consumer does who takes many at once."""
    commit = Commit()
    commit.create_group("orders", "drain", WORK, start=first)
    run(engine, commit)
    for at in range(first, stop, 1000):
        commit = Commit()
        commit.claim("orders", "drain", at, min(stop, at + 1000), "worker", 1)
        if at > first:
            commit.ack("orders", "drain", at - 1000, at)
            commit.truncate("orders", at)
        run(engine, commit)


def read_outside(store: str, count: int) -> None:
    """Rows a second and processor time a row, as a task of Spark reads them."""
    engine = ObjectEngine(store, settings=ObjectSettings(flush_interval_ms=5))
    for _ in range(0, count, 5000):
        run(engine, batch(5000))
    start = time.perf_counter()
    view = View(Location(store), MAIN, 30_000, SystemClock())
    print(f"opened in {(time.perf_counter() - start) * 1000:.0f} ms")
    log_id, state = view.logs()["orders"]
    for what, names in (("all columns", SCHEMA.names), ("without payloads", ["offset", "timestamp", "topic"])):
        start, used = time.perf_counter(), time.process_time()
        reader = ColumnReader(view, MAIN, log_id)
        rows = sum(found.num_rows for found in reader.batches(state.first_offset, state.next_offset, names))
        rate, cost = rows / (time.perf_counter() - start), (time.process_time() - used) / rows * 1e6
        print(f"{what}: {rate:,.0f} rows/s, {cost:.2f} us of CPU a row")
    view.close()
    engine.close()


# -- a broker in its own process ---------------------------------------------------------------------------------------

BURST = Load("amqp", publishers=2, consumers=1, window=8192, ahead=32768, prefetch=10_000, ack_every=1000)
FILLING = Load("amqp", at_once=256, window=8192, ack_every=1)
PLAIN = Load("amqp")
PACED = Load("amqp", rate=1000, ack_every=1)
SCENARIOS = (
    Scenario("plain", (PLAIN,), (Step("plain", "1,024 unconfirmed, one publisher", "flow"),), True, False),
    Scenario("burst", (BURST,), (Step("burst", "8,192 unconfirmed, two publishers", "flow"),), True, False),
    Scenario(
        "backlog",
        (FILLING,),
        (
            Step("fill", "300,000 published, 8,192 unconfirmed", "publish", 300_000),
            Step("drain", "300,000 drained, ack each", "drain"),
        ),
        True,
        False,
    ),
    Scenario("paced", (PACED,), (Step("paced", "1,000/s, ack each", "flow"),), True, False),
)


class Printer(Audience):
    def doing(self, what: str, done: int, total: int) -> None:
        pass

    def has(self, result: Result) -> None:
        if result.verdict != "ok":
            print(f"{result.title}: {result.verdict}: {result.why}")
            return
        times = {name: value / 1000 for name, value in result.latency_us.items() if name in ("p50", "p99")}
        print(
            f"{result.title}: {result.rate:,.0f} messages/s, {result.server_us:.1f} us of CPU each; until confirmed or "
            "delivered " + ", ".join(f"{name} {value:.1f} ms" for name, value in times.items()),
            flush=True,
        )


def through_broker(store: str, directory: Path, interval_ms: int, seconds: float, rounds: int) -> None:
    """Measure clients of a broker over the store."""
    ready = directory / f"ready-{interval_ms}.json"
    ports = [word for name in ("amqp", "mqtt", "http", "ws") for word in (f"--{name}", "0")]
    command = [sys.executable, "-m", "headrace", "serve", "--store", store, "--ready-file", str(ready), *ports]
    environment = {**os.environ, "HEADRACE_STORAGE_FLUSH_INTERVAL": f"{interval_ms}ms"}
    server = subprocess.Popen([*command, "--log-level", "warning"], env=environment)
    try:
        while not ready.exists():
            if server.poll() is not None:
                raise SystemExit("the broker did not start")
            time.sleep(0.05)
        endpoint = Endpoint("127.0.0.1", json.loads(ready.read_text())["ports"]["amqp"], "guest", "guest", "/")
        print(f"flush interval {interval_ms} ms", flush=True)
        Runner([RunningBroker("broker", {"amqp": endpoint}, server.pid)], SCENARIOS, rounds, Pace(seconds)).run(
            Printer()
        )
    finally:
        server.terminate()
        server.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--backlog", type=int, default=0, help="look at memory over so many messages")
    parser.add_argument("--read", type=int, default=0, help="read so many messages without a broker")
    parser.add_argument("--broker", action="store_true", help="measure a broker from end to end")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        store = given.store or f"file://{directory}"
        if given.broker:
            for interval_ms in (5, 20):
                through_broker(store, Path(directory), interval_ms, given.seconds, given.rounds)
            return
        print(f"{store}, messages of {len(PAYLOAD)} bytes, one commit at a time, flush interval 5 ms")
        if given.read:
            read_outside(store, given.read)
        elif given.backlog:
            engine = ObjectEngine(store, settings=ObjectSettings(flush_interval_ms=5))
            backlog(engine, given.backlog)
            engine.close()
        else:
            rates(store, given.messages)


def rates(store: str, count: int) -> None:
    engine = ObjectEngine(store, settings=ObjectSettings(flush_interval_ms=5))
    for size in BATCHES:
        print(f"{size} to a commit, confirmed: {confirmed(engine, count, size):,.0f} messages/s")
    for size in BATCHES:
        print(f"{size} to a commit, published, claimed, acknowledged: {worked(engine, count, size):,.0f} messages/s")
    engine.close()
    for interval in (1, 5, 20):
        engine = ObjectEngine(store, settings=ObjectSettings(flush_interval_ms=interval))
        times = latencies(engine, 100)
        p50, p99 = statistics.median(times), times[98]
        print(f"one message, flush interval {interval} ms: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
        engine.close()


if __name__ == "__main__":
    main()
