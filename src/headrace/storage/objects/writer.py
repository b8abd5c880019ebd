"""The thread that writes batches and waits for the store. What is in them, and what follows, is the engine's."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, final

from headrace.errors import HeadraceError
from headrace.storage.objects.batch import Batch
from headrace.storage.objects.database import Change, Database, Writing
from headrace.storage.objects.memory import give_back

DURABLE: Final = 0
LATE: Final = 1
"""It took too long; it may still become durable."""
LANDED: Final = 2
"""What was late is durable now."""
UNDONE: Final = 3
FAILED: Final = 4

_WAIT_MS: Final = 500
_GIVE_BACK_US: Final = 5_000_000
"""How often memory is given back while batches are written."""


@final
class Write:
    """A batch to be written, or to be taken back."""

    __slots__ = ("batch", "changes", "error", "is_undoing", "is_urgent")

    def __init__(self, batch: Batch, changes: list[Change], is_undoing: bool = False, is_urgent: bool = False) -> None:
        self.batch = batch
        self.changes = changes
        self.is_undoing = is_undoing
        self.is_urgent = is_urgent
        """Whether it is reported once the database has it in memory: nobody waits for the store."""
        self.error: HeadraceError | None = None


@final
class Writer:
    """Writes one batch after the other. `report` is called in its thread."""

    def __init__(self, database: Database, timeout_ms: int, report: Callable[[int, Write], None]) -> None:
        self._database = database
        self._timeout_ms = timeout_ms
        self._report = report
        self._jobs: SimpleQueue[Write | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._given_back_us = database.clock.monotonic_us()
        self._thread = threading.Thread(target=self._run, name="headrace-objects-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def write(self, write: Write) -> None:
        self._jobs.put(write)

    def stop(self) -> None:
        """Write what was taken, but wait no longer for a store that is away."""
        self._stopping.set()
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (write := self._jobs.get()) is not None:
            try:
                writing = self._database.write(write.changes)
                if write.is_undoing:
                    if self._wait(writing):
                        self._report(UNDONE, write)
                elif (writing.wait_taken if write.is_urgent else writing.wait)(self._timeout_ms):
                    self._report(DURABLE, write)
                else:
                    self._report(LATE, write)
                    if self._wait(writing):
                        self._report(LANDED, write)
            except HeadraceError as error:
                write.error = error
                self._report(FAILED, write)
            self._give_back()

    def _give_back(self) -> None:
        now_us = self._database.clock.monotonic_us()
        if now_us - self._given_back_us >= _GIVE_BACK_US:
            self._given_back_us = now_us
            give_back()

    def _wait(self, writing: Writing) -> bool:
        """Wait as long as it takes; False when the engine is closed before."""
        while not writing.wait(_WAIT_MS):
            if self._stopping.is_set():
                writing.release()
                return False
        return True
