"""pip installs the source archive on a machine without a C compiler, and a person at a terminal is told."""

import contextlib
import os
import pty
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_NO_COMPILER = {"CC": "no-such-compiler", "HEADRACE_COMPILE": ""}


def test_pip_installs_the_source_archive_without_a_compiler_and_says_so_in_one_line(tmp_path: Path) -> None:
    hatchling = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(hatchling, cwd=_ROOT, capture_output=True, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    words = ["--no-deps", "--no-build-isolation", "--no-compile", "--quiet", "--target", str(tmp_path / "installed")]

    shown = _on_a_terminal([sys.executable, "-m", "pip", "install", *words, str(archive)], _NO_COMPILER)
    version = subprocess.run(
        [sys.executable, "-m", "headrace", "--version"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    reason = "there is no C compiler (no-such-compiler)"
    assert shown.count("headrace: ") == 1, shown
    assert f"headrace: it is installed as plain Python, at a third of the speed: {reason}" in shown
    assert version.endswith("(interpreted)\n")


def _on_a_terminal(command: list[str], environment: dict[str, str]) -> str:
    """Run a command whose terminal is ours; returns what it shows there."""
    ours, theirs = pty.openpty()
    words = ["setsid", "--ctty", "--wait", *command]
    with subprocess.Popen(
        words, env={**os.environ, **environment}, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the other side is closed
            while part := os.read(ours, 4096):
                shown += part
    os.close(ours)
    assert process.returncode == 0, shown.decode()
    return shown.decode()
