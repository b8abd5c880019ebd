"""What the flusher is given to do, and what came of it. Values and the order of steps; flusher.py has the steps."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, final

from headrace.storage.local.block import Block
from headrace.storage.local.checkpoint import Checkpoint, LogEntry
from headrace.storage.local.disk import remove_tree
from headrace.storage.local.journal import Journal
from headrace.storage.local.log import LocalGroup, LocalLog
from headrace.storage.local.piece import Piece
from headrace.storage.local.segment import Segment, write_indexes
from headrace.storage.local.tables import TableWrite
from headrace.storage.local.tails import Tail

if TYPE_CHECKING:
    from headrace.storage.local.flusher import Flusher


@final
class Written:
    """A block that was put at the end of a segment; `segment` is that segment's base offset."""

    __slots__ = ("base", "length", "max_time_us", "next", "segment")

    def __init__(self, segment: int, block: Block) -> None:
        self.segment = segment
        self.base = block.base
        self.next = block.next
        self.length = block.length
        self.max_time_us = block.max_time_us


class Job(ABC):
    """Something for the flusher to do; `error` is what went wrong, if anything."""

    error: OSError | None = None

    @abstractmethod
    def run(self, flusher: "Flusher") -> None:
        """Do it. An OSError means that it was not done, or not all of it."""


@final
class LogFlush:
    """The tail of one log on its way to its segments, and what was written so far."""

    __slots__ = (
        "done",
        "entry",
        "log",
        "log_id",
        "path",
        "pieces",
        "segment",
        "segment_length",
        "stored_bytes",
        "written",
    )

    def __init__(self, log: LocalLog, pieces: list[Piece], entry: LogEntry | None) -> None:
        active = log.active
        self.log = log
        self.log_id = log.id
        self.segment = active.base if active is not None else -1
        self.path = active.path if active is not None else None
        """The segment's; kept rather than made again, as a path costs several microseconds to make, hash and sort."""
        self.segment_length = active.length if active is not None else 0
        self.pieces = pieces
        self.entry = entry
        self.written: list[Written] = []
        self.stored_bytes = 0
        self.done = False


@final
class Flush(Job):
    """Write the tails of logs to their segments; with a checkpoint, sync all of it and write that too."""

    def __init__(self, logs: list[LogFlush], checkpoint: "CheckpointWrite | None" = None) -> None:
        self.logs = logs
        self.checkpoint = checkpoint

    def run(self, flusher: "Flusher") -> None:
        for flush in self.logs:
            flusher.flush(flush)
        if self.checkpoint is not None:
            flusher.checkpoint(self.checkpoint)


@final
class CheckpointWrite:
    """Everything a checkpoint has to put on disk besides the tails that go to segments."""

    __slots__ = ("carried", "checkpoint", "files", "groups", "obsolete", "obsolete_directories", "tables", "tails")

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.groups: list[LocalGroup] = []
        self.files: list[tuple[Path, bytes]] = []
        self.tables: list[TableWrite] = []
        self.tails: list[Tail] = []
        self.carried: set[LocalLog] = set()
        """The logs whose tails these are: in one file instead of segments."""
        self.obsolete: list[Path] = []
        self.obsolete_directories: list[Path] = []


@final
class RemoveSegments(Job):
    """Remove segments that nothing needs any more."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def run(self, flusher: "Flusher") -> None:
        for path in self._paths:
            flusher.forget(path)
            for suffix in (".seg", ".idx", ".tix"):
                flusher.disk.unlink(path.with_suffix(suffix))


@final
class RemoveTree(Job):
    """Remove the directory of a dropped log or a deleted group, by way of a name that nothing else uses."""

    def __init__(self, path: Path, trash: Path) -> None:
        self._path = path
        self._trash = trash

    def run(self, flusher: "Flusher") -> None:
        remove_tree(flusher.disk, self._trash)
        if self._path.is_dir():
            flusher.disk.replace(self._path, self._trash)
            flusher.forget_below(self._path)
            flusher.remember_directory(self._path.parent)
            flusher.remember_directory(self._trash.parent)
            remove_tree(flusher.disk, self._trash)


@final
class WriteIndexes(Job):
    """Put the indexes beside a segment that is full."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def run(self, flusher: "Flusher") -> None:
        if self._segment.path.exists():
            write_indexes(flusher.disk, self._segment)


@final
class PrepareJournalFile(Job):
    """Have a journal file ready before the writer needs it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def run(self, flusher: "Flusher") -> None:
        self._journal.prepare()
