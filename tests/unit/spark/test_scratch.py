"""Directories of processes that run Spark are gone with them, however they ended; those in use stay."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.spark.pipelines.session import make_scratch

PROGRAM = """
import sys
from headrace.spark.pipelines.session import make_scratch
print(make_scratch(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def _start() -> tuple["subprocess.Popen[str]", Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_directory_goes_with_its_process(temporary: Path) -> None:
    process, made = _start()
    assert made.parent == temporary
    assert made.is_dir()

    process.communicate("", timeout=60)

    assert process.returncode == 0
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_goes_with_the_next_and_what_is_in_use_stays(temporary: Path) -> None:
    killed, left = _start()
    running, used = _start()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert left.is_dir()

    following, own = _start()

    assert not left.exists()
    assert used.is_dir()
    assert own.is_dir()
    for process in (running, following):
        process.communicate("", timeout=60)
    assert list(temporary.iterdir()) == []


def test_a_directory_is_for_one_user_only() -> None:
    assert make_scratch().stat().st_mode & 0o777 == 0o700
