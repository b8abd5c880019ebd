"""Groups by the name of their queue and their own, for clients that are no member: settled in, moved, paused, deleted.

What members do, with the deliveries that they hold, is broker.py's.
"""

from typing import final

from headrace.clock import Clock
from headrace.core.group import Group, PendingEntry
from headrace.core.line import Line
from headrace.core.position import offset_at, parse_position
from headrace.core.queue import DEFAULT_GROUP
from headrace.core.queues import Queues
from headrace.core.readers import group_named, remove_group
from headrace.core.stream import StreamGroup
from headrace.errors import NotFound, Refused
from headrace.storage.group_state import STREAM


@final
class Groups:
    """The groups of one virtual host. Each call is about one queue and one group."""

    def __init__(self, line: Line, queues: Queues, clock: Clock) -> None:
        self._line = line
        self._queues = queues
        self._clock = clock

    def settle(self, name: str, group: str, offset: int, outcome: int) -> None:
        """End a delivery: ACK, NACK, REJECT or RELEASE. Raises NotFound, Refused when it is not pending any more."""
        members = self._find(name, group)
        consumer = members.holder(offset)
        if consumer is None or consumer.group is not members:  # a transaction may be about to settle it
            raise Refused(f"offset {offset} of queue {name!r} is not pending in group {group!r}")
        members.settle(self._line.open(), consumer, offset, outcome, self._clock.now_us())
        self._line.pump_soon(members.queue)

    def commit(self, name: str, group: str, offset: int) -> None:
        """Everything below `offset` is processed by a stream group. Raises Refused above its cursor."""
        self._stream(name, group, "acknowledge messages instead").commit(self._line.open(), offset)

    def report(self, name: str, group: str, offset: int) -> None:
        """A reader of its own, such as a Spark query, is done with everything below `offset`; the group is made.

        Raises NotFound, Refused when the group is a work group or has consumers, Corrupt.
        """
        queue = self._queues.usable(name, self._queues.topology.queue(name).owner)
        members = group_named(queue, self._line.open(), group, STREAM, "", True)
        if not isinstance(members, StreamGroup) or len(members.consumers):
            raise Refused(f"group {group!r} of queue {name!r} has consumers of its own: use another name")
        members.seek(self._line.open(), offset)
        if queue.definition.retention.keep_until_archived:
            queue.disposal.retain(self._line.open(), self._clock.now_us())

    def seek(self, name: str, group: str, position: object) -> None:
        """Have a stream group go on reading elsewhere."""
        members = self._stream(name, group, "it cannot be moved")
        members.seek(self._line.open(), offset_at(members.queue, parse_position(position)))
        self._line.pump_soon(members.queue)

    def delete(self, name: str, group: str) -> None:
        """Forget a group. Raises Refused while it has consumers."""
        queue = self._queues.find(name)
        members = queue.groups.get(group)
        turn = self._line.open()
        remove_group(queue, turn, group)
        if members is not None:
            self._queues.pauses.forget(turn, members)

    def pause(self, name: str, group: str, is_paused: bool = True) -> None:
        """Deliver nothing to a group from now on, over restarts too, or go on. What is with consumers stays there."""
        members = self._find(name, group)
        if members.is_paused != is_paused:
            self._queues.pauses.set(self._line.open(), members, is_paused)
            self._line.pump_soon(members.queue)

    def pending(self, name: str, group: str = DEFAULT_GROUP) -> list[PendingEntry]:
        """What a group has delivered and not settled: who holds which offset until when. Raises NotFound, Corrupt."""
        return self._find(name, group).pending()

    def _find(self, name: str, group: str) -> Group:
        members = self._queues.usable(name, self._queues.topology.queue(name).owner).groups.get(group)
        if members is None:
            raise NotFound(f"queue {name!r} has no group {group!r}")
        return members

    def _stream(self, name: str, group: str, advice: str) -> StreamGroup:
        members = self._find(name, group)
        if not isinstance(members, StreamGroup):
            raise Refused(f"group {group!r} of queue {name!r} is a work group: {advice}")
        return members
