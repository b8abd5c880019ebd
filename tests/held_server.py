"""`headrace` on a disk whose syncs wait as long as a file is there: the test decides when something would survive.

HELD_SYNCS=/dir/held python -m tests.held_server serve ...

The file `held` holds the journal's syncs back; the file `held.waiting` appears when one of them waits.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from headrace import app, cli
from headrace.cli import serve
from headrace.config.settings import Settings
from headrace.launch import Launch
from headrace.storage.api import Engine, Wake
from headrace.storage.local.disk import Disk
from headrace.storage.local.engine import LocalEngine


class HeldDisk(Disk):
    """A disk that syncs nothing while the file is there."""

    def __init__(self, held: Path) -> None:
        self._held = held
        self._waiting = held.with_suffix(".waiting")

    def write_synced(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        self._wait()
        super().write_synced(fd, buffers, position)

    def sync(self, fd: int) -> None:
        self._wait()
        super().sync(fd)

    def _wait(self) -> None:
        if self._held.exists():
            self._waiting.touch()
        while self._held.exists():
            time.sleep(0.001)


def _open(settings: Settings, wake: Wake) -> Engine:
    return LocalEngine(settings.storage.data, wake, disk=HeldDisk(Path(os.environ["HELD_SYNCS"])))


def _become(launch: Launch) -> None:
    sys.exit(app.run(launch, _open))


if __name__ == "__main__":
    serve.become = _become  # type: ignore[assignment, attr-defined]
    cli.main()
