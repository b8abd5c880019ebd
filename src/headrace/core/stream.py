"""A stream group: a cursor over a log that keeps everything. No claims, no retries: see group.py for those."""

from typing import TYPE_CHECKING, Final, final

from headrace.core.delivery import Consumer, Delivery
from headrace.core.group import ACK, REJECT, Group
from headrace.core.turn import Turn
from headrace.errors import Refused
from headrace.storage.group_state import GroupState

if TYPE_CHECKING:
    from headrace.core.queue import Queue

AUTO_COMMIT_US: Final = 5_000_000
_READ: Final = 256

# Where a stream is read from.
RESUME: Final = "resume"
FIRST: Final = "first"
NEXT: Final = "next"


@final
class StreamGroup(Group):
    """Readers that share a cursor; how far they are is committed as they acknowledge, or every few seconds."""

    def __init__(self, queue: "Queue", state: GroupState, auto_commit: bool = True) -> None:
        super().__init__(queue, state)
        self.auto_commit = auto_commit
        state.cursor = max(state.committed, queue.first_offset)  # what was read and not committed is read again
        self._commit_at_us = 0

    @property
    def ready(self) -> int:
        return max(0, self.queue.log.next_offset - self.state.cursor)

    @property
    def unsettled(self) -> int:
        return sum(len(consumer.held) for consumer in self.consumers)

    def pump(self, turn: Turn, now_us: int) -> None:
        log = self.queue.log
        while self.state.cursor < log.next_offset:
            consumer, room = self.consumers.next()
            if consumer is None:
                return
            given = self._give(consumer, min(room, _READ), now_us)
            if given:
                if self.auto_commit and not self._commit_at_us:
                    self._commit_at_us = now_us + AUTO_COMMIT_US
                    self.queue.wake_at(self._commit_at_us)
                consumer.deliver(given)

    def _give(self, consumer: Consumer, room: int, now_us: int) -> list[Delivery]:
        state = self.state
        state.cursor = max(state.cursor, self.queue.first_offset)
        given: list[Delivery] = []
        for message in self.queue.log.read(state.cursor, room):
            offset = state.cursor
            state.cursor += 1
            if message.expires_us and message.expires_us <= now_us:
                continue
            if self.filter is not None and not self.filter.matches(self.queue.key_of(message)):
                continue
            given.append(Delivery(self, consumer, offset, message, 1, False))
            if not consumer.auto_ack:
                consumer.take(offset)
        return given

    def settle(self, turn: Turn, consumer: Consumer, offset: int, outcome: int, now_us: int) -> None:
        if offset not in consumer.held:
            raise Refused(f"offset {offset} of {self.queue.name!r} is not with consumer {consumer.name!r}")
        consumer.release(offset)
        if outcome in (ACK, REJECT) and self.auto_commit:
            self._checkpoint(turn)

    def commit(self, turn: Turn, offset: int) -> None:
        """Everything below `offset` is processed. Raises Refused above the cursor."""
        if offset > self.state.cursor:
            raise Refused(
                f"offset {offset} of {self.queue.name!r} cannot be committed: group {self.name!r} has read to "
                f"{self.state.cursor}"
            )
        self._commit(turn, offset)

    def seek(self, turn: Turn, offset: int) -> None:
        """Go on reading at `offset`, within what there is."""
        log = self.queue.log
        offset = min(max(offset, self.queue.first_offset), log.next_offset)
        commit = turn.commit_for(self.queue)
        commit.seek(log.name, self.name, offset)
        if offset > self.state.committed:
            commit.commit_offset(log.name, self.name, offset)
        for step in commit.steps[-2:]:
            if step.group == self.name and step.log == log.name and step.start == offset:
                self.state.apply(step)

    def leave(self, turn: Turn, consumer: Consumer, now_us: int) -> None:
        """What it had not acknowledged is read again by whoever reads on."""
        held = min(consumer.held, default=self.state.cursor)
        self.consumers.leave(consumer)
        consumer.group = None
        for offset in list(consumer.held):
            consumer.release(offset)
        if held < self.state.cursor:
            self.state.cursor = max(held, self.queue.first_offset)
        if self.auto_commit:
            self._checkpoint(turn)

    def on_time(self, turn: Turn, now_us: int) -> None:
        if self._commit_at_us and self._commit_at_us <= now_us:
            self._commit_at_us = 0
            self._checkpoint(turn)

    def next_due_us(self) -> int:
        return self._commit_at_us

    def on_truncated(self, turn: Turn, first: int) -> None:
        if self.state.committed < first:
            self._commit(turn, first)

    def _checkpoint(self, turn: Turn) -> None:
        """Commit up to the oldest message that a reader still holds."""
        safe = self.state.cursor
        for consumer in self.consumers:
            safe = min(safe, min(consumer.held, default=safe))
        if safe > self.state.committed:
            self._commit(turn, safe)

    def _commit(self, turn: Turn, offset: int) -> None:
        commit = turn.commit_for(self.queue)
        commit.commit_offset(self.queue.log.name, self.name, offset)
        self.state.apply(commit.steps[-1])


def parse_position(value: object) -> tuple[str, int]:
    """What `x-stream-offset` asks for: (resume|first|next, 0), ("offset", n) or ("timestamp", microseconds).

    Raises Refused when it is none of the forms.
    """
    if value is None or value == "":
        return RESUME, 0
    if isinstance(value, bool):
        raise _bad_position(value)
    if isinstance(value, int):
        return _offset(value, value)
    if not isinstance(value, str):
        raise _bad_position(value)
    if value in ("first", "earliest"):
        return FIRST, 0
    if value in ("last", "next", "latest"):
        return NEXT, 0
    form, equals, number = value.partition("=")
    digits = number if equals else form
    if not (digits.isascii() and digits.isdecimal()) or (equals and form not in ("offset", "timestamp")):
        raise _bad_position(value)
    if form == "timestamp":
        time = int(digits)
        return "timestamp", time * 1000 if time > 10**12 else time * 1_000_000
    return _offset(int(digits), value)


def _offset(offset: int, value: object) -> tuple[str, int]:
    if not 0 <= offset < 1 << 63:
        raise _bad_position(value)
    return "offset", offset


def _bad_position(value: object) -> Refused:
    return Refused(
        f"stream offset {value!r} is none of: first, last, next, a number, offset=<number>, timestamp=<unix time>"
    )
