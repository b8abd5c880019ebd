"""`headrace` with files so small that a short run fills, flushes, checkpoints and recycles them many times.

python -m tests.crash.small_server serve ...
"""

import sys

from headrace import app, cli
from headrace.cli import serve
from headrace.config.settings import Settings
from headrace.launch import Launch
from headrace.storage.api import Engine, Wake
from headrace.storage.local.engine import LocalEngine, LocalSettings

SMALL = LocalSettings(
    journal_file_bytes=64 << 10,
    checkpoint_bytes=96 << 10,
    tail_bytes=12 << 10,
    segment_bytes=16 << 10,
    own_files=6,
    step=10,
)


def _open(settings: Settings, wake: Wake) -> Engine:
    return LocalEngine(settings.storage.data, wake, SMALL)


def _become(launch: Launch) -> None:
    sys.exit(app.run(launch, _open))


if __name__ == "__main__":
    serve.become = _become  # type: ignore[assignment, attr-defined]
    cli.main()
