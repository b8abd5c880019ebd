"""What lies before a work group: what came back, what is new, in which order. Who gets it is group.py's and work.py's.

The group has the state, for most messages are delivered without a look at what is here; these are its questions.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from headrace.core.dead_letter import DELIVERY_LIMIT, EXPIRED
from headrace.core.group import FILTERED_AT_ONCE, Found
from headrace.core.retry import DEAD, next_attempt_us
from headrace.core.turn import Turn
from headrace.core.waiting import NONE
from headrace.errors import Unavailable
from headrace.model import Message

if TYPE_CHECKING:
    from headrace.core.work import WorkGroup

_INDEXED_AT_ONCE: Final = 4096


def next_messages(group: "WorkGroup", turn: Turn, room: int, now_us: int) -> list[Found]:
    """Up to `room` messages that may be delivered now: none only after passing over what may not."""
    if group.waiting.next_due_us <= now_us:
        group.waiting.end_delays(now_us)
    if group.levels > 1:
        _index_new(group)
    found = _returned(group, turn, room, now_us) if group.waiting.has_ready else []
    if len(found) < room:
        try:
            found += _fresh(group, turn, room - len(found), now_us)
        except Unavailable:
            if not found:
                raise
    return found


def admit(group: "WorkGroup", turn: Turn, offset: int, message: Message, now_us: int) -> bool:
    """Whether a message that is not due later may be delivered; if not, it is dealt with."""
    if group.filter is not None and not group.filter.matches(group.queue.key_of(message)):
        group.skip(turn, [(offset, message)])
        return False
    return _admit(group, turn, offset, message, now_us)


def delayed_until(group: "WorkGroup", offset: int) -> int:
    """Until when a message that came back must wait; 0 for not at all."""
    entry = group.state.pending.get(offset)
    return entry.due_us if entry is not None and not entry.consumer else 0


def oldest_waiting(group: "WorkGroup") -> int:
    """The oldest offset that waits for a consumer, delayed ones too, or the end of the log."""
    state, end = group.state, group.queue.log.next_offset
    fresh = min(state.settled.next_absent(max(state.cursor, state.committed)), end)
    while fresh < group.passed and fresh in group.leases:
        fresh = min(state.settled.next_absent(fresh + 1), end)
    low = group.waiting.lowest(group.is_waiting)
    return fresh if low == NONE else min(low, fresh)


def restore_backlog(group: "WorkGroup") -> None:
    """After a restart nobody holds anything: what was claimed or passed over is ready or delayed again."""
    state = group.state
    if state.committed == state.cursor and not state.has_pending:
        return
    passed: list[int] = []
    for start, stop in _passed(group):
        if group.levels > 1:
            _index(group, start, stop)
        else:
            passed += [offset for offset in range(start, stop) if not delayed_until(group, offset)]
    if passed:
        group.own_waiting().add_all(passed)
    for offset, entry in state.pending.items():
        if delayed_until(group, offset):
            level = group.level(group.queue.message(offset)) if group.levels > 1 else 0
            group.own_waiting().delay(offset, entry.due_us, level)
            group.queue.wake_at(entry.due_us)


# -- what came back ----------------------------------------------------------------------------------------------------


def _returned(group: "WorkGroup", turn: Turn, room: int, now_us: int) -> list[Found]:
    """What came back, or all that waits where priorities count: the most urgent first, then the oldest."""
    waiting, state = group.waiting, group.state
    found: list[Found] = []
    looks = room + FILTERED_AT_ONCE
    while len(found) < room and looks > 0 and (run := waiting.pop_run(room - len(found))):
        looks -= len(run)
        start = max(run.start, state.committed)
        waiting.pass_over(run.start, min(start, run.stop))
        if start >= run.stop:
            continue
        try:
            messages = group.queue.log.read(start, run.stop - start)
        except Unavailable:
            waiting.add_all(run, group.levels - 1)  # they were the most urgent, and are so still
            if found:
                return found
            raise
        for offset, message in enumerate(messages, start):
            is_open = offset not in state.settled and not waiting.was_picked(offset)
            if is_open and _admit(group, turn, offset, message, now_us):
                found.append((offset, message))
    return found


def _index_new(group: "WorkGroup") -> None:
    """Sort what was published since by its priorities."""
    state = group.state
    start, state.cursor = max(state.cursor, state.committed), group.queue.log.next_offset
    _index(group, start, state.cursor)


def _index(group: "WorkGroup", start: int, stop: int) -> None:
    state = group.state
    while start < stop:
        for message in group.queue.log.read(start, min(stop - start, _INDEXED_AT_ONCE)):
            is_picked = start < group.passed and (start in group.leases or start in state.pending)
            if start not in state.settled and not delayed_until(group, start) and not is_picked:
                group.own_waiting().add(start, group.level(message))
            start += 1


def _passed(group: "WorkGroup") -> Iterator[tuple[int, int]]:
    """The ranges of offsets below the cursor that are not settled."""
    state = group.state
    at = state.committed
    for start, stop in [*state.settled, (state.cursor, state.cursor)]:
        if at < min(start, state.cursor):
            yield at, min(start, state.cursor)
        at = max(at, stop)


# -- what is new -------------------------------------------------------------------------------------------------------


def _fresh(group: "WorkGroup", turn: Turn, room: int, now_us: int) -> list[Found]:
    """What was never delivered, from the cursor on."""
    found: list[Found] = []
    state = group.state
    state.cursor = state.settled.next_absent(max(state.cursor, state.committed))
    if state.cursor >= group.queue.log.next_offset:
        return found
    skipped: list[Found] = []
    most = room if group.filter is None else max(room, FILTERED_AT_ONCE)
    messages = group.queue.log.read(state.cursor, most)
    if group.is_plain() and not any([message.expires_us or message.not_before_us for message in messages]):
        found = list(enumerate(messages, state.cursor))
        state.cursor += len(messages)
        return found
    for message in messages:
        offset = state.cursor
        state.cursor += 1
        if state.settled and offset in state.settled:
            continue
        if offset < group.passed and (offset in group.leases or offset in state.pending):
            continue  # picked by a consumer with a selector, and perhaps given back since
        if group.filter is not None and not group.filter.matches(group.queue.key_of(message)):
            skipped.append((offset, message))
        elif _admit(group, turn, offset, message, now_us):
            found.append((offset, message))
            if len(found) == room:
                break
    if skipped:
        group.skip(turn, skipped)
    return found


def _admit(group: "WorkGroup", turn: Turn, offset: int, message: Message, now_us: int) -> bool:
    """Whether this message may be delivered now; if not, see to it that it is dealt with."""
    queue = group.queue
    if message.expires_us and message.expires_us <= now_us:
        queue.disposal.give_up(turn, offset, message, EXPIRED, now_us)
        return False
    if message.not_before_us > now_us:
        group.own_waiting().delay(offset, message.not_before_us, group.level(message))
        queue.wake_at(message.not_before_us)
        return False
    if group.levels > 1 and group.filter is not None and not group.filter.matches(queue.key_of(message)):
        group.skip(turn, [(offset, message)])
        return False
    entry = group.state.pending.get(offset)
    if entry is not None and next_attempt_us(queue.definition, entry.attempts, False, now_us) == DEAD:
        group.bury(turn, offset, message, entry.attempts, DELIVERY_LIMIT, now_us)  # its last try was cut short
        return False
    return True
