"""Messages that consumers ask for, by number or by offset, and hold on to. What they are dealt is in group.py.

Whoever asks need not be a member of the group, and has the room that it says.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.core.backlog import admit, delayed_until, next_messages
from headrace.core.delivery import Consumer, Delivery
from headrace.core.group import Found
from headrace.core.turn import Turn
from headrace.errors import AccessRefused

if TYPE_CHECKING:
    from headrace.core.work import WorkGroup


def take_one(group: "WorkGroup", turn: Turn, consumer: Consumer, now_us: int) -> Delivery | None:
    """One message for a consumer that asks for one, whatever its credit.

    Raises AccessRefused when another consumer has the queue for itself.
    """
    _check_exclusive(group, consumer)
    if group.is_paused:
        return None
    while True:
        found = next_messages(group, turn, 1, now_us)
        if found:
            consumer.take([found[0][0]])
            given = group.claim(turn, consumer, found, now_us)
            if consumer.auto_ack:
                group.finish(turn, given, now_us)
            return given[0]
        if not group.has_more():
            return None


def take_many(
    group: "WorkGroup", turn: Turn, consumer: Consumer, most: int, before: int, now_us: int
) -> list[Delivery]:
    """Up to `most` messages from below the offset `before` for a consumer that asks for them, none when none waits.

    Raises AccessRefused when another consumer has the queue for itself.
    """
    _check_exclusive(group, consumer)
    most = min(most, group.max_pending - group.unsettled)
    while most > 0 and not group.is_paused:
        found = next_messages(group, turn, most, now_us)
        beyond = [each for each in found if each[0] >= before]
        if beyond:
            group.put_back(beyond)
            found = [each for each in found if each[0] < before]
        if found:
            consumer.take([offset for offset, _ in found])
            return group.claim(turn, consumer, found, now_us)
        if beyond or not group.has_more():
            break
    return []


def take_these(group: "WorkGroup", turn: Turn, consumer: Consumer, offsets: Sequence[int], now_us: int) -> list[int]:
    """Have a consumer hold those of these messages, in order of offset, that wait; returns which.

    Raises AccessRefused when another consumer has the queue for itself.
    """
    _check_exclusive(group, consumer)
    found: list[Found] = []
    for offset in offsets:
        if offset < group.queue.log.next_offset and group.is_waiting(offset):
            message = group.queue.message(offset)
            is_due = max(message.not_before_us, delayed_until(group, offset)) <= now_us
            if is_due and admit(group, turn, offset, message, now_us):
                found.append((offset, message))
    if found:
        group.passed = max(group.passed, found[-1][0] + 1)
        group.give(turn, consumer, found, now_us)
    return [offset for offset, _ in found]


def renew_these(group: "WorkGroup", consumer: Consumer, offsets: Sequence[int], due_us: int) -> list[int]:
    """Give a consumer until `due_us` for those of these messages that it holds; returns which."""
    leases = group.leases
    held = [lease for offset in offsets if (lease := leases.get(offset)) and lease.consumer is consumer]
    if held:
        leases.renew(held, due_us)
        group.queue.wake_at(due_us)
    return [lease.offset for lease in held]


def finish_waiting(group: "WorkGroup", turn: Turn, offset: int, now_us: int) -> bool:
    """Be done with a message that waits in line and that somebody, whose claim ran out, says is done."""
    queue = group.queue
    if offset >= queue.log.next_offset or not group.is_waiting(offset):
        return False
    entry = group.state.pending.get(offset)
    attempts = entry.attempts if entry is not None else 0
    group.finish_one(turn, offset, queue.message(offset), attempts, now_us)
    return True


def pass_on(group: "WorkGroup", holder: Consumer, offset: int, to: Consumer, due_us: int) -> Delivery:
    """Let another consumer hold this until `due_us`. Raises Refused when the one said to hold it does not."""
    held = group.held_by(holder, offset)
    holder.release(offset)
    to.take([offset])
    to.allowance += 1  # it is passed on, not delivered
    passed = Delivery(group, to, offset, held.message, held.attempts, held.redelivered)
    passed.is_claimed = held.is_claimed
    passed.notes = held.notes
    group.leases.renew([passed], due_us)
    group.queue.wake_at(due_us)
    return passed


def reclaim(group: "WorkGroup", consumer: Consumer, now_us: int) -> list[Delivery]:
    """Have a consumer hold again what was claimed under its name before a restart; as the same attempt."""
    queue, pending = group.queue, group.state.pending
    due_us = now_us + (consumer.lease_us or queue.lease_us)
    held: list[Delivery] = []
    for offset in sorted([offset for offset, entry in pending.items() if entry.consumer == consumer.name]):
        message = queue.message(offset)
        if group.is_waiting(offset) and not 0 < message.expires_us <= now_us:
            attempts = pending.pop(offset).attempts
            group.own_waiting().pick(offset)
            delivery = Delivery(group, consumer, offset, message, attempts, attempts > 1)
            delivery.is_claimed = True
            held.append(delivery)
    if held:
        group.passed = max(group.passed, held[-1].offset + 1)
        consumer.take([delivery.offset for delivery in held])
        consumer.group = group
        group.leases.give(held, due_us)
        queue.wake_at(due_us)
    return held


def _check_exclusive(group: "WorkGroup", consumer: Consumer) -> None:
    if group.consumers.exclusive and consumer.turns is not group.consumers:
        raise AccessRefused(f"queue {group.queue.name!r} is in exclusive use by a consumer")
