"""What the engine over an object store does: confirmed messages, latency, memory over a backlog, and packed payloads.

    python bench/objects.py [--store URL] [--messages N]     throughput and latency
    python bench/objects.py [--store URL] --backlog N        memory while a backlog grows and while it is read

Without --store a directory is used. "Confirmed" is what the engine called back for: durable in the store.
"""

import argparse
import resource
import statistics
import struct
import tempfile
import time
from pathlib import Path

from headrace.clock import SystemClock
from headrace.errors import HeadraceError
from headrace.model import Message, Source
from headrace.storage.api import Commit
from headrace.storage.group_state import WORK
from headrace.storage.objects.database import Database, Tuning
from headrace.storage.objects.engine import ObjectEngine, ObjectSettings
from headrace.storage.objects.location import Location

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


def packed(store: str, count: int, size: int, rows: int) -> float:
    """Messages a second if payloads were packed, `rows` to a record: not what the format has."""
    database = Database(Location(store), "packed", Tuning(flush_interval_ms=5), SystemClock())
    head = struct.Struct("<QI")
    start = time.perf_counter()
    for base in range(0, count, size):
        changes = []
        for first in range(base, base + size, rows):
            value = b"".join([head.pack(row, len(PAYLOAD)) + PAYLOAD for row in range(first, first + rows)])
            changes.append((first.to_bytes(8, "big"), value))
        database.store(changes)
    rate = count / (time.perf_counter() - start)
    database.close()
    return rate


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def backlog(engine: ObjectEngine, count: int) -> None:
    """Memory while a backlog grows that nobody reads, and while it is read from the start."""
    for part in range(4):
        for _ in range(0, count // 4, 5000):
            run(engine, batch(5000))
        print(f"  {(part + 1) * count // 4:>9,} waiting: {resident_mb():6.0f} MB")
    log = engine.log("orders")
    start, at = time.perf_counter(), log.next_offset - count
    while at < log.next_offset:
        at += len(log.read(at, 1000))
    print(f"  read again at {count / (time.perf_counter() - start):,.0f} messages/s: {resident_mb():6.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--backlog", type=int, default=0, help="look at memory over so many messages")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        store = given.store or f"file://{directory}"
        print(f"{store}, messages of {len(PAYLOAD)} bytes, one commit at a time, flush interval 5 ms")
        if given.backlog:
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
    for size in BATCHES:
        print(f"{size} to a commit, packed 100 to a record: {packed(store, count, size, 100):,.0f} messages/s")
    for interval in (1, 5, 20):
        engine = ObjectEngine(store, settings=ObjectSettings(flush_interval_ms=interval))
        times = latencies(engine, 100)
        p50, p99 = statistics.median(times), times[98]
        print(f"one message, flush interval {interval} ms: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
        engine.close()


if __name__ == "__main__":
    main()
