"""Somebody who looks at a queue's messages without taking any, and what there is to see. Who takes them: group.py."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from headrace.model import Message
from headrace.selector import Selector

if TYPE_CHECKING:
    from headrace.core.queue import Queue

BROWSE_BYTES: Final = 16 << 20
_READ_AT_ONCE: Final = 256
_READ_BYTES: Final = 1 << 20
_LOOKS: Final = 4096
"""How many messages are looked at in one turn; whoever has the loop next should not wait for a whole backlog."""

Found = tuple[int, Message]
Show = Callable[[list[Found]], None]


@final
class Browser:
    """Is shown every message that is not settled, once and in log order, then those that come; as far as it is allowed.

    What has expired or is not due yet is passed over.
    """

    __slots__ = ("_at", "allowance", "ended", "queue", "selector", "show")

    def __init__(self, queue: "Queue", show: Show, selector: Selector | None, ended: Callable[[], None]) -> None:
        self.queue = queue
        self.show = show
        self.selector = selector
        self.ended = ended
        """Called when the queue goes away."""
        self.allowance = 0
        """How many more messages it may be shown."""
        self._at = 0

    def pump(self, now_us: int) -> None:
        """Show what there is room for."""
        queue = self.queue
        looks = _LOOKS
        while self.allowance > 0 and self._at < queue.log.next_offset:
            if looks <= 0:
                queue.pump_soon()
                return
            found = queue.browse(self._at, min(self.allowance, _READ_AT_ONCE), _READ_BYTES)
            looks -= _READ_AT_ONCE
            self._at = found[-1][0] + 1 if found else queue.log.next_offset
            shown = [(offset, message) for offset, message in found if self._is_wanted(message, now_us)]
            if shown:
                self.allowance -= len(shown)
                self.show(shown)

    def _is_wanted(self, message: Message, now_us: int) -> bool:
        if message.not_before_us > now_us or 0 < message.expires_us <= now_us:
            return False
        return self.selector is None or self.queue.fits(self.selector, message)


def unsettled_from(queue: "Queue", offset: int, limit: int, max_bytes: int) -> list[Found]:
    """See Queue.browse."""
    states = [group.state for group in queue.work_groups()]
    at = max(offset, queue.first_offset)
    found: list[Found] = []
    while len(found) < limit and max_bytes > 0:
        if states:  # step over what all are done with
            at = min([state.settled.next_absent(max(at, state.committed)) for state in states])
        messages = queue.log.read(at, min(limit - len(found), _READ_AT_ONCE), max_bytes)
        if not messages:
            break
        for message in messages:
            if not states or any([at >= s.committed and at not in s.settled for s in states]):
                found.append((at, message))
                max_bytes -= len(message.payload) + len(message.properties)
            at += 1
    return found
