"""What a queue does in time, and when: expiry, retention, its own end. Which queues are due is in timers.py."""

from typing import TYPE_CHECKING, Final

from headrace.core.turn import Turn
from headrace.errors import Corrupt, Unavailable

if TYPE_CHECKING:
    from headrace.core.queue import Queue

RETENTION_US: Final = 300_000_000
_AGAIN_US: Final = 1_000_000
_EXPIRED_AT_ONCE: Final = 1000
"""How many expired messages are seen to in one turn: a backlog that ran out all at once must not be one huge commit."""


def see_to(queue: "Queue", turn: Turn, now_us: int) -> None:
    """Do what has come due: leases, delays, expiry, retention, the end of an unused queue."""
    lifetime_us = queue.definition.lifetime_ms * 1000
    if lifetime_us and not queue.consumers and now_us >= queue.used_us + lifetime_us:
        queue.around.drop(queue)
        return
    if queue.is_gone:
        return
    try:
        for group in list(queue.groups.values()):
            group.on_time(turn, now_us)
        expire(queue, turn, now_us)
        if queue.retention_at_us and queue.retention_at_us <= now_us:
            queue.retention_at_us = 0
            queue.disposal.retain(turn, now_us)
    except Corrupt as error:
        queue.refuse(error)
    except Unavailable:
        try_again(queue, now_us)
    if queue.is_stalled:
        queue.is_stalled = False
        queue.pump_soon()
    plan(queue, now_us)


def try_again(queue: "Queue", now_us: int) -> None:
    """Messages cannot be read now: deliver later."""
    queue.is_stalled = True
    queue.wake_at(now_us + _AGAIN_US)


def expire(queue: "Queue", turn: Turn, now_us: int) -> None:
    """Give up what expired among the oldest, as many as a turn has room for."""
    queue.is_overdue = False
    if queue.definition.is_stream:
        return
    again_us = queue.disposal.expire_head(turn, now_us, _EXPIRED_AT_ONCE)
    if again_us > now_us:
        queue.wake_at(again_us)
    elif again_us:
        queue.is_overdue = True
        queue.pump_soon()


def plan(queue: "Queue", now_us: int) -> None:
    """Ask to be woken for whatever comes next."""
    for group in queue.groups.values():
        due_us = group.next_due_us()
        if due_us:
            queue.wake_at(due_us)
    lifetime_ms = queue.definition.lifetime_ms
    if lifetime_ms and not queue.consumers:
        queue.wake_at(queue.used_us + lifetime_ms * 1000)
    if queue.definition.is_stream and queue.definition.retention.max_age_ms:
        queue.retention_at_us = queue.retention_at_us or now_us + RETENTION_US
        queue.wake_at(queue.retention_at_us)
