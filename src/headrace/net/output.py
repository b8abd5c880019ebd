"""The output buffer of one connection, and turns of the event loop. No sockets: see connection.py for those."""

from collections.abc import Callable
from typing import Final, final

_BULKY_PART_BYTES: Final = 8 << 10


def _nothing() -> None:
    return


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
        parts = self.take_parts()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def take_parts(self) -> list[bytes]:
        """Take all output out of the buffer, in the parts that it came in."""
        parts, self.parts = self.parts, []
        self.size_bytes = 0
        return parts

    @property
    def is_bulky(self) -> bool:
        """True if the parts are so large that writing them in a row takes less than putting them together."""
        return self.size_bytes > _BULKY_PART_BYTES * len(self.parts)

    def clear(self) -> None:
        """Drop all output."""
        self.parts.clear()
        self.size_bytes = 0

    def close(self) -> None:
        """Drop all further output."""
        self.is_closed = True

    def detach(self) -> None:
        """Close, and forget the connection, which has ended: no reference cycle is left for the collector."""
        self.close()
        self._begun = self._filled = _nothing


@final
class LoopTurn:
    """Work of the next turn of an event loop, and then the output that comes of it.

    Output of a turn's work leaves in the same turn. Work that comes of work waits for the next one, behind what was
    read meanwhile. A turn of its own for output took two system calls more for a message that is waited for, and a
    turn of its own for the sync took one.
    """

    __slots__ = ("_call_soon", "_failed", "_is_due", "_last", "_outputs", "_work")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], failed: Callable[[Exception], None]) -> None:
        """`call_soon` calls a function in the next turn; `failed` is told of errors, which stop nothing else."""
        self._call_soon = call_soon
        self._failed = failed
        self._work: list[Callable[[], None]] = []
        self._outputs: list[Callable[[], None]] = []
        self._last: list[Callable[[], None]] = []
        self._is_due = False
        """True if `run` is scheduled, or under way."""

    def add(self, work: Callable[[], None]) -> None:
        """Call something in the next turn."""
        self._work.append(work)
        self._schedule()

    def add_output(self, write: Callable[[], None]) -> None:
        """Call something at the end of this turn's work or, where none is under way, of the next."""
        self._outputs.append(write)
        self._schedule()

    def add_last(self, work: Callable[[], None]) -> None:
        """Call something once after the output of this turn's work or, where none is under way, of the next."""
        self._last.append(work)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._call_soon(self.run)

    def run(self) -> None:
        """Do everything that waits."""
        self._is_due = True
        work, self._work = self._work, []
        self._call(work)
        self._write()
        if self._last:
            last, self._last = self._last, []
            self._call(last)
            self._write()
        self._is_due = False
        if self._work or self._last:
            self._schedule()

    def _write(self) -> None:
        while self._outputs:
            outputs, self._outputs = self._outputs, []
            self._call(outputs)

    def _call(self, calls: list[Callable[[], None]]) -> None:
        for call in calls:
            try:
                call()
            except Exception as error:
                self._failed(error)
