"""One process per directory: a lock that ends with its process, and says who holds it."""

import fcntl
import json
import os
from pathlib import Path
from typing import final

from headrace.clock import Clock
from headrace.errors import Unavailable


@final
class DirectoryLock:
    """Held from construction until `release`, or until the process is gone."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        """Raises Unavailable, naming the holder, when another process has the directory open."""
        self._fd = os.open(directory / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._fd, 4096, 0)
            os.close(self._fd)
            raise Unavailable(
                f"the data directory {directory} is in use by {_describe(holder)}; "
                f"stop that process or choose another directory"
            ) from error
        who = {"pid": os.getpid(), "host": os.uname().nodename, "since_us": clock.now_us()}
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, json.dumps(who).encode(), 0)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _describe(holder: bytes) -> str:
    try:
        who = json.loads(holder)
        return f"process {who['pid']} on {who['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
