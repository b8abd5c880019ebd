"""Moves what the journal holds into segments, group files and tables. Runs beside the engine; decides nothing.

The engine hands over jobs whose contents nobody changes any more, and is told what came of each.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Final, final

from headrace.model import Message
from headrace.storage.local.block import Block
from headrace.storage.local.block_columns import cut_block
from headrace.storage.local.block_encoding import encode_block
from headrace.storage.local.checkpoint import checkpoint_path, encode_checkpoint
from headrace.storage.local.disk import Disk, remove_tree
from headrace.storage.local.jobs import CheckpointWrite, Job, LogFlush, Written
from headrace.storage.local.piece import Piece
from headrace.storage.local.segment import (
    HEADER_BYTES,
    encode_segment_header,
    segment_path,
)
from headrace.storage.local.tables import TableWrite
from headrace.storage.local.tails import tails_path
from headrace.storage.local.tails_writing import encode_tails

BLOCK_BYTES: Final = 1 << 20
BLOCK_ROWS: Final = 4096


@final
class Flusher:
    """Does jobs one after the other: in its thread once started, or at once when called before."""

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
        """Finish the jobs handed over so far."""
        if self._worker is not None:
            self._jobs.put(None)
            self._worker.join()
            self._worker = None

    def do(self, job: Job) -> None:
        """Take a job; when it is finished it is reported."""
        if self._worker is None:
            self._run(job)
        else:
            self._jobs.put(job)

    def flush(self, flush: LogFlush) -> None:
        """Append the pieces of one log to its segments. An OSError leaves the last segment as it was before it."""
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
            self.disk.write(fd, [block.header, block.body], flush.segment_length)
        except OSError:
            self.disk.truncate(fd, flush.segment_length)
            raise
        assert flush.path is not None
        self._unsynced.add(flush.path)
        flush.segment_length += block.length
        flush.stored_bytes += block.length
        flush.written.append(Written(flush.segment, block))

    def checkpoint(self, write: CheckpointWrite) -> None:
        """Sync everything written since the last one, write the group files and tables, and then the checkpoint."""
        disk = self.disk
        if write.tails:
            self._write_tails(write)
        drafts: list[Path] = []
        for path, data in write.files:
            self._unsynced_directories.update(disk.make_directory(path.parent))
            drafts.append(disk.write_draft(path, data))
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
        """A segment is going away: there is nothing left to sync."""
        self._unsynced.discard(path)

    def remember_directory(self, directory: Path) -> None:
        """The entries of this directory changed: they have to be synced before the next checkpoint says so."""
        self._unsynced_directories.add(directory)

    def forget_below(self, directory: Path) -> None:
        self._unsynced = {path for path in self._unsynced if directory not in path.parents}
        self._unsynced_directories = {
            path for path in self._unsynced_directories if directory != path and directory not in path.parents
        }

    def _begin_segment(self, flush: LogFlush, base: int) -> int:
        """Make a segment, and return it opened."""
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
        """Put all small tails into one file. An OSError leaves none."""
        checkpoint = write.checkpoint
        path = tails_path(self._root, checkpoint.tails[0])
        fd = self.disk.open(path, create=True)
        length = 0
        try:
            self.disk.truncate(fd, 0)
            for buffers in encode_tails(write.tails, checkpoint.position.seq):
                self.disk.write(fd, buffers, length)
                length += sum([len(buffer) for buffer in buffers])
        except OSError:
            self.disk.unlink(path)
            raise
        finally:
            self.disk.close(fd)
        checkpoint.tails = (checkpoint.tails[0], length)
        self._unsynced.add(path)
        self._unsynced_directories.add(path.parent)

    def _write_table(self, table: TableWrite) -> None:
        self._unsynced_directories.update(self.disk.make_directory(table.path.parent))
        if table.whole:
            self.disk.write_file(table.path, table.data)
            return
        fd = self.disk.open(table.path)
        try:
            self.disk.write(fd, [table.data], table.position)
            self.disk.sync(fd)
        finally:
            self.disk.close(fd)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._run(job)

    def _run(self, job: Job) -> None:
        try:
            job.run(self)
        except OSError as error:
            job.error = error
        self.report(job)


def _blocks(pieces: list[Piece]) -> Iterator[Block]:
    """The pieces as blocks for the segment: large ones as they are, small ones encoded together, none cut in two."""
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
