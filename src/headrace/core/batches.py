"""Messages on their way into logs, by the queues that get them. When they go there is line.py's."""

import itertools
from typing import TYPE_CHECKING, Final, final

from headrace.model import Message
from headrace.storage.api import Append

if TYPE_CHECKING:
    from headrace.core.queue import Queue

_numbers: Final = itertools.count(1)


@final
class Batches:
    """The queues in the order in which they got something, and what that is.

    A queue has the number of those that it is in, and its place there: with a message for each of a thousand queues,
    that takes a third of the instructions of a dictionary. One that was put into others meanwhile gets a second place.
    """

    __slots__ = ("_is_counted", "_number", "appends", "may_run_ahead", "queues", "size_bytes")

    def __init__(self) -> None:
        self._number = next(_numbers)
        self.queues: list[Queue] = []
        self.appends: list[Append] = []
        """What each of them gets."""
        self._is_counted = False
        """Whether a queue among them has a limit, and knows what is on its way to it."""
        self.size_bytes = 0
        """That of all payloads."""
        self.may_run_ahead = True
        """Whether all of them, when they got something, allowed that it is delivered before it is synced."""

    def __bool__(self) -> bool:
        return len(self.queues) > 0

    def add(self, queue: "Queue", message: Message) -> None:
        if queue.is_limited:
            self._is_counted = True
        size_bytes = len(message.payload)
        self.size_bytes += size_bytes
        if queue.batches == self._number:
            self.appends[queue.batch].add(message, size_bytes)
        else:
            self._begin(queue, Append("", [message], size_bytes, at=queue.log))

    def add_all(self, queue: "Queue", messages: list[Message], size_bytes: int) -> None:
        """The list belongs to this from now on."""
        self.size_bytes += size_bytes
        if queue.batches == self._number:
            self.appends[queue.batch].extend(messages, size_bytes)
        else:
            self._begin(queue, Append("", messages, size_bytes, at=queue.log))

    def _begin(self, queue: "Queue", append: Append) -> None:
        if not queue.may_run_ahead:
            self.may_run_ahead = False
        queue.batches = self._number
        queue.batch = len(self.queues)
        self.queues.append(queue)
        self.appends.append(append)

    def remove(self, queue: "Queue") -> None:
        """Have nothing for this queue any more."""
        if queue not in self.queues:
            return
        queues, self.queues = self.queues, []
        appends, self.appends = self.appends, []
        self._number = next(_numbers)
        self.size_bytes = 0
        for at, other in enumerate(queues):
            if other is not queue:
                self._begin(other, appends[at])
                self.size_bytes += appends[at].size_bytes

    def unstage(self) -> None:
        """Tell the queues that all of it is in their logs now, or never will be."""
        if self._is_counted:
            for at, queue in enumerate(self.queues):
                queue.unstaged(self.appends[at].messages)
