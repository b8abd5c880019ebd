"""Who gets the next message: consumers, their credit, and fair turns among them. No logs, no offsets moved here."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, final

from headrace.errors import AccessRefused
from headrace.model import Message

if TYPE_CHECKING:
    from headrace.core.group import Group

UNLIMITED: Final = 1 << 60


@final
class Credit:
    """How many unsettled messages one consumer, or all consumers of a channel together, may hold."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int = 0) -> None:
        """0 means as many as there are."""
        self.limit = limit or UNLIMITED
        self.used = 0

    @property
    def left(self) -> int:
        return self.limit - self.used


@final
class Delivery:
    """One message on its way to one consumer."""

    __slots__ = ("attempts", "consumer", "group", "message", "offset", "redelivered")

    def __init__(
        self, group: "Group", consumer: "Consumer", offset: int, message: Message, attempts: int, redelivered: bool
    ) -> None:
        self.group = group
        self.consumer = consumer
        self.offset = offset
        self.message = message
        self.attempts = attempts
        self.redelivered = redelivered


Deliver = Callable[[list[Delivery]], None]


@final
class Consumer:
    """A member of a group. `deliver` is called with what it gets, never from within a call it made."""

    __slots__ = (
        "auto_ack",
        "cancelled",
        "credit",
        "deliver",
        "group",
        "held",
        "lease_us",
        "name",
        "owner",
        "priority",
        "shared",
    )

    def __init__(
        self,
        name: str,
        deliver: Deliver,
        credit: int = 0,
        auto_ack: bool = False,
        priority: int = 0,
        shared: Credit | None = None,
        owner: object = None,
    ) -> None:
        self.name = name
        self.deliver = deliver
        self.auto_ack = auto_ack
        self.priority = priority
        self.credit = Credit(credit)
        self.shared = shared
        """The credit of the channel it is on, when that has a limit of its own."""
        self.owner = owner
        """Whose it is, for exclusive queues."""
        self.cancelled: Callable[[], None] | None = None
        """Called when the queue goes away under the consumer."""
        self.group: Group | None = None
        self.held: set[int] = set()
        """The offsets it holds unsettled."""
        self.lease_us = 0

    @property
    def room(self) -> int:
        """How many more messages it can take now."""
        left = self.credit.left
        return left if self.shared is None else min(left, self.shared.left)

    def take(self, offset: int) -> None:
        self.held.add(offset)
        self.credit.used += 1
        if self.shared is not None:
            self.shared.used += 1

    def release(self, offset: int) -> None:
        if offset in self.held:
            self.held.remove(offset)
            self.credit.used -= 1
            if self.shared is not None:
                self.shared.used -= 1


@final
class Turns:
    """The consumers of a group in the order in which they get messages: by priority, then in turn."""

    __slots__ = ("_consumers", "_single", "exclusive")

    def __init__(self, single: bool) -> None:
        self._consumers: list[Consumer] = []
        self._single = single
        self.exclusive = False

    def __len__(self) -> int:
        return len(self._consumers)

    def __iter__(self) -> Iterator[Consumer]:
        return iter(list(self._consumers))

    def join(self, consumer: Consumer, exclusive: bool = False) -> None:
        """Raises AccessRefused when another consumer has the queue for itself, or this one wants that and cannot."""
        if self._consumers and (exclusive or self.exclusive):
            raise AccessRefused(f"consumer {consumer.name!r} cannot have the queue: it is in exclusive use")
        self.exclusive = exclusive
        at = len(self._consumers)
        if not self._single:
            while at and self._consumers[at - 1].priority < consumer.priority:
                at -= 1
        self._consumers.insert(at, consumer)

    def leave(self, consumer: Consumer) -> None:
        """It gets nothing more. Does nothing for one that is not a member."""
        if consumer in self._consumers:
            self._consumers.remove(consumer)
        if not self._consumers:
            self.exclusive = False

    @property
    def active(self) -> Consumer | None:
        """The consumer that gets everything, where only one at a time does."""
        return self._consumers[0] if self._single and self._consumers else None

    def next(self) -> tuple[Consumer | None, int]:
        """Whose turn it is and how many messages it should get; it then goes behind its equals."""
        consumers = self._consumers
        if self._single:
            first = consumers[0] if consumers else None
            return (first, first.room) if first is not None and first.room > 0 else (None, 0)
        for at, consumer in enumerate(consumers):
            room = consumer.room
            if room <= 0:
                continue
            if len(consumers) == 1:
                return consumer, room
            last = at
            alone = True
            for other in range(at + 1, len(consumers)):
                if consumers[other].priority != consumer.priority:
                    break
                last = other
                if consumers[other].room > 0:
                    alone = False
            del consumers[at]
            consumers.insert(last, consumer)
            return consumer, room if alone else 1
        return None, 0
