"""Waiting for what another thread or process does, in tests."""

import time
from collections.abc import Callable

_SECONDS = 60.0


def eventually(condition: Callable[[], bool]) -> None:
    """Return when the condition holds; fail when it does not within a minute."""
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within a minute"
        time.sleep(0.02)
