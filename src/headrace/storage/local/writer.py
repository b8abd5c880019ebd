"""The thread that writes batches into the journal, syncs them and reports. Knows no logs and no groups.

The owner may write small records itself, into the operating system's memory; the thread then syncs them.
"""

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Final, final

from headrace.clock import Clock
from headrace.storage.local.batch import Batch
from headrace.storage.local.disk import is_full
from headrace.storage.local.journal import Journal
from headrace.storage.local.record import encoded_length

_SYNC_WITHIN_US: Final = 1_000_000
_TOGETHER: Final = 64
"""One sync serves up to this many records. Each virtual host sends one batch at a time, so few queues are longer."""

_HERE_BYTES: Final = 16 << 10
"""The owner itself may write records up to this length: copying them takes less than a change of threads."""
_LARGE_BYTES: Final = 4 << 10
"""Batches of messages of this size, in the mean, are reported before their sync: the second report is paid by few."""
_SLOW_US: Final = 20_000
_SLOW_FOR_US: Final = 1_000_000
"""After a write that took longer than 20 ms the disk is busy, and for a second only the thread waits for it."""
_FAST_SYNC_US: Final = 1_000
"""While syncs take less than 1 ms in the mean, the owner may sync."""
_UNKNOWN_US: Final = 8_000
"""The mean before the first sync: the owner syncs after eight short ones."""
_MEAN_OF: Final = 4
"""Every sync counts for a quarter of the mean, so one of more than 4 ms gives at least the next to the thread."""


@final
class SyncFailure:
    """A sync of records that were written without one failed."""

    __slots__ = ("error",)

    def __init__(self, error: OSError) -> None:
        self.error = error


@final
class Synced:
    """All records up to this one are durable."""

    __slots__ = ("seq",)

    def __init__(self, seq: int) -> None:
        self.seq = seq


@final
class Sync:
    """A request to sync the owner's records: at once if somebody waits for them, else within a second."""

    __slots__ = ("is_awaited",)

    def __init__(self, is_awaited: bool) -> None:
        self.is_awaited = is_awaited


_AT_ONCE: Final = Sync(True)
_SOON: Final = Sync(False)

Report = Batch | Synced | SyncFailure


def _is_early(batch: Batch) -> bool:
    """True if consumers would have large messages of the batch before its sync."""
    if batch.commit.written is None or not (batch.durable and batch.commit.is_consumed):
        return False
    return any([block.row_bytes >= _LARGE_BYTES for block in batch.blocks])


@final
class Writer:
    """Writes records in order. After a failure it reports the batches behind unwritten, until `resume`."""

    def __init__(self, journal: Journal, clock: Clock, report: Callable[[Report], None]) -> None:
        self._journal = journal
        self._clock = clock
        self._report = report
        self._jobs: SimpleQueue[Batch | Sync | bool] = SimpleQueue()
        self._unsynced: list[Batch] = []
        """Written batches, not reported yet, that the next sync serves. More jobs are queued while there are any."""
        self._broken = False
        """True once the disk failed: nothing is written or synced any more."""
        self._is_resuming = False
        self._mean_sync_us = _UNKNOWN_US
        """The moving mean of what syncs take, whoever makes them."""
        self.has_fast_disk = False
        """True if that is short."""
        self._not_here_until_us = 0
        """The end of the time in which the owner writes nothing itself; 0 if that is over."""
        self._busy = Lock()
        """Held by the user of the journal: this thread, or the owner in `write_here`."""
        self._worker = Thread(target=self._work, name="headrace-journal", daemon=True)

    def start(self) -> None:
        self._worker.start()

    def write(self, batch: Batch) -> None:
        self._jobs.put(batch)

    def write_here(self) -> Batch | None:
        """Write the only unreported batch in the calling thread, if ours has not begun with it.

        For an owner that waits anyway: without the two changes of threads a commit of one message took 156 to 169 us
        instead of 177 to 223. Records that need no sync are left to the thread, which syncs them later.
        """
        if self._is_resuming or self._broken:
            return None
        try:
            job = self._jobs.get_nowait()
        except Empty:
            return None
        if not isinstance(job, Batch) or not job.durable:
            self._jobs.put(job)
            return None
        self._put(job, True)
        return job

    def write_unsynced(self, batch: Batch) -> bool:
        """Write a record in the calling thread, into the operating system's memory; False if that is for the thread.

        Only when all batches before it are written: then this waits for no disk. `sync` or `sync_here` must follow.
        """
        if not self._is_small(batch):
            return False
        started_us = self._clock.monotonic_us()
        if started_us < self._not_here_until_us:
            return False
        try:
            batch.position = self._journal.write(batch.seq, batch.operations, batch.runs, batch.blocks, False)
        except OSError as error:
            batch.error = error
        ended_us = self._clock.monotonic_us()
        self._not_here_until_us = ended_us + _SLOW_FOR_US if ended_us - started_us > _SLOW_US else 0
        return True

    def write_synced(self, batch: Batch) -> bool:
        """Write and sync a record in the calling thread, in one call; False if that is for the thread.

        Only when all batches before it are written.
        """
        if self._broken or not self._is_small(batch) or self._busy.locked():
            return False
        self._put(batch, True)
        return True

    def _is_small(self, batch: Batch) -> bool:
        """True if copying the record takes less than a change of threads, and its journal file has room."""
        return encoded_length(batch.operations, batch.runs, batch.blocks) <= min(_HERE_BYTES, self._journal.room)

    def sync(self, is_awaited: bool) -> None:
        """Sync the records that were written without: at once, or within a second."""
        if is_awaited or self._journal.unsynced:
            self._jobs.put(_AT_ONCE if is_awaited else _SOON)

    def sync_here(self) -> bool:
        """Sync in the calling thread; False if ours uses the journal now. Raises OSError."""
        if self._broken or not self._busy.acquire(blocking=False):
            return False
        started_us = self._clock.monotonic_us()
        try:
            self._journal.sync()
        except OSError:
            self._broken = True
            raise
        finally:
            self._busy.release()
        self._note_sync(started_us)
        return True

    def _note_sync(self, started_us: int) -> None:
        took_us = self._clock.monotonic_us() - started_us
        self._mean_sync_us += (took_us - self._mean_sync_us) // _MEAN_OF
        self.has_fast_disk = self._mean_sync_us < _FAST_SYNC_US

    def resume(self) -> None:
        """Write again: the owner has refused all batches behind the failed one."""
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
            if isinstance(job, Batch):
                was_unsynced = self._journal.unsynced
                if failed or self._broken:
                    self._report(job)
                else:
                    failed = not self._write(job)
                if self._journal.unsynced and not was_unsynced:
                    sync_at_us = self._clock.monotonic_us() + _SYNC_WITHIN_US
                del job  # its messages go once their owner is told, not with the next job
                continue
            if self._unsynced:
                self._report_unsynced()
            if isinstance(job, Sync):
                if job.is_awaited:
                    self._sync()
                else:
                    sync_at_us = self._clock.monotonic_us() + _SYNC_WITHIN_US
            elif job:
                failed = False
                self._is_resuming = False
            else:
                self._sync()
                return

    def _next(self, sync_at_us: int) -> Batch | Sync | bool:
        """The next job. Raises Empty when it is time to sync instead."""
        if self._broken or self._unsynced or not self._journal.unsynced:
            return self._jobs.get()
        left_us = sync_at_us - self._clock.monotonic_us()
        if left_us <= 0:
            raise Empty
        return self._jobs.get(timeout=left_us / 1_000_000)

    def _write(self, batch: Batch) -> bool:
        """Write a batch and report it, after one sync for it and the batches queued behind it."""
        is_last = self._jobs.empty() or len(self._unsynced) >= _TOGETHER
        if is_last and not self._unsynced:
            batch.is_early = _is_early(batch)
            self._put(batch, batch.durable and not batch.is_early)
            self._report(batch)
            if batch.is_early and batch.error is None:
                self._sync()
            return batch.error is None
        self._put(batch, False)
        if batch.error is None:
            self._unsynced.append(batch)
        if is_last or batch.error is not None:
            self._report_unsynced()
        if batch.error is not None:
            self._report(batch)
        return batch.error is None

    def _report_unsynced(self) -> None:
        """Sync the written batches if one of them is durable, and report them; a failed sync reports itself."""
        written, self._unsynced = self._unsynced, []
        if any([batch.durable for batch in written]):
            self._sync()
        if not self._broken:
            for batch in written:
                self._report(batch)

    def _put(self, batch: Batch, synced: bool) -> None:
        started_us = self._clock.monotonic_us()
        try:
            with self._busy:
                batch.position = self._journal.write(batch.seq, batch.operations, batch.runs, batch.blocks, synced)
        except OSError as error:
            batch.error = error
            if not is_full(error):
                self._broken = True  # a later sync could succeed although data is lost
        if synced:
            self._note_sync(started_us)

    def _sync(self) -> None:
        if self._broken or not self._journal.unsynced:
            return
        started_us = self._clock.monotonic_us()
        try:
            with self._busy:
                self._journal.sync()
        except OSError as error:
            self._broken = True
            self._report(SyncFailure(error))
        else:
            self._note_sync(started_us)
            self._report(Synced(self._journal.synced_seq))
