"""The command line, as scripts use it: in a process of its own, wide, without colours."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile

from tests import process_pool

_DEADLINE_SECONDS = 120.0


def headrace(
    *arguments: object, given: str = "", cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end; what it reads is given."""
    words = [str(argument) for argument in arguments]
    settings = {**os.environ, "COLUMNS": "160", "NO_COLOR": "1", **(environment or {})}
    with TemporaryFile() as stdin, TemporaryFile() as stdout, TemporaryFile() as stderr:
        stdin.write(given.encode())
        stdin.seek(0)
        code = process_pool.start(words, settings, stdout, stderr, stdin, cwd).wait(_DEADLINE_SECONDS)
        for file in (stdout, stderr):
            file.seek(0)
        return subprocess.CompletedProcess(words, code, stdout.read().decode(), stderr.read().decode())
