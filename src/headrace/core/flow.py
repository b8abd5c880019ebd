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
    """Says stop above a high watermark and go again below a low one, so that it does not say both all the time.

    All virtual hosts share one: what they have under way together is bounded, however many they are.
    """

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
        self._shares: dict[object, tuple[int, int]] = {}
        self._waiting_bytes = 0
        self._memory_bytes = 0
        self._held: set[object] = set()
        self.listeners: dict[object, Callable[[bool], None]] = {}
        """By whose they are. Called with True when publishers must slow down, and with False when they may go on."""

    def limit(self, high_bytes: int, memory_high_bytes: int) -> None:
        """Have other watermarks from now on."""
        self.high_bytes = high_bytes
        self.low_bytes = high_bytes // 2
        self.memory_high_bytes = memory_high_bytes
        self.memory_low_bytes = memory_high_bytes // 4 * 3

    def hold(self, host: object, is_held: bool) -> None:
        """Storage took nothing from this host lately: publishers wait until it is tried again; or need no more."""
        (self._held.add if is_held else self._held.discard)(host)

    def forget(self, host: object) -> None:
        """The host is gone, with all that it had under way."""
        self.hold(host, False)
        self.look(host, 0, 0)
        del self._shares[host]

    def look(self, host: object, waiting_bytes: int, memory_bytes: int) -> None:
        """Decide anew, given what waits to be written for this host and what its queues in memory hold."""
        waiting_before, memory_before = self._shares.get(host, (0, 0))
        self._shares[host] = (waiting_bytes, memory_bytes)
        self._waiting_bytes += waiting_bytes - waiting_before
        self._memory_bytes += memory_bytes - memory_before
        if self._held:
            blocked = True
        elif self.blocked:
            blocked = self._waiting_bytes >= self.low_bytes or self._memory_bytes >= self.memory_low_bytes
        else:
            blocked = self._waiting_bytes > self.high_bytes or self._memory_bytes > self.memory_high_bytes
        if blocked != self.blocked:
            self.blocked = blocked
            for tell in list(self.listeners.values()):
                tell(blocked)
