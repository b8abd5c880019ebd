"""Cost of a message over an object store: bytes written for each byte of payload, and CPU to publish and to drain.

    python -m bench.objects_cost [--messages N] [--rounds N]

The engine alone, over a directory, one commit at a time. Bytes are those of all files that were written until merges
ended, removed ones too. CPU is that of all threads, without that of making the messages; the least of the rounds.
"""

import argparse
import itertools
import random
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench.objects import PAYLOAD, SOURCE, run
from headrace.model import Message
from headrace.storage.api import Commit
from headrace.storage.group_state import WORK
from headrace.storage.objects.engine import ObjectEngine, ObjectSettings

QUEUES = ("orders", "invoices", "parcels", "returns")
GROUP = "workers"
DRAINED = 1000
"""Messages that are claimed in one commit, and acknowledged in the next."""
_QUIET_S = 2.5
"""Merges have ended when no file was written for this time: the library looks for some every second."""


class Shape(NamedTuple):
    """Messages of one kind, and how many of them go to how many queues in one commit."""

    title: str
    at_once: int
    queues: int
    make: Callable[[random.Random, int], Message]


class Cost(NamedTuple):
    """The cost of one phase for each message, and for each byte of payload."""

    cpu_us: float
    written: float
    parts: dict[str, float]

    def __str__(self) -> str:
        parts = ", ".join([f"{name} {value:.2f}" for name, value in self.parts.items() if value >= 0.005])
        return f"{self.cpu_us:5.1f} us of CPU a message, {self.written:.2f} bytes written a byte of payload ({parts})"


def mixed(chance: random.Random, now_us: int) -> Message:
    """A message with its own id, time and headers as AMQP 0-9-1 has them, and a payload that does not compress."""
    headers = b"".join(
        [
            b"\x05traceS" + struct.pack(">I", 32) + b"%032x" % chance.getrandbits(128),
            b"\x06tenantS" + struct.pack(">I", 7) + b"acme-%02d" % chance.randrange(50),
            b"\x07attemptI" + struct.pack(">i", 1),
        ]
    )
    properties = (
        b"\xb0\xc0\x10application/json"
        + struct.pack(">I", len(headers))
        + headers
        + b"\x02\x24%036x" % chance.getrandbits(144)
        + struct.pack(">Q", now_us // 1_000_000)
    )
    return Message(SOURCE, chance.randbytes(int(24 * (8192 / 24) ** chance.random())), now_us, properties)


def small(chance: random.Random, now_us: int) -> Message:
    return Message(SOURCE, chance.randbytes(len(PAYLOAD)), now_us)


def identical(_: random.Random, now_us: int) -> Message:
    return Message(SOURCE, PAYLOAD, now_us)


SHAPES = (
    Shape("own ids, three headers, 24 B to 8 KB; 4 queues, 500 to a commit", 500, 4, mixed),
    Shape("own ids, three headers, 24 B to 8 KB; 4 queues, 40 to a commit", 40, 4, mixed),
    Shape("own bodies of 100 B; 1 queue, 5000 to a commit", 5000, 1, small),
    Shape("identical but for the time, 100 B; 1 queue, 5000 to a commit", 5000, 1, identical),
)


def publishing(shape: Shape, chance: random.Random) -> Commit:
    """The next commit of messages."""
    now_us = time.time_ns() // 1000
    commit = Commit()
    for queue in QUEUES[: shape.queues]:
        times = range(now_us, now_us + shape.at_once // shape.queues)
        commit.append(queue, [shape.make(chance, time_us) for time_us in times])
    return commit


class Meter:
    """Measures phases of one engine over a directory."""

    def __init__(self, engine: ObjectEngine, directory: Path) -> None:
        self._engine = engine
        self._directory = directory
        self._cpu_s = 0.0
        self._before = self._files()

    def run(self, commit: Commit) -> None:
        used_s = time.process_time()
        run(self._engine, commit)
        self._cpu_s += time.process_time() - used_s

    def read(self, queue: str, offset: int, count: int) -> None:
        used_s = time.process_time()
        log = self._engine.log(queue)
        stop = min(log.next_offset, offset + count)
        while offset < stop:
            offset += len(log.read(offset, stop - offset))
        self._cpu_s += time.process_time() - used_s

    def end(self, messages: int, payload_bytes: int) -> Cost:
        """End a phase: wait until merges have ended."""
        seen, still_s = self._files(), 0.0
        while still_s < _QUIET_S:
            used_s = time.process_time()
            time.sleep(0.25)
            self._engine.poll()
            self._cpu_s += time.process_time() - used_s
            now = self._files()
            still_s, seen = (still_s + 0.25 if now == seen else 0.0), now
        new = {name: size for name, size in seen.items() if name not in self._before}
        parts = {
            kind: sum([size for name, size in found]) / payload_bytes
            for kind, found in itertools.groupby(sorted(new.items()), lambda each: each[0].split("/")[-2])
        }
        cost = Cost(self._cpu_s / messages * 1e6, sum(parts.values()), parts)
        self._cpu_s, self._before = 0.0, seen
        return cost

    def _files(self) -> dict[str, int]:
        found = {str(path): path.stat().st_size for path in self._directory.rglob("*") if path.is_file()}
        return {**getattr(self, "_before", {}), **found}


def measure(shape: Shape, count: int) -> tuple[Cost, Cost]:
    """The cost to publish so many messages, and to drain them afterwards."""
    chance = random.Random(7)
    with tempfile.TemporaryDirectory() as directory:
        engine = ObjectEngine(f"file://{directory}", settings=ObjectSettings(flush_interval_ms=5))
        queues = QUEUES[: shape.queues]
        commit = Commit()
        for queue in queues:
            commit.create_group(queue, GROUP, WORK)
        run(engine, commit)
        meter = Meter(engine, Path(directory))
        payload_bytes = 0
        for _ in range(0, count, shape.at_once):
            commit = publishing(shape, chance)
            payload_bytes += commit.size_bytes
            meter.run(commit)
        published = meter.end(count, payload_bytes)
        for queue in queues:
            stop = engine.log(queue).next_offset
            for at in range(0, stop + DRAINED, DRAINED):
                meter.read(queue, at, DRAINED)
                commit = Commit()
                if at < stop:
                    commit.claim(queue, GROUP, at, min(stop, at + DRAINED), "worker-1", 1)
                if at:
                    commit.ack(queue, GROUP, at - DRAINED, min(stop, at), cut=min(stop, at))
                meter.run(commit)
        drained = meter.end(count, payload_bytes)
        engine.close()
        return published, drained


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    for shape in SHAPES:
        rounds = [measure(shape, given.messages) for _ in range(given.rounds)]
        print(shape.title)
        print(f"  published: {min([published for published, _ in rounds])}")
        print(f"  drained:   {min([drained for _, drained in rounds])}", flush=True)


if __name__ == "__main__":
    main()
