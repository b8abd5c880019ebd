"""Whether publishers must wait: how much is on its way to the disk and how much only memory holds. No sockets."""

from collections.abc import Callable
from typing import Final, final

from headrace.config.settings import LimitSettings

_LIMITS: Final = LimitSettings()
HIGH_BYTES: Final = _LIMITS.unwritten_bytes
LOW_BYTES: Final = HIGH_BYTES // 2
MEMORY_HIGH_BYTES: Final = _LIMITS.memory_bytes
MEMORY_LOW_BYTES: Final = MEMORY_HIGH_BYTES // 4 * 3


@final
class Flow:
    """Says stop above a high watermark and go again below a low one, so that it does not say both all the time."""

    def __init__(
        self,
        high_bytes: int = HIGH_BYTES,
        low_bytes: int = LOW_BYTES,
        memory_high_bytes: int = MEMORY_HIGH_BYTES,
        memory_low_bytes: int = MEMORY_LOW_BYTES,
    ) -> None:
        self.high_bytes = high_bytes
        self.low_bytes = low_bytes
        self.memory_high_bytes = memory_high_bytes
        self.memory_low_bytes = memory_low_bytes
        self.blocked = False
        self.listeners: list[Callable[[bool], None]] = []
        """Called with True when publishers must slow down, and with False when they may go on."""

    def limit(self, high_bytes: int, memory_high_bytes: int) -> None:
        """Have other watermarks from now on."""
        self.high_bytes = high_bytes
        self.low_bytes = high_bytes // 2
        self.memory_high_bytes = memory_high_bytes
        self.memory_low_bytes = memory_high_bytes // 4 * 3

    def look(self, waiting_bytes: int, memory_bytes: int) -> None:
        """Decide anew, given what waits to be written and what the queues in memory hold."""
        if self.blocked:
            blocked = waiting_bytes >= self.low_bytes or memory_bytes >= self.memory_low_bytes
        else:
            blocked = waiting_bytes > self.high_bytes or memory_bytes > self.memory_high_bytes
        if blocked != self.blocked:
            self.blocked = blocked
            for tell in list(self.listeners):
                tell(blocked)
