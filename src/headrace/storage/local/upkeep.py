"""Keeping an engine's files and memory bounded: flushes, checkpoints, removals, and what to do on a full disk.

Runs in the thread that owns the engine; the flusher does the writing. Knows no commits: engine.py has those.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from headrace.clock import Clock
from headrace.config.settings import StorageSettings
from headrace.storage.local.catalog import Catalog
from headrace.storage.local.disk import is_full
from headrace.storage.local.flusher import Flusher
from headrace.storage.local.jobs import CheckpointWrite, Flush, Job, LogFlush, PrepareJournalFile, WriteIndexes
from headrace.storage.local.journal import Journal, Position
from headrace.storage.local.log import LocalLog
from headrace.storage.local.segment import Segment, segment_path
from headrace.storage.local.snapshot import end_checkpoint, take_down, take_small_tails, undo_checkpoint

_log: Final = logging.getLogger("headrace.storage")
_RETRY_US: Final = 1_000_000
_DEFAULTS: Final = StorageSettings()


@dataclass(frozen=True)
class LocalSettings:
    """How large things get. The defaults suit a server; tests make everything small."""

    journal_file_bytes: int = 16 << 20
    checkpoint_bytes: int = _DEFAULTS.checkpoint_bytes
    tail_bytes: int = _DEFAULTS.tail_bytes
    segment_bytes: int = _DEFAULTS.segment_bytes
    cache_bytes: int = _DEFAULTS.cache_bytes
    own_files: int = 64
    """Up to so many small tails, and so many changed groups, get files of their own at a checkpoint. More share one: a
    file takes 100 us and more to make, write, put in place and remove again."""


@final
class Upkeep:
    """What is due, what is under way, and whether the disk has room."""

    def __init__(self, root: Path, catalog: Catalog, flusher: Flusher, settings: LocalSettings, clock: Clock) -> None:
        self._root = root
        self._catalog = catalog
        self._flusher = flusher
        self._settings = settings
        self._clock = clock
        self._journal: Journal | None = None
        self._checkpoint_position = Position(0, 0, 0)
        self._preparing = False
        self._retry_at_us = 0
        self.flushing = False
        self.checkpoint_wanted = False
        self.full: OSError | None = None
        """Why there is no room, while there is none."""

    def start(self, journal: Journal, checkpoint_position: Position) -> None:
        """The directory is open: from now on its journal is kept short."""
        self._journal = journal
        self._checkpoint_position = checkpoint_position
        journal.recycle(checkpoint_position.index)
        try:
            journal.prepare()
        except OSError as error:
            if not is_full(error):
                raise
            self.full = error

    def is_behind(self, position: Position) -> bool:
        """Whether so much waits for the flusher that nothing should be added."""
        settings = self._settings
        return (
            self._catalog.tail_bytes > 2 * settings.tail_bytes
            or self._journal_bytes(position) > 4 * settings.checkpoint_bytes
        )

    def run(self, position: Position, is_synced: bool) -> bool:
        """Start what is due; returns whether that must wait until everything applied is synced.

        Files must not hold, or lack, what the journal could still lose.
        """
        if is_synced:
            self.do_chores()
        if self.flushing or (self.full is not None and self._clock.monotonic_us() < self._retry_at_us):
            return False
        checkpoint = self.checkpoint_wanted or self._journal_bytes(position) >= self._settings.checkpoint_bytes
        if checkpoint or self._is_tail_full():
            if not is_synced and (checkpoint or self._catalog.chores):
                return True
            self.flush(position, checkpoint)
        elif not self._preparing and self._journal is not None and self._journal.needs_spare:
            self._preparing = True
            self._flusher.do(PrepareJournalFile(self._journal))
        return False

    def retry_now(self) -> None:
        """Do not wait to see whether the disk has room again."""
        self._retry_at_us = 0

    def do_chores(self) -> None:
        """Remove what nothing needs any more; the commits that say so are synced."""
        chores, self._catalog.chores = self._catalog.chores, []
        for job in chores:
            self._flusher.do(job)

    def flush(self, position: Position, checkpoint: bool) -> None:
        """Have the largest tails written to their segments, or with a checkpoint all of them and everything else too.

        Half of what is in memory is enough: what stays grows, and is written in larger blocks later. A checkpoint says
        what is there as of `position`; small tails share a file then, and stay in memory.
        """
        self.do_chores()  # a dropped log's files go before those of a new log with its name come
        self.flushing = True
        write = self._begin_checkpoint(position) if checkpoint else None
        entries = {entry.id: entry for entry in write.checkpoint.logs} if write is not None else {}
        parts: list[LogFlush] = []
        logs = self._largest_tails()
        if write is not None:
            logs = [log for log in self._catalog.tails() if log not in write.carried]
        for log in logs:
            pieces = log.begin_flush()
            parts.append(LogFlush(log, pieces, entries.get(log.id)))
        self._flusher.do(Flush(parts, write))

    def _is_tail_full(self) -> bool:
        """Whether much is in memory besides messages that everybody is done with; these are forgotten."""
        limit = self._settings.tail_bytes
        catalog = self._catalog
        if catalog.tail_bytes < limit:
            return False
        for log in catalog.tails():
            log.forget_settled()
        return catalog.tail_bytes > limit * 3 // 4  # so that not every commit looks for them

    def _largest_tails(self) -> list[LocalLog]:
        """The fewest logs that hold half of the bytes in memory."""
        left = self._catalog.tail_bytes // 2
        found: list[LocalLog] = []
        for log in sorted(self._catalog.tails(), key=_tail_bytes_of, reverse=True):
            if left <= 0:
                break
            found.append(log)
            left -= log.tail_bytes
        return found

    def take(self, job: Job) -> OSError | None:
        """Note what came of a job; returns the error, if it is one that cannot be lived with."""
        if isinstance(job, Flush):
            return self._take_flush(job)
        if isinstance(job, PrepareJournalFile):
            self._preparing = False
        return job.error if job.error is not None and not is_full(job.error) else None

    def _take_flush(self, flush: Flush) -> OSError | None:
        self.flushing = False
        for part in flush.logs:
            self._take_log_flush(part)
        error = flush.error
        write = flush.checkpoint
        if error is None:
            if self.full is not None:
                _log.warning("there is space on the disk again; publishing goes on")
            self.full = None
            if write is not None:
                self._end_checkpoint(write)
            return None
        if not is_full(error):
            return error
        self.full = error
        self._retry_at_us = self._clock.monotonic_us() + _RETRY_US
        if write is not None:
            self.checkpoint_wanted = True
            undo_checkpoint(write, self._catalog)
        return None

    def _take_log_flush(self, part: LogFlush) -> None:
        """Note the blocks that were written; what was not stays in the tail."""
        log = part.log
        if log.dropped:
            return
        for written in part.written:
            segment = log.active
            if segment is None or segment.base != written.segment:
                if segment is not None:
                    log.seal(segment.base, segment.length)
                    self._flusher.do(WriteIndexes(segment))
                segment = log.active = Segment(segment_path(log.segments_directory, written.segment), written.segment)
                log.unloaded = None
                log.stored_bytes += segment.length
            segment.add(written.base, written.next, written.length, written.max_time_us)
            log.stored_bytes += written.length
        reached = part.written[-1].next if part.written else -1
        pieces = log.flushing if part.done else sum(piece.next <= reached for piece in log.tail)
        log.flushed(pieces)
        log.truncate(log.first_offset)
        self._catalog.trim(log)

    def _begin_checkpoint(self, position: Position) -> CheckpointWrite:
        """Take down what is there now, as of the last commit applied."""
        self.checkpoint_wanted = False
        settings = self._settings
        write = take_down(self._root, self._catalog, position, settings.own_files)
        take_small_tails(write, self._root, self._catalog, settings.own_files, settings.tail_bytes // 2)
        return write

    def _end_checkpoint(self, write: CheckpointWrite) -> None:
        """A checkpoint is written: the journal before it is free."""
        self._checkpoint_position = write.checkpoint.position
        end_checkpoint(write, self._catalog)
        if self._journal is not None:
            self._journal.recycle(self._checkpoint_position.index)

    def _journal_bytes(self, position: Position) -> int:
        """How much of the journal would have to be replayed."""
        files = position.index - self._checkpoint_position.index
        return files * self._settings.journal_file_bytes + position.at - self._checkpoint_position.at


def _tail_bytes_of(log: LocalLog) -> int:
    return log.tail_bytes
