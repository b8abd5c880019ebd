"""What enters a queue: held against its limits, given a time to live, staged; and what follows once it is in the log.

Which queue a message is for is publishing.py's. A queue without limits takes most messages without a look at what is
here: see `Queue.takes_all` and `Queue.appended`.
"""

from typing import TYPE_CHECKING

from headrace.core.dead_letter import MAXLEN
from headrace.core.definition import DROP_HEAD, REJECT_PUBLISH_DLX
from headrace.core.retention import is_over
from headrace.core.turn import Turn
from headrace.core.upkeep import expire, try_again
from headrace.errors import Corrupt, HeadraceError, Refused, TooLarge, Unavailable
from headrace.model import Message
from headrace.storage.api import Encoded

if TYPE_CHECKING:
    from headrace.core.queue import Queue


def accept(queue: "Queue", turn: Turn, message: Message, now_us: int) -> None:
    """Stage a message for the log. Raises Refused when the queue's limits forbid it, Corrupt when it is damaged."""
    definition, depth = queue.definition, queue.depth
    if queue.refusal is not None or len(message.payload) > definition.max_message_bytes:
        raise _refusal(queue, len(message.payload))
    if depth.is_limited:
        if definition.overflow != DROP_HEAD and depth.is_full(message):
            if definition.overflow == REJECT_PUBLISH_DLX:
                queue.dead_letter(turn, message, "", queue.log.next_offset, 0, MAXLEN, now_us)
            raise Refused(f"queue {queue.name!r} is full: it holds {queue.messages} messages and takes no more")
        depth.stage(message)
    turn.publish(queue, message if definition.message_ttl_ms is None else stamped(queue, message, now_us))


def accept_encoded(queue: "Queue", turn: Turn, rows: Encoded, now_us: int) -> None:
    """The same for many messages at once, of which all are taken or none."""
    definition, depth = queue.definition, queue.depth
    if queue.refusal is not None or rows.largest_bytes > definition.max_message_bytes:
        raise _refusal(queue, rows.largest_bytes)
    if depth.is_limited:
        if definition.overflow != DROP_HEAD and depth.is_full_for(rows.count, rows.payload_bytes):
            raise Refused(
                f"queue {queue.name!r} has no room for {rows.count} messages: it holds {queue.messages} of them"
            )
        depth.stage_many(rows.count, rows.payload_bytes)
    ttl_ms = definition.message_ttl_ms
    turn.publish_encoded(queue, rows if ttl_ms is None else rows.expiring(ttl_ms * 1000, now_us))


def takes(queue: "Queue", message: Message) -> bool:
    """Whether there is room for a message that can wait; if there is, it is on its way, and if not, it is offered
    room as soon as there is."""
    depth = queue.depth
    if depth.is_limited:
        if queue.definition.overflow != DROP_HEAD and depth.is_full(message):
            queue.awaited_bytes = len(message.payload)
            return False
        depth.stage(message)
    return True


def offer_room(queue: "Queue") -> None:
    """A message waits for room in the stream from which the queue is filled: say so if there is some now."""
    try:
        is_full = queue.depth.is_full_for(1, queue.awaited_bytes)
    except Corrupt as error:
        queue.refuse(error)
        return
    except Unavailable:
        return  # it is looked at again when something is delivered
    if not is_full:
        queue.awaited_bytes = -1
        queue.around.has_room(queue)


def stamped(queue: "Queue", message: Message, now_us: int) -> Message:
    """The message with this queue's time to live, where that ends before its own.

    For one that is to be delivered later, the time to live begins then.
    """
    ttl_ms = queue.definition.message_ttl_ms
    if ttl_ms is None:
        return message
    expires_us = max(now_us, message.not_before_us) + ttl_ms * 1000
    if message.expires_us and message.expires_us <= expires_us:
        return message
    return Message(
        message.source,
        message.payload,
        message.timestamp_us,
        message.properties,
        message.priority,
        expires_us,
        message.not_before_us,
    )


def entered(queue: "Queue", turn: Turn, first_expiry_us: int, size_bytes: int, now_us: int) -> None:
    """Messages are in the log now: hold the queue to its limits, which may be for them to go again."""
    try:
        if first_expiry_us:
            _expect(queue, turn, first_expiry_us, now_us)
        if queue.depth.is_limited:
            queue.depth.add(size_bytes)
            queue.pump(turn, now_us)  # what goes out at once does not count
            queue.disposal.drop_surplus(turn, now_us)
        queue.grown()
        if queue.is_stream and is_over(queue.log, queue.definition.retention):
            queue.disposal.retain(turn, now_us)
    except Corrupt as error:
        queue.refuse(error)
    except Unavailable:
        try_again(queue, now_us)


def entered_encoded(queue: "Queue", turn: Turn, rows: list[Encoded], now_us: int) -> None:
    """The same for what was published in bulk."""
    first_expiry_us = min([each.first_expiry_us for each in rows if each.first_expiry_us], default=0)
    entered(queue, turn, first_expiry_us, sum([each.payload_bytes for each in rows]), now_us)


def _refusal(queue: "Queue", size_bytes: int) -> HeadraceError:
    """Why the queue does not take a message of this size: it is damaged, or that is too large."""
    if queue.refusal is not None:
        return queue.refusal
    return TooLarge(
        f"a message of {size_bytes} bytes is too large for queue {queue.name!r}: "
        f"{queue.definition.max_message_bytes} at most"
    )


def _expect(queue: "Queue", turn: Turn, expires_us: int, now_us: int) -> None:
    if expires_us > now_us:
        queue.wake_at(expires_us)
        return
    # RabbitMQ's rule for a time to live of 0: now to a consumer that waits, or never. Its time was up while it
    # was being stored, so the consumers are asked as of the last moment before.
    queue.pump(turn, expires_us - 1)
    expire(queue, turn, now_us)
