"""The engine over an object store: a commit becomes a batch, a thread writes it, readers see it once it is durable.

An object store takes some 100 ms for a write. The library puts all batches of one interval into one object, so those of
several virtual hosts do not wait for each other. While the store is away, commits are refused and taken ones fail.
Batches that may have reached the store all the same are taken back before anything new is written.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Final, NamedTuple, final

from headrace.clock import Clock, SystemClock
from headrace.config.replication import MAIN
from headrace.errors import Fatal, HeadraceError, Unavailable
from headrace.storage.api import Commit, Done, Engine, Log, Wake, check_commit
from headrace.storage.objects.batch import DELETE, DROP, Batch
from headrace.storage.objects.catalog import Catalog, Loading, prepare
from headrace.storage.objects.collector import Collector, LogGarbage, OldHistory, QueueGarbage
from headrace.storage.objects.database import Change, Database, Tuning, Writing, away
from headrace.storage.objects.group import ObjectGroup
from headrace.storage.objects.keys import INSTANCE, SEQUENCE, describe
from headrace.storage.objects.location import Location, give_back
from headrace.storage.objects.log import LogContext, Stack, StoreReader
from headrace.storage.objects.records import Sequence, encode_instance

DURABLE: Final = 0
LATE: Final = 1
"""The write took too long; it may still become durable."""
LANDED: Final = 2
"""The late write is durable now."""
UNDONE: Final = 3
FAILED: Final = 4

_WAIT_MS: Final = 500
_GIVE_BACK_US: Final = 5_000_000
"""The time between two releases of unused memory while batches are written."""


class Result(NamedTuple):
    """The outcome of one or more batches in a row."""

    outcome: int
    batches: int = 0
    error: HeadraceError | None = None


@final
class Writer:
    """Writes batches in order, each atomically, and waits once for all that came meanwhile.

    `report` is called in its thread.
    """

    def __init__(self, database: Database, timeout_ms: int, report: Callable[[Result], None]) -> None:
        self._database = database
        self._timeout_ms = timeout_ms
        self._report = report
        self._jobs: SimpleQueue[Batch | list[Change] | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._given_back_us = database.clock.monotonic_us()
        self._thread = threading.Thread(target=self._run, name="headrace-objects-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def write(self, batch: Batch) -> None:
        self._jobs.put(batch)

    def undo(self, records: list[Change]) -> None:
        """Write the records that take back late batches. Batches that wait are dropped."""
        self._jobs.put(records)

    def stop(self) -> None:
        """Write all batches, but wait no longer for a store that is away."""
        self._stopping.set()
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while batches := self._next():
            try:
                self._write(batches)
            except HeadraceError as error:
                self._report(Result(FAILED, error=error))
            self._give_back()

    def _next(self) -> list[Batch]:
        """All batches that wait, at least one; none at the end."""
        found: list[Batch] = []
        while not found or not self._jobs.empty():
            job = self._jobs.get()
            if job is None:
                if found:
                    self._jobs.put(None)
                return found
            if isinstance(job, Batch):
                found.append(job)
        return found

    def _write(self, batches: list[Batch]) -> None:
        """Write batches; all of them are late if one is, since each builds on those before."""
        writing: Writing | None = None
        is_late = False
        for batch in batches:
            if batch.records:
                if writing is not None and not writing.wait_taken(self._timeout_ms):  # only then the order is certain
                    is_late = True
                    break
                writing = self._database.write(batch.records)
        is_urgent = all([batch.is_urgent for batch in batches])
        if writing is not None and not is_late:
            is_late = not (writing.wait_taken if is_urgent else writing.wait)(self._timeout_ms)
        if writing is None or not is_late:
            self._report(Result(DURABLE, len(batches)))
            return
        self._report(Result(LATE))
        if self._wait(writing):
            self._report(Result(LANDED))
            self._undo()

    def _undo(self) -> None:
        while (job := self._jobs.get()) is not None:
            if not isinstance(job, Batch):
                if not job or self._wait(self._database.write(job)):
                    self._report(Result(UNDONE))
                return
        self._jobs.put(None)

    def _give_back(self) -> None:
        now_us = self._database.clock.monotonic_us()
        if now_us - self._given_back_us >= _GIVE_BACK_US:
            self._given_back_us = now_us
            give_back()

    def _wait(self, writing: Writing) -> bool:
        """Wait as long as it takes; False if the engine is closed before."""
        while not writing.wait(_WAIT_MS):
            if self._stopping.is_set():
                writing.release()
                return False
        return True


_log: Final = logging.getLogger("headrace.storage")

_CHECK_US: Final = 1_000_000
"""The time between two checks for another process that took over."""
_HISTORY_US: Final = 60_000_000
"""The least time between two removals of old done and failed messages."""
_HISTORY_PARTS: Final = 20
"""The number of removals in the time for which they are kept."""
_HISTORY_GROUPS: Final = 200
"""The number of groups whose messages are removed at once."""


class ObjectSettings(NamedTuple):
    """Bounds of memory and time."""

    flush_interval_ms: int = 20
    timeout_ms: int = 30_000
    tail_bytes: int = 24 << 20
    cache_bytes: int = 8 << 20
    done_retention_ms: int = 3_600_000


@final
class ObjectEngine(Engine):
    """Everything durable of one broker, in one database of an object store: that of its replication group."""

    def __init__(
        self,
        url: str,
        wake: Wake | None = None,
        settings: ObjectSettings | None = None,
        clock: Clock | None = None,
        group: str = MAIN,
    ) -> None:
        """Open or create the database, and fence another process that has it.

        Raises Refused when the URL is wrong, Unavailable when the store cannot be used, Corrupt when it is damaged.
        """
        self.keeps_claims = True
        self.staged_bytes = 0
        self._settings = settings or ObjectSettings()
        self._wake = wake
        self._clock = clock or SystemClock()
        self._group = group
        self._failure: HeadraceError | None = None
        self._closed = False
        self._results: SimpleQueue[Result] = SimpleQueue()
        self._undo: list[Change] | None = None
        """The records that take back batches which the store did not confirm in time; None once they are written."""
        self._ended: deque[Batch] = deque()
        """Batches that are durable or refused, and whose owners are not told yet."""
        self._checked_us = self._history_us = self._clock.monotonic_us()
        self._aging: list[ObjectGroup] = []
        """Groups whose old done and failed messages are still to be removed."""
        self._is_ahead = False
        """True if the last written batch is reported from the database's memory: the next durable one covers it."""
        self._database = Database(Location(url), group, self._tuning(), self._clock)
        try:
            self._open()
        except BaseException:
            self._database.close()
            raise

    # -- calls of the owner ------------------------------------------------------------------------------------------

    def commit(self, commit: Commit, done: Done, durable: bool = True) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise Unavailable("the engine is closed; open it again")
        if self._undo is not None:
            raise self._away()
        check_commit(commit)
        # Publishers that do not wait for the store are told at once; nobody waits for settlements.
        self._write(self._catalog.stage(commit, done, not durable and bool(commit.appends)))
        self.staged_bytes += commit.size_bytes

    def log(self, name: str) -> Log:
        return self._catalog.log(name)

    def logs(self) -> list[str]:
        return [name for name, log in self._catalog.logs.items() if log.exists]

    def items(self, table: str) -> Iterable[tuple[bytes, bytes]]:
        return self._catalog.tables.get(table, {}).items()

    def get(self, table: str, key: bytes) -> bytes | None:
        return self._catalog.tables.get(table, {}).get(key)

    @property
    def trouble(self) -> str:
        return str(self._away()) if self._undo is not None else ""

    def poll(self) -> None:
        while not self._results.empty():
            self._take(self._results.get())
        self._call_back()
        self._look_around()
        if self._failure is not None:
            raise self._failure

    def sync(self) -> None:
        self.poll()
        while self._catalog.staged:
            self._take(self._results.get())
            self.poll()

    def close(self) -> None:
        if self._closed:
            return
        try:
            if self._failure is None:
                self.sync()
        finally:
            self._closed = True
            self._collector.stop()
            self._writer.stop()
            self._database.close()

    # -- opening -----------------------------------------------------------------------------------------------------

    def _tuning(self) -> Tuning:
        return Tuning(flush_interval_ms=self._settings.flush_interval_ms, timeout_ms=self._settings.timeout_ms)

    def _open(self) -> None:
        settings, database = self._settings, self._database
        prepare(database, self._group, self._clock)
        recent, kept = Stack(settings.tail_bytes), Stack(settings.cache_bytes)
        context = LogContext(self._group, StoreReader(database), recent, kept)
        sequence = Sequence(database.get(SEQUENCE), describe(SEQUENCE))
        retention_s = settings.done_retention_ms // 1000
        self._catalog = Catalog(context, sequence, self._clock, retention_s)
        garbage = Loading(database, self._catalog, self._clock.now_us()).load()
        renewal = self._catalog.renew_specifications()
        self._collector = Collector(database, self._group)
        for each in garbage:
            self._collector.collect(each)
        self._writer = Writer(database, settings.timeout_ms, self._report)
        self._collector.start()
        self._writer.start()
        if renewal is not None:
            self._write(renewal)

    def _report(self, result: Result) -> None:
        """Take a result from the writer's thread."""
        self._results.put(result)
        if self._wake is not None:
            self._wake()

    # -- batches -----------------------------------------------------------------------------------------------------

    def _write(self, batch: Batch) -> None:
        """Hand a staged batch to the writer."""
        if self._is_ahead and not (batch.is_urgent or batch.records):  # somebody waits for all before it
            batch.records.append((INSTANCE, encode_instance(self._group)))
        if batch.records:
            self._is_ahead = batch.is_urgent
        self._writer.write(batch)

    def _call_back(self) -> None:
        while self._ended:
            batch = self._ended.popleft()
            self.staged_bytes -= batch.size_bytes
            batch.done(batch.error)

    def _take(self, result: Result) -> None:
        if self._failure is not None:
            return
        if result.outcome == DURABLE:
            for _ in range(result.batches):
                batch = self._catalog.apply()
                self._collect(batch)
                self._ended.append(batch)
        elif result.outcome == LATE:
            self._undo = self._refuse(self._away())
            _log.warning("%s", self._away())
        elif result.outcome == LANDED and self._undo is not None:
            self._writer.undo(self._undo)
        elif result.outcome == FAILED:
            self._fail(result.error)
        else:
            self._undo = None
            _log.info("%s answers again", self._database.place)

    def _refuse(self, error: HeadraceError) -> list[Change]:
        """Refuse all staged batches: each builds on those before. Returns the records that take them back."""
        refused, undoing = self._catalog.revert()
        for batch in refused:
            batch.error = error
        self._ended.extend(refused)
        return list(undoing.items())

    def _away(self) -> Unavailable:
        return away(self._database.place, "writing", self._settings.timeout_ms)

    def _fail(self, error: HeadraceError | None) -> None:
        """Stop everything: the engine can promise nothing any more."""
        self._failure = error if isinstance(error, Fatal) else Fatal(f"{error}; nothing more is accepted. Start again")
        _log.critical("%s", self._failure)
        self._refuse(self._failure)

    # -- garbage -----------------------------------------------------------------------------------------------------

    def _collect(self, batch: Batch) -> None:
        for log, state in batch.logs.items():
            if state.first_offset > log.collected:
                log.collected = state.first_offset
                self._collector.collect(LogGarbage(log.id, state.first_offset, False))
        for effect in batch.effects:
            if effect.kind == DROP:
                self._collector.collect(LogGarbage(effect.log.id, effect.log.staged.next_offset, True))
            elif effect.kind == DELETE and effect.group is not None:
                self._collector.collect(QueueGarbage(effect.group.queue))
        for group in batch.groups:
            if group.is_deleted:
                self._collector.collect(QueueGarbage(group.queue))

    def _look_around(self) -> None:
        """Check now and then that we still own the store, and remove messages that were done or failed long ago."""
        now_us = self._clock.monotonic_us()
        if now_us - self._checked_us >= _CHECK_US and self._failure is None:
            self._checked_us = now_us
            try:
                self._database.check()
            except Fatal as error:
                self._fail(error)
                self._call_back()
        kept_us = self._settings.done_retention_ms * 1000
        if kept_us and now_us - self._history_us >= max(_HISTORY_US, kept_us // _HISTORY_PARTS):
            self._history_us = now_us
            logs = self._catalog.logs.values()
            self._aging = [group for log in logs for group in log.groups_by_name.values() if group.has_history]
        if self._aging and self._undo is None and self._failure is None:
            self._remove_history(self._clock.now_us() - kept_us)

    def _remove_history(self, before_us: int) -> None:
        """Remove the old messages of some groups; the others follow."""
        groups, self._aging = self._aging[:_HISTORY_GROUPS], self._aging[_HISTORY_GROUPS:]
        for group in groups:
            group.has_history = group.settled_us >= before_us  # else this removes the last of them
            until = group.state.committed // group.capacity * group.capacity
            self._collector.collect(OldHistory(group.queue, until, before_us))
        batch = self._catalog.forget_settled(groups, before_us)
        if batch is not None:
            self._write(batch)
