"""A store followed from outside: its logs and their ends, exactly as of each refresh. Reads no messages.

The first refresh reads the records of all logs. Later ones read the new files of the write-ahead log, all
of them durable, and take the records of logs from them. If such a file may be removed already, all are read anew.
"""

import struct
from typing import Any, Final, final

from headrace.clock import Clock
from headrace.errors import Corrupt, HeadraceError, NotFound
from headrace.storage.api import QUEUES
from headrace.storage.objects import keys
from headrace.storage.objects.database import Caller, translated
from headrace.storage.objects.location import BYTES, HANDLE, Location, lift_raw, native
from headrace.storage.objects.log import StoreReader
from headrace.storage.objects.records import LogState, decode_log
from headrace.storage.objects.view import Admin, View, check_store

_TAIL_MS: Final = 5000
"""The timeout of reading a file of the write-ahead log that exists."""
_VALUE: Final = 1
_QUEUE_ROWS: Final = keys.table_key(QUEUES, b"")
_LENGTH: Final = struct.Struct(">i")


@final
class StoreFollower(Caller):
    """The logs of one database."""

    def __init__(self, location: Location, name: str, timeout_ms: int, clock: Clock) -> None:
        """Read all logs. Raises Unavailable when there is no store of ours, and Corrupt."""
        super().__init__(location.describe(name), timeout_ms, clock)
        self._location = location
        self._name = name
        check_store(location, name, timeout_ms, clock)
        self._admin = Admin(location, name, timeout_ms, clock)
        self._view: View | None = None
        """A view with at least all records seen so far; None until it is needed again."""
        self._states: dict[int, LogState] = {}
        self._ids: dict[str, int] = {}
        self._queues: set[str] = set()
        """Queues that are declared; those without messages so far have no log."""
        self._load()

    def refresh(self) -> None:
        """Take in new records. Raises Unavailable and Corrupt."""
        last = self._last_file(self._file)
        if self._admin.replayed() > self._file:  # asked second, so that removed files are noticed
            self._load()
        elif last > self._file:
            try:
                self._read_on(last)
            except HeadraceError:
                self._load()

    def names(self) -> list[str]:
        """All queues that are declared, and all logs."""
        return sorted(self._queues.union(self._ids))

    def log(self, name: str) -> tuple[int, LogState]:
        """The id of a log, which no other log of its name had, and its state; -1 before its first message.

        Raises NotFound.
        """
        log_id = self._ids.get(name)
        if log_id is None:
            if name not in self._queues:
                raise NotFound(f"{self.place} has no queue {name!r}")
            return -1, LogState(name, 0, 0, 0, 0, 0)
        state = self._states[log_id]
        return log_id if state.next_offset else -1, state

    def find(self, name: str, time_us: int) -> int:
        """The offset of the first message with at least this time, or the next offset if there is none."""
        log_id, state = self.log(name)
        if log_id < 0:
            return 0
        prefix = keys.entry_prefix(keys.log_name(self._name, log_id))
        reader = StoreReader(self._seen(), self._timeout_ms)
        return reader.find(log_id, prefix, state.first_offset, state.next_offset, time_us)

    def checkpoint(self, name: str, lifetime_ms: int, fresh_ms: int) -> str:
        """The id of a checkpoint of this name that lasts for the lifetime: a young one, or else a new one."""
        oldest_s = (self.clock.now_us() // 1000 - fresh_ms) // 1000
        young = [found for found, made_s in self._admin.checkpoints(name).items() if made_s >= oldest_s]
        return young[-1] if young else self._admin.create_checkpoint(name, lifetime_ms + fresh_ms)

    def close(self) -> None:
        if self._view is not None:
            self._view.close()
            self._view = None

    def _load(self) -> None:
        self.close()
        self._file = self._last_file(self._admin.replayed())
        logs = self._seen().logs()
        self._states = dict(logs.values())
        self._ids = {name: log_id for name, (log_id, _) in logs.items()}
        rows = self._seen().scan_prefix(_QUEUE_ROWS)
        self._queues = {key[len(_QUEUE_ROWS) :].decode(errors="replace") for key, _ in rows}

    def _seen(self) -> View:
        if self._view is None:
            self._view = View(self._location, self._name, self._timeout_ms, self.clock)
        return self._view

    # -- the write-ahead log -----------------------------------------------------------------------------------------

    def _last_file(self, after: int) -> int:
        """The number of the last file, or `after` when none follows it."""
        return int(self.call(HANDLE, "method_slatedbwalreader_last_wal_file_id", self._wal_reader(), after))

    def _read_on(self, last: int) -> None:
        """Take in the records of logs up to this file."""
        self.close()  # the view lacks the new records
        handle = self.call(HANDLE, "method_slatedbwalreader_iterator", self._wal_reader(), self._file + 1)
        iterator = native._UniffiFfiConverterTypeSlateDbWalIterator.lift(handle)
        while self._file < last:
            raw = lift_raw(self.call(BYTES, "method_slatedbwaliterator_next", iterator, timeout_ms=_TAIL_MS))
            for key, value in _rows_of(raw, self.place).items():
                if key.startswith(_QUEUE_ROWS):
                    name = key[len(_QUEUE_ROWS) :].decode(errors="replace")
                    self._queues.discard(name) if value is None else self._queues.add(name)
                else:
                    self._apply(keys.log_id(key), None if value is None else decode_log(value, keys.describe(key)))
            self._file = int.from_bytes(raw[-8:], "big")

    def _wal_reader(self) -> Any:
        with translated(self.place):
            return native.SlateDbWalReader(self._location.path(self._name), self._location.store)

    def _apply(self, log_id: int, state: LogState | None) -> None:
        before = self._states.pop(log_id, None)
        if before is not None and self._ids.get(before.name) == log_id:
            del self._ids[before.name]
        if state is not None:
            self._states[log_id] = state
            self._ids[state.name] = log_id


def _rows_of(raw: bytes, place: str) -> dict[bytes, bytes | None]:
    """The records of logs and declared queues after one file of the write-ahead log; None for a deleted one.

    The library's own form: a 1, then per row: kind, key, optional value, number, and two optional times; behind the
    rows the number of the file. A key may occur several times, in any order.
    """
    unpack = _LENGTH.unpack_from
    found: dict[bytes, tuple[int, bytes | None]] = {}
    if not raw[0]:
        raise Corrupt(place, 0, "the write-ahead log has an end")
    (count,) = unpack(raw, 1)
    at = 5
    for _ in range(count):
        (kind,) = unpack(raw, at)
        key_at = at + 8
        key_end = key_at + unpack(raw, at + 4)[0]
        value_at = key_end + 5
        at = value_at + unpack(raw, key_end + 1)[0] if raw[key_end] else key_end + 1
        if raw.startswith(keys.LOG, key_at) or raw.startswith(_QUEUE_ROWS, key_at):
            key, number = raw[key_at:key_end], int.from_bytes(raw[at : at + 8], "big")
            if key not in found or found[key][0] < number:
                found[key] = (number, raw[value_at:at] if kind == _VALUE else None)
        at += 8
        for _ in range(2):
            at += 9 if raw[at] else 1
    return {key: value for key, (_, value) in found.items()}
