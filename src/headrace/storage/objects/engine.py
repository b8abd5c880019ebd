"""The engine over an object store: collects commits into a batch, writes it in a thread, applies it once it is durable.

An object store takes some 100 ms for a write, so the commits of all virtual hosts that come meanwhile share the next
batch. While the store is away, commits are refused and taken ones fail. A batch that may have reached the store all
the same is taken back before anything new is written.
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


@final
class Writer:
    """Writes one batch after the other. `report` is called in its thread."""

    def __init__(self, database: Database, timeout_ms: int, report: Callable[[int, Batch], None]) -> None:
        self._database = database
        self._timeout_ms = timeout_ms
        self._report = report
        self._jobs: SimpleQueue[Batch | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._given_back_us = database.clock.monotonic_us()
        self._thread = threading.Thread(target=self._run, name="headrace-objects-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def write(self, batch: Batch) -> None:
        self._jobs.put(batch)

    def stop(self) -> None:
        """Write all batches, but wait no longer for a store that is away."""
        self._stopping.set()
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (batch := self._jobs.get()) is not None:
            try:
                writing = self._database.write(batch.records)
                if batch.is_undone:
                    if self._wait(writing):
                        self._report(UNDONE, batch)
                elif (writing.wait_taken if batch.is_urgent else writing.wait)(self._timeout_ms):
                    self._report(DURABLE, batch)
                else:
                    self._report(LATE, batch)
                    if self._wait(writing):
                        self._report(LANDED, batch)
            except HeadraceError as error:
                batch.error = error
                self._report(FAILED, batch)
            self._give_back()

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
        self._results: SimpleQueue[tuple[int, Batch]] = SimpleQueue()
        self._in_flight: Batch | None = None
        self._is_urgent = True
        """True if all staged commits are for publishers that do not wait for the store."""
        self._undo: list[Change] | None = None
        """The records that take back a batch which the store did not confirm in time; None once they are written."""
        self._callbacks: deque[tuple[Done, HeadraceError | None, int]] = deque()
        self._checked_us = self._history_us = self._clock.monotonic_us()
        self._aging: list[ObjectGroup] = []
        """Groups whose old done and failed messages are still to be removed."""
        self._is_ahead = False
        """True if the last batch was reported from the database's memory: the next durable one covers it."""
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
        self._catalog.stage(commit, done)
        # Settlements that nobody waits for join the next batch: alone they would make many small ones.
        self._is_urgent = self._is_urgent and not durable and bool(commit.appends)
        self.staged_bytes += commit.size_bytes
        self._submit()

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
            self._take(*self._results.get())
        self._submit()
        self._call_back()
        self._look_around()
        if self._failure is not None:
            raise self._failure

    def sync(self) -> None:
        self.poll()
        while self._in_flight is not None:
            self._take(*self._results.get())
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
        surroundings = LogContext(self._group, StoreReader(database), recent, kept)
        sequence = Sequence(database.get(SEQUENCE), describe(SEQUENCE))
        retention_s = settings.done_retention_ms // 1000
        self._catalog = Catalog(surroundings, sequence, self._clock, retention_s)
        garbage = Loading(database, self._catalog, self._clock.now_us()).load()
        self._catalog.renew_specifications()
        self._collector = Collector(database, self._group)
        for each in garbage:
            self._collector.collect(each)
        self._writer = Writer(database, settings.timeout_ms, self._report)
        self._collector.start()
        self._writer.start()

    def _report(self, outcome: int, batch: Batch) -> None:
        """Take a result from the writer's thread."""
        self._results.put((outcome, batch))
        if self._wake is not None:
            self._wake()

    # -- commits -----------------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        """Hand all staged commits to the writer as one batch, unless it is busy."""
        if self._in_flight is not None or not self._catalog.has_staged or self._failure is not None:
            return
        batch = self._catalog.flush()
        batch.is_urgent, self._is_urgent = self._is_urgent and bool(batch.commits), True
        batch.records = batch.changes()
        if self._is_ahead and not (batch.is_urgent or batch.records):  # somebody waits for all before it
            batch.records.append((INSTANCE, encode_instance(self._group)))
        self._is_ahead = batch.is_urgent
        if batch.records:
            self._in_flight = batch
            self._writer.write(batch)
            return
        self._finish(batch, None)
        if self._wake is not None:  # no thread will wake the owner for it
            self._wake()

    def _finish(self, batch: Batch, error: HeadraceError | None) -> None:
        self._callbacks.extend([(done, error, size) for done, size in batch.commits])

    def _call_back(self) -> None:
        while self._callbacks:
            done, error, size_bytes = self._callbacks.popleft()
            self.staged_bytes -= size_bytes
            done(error)

    def _take(self, outcome: int, batch: Batch) -> None:
        if self._failure is not None:
            return
        if outcome == DURABLE:
            self._in_flight = None
            self._catalog.apply(batch)
            self._collect(batch)
            self._finish(batch, None)
        elif outcome == LATE:
            self._in_flight = None
            self._undo = batch.undoing(self._catalog.tables)
            self._catalog.revert(batch)
            self._finish(batch, self._away())
            _log.warning("%s", self._away())
        elif outcome == LANDED and self._undo:
            batch.records, batch.is_undone = self._undo, True
            self._writer.write(batch)
        elif outcome == FAILED:
            self._fail(batch.error)
        else:
            self._undo = None
            _log.info("%s answers again", self._database.place)

    def _away(self) -> Unavailable:
        return away(self._database.place, "writing", self._settings.timeout_ms)

    def _fail(self, error: HeadraceError | None) -> None:
        """Stop everything: the engine can promise nothing any more."""
        self._failure = error if isinstance(error, Fatal) else Fatal(f"{error}; nothing more is accepted. Start again")
        _log.critical("%s", self._failure)
        if self._in_flight is not None:
            self._catalog.revert(self._in_flight)
            self._finish(self._in_flight, self._failure)
            self._in_flight = None

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
            self._catalog.forget_settled(group, before_us)
        self._submit()
