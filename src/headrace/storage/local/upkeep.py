"""Bounds on an engine's files and memory: flushes, checkpoints, removals, and the handling of a full disk.

Upkeep decides in the owner's thread, between commits; the flusher writes. What takes long goes in steps, one in each
turn of the owner.
"""

import errno
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from headrace.clock import Clock
from headrace.config.settings import StorageSettings
from headrace.errors import Unavailable
from headrace.storage.local.catalog import Catalog
from headrace.storage.local.checkpoint import GROUPS, Checkpoint, LogEntry, tails_path
from headrace.storage.local.disk import is_full, is_out_of_files
from headrace.storage.local.flusher import (
    CheckpointWrite,
    Flush,
    Flusher,
    Job,
    LogFlush,
    PrepareJournalFile,
    WriteIndexes,
)
from headrace.storage.local.group_files import encode_pending, encode_progress, encode_state, group_key
from headrace.storage.local.journal import Journal, Position
from headrace.storage.local.log import LocalGroup, LocalLog
from headrace.storage.local.segment import Segment, segment_path
from headrace.storage.local.tables import table_path


def _entry_of(log: LocalLog) -> LogEntry:
    entry = LogEntry(log.id, log.name, log.first_offset, log.next_offset)
    if log.unloaded is not None:
        entry.segment = log.unloaded.segment
        entry.segment_length = log.unloaded.segment_length
    elif log.active is not None:
        entry.segment = log.active.base
        entry.segment_length = log.active.length
    elif log.loaded is not None:  # the segment may be removed or lost: nobody checked yet
        entry.segment = log.loaded.segment
        entry.segment_length = log.loaded.segment_length
    entry.stored_bytes = log.stored_bytes
    if log.groups_by_name:
        entry.groups = [(group.id, name) for name, group in log.groups_by_name.items()]
    return entry


def _files_of(group: LocalGroup, seq: int) -> list[tuple[Path, bytes]]:
    """The paths and contents of a group's files; each has the commit that it holds."""
    directory = group.directory
    files: list[tuple[Path, bytes]] = []
    if group.state.pending or group.has_pending_file:
        group.has_pending_file = True
        files.append((directory / "pel.log", encode_pending(group.id, group.state, seq)))
    files.append((directory / "state.json", encode_progress(group.log.name, group.id, group.state, seq)))
    return files


def _tail_bytes_of(log: LocalLog) -> int:
    return log.tail_bytes


_log: Final = logging.getLogger("headrace.storage")
_RETRY_US: Final = 1_000_000

# How many empty logs take as long.
_TAIL: Final = 4
_GROUP: Final = 4
_WRITTEN: Final = 8
_LOADED: Final = 100

_DEFAULTS: Final = StorageSettings()


@dataclass(frozen=True)
class LocalSettings:
    """Sizes of files and memory. The defaults suit a server; tests make everything small."""

    journal_file_bytes: int = 16 << 20
    checkpoint_bytes: int = _DEFAULTS.checkpoint_bytes
    tail_bytes: int = _DEFAULTS.tail_bytes
    segment_bytes: int = _DEFAULTS.segment_bytes
    cache_bytes: int = _DEFAULTS.cache_bytes
    own_files: int = 64
    """Up to this many small tails, and changed groups, get files of their own at a checkpoint; more share a file.

    A file takes 100 us and more to make, write, put in place and remove again."""
    step: int = 5000
    """Empty logs that a checkpoint takes in one turn: 2 ms compiled. Logs with messages, and groups, count as several.

    With 20,000 logs a turn takes 8 ms at most, 12 ms interpreted."""


@final
class Upkeep:
    """Starts flushes and checkpoints when they are due, and knows whether the disk has room."""

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
        self._steps: Iterator[None] | None = None
        """The rest of the work that is under way in the owner's thread."""
        self._handled = 0
        """How much the present step has done."""
        self._largest: list[LocalLog] = []
        """Logs whose tails are to be flushed next, the largest last."""
        self.flushing = False
        self.is_collecting = False
        """True while a checkpoint is collected: no commit may be applied."""
        self.checkpoint_wanted = False
        self.full: OSError | None = None
        """The error that says there is no room; None while there is."""
        self._is_told = False
        """True if a warning about it was logged."""

    def start(self, journal: Journal, checkpoint_position: Position) -> None:
        """Keep the journal of the opened directory short from now on."""
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
        """True if commits should wait for the flusher."""
        settings = self._settings
        return (
            self._catalog.memory.tail_bytes > 2 * settings.tail_bytes
            or self._journal_bytes(position) > 4 * settings.checkpoint_bytes
        )

    def run(self, position: Position, is_synced: bool) -> bool:
        """Start due work; returns whether that must wait until all applied commits are synced.

        Files must neither hold nor lack changes that the journal could still lose.
        """
        if is_synced and self._catalog.chores:
            self.do_chores()
        if self.flushing or (self.full is not None and self._clock.monotonic_us() < self._retry_at_us):
            return False
        checkpoint = self.checkpoint_wanted or self._journal_bytes(position) >= self._settings.checkpoint_bytes
        is_large = self._catalog.memory.tail_bytes >= self._settings.tail_bytes
        if checkpoint or self._largest or (is_large and self._is_tail_full()):
            if not is_synced and (checkpoint or self._catalog.chores):
                return True
            self.flush(position, checkpoint)
        elif not self._preparing and self._journal is not None and self._journal.needs_spare:
            self._preparing = True
            self._flusher.do(PrepareJournalFile(self._journal))
        return False

    @property
    def is_under_way(self) -> bool:
        """Whether work waits for the owner to go on with it."""
        return self._steps is not None

    def go_on(self) -> None:
        """Take one more step of the work that is under way."""
        if self._steps is not None:
            for _ in self._steps:
                return
            self._steps = None

    def finish(self) -> None:
        """Take all steps of the work that is under way."""
        while self._steps is not None:
            self.go_on()

    def _is_enough(self, count: int) -> bool:
        """Whether a step has done enough, after so much more."""
        self._handled += count
        if self._handled < self._settings.step:
            return False
        self._handled = 0
        return True

    def retry_now(self) -> None:
        """Try a postponed flush at the next `run`."""
        self._retry_at_us = 0

    def do_chores(self) -> None:
        """Remove files that nobody needs; the commits that freed them are synced."""
        chores, self._catalog.chores = self._catalog.chores, []
        for job in chores:
            self._flusher.do(job)

    def flush(self, position: Position, checkpoint: bool) -> None:
        """Write the largest tails to their segments; with a checkpoint, all tails, groups and tables as of `position`.

        Without a checkpoint half of the bytes in memory is enough: the other tails grow into larger blocks. At a
        checkpoint small tails share a file and stay in memory.
        """
        self._catalog.forget_empty_tails()
        self.do_chores()  # remove a dropped log's files before a new log of its name writes its own
        self.flushing = True
        if checkpoint:
            self._largest = []
            self.is_collecting = True
            self._handled = 0
            self._steps = self._collect(position)
            self.go_on()
            return
        if not self._largest:
            self._find_largest()
        logs = self._take_largest()
        try:
            for log in logs:
                log.load()
        except Unavailable as error:
            self._postpone(OSError(errno.EMFILE, str(error)))
            return
        self._flusher.do(Flush([LogFlush(log, log.begin_flush(), None) for log in logs]))

    def _is_tail_full(self) -> bool:
        """Forget settled messages in tails; True if tails still take too much memory."""
        for log in self._catalog.tails():
            log.forget_settled()
        # A margin, so that not every commit looks for them.
        return self._catalog.memory.tail_bytes > self._settings.tail_bytes * 3 // 4

    def _find_largest(self) -> None:
        """Find the fewest logs that hold half of the bytes in memory."""
        left = self._catalog.memory.tail_bytes // 2
        found: list[LocalLog] = []
        for log in sorted(self._catalog.tails(), key=_tail_bytes_of, reverse=True):
            if left <= 0:
                break
            found.append(log)
            left -= log.tail_bytes
        self._largest = found[::-1]

    def _take_largest(self) -> list[LocalLog]:
        """Take the next of the largest tails, as many as one step may; while a directory is opened, all of them."""
        found: list[LocalLog] = []
        self._handled = 0
        while self._largest:
            log = self._largest.pop()
            if log.dropped or not log.has_tail:
                continue
            found.append(log)
            if self._is_enough(_WRITTEN if log.unloaded is None else _LOADED) and self._journal is not None:
                break
        return found

    def take(self, job: Job) -> OSError | None:
        """Take back a finished job; returns its error if the engine cannot go on with it."""
        if isinstance(job, Flush):
            return self._take_flush(job)
        if isinstance(job, PrepareJournalFile):
            self._preparing = False
        return job.error if job.error is not None and not is_full(job.error) else None

    def _take_flush(self, flush: Flush) -> OSError | None:
        if flush.error is not None and not is_full(flush.error):
            return flush.error
        self._handled = 0
        self._steps = self._take_back(flush)
        self.go_on()
        return None

    def _take_back(self, flush: Flush) -> Iterator[None]:
        """Note what a flush has written, in steps. Logs may change between them."""
        for part in flush.logs:
            self._take_log_flush(part)
            if self._is_enough(_WRITTEN):
                yield
        self.flushing = False
        write = flush.checkpoint
        if flush.error is not None:
            self._postpone(flush.error)
            if write is not None:
                self.checkpoint_wanted = True
                self._undo_checkpoint(write)
            return
        if self._is_told and self.full is not None:
            what = "are descriptors" if is_out_of_files(self.full) else f"is space on the disk of {self._root}"
            _log.warning("there %s again", what)
        self._is_told = False
        self.full = None
        if write is not None:
            self._end_checkpoint(write)

    def _postpone(self, why: OSError) -> None:
        """Retry a flush later: there is no room for it."""
        self.flushing = False
        if self.full is None:
            what = "descriptors ran out" if is_out_of_files(why) else f"the disk of {self._root} is full"
            _log.warning("%s: messages stay in the journal while that has room", what)
            self._is_told = True
        self.full = why
        self._retry_at_us = self._clock.monotonic_us() + _RETRY_US

    def _take_log_flush(self, part: LogFlush) -> None:
        """Note the written blocks; other messages stay in the tail."""
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
        pieces = log.flushing if part.done else sum(piece.next <= reached for piece in log.tail())
        log.flushed(pieces)
        log.truncate(log.first_offset)
        self._catalog.trim(log)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _collect(self, position: Position) -> Iterator[None]:
        """Collect everything that a checkpoint writes as of `position`, the last applied commit, and have it written.

        The engine applies no commit before the last step, so that everything is as of this one.
        """
        self.checkpoint_wanted = False
        write = CheckpointWrite(Checkpoint(position, self._catalog.next_id))
        tails = self._catalog.tails()
        small: list[LocalLog] = []
        for log in tails:
            log.forget_settled()
            if log.has_small_tail:
                small.append(log)
            if self._is_enough(1):
                yield
        self._choose_carried(write, small)
        try:
            for log in tails:
                if log.unloaded is not None and log not in write.carried:
                    log.load()
                    if self._is_enough(_LOADED):
                        yield
        except Unavailable as error:
            self.is_collecting = False
            self.checkpoint_wanted = True
            self._postpone(OSError(errno.EMFILE, str(error)))
            return
        for group in self._catalog.take_dirty():
            write.groups.append(group)
        is_many = len(write.groups) > self._settings.own_files
        for group in write.groups:
            self._take_group(write, group, is_many)
            if self._is_enough(_GROUP):
                yield
        yield from self._take_tables(write)
        parts: list[LogFlush] = []
        for log in list(self._catalog.logs_by_id.values()):
            if self._is_enough(self._take_log(write, log, parts)):
                yield
        self.is_collecting = False
        self._flusher.do(Flush(parts, write))

    def _choose_carried(self, write: CheckpointWrite, small: list[LocalLog]) -> None:
        """If there are more than `own_files` small tails, the smallest share a file: up to half of the tail's bytes."""
        generation = self._catalog.tails_generation
        if generation:
            write.obsolete.append(tails_path(self._root, generation))
        if len(small) <= self._settings.own_files:
            return
        small.sort(key=_tail_bytes_of)
        left_bytes = self._settings.tail_bytes // 2
        write.checkpoint.tails = (generation + 1, 0)
        for log in small:
            left_bytes -= log.tail_bytes
            if left_bytes < 0:
                break
            write.carried.add(log)

    def _take_group(self, write: CheckpointWrite, group: LocalGroup, is_many: bool) -> None:
        """Take the state of a changed group; one in the table of groups stays there."""
        if is_many or group.is_shared:
            group.is_shared = True
            self._catalog.table(GROUPS).put(group_key(group.id), encode_state(group.state))
            if group.has_files:
                write.obsolete_directories.append(group.directory)
        else:
            seq = write.checkpoint.position.seq
            write.files += _files_of(group, seq)
            write.checkpoint.files[group.id] = (seq, group.has_pending_file)

    def _take_tables(self, write: CheckpointWrite) -> Iterator[None]:
        checkpoint = write.checkpoint
        for name, table in self._catalog.tables.items():
            if table.changed:
                old = table.generation
                change = table.write(self._root, checkpoint.position.seq)
                write.tables.append(change)
                while taken := change.take(table.values, self._settings.step):
                    if self._is_enough(taken):
                        yield
                if old and change.generation != old:
                    write.obsolete.append(table_path(self._root, name, old))
                checkpoint.tables[name] = (change.generation, change.length)
            elif table.length or table.values:
                checkpoint.tables[name] = (table.generation, table.length)

    def _take_log(self, write: CheckpointWrite, log: LocalLog, parts: list[LogFlush]) -> int:
        """Take a log with its tail; returns how much work it was.

        Both at once: readers may let settled messages go between two steps.
        """
        checkpoint = write.checkpoint
        entry = _entry_of(log)
        checkpoint.logs.append(entry)
        for group in (log.groups_by_name or {}).values():
            if group.has_files and not group.is_shared:
                checkpoint.files.setdefault(group.id, (group.files_seq, group.has_pending_file))
        if not log.has_tail:
            return 1
        if log in write.carried:
            tail = log.copy_tail()
            if tail.messages:
                write.tails.append(tail)
        else:
            parts.append(LogFlush(log, log.begin_flush(), entry))
        return _TAIL

    def _end_checkpoint(self, write: CheckpointWrite) -> None:
        """Note a written checkpoint, and free the journal before it."""
        catalog = self._catalog
        self._checkpoint_position = write.checkpoint.position
        catalog.tails_generation = write.checkpoint.tails[0]
        for table in write.tables:
            catalog.tables[table.name].generation = table.generation
            catalog.tables[table.name].length = table.length
        for group in write.groups:
            group.has_files = not group.is_shared
            group.files_seq = write.checkpoint.position.seq
        if self._journal is not None:
            self._journal.recycle(self._checkpoint_position.index)

    def _undo_checkpoint(self, write: CheckpointWrite) -> None:
        """Put the changes of a failed checkpoint back: the next one writes them."""
        catalog = self._catalog
        for group in write.groups:
            if catalog.groups_by_id.get(group.id) is group:
                catalog.note_dirty(group)
        for table in write.tables:
            catalog.tables[table.name].changed.update(table.changed)

    def _journal_bytes(self, position: Position) -> int:
        """The bytes of the journal that a start would replay."""
        files = position.index - self._checkpoint_position.index
        return files * self._settings.journal_file_bytes + position.at - self._checkpoint_position.at
