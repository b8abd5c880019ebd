"""Disks that fail on purpose: they stop the world for a snapshot, run full, break, or lose what was not synced."""

import errno
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from threading import RLock

from headrace.storage.local.disk import Disk, SyncFailed

_PAGE = 4096


class FullDisk(Disk):
    """A disk on which no file can grow once it is told to be full."""

    def __init__(self) -> None:
        self.full = False

    def write(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        if self.full and position + sum(map(len, buffers)) > self.size(fd):
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(fd, buffers, position)


class CrowdedDisk(Disk):
    """A disk on which no file can be opened while it is told that too many are."""

    def __init__(self) -> None:
        self.is_crowded = False
        self.refused = 0

    def open(self, path: Path, create: bool = False) -> int:
        self._check(path)
        return super().open(path, create)

    def open_to_read(self, path: Path) -> int:
        self._check(path)
        return super().open_to_read(path)

    def sync_directory(self, path: Path) -> None:
        self._check(path)
        super().sync_directory(path)

    def _check(self, path: Path) -> None:
        if self.is_crowded:
            self.refused += 1
            raise OSError(errno.EMFILE, "Too many open files", str(path))


class SnapshotDisk(Disk):
    """A disk whose files can be copied between two system calls: what a killed process would leave."""

    def __init__(self) -> None:
        self.lock = RLock()

    def snapshot(self, root: Path, target: Path) -> None:
        with self.lock:
            shutil.copytree(root, target)

    def open(self, path: Path, create: bool = False) -> int:
        with self.lock:
            return super().open(path, create)

    def write(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        with self.lock:
            super().write(fd, buffers, position)

    def write_synced(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        with self.lock:
            super().write_synced(fd, buffers, position)

    def truncate(self, fd: int, length: int) -> None:
        with self.lock:
            super().truncate(fd, length)

    def replace(self, source: Path, target: Path) -> None:
        with self.lock:
            super().replace(source, target)

    def unlink(self, path: Path) -> None:
        with self.lock:
            super().unlink(path)

    def make_directory(self, path: Path) -> list[Path]:
        with self.lock:
            return super().make_directory(path)

    def remove_directory(self, path: Path) -> None:
        with self.lock:
            super().remove_directory(path)


class FailingDisk(Disk):
    """A disk that runs full or breaks when told to."""

    def __init__(self) -> None:
        self.full = False
        self.broken_sync = False
        self.free_writes = -1
        """Number of writes that succeed before the disk is full; -1 for any number."""

    def write(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        self._check_space(fd, buffers, position)
        super().write(fd, buffers, position)

    def write_synced(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        if self.broken_sync:
            raise SyncFailed(errno.EIO, "Input/output error")
        self._check_space(fd, buffers, position)
        super().write_synced(fd, buffers, position)

    def sync(self, fd: int) -> None:
        if self.broken_sync:
            raise SyncFailed(errno.EIO, "Input/output error")
        super().sync(fd)

    def _check_space(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        """Only what makes a file longer needs space; overwriting does not, as on a real disk."""
        length = sum(map(len, buffers))
        if position + length <= self.size(fd):
            return
        if self.free_writes > 0:
            self.free_writes -= 1
        elif self.free_writes == 0:
            self.full = True
        if self.full:
            super().write(fd, [b"".join(buffers)[: length // 2]], position)  # a real disk takes what still fits
            raise OSError(errno.ENOSPC, "No space left on device")


class LosingDisk(SnapshotDisk):
    """A disk that can lose power: of what was not synced, any page and any directory entry may be missing."""

    def __init__(self) -> None:
        super().__init__()
        self._paths: dict[int, Path] = {}
        self._durable: dict[Path, bytes] = {}
        self._entries: list[tuple[Path, str, Path, Path, bytes | None]] = []

    def lose_power(self, root: Path, target: Path, chance: random.Random) -> None:
        """Copy the files as they could be after a power loss right now."""
        with self.lock:
            shutil.copytree(root, target)
            for path, old in self._durable.items():
                copy = target / path.relative_to(root)
                if copy.exists():
                    copy.write_bytes(_mix(old, copy.read_bytes(), chance))
            keep = chance.randint(0, len(self._entries)) if self._entries else 0
            for _, kind, path, other, old_bytes in reversed(self._entries[keep:]):
                _revert(kind, target / path.relative_to(root), target / other.relative_to(root), old_bytes)

    def open(self, path: Path, create: bool = False) -> int:
        with self.lock:
            new = create and not path.exists()
            fd = super().open(path, create)
            self._paths[fd] = path
            if new:
                self._entries.append((path.parent, "create", path, path, None))
                self._durable[path] = b""
            return fd

    def write(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        with self.lock:
            self._touch(fd)
            super().write(fd, buffers, position)

    def write_synced(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        with self.lock:
            path = self._paths[fd]
            super().write_synced(fd, buffers, position)
            if path in self._durable:  # only this range is safe now
                data = b"".join(buffers)
                old = self._durable[path].ljust(position, b"\0")
                self._durable[path] = old[:position] + data + old[position + len(data) :]

    def sync(self, fd: int) -> None:
        path = self._paths[fd]
        with self.lock:
            before = path.read_bytes() if path in self._durable and path.exists() else None
        super().sync(fd)
        with self.lock:
            if before is None:  # nothing was to be synced: what came meanwhile is not safe yet
                return
            if path.exists() and path.read_bytes() != before:  # written to meanwhile: that is not safe yet
                self._durable[path] = before
            else:
                self._durable.pop(path, None)

    def sync_files(self, paths: Sequence[Path]) -> None:
        super().sync_files(paths)
        with self.lock:
            for path in paths:
                self._durable.pop(path, None)

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self._keep_entries([path])

    def sync_directories(self, paths: Sequence[Path]) -> None:
        super().sync_directories(paths)
        self._keep_entries(paths)

    def _keep_entries(self, directories: Sequence[Path]) -> None:
        with self.lock:
            self._entries = [entry for entry in self._entries if entry[0] not in directories]

    def truncate(self, fd: int, length: int) -> None:
        with self.lock:
            self._touch(fd)
            super().truncate(fd, length)

    def replace(self, source: Path, target: Path) -> None:
        with self.lock:
            old = target.read_bytes() if target.is_file() else None
            super().replace(source, target)
            for path in [path for path in self._durable if path == source or source in path.parents]:
                self._durable[target / path.relative_to(source)] = self._durable.pop(path)
            self._entries.append((target.parent, "replace", source, target, old))

    def unlink(self, path: Path) -> None:
        with self.lock:
            if path.exists():
                self._entries.append((path.parent, "unlink", path, path, path.read_bytes()))
                self._durable.pop(path, None)
            super().unlink(path)

    def make_directory(self, path: Path) -> list[Path]:
        with self.lock:
            new = [parent for parent in [*reversed(path.parents), path] if not parent.exists()]
            changed = super().make_directory(path)
            self._entries += [(parent.parent, "mkdir", parent, parent, None) for parent in new]
            return changed

    def _touch(self, fd: int) -> None:
        path = self._paths[fd]
        if path not in self._durable:
            self._durable[path] = path.read_bytes() if path.exists() else b""


def _mix(old: bytes, new: bytes, chance: random.Random) -> bytes:
    length = chance.choice([len(old), len(new)])
    pages: list[bytes] = []
    for at in range(0, max(len(old), len(new)), _PAGE):
        source = chance.choice([old, new])
        pages.append(source[at : at + _PAGE].ljust(_PAGE, b"\0"))
    return b"".join(pages)[:length].ljust(length, b"\0")


def _revert(kind: str, path: Path, other: Path, old: bytes | None) -> None:
    if kind == "create":
        path.unlink(missing_ok=True)
    elif kind == "mkdir":
        shutil.rmtree(path, ignore_errors=True)
    elif kind == "unlink":
        if path.parent.is_dir() and old is not None:
            path.write_bytes(old)
    elif other.exists() and path.parent.is_dir():
        other.replace(path)
        if old is not None:
            other.write_bytes(old)
