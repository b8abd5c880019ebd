"""The engine over an object store behaves as the memory engine, through reopenings and other processes taking over."""

import contextlib
import shutil
import tempfile
from pathlib import Path
from unittest import mock

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from headrace.errors import Fatal, HeadraceError, Unavailable
from headrace.storage.api import RETAINED, Commit
from headrace.storage.group_state import WORK
from headrace.storage.memory import MemoryEngine
from headrace.storage.objects.database import Writing
from headrace.storage.objects.engine import ObjectEngine, ObjectSettings
from tests.contents import contents
from tests.property.test_engines import Engines, groups, logs, offsets
from tests.waiting import eventually

SMALL = ObjectSettings(flush_interval_ms=1, tail_bytes=12 << 10, cache_bytes=8 << 10)


class Late:
    """A write that has not come through when it is asked for the first time."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        self._is_asked = False

    def wait(self, timeout_ms: int) -> bool:
        was_asked, self._is_asked = self._is_asked, True
        return was_asked and self._writing.wait(timeout_ms)


class ObjectEngines(Engines):
    """The same commits go to a memory engine and to one over a store of files."""

    local: ObjectEngine  # type: ignore[assignment]

    @initialize()
    def begin(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="headrace-"))
        self.model = MemoryEngine()
        self.local = self.open()
        self.number = 0
        self.count = 0
        self.confirmed = 0
        self.safe = 0
        self.used = 0
        self.forgotten = 0
        self.history = [contents(self.model)]

    def open(self) -> ObjectEngine:
        return ObjectEngine(f"file://{self.home}", settings=SMALL)

    def teardown(self) -> None:
        if hasattr(self, "local"):
            self.local.close()
            shutil.rmtree(self.home)

    def confirm(self, error: HeadraceError | None) -> None:
        if not isinstance(error, Fatal):
            super().confirm(error)

    @rule()
    def reopen(self) -> None:
        self.local.close()
        self.safe = self.confirmed
        self.settled()
        self.local = self.open()
        assert contents(self.local) == self.history[-1]

    @rule()
    def kill(self) -> None:
        """Another process takes over in mid-flight: it finds some prefix of the commits, all confirmed ones in it."""
        promised, history, old = self.confirmed, self.history, self.local
        self.local = self.open()
        found = contents(self.local)
        with contextlib.suppress(Fatal):
            old.close()
        matching = [at for at in range(promised, len(history)) if history[at] == found]
        assert matching, "what came back is not what any prefix of the commits left"
        self.become(found, history[matching[-1]])

    @rule(log=logs, group=groups, start=offsets, kinds=st.sets(st.integers(0, 8), min_size=1))
    def refuse(self, log: str, group: str, start: int, kinds: set[int]) -> None:
        """The store takes too long for a commit: it is refused, and nothing of it stays."""
        self.sync()
        commit = Commit()
        exists = group in self.model.log(log).groups
        for kind in sorted(kinds):
            self.add(commit, kind, log, group, start, exists)
        outcomes: list[HeadraceError | None] = []
        database = self.local._writer._database
        with mock.patch.object(database, "write", lambda changes, write=database.write: Late(write(changes))):
            self.local.commit(commit, outcomes.append)
            self.local.sync()
        assert isinstance(outcomes[0], Unavailable)
        assert contents(self.local) == self.history[-1]
        eventually(self.is_taken_back)
        self.reopen()

    def add(self, commit: Commit, kind: int, log: str, group: str, start: int, exists: bool) -> None:
        if kind == 0:
            commit.append(log, self.messages(3, 10, False))
        elif kind == 8:
            self.add_copies(commit, log, {"copies", "more copies"}, start, 5)
        elif kind == 1:
            commit.put(RETAINED, b"k1", b"refused")
        elif kind == 2:
            commit.truncate(log, start)
        elif kind == 3:
            commit.drop(log)
        elif kind == 4 and exists:
            commit.claim(log, group, start, start + 5, "refused", 5)
        elif kind == 5 and exists:
            commit.ack(log, group, start, start + 20)
        elif kind == 6 and exists:
            commit.delete_group(log, group)
        elif kind == 7 and not exists:
            commit.create_group(log, group, WORK, "#", start)
        commit.put(RETAINED, b"refused", b"")

    def is_taken_back(self) -> bool:
        self.local.poll()
        return self.local._undo is None

    def lose_power(self, seed: int) -> None:
        """Files are not synced in a store of files; a store that is a service has no power to lose."""


TestObjectEngines = ObjectEngines.TestCase
TestObjectEngines.settings = settings(
    max_examples=settings().max_examples * 3 // 20,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
