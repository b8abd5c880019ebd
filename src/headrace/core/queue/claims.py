"""Messages claimed by name, in bulk: for readers that come back by calls of their own, such as Spark. No wire.

A claim is a consumer of a group that asks and is never delivered to. Its messages are ready again when its lease is
over, so a dead reader holds nobody up. Ranges are pairs of offsets, the second one behind the last.
"""

from collections.abc import Iterable, Sequence
from typing import Final, final

from headrace.clock import Clock
from headrace.core.pipeline import CommitPipeline
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.core.queue.group import ACK, RELEASE
from headrace.core.queue.queue import DEFAULT_GROUP
from headrace.core.queue.queues import Queues
from headrace.core.queue.work import WorkGroup
from headrace.errors import Corrupt, Refused
from headrace.storage.group_state import WORK

AT_ONCE: Final = 1000
"""Most messages of one call, so that a large claim does not hold up the event loop."""

Range = tuple[int, int]


@final
class Claims:
    """The claims of one virtual host. Each call names a queue, a group, and the claiming consumer."""

    def __init__(self, pipeline: CommitPipeline, queues: Queues, clock: Clock) -> None:
        self._pipeline = pipeline
        self._queues = queues
        self._clock = clock
        self._holders: dict[tuple[WorkGroup, str], Consumer] = {}

    def take(self, queue: str, group: str, name: str, most: int, before: int, lease_ms: int) -> list[Delivery]:
        """Claim up to `most` waiting messages below the offset `before`, AT_ONCE at most; returns none if none waits.

        Raises NotFound, ResourceLocked, AccessRefused (exclusive use), Refused (a stream), Corrupt.
        """
        members = self._members(queue, group)
        holder = self._holder(members, name)
        holder.lease_us = lease_ms * 1000
        batch, now_us = self._pipeline.open(), self._clock.now_us()
        try:
            room = min(most, AT_ONCE, members.max_pending - members.unsettled)
            taken = members.take(batch, holder, room, before, now_us)
        except Corrupt as error:
            members.queue.refuse(error)
            raise
        self._keep(members, holder)
        return taken

    def hold(self, queue: str, group: str, name: str, ranges: Sequence[Range], lease_ms: int) -> list[int]:
        """Extend a claim, and claim again messages that are ready again; returns the offsets that it holds now.

        Raises as `take` does.
        """
        members = self._members(queue, group)
        holder = self._holder(members, name)
        holder.lease_us = lease_ms * 1000
        now_us = self._clock.now_us()
        offsets = list(_offsets(ranges))
        held = members.renew(holder, offsets, now_us + holder.lease_us)
        if len(held) < len(offsets):
            known = set(held)
            missing = [offset for offset in offsets if offset not in known]
            held += members.take_offsets(self._pipeline.open(), holder, missing, now_us)
        self._keep(members, holder)
        return held

    def finish(self, queue: str, group: str, name: str, ranges: Sequence[Range]) -> int:
        """Acknowledge messages that the claim holds. Returns how many; messages that wait again stay.

        Their reader may not have worked on those: another consumer had them meanwhile. Raises as `take` does.
        """
        members = self._members(queue, group)
        holder = self._holder(members, name)
        now_us = self._clock.now_us()
        batch = self._pipeline.open()
        count = 0
        for offset in _offsets(ranges):
            if holder.holds(offset):
                members.settle(batch, holder, offset, ACK, now_us)
                count += 1
        self._keep(members, holder)
        self._pipeline.pump_soon(members.queue)
        return count

    def release(self, queue: str, group: str, name: str) -> int:
        """Release all messages of a claim untried; returns how many. Raises as `take` does."""
        members = self._members(queue, group)
        holder = self._holder(members, name)
        batch, now_us = self._pipeline.open(), self._clock.now_us()
        offsets = holder.held()
        for offset in offsets:
            members.settle(batch, holder, offset, RELEASE, now_us)
        self._keep(members, holder)
        self._pipeline.pump_soon(members.queue)
        return len(offsets)

    def _members(self, queue: str, group: str) -> WorkGroup:
        found = self._queues.usable(queue)
        if found.definition.is_stream:
            raise Refused(f"queue {queue!r} is a stream: read it, there is nothing to claim in it")
        members = found.open_group(self._pipeline.open(), group or DEFAULT_GROUP, WORK)
        found.touch(self._clock.now_us())
        assert isinstance(members, WorkGroup)
        return members

    def _holder(self, members: WorkGroup, name: str) -> Consumer:
        return self._holders.get((members, name)) or Consumer(name, _nothing)

    def _keep(self, members: WorkGroup, holder: Consumer) -> None:
        """Remember the consumers that hold something, and no others."""
        for key, other in list(self._holders.items()):
            if not other.holding:
                del self._holders[key]
        if holder.holding:
            holder.group = members
            self._holders[members, holder.name] = holder


def merged(offsets: Iterable[int]) -> list[Range]:
    """Return offsets as ranges, in order."""
    ranges: list[Range] = []
    for offset in sorted(offsets):
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = (ranges[-1][0], offset + 1)
        else:
            ranges.append((offset, offset + 1))
    return ranges


def _offsets(ranges: Sequence[Range]) -> Iterable[int]:
    for start, stop in ranges:
        yield from range(start, stop)


def _nothing(deliveries: list[Delivery]) -> None:
    return
