"""One SlateDB database: get, scan, write, and know when a write is durable. Bytes only; no records, no threads of ours.

Every call waits for its answer, at most as long as the settings say; then it raises Unavailable.
"""

import copy
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, final

from headrace.clock import Clock
from headrace.errors import Corrupt, Fatal, Fenced, HeadraceError, Unavailable
from headrace.storage.objects.binding import (
    BYTES,
    HANDLE,
    NOTHING,
    Batch,
    Call,
    Kind,
    function,
    lift_raw,
    lower,
    lower_raw,
    native,
    raw_form,
    rows,
)
from headrace.storage.objects.encodings import lexical_successor
from headrace.storage.objects.location import Location

Row = tuple[bytes, bytes]
Change = tuple[bytes, bytes | None]

_ROWS: Final = 1000
_CLOSE_MS: Final = 10_000
_MIB: Final = 1 << 20


class Tuning(NamedTuple):
    """How the database works."""

    flush_interval_ms: int = 20
    timeout_ms: int = 30_000
    """How long a call may take."""
    cache_bytes: int = 32 * _MIB
    memory_bytes: int = 16 * _MIB
    """How much is written before it is sorted into a table."""
    manifest_poll_ms: int = 1000


@final
class Writing:
    """A batch on its way: first into the database's memory, then into the store."""

    def __init__(self, database: "Database", call: Call) -> None:
        self._database = database
        self._call = call
        self._handle: Any = None
        self._is_awaited = False

    def wait_taken(self, timeout_ms: int) -> bool:
        """Whether the database has it in its memory now; it is on its way into the store. Raises what went wrong."""
        with _translated(self._database.place):
            if self._handle is None:
                if not self._call.wait(timeout_ms):
                    return False
                self._handle = native._UniffiFfiConverterTypeWriteHandle.lift(self._call.result())
            return True

    def wait(self, timeout_ms: int) -> bool:
        """Whether it is durable now. Raises what went wrong."""
        if not self._is_awaited:
            if not self.wait_taken(timeout_ms):
                return False
            durable = function("method_writehandle_await_durable")(self._handle._uniffi_clone_handle())
            self._call = Call(NOTHING, durable, self._database.clock)
            self._is_awaited = True
        with _translated(self._database.place):
            if not self._call.wait(timeout_ms):
                return False
            self._call.result()
            return True

    def release(self) -> None:
        """Do not wait for it any more."""
        self._call.release()


@final
class Database:
    """An open database; the one that opened it last is the only one that may write."""

    def __init__(self, location: Location, name: str, tuning: Tuning, clock: Clock) -> None:
        """Open or create it, and fence whoever had it before. Raises Unavailable and Corrupt."""
        self.clock = clock
        self.place = location.describe(name)
        self._tuning = tuning
        with _translated(self.place):
            builder = native.DbBuilder(location.path(name), location.store)
            builder.with_settings(_settings(location, tuning))
            cache = native.FoyerCacheOptions(max_capacity=tuning.cache_bytes, shards=4)
            builder.with_db_cache(native.DbCache.new_foyer_cache(cache), 0)
            begin = function("method_dbbuilder_build")(builder._uniffi_clone_handle())
            self._db = native._UniffiFfiConverterTypeDb.lift(self._finish(HANDLE, begin, "opening"))
        self._options = {order: _scan_options(order) for order in (False, True)}

    def check(self) -> None:
        """Raises Fenced when another process was seen to own the database now, and Fatal when it cannot go on."""
        with _translated(self.place):
            reason = self._db.status().close_reason
            if reason is not None:
                raise native.Error.Closed(reason, "the database is closed")

    def within(self, timeout_ms: int) -> "Database":
        """The same database with less patience, for whoever must not wait long. Close the other one."""
        impatient = copy.copy(self)
        impatient._tuning = self._tuning._replace(timeout_ms=min(timeout_ms, self._tuning.timeout_ms))
        return impatient

    def get(self, key: bytes) -> bytes | None:
        with _translated(self.place):
            begin = function("method_db_get")(self._db._uniffi_clone_handle(), lower(key))
            raw = lift_raw(self._finish(BYTES, begin, "reading"))
            return raw[5:] if raw[0] else None

    def scan(self, start: bytes, end: bytes | None, reverse: bool = False, at_once: int = _ROWS) -> Iterator[list[Row]]:
        """The rows from `start` up to but not including `end`, in runs of up to `at_once`."""
        if end is not None and start >= end:
            return
        with _translated(self.place):
            bounds = lower_raw(_range(start, end))
            options = lower_raw(self._options[reverse])
            begin = function("method_db_scan_with_options")(self._db._uniffi_clone_handle(), bounds, options)
            iterator = native._UniffiFfiConverterTypeDbIterator.lift(self._finish(HANDLE, begin, "reading"))
        while True:
            with _translated(self.place):
                begin = function("method_dbiterator_next_batch")(iterator._uniffi_clone_handle(), at_once)
                found = rows(lift_raw(self._finish(BYTES, begin, "reading")))
            if found:
                yield found
            if len(found) < at_once:
                return

    def scan_prefix(self, prefix: bytes, at_once: int = _ROWS) -> Iterator[Row]:
        """All rows whose keys begin with the prefix."""
        for found in self.scan(prefix, lexical_successor(prefix), at_once=at_once):
            yield from found

    def last(self, start: bytes, end: bytes) -> Row | None:
        """The last row from `start` up to but not including `end`."""
        for found in self.scan(start, end, reverse=True, at_once=1):
            return found[0]
        return None

    def write(self, changes: Iterable[Change]) -> Writing:
        """Have the changes made as one, of which there must be some. Raises what went wrong."""
        with _translated(self.place):
            batch = Batch()
            put, delete = batch.put, batch.delete
            for key, value in changes:
                if value is None:
                    delete(key)
                else:
                    put(key, value)
            handle = batch.native._uniffi_clone_handle()
            begin = function("method_db_write")(self._db._uniffi_clone_handle(), handle)
            return Writing(self, Call(HANDLE, begin, self.clock))

    def store(self, changes: Iterable[Change]) -> None:
        """The same, and wait until it is durable."""
        writing = self.write(changes)
        if not writing.wait(self._tuning.timeout_ms):
            writing.release()
            raise away(self.place, "writing", self._tuning.timeout_ms)

    def close(self) -> None:
        """Let go of it. What was not durable yet may be lost."""
        options = native.CloseOptions(flush_type=native.FlushType.WAL)
        lowered = native._UniffiFfiConverterTypeCloseOptions.lower(options)
        call = Call(
            NOTHING, function("method_db_shutdown_with_options")(self._db._uniffi_clone_handle(), lowered), self.clock
        )
        if not call.wait(_CLOSE_MS):
            call.release()
            return
        try:
            call.result()
        except native.Error:
            return  # fenced, or gone already: there is nothing left to close

    def _finish(self, kind: Kind, future: int, doing: str) -> Any:
        call = Call(kind, future, self.clock)
        if not call.wait(self._tuning.timeout_ms):
            call.release()
            raise away(self.place, doing, self._tuning.timeout_ms)
        return call.result()


def remove(location: Location, name: str, clock: Clock, timeout_ms: int) -> None:
    """Delete a database with everything in it. Raises Unavailable."""
    with _translated(location.describe(name)):
        admin = native.AdminBuilder(location.path(name), location.store).build()
        confirmed = native._UniffiFfiConverterBoolean.lower(True)
        call = Call(BYTES, function("method_admin_delete_db")(admin._uniffi_clone_handle(), confirmed), clock)
        if not call.wait(timeout_ms):
            call.release()
            raise away(location.describe(name), "deleting", timeout_ms)
        lift_raw(call.result())


def away(place: str, doing: str, timeout_ms: int) -> Unavailable:
    return Unavailable(
        f"{place} does not answer: {doing} took more than {timeout_ms / 1000:g} s. "
        f"Check that the store can be reached; the broker goes on by itself once it can"
    )


class _translated:  # noqa: N801 - it reads as a statement
    """The library's errors become ours."""

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
    if isinstance(error, native.Error.Unavailable | native.Error.Invalid):
        return Unavailable(f"{place} cannot be used: {text}")
    return Fatal(f"{place} failed: {text}. What was confirmed before is kept; start again")


def _settings(location: Location, tuning: Tuning) -> Any:
    settings = native.Settings.default()
    values: dict[str, object] = {
        "flush_interval": f"{tuning.flush_interval_ms}ms",
        "manifest_poll_interval": f"{tuning.manifest_poll_ms}ms",
        "l0_sst_size_bytes": tuning.memory_bytes,
        "max_unflushed_bytes": 4 * tuning.memory_bytes,
        "garbage_collector_options.wal_options": {"interval": "60s", "min_age": "60s", "dry_run": False},
    }
    if location.is_file:
        # Files have no conditional overwrite, which these would need; fencing needs conditional creation only.
        values["garbage_collector_options.boundary_files_enabled"] = False
    for name, value in values.items():
        settings.set(name, json.dumps(value))
    return settings


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
