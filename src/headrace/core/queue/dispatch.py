"""Consumers, their credit, and fair turns among them: who gets the next message. No offsets move here."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, final

from headrace.core.queue.filter_values import ValueFilter
from headrace.errors import Refused
from headrace.model import Message
from headrace.selector import Selector

if TYPE_CHECKING:
    from headrace.core.queue.group import Group

UNLIMITED: Final = 1 << 60

Found = tuple[int, Message]
"""A message with its offset."""


@final
class Credit:
    """Limit on the unsettled messages of all consumers of a channel together."""

    __slots__ = ("limit", "sharers", "used")

    def __init__(self, limit: int = 0) -> None:
        """0 = unlimited."""
        self.limit = limit or UNLIMITED
        self.used = 0
        self.sharers: dict[Consumer, None] = {}
        """The consumers that share it: one may wait for room that another frees."""

    @property
    def left(self) -> int:
        return self.limit - self.used

    def change(self, limit: int) -> None:
        """Set another limit. Lowering it revokes nothing. 0 = unlimited."""
        self.limit = limit or UNLIMITED
        self._wake()

    def give_back(self, count: int) -> None:
        """Free the room of `count` messages."""
        was_full = self.used >= self.limit
        self.used -= count
        if was_full and self.used < self.limit:
            self._wake()

    def _wake(self) -> None:
        for consumer in self.sharers:
            consumer.wake()
            if consumer.group is not None:
                consumer.group.queue.pump_soon()


@final
class Delivery:
    """One message on its way to one consumer."""

    __slots__ = (
        "attempts",
        "consumer",
        "due_us",
        "group",
        "is_claimed",
        "is_held",
        "message",
        "notes",
        "offset",
        "redelivered",
    )

    def __init__(
        self, group: "Group", consumer: "Consumer", offset: int, message: Message, attempts: int, redelivered: bool
    ) -> None:
        self.group = group
        self.consumer = consumer
        self.offset = offset
        self.message = message
        self.attempts = attempts
        """Number of this delivery of the message in its group. Deliveries that were released untried do not count."""
        self.redelivered = redelivered
        self.due_us = 0
        """End of its lease; 0 for none."""
        self.is_held = False
        """True while its consumer has a lease on it: see leases.py."""
        self.is_claimed = False
        """True if storage has the claim, or an open batch does."""
        self.notes: dict[str, object] | None = None
        """Notes that consumers left on the message when they gave it back, for the next one. In memory only."""


Deliver = Callable[[list[Delivery]], None]


class Recipient(ABC):
    """The receiving end of a consumer."""

    __slots__ = ()

    @abstractmethod
    def deliver(self, deliveries: list[Delivery]) -> None:
        """Take deliveries. The broker never calls this within a call that the consumer made."""


@final
class _Call(Recipient):
    """A function as a recipient."""

    __slots__ = ("_deliver",)

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver

    def deliver(self, deliveries: list[Delivery]) -> None:
        self._deliver(deliveries)


@final
class _Nobody(Recipient):
    """The recipient of a consumer that has left."""

    __slots__ = ()

    def deliver(self, deliveries: list[Delivery]) -> None:
        raise AssertionError("a consumer that has left gets nothing")


_NOBODY: Final = _Nobody()


@final
class Consumer:
    """A member of one group of one queue.

    It gets as many messages as its own credit, its channel's credit and its allowance all leave room for.
    """

    __slots__ = (
        "_held",
        "allowance",
        "auto_ack",
        "cancelled",
        "exposes_offsets",
        "group",
        "holding",
        "in_turn",
        "is_silent",
        "lease_us",
        "limit",
        "name",
        "overdue",
        "owner",
        "priority",
        "recipient",
        "selector",
        "shared",
        "took_us",
        "turns",
        "values",
    )

    def __init__(
        self,
        name: str,
        recipient: Recipient | Deliver,
        credit: int = 0,
        auto_ack: bool = False,
        priority: int = 0,
        shared: Credit | None = None,
        owner: object = None,
    ) -> None:
        self.recipient = recipient if isinstance(recipient, Recipient) else _Call(recipient)
        self.limit = credit or UNLIMITED
        """Most messages that it may hold."""
        self.holding = 0
        """Number of unsettled messages that it holds."""
        self._held: set[int] = set()
        """Their offsets."""
        self.allowance = UNLIMITED
        """Number of messages that it may still get. Unlike credit, settling does not give it back."""
        self.shared = shared
        """The credit of its channel, if that has a limit of its own."""
        self.lease_us = 0
        """Length of its leases; 0 for the queue's."""
        self.auto_ack = auto_ack
        self.in_turn = False
        """True while it is in a ring of RoundRobin."""
        self.is_silent = False
        """True if a lease of it ran out and it settled nothing since."""
        self.took_us = 0
        """The time when it last took a message that another member had failed."""
        self.exposes_offsets = True
        """True if offsets leave the broker with its messages. Such offsets must be synced. Set before it joins."""
        self.turns: RoundRobin | None = None
        """The members it takes turns with; None when it gets nothing new."""
        self.group: Group | None = None
        """The group of the messages it holds. It stays after the consumer left, until it holds nothing more."""
        self.name = name
        self.priority = priority
        self.owner = owner
        """The connection it belongs to, for exclusive queues."""
        self.cancelled: Callable[[], None] | None = None
        """Called when the queue goes away under the consumer."""
        self.overdue: Callable[[], None] | None = None
        """Called when a lease of the consumer ran out."""
        self.selector: Selector | None = None
        """The messages it wants; None for all. Set before it joins."""
        self.values: ValueFilter | None = None
        """The filter values it wants, as a reader of a stream; None for all messages. Set before it joins."""

    @property
    def room(self) -> int:
        """Number of messages that it can take now."""
        left = min(self.limit - self.holding, self.allowance)
        return left if self.shared is None else min(left, self.shared.left)

    def change_limit(self, limit: int) -> None:
        """Set another credit. Lowering it revokes nothing. 0 = unlimited."""
        self.limit = limit or UNLIMITED

    def silence(self) -> None:
        """Give it nothing more and call it no more: it is about to leave."""
        self.allowance = 0
        self.cancelled = self.overdue = None

    def detach(self) -> None:
        """Forget whom it delivered to, as it has left: no reference cycle is left."""
        self.silence()
        self.recipient = _NOBODY

    def holds(self, offset: int) -> bool:
        """Return whether it holds this message unsettled."""
        return offset in self._held

    def held(self) -> list[int]:
        """Return the offsets it holds unsettled, in order."""
        return sorted(self._held)

    def take(self, offsets: list[int]) -> None:
        """Use up room for messages that are on their way to it. It holds them unless it acknowledges by itself."""
        count = len(offsets)
        self.allowance -= count
        if self.auto_ack:
            return
        held = self._held
        for offset in offsets:  # `update` takes 400 instructions more for one message
            held.add(offset)
        self.holding += count
        if self.shared is not None:
            self.shared.used += count

    def release(self, offset: int) -> None:
        """Free the room of a message, if it holds that."""
        held = self._held
        held.discard(offset)
        if len(held) == self.holding:
            return
        self.holding -= 1
        if self.shared is not None:
            self.shared.give_back(1)
        if not self.in_turn:
            self.wake()

    def wake(self) -> None:
        """Give it its turn again: it may have room."""
        if self.turns is not None:
            self.turns.wake(self)


@final
class RoundRobin:
    """The consumers of a group in the order in which they get messages: by priority, then in turn.

    Where only one at a time is active, that is the first that came. One of higher priority takes over as soon as the
    active one holds nothing; until then neither gets more.

    A silent member comes last whatever its priority, and gets one message at a time as long as another member is not
    silent, for its messages are delayed. Where only one at a time is active, the next one replaces a silent one.
    """

    __slots__ = (
        "_changed",
        "_doubted",
        "_priorities",
        "_rings",
        "_silent",
        "_single",
        "exclusive",
        "members",
        "only",
        "selective",
        "tellers",
    )

    def __init__(self, single: bool, changed: Callable[[], None]) -> None:
        """`changed` is called when a consumer came or went."""
        self._changed = changed
        self.members: list[Consumer] = []
        """By priority, then by age; behind the active one, where there is one. Others only read it."""
        self._rings: dict[int, deque[Consumer]] = {}
        """Members that may have room, by priority; the next to get a message first."""
        self._priorities: list[int] = []
        self._silent: deque[Consumer] = deque()
        """Silent members that may have room, in the same way."""
        self._doubted = 0
        """Number of silent members."""
        self._single = single
        self.only: Consumer | None = None
        """The only consumer, if there is one and it has no selector."""
        self.exclusive = False
        self.tellers = 0
        """Number of members that expose offsets."""
        self.selective: list[Consumer] = []
        """Members with a selector: they have no turns, see Selection."""

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Consumer]:
        return iter(list(self.members))

    @property
    def is_single(self) -> bool:
        """True if only one member at a time gets messages."""
        return self._single

    @property
    def active(self) -> Consumer | None:
        """The member that gets everything, where only one at a time does."""
        return self.members[0] if self._single and self.members else None

    # -- coming and going --------------------------------------------------------------------------------------------

    def join(self, consumer: Consumer, exclusive: bool = False) -> None:
        """Add a member; the caller knows that it may be the only one, or one of several.

        Raises Refused for a selector where only one consumer at a time is active.
        """
        if consumer.selector is not None and self._single:
            raise Refused("a selector is not for queues with a single active consumer: that one gets all messages")
        self.exclusive = exclusive
        self._insert(consumer)
        consumer.turns = self
        self.tellers += consumer.exposes_offsets
        if consumer.shared is not None:
            consumer.shared.sharers[consumer] = None
        self._members_changed()
        if consumer.selector is not None:
            self.selective.append(consumer)
            return
        if consumer.priority not in self._rings:
            self._rings[consumer.priority] = deque()
            self._priorities = sorted(self._rings, reverse=True)
        self.wake(consumer)

    def leave(self, consumer: Consumer) -> None:
        """Remove a member, if it is one: it gets nothing more."""
        if consumer.turns is not self:
            return
        self.members.remove(consumer)
        consumer.turns = None
        self.tellers -= consumer.exposes_offsets
        if consumer.shared is not None:
            consumer.shared.sharers.pop(consumer, None)
        self._leave_ring(consumer)
        if consumer.is_silent:
            consumer.is_silent = False
            self._doubted -= 1
        self._wake_silent()
        if consumer.selector is not None:
            self.selective.remove(consumer)
        elif all([other.priority != consumer.priority or other.selector for other in self.members]):
            del self._rings[consumer.priority]
            self._priorities.remove(consumer.priority)
        if not self.members:
            self.exclusive = False
        self._members_changed()

    def _members_changed(self) -> None:
        first = self.members[0] if len(self.members) == 1 else None
        self.only = first if first is not None and first.selector is None else None
        self._changed()

    def _insert(self, consumer: Consumer) -> None:
        at = len(self.members)
        least = 1 if self._single else 0
        while at > least and self.members[at - 1].priority < consumer.priority:
            at -= 1
        self.members.insert(at, consumer)

    def wake(self, consumer: Consumer) -> None:
        """Put a member back into its ring: it may have room again."""
        if not consumer.in_turn and consumer.selector is None:
            consumer.in_turn = True
            self._ring_of(consumer).append(consumer)

    def doubt(self, consumer: Consumer) -> None:
        """Prefer other members until this one settles something, as a lease of it ran out. Members only."""
        if consumer.turns is self and not consumer.is_silent:
            self._move(consumer, True)

    def trust(self, consumer: Consumer) -> None:
        """Treat a silent member as any other again: it settled something."""
        if consumer.turns is self and consumer.is_silent:
            self._move(consumer, False)

    def _move(self, consumer: Consumer, is_silent: bool) -> None:
        self._leave_ring(consumer)
        consumer.is_silent = is_silent
        self._doubted += 1 if is_silent else -1
        self.wake(consumer)
        self._wake_silent()

    def _leave_ring(self, consumer: Consumer) -> None:
        if consumer.in_turn:
            consumer.in_turn = False
            self._ring_of(consumer).remove(consumer)

    def _wake_silent(self) -> None:
        """Give silent members all their room back where all members are silent."""
        if self._doubted and self._doubted == len(self.members):
            for consumer in self.members:
                self.wake(consumer)

    def _ring_of(self, consumer: Consumer) -> deque[Consumer]:
        return self._silent if consumer.is_silent else self._rings[consumer.priority]

    # -- who is next -------------------------------------------------------------------------------------------------

    def room_of(self, consumer: Consumer) -> int:
        """Return how many messages this member should get now."""
        if not consumer.is_silent or self._doubted == len(self.members):
            return consumer.room
        return min(consumer.room, 1 - consumer.holding)

    def room(self, most: int) -> int:
        """Return about how many messages all members could take now, `most` at most; 0 only when none has room."""
        if self._single:
            active = self._activate()
            return min(active.room, most) if active is not None else 0
        total = 0
        for priority in self._priorities:
            for consumer in self._rings[priority]:
                room = consumer.room
                if room > 0:
                    total += room
                    if total >= most:
                        return most
        if not total and self._silent:
            total = sum([max(0, self.room_of(consumer)) for consumer in self._silent])
        return min(total, most)

    def next(self) -> tuple[Consumer | None, int]:
        """Return the next member and how many messages it should get; it then goes behind its equals."""
        if self._single:
            active = self._activate()
            return (active, active.room) if active is not None and active.room > 0 else (None, 0)
        for priority in self._priorities:
            ring = self._rings[priority]
            while ring:
                consumer = ring[0]
                room = consumer.room
                if room <= 0:  # out of the ring until it is woken: full members cost nothing
                    consumer.in_turn = False
                    ring.popleft()
                elif len(ring) == 1:
                    return consumer, room
                else:
                    ring.rotate(-1)
                    return consumer, 1
        return self._next_silent() if self._silent else (None, 0)

    def _next_silent(self) -> tuple[Consumer | None, int]:
        ring = self._silent
        while ring:
            consumer = ring[0]
            room = self.room_of(consumer)
            if room > 0:
                ring.rotate(-1)
                return consumer, room if len(ring) == 1 else 1
            consumer.in_turn = False
            ring.popleft()
        return None, 0

    def next_but(self, failed: list[Consumer]) -> Consumer | None:
        """Return the next member with room that is none of these; it then goes behind its equals."""
        for ring in self._all_rings():
            for consumer in ring:
                if consumer not in failed and self.room_of(consumer) > 0:
                    ring.remove(consumer)
                    ring.append(consumer)
                    return consumer
        return None

    def has_other(self, failed: list[Consumer]) -> bool:
        """Return whether there is a member that is none of these."""
        return any([consumer not in failed for consumer in self.members])

    def has_room_but(self, failed: list[Consumer]) -> bool:
        """Return whether a member that is none of these has room."""
        for ring in self._all_rings():
            for consumer in ring:
                if consumer not in failed and self.room_of(consumer) > 0:
                    return True
        return False

    def _all_rings(self) -> list[deque[Consumer]]:
        return [*[self._rings[priority] for priority in self._priorities], self._silent]

    def _activate(self) -> Consumer | None:
        """Return the one active member; None while it must settle before another one replaces it."""
        consumers = self.members
        if len(consumers) > 1:
            heard = [other for other in consumers[1:] if not other.is_silent] if self._doubted else consumers[1:2]
            following = heard[0] if heard else consumers[1]
            if consumers[0].is_silent or (following.priority > consumers[0].priority and not following.is_silent):
                if consumers[0].holding:
                    return None
                former = consumers.pop(0)
                consumers.remove(following)
                consumers.insert(0, following)
                self._insert(former)
                self.trust(following)
        return consumers[0] if consumers else None
