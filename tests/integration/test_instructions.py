"""No message takes notably more instructions than it did: counted, not timed, so a busy machine does not matter."""

import subprocess
import sys
from pathlib import Path

_COUNT = Path(__file__).parents[2] / "bench" / "guard" / "count.py"


def test_a_message_takes_no_more_instructions_than_recorded() -> None:
    ended = subprocess.run([sys.executable, str(_COUNT)], capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stdout + ended.stderr
