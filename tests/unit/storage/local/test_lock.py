"""One process per directory."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.clock import ManualClock
from headrace.errors import Unavailable
from headrace.storage.local.engine import LocalEngine
from headrace.storage.local.files import DirectoryLock

_HOLDER = """
import sys
from pathlib import Path
from headrace.storage.local.engine import LocalEngine

engine = LocalEngine(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.readline()
engine.close()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the directory open until its input ends."""
    command = [sys.executable, "-c", _HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process


def test_a_second_process_is_told_who_holds_the_directory(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=rf"{tmp_path} is in use by process {holder.pid} on {os.uname().nodename}"):
        LocalEngine(tmp_path)


def test_the_lock_ends_with_a_process_that_was_killed(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    holder.kill()
    holder.wait(60)

    LocalEngine(tmp_path).close()


def test_a_lock_can_be_taken_again_after_its_release(tmp_path: Path) -> None:
    DirectoryLock(tmp_path, ManualClock()).release()

    DirectoryLock(tmp_path, ManualClock()).release()


def test_the_same_process_cannot_take_it_twice(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path, ManualClock())
    try:
        with pytest.raises(Unavailable, match=f"process {os.getpid()}"):
            DirectoryLock(tmp_path, ManualClock())
    finally:
        lock.release()


def test_a_lock_file_that_says_nothing_still_locks(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path, ManualClock())
    (tmp_path / "LOCK").write_bytes(b"")
    try:
        with pytest.raises(Unavailable, match="in use by another process"):
            DirectoryLock(tmp_path, ManualClock())
    finally:
        lock.release()


def test_releasing_twice_is_fine(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path, ManualClock())
    lock.release()

    lock.release()
