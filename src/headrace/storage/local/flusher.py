"""The flusher's thread: it writes tails, groups and tables to their files, job by job. Decides nothing.

The engine hands over jobs whose contents no longer change, and gets each back when it is done.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Final, final

from librt.strings import BytesWriter

from headrace.model import Message
from headrace.storage.local.block import Block, cut_block
from headrace.storage.local.checkpoint import Checkpoint, LogEntry, Tail, checkpoint_path, encode_checkpoint, tails_path
from headrace.storage.local.disk import Disk, is_out_of_files, opened, remove_tree
from headrace.storage.local.encoding import encode_block, write_run
from headrace.storage.local.journal import Journal
from headrace.storage.local.log import LocalGroup, LocalLog, Piece
from headrace.storage.local.record import encode_record
from headrace.storage.local.segment import (
    HEADER_BYTES,
    SUFFIXES,
    Segment,
    encode_segment_header,
    segment_path,
    write_indexes,
)
from headrace.storage.local.tables import TableWrite

RECORD_BYTES: Final = 256 << 10
RECORD_ROWS: Final = 4096


def encode_tails(tails: list[Tail], seq: int) -> Iterator[list[bytes]]:
    """Encode the file of small tails, record by record, for a checkpoint of commit `seq`."""
    number = seq
    for part in _parts(tails):
        runs = BytesWriter()
        for tail in part:
            write_run(runs, tail.log_id, len(tail.messages), tail.base)
        rows = [message for tail in part for message in tail.messages]
        block = encode_block(part[0].base if len(part) == 1 else 0, rows)
        yield encode_record(number, seq, b"", runs.getvalue(), [block])
        number += 1


def _parts(tails: list[Tail]) -> Iterator[list[Tail]]:
    """Split tails into records: large enough to be cheap, but a reader of one log reads a whole record."""
    part: list[Tail] = []
    rows = size = 0
    for tail in tails:
        part.append(tail)
        rows += len(tail.messages)
        size += tail.size
        if rows >= RECORD_ROWS or size >= RECORD_BYTES:
            yield part
            part = []
            rows = size = 0
    if part:
        yield part


@final
class Written:
    """A block that was appended to a segment; `segment` is the segment's base offset."""

    __slots__ = ("base", "length", "max_time_us", "next", "segment")

    def __init__(self, segment: int, block: Block) -> None:
        self.segment = segment
        self.base = block.base
        self.next = block.next
        self.length = block.length
        self.max_time_us = block.max_time_us


class Job(ABC):
    """A job of the flusher; `error` is set when it failed."""

    error: OSError | None = None

    @abstractmethod
    def run(self, flusher: "Flusher") -> None:
        """Do the job. An OSError means that it was not done, or only in part."""


@final
class LogFlush:
    """The flush of one log's tail to its segments, and the blocks written so far."""

    def __init__(self, log: LocalLog, pieces: list[Piece], entry: LogEntry | None) -> None:
        active = log.active
        self.log = log
        self.log_id = log.id
        self.segment = active.base if active is not None else -1
        self.path = active.path if active is not None else None
        """The path of the segment; making, hashing and sorting a path costs several microseconds."""
        self.segment_length = active.length if active is not None else 0
        self.pieces = pieces
        self.entry = entry
        self.written: list[Written] = []
        self.stored_bytes = 0
        self.done = False


@final
class Flush(Job):
    """Write the tails of logs to their segments; with a checkpoint, sync them and write it too."""

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
    """Everything that a checkpoint writes besides the tails that go to segments."""

    __slots__ = ("carried", "checkpoint", "files", "groups", "obsolete", "obsolete_directories", "tables", "tails")

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.groups: list[LocalGroup] = []
        self.files: list[tuple[Path, bytes]] = []
        self.tables: list[TableWrite] = []
        self.tails: list[Tail] = []
        self.carried: set[LocalLog] = set()
        """The logs of these tails, which share a file instead of going to segments."""
        self.obsolete: list[Path] = []
        self.obsolete_directories: list[Path] = []


@final
class RemoveSegments(Job):
    """Remove segments that nobody needs."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def run(self, flusher: "Flusher") -> None:
        for path in self._paths:
            flusher.forget(path)
            for suffix in SUFFIXES:
                flusher.disk.unlink(path.with_suffix(suffix))


@final
class RemoveTree(Job):
    """Remove the directory of a dropped log or a deleted group, after renaming it to a unique name."""

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
    """Write the indexes of a full segment."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def run(self, flusher: "Flusher") -> None:
        if self._segment.path.exists():
            write_indexes(flusher.disk, self._segment)


@final
class PrepareJournalFile(Job):
    """Make a journal file before the writer needs it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def run(self, flusher: "Flusher") -> None:
        self._journal.prepare()


BLOCK_BYTES: Final = 1 << 20
BLOCK_ROWS: Final = 4096
_WAIT_SECONDS: Final = 0.1
"""Time between attempts to open a file without a free descriptor."""


@final
class Flusher:
    """Does jobs in order: in its thread once started, in the caller's before."""

    def __init__(self, disk: Disk, root: Path, segment_bytes: int, report: Callable[[Job], None]) -> None:
        self.disk = disk
        self._root = root
        self._segment_bytes = segment_bytes
        self.report = report
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._worker: Thread | None = None
        self._unsynced: set[Path] = set()
        self._unsynced_directories: set[Path] = set()

    def start(self) -> None:
        self._worker = Thread(target=self._work, name="headrace-flusher", daemon=True)
        self._worker.start()

    def stop(self) -> None:
        """Finish the jobs taken so far, then end the thread."""
        if self._worker is not None:
            self._jobs.put(None)
            self._worker.join()
            self._worker = None

    def do(self, job: Job) -> None:
        """Take a job; `report` gets it when it is finished."""
        if self._worker is None:
            self._run(job)
        else:
            self._jobs.put(job)

    def flush(self, flush: LogFlush) -> None:
        """Append the pieces of one log to its segments. A failed write leaves its segment unchanged."""
        fd = -1
        try:
            for block in _blocks(flush.pieces):
                if flush.path is None or flush.segment_length >= self._segment_bytes:
                    full, fd = fd, -1
                    if full >= 0:
                        self.disk.close(full)
                    fd = self._begin_segment(flush, block.base)
                elif fd < 0:
                    fd = self.disk.open(flush.path)
                self._append(fd, flush, block)
        finally:
            if fd >= 0:
                self.disk.close(fd)
        flush.done = True
        if flush.entry is not None:
            flush.entry.segment = flush.segment
            flush.entry.segment_length = flush.segment_length
            flush.entry.stored_bytes += flush.stored_bytes

    def _append(self, fd: int, flush: LogFlush, block: Block) -> None:
        try:
            self.disk.write(fd, [block.header, *block.pieces], flush.segment_length)
        except OSError:
            self.disk.truncate(fd, flush.segment_length)
            raise
        assert flush.path is not None
        self._unsynced.add(flush.path)
        flush.segment_length += block.length
        flush.stored_bytes += block.length
        flush.written.append(Written(flush.segment, block))

    def checkpoint(self, write: CheckpointWrite) -> None:
        """Sync all files written since the last checkpoint, write groups and tables, then the checkpoint."""
        disk = self.disk
        if write.tails:
            self._write_tails(write)
        drafts: list[Path] = []
        for path, data in write.files:
            self._unsynced_directories.update(disk.make_directory(path.parent))
            drafts.append(disk.write_draft(path, [data]))
        disk.sync_files([*sorted(self._unsynced, key=str), *drafts])
        for draft, (path, _) in zip(drafts, write.files, strict=True):
            disk.replace(draft, path)
            self._unsynced_directories.add(path.parent)
        for table in write.tables:
            self._write_table(table)
        disk.sync_directories([directory for directory in sorted(self._unsynced_directories) if directory.is_dir()])
        self._unsynced.clear()
        self._unsynced_directories.clear()
        disk.write_file(checkpoint_path(self._root), encode_checkpoint(write.checkpoint))
        for path in write.obsolete:
            disk.unlink(path)
        for path in write.obsolete_directories:
            remove_tree(disk, path)

    def forget(self, path: Path) -> None:
        """Do not sync a segment that is about to be removed."""
        self._unsynced.discard(path)

    def remember_directory(self, directory: Path) -> None:
        """Sync the entries of this directory before the next checkpoint."""
        self._unsynced_directories.add(directory)

    def forget_below(self, directory: Path) -> None:
        self._unsynced = {path for path in self._unsynced if directory not in path.parents}
        self._unsynced_directories = {
            path for path in self._unsynced_directories if directory != path and directory not in path.parents
        }

    def _begin_segment(self, flush: LogFlush, base: int) -> int:
        """Create a segment; returns its descriptor."""
        directory = flush.log.segments_directory
        self._unsynced_directories.update(self.disk.make_directory(directory))
        path = flush.path = segment_path(directory, base)
        fd = self.disk.open(path, create=True)
        try:
            self.disk.truncate(fd, 0)
            self.disk.write(fd, [encode_segment_header(flush.log_id, base)], 0)
        except OSError:
            self.disk.close(fd)
            raise
        self._unsynced.add(path)
        self._unsynced_directories.add(directory)
        flush.segment = base
        flush.segment_length = HEADER_BYTES
        flush.stored_bytes += HEADER_BYTES
        return fd

    def _write_tails(self, write: CheckpointWrite) -> None:
        """Write all small tails to one file. An OSError leaves no file."""
        checkpoint = write.checkpoint
        path = tails_path(self._root, checkpoint.tails[0])
        length = 0
        try:
            with opened(self.disk, path, create=True) as fd:
                self.disk.truncate(fd, 0)
                for buffers in encode_tails(write.tails, checkpoint.position.seq):
                    self.disk.write(fd, buffers, length)
                    length += sum([len(buffer) for buffer in buffers])
        except OSError:
            self.disk.unlink(path)
            raise
        checkpoint.tails = (checkpoint.tails[0], length)
        self._unsynced.add(path)
        self._unsynced_directories.add(path.parent)

    def _write_table(self, table: TableWrite) -> None:
        self._unsynced_directories.update(self.disk.make_directory(table.path.parent))
        if table.whole:
            self.disk.write_file(table.path, table.parts())
            return
        with opened(self.disk, table.path) as fd:
            position = table.position
            for part in table.parts():
                self.disk.write(fd, [part], position)
                position += len(part)
            self.disk.sync(fd)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._run(job)

    def _run(self, job: Job) -> None:
        job.error = self._attempt(job)
        # Jobs stay in order: a removal must be done before files of the same name are written.
        while job.error is not None and self._worker is not None and _must_wait(job, job.error):
            Event().wait(_WAIT_SECONDS)
            job.error = self._attempt(job)
        self.report(job)

    def _attempt(self, job: Job) -> OSError | None:
        try:
            job.run(self)
        except OSError as error:
            return error
        return None


def _must_wait(job: Job, error: OSError) -> bool:
    """True if a job is to be retried for lack of a descriptor. Upkeep retries flushes itself."""
    return is_out_of_files(error) and not isinstance(job, Flush)


def _blocks(pieces: list[Piece]) -> Iterator[Block]:
    """The blocks of these pieces: large pieces as they are, small ones encoded together, none split."""
    rows: list[Message] = []
    base = 0
    size = 0
    for piece in pieces:
        block = piece.block
        if block is not None:
            if rows:
                yield encode_block(base, rows)
                rows, size = [], 0
            yield cut_block(block, piece.start, piece.start + piece.next - piece.base, piece.base)
            continue
        if not rows:
            base = piece.base
        rows += piece.read(piece.base, piece.next)
        size += piece.size
        if size >= BLOCK_BYTES or len(rows) >= BLOCK_ROWS:
            yield encode_block(base, rows)
            rows, size = [], 0
    if rows:
        yield encode_block(base, rows)
