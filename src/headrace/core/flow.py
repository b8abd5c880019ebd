"""Whether publishers must wait: how much is on its way to the disk and how much only memory holds. No sockets."""

from collections.abc import Callable
from typing import Final, final

HIGH_BYTES: Final = 64 << 20
LOW_BYTES: Final = 32 << 20
MEMORY_HIGH_BYTES: Final = 1 << 30
MEMORY_LOW_BYTES: Final = 768 << 20


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
        self.is_held = False
        """Whether storage took nothing lately: publishers wait until that is tried again."""
        self.listeners: list[Callable[[bool], None]] = []
        """Called with True when publishers must slow down, and with False when they may go on."""

    def look(self, waiting_bytes: int, memory_bytes: int) -> None:
        """Decide anew, given what waits to be written and what the queues in memory hold."""
        if self.is_held:
            blocked = True
        elif self.blocked:
            blocked = waiting_bytes >= self.low_bytes or memory_bytes >= self.memory_low_bytes
        else:
            blocked = waiting_bytes > self.high_bytes or memory_bytes > self.memory_high_bytes
        if blocked != self.blocked:
            self.blocked = blocked
            for tell in list(self.listeners):
                tell(blocked)
