"""How far behind the readers of a queue are: in messages, and in time. What has been over time is in sampler.py."""

from typing import final

from headrace.core.queue import Queue
from headrace.errors import HeadraceError


def lag_of(queue: Queue) -> int:
    """How many messages the group furthest behind has not finished; 0 where no group ever read."""
    committed = [group.state.committed for group in queue.groups.values()]
    return max(0, queue.log.next_offset - min(committed)) if committed else 0


def oldest_age_ms(queue: Queue, now_us: int) -> int | None:
    """For how long the oldest message that waits has been there; None when none waits, or it cannot be read."""
    head = _oldest(queue)
    since_us = None if head is None else _timestamp_us(queue, head)
    return None if since_us is None else max(0, now_us - since_us) // 1000


@final
class OldestMessage:
    """The oldest message of one queue as time goes by. It is read once: a queue at rest costs no disk anything."""

    __slots__ = ("_offset", "_since_us")

    def __init__(self) -> None:
        self._offset = -1
        self._since_us: int | None = None

    def age_ms(self, queue: Queue, now_us: int) -> int:
        """The same as `oldest_age_ms`, with 0 for None."""
        head = _oldest(queue)
        if head is None:
            return 0
        if head != self._offset:
            self._offset, self._since_us = head, _timestamp_us(queue, head)
        return 0 if self._since_us is None else max(0, now_us - self._since_us) // 1000


def _oldest(queue: Queue) -> int | None:
    if queue.is_gone:
        return None
    head = queue.first_offset if queue.definition.is_stream else queue.head()
    return head if head < queue.log.next_offset else None


def _timestamp_us(queue: Queue, offset: int) -> int | None:
    try:
        return queue.message(offset).timestamp_us
    except HeadraceError:  # damaged, or a store that does not answer
        return None
