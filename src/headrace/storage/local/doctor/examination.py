"""One pass over a whole data directory: it reads everything, changes nothing and goes on after damage. No formats."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

from headrace.errors import Corrupt, Refused
from headrace.storage.local.checkpoint import SUFFIX, LogEntry, tails_path
from headrace.storage.local.disk import Disk, ReadOnlyDisk
from headrace.storage.local.doctor.findings import (
    CutJournal,
    Meter,
    Problem,
    Progress,
    QueueRow,
    RebuildIndexes,
    Remove,
    Repair,
    Report,
    fingerprint_of,
    problem_of,
    read_whole,
)
from headrace.storage.local.doctor.projection import Projection
from headrace.storage.local.doctor.segments import SegmentCheck, coverage_problems
from headrace.storage.local.files import ReadingLock, decode_name, is_partial
from headrace.storage.local.segment import HEADER_BYTES, segment_log_id, segment_path
from headrace.storage.local.stored import StoredLog
from headrace.storage.local.tables import decode_stored, stored_path

_ORPHAN: Final = "look whether a copy of journal/ knows it; if not, move it away"
_DRAFTS: Final = (".json.tmp", ".log.tmp", ".kv.tmp")
_LEFT_OVER: Final = "it does no harm; --repair removes it"


def examine(root: Path, disk: Disk | None = None, progress: Progress | None = None) -> Report:
    """Verify every file of a data directory.

    Raises Unavailable when a broker has it open, and Refused when it is no data directory.
    """
    if not root.is_dir():
        raise Refused(f"{root} is not a directory; name the one given to `headrace serve --data`")
    if not (root / "journal").is_dir():
        raise Refused(
            f"{root} is not a data directory, it has no journal/; name the one given to `headrace serve --data`"
        )
    lock = ReadingLock(root)
    try:
        return _Examination(root, ReadOnlyDisk(disk or Disk()), progress).run()
    finally:
        lock.release()


@final
class _Examination:
    def __init__(self, root: Path, disk: Disk, progress: Progress | None) -> None:
        self._root = root
        self._disk = disk
        self._fingerprint = fingerprint_of(root)
        total = sum(size for path, (_, size, _) in self._fingerprint.items() if path.endswith((".seg", ".jnl")))
        self._meter = Meter(total, progress)
        self._projection = Projection(disk, root, self._meter)
        self._problems = self._projection.problems
        self._repairs: list[Repair] = []
        self._depth = len(root.parts)

    def run(self) -> Report:
        projection = self._projection
        projection.load()
        if projection.is_sound and projection.journal.torn:
            self._report_torn()
        self._check_tables()
        if projection.checkpoint is None:
            self._assume_logs()
        logs = sorted(projection.catalog.logs.items(), key=lambda item: item[1].name)
        queues = [self._check_log(number, log) for number, log in logs]
        self._check_queue_directories()
        for path in self._drafts():
            self._left_over(path, "a draft that was never finished")
        self._meter.finish()
        return Report(self._root, projection.journal, queues, self._problems, self._repairs, self._fingerprint)

    # -- journal and tables ------------------------------------------------------------------------------------------

    def _report_torn(self) -> None:
        end = self._projection.end
        paths = [file.path for file in self._projection.files if file.index == end.index and file.index]
        self._problems.append(
            Problem(
                str(paths[0] if paths else self._root / "journal"),
                end.at,
                f"behind commit {end.seq} stands one that was never finished, so nobody was told that it was stored",
                "the broker cuts it off when it starts, --repair does so now",
                repairable=True,
            )
        )
        self._repairs.append(CutJournal(self._projection.files, end))

    def _check_tables(self) -> None:
        checkpoint = self._projection.checkpoint
        if checkpoint is None:
            return
        used: set[Path] = set()
        for name, (generation, length) in checkpoint.tables.items():
            path = stored_path(self._root, name, generation)
            used.add(path)
            try:
                decode_stored(name, generation, read_whole(self._disk, path), length, path)
            except Corrupt as error:
                self._problems.append(problem_of(error, "restore the file from a copy; without it no queue is served"))
            except (KeyError, AttributeError) as error:
                self._problems.append(Problem(str(path), 0, f"a field is missing: {error}", "restore it from a copy"))
        for path in sorted((self._root / "state").glob("*.kv")):
            if path not in used and self._projection.is_sound:
                self._left_over(path, "a version of a table that nothing refers to")
        tails = tails_path(self._root, checkpoint.tails[0])
        for path in sorted(tails.parent.glob(f"*{SUFFIX}")):
            if self._projection.is_sound and (path != tails or not checkpoint.tails[1]):
                self._left_over(path, "small tails that nothing refers to")

    # -- logs --------------------------------------------------------------------------------------------------------

    def _assume_logs(self) -> None:
        """Without a checkpoint, assume a log for each directory, so that its segments are verified."""
        for number, (directory, name) in enumerate(self._queue_directories(), start=1):
            paths = sorted((directory / "segments").glob("*.seg"))
            bases = [int(path.stem) for path in paths if path.stem.isdecimal()]
            if name and bases:
                entry = LogEntry(number, name, bases[0], bases[0])
                entry.segment = bases[-1]
                entry.segment_length = paths[-1].stat().st_size
                with paths[-1].open("rb") as file:
                    log_id = segment_log_id(file.read(HEADER_BYTES))
                self._projection.catalog.logs[number] = StoredLog(self._root / "queues", log_id, name, entry)

    def _check_log(self, number: int, log: StoredLog) -> QueueRow:
        row = QueueRow(log.name, log.first, log.next, problems=self._projection.log_problems.get(number, []))
        directory = log.segments_directory
        sizes: dict[int, int] = {}
        for path in sorted(directory.glob("*.seg")):
            if path.stem.isdecimal() and path == segment_path(directory, int(path.stem)):
                sizes[int(path.stem)] = path.stat().st_size
            else:
                row.problems.append(Problem(str(path), 0, "this is not the name of a segment", "move it away"))
        row.segments = len(sizes)
        row.size_bytes = sum(sizes.values())
        if log.entry is not None:
            self._check_segments(log, log.entry, sizes, row)
        for path in [*sorted(directory.glob("*.idx")), *sorted(directory.glob("*.tix"))]:
            if not path.with_suffix(".seg").exists():
                row.problems.append(self._remove(path, "an index without a segment"))
        for _, group in sorted(log.groups.items()):
            check = self._projection.check_of(group)
            if self._projection.is_sound:
                check.verify(self._projection.end.seq)
            row.groups.append(check.row())
            row.problems += check.problems
        self._check_group_directories(log, row)
        return row

    def _check_segments(self, log: StoredLog, entry: LogEntry, sizes: dict[int, int], row: QueueRow) -> None:
        directory = log.segments_directory
        checks: list[SegmentCheck] = []
        if entry.segment >= 0 and log.first < log.stored_next:
            sizes.setdefault(entry.segment, entry.segment_length)  # a missing one is reported when it is opened
        for base, size in sorted(sizes.items()):
            path = segment_path(directory, base)
            if base > entry.segment:
                if log.replayed_from < 0:
                    what = "the checkpoint knows no such segment, and the journal does not hold its messages"
                    row.problems.append(Problem(str(path), 0, what, _ORPHAN))
                continue  # else the journal has all of it, and the next start writes it again
            is_last = base == entry.segment
            check = SegmentCheck(self._disk, path, base, log.id, self._meter)
            check.read(min(size, entry.segment_length) if is_last else size)
            checks.append(check)
            if is_last:
                self._check_length(log, entry, size, check)
            row.problems += check.problems
            if not is_last and not check.problems:
                wrong = list(check.index_problems())
                row.problems += wrong
                if wrong:
                    self._repairs.append(RebuildIndexes(log.name, path, base, log.id))
        if self._projection.checkpoint is not None:
            row.problems += coverage_problems(checks, log.first, log.stored_next, directory)
        elif checks:
            row.next_offset = checks[-1].segment.next

    def _check_length(self, log: StoredLog, entry: LogEntry, size: int, check: SegmentCheck) -> None:
        if size < entry.segment_length and not check.ends_in_damage:
            what = f"{entry.segment_length} bytes were stored, the file has {size}"
            check.problems.append(Problem(str(check.path), size, what, "restore the file from a copy"))
            check.ends_in_damage = True
        if size > entry.segment_length and log.replayed_from < 0:
            what = f"{entry.segment_length} bytes were stored, the file goes on to {size}"
            remedy = "restore the queue and journal/ from one copy; until then this queue is refused"
            check.problems.append(Problem(str(check.path), entry.segment_length, what, remedy))

    # -- directories -------------------------------------------------------------------------------------------------

    def _check_queue_directories(self) -> None:
        known = {log.directory for log in self._projection.catalog.logs.values()} | self._projection.catalog.gone
        for directory, name in self._queue_directories():
            if directory.name.startswith(".trash-"):
                self._left_over(directory, "what is left of a dropped queue")
            elif directory not in known:
                label = f"queue {name!r}" if name else "no queue"
                what = f"this is the directory of {label}, which the checkpoint and the journal do not know"
                self._problems.append(Problem(str(directory), 0, what, _ORPHAN))

    def _check_group_directories(self, log: StoredLog, row: QueueRow) -> None:
        known = {group.directory for group in log.groups.values()} | self._projection.catalog.gone
        shared = {group.directory for group in log.groups.values() if group.is_shared}
        for directory in _named_directories(log.directory / "consumers"):
            if directory.name.startswith(".trash-"):
                row.problems.append(self._remove(directory, "what is left of a deleted group"))
            elif directory in shared:
                row.problems.append(self._remove(directory, "files of a group whose state is in the table of groups"))
            elif directory not in known and self._projection.checkpoint is not None:
                what = "this is the directory of a group that the checkpoint and the journal do not know"
                row.problems.append(Problem(str(directory), 0, what, _ORPHAN))

    def _queue_directories(self) -> Iterator[tuple[Path, str]]:
        """Every directory of a queue, with the queue's name; "" when the directory's name stands for none."""
        queues = self._root / "queues"
        for directory in _named_directories(queues):
            try:
                yield directory, decode_name(str(directory.relative_to(queues)))
            except ValueError:
                yield directory, ""

    def _drafts(self) -> list[Path]:
        """Files that would have replaced others when the process was killed, except those in a .trash-."""
        paths = [Path(path) for path in sorted(self._fingerprint) if path.endswith(_DRAFTS)]
        return [path for path in paths if not any(part.startswith(".trash-") for part in path.parts[self._depth :])]

    def _left_over(self, path: Path, kind: str) -> None:
        self._problems.append(self._remove(path, kind))

    def _remove(self, path: Path, kind: str) -> Problem:
        self._repairs.append(Remove(path, kind))
        return Problem(str(path), 0, kind, _LEFT_OVER, repairable=True)


def _named_directories(parent: Path) -> Iterator[Path]:
    if not parent.is_dir():
        return
    for path in sorted(parent.iterdir()):
        if path.is_dir():
            if is_partial(path.name):
                yield from _named_directories(path)
            else:
                yield path
