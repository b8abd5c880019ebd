"""Queues that are filled from streams against a simple model, through restarts and takeovers, over three engines.

The model is a list per stream and per queue: a queue has what its filter admits of its source from where it began, once
and in order, as far as it has got; when everything came to rest, it has all of it.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.clock import ManualClock
from headrace.core.queue.definition import CLASSIC, REJECT_PUBLISH, STREAM, QueueDefinition
from headrace.core.queue.group import ACK
from headrace.errors import Fatal
from headrace.storage.api import Commit, Engine
from headrace.storage.local.engine import LocalEngine, LocalSettings
from headrace.storage.memory import MemoryEngine
from headrace.storage.objects.engine import ObjectEngine, ObjectSettings
from tests.house import House

SMALL = LocalSettings(
    journal_file_bytes=16 << 10,
    checkpoint_bytes=48 << 10,
    tail_bytes=12 << 10,
    segment_bytes=16 << 10,
    cache_bytes=8192,
)
SMALL_OBJECTS = ObjectSettings(flush_interval_ms=1, tail_bytes=12 << 10, cache_bytes=8 << 10)
SOURCES = ("papers", "letters", "copies")
"""The first fills the last."""
NAMES = ("q0", "q1", "q2", "q3", "q4")
LIMIT = 5
FILTERS: dict[str, Callable[[int], bool]] = {
    "": lambda n: True,
    "n > 50": lambda n: n > 50,
    "n / 2 < 20": lambda n: n < 40,
    "n = 7": lambda n: n == 7,
}

numbers = st.lists(st.integers(0, 99), min_size=1, max_size=12)


class Filled:
    """The model of a queue: its filter, its source, and its messages."""

    def __init__(self, source: str, expression: str, start: int, is_limited: bool) -> None:
        self.source = source
        self.admits = FILTERS[expression]
        self.start = start
        self.is_limited = is_limited
        self.before: list[int] = []
        """Messages from deleted sources."""
        self.taken = 0


class Assignments(RuleBasedStateMachine):
    """Streams and the queues that they fill."""

    engine: Engine

    def open(self) -> Engine:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="headrace-"))
        self.clock = ManualClock()
        self.engine = self.open()
        self.house = House(self.engine, self.clock)
        self.streams: dict[str, list[int]] = {}
        self.filled: dict[str, Filled] = {}
        for name in SOURCES[:2]:
            self.house.broker.declare(QueueDefinition(name, STREAM))
            self.streams[name] = []
        self.house.broker.declare(QueueDefinition("copies", STREAM, source="papers"))
        self.house.run()

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.close()
            shutil.rmtree(self.home)

    @rule(name=st.sampled_from(SOURCES[:2]), values=numbers, settles=st.booleans())
    def publish(self, name: str, values: list[int], settles: bool) -> None:
        if name not in self.streams:
            return
        for value in values:
            self.house.broker.publish(self.house.message(str(value), name, headers={"n": value}))
        self.streams[name] += values
        if settles:
            self.house.run()
        else:
            self.house.broker.flush()

    @rule(
        name=st.sampled_from(NAMES),
        source=st.sampled_from(SOURCES),
        expression=st.sampled_from(sorted(FILTERS)),
        start=st.sampled_from(["earliest", "latest", "3"]),
        kind=st.sampled_from([CLASSIC, STREAM]),
        is_limited=st.booleans(),
    )
    def declare(self, name: str, source: str, expression: str, start: str, kind: str, is_limited: bool) -> None:
        if name in self.filled or self.origin(source) not in self.streams:
            return
        self.house.run()  # so that the model knows where the stream ends
        is_limited = is_limited and kind == CLASSIC
        limits: dict[str, Any] = {"max_length": LIMIT, "overflow": REJECT_PUBLISH} if is_limited else {}
        self.house.broker.declare(
            QueueDefinition(name, kind, filter=expression, source=source, source_from=start, **limits)
        )
        end = len(self.stream(source))
        begin = {"earliest": 0, "latest": end}.get(start, min(3, end))
        self.filled[name] = Filled(source, expression, begin, is_limited)

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        if self.filled.pop(name, None) is not None:
            self.house.broker.delete(name)
            self.house.run()  # so that it does not come back

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 4))
    def work(self, name: str, count: int) -> None:
        """Take some waiting messages to make room."""
        filled = self.filled.get(name)
        if filled is None or not filled.is_limited:
            return
        inbox = self.house.consume(name, credit=count)
        for delivery in inbox.take()[:count]:
            self.house.broker.settle(delivery, ACK)
            filled.taken += 1
            assert int(delivery.message.payload) == self.wanted(filled)[filled.taken - 1]
        self.house.broker.cancel(inbox.consumer)
        self.house.run()

    @rule()
    def replace_letters(self) -> None:
        """Delete a stream and declare it anew: its queues keep their messages and get new ones."""
        self.house.run()
        for name, filled in self.filled.items():
            if filled.source == "letters":
                filled.before = self.wanted(filled)[: self.got(name)]
                filled.start = 0
        self.house.broker.delete("letters")
        self.house.broker.declare(QueueDefinition("letters", STREAM))
        self.streams["letters"] = []
        self.house.run()

    @rule(is_orderly=st.booleans())
    def restart(self, is_orderly: bool) -> None:
        """Open another broker over the store; a disorderly one cuts off the work under way."""
        if is_orderly:
            self.house.run()
        self.engine.commit(Commit(), lambda error: None)  # durable after all before it, which nobody waited for
        self.engine.sync()
        stored = {name: self.house.broker.queue(name).log.next_offset for name in SOURCES}
        if is_orderly:
            self.house.broker.drain()
        self.reopen(is_orderly)
        self.house = House(self.engine, self.clock)
        for name in self.streams:
            assert self.house.broker.queue(name).log.next_offset >= stored[name]
            del self.streams[name][self.house.broker.queue(name).log.next_offset :]
        for name in [name for name in self.filled if name not in self.house.broker.topology.queues]:
            del self.filled[name]
        self.house.broker.tick()

    def reopen(self, is_orderly: bool) -> None:
        self.engine.close()
        self.engine = self.open()

    @rule()
    def rest(self) -> None:
        """After all steps, every queue has its messages."""
        self.house.run()
        for name, filled in self.filled.items():
            wanted = self.wanted(filled)
            if not filled.is_limited:
                assert self.got(name) == len(wanted)
            else:
                assert self.got(name) == len(wanted) or self.house.broker.queue(name).messages >= LIMIT

    @invariant()
    def what_is_there_is_right(self) -> None:
        if not hasattr(self, "house"):
            return
        for name, filled in self.filled.items():
            log = self.house.broker.queue(name).log
            there = [int(message.payload) for message in log.read(log.first_offset, 1 << 20)]
            assert there == self.wanted(filled)[log.first_offset : log.next_offset]

    def got(self, name: str) -> int:
        return self.house.broker.queue(name).log.next_offset

    def origin(self, source: str) -> str:
        return "papers" if source == "copies" else source

    def stream(self, source: str) -> list[int]:
        return self.streams[self.origin(source)]

    def wanted(self, filled: Filled) -> list[int]:
        return filled.before + [n for n in self.stream(filled.source)[filled.start :] if filled.admits(n)]


class AssignmentsInMemory(Assignments):
    def open(self) -> Engine:
        return MemoryEngine()

    def reopen(self, is_orderly: bool) -> None:
        self.engine.sync()


class AssignmentsOnDisk(Assignments):
    def open(self) -> Engine:
        return LocalEngine(self.home / "data", settings=SMALL, clock=self.clock)


class AssignmentsInAStore(Assignments):
    def open(self) -> Engine:
        return ObjectEngine(f"file://{self.home}", settings=SMALL_OBJECTS)

    def reopen(self, is_orderly: bool) -> None:
        """In a disorderly restart, another process takes over while the first one still has the store."""
        before = self.engine
        if is_orderly:
            before.close()
        self.engine = self.open()
        if not is_orderly:
            with contextlib.suppress(Fatal):
                before.close()


_SETTINGS = settings(
    max_examples=settings().max_examples // 12,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
TestAssignmentsInMemory = AssignmentsInMemory.TestCase
TestAssignmentsInMemory.settings = settings(_SETTINGS, max_examples=settings().max_examples * 3 // 2)
TestAssignmentsOnDisk = AssignmentsOnDisk.TestCase
TestAssignmentsOnDisk.settings = _SETTINGS
TestAssignmentsInAStore = AssignmentsInAStore.TestCase
TestAssignmentsInAStore.settings = _SETTINGS
