"""The local engine: numbers batches, hands them to the writer, applies written ones, keeps everything bounded."""

import logging
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from queue import SimpleQueue
from typing import Final, final

from headrace.clock import Clock, SystemClock
from headrace.errors import Corrupt, Fatal, HeadraceError, Refused, Unavailable
from headrace.storage.api import Commit, Done, Engine, Log, Wake, check_commit
from headrace.storage.local.batch import OPEN, REFUSED, WRITTEN, Batch
from headrace.storage.local.catalog import Catalog
from headrace.storage.local.disk import Disk, is_full, is_out_of_files
from headrace.storage.local.files import DirectoryLock
from headrace.storage.local.flusher import Flusher, Job
from headrace.storage.local.journal import Journal
from headrace.storage.local.record import Record
from headrace.storage.local.recovery import Recovery
from headrace.storage.local.segment import BlockCache
from headrace.storage.local.upkeep import LocalSettings as LocalSettings
from headrace.storage.local.upkeep import Upkeep
from headrace.storage.local.writer import Synced, SyncFailure, Writer

_log: Final = logging.getLogger("headrace.storage")

_Result = Batch | Synced | SyncFailure | Job


@final
class LocalEngine(Engine):
    """Everything durable of one broker, in one directory."""

    def __init__(
        self,
        root: Path,
        wake: Wake | None = None,
        settings: LocalSettings | None = None,
        clock: Clock | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Open or create the directory. Raises Unavailable when it is in use, and Corrupt when it is damaged."""
        self.keeps_claims = False
        self.staged_bytes = 0
        self._root = root
        self._wake = wake
        self._settings = settings or LocalSettings()
        self._clock = clock or SystemClock()
        self._disk = disk or Disk()
        self._failure: HeadraceError | None = None
        self._closed = False
        self._results: SimpleQueue[_Result] = SimpleQueue()
        self._batches: deque[Batch] = deque()
        """All batches whose owners are not told yet how they ended, in order."""
        self._held: deque[Batch] = deque()
        """Those of them that wait for the flusher; the writer gets them in order."""
        self._in_flight = 0
        """The number of batches with the writer."""
        self._seen: deque[Wake] = deque()
        """Callbacks of batches that are visible and not durable yet."""
        self._owed: Batch | None = None
        """The last batch that the owner wrote itself, if it is still to be synced."""
        self._is_sync_due = False
        """True if the owner syncs its records itself at the next `poll`."""
        self._sync_wanted = False
        self._is_refusing = False
        """True from the refusal of messages by a full disk until there is space again."""
        self._make_directories()
        self._lock = DirectoryLock(root, self._clock)
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise

    # -- calls of the owner ------------------------------------------------------------------------------------------

    def commit(self, commit: Commit, done: Done, durable: bool = True) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise Unavailable("the engine is closed; open it again")
        check_commit(commit)
        if commit.appends and self._upkeep.full is not None and self._upkeep.is_behind(self._position):
            self._maintain()
            raise self._refusal()
        self._submit(Batch(commit, done, durable))
        if self._is_over(self._batches[0]):  # no thread will wake the owner for it
            self._wake_owner()
        self._tell_seen()

    def log(self, name: str) -> Log:
        return self._catalog.log(name)

    def logs(self) -> list[str]:
        return [name for name, log in self._catalog.logs.items() if log.exists]

    def items(self, table: str) -> Iterable[tuple[bytes, bytes]]:
        found = self._catalog.tables.get(table)
        return found.values.items() if found is not None else ()

    def get(self, table: str, key: bytes) -> bytes | None:
        found = self._catalog.tables.get(table)
        return found.values.get(key) if found is not None else None

    @property
    def trouble(self) -> str:
        return str(self._out_of_space()) if self._is_refusing else ""

    def poll(self) -> None:
        if self._is_sync_due:
            self._sync_here()
        is_going_on = self._upkeep.is_under_way
        if not self._upkeep.is_collecting:  # else nothing may be applied
            self._drain_results()
        self._maintain()
        if is_going_on or self._upkeep.is_under_way:
            self._wake_owner()
        if self._is_refusing and self._upkeep.full is None and not self._journal.needs_spare:
            self._is_refusing = False  # a new journal file could be made
        if self._held:
            self._release_held()
        if self._seen or self._owed is not None:
            self._tell_seen()
        self._call_back()
        if self._failure is not None:
            raise self._failure

    def sync(self) -> None:
        if not self._in_flight:
            self.poll()
        while self._batches:
            if self._is_sync_due or self._upkeep.is_under_way:
                self.poll()
                continue
            written = self._writer.write_here() if self._in_flight == 1 else None
            self._take(written if written is not None else self._results.get())
            self.poll()

    def close(self) -> None:
        if self._closed:
            return
        failed_before = self._failure is not None
        try:
            if not failed_before:
                self.sync()
                self._upkeep.checkpoint_wanted = True
                self._settle()
            if self._failure is not None and not failed_before:
                raise self._failure
        finally:
            self._closed = True
            self._writer.stop()
            self._flusher.stop()
            self._journal.close()
            self._catalog.cache.close()
            self._lock.release()

    # -- opening -----------------------------------------------------------------------------------------------------

    def _make_directories(self) -> None:
        changed: set[Path] = set()
        for name in ("journal", "queues", "config", "state"):
            changed.update(self._disk.make_directory(self._root / name))
        for directory in sorted(changed):
            self._disk.sync_directory(directory)

    def _open(self) -> None:
        settings = self._settings
        self._catalog = Catalog(self._root, BlockCache(self._disk, settings.cache_bytes))
        self._flusher = Flusher(self._disk, self._root, settings.segment_bytes, self._results.put)
        self._upkeep = Upkeep(self._root, self._catalog, self._flusher, settings, self._clock)
        recovery = Recovery(self._disk, self._root, self._catalog)
        reader = recovery.load()
        checkpoint_position = reader.end
        for record in reader.records():
            batch = self._replayed(record)
            self._catalog.apply(batch, record.seq)
            self._upkeep.do_chores()
            if self._catalog.memory.tail_bytes > settings.tail_bytes:
                self._upkeep.flush(reader.end, checkpoint=False)
                self._drain_results()
                self._upkeep.finish()
        recovery.finish(reader)
        if reader.end.seq != checkpoint_position.seq:
            _log.info("%d commits were recovered from the journal", reader.end.seq - checkpoint_position.seq)
        self._position = reader.end
        self._synced_seq = reader.end.seq
        self._next_seq = reader.end.seq + 1
        spares = settings.checkpoint_bytes // settings.journal_file_bytes + 2
        self._journal = Journal(
            self._disk,
            self._root / "journal",
            settings.journal_file_bytes,
            spares,
            recovery.files,
            reader.end,
        )
        self._upkeep.start(self._journal, checkpoint_position)
        self._writer = Writer(self._journal, self._clock, self._report)
        self._flusher.report = self._report
        self._writer.start()
        self._flusher.start()

    def _replayed(self, record: Record) -> Batch:
        try:
            return self._catalog.replay(record)
        except (KeyError, ValueError) as error:
            what = f"commit {record.seq} does not fit the checkpoint ({error!r}); restore both from one copy"
            raise Corrupt(str(self._root / "journal"), 0, what) from error

    def _report(self, result: _Result) -> None:
        """Take a result from one of the threads."""
        self._results.put(result)
        self._wake_owner()

    # -- batches -----------------------------------------------------------------------------------------------------

    def _submit(self, batch: Batch) -> None:
        """Resolve and encode a batch, and hand it to the writer. Raises Refused or Corrupt; nothing of it happens then.

        The owner of a batch with a message that cannot be encoded is told in its order, like any other.
        """
        groups = self._catalog.resolve(batch)
        self._batches.append(batch)
        self.staged_bytes += batch.commit.size_bytes
        try:
            batch.encode()
        except Refused as error:
            batch.refuse(error)
            return
        self._catalog.stage(batch, groups, self._next_seq)
        self._next_seq += 1
        if self._held or self._is_held_up():
            self._held.append(batch)
        else:
            self._write(batch)

    def _is_held_up(self) -> bool:
        """True while batches must wait for a checkpoint, or for the flusher: memory and the journal stay bounded."""
        upkeep = self._upkeep
        is_behind = upkeep.flushing and upkeep.full is None and upkeep.is_behind(self._position)
        return self._failure is not None or upkeep.is_collecting or is_behind

    def _release_held(self) -> None:
        """Hand the held batches to the writer, if they need not wait for the flusher any more."""
        while self._held and not self._is_held_up():
            if (
                self._held[0].commit.appends
                and self._upkeep.full is not None
                and self._upkeep.is_behind(self._position)
            ):
                if not self._in_flight:
                    self._refuse_unwritten()
                return
            self._write(self._held.popleft())

    def _write(self, batch: Batch) -> None:
        """Write a small batch here, and leave the others to the thread."""
        batch.durable = batch.durable or self._sync_wanted
        self._in_flight += 1
        if self._in_flight > 1 or self._sync_wanted or not self._write_here(batch):
            self._writer.write(batch)

    def _write_here(self, batch: Batch) -> bool:
        """Write a small batch in this thread, if that is better; returns whether it was.

        One call writes and syncs where nobody would use the batch before it is durable.
        """
        commit = batch.commit
        is_early = commit.written is not None
        may_wait = not (is_early and commit.is_consumed)
        if may_wait and batch.durable and self._syncs_here and self._writer.write_synced(batch):
            self._take_batch(batch)
            return True
        if not (is_early and self._writer.write_unsynced(batch)):
            return False
        if self._owed is None or batch.durable:
            self._owed = batch
        self._take_batch(batch, is_synced=False)
        return True

    @property
    def _syncs_here(self) -> bool:
        """True if a sync takes less than the two changes of threads that it costs to leave it to the thread."""
        return self._wake is not None and self._writer.has_fast_disk

    def _refuse_unwritten(self) -> None:
        """Refuse all batches that are not written: messages find no space, and later batches build on earlier ones."""
        for batch in self._batches:
            if batch.state == OPEN:
                batch.refuse(self._refusal() if batch.commit.appends else self._out_of_space())
                self._next_seq = min(self._next_seq, batch.seq)
        self._held.clear()
        self._in_flight = 0
        self._catalog.forget_staged()

    def _is_over(self, batch: Batch) -> bool:
        """True if the owner of the batch can be told: it is refused, or as durable as the owner wants."""
        if batch.state == WRITTEN:
            return not batch.durable or batch.seq <= self._synced_seq
        return batch.state == REFUSED

    def _tell_seen(self) -> None:
        """Let owners use their written batches; the sync starts afterwards, or its thread would be in the way."""
        while self._seen:
            self._seen.popleft()()
        owed, self._owed = self._owed, None
        if owed is None or (owed.durable and self._is_sync_due):
            return
        if owed.durable and self._syncs_here and not (self._in_flight or self._held):
            self._is_sync_due = True
            self._wake_owner()
        else:
            self._writer.sync(owed.durable)

    def _sync_here(self) -> None:
        """Sync the owner's records, or leave that to the thread if it is busy with the journal."""
        self._is_sync_due = False
        try:
            if not self._in_flight and self._writer.sync_here():
                self._synced_seq = self._journal.synced_seq
            else:
                self._writer.sync(True)
        except OSError as error:
            self._fail(error)

    def _wake_owner(self) -> None:
        if self._wake is not None:
            self._wake()

    def _call_back(self) -> None:
        """Tell owners, in the order of their batches."""
        while self._batches and self._is_over(self._batches[0]):
            batch = self._batches.popleft()
            self.staged_bytes -= batch.commit.size_bytes
            batch.done(batch.refusal)

    # -- results -----------------------------------------------------------------------------------------------------

    def _take(self, result: _Result) -> None:
        if isinstance(result, Batch):
            if result.state == OPEN:  # else it was refused with the one before it
                self._take_batch(result, is_synced=not result.is_early)
        elif isinstance(result, Synced):
            self._synced_seq = max(self._synced_seq, result.seq)
        elif isinstance(result, SyncFailure):
            self._fail(result.error)
        else:
            error = self._upkeep.take(result)
            if error is not None:
                self._fail(error)

    def _take_batch(self, batch: Batch, is_synced: bool = True) -> None:
        """Make a written batch visible, or refuse it with all behind it."""
        if batch.position is not None:
            self._in_flight -= 1
            self._position = batch.position
            batch.state = WRITTEN
            if self._is_refusing and batch.blocks:
                self._is_refusing = False
            if batch.durable and is_synced:
                self._synced_seq = batch.seq
            self._catalog.apply(batch, batch.seq)
            if not is_synced and batch.commit.written is not None:
                self._seen.append(batch.commit.written)
            return
        assert batch.error is not None
        if not is_full(batch.error):
            self._fail(batch.error)
            return
        self._upkeep.full = batch.error
        self._upkeep.checkpoint_wanted = True
        self._refuse_unwritten()
        self._writer.resume()

    def _fail(self, error: OSError) -> None:
        """Stop everything after a failure of the disk: the engine can promise nothing any more."""
        if self._failure is not None:
            return
        where = f" ({error.filename})" if error.filename else ""
        self._failure = Fatal(
            f"writing to {self._root} failed: {error.strerror or error}{where}; what was confirmed before is kept, "
            f"nothing more is accepted. Check the disk, then start again"
        )
        _log.critical("%s", self._failure)
        for batch in self._batches:
            if not self._is_over(batch):
                batch.refuse(self._failure)
        self._held.clear()
        self._in_flight = 0

    def _refusal(self) -> Unavailable:
        """The error for messages that find no space; they are refused until there is some again."""
        self._is_refusing = True
        return self._out_of_space()

    def _out_of_space(self) -> Unavailable:
        if self._upkeep.full is not None and is_out_of_files(self._upkeep.full):
            return Unavailable("there is no descriptor left to open a file with; raise the limit of open files")
        return Unavailable(f"the disk of {self._root} is full; free some space, publishing then goes on by itself")

    # -- upkeep ------------------------------------------------------------------------------------------------------

    def _maintain(self) -> None:
        if self._failure is not None:
            return
        if self._upkeep.is_under_way:
            self._upkeep.go_on()
            return
        is_synced = self._position.seq <= self._synced_seq
        if self._upkeep.run(self._position, is_synced):
            self._request_sync()
        elif is_synced:
            self._sync_wanted = False

    def _request_sync(self) -> None:
        """Sync every batch until all visible ones are durable."""
        self._sync_wanted = True
        if not self._in_flight and not self._held:
            self._submit(Batch(Commit(), durable=True))

    def _settle(self) -> None:
        """Wait for a checkpoint of everything, or for the news that none can be written now."""
        upkeep = self._upkeep
        attempted = False
        upkeep.finish()
        while self._failure is None and (upkeep.flushing or self._in_flight or upkeep.checkpoint_wanted):
            if not upkeep.flushing and not self._in_flight:
                if attempted and upkeep.full is not None:
                    break
                attempted = True
                upkeep.retry_now()  # a flush that was under way may have failed meanwhile
                self._maintain()
                upkeep.finish()
                if upkeep.full is not None and not upkeep.flushing and not self._in_flight:
                    continue  # the checkpoint was put off at once: no result will come
            self._take(self._results.get())
            upkeep.finish()
            self._call_back()
        if upkeep.full is not None:
            what = "descriptors ran out" if is_out_of_files(upkeep.full) else "the disk is full"
            _log.warning("%s: the journal keeps what the segments cannot take", what)

    def _drain_results(self) -> None:
        while not self._results.empty():
            self._take(self._results.get())
