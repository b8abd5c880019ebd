"""`headrace` on a disk that is full while the file HEADRACE_TEST_FULL exists.

python -m tests.crash.full_server serve ...
"""

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace import app, cli
from headrace.cli import serve
from headrace.config.settings import Settings
from headrace.launch import Launch
from headrace.storage.api import Engine, Wake
from headrace.storage.local.disk import Disk
from headrace.storage.local.engine import LocalEngine, LocalSettings

_SMALL = LocalSettings(journal_file_bytes=32 << 10, checkpoint_bytes=64 << 10, tail_bytes=16 << 10)
_MARK = Path(os.environ["HEADRACE_TEST_FULL"])


class MarkedDisk(Disk):
    """A disk on which no file can grow while the mark is there."""

    def write(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        self._check(fd, buffers, position)
        super().write(fd, buffers, position)

    def write_synced(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        self._check(fd, buffers, position)
        super().write_synced(fd, buffers, position)

    def _check(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        if position + sum(map(len, buffers)) > self.size(fd) and _MARK.exists():
            raise OSError(errno.ENOSPC, "No space left on device")


def _open(settings: Settings, wake: Wake) -> Engine:
    return LocalEngine(settings.storage.data, wake, _SMALL, disk=MarkedDisk())


def _become(launch: Launch) -> None:
    sys.exit(app.run(launch, _open))


if __name__ == "__main__":
    serve.become = _become  # type: ignore[assignment, attr-defined]
    cli.main()
