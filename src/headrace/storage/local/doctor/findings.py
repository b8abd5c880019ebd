"""What a doctor found, and how far it is. Values only: the other files do the looking."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, final

from headrace.errors import Corrupt
from headrace.storage.group_row import GroupRow
from headrace.storage.local.disk import Disk
from headrace.storage.local.doctor.repairs import Fingerprint, Repair

Progress = Callable[[int, int], None]
"""Told how many bytes have been read, and of how many."""

RESTORE = "restore the file from a copy"


@final
@dataclass(frozen=True)
class Problem:
    """One thing that is not as it was written: where, what, what to do, and whether `repair` does it."""

    file: str
    position: int
    what: str
    remedy: str
    repairable: bool = False


@final
@dataclass
class QueueRow:
    """One log as the next start of the broker will find it, and what is wrong with it."""

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
    """The journal: how much the files hold without it, and what a start would replay."""

    files: int = 0
    size_bytes: int = 0
    checkpoint_seq: int = 0
    end_seq: int = 0
    replayed_commits: int = 0
    replayed_messages: int = 0
    torn: bool = False


@final
@dataclass
class Report:
    """Everything an examination found. `problems` are those that belong to no queue."""

    root: Path
    journal: JournalRow
    queues: list[QueueRow]
    problems: list[Problem]
    repairs: list[Repair]
    fingerprint: Fingerprint

    def all_problems(self) -> list[Problem]:
        """Those of the directory, then those of each queue."""
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
    """All bytes of a file. Raises Corrupt when it is missing or cannot be read."""
    try:
        fd = disk.open(path)
        try:
            return disk.read(fd, 0, disk.size(fd))
        finally:
            disk.close(fd)
    except FileNotFoundError as error:
        raise Corrupt(str(path), 0, "the file is missing") from error
    except OSError as error:
        raise unreadable(error, path, 0) from error


def unreadable(error: OSError, path: Path, position: int) -> Corrupt:
    return Corrupt(str(path), position, f"it cannot be read: {error.strerror or error}")


_STEP_BYTES: Final = 1 << 20


@final
class Meter:
    """Adds up what was read of each file and tells, about once a mebibyte."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._progress = progress
        self._done = 0
        self._path: Path | None = None
        self._position = 0
        self._told = 0

    def reached(self, path: Path, position: int) -> None:
        """The reading of this file has got here."""
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
