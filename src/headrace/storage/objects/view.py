"""A database read from outside, whether or not a broker has it open: all durable records, or those of a checkpoint.

A view writes nothing but checkpoints. A checkpoint keeps the tables of a moment from being removed for a time; it lacks
records that are only in the owner's write-ahead log.
"""

from typing import Any, Final, final

from headrace.clock import Clock
from headrace.errors import Corrupt, HeadraceError, Unavailable
from headrace.storage.objects import keys
from headrace.storage.objects.database import Caller, Readable, translated
from headrace.storage.objects.location import BYTES, HANDLE, NOTHING, Location, groups, native
from headrace.storage.objects.records import LogState, decode_instance, decode_log

_MIB: Final = 1 << 20
_CACHE_BYTES: Final = 16 * _MIB
_MEMTABLE_BYTES: Final = 64 * _MIB
_LOOK_MS: Final = 1000
"""The interval at which an open view looks for new records."""
_LIFETIME_MS: Final = 600_000
_RETRIES: Final = 5


@final
class View(Readable):
    """The records of one database: those of a checkpoint, or all that were durable at the opening and later.

    A scan shows the records as of its beginning.
    """

    def __init__(
        self,
        location: Location,
        name: str,
        timeout_ms: int,
        clock: Clock,
        checkpoint: str = "",
        tables_only: bool = False,
    ) -> None:
        """Raises Unavailable when there is no store of ours, or no such checkpoint; Corrupt when it is damaged."""
        super().__init__("dbreader", location.describe(name), timeout_ms, clock)
        self._location = location
        self._name = name
        try:
            with translated(self.place):
                builder = _builder(location.path(name), location.store, checkpoint, tables_only)
            opened = self.call(HANDLE, "method_dbreaderbuilder_build", builder, doing="opening")
            self._handle = native._UniffiFfiConverterTypeDbReader.lift(opened)
        except Corrupt as error:
            raise self._refusal(Admin(location, name, timeout_ms, clock), error, checkpoint) from error
        try:
            if not checkpoint and not tables_only:  # these are empty before the first table
                self._check_instance()
        except BaseException:
            self.close()
            raise

    def logs(self) -> dict[str, tuple[int, LogState]]:
        """All logs by name, each with its id. Raises Corrupt and Unavailable."""
        found: dict[str, tuple[int, LogState]] = {}
        for key, value in self.scan_prefix(keys.LOG):
            state = decode_log(value, keys.describe(key))
            found[state.name] = (keys.log_id(key), state)
        return found

    def close(self) -> None:
        """Close the view."""
        try:
            self.call(NOTHING, "method_dbreader_shutdown", self._handle, doing="closing")
        except HeadraceError:
            return  # a reader has nothing to lose

    def _check_instance(self) -> None:
        stored = self.get(keys.INSTANCE)
        if stored is None:
            raise Unavailable(f"{self.place} is a SlateDB database, but not Headrace's; choose another path")
        found = decode_instance(stored, keys.describe(keys.INSTANCE))
        if found != self._name:
            raise Unavailable(f"{self.place} belongs to instance {found!r}, not {self._name!r}")

    def _absence(self) -> Unavailable:
        """The error for a missing database."""
        try:
            found = groups(self._location.url, self._timeout_ms)
        except Unavailable:
            found = []  # the list is only an addition to the error
        if found:
            return Unavailable(
                f"{self._location.url} has no replication group {self._name!r}; there are: {', '.join(found)}"
            )
        return Unavailable(f"there is no store at {self.place}: name the URL that `headrace serve --store` was given")

    def _refusal(self, admin: "Admin", error: Corrupt, checkpoint: str) -> HeadraceError:
        """The error for a database that cannot be opened."""
        if not admin.exists():
            return self._absence()
        if checkpoint and checkpoint not in admin.checkpoints():
            return Unavailable(f"{self.place} has no checkpoint {checkpoint} any more: it was kept for its time")
        return error


@final
class Admin(Caller):
    """The manifest and the checkpoints of a database, without opening it."""

    def __init__(self, location: Location, name: str, timeout_ms: int, clock: Clock) -> None:
        super().__init__(location.describe(name), timeout_ms, clock)
        with translated(self.place):
            self._native = native.AdminBuilder(location.path(name), location.store).build()

    def exists(self) -> bool:
        return self._manifest() is not None

    def replayed(self) -> int:
        """The number of the last write-ahead log file that is in tables; files up to it may be removed."""
        manifest = self._manifest()
        if manifest is None:
            raise Unavailable(
                f"there is no store at {self.place}: name the URL that `headrace serve --store` was given"
            )
        return int(manifest.replay_after_wal_id)

    def checkpoints(self, name: str | None = None) -> dict[str, int]:
        """The ids of checkpoints, all or those of a name, with the time of each in seconds."""
        lowered = native._UniffiFfiConverterOptionalString.lower(name)
        raw = self._ask(BYTES, "list_checkpoints", lowered)
        found = native._UniffiFfiConverterSequenceTypeCheckpoint.lift(raw)
        return {each.id: int(each.create_time_secs) for each in found}

    def create_checkpoint(self, name: str, lifetime_ms: int) -> str:
        """Keep the current tables from being removed for this time. Returns the checkpoint's id."""
        options = native.CheckpointOptions(lifetime_ms=lifetime_ms, source=None, name=name)
        lowered = native._UniffiFfiConverterTypeCheckpointOptions.lower(options)
        raw = self._ask(BYTES, "create_detached_checkpoint", lowered)
        return str(native._UniffiFfiConverterTypeCheckpointCreateResult.lift(raw).id)

    def delete_checkpoint(self, checkpoint: str) -> None:
        self._ask(NOTHING, "delete_checkpoint", native._UniffiFfiConverterString.lower(checkpoint))

    def _manifest(self) -> Any:
        lowered = native._UniffiFfiConverterOptionalUInt64.lower(None)
        return native._UniffiFfiConverterOptionalTypeVersionedManifest.lift(self._ask(BYTES, "read_manifest", lowered))

    def _ask(self, kind: Any, name: str, lowered: Any) -> Any:
        return self.call(kind, f"method_admin_{name}", self._native, lowered)


def check_store(location: Location, name: str, timeout_ms: int, clock: Clock) -> None:
    """Check that there is a store that can be read: reading the manifest of a missing one takes long.

    Raises Unavailable with the store's answer, and Corrupt.
    """
    View(location, name, timeout_ms, clock, tables_only=True).close()


def _builder(path: str, store: Any, checkpoint: str, tables_only: bool) -> Any:
    modes = native.ReaderMode
    builder = native.DbReaderBuilder(path, store)
    builder.with_reader_mode(modes.CHECKPOINT(checkpoint) if checkpoint else modes.FOLLOW_LATEST())
    options = native.ReaderOptions(
        manifest_poll_interval_ms=_LOOK_MS,
        checkpoint_lifetime_ms=_LIFETIME_MS,
        max_memtable_bytes=_MEMTABLE_BYTES,
        skip_wal_replay=tables_only,
        object_store_max_retries=_RETRIES,
    )
    builder.with_options(options)
    cache = native.FoyerCacheOptions(max_capacity=_CACHE_BYTES, shards=4)
    builder.with_db_cache(native.DbCache.new_foyer_cache(cache), 0)
    return builder
