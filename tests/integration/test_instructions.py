"""No message takes notably more instructions than it did: counted, not timed, so a busy machine does not matter."""

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def test_a_message_takes_no_more_instructions_than_recorded() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "bench.guard.count"], cwd=_ROOT, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
