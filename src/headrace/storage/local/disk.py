"""The system calls of the local engine, in one place, so that tests can make the disk fail. No formats."""

import contextlib
import ctypes
import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

PRIVATE_FILE: Final = 0o600
PRIVATE_DIRECTORY: Final = 0o700
"""Other users of the machine can read neither messages nor password hashes, whatever the umask is."""
_SYNCED: Final = getattr(os, "RWF_DSYNC", 0)
_MAX_BUFFERS: Final = 512
_MANY_FILES: Final = 64


def _find_syncfs() -> Callable[[int], int] | None:
    """Find Linux's call that syncs a whole file system: 1000 files took 25 ms with it and 159 ms one by one.

    Kernels before 5.8 do not report failed writes through it; there the engine syncs file by file.
    """
    system = os.uname()
    version = tuple(int(part) for part in re.findall(r"\d+", system.release)[:2])
    call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    return call if system.sysname == "Linux" and version >= (5, 8) else None


_syncfs: Final = _find_syncfs()


def open_privately(path: str, flags: int) -> int:
    """Open a file that only its owner may read; an opener for `open`."""
    return os.open(path, flags, PRIVATE_FILE)


class SyncFailed(OSError):
    """A sync failed: earlier writes may be lost, and no later sync reports that."""


class Disk:
    """The file system, call by call. Errors are OSErrors."""

    def open(self, path: Path, create: bool = False) -> int:
        """Open for reading and writing; `create` makes a missing file, not yet durably."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), PRIVATE_FILE)

    def open_to_read(self, path: Path) -> int:
        """Open for reading only, which works on a read-only file or disk too."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def read(self, fd: int, position: int, length: int) -> bytes:
        """Read up to `length` bytes; fewer only at the end of the file."""
        data = os.pread(fd, length, position)
        while data and len(data) < length:
            more = os.pread(fd, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def read_into(self, fd: int, position: int, buffer: memoryview) -> int:
        """Read into a buffer; returns the number of bytes read, fewer only at the end of the file."""
        filled = 0
        while filled < len(buffer):
            found = os.preadv(fd, [buffer[filled:]], position + filled)
            if not found:
                break
            filled += found
        return filled

    def write(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        """Write all buffers in a row into the operating system's memory."""
        self._write(fd, buffers, position, 0)

    def write_synced(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        """Write all buffers in a row; returns when they would survive a power loss."""
        # One call instead of two: the thread has to win back the interpreter once instead of twice.
        self._write(fd, buffers, position, _SYNCED)
        if not _SYNCED:
            self.sync(fd)

    def sync(self, fd: int) -> None:
        """Make everything written to this file durable. Raises SyncFailed."""
        try:
            os.fdatasync(fd)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from error

    def sync_files(self, paths: Sequence[Path]) -> None:
        """Make many files of one file system durable. Raises SyncFailed."""
        if len(paths) >= _MANY_FILES and _syncfs is not None:
            _sync_file_system(_syncfs, paths[0].parent)
            return
        for path in paths:
            with opened(self, path) as fd:
                self.sync(fd)

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def sync_directory(self, path: Path) -> None:
        """Make the entries of a directory durable. Raises SyncFailed."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror, str(path)) from error
        finally:
            os.close(fd)

    def sync_directories(self, paths: Sequence[Path]) -> None:
        """Make the entries of many directories of one file system durable. Raises SyncFailed."""
        if len(paths) >= _MANY_FILES and _syncfs is not None:
            _sync_file_system(_syncfs, paths[0])
            return
        for path in paths:
            self.sync_directory(path)

    def sync_tree(self, path: Path) -> None:
        """Make the entries of a directory and of all directories below it durable. Raises SyncFailed."""
        found: list[Path] = []
        for directory, _, _ in os.walk(path):
            found.append(Path(directory))
            if len(found) >= _MANY_FILES and _syncfs is not None:
                break  # one call syncs the others too
        self.sync_directories(found)

    def make_directory(self, path: Path) -> list[Path]:
        """Make a directory and its parents; durable once the returned directories are synced."""
        if path.is_dir():
            return []
        changed = self.make_directory(path.parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, PRIVATE_DIRECTORY)  # noqa: PTH102
        return [*changed, path.parent]

    def replace(self, source: Path, target: Path) -> None:
        """Rename; durable once the directories are synced."""
        os.replace(source, target)  # noqa: PTH105

    def unlink(self, path: Path) -> None:
        """Remove a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(path)  # noqa: PTH106

    def write_file(self, path: Path, parts: Iterable[bytes]) -> None:
        """Replace a whole file durably: a crash leaves the old or the new contents, never a mixture."""
        draft = self.write_draft(path, parts)
        self.sync_files([draft])
        self.replace(draft, path)
        self.sync_directory(path.parent)

    def write_draft(self, path: Path, parts: Iterable[bytes]) -> Path:
        """Write the new contents of a file to a draft beside it; returns the draft's path.

        The caller syncs the draft, replaces the file with it and syncs the directory: many files share these syncs.
        """
        draft = path.with_name(path.name + ".tmp")
        with opened(self, draft, create=True) as fd:
            self.truncate(fd, 0)
            position = 0
            for part in parts:
                self.write(fd, [part], position)
                position += len(part)
        return draft

    def _write(self, fd: int, buffers: Sequence[bytes], position: int, flags: int) -> None:
        written = os.pwritev(fd, buffers, position, flags) if len(buffers) <= _MAX_BUFFERS else 0
        if written == sum(map(len, buffers)):
            return  # without views of the buffers: 40 % of the instructions for a small record
        pending = [memoryview(buffer) for buffer in buffers if buffer]
        while True:
            position += written
            while pending and written >= len(pending[0]):
                written -= len(pending.pop(0))
            if not pending:
                return
            pending[0] = pending[0][written:]
            written = os.pwritev(fd, pending[:_MAX_BUFFERS], position, flags)


def _sync_file_system(call: Callable[[int], int], path: Path) -> None:
    """Sync the whole file system of this directory. Raises SyncFailed."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if call(fd):
            code = ctypes.get_errno()
            raise SyncFailed(code, os.strerror(code), str(path))
    finally:
        os.close(fd)


class ReadOnlyDisk(Disk):
    """Another disk, for reading only: every change raises OSError."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def open(self, path: Path, create: bool = False) -> int:
        if create:
            self._refuse()
        return self._disk.open_to_read(path)

    def open_to_read(self, path: Path) -> int:
        return self._disk.open_to_read(path)

    def close(self, fd: int) -> None:
        self._disk.close(fd)

    def size(self, fd: int) -> int:
        return self._disk.size(fd)

    def read(self, fd: int, position: int, length: int) -> bytes:
        return self._disk.read(fd, position, length)

    def read_into(self, fd: int, position: int, buffer: memoryview) -> int:
        return self._disk.read_into(fd, position, buffer)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise OSError(errno.EROFS, "this directory is only being read")

    write = write_synced = truncate = make_directory = replace = unlink = remove_directory = _refuse


@contextlib.contextmanager
def opened(disk: Disk, path: Path, create: bool = False) -> Iterator[int]:
    """Keep a file open for the duration of the block."""
    fd = disk.open(path, create)
    try:
        yield fd
    finally:
        disk.close(fd)


@contextlib.contextmanager
def opened_to_read(disk: Disk, path: Path) -> Iterator[int]:
    """Keep a file open for reading for the duration of the block."""
    fd = disk.open_to_read(path)
    try:
        yield fd
    finally:
        disk.close(fd)


def read_whole(disk: Disk, path: Path) -> bytes:
    """Read a whole file. Raises OSError."""
    with opened_to_read(disk, path) as fd:
        return disk.read(fd, 0, disk.size(fd))


def is_full(error: OSError) -> bool:
    """True if there is no room, which may pass: no space on the disk, or no descriptor to open a file with."""
    is_short = error.errno in (errno.ENOSPC, errno.EDQUOT) and not isinstance(error, SyncFailed)
    return is_short or is_out_of_files(error)


def is_out_of_files(error: OSError) -> bool:
    """True if too many files are open. Nothing was read or written then, and nothing is lost."""
    return error.errno in (errno.EMFILE, errno.ENFILE) and not isinstance(error, SyncFailed)


def remove_tree(disk: Disk, path: Path) -> None:
    """Remove a directory and its contents, if it exists."""
    if not path.is_dir():
        return
    for entry in sorted(path.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            remove_tree(disk, entry)
        else:
            disk.unlink(entry)
    disk.remove_directory(path)
