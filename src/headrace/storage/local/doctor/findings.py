"""The report of a doctor, its progress, and the repairs that lose nothing. The other files do the reading."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, final

from headrace.clock import Clock, SystemClock
from headrace.errors import Corrupt, Unavailable
from headrace.storage.group_row import GroupRow
from headrace.storage.local import disk as disks
from headrace.storage.local.disk import Disk, remove_tree
from headrace.storage.local.files import DirectoryLock
from headrace.storage.local.journal import JournalFile, Position, wipe_behind
from headrace.storage.local.segment import encode_indexes, scan_segment

Progress = Callable[[int, int], None]
"""Called with the number of bytes read, and of all bytes."""

RESTORE = "restore the file from a copy"


@final
@dataclass(frozen=True)
class Problem:
    """One difference from what was written: where, what, what to do, and whether `repair` does it."""

    file: str
    position: int
    what: str
    remedy: str
    repairable: bool = False


@final
@dataclass
class QueueRow:
    """One log as the next start of the broker finds it, and its problems."""

    name: str
    first_offset: int
    next_offset: int
    size_bytes: int = 0
    segments: int = 0
    groups: list[GroupRow] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def messages(self) -> int:
        return max(0, self.next_offset - self.first_offset)


@final
@dataclass
class JournalRow:
    """The journal: its size, the checkpoint, and what a start would replay."""

    files: int = 0
    size_bytes: int = 0
    checkpoint_seq: int = 0
    end_seq: int = 0
    replayed_commits: int = 0
    replayed_messages: int = 0
    torn: bool = False


Fingerprint = dict[str, tuple[int, int, int]]
"""Inode, size and time of change of every file: shows whether a directory changed since it was examined."""


class Repair(ABC):
    """One repair; `text` tells a person what it does to which files."""

    text: str

    @abstractmethod
    def run(self, disk: Disk) -> None:
        """Repair, durably. Raises OSError, and Corrupt when the file turns out to be damaged."""


@final
class RebuildIndexes(Repair):
    """Rebuild both indexes of a sound segment."""

    def __init__(self, queue: str, segment: Path, base: int, log_id: int) -> None:
        self.text = f"rebuild {segment.with_suffix('.idx')} and .tix of queue {queue!r} from the segment beside them"
        self._segment = segment
        self._base = base
        self._log_id = log_id

    def run(self, disk: Disk) -> None:
        for path, data in encode_indexes(scan_segment(disk, self._segment, self._base, self._log_id)):
            disk.write_file(path, [data])


@final
class CutJournal(Repair):
    """Overwrite everything behind the last whole commit."""

    def __init__(self, files: list[JournalFile], end: Position) -> None:
        self._files = files
        self._end = end
        parts: list[str] = []
        for file in files:
            if file.index == end.index and file.index > 0:
                parts.append(f"{file.path} from byte {end.at} on")
            elif file.index == 0 or file.index > end.index:
                parts.append(f"{file.path} (unused)")
        self.text = f"cut the journal back to commit {end.seq}: overwrite with zeros {', '.join(parts)}"

    def run(self, disk: Disk) -> None:
        wipe_behind(disk, self._files, self._end)


@final
class Remove(Repair):
    """Remove a file or directory that nothing refers to."""

    def __init__(self, path: Path, kind: str) -> None:
        self.text = f"remove {path} ({kind})"
        self._path = path

    def run(self, disk: Disk) -> None:
        if self._path.is_dir() and not self._path.is_symlink():
            remove_tree(disk, self._path)
        else:
            disk.unlink(self._path)
        disk.sync_directory(self._path.parent)


@final
@dataclass
class Report:
    """Everything an examination found. `problems` are those of no queue."""

    root: Path
    journal: JournalRow
    queues: list[QueueRow]
    problems: list[Problem]
    repairs: list[Repair]
    fingerprint: Fingerprint

    def all_problems(self) -> list[Problem]:
        """The problems of the directory, then those of each queue."""
        return [*self.problems, *(problem for queue in self.queues for problem in queue.problems)]

    @property
    def is_clean(self) -> bool:
        return not self.all_problems()

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {
            "data": str(self.root),
            "clean": self.is_clean,
            "journal": asdict(self.journal),
            "queues": [{**asdict(queue), "messages": queue.messages} for queue in self.queues],
            "problems": [asdict(problem) for problem in self.problems],
            "repairs": [repair.text for repair in self.repairs],
        }


def problem_of(error: Corrupt, remedy: str = RESTORE) -> Problem:
    return Problem(error.file, error.position, error.what, remedy)


def read_whole(disk: Disk, path: Path) -> bytes:
    """Read a whole file. Raises Corrupt when it is missing or cannot be read."""
    try:
        return disks.read_whole(disk, path)
    except FileNotFoundError as error:
        raise Corrupt(str(path), 0, "the file is missing") from error
    except OSError as error:
        raise unreadable(error, path, 0) from error


def unreadable(error: OSError, path: Path, position: int) -> Corrupt:
    return Corrupt(str(path), position, f"it cannot be read: {error.strerror or error}")


_STEP_BYTES: Final = 1 << 20


@final
class Meter:
    """Adds up the bytes read of each file and reports them about once per mebibyte."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._progress = progress
        self._done = 0
        self._path: Path | None = None
        self._position = 0
        self._told = 0

    def reached(self, path: Path, position: int) -> None:
        """Note that this file is read up to here."""
        if path != self._path:
            self._path = path
            self._position = 0
        self._done += max(0, position - self._position)
        self._position = max(position, self._position)
        if self._progress is not None and self._done - self._told >= _STEP_BYTES:
            self._told = self._done
            self._progress(min(self._done, self._total), self._total)

    def finish(self) -> None:
        if self._progress is not None:
            self._progress(self._total, self._total)


def plan(report: Report) -> list[str]:
    """The repairs that `repair` would do, in order."""
    return [repair.text for repair in report.repairs]


def repair(root: Path, report: Report, disk: Disk | None = None, clock: Clock | None = None) -> list[str]:
    """Do the repairs of a report, and return their texts.

    Raises Unavailable, and does nothing, when a broker has the directory open or it changed since the examination.
    """
    disk = disk or Disk()
    lock = DirectoryLock(root, clock or SystemClock())
    try:
        if fingerprint_of(root) != report.fingerprint:
            raise Unavailable(f"{root} has changed since it was examined; nothing was done, examine it again")
        done: list[str] = []
        for each in report.repairs:
            each.run(disk)
            done.append(each.text)
        return done
    finally:
        lock.release()


def fingerprint_of(root: Path) -> Fingerprint:
    """The fingerprint of a directory, without its lock file."""
    found: Fingerprint = {}
    for directory, _, names in os.walk(root):
        for name in names:
            path = Path(directory) / name
            if path != root / "LOCK":
                stat = path.lstat()
                found[str(path)] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    return found
