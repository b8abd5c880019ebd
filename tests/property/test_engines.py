"""Every engine behaves as the memory engine, through any commits, reopenings, kills and power losses."""

import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.errors import HeadraceError
from headrace.model import Message, Source
from headrace.storage.api import QUEUES, RETAINED, Commit, Origin
from headrace.storage.group_state import STREAM, WORK
from headrace.storage.local.engine import LocalEngine, LocalSettings
from headrace.storage.memory import MemoryEngine
from tests.contents import contents
from tests.disks import LosingDisk

SMALL = LocalSettings(
    journal_file_bytes=16 << 10,
    checkpoint_bytes=48 << 10,
    tail_bytes=12 << 10,
    segment_bytes=16 << 10,
    cache_bytes=8 << 10,
    step=1,
)
SHARING = replace(SMALL, own_files=0)
"""The same; small tails and the states of groups are together in one file each, however few they are."""
LOGS = ("orders", "Ünï/cødé#@+", "q." * 127)
GROUPS = ("workers", "workers@#")
SOURCES = (Source("orders/eu"), Source("orders/us", "amq.topic", "client-1", "amqp091", 1))

logs = st.sampled_from(LOGS)
groups = st.sampled_from(GROUPS)
offsets = st.integers(0, 400)


class Engines(RuleBasedStateMachine):
    """The same commits go to a memory engine and to a local one; after any mishap they hold the same."""

    @initialize()
    def begin(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="headrace-"))
        self.generation = 0
        self.model = MemoryEngine()
        self.disk = LosingDisk()
        self.openings = 0
        self.local = self.open_local(self.home / "0")
        self.number = 0
        self.count = 0
        self.confirmed = 0
        self.safe = 0
        """Numbers of commits in the history that are confirmed, and that must survive a power loss."""
        self.used = 0
        """Number of commits that may be used: these must survive a kill."""
        self.forgotten = 0
        """Number of commits before those in the history."""
        self.history = [contents(self.model)]
        """Contents of the model after each commit, beginning with one that must survive anything."""
        self.errors: list[HeadraceError | None] = []

    def open_local(self, root: Path) -> LocalEngine:
        """Every second time with files that many share: each way has to go on from what the other left."""
        self.openings += 1
        return LocalEngine(root, settings=SHARING if self.openings % 2 else SMALL, disk=self.disk)

    def teardown(self) -> None:
        if hasattr(self, "local"):
            self.local.close()
            shutil.rmtree(self.home)

    def commit(self, commit: Commit) -> None:
        """To both; the model says whether it is allowed. Every third commit need not be synced, half may run ahead."""
        copy = Commit()
        for append in commit.appends:
            copy.append(append.log, append.messages, append.origin)
        copy.steps = commit.steps
        copy.puts = commit.puts
        copy.truncations = commit.truncations
        copy.drops = commit.drops
        try:
            self.model.commit(copy, lambda error: None)
        except HeadraceError as refused:
            try:
                self.local.commit(commit, self.confirm)
            except type(refused):
                return
            raise AssertionError(f"the model refused what the local engine took: {refused}") from refused
        self.model.sync()
        self.history.append(contents(self.model))
        self.count += 1
        durable = self.count % 3 > 0
        if self.count % 4 > 1:
            number = self.forgotten + len(self.history) - 1
            commit.written = lambda: self.use(number)
        self.local.commit(commit, self.confirm_durable if durable else self.confirm, durable)

    def use(self, number: int) -> None:
        """Whoever uses a commit before it is synced finds it and all before it."""
        place = number - self.forgotten
        assert contents(self.local) in self.history[place:]
        self.used = max(self.used, place)

    def confirm(self, error: HeadraceError | None) -> None:
        assert error is None
        self.confirmed += 1
        self.used = max(self.used, self.confirmed)

    def confirm_durable(self, error: HeadraceError | None) -> None:
        self.confirm(error)
        self.safe = self.confirmed

    def messages(self, count: int, size: int, plain: bool) -> list[Message]:
        made: list[Message] = []
        for _ in range(count):
            self.number += 1
            payload = b"%d." % self.number + b"x" * size
            time = 1_000 + self.number * 37 % 500
            if plain:
                made.append(Message(SOURCES[0], payload, time))
            else:
                made.append(
                    Message(SOURCES[self.number % 2], payload, time, b"p" * (self.number % 5), self.number % 10, 9)
                )
        return made

    @rule(log=logs, count=st.integers(1, 400), size=st.integers(0, 60), plain=st.booleans())
    def append(self, log: str, count: int, size: int, plain: bool) -> None:
        commit = Commit()
        commit.append(log, self.messages(count, size, plain))
        self.commit(commit)

    @rule(counts=st.lists(st.tuples(logs, st.integers(1, 3)), min_size=1, max_size=6))
    def append_to_several(self, counts: list[tuple[str, int]]) -> None:
        commit = Commit()
        for log, count in counts:
            commit.append(log, self.messages(count, 10, True))
        self.commit(commit)

    @rule(source=logs, takers=st.sets(logs, min_size=1), offset=offsets, count=st.integers(1, 20))
    def copy(self, source: str, takers: set[str], offset: int, count: int) -> None:
        commit = Commit()
        self.add_copies(commit, source, takers, offset, count)
        self.commit(commit)

    def add_copies(self, commit: Commit, source: str, takers: set[str], offset: int, count: int) -> None:
        """Have some messages of a log go to others as well."""
        log = self.model.log(source)
        start = max(offset, log.first_offset)
        messages = log.read(start, count)
        origin = Origin(source, list(range(start, start + len(messages))))
        for taker in sorted(takers) if messages else ():
            commit.append(taker, messages, origin)

    @rule(log=logs, group=groups, mode=st.sampled_from([WORK, STREAM]), start=offsets)
    def create_group(self, log: str, group: str, mode: int, start: int) -> None:
        commit = Commit()
        commit.create_group(log, group, mode, "#", start)
        self.commit(commit)

    @rule(log=logs, group=groups)
    def delete_group(self, log: str, group: str) -> None:
        commit = Commit()
        commit.delete_group(log, group)
        self.commit(commit)

    @rule(log=logs, group=groups, start=offsets, count=st.integers(0, 30), kind=st.integers(0, 5))
    def step(self, log: str, group: str, start: int, count: int, kind: int) -> None:
        commit = Commit()
        stop = start + count
        if kind == 0:
            commit.claim(log, group, start, stop, "consumer-1", 77)
        elif kind == 1:
            commit.ack(log, group, start, stop, stop if count % 3 == 0 else 0)
        elif kind == 2:
            commit.bury(log, group, start, stop)
        elif kind == 3:
            commit.requeue(log, group, start, stop, 88)
        elif kind == 4:
            commit.seek(log, group, start)
        else:
            commit.commit_offset(log, group, start)
        self.commit(commit)

    @rule(source=logs, grave=logs, group=groups, offset=offsets)
    def dead_letter(self, source: str, grave: str, group: str, offset: int) -> None:
        commit = Commit()
        commit.append(grave, self.messages(1, 5, False))
        commit.bury(source, group, offset, offset + 1)
        self.commit(commit)

    @rule(
        key=st.integers(0, 5), size=st.integers(0, 3000), table=st.sampled_from([QUEUES, RETAINED]), gone=st.booleans()
    )
    def put(self, key: int, size: int, table: str, gone: bool) -> None:
        commit = Commit()
        if gone:
            commit.delete(table, b"k%d" % key)
        else:
            commit.put(table, b"k%d" % key, b'{"name":"%s"}' % (b"v" * size))
        self.commit(commit)

    @rule(log=logs, before=st.integers(0, 3000))
    def truncate(self, log: str, before: int) -> None:
        commit = Commit()
        commit.truncate(log, before)
        self.commit(commit)

    @rule(log=logs)
    def drop(self, log: str) -> None:
        commit = Commit()
        commit.drop(log)
        self.commit(commit)

    @rule()
    def poll(self) -> None:
        self.local.poll()

    @rule()
    def sync(self) -> None:
        self.local.sync()
        assert contents(self.local) == self.history[-1]
        self.settled()

    @rule(time=st.integers(900, 1600))
    def find(self, time: int) -> None:
        self.sync()
        for name in self.model.logs():
            assert self.local.log(name).find(time) == self.model.log(name).find(time)

    @rule(start=offsets, count=st.integers(0, 300), size=st.integers(0, 2000))
    def read(self, start: int, count: int, size: int) -> None:
        self.sync()
        for name in self.model.logs():
            ours, theirs = self.local.log(name), self.model.log(name)
            at = max(start, theirs.first_offset)
            found = [m.payload for m in ours.read(at, count, size)]
            assert found == [m.payload for m in theirs.read(at, count, size)]

    @rule()
    def read_as_arrow(self) -> None:
        self.sync()
        for name in self.model.logs():
            log = self.local.log(name)
            batches = list(log.record_batches(log.first_offset, log.next_offset))
            payloads = [payload for batch in batches for payload in batch.column("payload").to_pylist()]
            assert payloads == [m.payload for m in log.read(log.first_offset, 1 << 30)]
            offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
            assert offsets == list(range(log.first_offset, log.next_offset))

    @rule()
    def reopen(self) -> None:
        self.local.close()
        self.safe = self.confirmed
        self.settled()
        self.local = self.open_local(self.home / str(self.generation))
        assert contents(self.local) == self.history[-1]

    @rule()
    def kill(self) -> None:
        root = self.home / str(self.generation)
        self.come_back(lambda target: self.disk.snapshot(root, target), lambda: self.used)

    @rule(seed=st.integers(0, 1 << 30))
    def lose_power(self, seed: int) -> None:
        root = self.home / str(self.generation)
        self.come_back(lambda target: self.disk.lose_power(root, target, random.Random(seed)), lambda: self.safe)

    def come_back(self, take: Callable[[Path], None], count: Callable[[], int]) -> None:
        """Go on from a copy of the files taken in mid-flight: some prefix of the commits, all promised ones in it."""
        target = self.home / str(self.generation + 1)
        with self.disk.lock:  # nothing is written between counting what is confirmed and taking the copy
            promised = count()
            take(target)
        history = self.history
        self.local.close()
        shutil.rmtree(self.home / str(self.generation))
        self.generation += 1
        self.disk = LosingDisk()
        self.local = self.open_local(target)
        found = contents(self.local)
        matching = [at for at in range(promised, len(history)) if history[at] == found]
        assert matching, "what came back is not what any prefix of the commits left"
        self.become(found, history[matching[-1]])

    def become(self, found: dict[str, Any], state: dict[str, Any]) -> None:
        """The commits behind the prefix are lost, as they may be: let the model forget them too."""
        self.model = MemoryEngine()
        copy = Commit()
        for name, (_first, following, _, _) in ((k, v) for k, v in state.items() if k != "tables"):
            log = self.local.log(name)
            blank = [Message(SOURCES[0], b"", 0)] * log.first_offset
            copy.append(name, [*blank, *log.read(log.first_offset, following)])
            copy.truncate(name, log.first_offset)
        for table, items in state["tables"].items():
            for key, value in items:
                copy.put(table, key, value)
        self.model.commit(copy, lambda error: None)
        self.model.sync()
        for name in self.local.logs():
            self.model._logs[name]._groups = {
                group: state.copy() for group, state in self.local.log(name).groups.items()
            }
        assert contents(self.model) == found
        self.history = [found]
        self.confirmed = self.safe = self.used = 0

    def settled(self) -> None:
        """History starts with the last commit that must survive anything."""
        self.history = self.history[self.safe :]
        self.forgotten += self.safe
        self.confirmed -= self.safe
        self.used -= self.safe
        self.safe = 0

    @invariant()
    def nothing_is_confirmed_twice(self) -> None:
        if hasattr(self, "history"):
            assert self.confirmed < len(self.history)


TestEngines = Engines.TestCase
TestEngines.settings = settings(
    max_examples=settings().max_examples // 4,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
