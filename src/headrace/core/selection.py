"""What consumers with selectors get of a work group: each looks for its own messages. Claims are in work.py.

Such a consumer goes through the log by itself, ahead of the group's cursor if need be, and claims what it wants; what
it does not want stays for others. It looks at each message once, and again at those that came back. So a backlog
that nobody wants costs one look for each consumer, and no memory.
"""

import heapq
from typing import TYPE_CHECKING, Final, final

from headrace.core.backlog import admit, delayed_until
from headrace.core.delivery import Consumer
from headrace.core.turn import Turn
from headrace.model import Message

if TYPE_CHECKING:
    from headrace.core.work import WorkGroup

_READ_AT_ONCE: Final = 256
_LOOKS: Final = 4096
"""How many messages a consumer looks at in one turn; whoever has the loop next should not wait for a whole backlog."""

Found = tuple[int, Message]


@final
class Selection:
    """Where each consumer with a selector is in the log of one group."""

    __slots__ = ("_again", "_at", "_group")

    def __init__(self, group: "WorkGroup") -> None:
        self._group = group
        self._at: dict[Consumer, int] = {}
        self._again: dict[Consumer, list[int]] = {}
        """Heaps of what a consumer wants and has passed: it came back, or it is not due yet."""

    def pump(self, turn: Turn, now_us: int) -> None:
        """Let each that has room look on."""
        group = self._group
        for consumer in list(group.consumers.selective):
            room = min(consumer.room, group.max_pending - group.unsettled, _READ_AT_ONCE)
            if room <= 0 or consumer.turns is not group.consumers:
                continue
            found = self._once_more(turn, consumer, room, now_us)
            if len(found) < room:
                found += self._onwards(turn, consumer, room - len(found), now_us)
            if found:
                group.passed = max(group.passed, found[-1][0] + 1)
                group.give(turn, consumer, found, now_us)
            if consumer.room > 0 and self._at[consumer] < group.queue.log.next_offset:
                group.queue.pump_soon()

    def returned(self, offset: int, message: Message) -> None:
        """A message is back in line: those that want it and have passed it look again."""
        for consumer, at in self._at.items():
            if offset < at and self._wants(consumer, message):
                heapq.heappush(self._again[consumer], offset)

    def forget(self, consumer: Consumer) -> None:
        """It left."""
        self._at.pop(consumer, None)
        self._again.pop(consumer, None)

    def _once_more(self, turn: Turn, consumer: Consumer, room: int, now_us: int) -> list[Found]:
        found: list[Found] = []
        waiting = self._again.setdefault(consumer, [])
        later: list[int] = []
        while waiting and len(found) < room:
            offset = heapq.heappop(waiting)
            if not self._group.is_waiting(offset) or (found and found[-1][0] == offset):
                continue
            message = self._group.queue.message(offset)
            if max(message.not_before_us, delayed_until(self._group, offset)) > now_us:
                later.append(offset)
            elif admit(self._group, turn, offset, message, now_us):
                found.append((offset, message))
        for offset in later:
            heapq.heappush(waiting, offset)
        return found

    def _onwards(self, turn: Turn, consumer: Consumer, room: int, now_us: int) -> list[Found]:
        group = self._group
        log = group.queue.log
        found: list[Found] = []
        at = max(self._at.get(consumer, 0), group.state.committed)
        last = min(log.next_offset, at + _LOOKS)
        while at < last and len(found) < room:
            for message in log.read(at, min(last - at, _READ_AT_ONCE)):
                at += 1
                if group.is_waiting(at - 1) and self._wants(consumer, message):
                    self._pick(turn, consumer, at - 1, message, found, now_us)
                    if len(found) == room:
                        break
        self._at[consumer] = at
        return found

    def _pick(
        self, turn: Turn, consumer: Consumer, offset: int, message: Message, found: list[Found], now_us: int
    ) -> None:
        due_us = max(message.not_before_us, delayed_until(self._group, offset))
        if due_us > now_us:
            heapq.heappush(self._again.setdefault(consumer, []), offset)
            self._group.queue.wake_at(due_us)
        elif admit(self._group, turn, offset, message, now_us):
            found.append((offset, message))

    def _wants(self, consumer: Consumer, message: Message) -> bool:
        assert consumer.selector is not None
        return self._group.queue.fits(consumer.selector, message)
