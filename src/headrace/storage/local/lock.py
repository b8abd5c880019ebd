"""One process per directory: a lock that ends with its process, and says who holds it."""

import fcntl
import json
import os
from pathlib import Path
from typing import final

from headrace.clock import Clock
from headrace.errors import Unavailable
from headrace.storage.local.disk import PRIVATE_FILE


@final
class DirectoryLock:
    """Held from construction until `release`, or until the process is gone."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        """Raises Unavailable, naming the holder, when another process has the directory open."""
        self._fd = os.open(_path(directory), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        _take(self._fd, fcntl.LOCK_EX, directory)
        who = {"pid": os.getpid(), "host": os.uname().nodename, "since_us": clock.now_us()}
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, json.dumps(who).encode(), 0)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@final
class ReadingLock:
    """Keeps brokers out of a directory while it is read, without writing a byte; readers do not exclude each other."""

    def __init__(self, directory: Path) -> None:
        """Raises Unavailable, naming the holder, when another process may write to the directory."""
        self._fd = -1
        try:
            fd = os.open(_path(directory), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # no broker was ever here: this is a copy, or new
        _take(fd, fcntl.LOCK_SH, directory)
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _path(directory: Path) -> Path:
    return directory / "LOCK"


def _take(fd: int, kind: int, directory: Path) -> None:
    """Raises Unavailable, and closes the file, when it is locked already."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(fd, 4096, 0)
        os.close(fd)
        raise Unavailable(
            f"the data directory {directory} is in use by {_describe(holder)}; "
            f"stop that process or choose another directory"
        ) from error


def _describe(holder: bytes) -> str:
    try:
        who = json.loads(holder)
        pid, host = int(who["pid"]), str(who["host"])
    except (ValueError, KeyError, TypeError):
        return "another process"
    if host == os.uname().nodename and not _is_alive(pid):
        return f"a process that reads it, such as `headrace doctor` (the last broker here was process {pid})"
    return f"process {pid} on {host}"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
