"""The only importer of time. All other modules get a Clock."""

import time
from abc import ABC, abstractmethod
from typing import final

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Clock(ABC):
    """A source of the current time."""

    @abstractmethod
    def now_us(self) -> int:
        """Microseconds since 1970 UTC, as stored with messages; jumps when the machine's clock is set."""

    @abstractmethod
    def monotonic_us(self) -> int:
        """Microseconds that never go back, for durations."""


@final
class SystemClock(Clock):
    """The machine's clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1000


@final
class ManualClock(Clock):
    """A clock that moves only when told, for tests that never sleep."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        return self._now_us

    def monotonic_us(self) -> int:
        return self._now_us

    def advance(self, seconds: float) -> None:
        self._now_us += round(seconds * 1_000_000)
