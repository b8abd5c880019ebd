"""One SlateDB database: reading, writing, and a proof that its store honours conditional writes. Bytes only.

Every call waits for its answer up to a timeout, and then raises Unavailable.
"""

import contextlib
import copy
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, final
from uuid import uuid4

from headrace.clock import Clock
from headrace.errors import Corrupt, Fatal, Fenced, HeadraceError, Unavailable
from headrace.storage.objects.keys import lexical_successor
from headrace.storage.objects.location import (
    BYTES,
    HANDLE,
    NOTHING,
    Batch,
    Call,
    Kind,
    Location,
    function,
    lift_raw,
    lower,
    lower_raw,
    native,
    raw_form,
    rows,
)

Row = tuple[bytes, bytes]

_ROWS: Final = 1000
_LOOKUPS: Final = 100
"""The number of keys that are looked up at the same time."""
_MIB: Final = 1 << 20
_CANNOT_READ: Final = (native.Error.Unavailable, native.Error.Invalid)


class Caller:
    """Begins operations of the library on one database and waits for their results."""

    def __init__(self, place: str, timeout_ms: int, clock: Clock) -> None:
        self.place = place
        self.clock = clock
        self._timeout_ms = timeout_ms

    def call(self, kind: Kind, name: str, on: Any, *lowered: Any, doing: str = "reading", timeout_ms: int = 0) -> Any:
        """The result of one operation on an object of the library. Raises Unavailable after the timeout, and others."""
        timeout_ms = timeout_ms or self._timeout_ms
        with translated(self.place):
            call = Call(kind, function(name)(on._uniffi_clone_handle(), *lowered), self.clock)
            if not call.wait(timeout_ms):
                call.release()
                raise away(self.place, doing, timeout_ms)
            return call.result()


class Readable(Caller):
    """An open database that can be read, by either handle of the library."""

    def __init__(self, kind: str, place: str, timeout_ms: int, clock: Clock) -> None:
        """`kind` names the handle in the library's functions; the subclass opens it."""
        super().__init__(place, timeout_ms, clock)
        self._kind = kind
        self._handle: Any = None
        self._options = {order: _scan_options(order) for order in (False, True)}

    def within(self, timeout_ms: int) -> Self:
        """The same database with a shorter timeout. Close the original only."""
        impatient = copy.copy(self)
        impatient._timeout_ms = min(timeout_ms, self._timeout_ms)
        return impatient

    def get(self, key: bytes) -> bytes | None:
        raw = lift_raw(self.call(BYTES, f"method_{self._kind}_get", self._handle, lower(key)))
        return raw[5:] if raw[0] else None

    def get_all(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of several keys, looked up at the same time: each may take a round trip to the store."""
        found: list[bytes | None] = []
        begin = function(f"method_{self._kind}_get")
        for at in range(0, len(keys), _LOOKUPS):
            calls: list[Call] = []
            with translated(self.place):
                try:
                    for key in keys[at : at + _LOOKUPS]:
                        calls.append(Call(BYTES, begin(self._handle._uniffi_clone_handle(), lower(key)), self.clock))
                    for call in calls:
                        if not call.wait(self._timeout_ms):
                            raise away(self.place, "reading", self._timeout_ms)
                        raw = lift_raw(call.result())
                        found.append(raw[5:] if raw[0] else None)
                finally:
                    for call in calls:
                        call.release()
        return found

    def scan(self, start: bytes, end: bytes | None, reverse: bool = False, at_once: int = _ROWS) -> Iterator[list[Row]]:
        """The rows from `start` up to but not including `end`, in runs of up to `at_once`."""
        for raw in self.scan_raw(start, end, reverse, at_once):
            found = rows(raw)
            if found:
                yield found
            if len(found) < at_once:
                return

    def scan_raw(self, start: bytes, end: bytes | None, reverse: bool = False, at_once: int = _ROWS) -> Iterator[bytes]:
        """The rows in the library's own form. The iterator has no end: stop after fewer rows than `at_once`."""
        if end is not None and start >= end:
            return
        bounds, options = lower_raw(_range(start, end)), lower_raw(self._options[reverse])
        found = self.call(HANDLE, f"method_{self._kind}_scan_with_options", self._handle, bounds, options)
        iterator = native._UniffiFfiConverterTypeDbIterator.lift(found)
        while True:
            yield lift_raw(self.call(BYTES, "method_dbiterator_next_batch", iterator, at_once))

    def scan_prefix(self, prefix: bytes, at_once: int = _ROWS) -> Iterator[Row]:
        """All rows whose keys begin with the prefix."""
        for found in self.scan(prefix, lexical_successor(prefix), at_once=at_once):
            yield from found

    def last(self, start: bytes, end: bytes) -> Row | None:
        """The last row from `start` up to but not including `end`."""
        for found in self.scan(start, end, reverse=True, at_once=1):
            return found[0]
        return None


def away(place: str, doing: str, timeout_ms: int) -> Unavailable:
    then = "; the broker goes on by itself once it can" if doing == "writing" else ""
    return Unavailable(
        f"{place} does not answer: {doing} took more than {timeout_ms / 1000:g} s. "
        f"Check that the store can be reached{then}"
    )


class translated:  # noqa: N801 - it reads as a statement
    """Turns the library's errors into ours."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, native.Error | native.InternalError):
            raise _ours(error, self._place) from error


def _ours(error: Exception, place: str) -> HeadraceError:
    text = str(getattr(error, "message", error))
    if isinstance(error, native.Error.Closed) and error.reason == native.CloseReason.FENCED:
        return Fenced(
            f"another process has opened {place} and owns it now; this one must not write any more, and stops"
        )
    if isinstance(error, native.Error.Data):
        return Corrupt(place, 0, text)
    if isinstance(error, _CANNOT_READ):
        return Unavailable(f"{place} cannot be used: {text}")
    return Fatal(f"{place} failed: {text}. What was confirmed before is kept; start again")


def _scan_options(reverse: bool) -> bytes:
    order = native.IterationOrder.DESCENDING if reverse else native.IterationOrder.ASCENDING
    options = native.ScanOptions(
        durability_filter=native.DurabilityLevel.MEMORY,
        dirty=False,
        read_ahead_bytes=1 if reverse else _MIB,
        cache_blocks=True,
        max_fetch_tasks=4,
        order=order,
    )
    return raw_form(native._UniffiFfiConverterTypeScanOptions, options)


def _range(start: bytes, end: bytes | None) -> bytes:
    """A range of keys in the library's own form."""
    last = b"\x00" if end is None else b"\x01" + len(end).to_bytes(4, "big") + end
    return b"\x01" + len(start).to_bytes(4, "big") + start + b"\x01" + last + b"\x00"


Change = tuple[bytes, bytes | None]

_CLOSE_MS: Final = 10_000
_MERGED: Final = 32
"""The number of tables, or of merged runs, that are merged at once: fewer would be written again more often, and most
messages are gone before so many have come."""
_TABLES: Final = 2 * _MERGED
"""The limit of unmerged tables; at it, writers wait."""
_CODEC: Final = "Lz4"
"""It takes no measurable CPU, since less is written. Zstd would save a tenth more, for 1.7 times the CPU."""
_COMPACTION: Final[dict[str, object]] = {
    # Merge one at a time, with little read-ahead from each of many tables.
    "compactor_options.scheduler_options": {
        "min_compaction_sources": str(_MERGED),
        "max_compaction_sources": str(_TABLES),
    },
    "compactor_options.worker.compression_codec": _CODEC,
    "compactor_options.max_concurrent_compactions": 1,
    "compactor_options.worker.max_concurrent_compactions": 1,
    "compactor_options.worker.max_subcompactions": 1,
    "compactor_options.worker.max_fetch_tasks": 2,
    "compactor_options.worker.bytes_to_fetch": _MIB // 8,
    "compactor_options.worker.max_sst_size": 16 * _MIB,
}


class Tuning(NamedTuple):
    """Settings of the database."""

    flush_interval_ms: int = 20
    timeout_ms: int = 30_000
    """The timeout of a call."""
    cache_bytes: int = 32 * _MIB
    memory_bytes: int = 8 * _MIB
    """Bytes written before they become a table. At twice as many, writers wait."""
    manifest_poll_ms: int = 1000
    """The interval of looking for changes by others."""
    compaction_poll_ms: int = 1000
    """The interval of looking for tables to merge: writers outrun one of 5 s."""


@final
class Writing:
    """A batch that is being written: first to the database's memory, then to the store."""

    def __init__(self, database: "Database", call: Call) -> None:
        self._database = database
        self._call = call
        self._handle: Any = None
        self._is_awaited = False

    def wait_taken(self, timeout_ms: int) -> bool:
        """True if the database has the batch in memory. Raises the error of the write."""
        with translated(self._database.place):
            if self._handle is None:
                if not self._call.wait(timeout_ms):
                    return False
                self._handle = native._UniffiFfiConverterTypeWriteHandle.lift(self._call.result())
            return True

    def wait(self, timeout_ms: int) -> bool:
        """True if the batch is durable. Raises the error of the write."""
        if not self._is_awaited:
            if not self.wait_taken(timeout_ms):
                return False
            durable = function("method_writehandle_await_durable")(self._handle._uniffi_clone_handle())
            self._call = Call(NOTHING, durable, self._database.clock)
            self._is_awaited = True
        with translated(self._database.place):
            if not self._call.wait(timeout_ms):
                return False
            self._call.result()
            return True

    def release(self) -> None:
        """Stop waiting for it."""
        self._call.release()


@final
class Database(Readable):
    """An open database; only its latest opener may write."""

    def __init__(self, location: Location, name: str, tuning: Tuning, clock: Clock) -> None:
        """Open or create the database, and fence its previous opener. Raises Unavailable and Corrupt."""
        super().__init__("db", location.describe(name), tuning.timeout_ms, clock)
        with translated(self.place):
            builder = native.DbBuilder(location.path(name), location.store)
            builder.with_settings(_settings(location, tuning))
            cache = native.FoyerCacheOptions(max_capacity=tuning.cache_bytes, shards=4)
            builder.with_db_cache(native.DbCache.new_foyer_cache(cache), 0)
        opened = self.call(HANDLE, "method_dbbuilder_build", builder, doing="opening")
        self._handle = native._UniffiFfiConverterTypeDb.lift(opened)

    def check(self) -> None:
        """Raises Fenced when another process owns the database now, and Fatal when it failed."""
        with translated(self.place):
            reason = self._handle.status().close_reason
            if reason is not None:
                raise native.Error.Closed(reason, "the database is closed")

    def write(self, changes: Iterable[Change]) -> Writing:
        """Begin to write at least one change, atomically. Raises the error of the write."""
        with translated(self.place):
            batch = Batch()
            put, delete = batch.put, batch.delete
            for key, value in changes:
                if value is None:
                    delete(key)
                else:
                    put(key, value)
            handle = batch.native._uniffi_clone_handle()
            begin = function("method_db_write")(self._handle._uniffi_clone_handle(), handle)
            return Writing(self, Call(HANDLE, begin, self.clock))

    def store(self, changes: Iterable[Change]) -> None:
        """Write changes and wait until they are durable."""
        writing = self.write(changes)
        if not writing.wait(self._timeout_ms):
            writing.release()
            raise away(self.place, "writing", self._timeout_ms)

    def close(self) -> None:
        """Close the database. Changes that are not durable may be lost."""
        options = native.CloseOptions(flush_type=native.FlushType.WAL)
        lowered = native._UniffiFfiConverterTypeCloseOptions.lower(options)
        call = Call(
            NOTHING,
            function("method_db_shutdown_with_options")(self._handle._uniffi_clone_handle(), lowered),
            self.clock,
        )
        if not call.wait(_CLOSE_MS):
            call.release()
            return
        try:
            call.result()
        except native.Error:
            return  # fenced, or closed already


def remove(location: Location, name: str, clock: Clock, timeout_ms: int) -> None:
    """Delete a database with everything in it. Raises Unavailable."""
    place = location.describe(name)
    with translated(place):
        admin = native.AdminBuilder(location.path(name), location.store).build()
    confirmed = native._UniffiFfiConverterBoolean.lower(True)
    caller = Caller(place, timeout_ms, clock)
    lift_raw(caller.call(BYTES, "method_admin_delete_db", admin, confirmed, doing="deleting"))
    if location.directory:
        _remove_directories(Path(location.directory, location.path(name)))


def _remove_directories(path: Path) -> None:
    """Remove the empty directories of a tree; directories with new files stay."""
    for directory, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            Path(directory).rmdir()


def _settings(location: Location, tuning: Tuning) -> Any:
    settings = native.Settings.default()
    values: dict[str, object] = {
        "flush_interval": f"{tuning.flush_interval_ms}ms",
        "manifest_poll_interval": f"{tuning.manifest_poll_ms}ms",
        "l0_sst_size_bytes": tuning.memory_bytes,
        "max_unflushed_bytes": 2 * tuning.memory_bytes,
        "l0_flush_parallelism": 1,
        "compression_codec": _CODEC,
        "l0_max_ssts": _TABLES,
        "l0_max_ssts_per_key": _TABLES,
        **_COMPACTION,
        "compactor_options.poll_interval": f"{tuning.compaction_poll_ms}ms",
        "compactor_options.worker.compactions_poll_interval": f"{tuning.compaction_poll_ms}ms",
        "garbage_collector_options.wal_options": {"interval": "60s", "min_age": "60s", "dry_run": False},
    }
    if location.directory:
        # Files have no conditional overwrite, which boundary files need; fencing needs conditional creation only.
        values["garbage_collector_options.boundary_files_enabled"] = False
    for name, value in values.items():
        settings.set(name, json.dumps(value))
    return settings


_HOUR_MS: Final = 3_600_000


def prove_fencing(url: str, clock: Clock, timeout_ms: int) -> None:
    """Open a database twice and check that the first opener cannot write any more.

    That needs a store that refuses to create an existing object. Raises Unavailable for a store that does not refuse,
    and Refused for a wrong URL.
    """
    location = Location(url)
    name = f"probe-{uuid4().hex}"
    # The first opener must not notice the second by polling: only its own write may fail.
    tuning = Tuning(1, timeout_ms, manifest_poll_ms=_HOUR_MS, compaction_poll_ms=_HOUR_MS)
    first = Database(location, name, tuning, clock)
    try:
        second = Database(location, name, tuning, clock)
        try:
            first.store([(b"probe", b"first")])
        except Fenced:
            return
        finally:
            second.close()
    finally:
        first.close()
        remove(location, name, clock, timeout_ms)
    raise Unavailable(
        f"the store {location.url} does not honour conditional writes (if there is nothing yet), so nothing would "
        f"keep two brokers from writing to it at once; use a store that does"
    )
