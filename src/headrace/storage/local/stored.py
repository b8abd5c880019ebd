"""The read-only catalog of a data directory: its logs and groups, from the checkpoint and the journal behind it.

The follower, the backup and the doctor share it. It knows where messages are stored and never holds them; the engine's
own catalog, with messages in memory, is in catalog.py.
"""

from pathlib import Path
from typing import Final, final

from headrace.storage.api import QUEUES
from headrace.storage.group_state import CREATED, DELETED, GroupState
from headrace.storage.local.checkpoint import Checkpoint, LogEntry
from headrace.storage.local.files import encode_name
from headrace.storage.local.record import (
    CREATE_LOG,
    DELETE,
    DROP_LOG,
    PUT,
    TRUNCATE,
    Operation,
    Record,
    decode_operations,
)

JOURNAL: Final = "journal"
BLOCK: Final = "block"
"""One block of a record of several; it holds messages of one log from its first row on."""
SEGMENT: Final = "segment"

STRETCH_BYTES: Final = 256 << 10
"""Neighbouring records of the journal are one stretch up to this size."""

Span = tuple[str, str, int, int, int, int, int]
"""The place of messages: journal, block or segment; path; first byte, end; first offset, end; and a proof.

The proof shows that the bytes were not replaced: the first record's number, the block's checksum, or the log's id."""


@final
class Stretch:
    """Neighbouring records of the journal that all append to one log, or one block of a large record."""

    __slots__ = ("base", "end", "kind", "max_time_us", "next", "path", "proof", "start")

    def __init__(
        self, kind: str, path: str, start: int, end: int, proof: int, base: int, stop: int, max_time_us: int
    ) -> None:
        self.kind = kind
        self.path = path
        self.start = start
        self.end = end
        self.proof = proof
        self.base = base
        self.next = stop
        self.max_time_us = max_time_us

    def span(self, start: int, stop: int) -> Span:
        """The part of the stretch with these offsets."""
        return self.kind, self.path, self.start, self.end, max(start, self.base), min(stop, self.next), self.proof


@final
class StoredGroup:
    """A group as its files and the journal make it; `state` is None when its files cannot be read."""

    __slots__ = ("id", "is_shared", "log", "name", "pending_seq", "progress_seq", "state")

    def __init__(self, group_id: int, name: str, log: "StoredLog", state: GroupState | None = None) -> None:
        self.id = group_id
        self.name = name
        self.log = log
        self.state = state
        self.is_shared = False
        """True if its state is in the table of groups; files of its own are left from earlier then."""
        self.progress_seq = 0
        """The last commit that state.json holds."""
        self.pending_seq = 0
        """The last commit that pel.log holds."""

    @property
    def directory(self) -> Path:
        return self.log.directory / "consumers" / encode_name(self.name)


@final
class StoredLog:
    """A log as the checkpoint and the journal make it."""

    def __init__(self, queues: Path, log_id: int, name: str, entry: LogEntry | None) -> None:
        self._queues = queues
        self.id = log_id
        self.name = name
        self.entry = entry
        """The log in the checkpoint; None when it was created later, so that the journal has all of it."""
        self.first = entry.first if entry is not None else 0
        self.next = entry.next if entry is not None else 0
        self.stored_next = self.next
        """The end of the messages that segments must hold."""
        self.replayed_from = -1
        """The first offset that the journal or the file of small tails holds; -1 if neither holds any."""
        self.groups: dict[str, StoredGroup] = {}
        self.stretches: list[Stretch] = []

    @property
    def directory(self) -> Path:
        return self._queues / encode_name(self.name)

    @property
    def segments_directory(self) -> Path:
        return self.directory / "segments"

    def add_record(self, path: str, at: int, record: Record, base: int, stop: int) -> None:
        """Note that the only block of the record at this position appends these offsets."""
        end = at + record.length
        max_time_us = record.heads[0].max_time_us
        last = self.stretches[-1] if self.stretches else None
        is_next = last is not None and last.kind == JOURNAL and last.path == path and last.end == at
        if last is not None and is_next and end - last.start <= STRETCH_BYTES:
            last.end = end
            last.next = stop
            last.max_time_us = max(last.max_time_us, max_time_us)
        else:
            self.stretches.append(Stretch(JOURNAL, path, at, end, record.seq, base, stop, max_time_us))

    def truncate(self, offset: int) -> None:
        """Remove the messages below this offset."""
        self.first = max(self.first, min(offset, self.next))
        self.stretches = [stretch for stretch in self.stretches if stretch.next > self.first]


@final
class StoredCatalog:
    """The logs of a directory, and its groups if wanted, brought up to date record by record."""

    def __init__(self, root: Path, has_groups: bool = False) -> None:
        self._queues = root / "queues"
        self._has_groups = has_groups
        self.logs: dict[int, StoredLog] = {}
        self.names: dict[str, StoredLog] = {}
        self.groups: dict[int, StoredGroup] = {}
        self.queues: set[str] = set()
        """Queues that are declared; those without messages so far have no log."""
        self.gone: set[Path] = set()
        """With groups: directories of dropped logs and deleted groups, which the next start removes."""

    def load(self, checkpoint: Checkpoint) -> None:
        """Begin with the logs of a checkpoint."""
        self.logs = {}
        self.names = {}
        for entry in checkpoint.logs:
            self.add_log(entry.id, entry.name, entry)

    def add_log(self, log_id: int, name: str, entry: LogEntry | None = None) -> StoredLog:
        log = self.logs[log_id] = self.names[name] = StoredLog(self._queues, log_id, name, entry)
        return log

    def add_group(self, log: StoredLog, group_id: int, name: str, state: GroupState | None = None) -> StoredGroup:
        group = self.groups[group_id] = log.groups[name] = StoredGroup(group_id, name, log, state)
        return group

    def add_tails(self, record: Record, path: str, at: int) -> None:
        """Take in a record of the file of small tails: its messages are in no segment."""
        for log_id, _, base in record.runs:
            log = self.logs.get(log_id)
            if log is not None and log.replayed_from < 0:
                log.stored_next = base
        self._append(record, path, at)

    def apply(self, record: Record, path: str, at: int) -> list[str]:
        """Take in the record of the journal at this position; returns the parts that do not fit, in words.

        With groups, raises KeyError when it names an unknown log or group. Raises ValueError for unknown operations.
        """
        operations = decode_operations(record.operations) if record.operations else []
        for operation in operations:
            if operation.kind == CREATE_LOG:
                self.logs[operation.log_id] = StoredLog(self._queues, operation.log_id, operation.name, None)
        problems = self._append(record, path, at)
        for operation in operations:
            self._change(operation, record.seq)
        return problems

    def _append(self, record: Record, path: str, at: int) -> list[str]:
        problems: list[str] = []
        heads = record.heads
        block_at = at + record.length - sum([head.length for head in heads])
        for number, (log_id, count, base) in enumerate(record.runs):
            head = heads[0] if len(heads) == 1 else heads[number]
            start, block_at = block_at, block_at + head.length
            log = self._log(log_id)
            if log is None:
                continue
            stop = base + count
            if base != log.next:
                what = f"commit {record.seq} goes on at offset {base} of queue {log.name!r}, which ended at {log.next}"
                problems.append(what)
            if len(heads) == 1:
                log.add_record(path, at, record, base, stop)
            else:
                log.stretches.append(
                    Stretch(BLOCK, path, start, start + head.length, head.crc, base, stop, head.max_time_us)
                )
            if log.replayed_from < 0:
                log.replayed_from = base
            log.next = stop
        return problems

    def _change(self, operation: Operation, seq: int) -> None:
        if operation.step is not None:
            if self._has_groups:
                self._step(operation, seq)
        elif operation.kind == CREATE_LOG:
            log = self.logs[operation.log_id]
            self.names[log.name] = log
        elif operation.kind in (PUT, DELETE):
            if operation.table == QUEUES:
                name = operation.key.decode()
                self.queues.add(name) if operation.kind == PUT else self.queues.discard(name)
        elif operation.kind == DROP_LOG:
            dropped = self._log(operation.log_id)
            if dropped is not None:
                self._drop(dropped)
        elif operation.kind == TRUNCATE:
            cut = self._log(operation.log_id)
            if cut is not None:
                cut.truncate(operation.offset)

    def _step(self, operation: Operation, seq: int) -> None:
        step = operation.step
        assert step is not None
        if step.kind == CREATED:
            state = GroupState(step.group, step.mode, step.filter, step.start)
            self.add_group(self.logs[operation.log_id], operation.group_id, step.group, state)
            return
        group = self.groups[operation.group_id]
        if step.kind == DELETED:
            del self.groups[group.id]
            group.log.groups.pop(group.name, None)
            self.gone.add(group.directory)
        elif group.state is not None:
            if seq > group.progress_seq:
                group.state.apply_progress(step)
            if seq > group.pending_seq:
                group.state.apply_pending(step)

    def _drop(self, log: StoredLog) -> None:
        del self.logs[log.id]
        if self.names.get(log.name) is log:
            del self.names[log.name]
        for group in log.groups.values():
            self.groups.pop(group.id, None)
        if self._has_groups:
            self.gone.add(log.directory)

    def _log(self, log_id: int) -> StoredLog | None:
        """The log with this id; a follower skips records about unknown logs."""
        return self.logs[log_id] if self._has_groups else self.logs.get(log_id)
