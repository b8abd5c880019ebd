"""Opening a store: everything in it that an engine keeps in memory. Nothing is changed, but for a store that is new."""

from collections.abc import Iterator
from typing import final

from headrace.clock import Clock
from headrace.errors import Corrupt, Unavailable
from headrace.storage.objects import keys
from headrace.storage.objects.catalog import Catalog
from headrace.storage.objects.collector import Garbage, LogGarbage, QueueGarbage
from headrace.storage.objects.database import Database
from headrace.storage.objects.encodings import decode_terminated, lexical_successor
from headrace.storage.objects.group import ObjectGroup
from headrace.storage.objects.log import ObjectLog
from headrace.storage.objects.readable import Readable
from headrace.storage.objects.records import Spec, decode_spec
from headrace.storage.objects.state import decode_instance, decode_log, decode_progress, encode_instance


def prepare(database: Database, instance: str, clock: Clock) -> None:
    """Have the database be one of ours. Raises Unavailable when it is somebody else's, and Corrupt."""
    stored = database.get(keys.INSTANCE)
    if stored is not None:
        found = decode_instance(stored, keys.describe(keys.INSTANCE))
        if found != instance:
            raise Unavailable(f"{database.place} belongs to instance {found!r}, not {instance!r}")
        return
    for _ in database.scan(b"", None, at_once=1):
        raise Unavailable(f"{database.place} holds something that is not Headrace's; choose another path")
    segment = (0).to_bytes(8, "big") + (clock.now_us() // 1000).to_bytes(8, "big", signed=True)
    database.store([(keys.LOG_SEGMENT, segment), (keys.INSTANCE, encode_instance(instance))])


@final
class Loading:
    """Fills a catalog from a database."""

    def __init__(self, database: Readable, catalog: Catalog, now_us: int) -> None:
        self._database = database
        self._catalog = catalog
        self._now_us = now_us
        self._logs: dict[int, ObjectLog] = {}
        self._groups: dict[bytes, ObjectGroup] = {}

    def load(self) -> list[Garbage]:
        """Load everything; returns what the process before has not collected. Raises Corrupt and Unavailable."""
        self._load_logs()
        self._load_groups()
        for key, value in self._database.scan_prefix(keys.TABLE):
            table, row = keys.decode_table_key(key)
            self._catalog.tables.setdefault(table, {})[row] = value
        return list(self._garbage())

    def _load_logs(self) -> None:
        for key, value in self._database.scan_prefix(keys.LOG):
            state = decode_log(value, keys.describe(key))
            log = self._catalog.log(state.name)
            log.identify(keys.log_id(key))
            log.show(state)
            log.revert()
            self._logs[log.id] = log
        for key, _ in self._database.scan_prefix(keys.LENT):
            lender = self._logs.get(keys.log_id(key))
            if lender is not None:
                lender.is_lent = True

    def _load_groups(self) -> None:
        specs = {
            key[len(keys.SPEC) :]: (value, decode_spec(value, keys.describe(key)))
            for key, value in self._database.scan_prefix(keys.SPEC)
        }
        for key, value in self._database.scan_prefix(keys.PROGRESS):
            self._load_group(key, value, specs)
        for kind in (keys.ACTIVE, keys.ATTEMPTS):
            for key, value in self._database.scan_prefix(kind):
                group = self._groups.get(keys.decode_queue_key(key).queue)
                if group is not None:
                    group.records[key] = value
        for group in self._groups.values():
            group.reload()

    def _load_group(self, key: bytes, value: bytes, specs: dict[bytes, tuple[bytes, Spec]]) -> None:
        where = keys.describe(key)
        log_id, state = decode_progress(value, where)
        queue, _ = decode_terminated(key, 2, where)
        log, spec = self._logs.get(log_id), specs.get(queue)
        if log is None or spec is None or not queue.isdigit():
            raise Corrupt(where, 0, f"queue {queue!r} has no log or no specification")
        state.filter = spec[1].filter
        group = self._groups[queue] = ObjectGroup(int(queue), log, state, spec[1].bucket_size)
        group.settled_us = self._now_us  # or some time before
        group.records = {key: value, keys.spec_key(queue): spec[0]}
        first = keys.bucket_id(group.exponent, state.committed)
        for kind in (keys.DONE, keys.FAILED):  # those that are still added to
            end = lexical_successor(keys.queue_prefix(kind, queue))
            for rows in self._database.scan(keys.queue_key(kind, queue, first), end):
                group.records.update(rows)
        log.groups_by_name[state.name] = group
        log.staged_groups[state.name] = group

    def _garbage(self) -> Iterator[Garbage]:
        collected = {
            keys.log_id(key): int.from_bytes(value, "little")
            for key, value in self._database.scan_prefix(keys.COLLECTED)
        }
        for log in self._logs.values():
            if log.first_offset > collected.get(log.id, 0):
                yield LogGarbage(log.id, log.first_offset, False)
        for key, value in self._database.scan_prefix(keys.DROPPED_LOG):
            yield LogGarbage(keys.log_id(key), int.from_bytes(value, "little"), True)
        for key, _ in self._database.scan_prefix(keys.DROPPED_QUEUE):
            yield QueueGarbage(decode_terminated(key, 2, keys.describe(key))[0])
