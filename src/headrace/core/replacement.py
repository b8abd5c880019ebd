"""A stream whose messages give way to others in one commit, as compaction wants it. Offsets go on: none comes twice."""

from typing import Final, final

from headrace.core.follower import is_cursor
from headrace.core.queue import Queue
from headrace.core.stream import StreamGroup
from headrace.core.turn import Turn
from headrace.errors import PreconditionFailed, Refused
from headrace.storage.api import Commit

_TAIL_MESSAGES: Final = 100_000
_TAIL_BYTES: Final = 64 << 20
"""What was published meanwhile is stored once more, behind what replaces the rest: there is an end to that."""


@final
class Replacement:
    """All that a stream has below an offset goes, when something else comes into its place."""

    def __init__(self, queue: Queue, before: int) -> None:
        """Raises Refused for a queue that is no durable stream."""
        if not queue.definition.is_stream or not queue.durable:
            raise Refused(f"queue {queue.name!r} is no durable stream: only what such a one has can be replaced")
        self._queue = queue
        self._before = before
        self._end = 0
        self._new_end = 0
        self._caught_up: list[StreamGroup] = []

    def hold(self, turn: Turn, is_held: bool = True) -> None:
        """Have the queues that are filled from the stream stay where they are until it happened, or did not."""
        tail = self._queue.tail
        if tail is None:
            return
        if is_held:
            tail.hold(turn)
        else:
            tail.is_held = False
            self._queue.grown()

    def add_to(self, commit: Commit) -> None:
        """Have what is there go, and what was published meanwhile stay, with what the commit appends in front of it.

        Raises PreconditionFailed when somebody still needs what is to go, or too much was published meanwhile.
        """
        queue, log = self._queue, self._queue.log
        if queue.is_gone:
            raise Refused(f"queue {queue.name!r} was deleted")
        end = log.next_offset
        if queue.disposal.retention_floor(queue.definition.retention) < end:
            raise PreconditionFailed(f"a work group or an archive still needs messages of stream {queue.name!r}")
        if not queue.first_offset <= self._before <= end or end - self._before > _TAIL_MESSAGES:
            raise PreconditionFailed(
                f"stream {queue.name!r} begins at {queue.first_offset} and ends at {end} now, too far from the offset "
                f"{self._before} that was said; read it again"
            )
        tail = log.read(self._before, end - self._before, _TAIL_BYTES)
        if len(tail) < end - self._before:
            raise PreconditionFailed(f"too much was published to stream {queue.name!r} meanwhile; read it again")
        if tail:
            commit.append(log.name, tail)
        commit.truncate(log.name, end)
        self._end = end
        self._new_end = end + sum([append.count for append in commit.appends if append.log == log.name])
        for name, state in log.groups.items():
            if is_cursor(name) and state.committed >= end:
                commit.commit_offset(log.name, name, self._new_end)
        self._caught_up = [
            group for group in queue.groups.values() if isinstance(group, StreamGroup) and group.state.committed >= end
        ]

    def happened(self, turn: Turn) -> None:
        """It is stored: readers that had read everything go on behind it, the others with what replaces what went."""
        self._queue.truncated(turn, self._end)
        if self._queue.tail is not None:
            self._queue.tail.replaced(self._end, self._new_end)
        for group in self._caught_up:
            if self._queue.groups.get(group.name) is group:
                group.seek(turn, self._queue.log.next_offset)
