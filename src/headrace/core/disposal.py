"""What leaves a queue without being delivered: expired, too many, purged, settled by all, too old. No clock."""

from typing import TYPE_CHECKING, Final, final

from headrace.core.dead_letter import EXPIRED, MAXLEN
from headrace.core.definition import DROP_HEAD, QueueDefinition, Retention
from headrace.core.depth import Depth
from headrace.core.retention import truncation_point
from headrace.core.turn import Turn
from headrace.model import Message
from headrace.storage.ranges import RangeSet

if TYPE_CHECKING:
    from headrace.core.queue import Queue

ARCHIVE: Final = "archive"
"""The group as which an archive reports how far it is."""


@final
class Disposal:
    """The way out of one queue's log."""

    def __init__(self, queue: "Queue", depth: Depth) -> None:
        self._queue = queue
        self._depth = depth
        self._given_up = RangeSet()
        self.has_given_up = False
        """Whether there is something in it that waits for the end of what is before."""

    def give_up(self, turn: Turn, offset: int, message: Message, reason: str, now_us: int) -> None:
        """Have no group deliver this message any more, and make it one dead letter however many groups there are.

        One that is with a consumer of some group stays there.
        """
        queue = self._queue
        groups = queue.work_groups()
        for group in groups:
            ready = group.ready
            entry = group.state.pending.get(offset)
            attempts = entry.attempts if entry is not None else 0
            group.drop(turn, offset)
            if group.ready < ready:
                queue.note_end(turn, group, offset, attempts, reason, now_us)
                self._depth.settled(message)
        if offset not in self._given_up:
            self._given_up.add(offset, offset + 1)
            self.has_given_up = True
            queue.look_at_exit()
            queue.dead_letter(turn, message, "", offset, 0, reason, now_us)
        if not groups:
            self.truncate(turn, offset + 1)

    def expire_head(self, turn: Turn, now_us: int, most: int) -> int:
        """Give up what expired among the oldest; returns when to look again: 0 for never, `now_us` for at once."""
        queue = self._queue
        for _ in range(most):
            offset = queue.head()
            if offset >= queue.log.next_offset:
                return 0
            message = queue.message(offset)
            if message.expires_us == 0 or message.expires_us > now_us:
                return message.expires_us
            self.give_up(turn, offset, message, EXPIRED, now_us)
        return now_us

    def drop_surplus(self, turn: Turn, now_us: int) -> None:
        """Let the oldest waiting messages go until the limits are kept."""
        for offset in self._depth.surplus():
            self.give_up(turn, offset, self._queue.message(offset), MAXLEN, now_us)

    def purge(self, turn: Turn) -> int:
        """Drop every message that waits; what consumers hold stays with them. Returns how many went."""
        queue = self._queue
        count = queue.messages
        groups = queue.work_groups()
        for group in groups:
            group.purge(turn)
        if not groups:
            self.truncate(turn, queue.log.next_offset)
        self._depth.count()
        turn.touch(queue)
        return count

    def loss(self, definition: QueueDefinition, now_us: int) -> int:
        """How many messages would go at once if the queue became this."""
        queue = self._queue
        if definition.is_stream:
            before, after = [
                truncation_point(queue.log, kept, self.retention_floor(kept), now_us)
                for kept in (queue.definition.retention, definition.retention)
            ]
            return max(0, after - max(before, queue.first_offset))
        return self._depth.loss(definition) if definition.overflow == DROP_HEAD else 0

    def trim(self, turn: Turn, floor: int) -> None:
        """What is below the floor leaves the log."""
        if floor > self._queue.first_offset:
            self.truncate(turn, floor)

    def retain(self, turn: Turn, now_us: int) -> None:
        """Drop what retention allows, never what a work group still needs, or an archive where that is waited for."""
        queue = self._queue
        retention = queue.definition.retention
        point = truncation_point(queue.log, retention, self.retention_floor(retention), now_us)
        if point > queue.first_offset:
            self.truncate(turn, point)

    def retention_floor(self, retention: Retention) -> int:
        """The lowest offset that retention must leave: work groups need it, or it is not archived yet."""
        queue = self._queue
        if not retention.keep_until_archived:
            return queue.floor()
        archive = queue.groups.get(ARCHIVE)
        return min(queue.floor(), archive.state.committed if archive is not None else queue.first_offset)

    def truncate(self, turn: Turn, before: int) -> None:
        """Have the log begin at `before`."""
        queue = self._queue
        if queue.is_limited:
            self._depth.truncating(queue.first_offset, before)
        queue.cut_below = before
        turn.commit_for(queue).truncate(queue.log.name, before)
        if self.has_given_up:
            self._given_up.discard_below(before)
            self.has_given_up = self._given_up.size > 0
            queue.look_at_exit()
        queue.truncated(turn, before)
