"""Readers of streams that keep their own place, without groups, claims or progress; and which of several is active."""

from abc import abstractmethod
from typing import Final, final

from headrace.core.queue.queue import Onlooker, Queue
from headrace.model import Message

_ROUNDS: Final = 8
"""Runs of messages that a reader gets at a time, so that a long backlog does not hold up the event loop."""


class Reader(Onlooker):
    """Reads a stream from any offset on; it takes nothing out and is in nobody's way."""

    def __init__(self, queue: Queue, at: int, most_messages: int, most_bytes: int) -> None:
        self.queue = queue
        self.at = at
        """The offset to read next."""
        self._most_messages = most_messages
        self._most_bytes = most_bytes

    @abstractmethod
    def has_room(self) -> bool:
        """Return whether it takes a run of messages now."""

    @abstractmethod
    def deliver(self, first: int, messages: list[Message]) -> None:
        """Take messages with neighbouring offsets, from `first` on."""

    @abstractmethod
    def wanted(self, messages: list[Message]) -> tuple[int, int]:
        """Return the part of these messages that it wants, as a half-open range; it may be empty."""

    @abstractmethod
    def set_active(self, is_active: bool) -> None:
        """Hear that it is the one of its group that reads, or is to stop: it then calls `ReaderGroup.stepped_down`."""

    def pump(self, now_us: int) -> None:
        for _ in range(_ROUNDS):
            if not self.has_room() or self.at >= self.queue.safe_offset:
                return
            self._read(now_us)
            if self.queue.statistics.is_round_over:
                break
        self.queue.pump_soon()

    def _read(self, now_us: int) -> None:
        """Read one run. It ends before a message that has expired: its neighbours have other offsets."""
        queue = self.queue
        first = max(self.at, queue.first_offset)
        messages = queue.log.read(first, min(self._most_messages, queue.safe_offset - first), self._most_bytes)
        self.at = first + len(messages)
        if queue.definition.message_ttl_ms is not None:
            for index, message in enumerate(messages):
                if queue.is_expired(message, now_us):
                    self.at = first + index + 1
                    messages = messages[:index]
                    break
        start, stop = self.wanted(messages)
        queue.statistics.passed += len(messages) - (stop - start)
        if start < stop:
            queue.statistics.delivered += stop - start
            self.deliver(first + start, messages if stop - start == len(messages) else messages[start:stop])


ALONE: Final = -1
"""The place of a stream that is in no super stream."""


@final
class ReaderGroup:
    """Readers of one stream of which one at a time is active.

    In a super stream, each partition is read by another one of them as far as there are enough.
    """

    def __init__(self, partition: int) -> None:
        self._partition = partition
        """The place of the stream in its super stream, or ALONE."""
        self._members: list[Reader] = []
        self._active: Reader | None = None
        self._is_stepping_down = False
        """True while the active reader is asked to stop."""

    @property
    def is_empty(self) -> bool:
        return not self._members

    def is_active(self, reader: Reader) -> bool:
        return self._active is reader

    def join(self, reader: Reader) -> None:
        self._members.append(reader)
        self._update()

    def leave(self, reader: Reader) -> None:
        """Remove a member; another one becomes active if it was."""
        if reader not in self._members:
            return
        self._members.remove(reader)
        if reader is self._active:
            self._active = None
            self._is_stepping_down = False
        self._update()

    def stepped_down(self, reader: Reader) -> None:
        """Hear that the active reader has stopped as it was asked to."""
        if reader is self._active and self._is_stepping_down:
            self._active = None
            self._is_stepping_down = False
            self._update()

    def _update(self) -> None:
        """Make the right member active; the former one stops first."""
        members = self._members
        if not members:
            return
        wanted = self._active or members[0]
        if self._partition != ALONE:
            wanted = members[self._partition % len(members)]
        if self._active is None:
            self._active = wanted
            wanted.set_active(True)
        elif self._active is not wanted and not self._is_stepping_down:
            self._is_stepping_down = True
            self._active.set_active(False)


@final
class ReaderGroups:
    """The groups of one virtual host, by stream and name."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], ReaderGroup] = {}

    def join(self, reader: Reader, name: str, partition: int) -> ReaderGroup:
        """Make a reader a member of the group of that name."""
        group = self._groups.setdefault((reader.queue.name, name), ReaderGroup(partition))
        group.join(reader)
        return group

    def leave(self, reader: Reader, name: str) -> None:
        place = (reader.queue.name, name)
        group = self._groups.get(place)
        if group is not None:
            group.leave(reader)
            if group.is_empty:
                del self._groups[place]
