"""The thread that removes garbage from the store: payloads, entries, and the records of dropped logs and queues.

The store has all it needs to know, so the next process collects the garbage that one left. A payload that several logs
share goes with the last of them.
"""

import logging
import threading
from collections.abc import Iterator
from typing import Final, NamedTuple, final

from headrace.errors import Corrupt, Fatal, Unavailable
from headrace.storage.objects import keys
from headrace.storage.objects.database import Change, Database
from headrace.storage.objects.records import (
    SHARED,
    decode_entry,
    decode_payloads,
    decode_settled,
    flags_of,
    packed_runs,
)

_log: Final = logging.getLogger("headrace.storage")

_AT_ONCE: Final = 2000
_PAUSE_S: Final = 0.5
"""The time to let garbage accumulate."""
_RETRY_S: Final = 5.0
_WAIT_MS: Final = 500
_BUCKETS: Final = 64


class LogGarbage(NamedTuple):
    """The messages of a log below `until`, or a whole dropped log."""

    log_id: int
    until: int
    dropped: bool


class QueueGarbage(NamedTuple):
    """A deleted queue."""

    queue: bytes


class OldHistory(NamedTuple):
    """Done and failed messages of a queue that were settled before a time, in buckets below `until`."""

    queue: bytes
    until: int
    before_us: int


Garbage = LogGarbage | QueueGarbage | OldHistory
Key = tuple[type[Garbage], int | bytes]


@final
class Collector:
    """Takes garbage from any thread and removes it in its own."""

    def __init__(self, database: Database, instance: str) -> None:
        self._database = database
        self._instance = instance
        self._waiting: dict[Key, Garbage] = {}
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._stopping = threading.Event()
        self._changes: list[Change] = []
        self._thread = threading.Thread(target=self._run, name="headrace-objects-collector", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def collect(self, garbage: Garbage) -> None:
        """Remove this soon."""
        with self._lock:
            self._waiting[_key(garbage)] = garbage
        self._wanted.set()

    def _put_back(self, waiting: list[Garbage]) -> None:
        """Retry these later, unless newer garbage of the same log or queue came meanwhile."""
        with self._lock:
            for garbage in waiting:
                self._waiting.setdefault(_key(garbage), garbage)
        self._wanted.set()

    def stop(self) -> None:
        """Stop after the current removal."""
        self._stopping.set()
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wanted.wait()
            if self._stopping.wait(_PAUSE_S):
                return
            self._wanted.clear()
            with self._lock:
                waiting, self._waiting = self._waiting, {}
            try:
                self._remove_all(list(waiting.values()))
            except Fatal:
                return  # the engine gets this error itself

    def _remove_all(self, waiting: list[Garbage]) -> None:
        for at, garbage in enumerate(waiting):
            if self._stopping.is_set():
                return
            self._changes = []
            try:
                self._remove(garbage)
                self._write()
            except Unavailable:
                self._put_back(waiting[at:])
                self._stopping.wait(_RETRY_S)
                return
            except Corrupt as error:
                _log.error("garbage in the store cannot be collected: %s", error)

    def _remove(self, garbage: Garbage) -> None:
        if isinstance(garbage, LogGarbage):
            self._remove_messages(garbage)
            self._remove_times(garbage)
            if garbage.dropped:
                self._changes.append((keys.listing_key(keys.log_name(self._instance, garbage.log_id)), None))
                self._changes.append((keys.COLLECTED + keys.u64(garbage.log_id), None))
                self._changes.append((keys.LENT + keys.u64(garbage.log_id), None))
                self._changes.append((keys.DROPPED_LOG + keys.u64(garbage.log_id), None))
        elif isinstance(garbage, QueueGarbage):
            for kind in (keys.ACTIVE, keys.DONE, keys.FAILED, keys.ATTEMPTS):
                for key, _ in self._database.scan_prefix(keys.queue_prefix(kind, garbage.queue)):
                    self._delete(key)
            self._changes.append((keys.queue_prefix(keys.DROPPED_QUEUE, garbage.queue), None))
        else:
            self._remove_history(garbage)

    def _remove_messages(self, garbage: LogGarbage) -> None:
        marker = keys.COLLECTED + keys.u64(garbage.log_id)
        stored = self._database.get(marker)
        start = int.from_bytes(stored, "little") if stored is not None else 0
        is_lent = self._database.get(keys.LENT + keys.u64(garbage.log_id)) is not None
        prefix = keys.entry_prefix(keys.log_name(self._instance, garbage.log_id))
        for rows in self._database.scan(
            keys.entry_key(prefix, start), keys.entry_key(prefix, garbage.until), at_once=8
        ):
            for key, value in rows:
                ids, metadata = decode_entry(value, keys.describe(key))
                base = keys.decode_entry_key(key, prefix)
                end = base + len(ids)
                if end > garbage.until:
                    return
                at = 0
                for low, high in [*packed_runs(ids, metadata), (len(ids), len(ids))]:
                    self._remove_single(garbage.log_id, base, ids, metadata, range(at, low), is_lent)
                    if low < high:
                        self._remove_packed(garbage.log_id, base + low, ids[low], high - low, is_lent)
                    at = high
                self._changes.append((key, None))
                self._changes.append((marker, end.to_bytes(8, "little")))
                self._write_many()
                if self._stopping.is_set():
                    return

    def _remove_single(
        self, log_id: int, base: int, ids: list[int], metadata: list[bytes], rows: range, is_lent: bool
    ) -> None:
        """Remove payloads that have records of their own."""
        for row in rows:
            is_shared = flags_of(metadata[row], f"offset {base + row} of log {log_id}") & SHARED
            if not (is_lent or is_shared) or self._release(ids[row], log_id, base + row):
                self._changes.append((keys.payload_key(ids[row]), None))

    def _remove_packed(self, log_id: int, base: int, first_id: int, count: int, is_lent: bool) -> None:
        """Remove payloads that are in one record. Those to which other logs refer get records of their own."""
        key = keys.payloads_key(first_id)
        if is_lent:
            kept = [row for row in range(count) if not self._release(first_id + row, log_id, base + row)]
            stored = self._database.get(key) if kept else None
            if stored is not None:
                payloads = decode_payloads(stored, keys.describe(key))
                self._changes += [(keys.payload_key(first_id + row), payloads[row]) for row in kept]
        self._changes.append((key, None))

    def _release(self, message_id: int, log_id: int, offset: int) -> bool:
        """Remove a message's reference to a payload; returns whether it was the last one."""
        copy = keys.copy_key(message_id, log_id, offset)
        plain = keys.reference_key(message_id, log_id)
        found = [key for key, _ in self._database.scan_prefix(plain[:-8], at_once=8)]
        own = (copy, plain) if copy in found else (plain,)  # a copy of a copy has both
        self._changes += [(key, None) for key in own]
        return not [key for key in found if key not in own]

    def _remove_times(self, garbage: LogGarbage) -> None:
        for key, value in self._database.scan_prefix(keys.TIME + keys.u64(garbage.log_id), at_once=_BUCKETS):
            if not garbage.dropped and int.from_bytes(value, "little") > garbage.until:
                return
            self._delete(key)

    def _remove_history(self, garbage: OldHistory) -> None:
        for kind in (keys.DONE, keys.FAILED):
            for key in self._old_buckets(kind, garbage):
                self._delete(key)

    def _old_buckets(self, kind: bytes, garbage: OldHistory) -> Iterator[bytes]:
        for key, value in self._database.scan_prefix(keys.queue_prefix(kind, garbage.queue), at_once=_BUCKETS):
            settled = decode_settled(value, keys.describe(key))
            is_old = all([message.at_us < garbage.before_us for message in settled])
            if keys.number_of(keys.decode_queue_key(key).number) >= garbage.until or not is_old:
                return
            yield key

    def _delete(self, key: bytes) -> None:
        self._changes.append((key, None))
        self._write_many()

    def _write_many(self) -> None:
        if len(self._changes) >= _AT_ONCE:
            self._write()

    def _write(self) -> None:
        if self._changes:
            changes, self._changes = self._changes, []
            writing = self._database.write(changes)
            while not writing.wait(_WAIT_MS):
                if self._stopping.is_set():
                    writing.release()
                    return


def _key(garbage: Garbage) -> Key:
    return type(garbage), garbage.log_id if isinstance(garbage, LogGarbage) else garbage.queue
