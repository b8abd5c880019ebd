"""What the next start of the broker will find: the checkpoint, and the journal behind it replayed. Reads, never writes.

An account of its own, not the engine's: it keeps counts and group states, no messages, and goes on after damage.
"""

from pathlib import Path
from typing import Final, final

from headrace.errors import Corrupt
from headrace.storage.group_state import CREATED, DELETED, GroupState
from headrace.storage.local.checkpoint import (
    GROUPS,
    Checkpoint,
    LogEntry,
    checkpoint_path,
    decode_checkpoint,
    decode_tails,
    tails_path,
)
from headrace.storage.local.disk import Disk
from headrace.storage.local.doctor.findings import JournalRow, Meter, Problem, problem_of, read_whole, unreadable
from headrace.storage.local.doctor.segments import ExpectedGroup, read_group, read_shared_group
from headrace.storage.local.files import encode_name
from headrace.storage.local.group_files import group_key
from headrace.storage.local.journal import NEWEST_NAME as NEWEST_NAME
from headrace.storage.local.journal import PAGE, JournalFile, JournalReader, Newest, Position, read_file, read_newest
from headrace.storage.local.record import CREATE_LOG, DROP_LOG, TRUNCATE, Operation, Record, decode_operations
from headrace.storage.local.tables import Table, decode_table, table_path

_RESTORE_JOURNAL: Final = "restore journal/ from a copy; nothing is cut away by itself, because it was stored"


@final
class ExpectedLog:
    """A log as the checkpoint and the journal make it."""

    __slots__ = (
        "directory",
        "entry",
        "first",
        "groups",
        "id",
        "name",
        "next",
        "problems",
        "replayed_from",
        "stored_next",
    )

    def __init__(self, log_id: int, name: str, directory: Path, entry: LogEntry | None) -> None:
        self.id = log_id
        self.name = name
        self.directory = directory
        self.entry = entry
        """What the checkpoint says; None when the log was made after it, and is in the journal as a whole."""
        self.first = entry.first if entry is not None else 0
        self.next = entry.next if entry is not None else 0
        self.stored_next = self.next
        """Behind the last message that has to be in segments."""
        self.replayed_from = -1
        """The first offset that the journal, or the file of small tails, holds, or -1 when neither holds any."""
        self.groups: dict[str, ExpectedGroup] = {}
        self.problems: list[Problem] = []

    def group(self, group_id: int, name: str) -> ExpectedGroup:
        group = ExpectedGroup(group_id, name, self.directory / "consumers" / encode_name(name))
        self.groups[name] = group
        return group


@final
class Projection:
    """All logs, groups and the journal's end. `checkpoint` is None, and nothing is known, when that is damaged."""

    def __init__(self, disk: Disk, root: Path, meter: Meter) -> None:
        self._disk = disk
        self._root = root
        self._meter = meter
        self._groups: dict[int, tuple[ExpectedLog, ExpectedGroup]] = {}
        self.logs: dict[int, ExpectedLog] = {}
        self.gone: set[Path] = set()
        """Directories of dropped logs and deleted groups, which the next start removes."""
        self.problems: list[Problem] = []
        self.journal = JournalRow()
        self.files: list[JournalFile] = []
        self.end = Position(0, 0, PAGE)
        self.is_sound = False
        """Whether the journal could be read to its end."""
        self.checkpoint: Checkpoint | None = None

    def load(self) -> None:
        """Read the checkpoint with its groups, then the journal."""
        damaged = self._read_files()
        try:
            checkpoint = self.checkpoint = self._read_checkpoint()
        except Corrupt as error:
            self.problems.append(problem_of(error, "restore journal/ from a copy; without it no queue can be opened"))
            self._report_headers(damaged, [])
            return
        shared = self._read_shared(checkpoint)
        for entry in checkpoint.logs:
            self._load_log(entry, checkpoint, shared)
        self._load_tails(checkpoint)
        self._replay(checkpoint, damaged)

    def _read_files(self) -> list[JournalFile]:
        """Take in the headers of all journal files; returns those that are damaged."""
        damaged: list[JournalFile] = []
        for path in sorted((self._root / "journal").glob("*.jnl")):
            try:
                file = read_file(self._disk, path)
                if file.index == 0 and self._has_header(path):
                    damaged.append(file)
            except Corrupt as error:
                self.problems.append(problem_of(error))
            except OSError as error:
                self.problems.append(problem_of(unreadable(error, path, 0)))
            else:
                self.files.append(file)
                self.journal.files += 1
                self.journal.size_bytes += file.size
        return damaged

    def _has_header(self, path: Path) -> bool:
        """Whether the file was used: one that never was starts with zeros."""
        fd = self._disk.open(path)
        try:
            return any(self._disk.read(fd, 0, PAGE))
        finally:
            self._disk.close(fd)

    def _read_checkpoint(self) -> Checkpoint:
        path = checkpoint_path(self._root)
        if not path.exists():
            if any((self._root / "queues").glob("*")) and not self.files:
                raise Corrupt(str(path), 0, "it is missing, but there are queues")
            return Checkpoint(Position(0, 0, PAGE), 1)
        return decode_checkpoint(read_whole(self._disk, path), path)

    def _read_shared(self, checkpoint: Checkpoint) -> Table | None:
        """The states of groups that have no files of their own; None when it is damaged, which is told elsewhere."""
        if GROUPS not in checkpoint.tables:
            return Table(GROUPS)
        generation, length = checkpoint.tables[GROUPS]
        path = table_path(self._root, GROUPS, generation)
        try:
            return decode_table(GROUPS, generation, read_whole(self._disk, path), length, path)
        except Corrupt:
            return None

    def _load_log(self, entry: LogEntry, checkpoint: Checkpoint, shared: Table | None) -> None:
        log = ExpectedLog(entry.id, entry.name, self._root / "queues" / encode_name(entry.name), entry)
        ids = [entry.id, *(group_id for group_id, _ in entry.groups)]
        taken = [each for each in ids if each in self.logs or each in self._groups or each >= checkpoint.next_id]
        if taken or not 0 <= entry.first <= entry.next:
            what = f"its entry for queue {entry.name!r} makes no sense (ids {ids}, offsets {entry.first}..{entry.next})"
            log.problems.append(Problem(str(checkpoint_path(self._root)), 0, what, _RESTORE_JOURNAL))
        self.logs[entry.id] = log
        for group_id, name in entry.groups:
            group = log.group(group_id, name)
            value = shared.values.get(group_key(group_id)) if shared is not None else None
            if shared is not None and value is not None:
                read_shared_group(group, value, table_path(self._root, GROUPS, shared.generation))
            elif shared is not None:
                read_group(self._disk, entry.name, group, checkpoint.files.get(group_id, (0, False)))
            self._groups[group_id] = (log, group)

    def _load_tails(self, checkpoint: Checkpoint) -> None:
        """Note which messages are in the file of small tails instead of segments."""
        generation, length = checkpoint.tails
        if not length:
            return
        path = tails_path(self._root, generation)
        try:
            for at, record in decode_tails(read_whole(self._disk, path), length, path):
                for log_id, count, base in record.runs:
                    self._take_tail(path, at, log_id, base, base + count)
        except Corrupt as error:
            self.problems.append(problem_of(error, _RESTORE_JOURNAL))

    def _take_tail(self, path: Path, at: int, log_id: int, base: int, stop: int) -> None:
        log = self.logs.get(log_id)
        if log is None or log.replayed_from >= 0 or stop != log.next:
            what = f"it has messages {base} to {stop - 1} of log {log_id}, which do not fit the checkpoint"
            self.problems.append(Problem(str(path), at, what, _RESTORE_JOURNAL))
        else:
            log.stored_next = log.replayed_from = base

    def _replay(self, checkpoint: Checkpoint, damaged: list[JournalFile]) -> None:
        start = checkpoint.position
        self.journal.checkpoint_seq = start.seq
        directory = self._root / "journal"
        stated = self._read_newest(directory)
        reader = JournalReader(self._disk, directory, self.files, start, stated)
        try:
            for record in reader.records():
                self._take(record, reader.end)
            self.is_sound = not self._report_cuts(start)
        except Corrupt as error:
            self.problems.append(problem_of(error, _RESTORE_JOURNAL))
        except OSError as error:
            where = Path(error.filename) if error.filename else self._root / "journal"
            self.problems.append(problem_of(unreadable(error, where, 0)))
        for file in self.files:
            self._meter.reached(file.path, file.size)
        self.end = reader.end
        self.journal.end_seq = reader.end.seq
        self.journal.torn = reader.torn
        self._report_headers(damaged, reader.headless)

    def _read_newest(self, directory: Path) -> list[Newest]:
        """What is said of the newest journal file; damage to it is told and does no harm."""
        path = directory / NEWEST_NAME
        try:
            stated, is_damaged = read_newest(self._disk, directory)
        except Corrupt as error:
            self.problems.append(problem_of(error))
            return []
        if is_damaged:
            what, remedy = "what it says of the newest journal file is damaged", "the broker writes it when it starts"
            self.problems.append(Problem(str(path), 0, what, remedy))
        return stated

    def _report_cuts(self, start: Position) -> bool:
        """Whether a file in use lost its end. Made in full before their first use, they are never cut by a crash."""
        found = False
        for file in self.files:
            if file.index > 0 and (file.size % PAGE or (file.index == start.index and file.size < start.at)):
                found = True
                what = "the file was cut here; commits that were stored in it are gone"
                remedy = "restore it from a copy before the broker starts, which would go on without them"
                self.problems.append(Problem(str(file.path), file.size, what, remedy))
        return found

    def _report_headers(self, damaged: list[JournalFile], needed: list[JournalFile]) -> None:
        for file in damaged:
            if file in needed:
                what, remedy = "the header is damaged, the records are whole", "the broker mends it when it starts"
            elif self.is_sound:
                what, remedy = "the header is damaged", "nothing: no record in it is needed, it will be written over"
            else:
                what, remedy = "the header is damaged", "restore the file from a copy"
            self.problems.append(Problem(str(file.path), 0, what, remedy))

    # -- records -----------------------------------------------------------------------------------------------------

    def _take(self, record: Record, end: Position) -> None:
        self.journal.replayed_commits += 1
        try:
            operations = decode_operations(record.operations)
            for operation in operations:
                if operation.kind == CREATE_LOG:
                    directory = self._root / "queues" / encode_name(operation.name)
                    self.logs[operation.log_id] = ExpectedLog(operation.log_id, operation.name, directory, None)
            for log_id, count, base in record.runs:
                self._append(self.logs[log_id], count, base, record, end)
            for operation in operations:
                self._apply(operation, record.seq)
        except (KeyError, ValueError) as error:
            self._report(record, end, f"commit {record.seq} makes no sense: {error!r}")

    def _append(self, log: ExpectedLog, count: int, base: int, record: Record, end: Position) -> None:
        self.journal.replayed_messages += count
        if base != log.next:
            what = f"commit {record.seq} goes on at offset {base} of queue {log.name!r}, which ended at {log.next}"
            self._report(record, end, what)
        if log.replayed_from < 0:
            log.replayed_from = base
        log.next = base + count

    def _apply(self, operation: Operation, seq: int) -> None:
        step = operation.step
        if operation.kind == DROP_LOG:
            self._drop(self.logs.pop(operation.log_id))
        elif operation.kind == TRUNCATE:
            log = self.logs[operation.log_id]
            log.first = max(log.first, min(operation.offset, log.next))
        elif step is not None and step.kind == CREATED:
            log = self.logs[operation.log_id]
            group = log.group(operation.group_id, step.group)
            group.state = GroupState(step.group, step.mode, step.filter, step.start)
            self._groups[operation.group_id] = (log, group)
        elif step is not None and step.kind == DELETED:
            log, group = self._groups.pop(operation.group_id)
            log.groups.pop(group.name, None)
            self.gone.add(group.directory)
        elif step is not None:
            _, group = self._groups[operation.group_id]
            if group.state is not None and seq > group.progress_seq:
                group.state.apply_progress(step)
            if group.state is not None and seq > group.pending_seq:
                group.state.apply_pending(step)

    def _drop(self, log: ExpectedLog) -> None:
        self.gone.add(log.directory)
        for group in log.groups.values():
            self._groups.pop(group.id, None)

    def _report(self, record: Record, end: Position, what: str) -> None:
        paths = [file.path for file in self.files if file.index == end.index]
        where = str(paths[0] if paths else self._root / "journal")
        self.problems.append(Problem(where, end.at - record.length, what, _RESTORE_JOURNAL))
