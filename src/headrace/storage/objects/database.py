"""One SlateDB database that is written: know when a write is durable. Bytes only; reading it is in readable.py.

Every call waits for its answer, at most as long as the settings say; then it raises Unavailable.
"""

import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, final

from headrace.clock import Clock
from headrace.storage.objects.binding import BYTES, HANDLE, NOTHING, Batch, Call, function, lift_raw, native
from headrace.storage.objects.location import Location
from headrace.storage.objects.readable import Readable, away, finish, translated

Change = tuple[bytes, bytes | None]

_CLOSE_MS: Final = 10_000
_MIB: Final = 1 << 20
_TABLES: Final = 16
"""How many tables there may be that are not merged with others; then writers wait."""
_COMPACTION: Final[dict[str, object]] = {
    # One merge at a time, with little read ahead.
    "compactor_options.max_concurrent_compactions": 1,
    "compactor_options.worker.max_concurrent_compactions": 1,
    "compactor_options.worker.max_subcompactions": 1,
    "compactor_options.worker.max_fetch_tasks": 2,
    "compactor_options.worker.bytes_to_fetch": _MIB,
    "compactor_options.worker.max_sst_size": 16 * _MIB,
}


class Tuning(NamedTuple):
    """How the database works."""

    flush_interval_ms: int = 20
    timeout_ms: int = 30_000
    """How long a call may take."""
    cache_bytes: int = 32 * _MIB
    memory_bytes: int = 8 * _MIB
    """How much is written before it is sorted into a table. Twice as much may wait for that; then writers wait."""
    manifest_poll_ms: int = 1000
    """How often it looks for what others did."""
    compaction_poll_ms: int = 1000
    """How often it looks for what to merge, and for others that merge: writers outrun one that looks every 5 s."""


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
        with translated(self._database.place):
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
        with translated(self._database.place):
            if not self._call.wait(timeout_ms):
                return False
            self._call.result()
            return True

    def release(self) -> None:
        """Do not wait for it any more."""
        self._call.release()


@final
class Database(Readable):
    """An open database; the one that opened it last is the only one that may write."""

    def __init__(self, location: Location, name: str, tuning: Tuning, clock: Clock) -> None:
        """Open or create it, and fence whoever had it before. Raises Unavailable and Corrupt."""
        super().__init__("db", location.describe(name), tuning.timeout_ms, clock)
        with translated(self.place):
            builder = native.DbBuilder(location.path(name), location.store)
            builder.with_settings(_settings(location, tuning))
            cache = native.FoyerCacheOptions(max_capacity=tuning.cache_bytes, shards=4)
            builder.with_db_cache(native.DbCache.new_foyer_cache(cache), 0)
            begin = function("method_dbbuilder_build")(builder._uniffi_clone_handle())
            self._handle = native._UniffiFfiConverterTypeDb.lift(self._finish(HANDLE, begin, "opening"))

    def check(self) -> None:
        """Raises Fenced when another process was seen to own the database now, and Fatal when it cannot go on."""
        with translated(self.place):
            reason = self._handle.status().close_reason
            if reason is not None:
                raise native.Error.Closed(reason, "the database is closed")

    def write(self, changes: Iterable[Change]) -> Writing:
        """Have the changes made as one, of which there must be some. Raises what went wrong."""
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
        """The same, and wait until it is durable."""
        writing = self.write(changes)
        if not writing.wait(self._timeout_ms):
            writing.release()
            raise away(self.place, "writing", self._timeout_ms)

    def close(self) -> None:
        """Let go of it. What was not durable yet may be lost."""
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
            return  # fenced, or gone already: there is nothing left to close


def remove(location: Location, name: str, clock: Clock, timeout_ms: int) -> None:
    """Delete a database with everything in it. Raises Unavailable."""
    with translated(location.describe(name)):
        admin = native.AdminBuilder(location.path(name), location.store).build()
        confirmed = native._UniffiFfiConverterBoolean.lower(True)
        begin = function("method_admin_delete_db")(admin._uniffi_clone_handle(), confirmed)
        lift_raw(finish(BYTES, begin, location.describe(name), "deleting", timeout_ms, clock))


def _settings(location: Location, tuning: Tuning) -> Any:
    settings = native.Settings.default()
    values: dict[str, object] = {
        "flush_interval": f"{tuning.flush_interval_ms}ms",
        "manifest_poll_interval": f"{tuning.manifest_poll_ms}ms",
        "l0_sst_size_bytes": tuning.memory_bytes,
        "max_unflushed_bytes": 2 * tuning.memory_bytes,
        "l0_flush_parallelism": 1,
        "l0_max_ssts": _TABLES,
        "l0_max_ssts_per_key": _TABLES,
        **_COMPACTION,
        "compactor_options.poll_interval": f"{tuning.compaction_poll_ms}ms",
        "compactor_options.worker.compactions_poll_interval": f"{tuning.compaction_poll_ms}ms",
        "garbage_collector_options.wal_options": {"interval": "60s", "min_age": "60s", "dry_run": False},
    }
    if location.directory:
        # Files have no conditional overwrite, which these would need; fencing needs conditional creation only.
        values["garbage_collector_options.boundary_files_enabled"] = False
    for name, value in values.items():
        settings.set(name, json.dumps(value))
    return settings
