"""Subscriptions of a connection: chunks as credit allows, and which of several readers is active."""

import struct
from typing import Final, final

from headrace.core.access.permissions import READ
from headrace.core.queue.definition import FIRST as FROM_FIRST
from headrace.core.queue.definition import LAST as FROM_LAST
from headrace.core.queue.definition import NEXT as FROM_NEXT
from headrace.core.queue.definition import TIMESTAMP as FROM_TIMESTAMP
from headrace.core.queue.filter_values import ValueFilter
from headrace.core.queue.queue import Queue
from headrace.core.queue.readers import ALONE, Reader, ReaderGroup
from headrace.errors import PreconditionFailed, ProtocolError
from headrace.model import Message
from headrace.protocols.streams.chunks import MOST_BYTES, MOST_MESSAGES
from headrace.protocols.streams.codec import Position, Request, frame
from headrace.protocols.streams.frames import (
    CONSUMER_UPDATE,
    CREDIT,
    FIRST,
    LAST,
    NEXT,
    OFFSET,
    RESPONSE,
    SUBSCRIPTION_ID_DOES_NOT_EXIST,
    SUBSCRIPTION_ID_EXISTS,
    TIMESTAMP,
)
from headrace.protocols.streams.partitions import partitions_of
from headrace.protocols.streams.server import ConnectionContext

_SINGLE: Final = "single-active-consumer"
_NAME: Final = "name"
_SUPER_STREAM: Final = "super-stream"
_FILTER: Final = "filter."
_OTHERS: Final = "match-unfiltered"


def offset_of(queue: Queue, position: Position) -> int:
    """Return the offset of a position. Raises PreconditionFailed for a kind that is not known."""
    if position.kind == FIRST:
        return queue.offset_at((FROM_FIRST, 0))
    if position.kind == LAST:
        return queue.offset_at((FROM_LAST, 0))
    if position.kind == NEXT:
        return queue.offset_at((FROM_NEXT, 0))
    if position.kind == OFFSET:
        return min(position.value, 1 << 62)
    if position.kind == TIMESTAMP:
        return queue.offset_at((FROM_TIMESTAMP, max(0, min(position.value, 1 << 50)) * 1000))
    raise PreconditionFailed(f"a position of kind {position.kind} is not known")


def filter_of(properties: dict[str, str]) -> ValueFilter | None:
    """The filter of a subscription; None if it wants everything."""
    values = [value for key, value in properties.items() if key.startswith(_FILTER)]
    return ValueFilter(frozenset(values), properties.get(_OTHERS) == "true") if values else None


@final
class Subscription(Reader):
    """One subscription: a reader whose client grants it chunks."""

    def __init__(self, context: ConnectionContext, number: int, queue: Queue, at: int, credit: int) -> None:
        super().__init__(queue, at, MOST_MESSAGES, min(MOST_BYTES, context.frame_max))
        self._context = context
        self.number = number
        self.credit = credit
        """The number of chunks that the client still takes."""
        self.is_active = True
        """False while another reader of its group is the active one, or this one waits for its position."""
        self.filter: ValueFilter | None = None
        self.group_name = ""
        self.group: ReaderGroup | None = None
        self.updates: dict[int, tuple[Subscription, bool]] = {}
        """Questions to the client that it has not answered, of all subscriptions of the connection."""

    def has_room(self) -> bool:
        context = self._context
        return self.is_active and self.credit > 0 and not context.is_held and not context.answers.is_waiting

    def deliver(self, first: int, messages: list[Message]) -> None:
        self.credit -= 1
        context = self._context
        context.answers.send(context.encoder.deliver(self.number, context.deliver_version, first, messages))

    def wanted(self, messages: list[Message]) -> tuple[int, int]:
        """Leave out what the filter keeps out at both ends. Offsets have no gaps, so clients leave out the rest."""
        start, stop = 0, len(messages)
        if self.filter is not None:
            while start < stop and not self.filter.admits(messages[start]):
                start += 1
            while start < stop and not self.filter.admits(messages[stop - 1]):
                stop -= 1
        return start, stop

    def set_active(self, is_active: bool) -> None:
        """Ask the client where it goes on, or tell it to stop."""
        self.is_active = False
        number = max(self.updates, default=0) + 1
        self.updates[number] = (self, is_active)
        self._context.answers.send(frame(CONSUMER_UPDATE, struct.pack(">IBB", number, self.number, is_active)))

    def ended(self) -> None:
        return  # the connection hears of the end of each of its streams once


@final
class Subscriptions:
    """All subscriptions of a connection, by the ids that the client gave them."""

    def __init__(self, context: ConnectionContext) -> None:
        self._context = context
        self._broker = context.broker
        self._by_id: dict[int, Subscription] = {}
        self._updates: dict[int, tuple[Subscription, bool]] = {}

    def prepare(self, request: Request) -> Subscription:
        """Make a subscription, which gets nothing before `start`. Raises Refused kinds and ProtocolError."""
        number, stream, credit, properties = request.number(0), request.text(1), request.number(3), request.table(4)
        queue = self._context.client.stream(READ, stream)
        if number in self._by_id:
            raise ProtocolError(SUBSCRIPTION_ID_EXISTS, f"subscription {number} exists already")
        is_single = properties.get(_SINGLE) == "true"
        if is_single and not properties.get(_NAME):
            raise PreconditionFailed("a single active consumer needs a name")
        subscription = Subscription(self._context, number, queue, offset_of(queue, request.position(2)), credit)
        subscription.updates = self._updates
        subscription.filter = filter_of(properties)
        if is_single:
            subscription.group_name = properties[_NAME]
            subscription.is_active = False
        self._by_id[number] = subscription
        return subscription

    def start(self, subscription: Subscription, properties: dict[str, str]) -> None:
        """Let a subscription read from now on."""
        self._broker.follow(subscription)
        if subscription.group_name:
            partition = ALONE
            super_stream = properties.get(_SUPER_STREAM, "")
            if super_stream:
                partitions = partitions_of(self._broker, super_stream)
                name = subscription.queue.name
                partition = partitions.index(name) if name in partitions else ALONE
            groups = self._broker.reader_groups
            subscription.group = groups.join(subscription, subscription.group_name, partition)

    def credit(self, number: int, credit: int) -> None:
        """Let a subscription get more chunks."""
        subscription = self._by_id.get(number)
        if subscription is None:
            body = struct.pack(">HB", SUBSCRIPTION_ID_DOES_NOT_EXIST, number)
            self._context.answers.send(frame(CREDIT | RESPONSE, body))
            return
        subscription.credit += credit
        self._broker.read_on(subscription)

    def updated(self, request: Request) -> None:
        """Take the client's answer: where the active reader goes on, or that it has stopped."""
        update = self._updates.pop(request.correlation, None)
        if update is None:
            return
        subscription, is_active = update
        if self._by_id.get(subscription.number) is not subscription or subscription.group is None:
            return  # it was ended meanwhile
        if not is_active:
            subscription.group.stepped_down(subscription)
        elif subscription.group.is_active(subscription):
            if request.position(1).kind:
                subscription.at = offset_of(subscription.queue, request.position(1))
            subscription.is_active = True
            self._broker.read_on(subscription)

    def unsubscribe(self, number: int) -> Queue:
        """End a subscription; returns its stream. Raises ProtocolError if there is none."""
        subscription = self._by_id.pop(number, None)
        if subscription is None:
            raise ProtocolError(SUBSCRIPTION_ID_DOES_NOT_EXIST, f"there is no subscription {number}")
        subscription.is_active = False
        self._broker.end_browser(subscription)
        for correlation, (asked, _) in list(self._updates.items()):
            if asked is subscription:
                del self._updates[correlation]
        if subscription.group is not None:
            self._broker.reader_groups.leave(subscription, subscription.group_name)
        return subscription.queue

    def use(self, queue: Queue) -> bool:
        """True if one of them reads this stream."""
        return any([subscription.queue is queue for subscription in self._by_id.values()])

    def forget(self, queue: Queue) -> None:
        """Remove the subscriptions of a stream that is gone."""
        for number, subscription in list(self._by_id.items()):
            if subscription.queue is queue:
                self.unsubscribe(number)

    def streams(self) -> list[Queue]:
        """The streams that are read, each once."""
        return list(dict.fromkeys([subscription.queue for subscription in self._by_id.values()]))

    def refresh(self) -> None:
        """Read on: the client takes output again."""
        for subscription in self._by_id.values():
            self._broker.read_on(subscription)

    def close(self) -> None:
        """End all of them with the connection."""
        for number in list(self._by_id):
            self.unsubscribe(number)
