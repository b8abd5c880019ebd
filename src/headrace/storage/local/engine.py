"""The local engine: takes commits, hands batches to the writer, applies what came back, keeps everything bounded."""

import logging
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from queue import SimpleQueue
from typing import Final, final

from headrace.clock import Clock, SystemClock
from headrace.errors import Corrupt, Fatal, HeadraceError, Refused, Unavailable
from headrace.storage.api import Commit, Done, Engine, Log, Wake, check_commit
from headrace.storage.local.batch import Batch, Staged, batch_of
from headrace.storage.local.catalog import Catalog
from headrace.storage.local.disk import Disk, is_full, is_out_of_files
from headrace.storage.local.files import DirectoryLock
from headrace.storage.local.flusher import Flusher, Job
from headrace.storage.local.journal import Journal
from headrace.storage.local.record import Record, encoded_length
from headrace.storage.local.recovery import Recovery
from headrace.storage.local.segment import BlockCache
from headrace.storage.local.upkeep import LocalSettings as LocalSettings
from headrace.storage.local.upkeep import Upkeep
from headrace.storage.local.writer import Synced, SyncFailure, Write, Writer

_log: Final = logging.getLogger("headrace.storage")

_BATCH_BYTES: Final = 4 << 20
_AHEAD_BYTES: Final = 64 << 10
"""A second record is made ready while one is being written only when it is this large: small ones wait and grow."""
_HERE_BYTES: Final = 16 << 10
"""Records up to this length may be written by the owner itself: copying them takes less than a change of threads."""
_SLOW_US: Final = 20_000
_SLOW_FOR_US: Final = 1_000_000
"""When such a write took longer than 20 ms the disk is busy, and for a second only the thread waits for it."""


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
        self._results: SimpleQueue[Write | Synced | SyncFailure | Job] = SimpleQueue()
        self._waiting: deque[Staged] = deque()
        self._waiting_bytes = 0
        self._in_flight: deque[tuple[Write, Batch]] = deque()
        self._applied: deque[tuple[int, Staged]] = deque()
        """Commits that readers see, in order, with the record that has to be synced before they are done."""
        self._seen: deque[Wake] = deque()
        """Those of them whose owner is to be told that they are seen."""
        self._not_here_until_us = 0
        self._owed: Write | None = None
        """What was written here and is still to be synced."""
        self._callbacks: deque[tuple[Done, HeadraceError | None, int]] = deque()
        self._sync_wanted = False
        self._is_refusing = False
        """Whether the last messages were refused as the disk was full, and it is not known to have space again."""
        self._one_by_one = False
        """Whether a batch was refused and waits for those before it, so that its commits can be told apart."""
        self._make_directories()
        self._lock = DirectoryLock(root, self._clock)
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise

    # -- what core calls ---------------------------------------------------------------------------------------------

    def commit(self, commit: Commit, done: Done, durable: bool = True) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise Unavailable("the engine is closed; open it again")
        check_commit(commit)
        if commit.appends and self._upkeep.full is not None and self._upkeep.is_behind(self._position):
            self._maintain()
            raise self._refusal()
        self._waiting.append(self._catalog.stage(commit, done, durable))
        self._waiting_bytes += commit.size_bytes
        self.staged_bytes += commit.size_bytes
        self._submit()
        if self._callbacks and self._wake is not None:  # done or refused at once: no thread will wake the owner for it
            self._wake()
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
        self._drain_results()
        self._maintain()
        if self._is_refusing and self._upkeep.full is None and not self._journal.needs_spare:
            self._is_refusing = False  # a file for what is published could be made
        self._submit()
        self._tell_seen()
        self._call_back()
        if self._failure is not None:
            raise self._failure

    def sync(self) -> None:
        if not self._in_flight:
            self.poll()
        while self._in_flight or self._waiting or self._applied:
            written = self._writer.write_here() if len(self._in_flight) == 1 else None
            self._take(written if written is not None else self._results.get())
            self.poll()
        self._call_back()

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
            if self._catalog.tail_bytes > settings.tail_bytes:
                self._upkeep.flush(reader.end, checkpoint=False)
                self._drain_results()
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

    def _report(self, result: Write | Synced | SyncFailure | Job) -> None:
        """Called by the threads."""
        self._results.put(result)
        if self._wake is not None:
            self._wake()

    # -- commits -----------------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        """Hand as many waiting commits to the writer as make sense now."""
        while self._waiting and not self._is_held_up():
            if self._in_flight and (self._one_by_one or len(self._in_flight) > 1 or self._waiting_bytes < _AHEAD_BYTES):
                return
            if self._upkeep.full is not None and self._upkeep.is_behind(self._position):
                if self._in_flight:
                    return
                self._fail_waiting_appends()
            if self._waiting:
                self._submit_batch()

    def _is_held_up(self) -> bool:
        """Whether commits must wait for the flusher: memory and the journal stay bounded."""
        upkeep = self._upkeep
        is_behind = upkeep.flushing and upkeep.full is None and upkeep.is_behind(self._position)
        return self._failure is not None or is_behind

    def _submit_batch(self) -> None:
        commits: list[Staged] = []
        size = 0
        durable = False
        while self._waiting and (not commits or size + self._waiting[0].commit.size_bytes <= _BATCH_BYTES):
            if commits and (commits[0].commit.is_encoded or self._waiting[0].commit.is_encoded):
                break  # what came encoded goes alone: a record has one block for all, or one for each run
            staged = self._waiting.popleft()
            commits.append(staged)
            size += staged.commit.size_bytes
            durable = durable or staged.durable
        self._waiting_bytes -= size
        try:
            batch = batch_of(commits)
        except Refused as error:
            self._refuse(commits, error)
            return
        self._one_by_one = False
        self._write(batch, durable)

    def _write(self, batch: Batch, durable: bool) -> None:
        durable = durable or self._sync_wanted
        write = Write(self._next_seq, batch.operations, batch.runs(), batch.blocks, durable)
        self._next_seq += 1
        is_here = self._may_write_here(write, batch)
        self._in_flight.append((write, batch))
        if is_here:
            self._write_here(write)
        else:
            self._writer.write(write)

    def _may_write_here(self, write: Write, batch: Batch) -> bool:
        """Whether a record may be used before it is synced, and can be written without waiting for the disk."""
        if self._in_flight or self._sync_wanted or any([staged.commit.applied is None for staged in batch.commits]):
            return False
        length = encoded_length(write.operations, write.runs, write.blocks)
        if length > _HERE_BYTES or not self._journal.has_room(length):
            return False
        return self._clock.monotonic_us() >= self._not_here_until_us

    def _write_here(self, write: Write) -> None:
        started_us = self._clock.monotonic_us()
        self._writer.write_unsynced(write)
        ended_us = self._clock.monotonic_us()
        if ended_us - started_us > _SLOW_US:
            self._not_here_until_us = ended_us + _SLOW_FOR_US
        if self._owed is None or write.durable:
            self._owed = write
        self._take_write(write, is_synced=False)

    def _refuse(self, commits: list[Staged], error: HeadraceError) -> None:
        """A message cannot be stored: find whose it is, refuse that commit, and go on with the others."""
        if self._in_flight:  # offsets can be given anew only when nothing is on its way
            self._one_by_one = True
            self._waiting.extendleft(reversed(commits))
            self._waiting_bytes += sum(staged.commit.size_bytes for staged in commits)
            return
        good = 0
        try:
            for staged in commits:
                batch_of([staged])
                good += 1
        except Refused as found:
            error = found
        else:
            raise error
        if good == 0:
            self._finish(commits[0], error)
            self._restage(commits[1:])
            return
        # Those before it go first and alone, so that callbacks run in the order of commits.
        self._waiting.extendleft(reversed(commits[good:]))
        self._waiting_bytes += sum(staged.commit.size_bytes for staged in commits[good:])
        self._write(batch_of(commits[:good]), any(staged.durable for staged in commits[:good]))

    def _restage(self, commits: list[Staged]) -> None:
        """Stage these and all waiting commits anew, because one before them did not happen."""
        assert not self._in_flight, "what is on its way has its offsets"
        everything = [*commits, *self._waiting]
        self._waiting.clear()
        self._waiting_bytes = 0
        self._catalog.unstage_all()
        for staged in everything:
            try:
                again = self._catalog.stage(staged.commit, staged.done, staged.durable)
            except HeadraceError as error:
                self._finish(staged, error)
            else:
                self._waiting.append(again)
                self._waiting_bytes += staged.commit.size_bytes

    def _finish(self, staged: Staged, error: HeadraceError | None) -> None:
        self._callbacks.append((staged.done, error, staged.commit.size_bytes))

    def _finish_synced(self) -> None:
        """Be done with the commits that would survive a power loss now, or need not."""
        while self._applied and self._applied[0][0] <= self._synced_seq:
            self._finish(self._applied.popleft()[1], None)

    def _tell_seen(self) -> None:
        """Let commits be used that are written; their sync comes second, or its thread would be in the way."""
        while self._seen:
            self._seen.popleft()()
        owed, self._owed = self._owed, None
        if owed is not None:
            self._writer.sync(owed.durable)

    def _call_back(self) -> None:
        while self._callbacks:
            done, error, size_bytes = self._callbacks.popleft()
            self.staged_bytes -= size_bytes
            done(error)

    # -- results -----------------------------------------------------------------------------------------------------

    def _take(self, result: Write | Synced | SyncFailure | Job) -> None:
        if isinstance(result, Write):
            self._take_write(result)
        elif isinstance(result, Synced):
            self._synced_seq = max(self._synced_seq, result.seq)
            self._finish_synced()
        elif isinstance(result, SyncFailure):
            self._fail(result.error)
        else:
            error = self._upkeep.take(result)
            if error is not None:
                self._fail(error)

    def _take_write(self, write: Write, is_synced: bool = True) -> None:
        if write.skipped:
            return  # taken back when the one before it failed
        _, batch = self._in_flight.popleft()
        if write.position is not None:
            self._position = write.position
            if self._is_refusing and batch.blocks:
                self._is_refusing = False
            if write.durable and is_synced:
                self._synced_seq = write.seq
            self._catalog.apply(batch, write.seq)
            for staged in batch.commits:
                self._applied.append((write.seq if write.durable else 0, staged))
                if not is_synced and staged.commit.applied is not None:
                    self._seen.append(staged.commit.applied)
            self._finish_synced()
            return
        assert write.error is not None
        if not is_full(write.error):
            self._in_flight.appendleft((write, batch))
            self._fail(write.error)
            return
        self._upkeep.full = write.error
        self._upkeep.checkpoint_wanted = True
        for staged in batch.commits:
            self._finish(staged, self._refusal() if staged.commit.appends else self._out_of_space())
        behind = [staged for _, later in self._in_flight for staged in later.commits]
        self._in_flight.clear()
        self._next_seq = write.seq
        self._writer.resume()
        self._restage(behind)

    def _fail_waiting_appends(self) -> None:
        kept: list[Staged] = []
        for staged in self._waiting:
            if staged.commit.appends:
                self._finish(staged, self._refusal())
            else:
                kept.append(staged)
        self._waiting.clear()
        self._waiting_bytes = 0
        self._restage(kept)

    def _fail(self, error: OSError) -> None:
        """The disk did not keep its word: nothing can be promised any more, so everything stops."""
        if self._failure is not None:
            return
        where = f" ({error.filename})" if error.filename else ""
        self._failure = Fatal(
            f"writing to {self._root} failed: {error.strerror or error}{where}; what was confirmed before is kept, "
            f"nothing more is accepted. Check the disk, then start again"
        )
        _log.critical("%s", self._failure)
        for _, staged in self._applied:
            self._finish(staged, self._failure)
        for _, batch in self._in_flight:
            for staged in batch.commits:
                self._finish(staged, self._failure)
        for staged in self._waiting:
            self._finish(staged, self._failure)
        self._applied.clear()
        self._in_flight.clear()
        self._waiting.clear()
        self._waiting_bytes = 0

    def _refusal(self) -> Unavailable:
        """Messages are refused from now on, until there is space again."""
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
        is_synced = self._position.seq <= self._synced_seq
        if self._upkeep.run(self._position, is_synced):
            self._request_sync()
        elif is_synced:
            self._sync_wanted = False

    def _request_sync(self) -> None:
        """Have every commit synced until all that were applied are."""
        self._sync_wanted = True
        if not self._in_flight and not self._waiting:
            self._waiting.append(self._catalog.stage(Commit(), _nothing, True))
            self._submit()

    def _settle(self) -> None:
        """Wait until a checkpoint holds everything, or until it turns out that none can be written now."""
        upkeep = self._upkeep
        attempted = False
        while self._failure is None and (upkeep.flushing or self._in_flight or upkeep.checkpoint_wanted):
            if not upkeep.flushing and not self._in_flight:
                if attempted and upkeep.full is not None:
                    break
                attempted = True
                upkeep.retry_now()  # a flush that was under way may have failed meanwhile
                self._maintain()
                if upkeep.full is not None and not upkeep.flushing and not self._in_flight:
                    continue  # it was put off at once: there is no result to wait for
            self._take(self._results.get())
            self._call_back()
        if upkeep.full is not None:
            what = "descriptors ran out" if is_out_of_files(upkeep.full) else "the disk is full"
            _log.warning("%s: the journal keeps what the segments cannot take", what)

    def _drain_results(self) -> None:
        while not self._results.empty():
            self._take(self._results.get())


def _nothing(error: HeadraceError | None) -> None:
    return
