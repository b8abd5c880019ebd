"""How much waits in a queue, held against its limits. What is done about it is in disposal.py and entry.py.

Only what waits for a consumer counts, as RabbitMQ has it; what was accepted and is not stored yet counts too.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, final

from headrace.core.definition import QueueDefinition
from headrace.model import Message

if TYPE_CHECKING:
    from headrace.core.queue import Queue

_READ: Final = 4096


@final
class Depth:
    """The length of one queue in messages and, where that has a limit, in bytes."""

    def __init__(self, queue: "Queue") -> None:
        self._queue = queue
        self._max_length: int | None = None
        self._max_bytes: int | None = None
        self.is_limited = False
        self._staged = 0
        self._staged_bytes = 0
        self._bytes = 0
        """Payload bytes that some group is not done with; kept only where they have a limit."""
        self.limit(queue.definition)

    def limit(self, definition: QueueDefinition) -> None:
        """Hold the queue to the limits of this definition from now on; `count` must follow once there are messages."""
        self._max_length = definition.max_length
        self._max_bytes = definition.max_length_bytes
        self.is_limited = self._max_length is not None or self._max_bytes is not None
        self._staged = self._staged_bytes = 0

    def stage(self, message: Message) -> None:
        self._staged += 1
        self._staged_bytes += len(message.payload)

    def stage_many(self, count: int, size_bytes: int) -> None:
        self._staged += count
        self._staged_bytes += size_bytes

    def is_full_for(self, count: int, size_bytes: int) -> bool:
        """Whether the queue would have more than it may if it took so many messages."""
        limit, max_bytes = self._max_length, self._max_bytes
        if limit is not None and self._queue.messages + self._staged + count - self._room() > limit:
            return True
        if max_bytes is None:
            return False
        return self._bytes - self._held_bytes() + self._staged_bytes + size_bytes > max_bytes

    def unstage(self, messages: list[Message]) -> None:
        # What was on its way when the limits changed was never counted.
        self._staged = max(0, self._staged - len(messages))
        self._staged_bytes = max(0, self._staged_bytes - sum([len(message.payload) for message in messages]))

    def is_full(self, message: Message) -> bool:
        """Whether the queue would have more than it may if it took this message."""
        limit, max_bytes = self._max_length, self._max_bytes
        if limit is not None and self._queue.messages + self._staged >= limit:
            # What a consumer takes as soon as it is stored never waits.
            return self._queue.messages + self._staged - self._room() >= limit
        if max_bytes is None or self._bytes + self._staged_bytes + len(message.payload) <= max_bytes:
            return False
        return self._bytes - self._held_bytes() + self._staged_bytes + len(message.payload) > max_bytes

    def surplus(self) -> Iterator[int]:
        """The oldest waiting message, as long as there are too many; whoever asks for the next one dropped the last."""
        held_bytes = -1
        while True:
            too_many = self._max_length is not None and self._queue.messages > self._max_length
            if not too_many:
                if self._max_bytes is None or self._bytes <= self._max_bytes:
                    return
                held_bytes = self._held_bytes() if held_bytes < 0 else held_bytes
                if self._bytes - held_bytes <= self._max_bytes:
                    return
            offset = self._queue.head()
            if offset >= self._queue.log.next_offset:
                return
            yield offset

    def loss(self, definition: QueueDefinition) -> int:
        """How many of the oldest messages would have to go if these were the limits."""
        count, max_bytes = 0, definition.max_length_bytes
        if definition.max_length is not None:
            count = max(0, self._queue.messages - definition.max_length)
        if max_bytes is None:
            return count
        size, offset, dropped = self._count(), self._queue.head(), 0
        while size > max_bytes and offset < self._queue.log.next_offset:
            for message in self._queue.log.read(offset, _READ):
                offset += 1
                if size > max_bytes:
                    size -= len(message.payload)
                    dropped += 1
        return max(count, dropped)

    # -- bytes -------------------------------------------------------------------------------------------------------

    def add(self, size_bytes: int) -> None:
        """Payloads of this size are in the log now."""
        if self._max_bytes is not None:
            self._bytes += size_bytes

    @property
    def counts_bytes(self) -> bool:
        """Whether it must be told of each message that is settled."""
        return self._max_bytes is not None

    def settled(self, message: Message) -> None:
        """The only group, if there is only one, is done with a message."""
        if self._max_bytes is not None and len(self._queue.work_groups()) == 1:
            self._bytes -= len(message.payload)

    def truncating(self, first: int, before: int) -> None:
        """These are about to leave the log. With several groups, or none, that is when they stop to count."""
        if self._max_bytes is not None and len(self._queue.work_groups()) != 1:
            self._bytes -= self._sum(first, before)

    def count(self) -> None:
        """Count anew: after a start, or when groups came or went."""
        if self._max_bytes is None:
            return
        self._bytes = self._count()

    def _count(self) -> int:
        queue = self._queue
        size = self._sum(queue.first_offset, queue.log.next_offset)
        groups = queue.work_groups()
        if len(groups) == 1:
            state = groups[0].state
            size -= self._sum(queue.first_offset, state.committed)
            size -= sum([self._sum(start, stop) for start, stop in state.settled])
        return size

    def _sum(self, start: int, stop: int) -> int:
        total = 0
        while start < stop and (messages := self._queue.log.read(start, min(stop - start, _READ))):
            total += sum([len(message.payload) for message in messages])
            start += len(messages)
        return total

    def _held_bytes(self) -> int:
        """What is with consumers, in the group in which that is least."""
        sizes: list[int] = []
        for group in self._queue.work_groups():
            held = [offset for consumer in group.consumers for offset in consumer.held()]
            sizes.append(sum([len(self._queue.message(offset).payload) for offset in held]))
        return min(sizes, default=0)

    def _room(self) -> int:
        """How many messages the consumers could take now, in the group in which that is least."""
        rooms = [sum([max(0, consumer.room) for consumer in group.consumers]) for group in self._queue.groups.values()]
        return min(rooms, default=0)
