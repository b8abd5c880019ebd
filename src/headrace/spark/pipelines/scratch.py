"""A directory of its own for each process that runs Spark: gone when the process is, however it ended. No Spark.

Whoever uses a directory has its file `lock` locked, so what a killed process left behind is known and removed by the
next one.
"""

import atexit
import fcntl
import shutil
import tempfile
from pathlib import Path
from typing import IO, Final

_PREFIX: Final = "headrace-spark-"
_LOCK: Final = "lock"


def make_scratch() -> Path:
    """A new directory, removed when this process ends."""
    _sweep()
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = (directory / _LOCK).open("w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    atexit.register(_remove, directory, lock)
    return directory


def _remove(directory: Path, lock: IO[str]) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    lock.close()


def _sweep() -> None:
    """Remove the directories of processes that are gone; what belongs to somebody else stays."""
    for file in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            with file.open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(file.parent, ignore_errors=True)
        except OSError:
            continue  # in use, gone meanwhile, or not ours
