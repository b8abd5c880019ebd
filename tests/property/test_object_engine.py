"""The engine over an object store behaves as the memory engine, through reopenings and other processes taking over."""

import contextlib
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, rule

from headrace.errors import Fatal, HeadraceError
from headrace.storage.memory import MemoryEngine
from headrace.storage.objects.engine import ObjectEngine, ObjectSettings
from tests.contents import contents
from tests.property.test_engines import Engines

SMALL = ObjectSettings(flush_interval_ms=1, tail_bytes=12 << 10, cache_bytes=8 << 10)


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

    def lose_power(self, seed: int) -> None:
        """Files are not synced in a store of files; a store that is a service has no power to lose."""


TestObjectEngines = ObjectEngines.TestCase
TestObjectEngines.settings = settings(
    max_examples=15, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
