"""The consuming side of a channel: consume, deliver, settle, recover, prefetch, and its delivery tags."""

import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Final, final

from pamqp import base, commands

from headrace.core.access.permissions import QUEUE, READ
from headrace.core.broker import Broker
from headrace.core.properties import Properties
from headrace.core.queue.definition import QUORUM
from headrace.core.queue.dispatch import UNLIMITED, Consumer, Credit, Delivery, Recipient
from headrace.core.queue.group import ACK, NACK, REJECT, RELEASE, STREAM_MODE, mode_to_join
from headrace.core.queue.queue import DEFAULT_GROUP
from headrace.core.queue.stream import StreamGroup
from headrace.core.routing.address import effective_group, format_message_id, is_address, parse_address
from headrace.core.routing.topology import key_of
from headrace.errors import HeadraceError, PreconditionFailed, ProtocolError, Refused
from headrace.model import AMQP091, Message
from headrace.protocols.amqp091.context import ConnectionContext
from headrace.protocols.amqp091.encoding import DeliverEncoder, encode_content
from headrace.protocols.amqp091.fields import encode_entry, encode_shortstr
from headrace.protocols.amqp091.frames import NOT_ALLOWED, NOT_IMPLEMENTED
from headrace.protocols.amqp091.methods import encode_method
from headrace.protocols.amqp091.properties import NONE, PRIORITY, encode_properties, with_headers
from headrace.protocols.amqp091.publishing import REPLY_PREFIX, REPLY_TO, Publisher
from headrace.protocols.answers import Answers

_LAST_BYTES: Final = [bytes([number]) for number in range(256)]
_SLACK: Final = 256
"""So many places in the row may be empty before somebody looks, and as many as are taken."""


@final
class Tags:
    """What is out by its tag, oldest first.

    Tags are given out one after the other, so that deliveries stand in a row without their tags: a dictionary took 300
    instructions and two numbers more for each, of 10,000. What stays out while most that came later are settled is put
    aside, so that the row is no longer than twice what is out.
    """

    __slots__ = ("_aside", "_first", "_head", "_high", "_out", "_row", "last")

    def __init__(self) -> None:
        self.last = 0
        """The last that was given out."""
        self._row: list[Delivery | None] = []
        """What the tags from `_first` to `last` are for; None where that is settled, or need not be."""
        self._first = 1
        self._out = 0
        """How many of the row are not settled."""
        self._aside: dict[int, Delivery] = {}
        """Those before it that are not."""
        self._high = 0
        self._head = bytes(7)
        """All of a tag but its last byte, which few of them change: 130 instructions to encode one instead of 380."""

    def __len__(self) -> int:
        return self._out + len(self._aside)

    def hold(self, delivery: Delivery) -> int:
        """The tag of a delivery that the client has to settle."""
        self.last += 1
        self._row.append(delivery)
        self._out += 1
        return self.last

    def pass_by(self) -> int:
        """The tag of one that it does not."""
        self.last += 1
        if self._row:
            self._row.append(None)
            self._tidy()
        else:
            self._first = self.last + 1
        return self.last

    def encoded(self, tag: int) -> bytes:
        """A tag as it is sent."""
        high = tag >> 8
        if high != self._high:
            self._high = high
            self._head = high.to_bytes(7, "big")
        return self._head + _LAST_BYTES[tag & 255]

    def get(self, tag: int) -> Delivery | None:
        """What is out with this tag."""
        at = tag - self._first
        if at < 0:
            return self._aside.get(tag)
        return self._row[at] if at < len(self._row) else None

    def take(self, tag: int) -> Delivery | None:
        """The same; it is out no more."""
        at = tag - self._first
        if at < 0:
            return self._aside.pop(tag, None)
        if at >= len(self._row):
            return None
        delivery = self._row[at]
        if delivery is not None:
            self._row[at] = None
            self._out -= 1
            self._tidy()
        return delivery

    def up_to(self, last: int) -> list[int]:
        """The tags up to this one that are out, oldest first."""
        found = [tag for tag in self._aside if tag <= last]
        for at in range(min(len(self._row), last - self._first + 1)):
            if self._row[at] is not None:
                found.append(self._first + at)
        return found

    def take_to(self, last: int) -> list[Delivery]:
        """What is out with these tags; it is out no more."""
        found: list[Delivery] = []
        if self._aside:
            for tag in [tag for tag in self._aside if tag <= last]:
                found.append(self._aside.pop(tag))
        stop = max(0, min(len(self._row), last - self._first + 1))
        for delivery in self._row if stop == len(self._row) else self._row[:stop]:
            if delivery is not None:
                found.append(delivery)
                self._out -= 1
        self._shorten(stop)
        return found

    def put_back(self, taken: dict[int, Delivery]) -> None:
        """These were taken and are out after all."""
        for tag, delivery in taken.items():
            if tag < self._first:
                self._aside[tag] = delivery
            else:
                self._row[tag - self._first] = delivery
                self._out += 1
        self._aside = dict(sorted(self._aside.items()))

    def clear(self) -> None:
        """Nothing is out."""
        self._aside.clear()
        self._out = 0
        self._tidy()

    def _tidy(self) -> None:
        """See to it that the row does not get long for little: on the whole, a few instructions for each tag."""
        length = len(self._row)
        if not self._out:
            self._shorten(length)
        elif length > 2 * self._out + _SLACK:
            half = (length + 1) // 2
            for at in range(half):
                delivery = self._row[at]
                if delivery is not None:
                    self._aside[self._first + at] = delivery
                    self._out -= 1
            self._shorten(half)

    def _shorten(self, count: int) -> None:
        """Let go of the first places of the row, in which nothing is left."""
        if count == len(self._row):
            self._row = []
        else:
            del self._row[:count]
        self._first += count


STREAM_OFFSET: Final = "x-stream-offset"
_STREAM_OFFSET_ENTRY: Final = encode_shortstr(STREAM_OFFSET) + b"l"
"""The name and the type of the header, as RabbitMQ has it, up to the eight bytes of the offset."""


@final
class Subscription(Recipient):
    """A consumer tag and what is delivered to it."""

    __slots__ = (
        "_answers",
        "_channel",
        "_context",
        "_encoder",
        "_tags",
        "asked_for",
        "consumer",
        "consumer_tag",
        "expects_acks",
        "forgets_group",
        "is_addressed",
        "is_quorum",
        "is_stream",
        "queue",
    )

    def __init__(
        self, context: ConnectionContext, channel: int, consumer_tag: str, queue: str, tags: Tags, answers: Answers
    ) -> None:
        # What every delivery looks at comes first: with thousands of these it is read from memory, line by line.
        self._answers = answers
        self._tags = tags
        self._encoder = DeliverEncoder(channel, consumer_tag, context.frame_max)
        self.expects_acks = True
        """Whether the client acknowledges; it may where the queue does not wait for that."""
        self.is_quorum = False
        self.is_addressed = False
        """Whether it came by a `$queue/` address or with a group: deliveries then say where they are from."""
        self.is_stream = False
        self.forgets_group = False
        """Whether the group was made for this consumer alone and goes with it."""
        self._context = context
        self._channel = channel
        self.consumer_tag = consumer_tag
        self.queue = queue
        self.asked_for = queue
        """The name or the address that the client gave, which its user must be allowed to read."""
        self.consumer: Consumer | None = None

    def open(self, prefetch: int, no_ack: bool, priority: int, shared: Credit | None) -> Consumer:
        """The consumer that core is given."""
        consumer = Consumer(self.consumer_tag, self, prefetch, no_ack, priority, shared, self._context.owner)
        consumer.exposes_offsets = self.is_stream or self.is_addressed
        if self.is_stream and not self.is_addressed:
            self._encoder = DeliverEncoder(
                self._channel, self.consumer_tag, self._context.frame_max, _STREAM_OFFSET_ENTRY
            )
        self.consumer = consumer
        self.expects_acks = not no_ack
        return consumer

    def allow(self, is_open: bool) -> None:
        """Have messages delivered, or none for now."""
        if self.consumer is not None:
            self._context.broker.allow(self.consumer, UNLIMITED if is_open else 0)

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Send what core delivers."""
        tags = self._tags
        is_held = self.expects_acks
        is_plain = not (self.is_quorum or self.is_addressed)
        encoder = self._encoder
        out = self._answers.parts()
        size_bytes = 0
        for delivery in deliveries:
            tag = tags.hold(delivery) if is_held else tags.pass_by()
            message = delivery.message
            source = message.source
            properties = message.properties
            if not (is_plain and properties and source.encoding == AMQP091):
                properties = self._adorned(delivery)
            redelivered, offset = delivery.redelivered, delivery.offset
            size_bytes += encoder.encode(
                out, source, tags.encoded(tag), redelivered, properties, message.payload, offset
            )
        self._answers.sent(size_bytes)

    def deliver_reply(self, message: Message) -> None:
        """Send a direct reply, which no queue held."""
        tags = self._tags
        tag = tags.encoded(tags.pass_by())
        properties = own_properties(self._context.broker, message)
        out = self._answers.parts()
        self._answers.sent(self._encoder.encode(out, message.source, tag, False, properties, message.payload))

    def _adorned(self, delivery: Delivery) -> bytes:
        """The properties with all that deliveries carry besides, but for the number that the encoder adds."""
        if self.is_addressed:
            return self._addressed(delivery)
        properties = own_properties(self._context.broker, delivery.message)
        return counted(properties, delivery) if self.is_quorum else properties

    def _addressed(self, delivery: Delivery) -> bytes:
        message = delivery.message
        properties = _said(self._context.broker, message)
        properties.message_id = format_message_id(self.queue, delivery.offset)
        properties.headers.update(
            {
                "group-id": delivery.group.name,
                "queue": self.queue,
                "offset": delivery.offset,
                "x-source-topic": message.source.topic,
                "client_id": message.source.client_id,
                "protocol": message.source.protocol,
            }
        )
        if self.is_stream:
            properties.headers[STREAM_OFFSET] = delivery.offset
            properties.headers["x-stream-timestamp"] = message.timestamp_us // 1000
            if isinstance(delivery.group, StreamGroup):
                properties.headers.update(delivery.group.work_headers(delivery.offset))
        return encode_properties(properties)


def own_properties(broker: Broker, message: Message) -> bytes:
    """The message's properties as 0-9-1 has them, translated if another protocol brought the message."""
    if message.source.encoding == AMQP091:
        return message.properties or NONE
    return encode_properties(_said(broker, message))


def _said(broker: Broker, message: Message) -> Properties:
    """What the message says; how long it is good for and how urgent it is too, which others leave to the broker."""
    properties = broker.codecs.decode(message)
    if message.expires_us and not properties.expiration:
        properties.expiration = str((message.expires_us - message.timestamp_us) // 1000)
    if message.priority:
        properties.extra.setdefault(PRIORITY, message.priority)
    return properties


def counted(properties: bytes, delivery: Delivery) -> bytes:
    """The properties with how often the message came back, where the queue counts that."""
    if delivery.attempts < 2 or delivery.group.queue.definition.kind != QUORUM:
        return properties
    return with_headers(properties, encode_entry("x-delivery-count", delivery.attempts - 1))


_GENERATED_TAG: Final = "amq.ctag-"


@final
class Subscriptions:
    """Everything that a channel consumes and has not settled."""

    def __init__(self, context: ConnectionContext, channel: int, publisher: Publisher, answers: Answers) -> None:
        self._context = context
        self._channel = channel
        self._publisher = publisher
        self._answers = answers
        self._tags = Tags()
        self._by_tag: dict[str, Subscription] = {}
        self._getters: dict[str, Consumer] = {}
        """Who holds what basic.get took, by queue."""
        self._settling: list[Iterator[None]] = []
        """Steps in which very many deliveries are still being settled."""
        self._retired: list[Consumer] = []
        """Consumers that were cancelled while they held something."""
        self._prefetch = 0
        self._shared: Credit | None = None
        self._is_flowing = True
        self.staged: list[tuple[int, Delivery, int]] | None = None
        """What a transaction has settled so far: tag, delivery, outcome. None outside transactions."""
        self.end_channel: Callable[[HeadraceError], None] = _nothing
        """Ends the channel, for what goes wrong later than what asked for it."""

    @property
    def consumers(self) -> list[Consumer]:
        """Those that were not cancelled."""
        return [found.consumer for found in self._by_tag.values() if found.consumer is not None]

    @property
    def unsettled(self) -> int:
        return len(self._tags)

    @property
    def prefetch(self) -> int:
        """The limit of the whole channel, or else of consumers to come; 0 for none."""
        if self._shared is not None and self._shared.limit != UNLIMITED:
            return self._shared.limit
        return self._prefetch

    # -- prefetch and flow -------------------------------------------------------------------------------------------

    def qos(self, method: commands.Basic.Qos) -> None:
        """Per consumer for those to come, or for the whole channel."""
        if method.prefetch_size:
            raise ProtocolError(NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
        if not method.global_:
            self._prefetch = method.prefetch_count
            return
        if self._shared is None:
            self._shared = Credit()
            for subscription in self._by_tag.values():
                consumer = subscription.consumer
                if consumer is not None:
                    consumer.shared = self._shared
                    self._shared.sharers[consumer] = None
                    self._shared.used += consumer.holding
        self._context.broker.set_shared_credit(self._shared, method.prefetch_count)

    def flow(self, active: bool) -> None:
        """The client wants deliveries, or none for now."""
        self._is_flowing = active
        self.refresh()

    def refresh(self) -> None:
        """Deliveries go on or stop, as the client and its reading allow."""
        is_open = self._is_open
        for subscription in self._by_tag.values():
            subscription.allow(is_open)

    @property
    def _is_open(self) -> bool:
        return self._is_flowing and not (self._context.is_held or self._answers.is_waiting)

    # -- consume and cancel ------------------------------------------------------------------------------------------

    def consume(self, method: commands.Basic.Consume, queue: str) -> str:
        """Start a consumer; returns its tag. Raises Refused kinds, ProtocolError for a tag that is in use."""
        tag = method.consumer_tag or _GENERATED_TAG + secrets.token_urlsafe(16)
        if tag in self._by_tag:
            raise ProtocolError(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        if queue == REPLY_TO:
            self._consume_replies(method, tag)
            return tag
        arguments: dict[str, object] = dict(method.arguments or {})
        key_filter, asked_for = "", queue
        is_address_given = is_address(queue)
        self._check_read(queue)
        if is_address_given:
            address = parse_address(queue)
            queue, key_filter = address.queue, address.key
            self._context.broker.addressed(queue, self._context.owner)
        found = self._context.broker.queue(queue, self._context.owner)
        definition = found.definition
        subscription = Subscription(self._context, self._channel, tag, queue, self._tags, self._answers)
        subscription.asked_for = asked_for
        group = _text(arguments, "x-consumer-group")
        subscription.is_addressed = is_address_given or bool(group)
        mode = mode_to_join(found, group, _text(arguments, "x-group-mode"))
        subscription.is_stream = mode == STREAM_MODE
        subscription.is_quorum = definition.kind == QUORUM
        if not group:
            group = self._own_group(subscription, arguments, key_filter) if mode == STREAM_MODE else DEFAULT_GROUP
        priority = arguments.get("x-priority", 0)
        if not isinstance(priority, int):
            raise PreconditionFailed(f"invalid arg 'x-priority': {priority!r} is not a whole number")
        consumer = subscription.open(self._prefetch, method.no_ack, priority, self._shared)
        consumer.cancelled = lambda: self._cancelled(subscription)
        if definition.has_consumer_timeout and not subscription.is_addressed:
            consumer.overdue = lambda: self._overdue(definition.lease_ms)
        self._context.broker.consume(
            queue,
            consumer,
            group,
            key_filter,
            mode,
            arguments.get(STREAM_OFFSET),
            auto_commit=_flag(arguments, "x-auto-commit", True),
            exclusive=method.exclusive,
        )
        self._by_tag[tag] = subscription
        if not self._is_open:
            subscription.allow(False)
        return tag

    def _check_read(self, queue: str) -> None:
        """Raises AccessRefused unless the user may read the queue, or what its address says."""
        if is_address(queue):
            self._context.rights.check_topic_subscribe(queue, self._context.client_id)
        else:
            self._context.rights.check(READ, QUEUE, queue)

    def _own_group(self, subscription: Subscription, arguments: dict[str, object], key_filter: str) -> str:
        """The group of a stream's reader that names none: its tag, or one of its own where another has that tag.

        A reader that says where to start needs no memory of where it was: its group goes with it.
        """
        tag = subscription.consumer_tag
        subscription.forgets_group = STREAM_OFFSET in arguments or tag.startswith(_GENERATED_TAG)
        taken = self._context.broker.topology.queue(subscription.queue).groups.get(effective_group(tag, key_filter))
        if taken is None or not len(taken.consumers):
            return tag
        subscription.forgets_group = True
        return f"{tag}-{secrets.token_urlsafe(9)}"

    def _consume_replies(self, method: commands.Basic.Consume, tag: str) -> None:
        if not method.no_ack:
            raise PreconditionFailed("reply consumer cannot acknowledge")
        if self._publisher.reply_key:
            raise PreconditionFailed("reply consumer already set")
        subscription = Subscription(self._context, self._channel, tag, REPLY_TO, self._tags, self._answers)
        self._publisher.reply_key = REPLY_PREFIX + secrets.token_urlsafe(18)
        self._context.host.replies[self._publisher.reply_key] = subscription.deliver_reply
        self._by_tag[tag] = subscription

    def cancel(self, tag: str) -> None:
        """End a consumer; what it has and did not settle stays the channel's to settle."""
        subscription = self._by_tag.pop(tag, None)
        if subscription is None:
            return
        consumer = subscription.consumer
        if consumer is None:
            self._forget_replies()
        else:
            self._retired = [other for other in (*self._retired, consumer) if other.holding]
            self._leave(subscription, consumer, keep=not subscription.is_stream)

    def restrict(self) -> None:
        """The user's rights have changed: what it may not read any more is cancelled, and the client is told."""
        for subscription in list(self._by_tag.values()):
            if subscription.consumer is None:
                continue  # replies to what it publishes itself
            try:
                self._check_read(subscription.asked_for)
            except Refused:
                self.cancel(subscription.consumer_tag)
                self._tell_cancelled(subscription)

    def _leave(self, subscription: Subscription, consumer: Consumer, keep: bool = False) -> None:
        group = consumer.group
        self._context.broker.cancel(consumer, keep)
        if subscription.forgets_group and group is not None and not group.queue.is_gone and not len(group.consumers):
            self._context.broker.cancel(consumer)
            self._context.broker.groups.delete(subscription.queue, group.name)

    def _forget_replies(self) -> None:
        self._context.host.replies.pop(self._publisher.reply_key, None)
        self._publisher.reply_key = ""

    def _cancelled(self, subscription: Subscription) -> None:
        """The queue went away under a consumer."""
        self._by_tag.pop(subscription.consumer_tag, None)
        self._tell_cancelled(subscription)

    def _tell_cancelled(self, subscription: Subscription) -> None:
        if self._context.has("consumer_cancel_notify"):
            self._send(commands.Basic.Cancel, {"consumer_tag": subscription.consumer_tag, "nowait": True})

    def _overdue(self, timeout_ms: int) -> None:
        """A consumer did not acknowledge in time: its channel ends, as RabbitMQ's does."""
        if self._publisher.is_closed:
            return
        self.end_channel(
            PreconditionFailed(
                f"delivery acknowledgement on channel {self._channel} timed out. Timeout value used: {timeout_ms} ms. "
                "The argument x-consumer-timeout of the queue sets another"
            )
        )

    def close(self) -> Iterator[None]:
        """The channel ends: consumers get nothing more, and go step by step. What is not settled goes back in line."""
        subscriptions = list(self._by_tag.values())
        others = [*self._retired, *self._getters.values()]
        self._by_tag.clear()
        self._retired = []
        self._getters.clear()
        self._tags.clear()
        for subscription in subscriptions:
            if subscription.consumer is None:
                self._forget_replies()
            else:
                subscription.consumer.silence()
        for consumer in others:
            consumer.silence()
        return self._leave_each(subscriptions, others)

    def _leave_each(self, subscriptions: list[Subscription], others: list[Consumer]) -> Iterator[None]:
        for steps in self._settling:
            yield from steps
        for subscription in subscriptions:
            if subscription.consumer is not None:
                yield from self._context.broker.give_back(subscription.consumer)
                self._leave(subscription, subscription.consumer)
                yield
        for consumer in others:
            yield from self._context.broker.give_back(consumer)
            self._context.broker.cancel(consumer)
            yield

    # -- get and settle ----------------------------------------------------------------------------------------------

    def get(self, method: commands.Basic.Get, queue: str) -> None:
        """One message, or the answer that there is none."""
        context = self._context
        self._check_read(queue)
        name = parse_address(queue).queue if is_address(queue) else queue
        delivery = context.broker.get(name, self._getter(name, method.no_ack))
        if delivery is None:
            self._send(commands.Basic.GetEmpty)
            return
        tag = self._tags.pass_by() if method.no_ack else self._tags.hold(delivery)
        message = delivery.message
        exchange, key = key_of(message.source)
        self._send(
            commands.Basic.GetOk,
            {
                "delivery_tag": tag,
                "redelivered": delivery.redelivered,
                "exchange": exchange,
                "routing_key": key,
                "message_count": delivery.group.queue.messages,
            },
        )
        properties = counted(own_properties(context.broker, message), delivery)
        self._answers.send(encode_content(self._channel, properties, message.payload, context.frame_max))

    def _send(self, kind: type[base.Frame], fields: Mapping[str, object] | None = None) -> None:
        self._answers.send(encode_method(self._channel, kind, fields))

    def _getter(self, queue: str, no_ack: bool) -> Consumer:
        if no_ack:
            return Consumer("basic.get", _no_deliveries, auto_ack=True, owner=self._context.owner)
        getter = self._getters.get(queue)
        if getter is None or (getter.group is not None and getter.group.queue.is_gone):
            getter = self._getters[queue] = Consumer("basic.get", _no_deliveries, owner=self._context.owner)
        return getter

    def ack(self, first: int, tag: int, multiple: bool) -> None:
        """Settle a tag, with all before it where it says so, or a row of tags. Raises PreconditionFailed."""
        if first == tag or self.staged is not None:
            for number in range(first, tag + 1):
                self._settle_tags(number, multiple, ACK)
            return
        found: list[Delivery] = []
        for number in range(first, tag + 1):
            delivery = self._tags.take(number)
            if delivery is None:
                break
            found.append(delivery)
        self._context.broker.acknowledge(found)
        if len(found) <= tag - first:
            raise _unknown(first + len(found))

    def nack(self, tag: int, multiple: bool, requeue: bool) -> None:
        self._settle_tags(tag, multiple, NACK if requeue else REJECT)

    def recover(self) -> None:
        """Have everything that is unsettled delivered again."""
        self._settle_all(self._tags.take_to(self._tags.last), RELEASE)

    def staged_settlements(self) -> list[tuple[Delivery, int]]:
        """What a transaction settles, but for queues that went away meanwhile."""
        return [(delivery, outcome) for _, delivery, outcome in self.staged or [] if not delivery.group.queue.is_gone]

    def unstage(self) -> None:
        """A transaction is rolled back: what it settled is with the client again, in its place."""
        if self.staged:
            self._tags.put_back({tag: delivery for tag, delivery, _ in self.staged})

    def _settle_tags(self, tag: int, multiple: bool, outcome: int) -> None:
        if multiple and tag and self._tags.get(tag) is None:
            raise _unknown(tag)
        last = tag or self._tags.last
        if multiple and self.staged is None:
            found = self._tags.take_to(last)
            if outcome == ACK:
                self._context.broker.acknowledge(found)
            else:
                self._settle_all(found, outcome)
            return
        for number in self._tags.up_to(last) if multiple else [tag]:
            self._settle_or_stage(number, outcome)

    def _settle_all(self, deliveries: list[Delivery], outcome: int) -> None:
        left = [*self._settling, self._context.broker.settle_all(deliveries, outcome)]
        self._settling = [
            steps for steps in left if next(steps, self) is None
        ]  # each goes on by one, if it is not over

    def _settle_or_stage(self, tag: int, outcome: int) -> None:
        delivery = self._tags.take(tag)
        if delivery is None:
            raise _unknown(tag)
        if self.staged is not None:
            self.staged.append((tag, delivery, outcome))
        else:
            self._settle(delivery, outcome)

    def _settle(self, delivery: Delivery, outcome: int) -> None:
        try:
            self._context.broker.settle(delivery, outcome)
        except Refused:
            return  # its time ran out and another has it, or its consumer left: nothing is left to settle


def _unknown(tag: int) -> PreconditionFailed:
    return PreconditionFailed(f"unknown delivery tag {tag}")


def _nothing(error: HeadraceError) -> None:
    return


def _no_deliveries(deliveries: list[Delivery]) -> None:
    raise AssertionError("basic.get asks for its messages")


def _text(arguments: dict[str, object], name: str) -> str:
    value = arguments.get(name, "")
    if not isinstance(value, str):
        raise PreconditionFailed(f"invalid arg '{name}': {value!r} is not a string")
    return value


def _flag(arguments: dict[str, object], name: str, default: bool) -> bool:
    value = arguments.get(name, default)
    if isinstance(value, str):
        return value.lower() not in ("false", "0", "no")
    if not isinstance(value, bool):
        raise PreconditionFailed(f"invalid arg '{name}': {value!r} is neither true nor false")
    return value
