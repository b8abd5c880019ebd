"""`headrace` on a disk whose syncs take their time, so that a kill surely comes between a commit and the next.

python -m tests.crash.slow_server serve ...
"""

import sys
import time
from collections.abc import Sequence

from headrace import app, cli
from headrace.cli import serve
from headrace.config.settings import Settings
from headrace.launch import Launch
from headrace.storage.api import Engine, Wake
from headrace.storage.local.disk import Disk
from headrace.storage.local.engine import LocalEngine

_SYNC_SECONDS = 0.05


class SlowDisk(Disk):
    """A disk that is late."""

    def write_synced(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        super().write_synced(fd, buffers, position)
        time.sleep(_SYNC_SECONDS)

    def sync(self, fd: int) -> None:
        super().sync(fd)
        time.sleep(_SYNC_SECONDS)


def _open(settings: Settings, wake: Wake) -> Engine:
    return LocalEngine(settings.storage.data, wake, disk=SlowDisk())


def _become(launch: Launch) -> None:
    sys.exit(app.run(launch, _open))


if __name__ == "__main__":
    serve.become = _become  # type: ignore[assignment, attr-defined]
    cli.main()
