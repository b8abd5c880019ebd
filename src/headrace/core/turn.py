"""One turn of the broker: what was staged since the last one, committed together. No decisions.

Publishes, settlements and dead letters of one turn of the event loop become one commit per engine. Durable logs and
memory logs are in different engines; the memory commit follows once the durable one is safe.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, final

from headrace.errors import HeadraceError
from headrace.model import Message
from headrace.storage.api import Commit

if TYPE_CHECKING:
    from headrace.core.queue import Queue

Confirm = Callable[[HeadraceError | None], None]


@final
class Turn:
    """Changes that go into the logs together. What clients publish may fail; what is moved or settled is retried."""

    __slots__ = ("confirms", "durable", "is_barrier", "memory", "moved", "published", "touched")

    def __init__(self) -> None:
        self.durable = Commit()
        self.memory = Commit()
        self.published: dict[Queue, list[Message]] = {}
        self.moved: dict[Queue, list[Message]] = {}
        """Dead letters and the like: they must arrive if the settlement that goes with them does."""
        self.confirms: list[Confirm] = []
        self.is_barrier = False
        """Whether it must go through storage even when it is empty, because somebody waits for all before it."""
        self.touched: set[Queue] = set()
        """Queues in which something was settled: their logs may have become shorter."""

    def commit_for(self, queue: "Queue") -> Commit:
        """Where the steps of this queue's groups go."""
        return self.durable if queue.durable else self.memory

    def publish(self, queue: "Queue", message: Message) -> None:
        messages = self.published.get(queue)
        if messages is None:
            self.published[queue] = [message]
        else:
            messages.append(message)

    def move(self, queue: "Queue", message: Message) -> None:
        self.moved.setdefault(queue, []).append(message)

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for this to be safe. Nobody waits for settlements: they are safe within a second."""
        return bool(self.confirms or self.durable.puts or self.durable.drops)

    def absorb(self, failed: "Turn") -> None:
        """Take over what a turn that could not be written must not lose: everything but what clients published."""
        for queue, messages in failed.moved.items():
            self.moved.setdefault(queue, [])[:0] = messages
        self.durable.steps[:0] = failed.durable.steps
        for key, value in failed.durable.puts.items():
            self.durable.puts.setdefault(key, value)
        self.durable.drops[:0] = failed.durable.drops
        self.touched |= failed.touched
