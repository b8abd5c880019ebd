"""A consistent copy of a data directory, taken while a broker writes to it or not. Changes nothing there.

A copy is what a crash would have left: the checkpoint, the files that it names, and every whole record of the journal
behind it. The broker overwrites none of these before the next checkpoint, so the copy is consistent once a pass ends
without a new checkpoint. A pass copies only files and bytes that earlier passes did not. Messages confirmed before the
last pass began are in the copied journal.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from headrace.errors import Corrupt, Unavailable
from headrace.storage.local.checkpoint import Checkpoint, LogEntry, checkpoint_path, decode_checkpoint, tails_path
from headrace.storage.local.disk import Disk, ReadOnlyDisk, opened, opened_to_read, remove_tree
from headrace.storage.local.files import ReadingLock, encode_name
from headrace.storage.local.follower import Follower
from headrace.storage.local.journal import (
    NEWEST_LENGTH,
    NEWEST_NAME,
    Newest,
    Position,
    encode_newest,
    position_of,
    read_files,
)
from headrace.storage.local.segment import HEADER_BYTES, load_indexes, segment_files, segment_log_id
from headrace.storage.local.tables import stored_path

PARTIAL: Final = ".partial"
_PASSES: Final = 100
_CHUNK: Final = 4 << 20

Progress = Callable[[int], None]
"""Called with the number of bytes copied so far."""


@final
class Copied:
    """The size of a copy."""

    def __init__(self, messages: int, queues: int, size_bytes: int, passes: int) -> None:
        self.messages = messages
        self.queues = queues
        self.size_bytes = size_bytes
        self.passes = passes


def back_up(source: Path, target: Path, disk: Disk | None = None, progress: Progress = lambda _: None) -> Copied:
    """Copy a data directory to one that does not exist yet; the copy is whole and durable on return.

    Raises Unavailable when the source is no data directory or changes too fast, when the target exists, or when one of
    them cannot be read or written. Raises Corrupt when the source's checkpoint is damaged.
    """
    if target.exists():
        raise Unavailable(f"{target} exists already; a copy is made where nothing is")
    partial = target.with_name(target.name + PARTIAL)
    lock = _lock(source)
    disk = disk or Disk()
    try:
        remove_tree(disk, partial)
        copied = _Copy(source, partial, disk, progress).run()
        disk.replace(partial, target)
        disk.sync_directory(target.parent)
    except OSError as error:
        raise Unavailable(
            f"the copy was not made: {error.filename or source}: {error.strerror or error}; {partial} can be removed"
        ) from error
    finally:
        if lock is not None:
            lock.release()
    return copied


def _lock(source: Path) -> ReadingLock | None:
    """Keep brokers from starting during the copy; None if one is running."""
    try:
        return ReadingLock(source)
    except Unavailable:
        return None


@final
class _Copy:
    def __init__(self, source: Path, target: Path, disk: Disk, progress: Progress) -> None:
        self._source = source
        self._target = target
        self._disk = disk
        self._reading = ReadOnlyDisk(disk)
        self._progress = progress
        self._owner = b""
        self._lengths: dict[tuple[Path, int], int] = {}
        """Bytes copied of each segment, by target and log id."""
        self._files: dict[Path, None] = {}
        """The files of the copy, as of this pass."""
        self._full: dict[Path, tuple[int, int]] = {}
        """Base offset and log id of each full segment."""
        self._done_bytes = 0

    def run(self) -> Copied:
        for name in ("journal", "queues", "config", "state"):
            self._disk.make_directory(self._target / name)
        for number in range(_PASSES):
            copied = self._pass(number + 1)
            if copied is not None:
                self._finish()
                return copied
        raise Unavailable(
            f"{self._source} changes faster than it can be copied; copy it at a quieter time, or stop the broker"
        )

    def _pass(self, number: int) -> Copied | None:
        """Copy missing files and bytes; returns None when a new checkpoint came between."""
        owner = self._read_owner()
        if owner != self._owner:  # another process may have cut segments
            self._owner = owner
            self._lengths.clear()
        self._files.clear()
        self._full.clear()
        path = checkpoint_path(self._source)
        follower = Follower(self._source, self._reading)
        try:
            data = path.read_bytes()
            checkpoint = decode_checkpoint(data, path)
            for entry in checkpoint.logs:
                self._copy_log(entry)
            self._copy_tables(checkpoint)
            if checkpoint.tails[1]:
                self._copy_whole(tails_path(self._source, checkpoint.tails[0]).relative_to(self._source))
            follower.refresh()  # after the files: the journal explains files that vanished
            if not follower.is_at(checkpoint.position):
                return None
            self._copy_journal(checkpoint.position, follower.position)
            is_whole = path.read_bytes() == data and self._read_owner() == owner
            bounds = [follower.bounds(name) for name in follower.names()]
        finally:
            follower.close()
        if not is_whole:
            return None
        self._write(checkpoint_path(self._target), data)
        messages = sum(stop - first for first, stop in bounds)
        return Copied(messages, len(bounds), self._done_bytes, number)

    def _read_owner(self) -> bytes:
        try:
            return (self._source / "LOCK").read_bytes()
        except FileNotFoundError:
            return b""

    # -- files of the checkpoint --------------------------------------------------------------------------------------

    def _copy_log(self, entry: LogEntry) -> None:
        folder = Path("queues") / encode_name(entry.name)
        for base, path in segment_files(self._source / folder / "segments"):
            if base <= entry.segment:
                is_last = base == entry.segment
                self._copy_segment(entry.id, path, entry.segment_length if is_last else None)
                if not is_last:
                    self._full[self._target / path.relative_to(self._source)] = (base, entry.id)
        for _, group in entry.groups:  # groups in the table of groups have no files
            for name in ("state.json", "pel.log"):
                self._copy_whole(folder / "consumers" / encode_name(group) / name)

    def _copy_segment(self, log_id: int, path: Path, length: int | None) -> None:
        """Copy the bytes that earlier passes did not: segments only grow."""
        target = self._target / path.relative_to(self._source)
        try:
            fd = self._disk.open_to_read(path)
        except FileNotFoundError:
            return  # truncated meanwhile; the journal has the truncation
        try:
            if segment_log_id(self._disk.read(fd, 0, HEADER_BYTES)) != log_id:
                return  # dropped meanwhile: this is another log of the same name
            stop = self._disk.size(fd) if length is None else length
            start = self._lengths.get((target, log_id), 0)
            if stop > start or not start:
                self._disk.make_directory(target.parent)
                self._copy_range(fd, target, start, stop)
                self._lengths[target, log_id] = stop
        finally:
            self._disk.close(fd)
        self._files[target] = None
        if length is None:
            for suffix in (".idx", ".tix"):
                self._copy_whole(path.with_suffix(suffix).relative_to(self._source))

    def _copy_tables(self, checkpoint: Checkpoint) -> None:
        for name, (generation, _) in checkpoint.tables.items():
            self._copy_whole(stored_path(self._source, name, generation).relative_to(self._source))

    # -- the journal -------------------------------------------------------------------------------------------------

    def _copy_journal(self, start: Position, end: Position) -> None:
        """Copy the files with records behind the checkpoint, up to the last whole record; zeros follow."""
        for file in read_files(self._reading, self._source / "journal"):
            if file.index and start.index <= file.index <= end.index:
                target = self._target / "journal" / file.path.name
                with opened_to_read(self._disk, file.path) as fd:
                    self._copy_range(fd, target, 0, end.at if file.index == end.index else file.size, file.size)
                self._files[target] = None
                if file.index == end.index:
                    newest = Newest(file.path.name, file.index, file.first_seq, file.size)
                    said = bytes(position_of(newest)) + encode_newest(newest)
                    self._write(self._target / "journal" / NEWEST_NAME, said.ljust(NEWEST_LENGTH, b"\0"))

    # -- files -------------------------------------------------------------------------------------------------------

    def _copy_range(self, fd: int, target: Path, start: int, stop: int, size: int = 0) -> None:
        """Copy a range of bytes into a file of `stop` bytes, or of `size` if given."""
        with opened(self._disk, target, create=True) as out:
            self._disk.truncate(out, start)
            for at in range(start, stop, _CHUNK):
                self._disk.write(out, [self._disk.read(fd, at, min(_CHUNK, stop - at))], at)
                self._done_bytes += min(_CHUNK, stop - at)
                self._progress(self._done_bytes)
            self._disk.truncate(out, size or stop)

    def _copy_whole(self, path: Path) -> None:
        """Copy a small file that the broker replaces as a whole, or extends beyond the checkpoint."""
        try:
            data = (self._source / path).read_bytes()
        except FileNotFoundError:
            return  # deleted meanwhile; the journal has the deletion
        self._disk.make_directory((self._target / path).parent)
        self._write(self._target / path, data)

    def _write(self, path: Path, data: bytes) -> None:
        with opened(self._disk, path, create=True) as fd:
            self._disk.truncate(fd, 0)
            self._disk.write(fd, [data], 0)
        self._files[path] = None
        self._done_bytes += len(data)

    def _complete(self, path: Path, base: int, log_id: int) -> None:
        """Rebuild the indexes of a full segment if the broker had not finished them."""
        try:
            load_indexes(self._disk, path, base, log_id)
        except Corrupt:
            return  # the copy of a damaged segment is damaged; `headrace doctor` reports it
        self._files.update(dict.fromkeys([path.with_suffix(".idx"), path.with_suffix(".tix")]))

    def _finish(self) -> None:
        """Remove files that the last pass did not want; make the others durable."""
        for path in sorted(self._target.rglob("*")):
            if path.is_file() and path not in self._files:
                self._disk.unlink(path)
        for path, (base, log_id) in self._full.items():
            if path in self._files:
                self._complete(path, base, log_id)
        self._disk.sync_files(sorted(self._files))
        for directory in sorted({path for path in self._target.rglob("*") if path.is_dir()}):
            self._disk.sync_directory(directory)
        self._disk.sync_directory(self._target)
