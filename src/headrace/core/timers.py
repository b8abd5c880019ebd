"""When which queue wants to be looked at again. No clock of its own: the caller says what time it is."""

import heapq
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from headrace.core.queue import Queue

_SLACK: Final = 64


@final
class Timers:
    """Queues by the time at which something in them comes due.

    A queue knows the one time that counts, and asks anew when that has come. Earlier times take the place of later
    ones, and queues go away long before their time: what is left of these is swept out before it outnumbers the others.
    """

    __slots__ = ("_count", "_due", "_stale")

    def __init__(self) -> None:
        self._due: list[tuple[int, int, Queue]] = []
        self._count = 0
        self._stale = 0
        """How many of them do not count any more."""

    def add(self, queue: "Queue", time_us: int) -> None:
        """Have the queue looked at then, and not when it asked for before."""
        if queue.deleted:
            return
        self.forget(queue)
        queue.wake_us = time_us
        self._count += 1
        heapq.heappush(self._due, (time_us, self._count, queue))

    def forget(self, queue: "Queue") -> None:
        """The queue need not be looked at."""
        if queue.wake_us:
            queue.wake_us = 0
            self._stale += 1
            if self._stale > len(self._due) // 2 + _SLACK:
                self._due = [entry for entry in self._due if entry[0] == entry[2].wake_us]
                heapq.heapify(self._due)
                self._stale = 0

    def take(self, now_us: int) -> "list[Queue]":
        """The queues whose time has come, each once, the earliest first."""
        found: list[Queue] = []
        while self._due and self._due[0][0] <= now_us:
            time_us, _, queue = heapq.heappop(self._due)
            if time_us == queue.wake_us:
                queue.wake_us = 0
                found.append(queue)
            elif self._stale:
                self._stale -= 1
        return found

    @property
    def next_us(self) -> int:
        """When to look again; 0 when nothing is due ever."""
        return self._due[0][0] if self._due else 0
