"""Who gets the next message: consumers, browsers, their credit, and fair turns among them. No offsets move here."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, final

from headrace.errors import AccessRefused, Refused
from headrace.model import Message
from headrace.selector import Selector

if TYPE_CHECKING:
    from headrace.core.queue.group import Group
    from headrace.core.queue.queue import Queue

BROWSE_BYTES: Final = 16 << 20
_READ_AT_ONCE: Final = 256
_READ_BYTES: Final = 1 << 20
_LOOKS: Final = 4096
"""How many messages are looked at in one turn; whoever has the loop next should not wait for a whole backlog."""

Found = tuple[int, Message]
Show = Callable[[list[Found]], None]


@final
class Browser:
    """Is shown every message that is not settled, once and in log order, then those that come; as far as it is allowed.

    What has expired or is not due yet is passed over.
    """

    __slots__ = ("_at", "allowance", "ended", "queue", "selector", "show")

    def __init__(self, queue: "Queue", show: Show, selector: Selector | None, ended: Callable[[], None]) -> None:
        self.queue = queue
        self.show = show
        self.selector = selector
        self.ended = ended
        """Called when the queue goes away."""
        self.allowance = 0
        """How many more messages it may be shown."""
        self._at = 0

    def pump(self, now_us: int) -> None:
        """Show what there is room for."""
        queue = self.queue
        looks = _LOOKS
        while self.allowance > 0 and self._at < queue.log.next_offset:
            if looks <= 0:
                queue.pump_soon()
                return
            found = queue.browse(self._at, min(self.allowance, _READ_AT_ONCE), _READ_BYTES)
            looks -= _READ_AT_ONCE
            self._at = found[-1][0] + 1 if found else queue.log.next_offset
            shown = [(offset, message) for offset, message in found if self._is_wanted(message, now_us)]
            if shown:
                self.allowance -= len(shown)
                self.show(shown)

    def _is_wanted(self, message: Message, now_us: int) -> bool:
        if message.not_before_us > now_us or self.queue.is_expired(message, now_us):
            return False
        return self.selector is None or self.queue.fits(self.selector, message)


def unsettled_from(queue: "Queue", offset: int, limit: int, max_bytes: int) -> list[Found]:
    """See Queue.browse."""
    states = [group.state for group in queue.work_groups()]
    at = max(offset, queue.first_offset)
    found: list[Found] = []
    while len(found) < limit and max_bytes > 0:
        if states:  # step over what all are done with
            at = min([state.settled.next_absent(max(at, state.committed)) for state in states])
        messages = queue.log.read(at, min(limit - len(found), _READ_AT_ONCE), max_bytes)
        if not messages:
            break
        for message in messages:
            if not states or any([at >= s.committed and at not in s.settled for s in states]):
                found.append((at, message))
                max_bytes -= len(message.payload) + len(message.properties)
            at += 1
    return found


UNLIMITED: Final = 1 << 60


@final
class Credit:
    """How many unsettled messages all consumers of a channel may hold together."""

    __slots__ = ("limit", "sharers", "used")

    def __init__(self, limit: int = 0) -> None:
        """0 means as many as there are."""
        self.limit = limit or UNLIMITED
        self.used = 0
        self.sharers: dict[Consumer, None] = {}
        """The consumers that share it: what one settles may be what another waits for."""

    @property
    def left(self) -> int:
        return self.limit - self.used

    def change(self, limit: int) -> None:
        """Set another limit; what is held beyond a lower one stays held. 0 means as many as there are."""
        self.limit = limit or UNLIMITED
        self._wake()

    def give_back(self, count: int) -> None:
        """So many messages less are held."""
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
        """Which delivery of this message it is, in this group; what was released untried does not count."""
        self.redelivered = redelivered
        self.due_us = 0
        """Until when it must be settled; 0 for no end."""
        self.is_held = False
        """Whether its consumer has it and did not settle it; leases.py sees to that."""
        self.is_claimed = False
        """Whether storage knows that, or will with what is staged."""
        self.notes: dict[str, object] | None = None
        """What consumers noted on the message when they gave it back; whoever gets it next sees it. In memory only."""


Deliver = Callable[[list[Delivery]], None]


class Recipient(ABC):
    """Whom a consumer's deliveries go on to."""

    __slots__ = ()

    @abstractmethod
    def deliver(self, deliveries: list[Delivery]) -> None:
        """Take what the consumer gets. Never called from within a call that the consumer made."""


@final
class _Call(Recipient):
    """One who is a function."""

    __slots__ = ("_deliver",)

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver

    def deliver(self, deliveries: list[Delivery]) -> None:
        self._deliver(deliveries)


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
        """How many messages it may hold at a time."""
        self.holding = 0
        """How many it holds unsettled."""
        self._held: set[int] = set()
        """The offsets it holds unsettled."""
        self.allowance = UNLIMITED
        """How many more messages it may get at all; unlike credit, settling does not give it back."""
        self.shared = shared
        """The credit of the channel it is on, when that has a limit of its own."""
        self.lease_us = 0
        self.auto_ack = auto_ack
        self.in_turn = False
        self.is_silent = False
        """Whether a lease of it ran out, and it settled nothing since."""
        self.took_us = 0
        """When it last took a message that another member had failed."""
        self.exposes_offsets = True
        """Whether offsets leave the broker with what it gets; they must then stand for the same messages for good.
        Set before it joins."""
        self.turns: RoundRobin | None = None
        """Where it gets its turn; None when it gets nothing new."""
        self.group: Group | None = None
        """Where what it holds comes from; also after it left, until it holds nothing more."""
        self.name = name
        self.priority = priority
        self.owner = owner
        """Whose it is, for exclusive queues."""
        self.cancelled: Callable[[], None] | None = None
        """Called when the queue goes away under the consumer."""
        self.overdue: Callable[[], None] | None = None
        """Called when something was taken from the consumer because it was not settled in time."""
        self.selector: Selector | None = None
        """Which messages it wants; the others are for others. Set before it joins."""

    @property
    def room(self) -> int:
        """How many more messages it can take now."""
        left = min(self.limit - self.holding, self.allowance)
        return left if self.shared is None else min(left, self.shared.left)

    def change_limit(self, limit: int) -> None:
        """Set another limit; what is held beyond a lower one stays held. 0 means as many as there are."""
        self.limit = limit or UNLIMITED

    def silence(self) -> None:
        """It is about to leave: it gets nothing more, and is told of nothing."""
        self.allowance = 0
        self.cancelled = self.overdue = None

    def holds(self, offset: int) -> bool:
        """Return whether it holds this message unsettled."""
        return offset in self._held

    def held(self) -> list[int]:
        """Return the offsets it holds unsettled, in order."""
        return sorted(self._held)

    def take(self, offsets: Sequence[int]) -> None:
        """Use up room for messages that are on their way to it; they count as held unless it acknowledges by itself."""
        count = len(offsets)
        self.allowance -= count
        if self.auto_ack:
            return
        self._held.update(offsets)
        self.holding += count
        if self.shared is not None:
            self.shared.used += count

    def release(self, offset: int) -> None:
        """Free the room of one message, if it holds that."""
        if offset in self._held:
            self._held.remove(offset)
            self._give_back(1)

    def release_all(self, offsets: list[int]) -> None:
        """Free the room of several messages, all of which it holds."""
        self._held.difference_update(offsets)
        self._give_back(len(offsets))

    def _give_back(self, count: int) -> None:
        self.holding -= count
        if self.shared is not None:
            self.shared.give_back(count)
        if not self.in_turn:
            self.wake()

    def wake(self) -> None:
        """It may have room again: let it have its turn."""
        if self.turns is not None:
            self.turns.wake(self)


@final
class RoundRobin:
    """The consumers of a group in the order in which they get messages: by priority, then in turn.

    Where only one at a time is active, that is the first that came. One of higher priority takes over as soon as the
    active one holds nothing; until then neither gets more.

    A silent member comes last whatever its priority, and gets one message at a time as long as another member is not
    silent: what it holds is lost time. Where only one at a time is active, the next one takes a silent one's place.
    """

    __slots__ = (
        "_changed",
        "_consumers",
        "_doubted",
        "_priorities",
        "_rings",
        "_silent",
        "_single",
        "exclusive",
        "only",
        "selective",
        "tellers",
    )

    def __init__(self, single: bool, changed: Callable[[], None]) -> None:
        """`changed` is called when a consumer came or went."""
        self._changed = changed
        self._consumers: list[Consumer] = []
        """By priority, then as they came; behind the active one, where there is one."""
        self._rings: dict[int, deque[Consumer]] = {}
        """By priority those that had room when last looked at; the next to get something first."""
        self._priorities: list[int] = []
        self._silent: deque[Consumer] = deque()
        """The silent ones, in the same way."""
        self._doubted = 0
        """How many members are silent."""
        self._single = single
        self.only: Consumer | None = None
        """The one consumer, where there is no other and it wants all messages."""
        self.exclusive = False
        self.tellers = 0
        """How many of them tell offsets."""
        self.selective: list[Consumer] = []
        """Those that want only some messages: they have no turns, see backlog.py."""

    def __len__(self) -> int:
        return len(self._consumers)

    def __iter__(self) -> Iterator[Consumer]:
        return iter(list(self._consumers))

    def join(self, consumer: Consumer, exclusive: bool = False) -> None:
        """Raises AccessRefused when another consumer has the queue for itself, or this one wants that and cannot.

        Raises Refused for a selector where only one consumer at a time is active.
        """
        if self._consumers and (exclusive or self.exclusive):
            raise AccessRefused(f"consumer {consumer.name!r} cannot have the queue: it is in exclusive use")
        if consumer.selector is not None and self._single:
            raise Refused("a selector is not for queues with a single active consumer: that one gets all messages")
        self.exclusive = exclusive
        self._insert(consumer)
        consumer.turns = self
        self.tellers += consumer.exposes_offsets
        if consumer.shared is not None:
            consumer.shared.sharers[consumer] = None
        self._count()
        if consumer.selector is not None:
            self.selective.append(consumer)
            return
        if consumer.priority not in self._rings:
            self._rings[consumer.priority] = deque()
            self._priorities = sorted(self._rings, reverse=True)
        self.wake(consumer)

    def leave(self, consumer: Consumer) -> None:
        """It gets nothing more. Does nothing for one that is not a member."""
        if consumer.turns is not self:
            return
        self._consumers.remove(consumer)
        consumer.turns = None
        self.tellers -= consumer.exposes_offsets
        if consumer.shared is not None:
            consumer.shared.sharers.pop(consumer, None)
        if consumer.in_turn:
            consumer.in_turn = False
            self._ring_of(consumer).remove(consumer)
        if consumer.is_silent:
            consumer.is_silent = False
            self._doubted -= 1
        self._wake_silent()
        if consumer.selector is not None:
            self.selective.remove(consumer)
        elif all([other.priority != consumer.priority or other.selector for other in self._consumers]):
            del self._rings[consumer.priority]
            self._priorities.remove(consumer.priority)
        if not self._consumers:
            self.exclusive = False
        self._count()

    def _count(self) -> None:
        first = self._consumers[0] if len(self._consumers) == 1 else None
        self.only = first if first is not None and first.selector is None else None
        self._changed()

    def wake(self, consumer: Consumer) -> None:
        """This member may have room again."""
        if not consumer.in_turn and consumer.selector is None:
            consumer.in_turn = True
            self._ring_of(consumer).append(consumer)

    def doubt(self, consumer: Consumer) -> None:
        """A lease of it ran out: others come first until it settles something. Does nothing for one that left."""
        if consumer.turns is self and not consumer.is_silent:
            self._move(consumer, True)

    def trust(self, consumer: Consumer) -> None:
        """A silent member settled something."""
        if consumer.turns is self and consumer.is_silent:
            self._move(consumer, False)

    def _move(self, consumer: Consumer, is_silent: bool) -> None:
        if consumer.in_turn:
            consumer.in_turn = False
            self._ring_of(consumer).remove(consumer)
        consumer.is_silent = is_silent
        self._doubted += 1 if is_silent else -1
        self.wake(consumer)
        self._wake_silent()

    def _wake_silent(self) -> None:
        """Where all members are silent they have all their room again."""
        if self._doubted and self._doubted == len(self._consumers):
            for consumer in self._consumers:
                self.wake(consumer)

    def _ring_of(self, consumer: Consumer) -> deque[Consumer]:
        return self._silent if consumer.is_silent else self._rings[consumer.priority]

    @property
    def members(self) -> list[Consumer]:
        """All of them, to be looked at and not to be changed."""
        return self._consumers

    @property
    def is_single(self) -> bool:
        """Whether only one at a time gets messages."""
        return self._single

    def room_of(self, consumer: Consumer) -> int:
        """How many more messages this member should get now."""
        if not consumer.is_silent or self._doubted == len(self._consumers):
            return consumer.room
        return min(consumer.room, 1 - consumer.holding)

    @property
    def active(self) -> Consumer | None:
        """The consumer that gets everything, where only one at a time does."""
        return self._consumers[0] if self._single and self._consumers else None

    def room(self, most: int) -> int:
        """About how many messages they could take now altogether, `most` at most; 0 only when none has room."""
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
        """Whose turn it is and how many messages it should get; it then goes behind its equals."""
        if self._single:
            active = self._activate()
            return (active, active.room) if active is not None and active.room > 0 else (None, 0)
        for priority in self._priorities:
            ring = self._rings[priority]
            while ring:
                consumer = ring[0]
                room = consumer.room
                if room <= 0:  # out of the ring until it is woken: the full ones cost nothing
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
        """The next in turn that has room and is none of these; it then goes behind its equals."""
        for ring in [*[self._rings[priority] for priority in self._priorities], self._silent]:
            for consumer in ring:
                if consumer not in failed and self.room_of(consumer) > 0:
                    ring.remove(consumer)
                    ring.append(consumer)
                    return consumer
        return None

    def has_other(self, failed: list[Consumer]) -> bool:
        """Whether there is a member that is none of these."""
        for consumer in self._consumers:
            if consumer not in failed:
                return True
        return False

    def has_room_but(self, failed: list[Consumer]) -> bool:
        """Whether a member that is none of these has room."""
        for ring in [*self._rings.values(), self._silent]:
            for consumer in ring:
                if consumer not in failed and self.room_of(consumer) > 0:
                    return True
        return False

    def _insert(self, consumer: Consumer) -> None:
        at = len(self._consumers)
        least = 1 if self._single else 0
        while at > least and self._consumers[at - 1].priority < consumer.priority:
            at -= 1
        self._consumers.insert(at, consumer)

    def _activate(self) -> Consumer | None:
        """The one active consumer, None while it must settle what it holds for one that takes its place."""
        consumers = self._consumers
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
