"""The thread that writes the journal: takes encoded batches, writes and syncs each, reports. Knows no logs.

Small records may be written by the owner instead, into the operating system's memory; the thread then syncs them.
"""

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Final, final

from headrace.clock import Clock
from headrace.storage.local.block import Block
from headrace.storage.local.journal import Journal, Position

_SYNC_WITHIN_US: Final = 1_000_000


@final
class Write:
    """One record for the journal; afterwards `position` says where it ended, or `error` why it was not written."""

    __slots__ = ("blocks", "durable", "error", "operations", "position", "runs", "seq", "skipped")

    def __init__(self, seq: int, operations: bytes, runs: bytes, blocks: list[Block], durable: bool) -> None:
        self.seq = seq
        self.operations = operations
        self.runs = runs
        self.blocks = blocks
        self.durable = durable
        self.position: Position | None = None
        self.error: OSError | None = None
        self.skipped = False


@final
class SyncFailure:
    """The background sync of records written without one failed."""

    __slots__ = ("error",)

    def __init__(self, error: OSError) -> None:
        self.error = error


@final
class Synced:
    """Everything up to this record would survive a power loss now."""

    __slots__ = ("seq",)

    def __init__(self, seq: int) -> None:
        self.seq = seq


@final
class Sync:
    """What the owner wrote is to be synced: now, because somebody waits for it, or within a second."""

    __slots__ = ("is_awaited",)

    def __init__(self, is_awaited: bool) -> None:
        self.is_awaited = is_awaited


Report = Write | Synced | SyncFailure


@final
class Writer:
    """Writes records in the order they come. After one fails, those behind it are skipped until `resume`."""

    def __init__(self, journal: Journal, clock: Clock, report: Callable[[Report], None]) -> None:
        self._journal = journal
        self._clock = clock
        self._report = report
        self._jobs: SimpleQueue[Write | Sync | bool] = SimpleQueue()
        self._broken = False
        """Whether a sync failed: nothing is written any more."""
        self._is_resuming = False
        self._busy = Lock()
        """Held by whoever uses the journal: this thread, or the owner in `write_here`."""
        self._worker = Thread(target=self._work, name="headrace-journal", daemon=True)

    def start(self) -> None:
        self._worker.start()

    def write(self, write: Write) -> None:
        self._jobs.put(write)

    def write_here(self) -> Write | None:
        """Write the only record handed over in the thread that calls, if ours has not begun with it.

        For an owner that waits anyway: without the two changes of threads a commit of one message took 156 to 169 us
        instead of 177 to 223. Records that need no sync are left to the thread, which syncs them later.
        """
        if self._is_resuming or self._broken:
            return None
        try:
            job = self._jobs.get_nowait()
        except Empty:
            return None
        if not isinstance(job, Write) or not job.durable:
            self._jobs.put(job)
            return None
        self._put(job)
        return job

    def write_unsynced(self, write: Write) -> None:
        """Write a record in the thread that calls, into the operating system's memory; have it synced by `sync`.

        Only when all that was handed over is written, and the journal has room: then this waits for no disk.
        """
        try:
            write.position = self._journal.write(write.seq, write.operations, write.runs, write.blocks, False)
        except OSError as error:
            write.error = error

    def sync(self, is_awaited: bool) -> None:
        """Have what was written without a sync synced: at once, or within a second."""
        if is_awaited or self._journal.unsynced:
            self._jobs.put(Sync(is_awaited))

    def resume(self) -> None:
        """What was queued behind a failed record has been taken back; write again."""
        self._is_resuming = True
        self._jobs.put(True)

    def stop(self) -> None:
        """Finish the records handed over so far, synced."""
        self._jobs.put(False)
        self._worker.join()

    def _work(self) -> None:
        failed = False
        sync_at_us = 0
        while True:
            try:
                job = self._next(sync_at_us)
            except Empty:
                self._sync()
                continue
            if isinstance(job, bool):
                if not job:
                    self._sync()
                    return
                failed = False
                self._is_resuming = False
            elif isinstance(job, Sync):
                if job.is_awaited:
                    self._sync()
                else:
                    sync_at_us = self._clock.monotonic_us() + _SYNC_WITHIN_US
            elif failed or self._broken:
                job.skipped = True
                self._report(job)
            else:
                was_unsynced = self._journal.unsynced
                failed = not self._write(job)
                if self._journal.unsynced and not was_unsynced:
                    sync_at_us = self._clock.monotonic_us() + _SYNC_WITHIN_US

    def _next(self, sync_at_us: int) -> Write | Sync | bool:
        """The next job. Raises Empty when it is time to sync instead."""
        if self._broken or not self._journal.unsynced:
            return self._jobs.get()
        left_us = sync_at_us - self._clock.monotonic_us()
        if left_us <= 0:
            raise Empty
        return self._jobs.get(timeout=left_us / 1_000_000)

    def _write(self, job: Write) -> bool:
        self._put(job)
        self._report(job)
        return job.error is None

    def _put(self, job: Write) -> None:
        try:
            with self._busy:
                job.position = self._journal.write(job.seq, job.operations, job.runs, job.blocks, job.durable)
        except OSError as error:
            job.error = error

    def _sync(self) -> None:
        if self._broken or not self._journal.unsynced:
            return
        try:
            with self._busy:
                self._journal.sync()
        except OSError as error:
            self._broken = True
            self._report(SyncFailure(error))
        else:
            self._report(Synced(self._journal.synced_seq))
