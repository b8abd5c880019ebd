"""The repairs that lose nothing: indexes made again, a torn journal cut, left-overs removed. No others."""

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, final

from headrace.clock import Clock, SystemClock
from headrace.errors import Unavailable
from headrace.storage.local.disk import Disk, remove_tree
from headrace.storage.local.files import DirectoryLock
from headrace.storage.local.journal import JournalFile, Position, wipe_behind
from headrace.storage.local.segment import encode_indexes, scan_segment

if TYPE_CHECKING:
    from headrace.storage.local.doctor.findings import Report


Fingerprint = dict[str, tuple[int, int, int]]
"""Inode, size and time of change of every file: whether a directory is still the one that was examined."""


class Repair(ABC):
    """One thing to do; `text` says to a person what will be done, to which files."""

    text: str

    @abstractmethod
    def run(self, disk: Disk) -> None:
        """Do it, durably. Raises OSError, and Corrupt when the file turns out to be damaged after all."""


@final
class RebuildIndexes(Repair):
    """Make both indexes of a sound segment again."""

    def __init__(self, queue: str, segment: Path, base: int, log_id: int) -> None:
        self.text = f"rebuild {segment.with_suffix('.idx')} and .tix of queue {queue!r} from the segment beside them"
        self._segment = segment
        self._base = base
        self._log_id = log_id

    def run(self, disk: Disk) -> None:
        for path, data in encode_indexes(scan_segment(disk, self._segment, self._base, self._log_id)):
            disk.write_file(path, data)


@final
class CutJournal(Repair):
    """Overwrite what stands behind the last whole commit."""

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


def plan(report: "Report") -> list[str]:
    """What `repair` would do with this report, in order."""
    return [repair.text for repair in report.repairs]


def repair(root: Path, report: "Report", disk: Disk | None = None, clock: Clock | None = None) -> list[str]:
    """Do what `plan` said, and return it.

    Raises Unavailable when a broker has the directory open or the directory is no longer as it was examined, and
    then does nothing.
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
    """What tells a directory from itself at another time; the lock file does not count."""
    found: Fingerprint = {}
    for directory, _, names in os.walk(root):
        for name in names:
            path = Path(directory) / name
            if path != root / "LOCK":
                stat = path.lstat()
                found[str(path)] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    return found
