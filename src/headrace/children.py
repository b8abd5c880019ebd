"""Python processes that this one starts: which command makes one. What they do is elsewhere."""

import sys
from pathlib import Path


def python(*words: str) -> list[str]:
    """The command for this Python with these arguments.

    With `-P` it imports nothing from the current directory, where a `queue.py` of somebody else's may be. Without it
    only where this package itself is found there.
    """
    return [sys.executable, *([] if _is_package_here() else ["-P"]), *words]


def _is_package_here() -> bool:
    try:
        return Path(__file__).resolve().parent.parent == Path.cwd().resolve()
    except FileNotFoundError:  # the current directory was removed
        return False
