"""The command line, as people and scripts use it: in a process of its own, wide, without colours."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_DEADLINE_SECONDS = 120.0


def headrace(
    *arguments: object, given: str = "", cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end; what it reads is given."""
    return subprocess.run(
        [sys.executable, "-m", "headrace", *map(str, arguments)],
        input=given,
        capture_output=True,
        text=True,
        timeout=_DEADLINE_SECONDS,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "160", "NO_COLOR": "1", **(environment or {})},
        check=False,
    )
