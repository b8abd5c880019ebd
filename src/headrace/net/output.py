"""The output buffer of one connection for one turn of the event loop. No sockets: see connection.py for those."""

from collections.abc import Callable
from typing import final


@final
class Output:
    """Output of one connection. Handlers send message by message; compiled, that takes a tenth of the time."""

    __slots__ = ("_begun", "_filled", "_high_bytes", "is_closed", "is_due", "parts", "size_bytes")

    def __init__(self, high_bytes: int, begun: Callable[[], None], filled: Callable[[], None]) -> None:
        """`begun` runs on the first send after a flush; `filled` on each send while the buffer exceeds `high_bytes`."""
        self._high_bytes = high_bytes
        self._begun = begun
        self._filled = filled
        self.parts: list[bytes] = []
        self.size_bytes = 0
        self.is_due = False
        """True if a flush is scheduled."""
        self.is_closed = False
        """True if further output is dropped."""

    def send(self, data: bytes) -> None:
        """Append output; a closed buffer drops it."""
        self.parts.append(data)
        self.sent(len(data))

    def sent(self, size_bytes: int) -> None:
        """Count bytes that the caller appended to `parts`."""
        if self.is_closed:
            self.parts.clear()
            return
        self.size_bytes += size_bytes
        if not self.is_due:
            self.begin()
        if self.size_bytes > self._high_bytes:
            self._filled()

    def begin(self) -> None:
        """Schedule a flush; `is_due` is False before."""
        self.is_due = True
        self._begun()

    def take(self) -> bytes:
        """Take all output out of the buffer."""
        parts, self.parts = self.parts, []
        self.size_bytes = 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def clear(self) -> None:
        """Drop all output."""
        self.parts.clear()
        self.size_bytes = 0

    def close(self) -> None:
        """Drop all further output."""
        self.is_closed = True
