"""Cost of the storage engine, beside a raw file with write + fdatasync of the same bytes, in one run.

    python -m bench.storage                 everything, a few minutes
    python -m bench.storage commits arrow   some of it
    python -m bench.storage --dir /mnt/ssd  on another disk

Rounds of the two sides alternate, and figures are ratios: these machines are noisy.
"""

import argparse
import gc
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.model import Message, Source
from headrace.storage.api import Commit
from headrace.storage.group_state import WORK
from headrace.storage.local.engine import LocalEngine

SOURCE = Source("orders/created")
START_US = 1_700_000_000_000_000


def messages(count: int, size: int) -> list[Message]:
    return [Message(SOURCE, b"x" * size, START_US + at) for at in range(count)]


def check(error: HeadraceError | None) -> None:
    if error is not None:
        raise error


def memory_bytes() -> int:
    """Memory of this process that is its own: anonymous pages, without the page cache's files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon")


def show(name: str, figure: float, goal: str, detail: str) -> None:
    print(f"{name:<58} {figure:>8.2f}   goal {goal:<10} {detail}", flush=True)


class Raw:
    """The yardstick: a file that grows by each write, synced after each."""

    def __init__(self, path: Path, preallocate: int = 0) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_RDWR)
        if preallocate:
            for _ in range(preallocate >> 20):
                os.write(self._fd, bytes(1 << 20))
            os.fsync(self._fd)
            os.lseek(self._fd, 0, os.SEEK_SET)

    def write(self, data: bytes) -> None:
        os.write(self._fd, data)
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class Driver:
    """An engine and its owner: commits as an event loop would, and sleeps while nothing is to be done."""

    def __init__(self, path: Path) -> None:
        self._woken = threading.Event()
        self.engine = LocalEngine(path, self._woken.set)

    def commit(self, commit: Commit, outstanding_bytes: int = 1_600_000) -> None:
        self.engine.commit(commit, check)
        if self._woken.is_set():
            self._poll()
        while self.engine.staged_bytes > outstanding_bytes:
            self._woken.wait()
            self._poll()

    def publish(self, log: str, batch: list[Message], times: int) -> None:
        for _ in range(times):
            commit = Commit()
            commit.append(log, batch)
            self.commit(commit)
        self.engine.sync()

    def _poll(self) -> None:
        self._woken.clear()
        self.engine.poll()


def seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def bench_commits(root: Path) -> None:
    """1000 messages of 200 B a commit, a few commits outstanding, against the same bytes in a raw file."""
    batch = messages(1000, 200)
    data = b"x" * 200 * 1000
    driver = Driver(root / "commits")
    raw = Raw(root / "raw")
    rounds, commits = 7, 300
    ratios: list[float] = []
    rates: list[float] = []

    def run_engine() -> None:
        driver.publish("orders", batch, commits)

    def run_raw() -> None:
        for _ in range(commits):
            raw.write(data)

    run_engine()
    for _ in range(rounds):
        ours, theirs = seconds(run_engine), seconds(run_raw)
        ratios.append(theirs / ours)
        rates.append(commits * len(batch) / ours)
    driver.engine.close()
    raw.close()
    show(
        "1000 x 200 B a commit: rate, ratio to the raw file",
        statistics.median(ratios),
        ">= 0.6",
        f"{statistics.median(rates) / 1e3:.0f} k messages/s; ratios {min(ratios):.2f} to {max(ratios):.2f}",
    )


def bench_latency(root: Path) -> None:
    """One message a commit, one commit at a time."""
    message = messages(1, 200)
    engine = LocalEngine(root / "latency")
    grown = Raw(root / "grown")
    written = Raw(root / "written", 64 << 20)
    data = b"x" * 200
    times: dict[str, list[float]] = {"ours": [], "grown": [], "written": []}

    def run_engine() -> None:
        commit = Commit()
        commit.append("orders", message)
        engine.commit(commit, check)
        engine.sync()

    for _ in range(30):
        for _ in range(50):
            times["ours"].append(seconds(run_engine))
        for _ in range(50):
            times["grown"].append(seconds(lambda: grown.write(data)))
        for _ in range(50):
            times["written"].append(seconds(lambda: written.write(data)))
    engine.close()
    median = {name: statistics.median(values) for name, values in times.items()}
    detail = ", ".join(f"{name} {value * 1e6:.0f} us" for name, value in median.items())
    show("one message a commit: latency, ratio to the raw file", median["ours"] / median["grown"], "<= 1.5", detail)
    show("  the same, to a raw file that was written before", median["ours"] / median["written"], "(harder)", "")


def bench_queues(root: Path) -> None:
    """1000 queues in turn, 1000 messages a commit: whole commits in turn, and messages in turn, beside one queue."""
    batch = messages(1000, 200)
    drivers = {name: Driver(root / name) for name in ("bulk", "each", "commits", "messages")}
    names = [f"orders-{number}" for number in range(1000)]
    commits = 300
    number = 0

    def by_commit() -> None:
        nonlocal number
        for _ in range(commits):
            commit = Commit()
            commit.append(names[number % len(names)], batch)
            number += 1
            drivers["commits"].commit(commit)
        drivers["commits"].engine.sync()

    def by_message(driver: Driver, queues: list[str]) -> None:
        for _ in range(commits):
            commit = Commit()
            for name, message in zip(queues, batch, strict=True):
                commit.append(name, [message])
            driver.commit(commit)
        driver.engine.sync()

    runs: dict[str, Callable[[], None]] = {
        "bulk": lambda: drivers["bulk"].publish("orders", batch, commits),
        "each": lambda: by_message(drivers["each"], ["orders"] * 1000),
        "commits": by_commit,
        "messages": lambda: by_message(drivers["messages"], names),
    }
    for _ in range(4):
        by_commit()  # until every queue has its directory
    for run in runs.values():
        run()
    rounds = [{name: seconds(run) for name, run in runs.items()} for _ in range(7)]
    for ours, theirs, text, goal in (
        ("commits", "bulk", "1000 queues, a commit each in turn, ratio to one queue", ">= 0.5"),
        ("messages", "each", "1000 queues, a message each in turn, ratio to the same loop", ">= 0.5"),
        ("messages", "bulk", "  the same, ratio to one queue with one append a commit", "(harder)"),
    ):
        ratios = [taken[theirs] / taken[ours] for taken in rounds]
        show(text, statistics.median(ratios), goal, f"ratios {min(ratios):.2f} to {max(ratios):.2f}")
    for driver in drivers.values():
        driver.engine.close()


def bench_flow(root: Path) -> None:
    """Messages appended, claimed, acked and cut, 1024 a commit, over 10 and 10,000 queues, checkpoints included."""
    for run, goal in ((64, "<= 1.3"), (1, "<= 2")):
        costs = {queues: _flow_cost(root / f"flow-{run}-{queues}", queues, run) for queues in (10, 10_000)}
        text = f"10,000 queues, {run} messages to each in turn, ratio to 10 queues"
        show(
            text,
            costs[10_000] / costs[10],
            goal,
            ", ".join(f"{cost:.2f}" for cost in costs.values()) + " us of CPU each",
        )


def _flow_cost(path: Path, queues: int, run: int, count: int = 2_000_000) -> float:
    """Microseconds of CPU for each message; each is done with eight commits after its own."""
    driver = Driver(path)
    names = [f"orders-{number}" for number in range(queues)]
    for start in range(0, queues, 500):
        commit = Commit()
        for name in names[start : start + 500]:
            commit.create_group(name, "workers", WORK)
        driver.commit(commit)
    following = [0] * queues
    waiting: list[list[int]] = []
    batch = messages(run, 100)
    at = 0

    def turn() -> None:
        nonlocal at
        commit = Commit()
        chosen = [(at + number) % queues for number in range(1024 // run)]
        at += len(chosen)
        for number in chosen:
            commit.append(names[number], batch)
        waiting.append(chosen)
        for number in waiting.pop(0) if len(waiting) > 8 else ():
            start = following[number]
            stop = following[number] = start + run
            commit.claim(names[number], "workers", start, stop, "consumer", 0)
            commit.ack(names[number], "workers", start, stop)
            commit.truncate(names[number], stop)
        driver.commit(commit)

    for _ in range(200):
        turn()
    driver.engine.sync()
    before = time.process_time()
    for _ in range(count // 1024):
        turn()
    driver.engine.sync()
    cost = (time.process_time() - before) / (count // 1024 * 1024) * 1e6
    driver.engine.close()
    return cost


def bench_open_queues(root: Path) -> None:
    """10,000 queues, each with a message and a group."""
    engine = LocalEngine(root / "ten-thousand")
    gc.collect()
    before = memory_bytes()
    for number in range(10_000):
        commit = Commit()
        commit.append(f"queue-{number}", messages(1, 100))
        commit.create_group(f"queue-{number}", "workers", WORK)
        engine.commit(commit, check)
        engine.poll()
    engine.sync()
    gc.collect()
    each = (memory_bytes() - before) / 10_000
    engine.close()
    show("10,000 queues open: memory each, KB", each / 1000, "< 10", "")
    taken = seconds(lambda: LocalEngine(root / "ten-thousand").close())
    show("  opening and closing them again, s", taken, "", "")


def bench_backlog(root: Path) -> None:
    """5 million messages of 100 B: memory, cost of append and ack, and opening them again after a kill."""
    driver = Driver(root / "backlog")
    engine = driver.engine
    commit = Commit()
    commit.create_group("orders", "workers", WORK)
    engine.commit(commit, check)
    engine.sync()
    gc.collect()
    before = memory_bytes()
    batch = messages(1000, 100)
    peak = before

    def publish(count: int) -> None:
        nonlocal peak
        for _ in range(count // 10_000):
            driver.publish("orders", batch, 10)
            peak = max(peak, memory_bytes())

    acked = 0

    def cost(count: int) -> float:
        """CPU seconds for each message appended, claimed and acked, 100 a commit."""
        nonlocal acked
        gc.collect()
        start = time.process_time()
        for _ in range(count // 100):
            commit = Commit()
            commit.append("orders", batch[:100])
            commit.claim("orders", "workers", acked, acked + 100, "consumer", 0)
            commit.ack("orders", "workers", acked, acked + 100)
            acked += 100
            engine.commit(commit, check)
            engine.sync()
        return (time.process_time() - start) / count

    publish(10_000)
    early = min(cost(20_000) for _ in range(5))
    publish(5_000_000)
    grown = peak - before
    late = min(cost(20_000) for _ in range(5))
    show("backlog of 5 M x 100 B: memory grown, MiB", grown / (1 << 20), "< 64", "")
    show("  append and ack at 5 M, ratio to 10 k", late / early, "<= 1.3", f"{late * 1e6:.2f} us of CPU each")
    shutil.copytree(root / "backlog", root / "killed")
    reopened: list[LocalEngine] = []
    taken = seconds(lambda: reopened.append(LocalEngine(root / "killed")))
    show("  opening them after a kill, s", taken, "< 2", f"{reopened[0].log('orders').next_offset} messages")
    reopened[0].close()
    engine.close()
    taken = seconds(lambda: reopened.append(LocalEngine(root / "backlog")))
    show("  opening them after a clean stop, s", taken, "< 2", "")
    reopened[1].close()


def bench_arrow(root: Path) -> None:
    """A sealed log of 1 million messages of 100 B as record batches, in one process."""
    driver = Driver(root / "arrow")
    for commit_size, log in ((1000, "bulk"), (10, "trickle")):
        batch = messages(commit_size, 100)
        driver.publish(log, batch, 1_000_000 // commit_size)
    driver.engine.close()
    engine = LocalEngine(root / "arrow")
    for log in ("bulk", "trickle"):

        def read(log: str = log) -> None:
            rows = sum(batch.num_rows for batch in engine.log(log).record_batches(0, 1_000_000))
            assert rows == 1_000_000

        read()
        taken = min(seconds(read) for _ in range(5))
        show(f"Arrow read of 1 M x 100 B ({log} commits), M rows/s", 1 / taken, ">= 3", "")
    engine.close()


BENCHES: dict[str, Callable[[Path], None]] = {
    "commits": bench_commits,
    "latency": bench_latency,
    "queues": bench_queues,
    "flow": bench_flow,
    "open": bench_open_queues,
    "backlog": bench_backlog,
    "arrow": bench_arrow,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help=f"some of: {' '.join(BENCHES)}")
    parser.add_argument("--dir", type=Path, help="where to write; a temporary folder beside this one by default")
    options = parser.parse_args()
    chosen = options.what or list(BENCHES)
    for name in chosen:
        if name not in BENCHES:
            sys.exit(f"no bench {name!r}; choose from: {' '.join(BENCHES)}")
    if len(chosen) > 1:  # each in a process of its own, so that memory is that of one bench
        for name in chosen:
            subprocess.run([sys.executable, __file__, name, *sys.argv[1 + len(options.what) :]], check=True)
        return
    root = Path(tempfile.mkdtemp(prefix="headrace-bench-", dir=options.dir or Path.cwd()))
    try:
        BENCHES[chosen[0]](root)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
