"""One queue that is filled from a stream: how far it is there, and how that looks from outside. See tail.py for steps.

Places are kept as groups of the source's log that nobody sees: one for all queues that are equally far, `$assign`, and
one for each that is elsewhere, `$assign/<queue>`. They go with the log, and are copied and verified as groups are.
"""

from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from headrace.core.queue import Queue

FRONT: Final = "$assign"
"""The place of all queues that are equally far and have none of their own."""
MOST_PACE: Final = 1024
LEAST_PACE: Final = 16

# How it goes.
FOLLOWING: Final = "following"
BEHIND: Final = "behind"
FULL: Final = "full"
NO_SOURCE: Final = "no source"
DAMAGED: Final = "damaged"


def cursor_of(queue: str) -> str:
    """The group that is the place of this queue in its source's log."""
    return f"{FRONT}/{queue}"


def is_cursor(group: str) -> bool:
    """Whether a group of a log is the place of queues that are filled from it."""
    return group.startswith(FRONT) and (group == FRONT or group[len(FRONT)] == "/")


@final
class Follower:
    """A queue and its place in its source."""

    __slots__ = ("is_waiting", "missed", "oversized", "pace", "position", "queue", "source", "stored")

    def __init__(self, queue: "Queue", source: "Queue | None" = None, position: int = 0) -> None:
        self.queue = queue
        self.source = source
        """None where there is no such stream."""
        self.position = position
        """Everything below was looked at; what matched is in the queue, or on its way in the turn that is open."""
        self.stored = position
        """The same as it is stored, or on its way. Nothing that matches is between the two."""
        self.is_waiting = False
        """Whether it takes nothing for now."""
        self.pace = MOST_PACE
        """How many messages are read for it at once: few while there is never room for many."""
        self.missed = 0
        """Messages that retention took before they were looked at, since the broker was opened."""
        self.oversized = 0
        """Messages that were larger than the queue takes."""

    @property
    def lag(self) -> int:
        """How many messages of the source are still to be looked at."""
        return max(0, self.source.log.next_offset - self.position) if self.source is not None else 0

    @property
    def state(self) -> str:
        """One of the words above."""
        if self.source is None:
            return NO_SOURCE
        if self.source.refusal is not None or self.queue.refusal is not None:
            return DAMAGED
        if self.is_waiting:
            return FULL
        return BEHIND if self.lag else FOLLOWING
