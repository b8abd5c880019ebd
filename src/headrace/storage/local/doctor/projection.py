"""The directory as the next start of the broker finds it: the checkpoint, with the journal behind it replayed.

Reads, never writes, and goes on after damage. stored.py has the catalog, this module its problems.
"""

from pathlib import Path
from typing import Final, final

from headrace.errors import Corrupt
from headrace.storage.local.checkpoint import (
    GROUPS,
    Checkpoint,
    LogEntry,
    checkpoint_path,
    decode_checkpoint,
    decode_tails,
    tails_path,
)
from headrace.storage.local.disk import Disk, opened
from headrace.storage.local.doctor.findings import JournalRow, Meter, Problem, problem_of, read_whole, unreadable
from headrace.storage.local.doctor.segments import GroupCheck
from headrace.storage.local.group_files import group_key
from headrace.storage.local.journal import (
    NEWEST_NAME,
    PAGE,
    JournalFile,
    JournalReader,
    Newest,
    Position,
    read_file,
    read_newest,
)
from headrace.storage.local.record import Record
from headrace.storage.local.stored import StoredCatalog, StoredGroup
from headrace.storage.local.tables import Table, decode_table, table_path

_RESTORE_JOURNAL: Final = "restore journal/ from a copy; nothing is cut away by itself, because it was stored"


@final
class Projection:
    """The catalog, its problems, and the journal's end. A damaged checkpoint is None and leaves the catalog empty."""

    def __init__(self, disk: Disk, root: Path, meter: Meter) -> None:
        self._disk = disk
        self._root = root
        self._meter = meter
        self._checks: dict[int, GroupCheck] = {}
        """The groups whose state was read, by id."""
        self.catalog = StoredCatalog(root, has_groups=True)
        self.log_problems: dict[int, list[Problem]] = {}
        self.problems: list[Problem] = []
        self.journal = JournalRow()
        self.files: list[JournalFile] = []
        self.end = Position(0, 0, PAGE)
        self.is_sound = False
        """True if the journal could be read to its end."""
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

    def check_of(self, group: StoredGroup) -> GroupCheck:
        """The check of a group; one that the journal created has read no files."""
        return self._checks.get(group.id) or GroupCheck(group)

    def _read_files(self) -> list[JournalFile]:
        """Read the headers of all journal files; returns the files with damaged ones."""
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
        """True if the file was ever used: an unused one starts with zeros."""
        with opened(self._disk, path) as fd:
            return any(self._disk.read(fd, 0, PAGE))

    def _read_checkpoint(self) -> Checkpoint:
        path = checkpoint_path(self._root)
        if not path.exists():
            if any((self._root / "queues").glob("*")) and not self.files:
                raise Corrupt(str(path), 0, "it is missing, but there are queues")
            return Checkpoint(Position(0, 0, PAGE), 1)
        return decode_checkpoint(read_whole(self._disk, path), path)

    def _read_shared(self, checkpoint: Checkpoint) -> Table | None:
        """The table of groups; None when it is damaged, which the examination of tables reports."""
        if GROUPS not in checkpoint.tables:
            return Table(GROUPS)
        generation, length = checkpoint.tables[GROUPS]
        path = table_path(self._root, GROUPS, generation)
        try:
            return decode_table(GROUPS, generation, read_whole(self._disk, path), length, path)
        except Corrupt:
            return None

    def _load_log(self, entry: LogEntry, checkpoint: Checkpoint, shared: Table | None) -> None:
        catalog = self.catalog
        ids = [entry.id, *(group_id for group_id, _ in entry.groups)]
        taken = [each for each in ids if each in catalog.logs or each in catalog.groups or each >= checkpoint.next_id]
        if taken or not 0 <= entry.first <= entry.next:
            what = f"its entry for queue {entry.name!r} makes no sense (ids {ids}, offsets {entry.first}..{entry.next})"
            problem = Problem(str(checkpoint_path(self._root)), 0, what, _RESTORE_JOURNAL)
            self.log_problems[entry.id] = [problem]
        log = catalog.add_log(entry.id, entry.name, entry)
        for group_id, name in entry.groups:
            check = self._checks[group_id] = GroupCheck(catalog.add_group(log, group_id, name))
            value = shared.values.get(group_key(group_id)) if shared is not None else None
            if shared is not None and value is not None:
                check.read_value(value, table_path(self._root, GROUPS, shared.generation))
            elif shared is not None:
                check.read_files(self._disk, checkpoint.files.get(group_id, (0, False)))

    def _load_tails(self, checkpoint: Checkpoint) -> None:
        """Note the messages that are in the file of small tails instead of segments."""
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
        log = self.catalog.logs.get(log_id)
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
                self._apply(record, reader.end)
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
        """The statements about the newest journal files; damage to one is reported and does no harm."""
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
        """True if a file in use lost its end. Files are made in full before their first use, so no crash cuts them."""
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

    def _apply(self, record: Record, end: Position) -> None:
        self.journal.replayed_commits += 1
        self.journal.replayed_messages += sum(count for _, count, _ in record.runs)
        try:
            for what in self.catalog.apply(record, "", end.at - record.length):
                self._report(record, end, what)
        except (KeyError, ValueError) as error:
            self._report(record, end, f"commit {record.seq} makes no sense: {error!r}")

    def _report(self, record: Record, end: Position, what: str) -> None:
        paths = [file.path for file in self.files if file.index == end.index]
        where = str(paths[0] if paths else self._root / "journal")
        self.problems.append(Problem(where, end.at - record.length, what, _RESTORE_JOURNAL))
