"""When which queue wants to be looked at again. No clock of its own: the caller says what time it is."""

import heapq
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from headrace.core.queue import Queue


@final
class Timers:
    """Queues by the time at which something in them comes due."""

    def __init__(self) -> None:
        self._due: list[tuple[int, int, Queue]] = []
        self._count = 0

    def add(self, queue: "Queue", time_us: int) -> None:
        self._count += 1
        heapq.heappush(self._due, (time_us, self._count, queue))

    def take(self, now_us: int) -> "list[Queue]":
        """The queues whose time has come, each once, the earliest first."""
        found: dict[Queue, None] = {}
        while self._due and self._due[0][0] <= now_us:
            queue = heapq.heappop(self._due)[2]
            if not queue.deleted:
                found[queue] = None
        return list(found)

    @property
    def next_us(self) -> int:
        """When to look again; 0 when nothing is due ever."""
        return self._due[0][0] if self._due else 0
