"""Consuming on a channel: consume, deliver, settle, recover, prefetch, and delivery tags. Core decides what is read."""

import secrets
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Final, final

from pamqp import base, commands

from headrace.core.client import ConsumePlan, ConsumeRequest, Settling, request_table
from headrace.core.queue.definition import QUORUM, STREAM
from headrace.core.queue.dispatch import UNLIMITED, Consumer, Credit, Delivery, Recipient
from headrace.core.queue.filter_values import read_values
from headrace.core.queue.group import ACK, NACK, REJECT, RELEASE
from headrace.core.queue.stream import StreamGroup
from headrace.core.routing.address import format_message_id, is_address
from headrace.core.routing.topology import key_of
from headrace.errors import HeadraceError, PreconditionFailed, ProtocolError, Refused, ResourceLocked
from headrace.model import AMQP091, Message
from headrace.protocols.amqp091.codec import DeliverEncoder, encode_content
from headrace.protocols.amqp091.frames import NOT_ALLOWED, NOT_IMPLEMENTED
from headrace.protocols.amqp091.methods import encode_method
from headrace.protocols.amqp091.publishing import REPLY_PREFIX, REPLY_TO, Publisher
from headrace.protocols.amqp091.server import ConnectionContext
from headrace.protocols.answers import Answers
from headrace.wire.amqp091 import NONE, encode_entry, encode_properties, encode_shortstr
from headrace.wire.amqp091_scan import with_headers
from headrace.wire.encodings import properties_of
from headrace.wire.properties import Properties

_SLACK: Final = 256
"""The row may have this many empty places more than taken ones."""


@final
class Tags:
    """Unsettled deliveries by delivery tag, oldest first.

    Tags are consecutive, so a list holds the deliveries: a dictionary took 300 instructions and two numbers more for
    each, of 10,000. Old deliveries that stay unsettled move to a dictionary, so the list has at most twice as many
    places as deliveries.
    """

    __slots__ = ("_aside", "_first", "_out", "_row", "last")

    def __init__(self) -> None:
        self.last = 0
        """The last tag that was given out."""
        self._row: list[Delivery | None] = []
        """The deliveries of the tags from `_first` to `last`; None for a settled one."""
        self._first = 1
        self._out = 0
        """Unsettled deliveries in the row."""
        self._aside: dict[int, Delivery] = {}
        """Unsettled deliveries with tags before the row."""

    def __len__(self) -> int:
        return self._out + len(self._aside)

    def hold(self, delivery: Delivery) -> int:
        """Give a tag to a delivery that the client has to settle."""
        self.last += 1
        self._row.append(delivery)
        self._out += 1
        return self.last

    def pass_by(self) -> int:
        """Give a tag to a delivery that nobody settles."""
        self.last += 1
        if self._row:
            self._row.append(None)
            self._tidy()
        else:
            self._first = self.last + 1
        return self.last

    def get(self, tag: int) -> Delivery | None:
        """The unsettled delivery with this tag."""
        at = tag - self._first
        if at < 0:
            return self._aside.get(tag)
        return self._row[at] if at < len(self._row) else None

    def take(self, tag: int) -> Delivery | None:
        """Remove and return the unsettled delivery with this tag."""
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
        """The unsettled tags up to this one, oldest first."""
        found = [tag for tag in self._aside if tag <= last]
        for at in range(min(len(self._row), last - self._first + 1)):
            if self._row[at] is not None:
                found.append(self._first + at)
        return found

    def take_to(self, last: int) -> list[Delivery]:
        """Remove and return the unsettled deliveries up to this tag."""
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
        """Put back deliveries that were taken."""
        for tag, delivery in taken.items():
            if tag < self._first:
                self._aside[tag] = delivery
            else:
                self._row[tag - self._first] = delivery
                self._out += 1
        self._aside = dict(sorted(self._aside.items()))

    def clear(self) -> None:
        """Forget all deliveries."""
        self._aside.clear()
        self._out = 0
        self._tidy()

    def _tidy(self) -> None:
        """Keep the row short: a few instructions for each tag, on average."""
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
        """Drop the first places of the row, which are empty."""
        if count == len(self._row):
            self._row = []
        else:
            del self._row[:count]
        self._first += count


STREAM_OFFSET: Final = "x-stream-offset"
_ARGUMENTS: Final = request_table("x-consumer-group", "x-group-mode", STREAM_OFFSET, "x-auto-commit", "x-priority")
_FILTER: Final = "x-stream-filter"
_OTHERS: Final = "x-stream-match-unfiltered"
_STREAM_OFFSET_ENTRY: Final = encode_shortstr(STREAM_OFFSET) + b"l"
"""Name and type of RabbitMQ's header; the eight bytes of the offset follow."""


@final
class Subscription(Recipient):
    """A consumer tag and its deliveries."""

    __slots__ = (
        "_answers",
        "_channel",
        "_context",
        "_encoder",
        "_tags",
        "consumer",
        "consumer_tag",
        "expects_acks",
        "is_plain",
        "plan",
    )

    def __init__(
        self, context: ConnectionContext, channel: int, consumer_tag: str, tags: Tags, answers: Answers
    ) -> None:
        # The fields of every delivery come first: with thousands of subscriptions they are read from memory, line by
        # line.
        self._answers = answers
        self._tags = tags
        self._encoder = DeliverEncoder(channel, consumer_tag, context.frame_max)
        self.expects_acks = True
        """True if the client acknowledges; it may even if the queue does not wait for that."""
        self.is_plain = True
        """True if deliveries carry the properties of the message and no more."""
        self._context = context
        self._channel = channel
        self.consumer_tag = consumer_tag
        self.plan: ConsumePlan | None = None
        self.consumer: Consumer | None = None
        """None for direct replies, which no queue holds."""

    def open(self, plan: ConsumePlan, shared: Credit | None) -> Consumer:
        """Make the consumer of a plan, before it joins its group."""
        consumer = self._context.client.consumer(plan, self.consumer_tag, self, shared)
        consumer.exposes_offsets = plan.is_stream or plan.is_addressed
        if plan.is_stream and not plan.is_addressed:
            self._encoder = DeliverEncoder(
                self._channel, self.consumer_tag, self._context.frame_max, _STREAM_OFFSET_ENTRY
            )
        self.plan = plan
        self.consumer = consumer
        self.expects_acks = not plan.request.auto_ack
        self.is_plain = not (plan.is_addressed or plan.queue.definition.kind == QUORUM)
        return consumer

    def allow(self, is_open: bool) -> None:
        """Let deliveries come, or pause them."""
        if self.consumer is not None:
            self._context.broker.allow(self.consumer, UNLIMITED if is_open else 0)

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Send deliveries of core."""
        tags = self._tags
        is_held = self.expects_acks
        is_plain = self.is_plain
        encoder = self._encoder
        out: list[bytes] = []
        for delivery in deliveries:
            tag = tags.hold(delivery) if is_held else tags.pass_by()
            message = delivery.message
            source = message.source
            properties = message.properties
            if not (is_plain and properties and source.encoding == AMQP091):
                properties = self._adorned(delivery)
            if source is not encoder.source:
                exchange, key = key_of(source)
                encoder.address(source, exchange, key)
            encoder.encode(out, tag, delivery.redelivered, properties, message.payload, delivery.offset)
        self._send(out)

    def deliver_reply(self, message: Message) -> None:
        """Send a direct reply, which no queue held."""
        tags = self._tags
        properties = own_properties(message)
        out: list[bytes] = []
        exchange, key = key_of(message.source)
        self._encoder.address(message.source, exchange, key)
        self._encoder.encode(out, tags.pass_by(), False, properties, message.payload)
        self._send(out)

    def _send(self, out: list[bytes]) -> None:
        self._encoder.finish(out)
        for part in out:
            self._answers.send(part)

    def _adorned(self, delivery: Delivery) -> bytes:
        """The properties with the headers of this delivery, except for the offset that the encoder adds."""
        plan = self.plan
        if plan is not None and plan.is_addressed:
            return self._addressed(plan, delivery)
        return counted(own_properties(delivery.message), delivery)

    def _addressed(self, plan: ConsumePlan, delivery: Delivery) -> bytes:
        message, queue = delivery.message, plan.queue.name
        properties = _properties_of(message)
        properties.message_id = format_message_id(queue, delivery.offset)
        properties.headers.update(
            {
                "group-id": delivery.group.name,
                "queue": queue,
                "offset": delivery.offset,
                "x-source-topic": message.source.topic,
                "client_id": message.source.client_id,
                "protocol": message.source.protocol,
            }
        )
        if plan.is_stream:
            properties.headers[STREAM_OFFSET] = delivery.offset
            properties.headers["x-stream-timestamp"] = message.timestamp_us // 1000
            if isinstance(delivery.group, StreamGroup):
                properties.headers.update(delivery.group.work_headers(delivery.offset))
        return encode_properties(properties)


def own_properties(message: Message) -> bytes:
    """The message's properties in the encoding of 0-9-1, translated if another protocol brought the message."""
    if message.source.encoding == AMQP091:
        return message.properties or NONE
    return encode_properties(_properties_of(message))


def _properties_of(message: Message) -> Properties:
    """The message's properties, with expiration and priority, which other protocols leave to the broker."""
    properties = properties_of(message)
    if message.expires_us and not properties.expiration:
        properties.expiration = str((message.expires_us - message.timestamp_us) // 1000)
    if message.priority and properties.priority < 0:
        properties.priority = message.priority
    return properties


def counted(properties: bytes, delivery: Delivery, first: int = 2) -> bytes:
    """The properties with the delivery count of a quorum queue, from this attempt on."""
    if delivery.attempts < first or delivery.group.queue.definition.kind != QUORUM:
        return properties
    return with_headers(properties, encode_entry("x-delivery-count", delivery.attempts - 1))


_GENERATED_TAG: Final = "amq.ctag-"


@final
class Subscriptions:
    """The consumers of a channel, and its unsettled deliveries."""

    def __init__(self, context: ConnectionContext, channel: int, publisher: Publisher, answers: Answers) -> None:
        self._context = context
        self._client = context.client
        self._broker = context.broker
        self._channel = channel
        self._publisher = publisher
        self._answers = answers
        self._tags = Tags()
        self._by_tag: dict[str, Subscription] = {}
        self._getters: dict[str, Consumer] = {}
        """By queue, the consumer that holds the messages of basic.get."""
        self._settling = Settling(self._broker)
        self._retired: list[Consumer] = []
        """Cancelled consumers that still hold messages."""
        self._prefetch = 0
        self._shared: Credit | None = None
        self.staged: list[tuple[int, Delivery, int]] | None = None
        """The settlements of the open transaction: tag, delivery, outcome. None outside transactions."""
        self.end_channel: Callable[[HeadraceError], None] = _nothing
        """Ends the channel for an error that shows later than its cause."""

    def detach(self) -> None:
        """Tell the channel nothing more."""
        self.end_channel = _nothing

    @property
    def consumers(self) -> list[Consumer]:
        """The consumers that were not cancelled."""
        return [found.consumer for found in self._by_tag.values() if found.consumer is not None]

    @property
    def unsettled(self) -> int:
        return len(self._tags)

    @property
    def prefetch(self) -> int:
        """The limit of the whole channel, or that of new consumers; 0 for none."""
        if self._shared is not None and self._shared.limit != UNLIMITED:
            return self._shared.limit
        return self._prefetch

    # -- prefetch and pauses -----------------------------------------------------------------------------------------

    def qos(self, method: commands.Basic.Qos) -> None:
        """Set the limit of each new consumer, or that of the whole channel."""
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
        self._broker.set_shared_credit(self._shared, method.prefetch_count)

    def refresh(self) -> None:
        """Start or stop deliveries, as the client's reading and waiting answers allow."""
        is_open = self._is_open
        for subscription in self._by_tag.values():
            subscription.allow(is_open)

    @property
    def _is_open(self) -> bool:
        return not (self._context.is_held or self._answers.is_waiting)

    # -- consume and cancel ------------------------------------------------------------------------------------------

    def consume(self, method: commands.Basic.Consume, queue: str) -> str:
        """Start a consumer; returns its tag. Raises Refused kinds, ProtocolError for a tag that is in use."""
        tag = method.consumer_tag or _GENERATED_TAG + secrets.token_urlsafe(16)
        if tag in self._by_tag:
            raise ProtocolError(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        if queue == REPLY_TO:
            self._consume_replies(method, tag)
            return tag
        if not is_address(queue):
            self._client.check_read(queue, False)
            kind = self._broker.queue(queue, self._client.owner).definition.kind
            if kind in (QUORUM, STREAM) and self._shared is not None and self._shared.limit != UNLIMITED:
                where = f"queue '{queue}' in vhost '{self._context.host.name}'"
                raise ProtocolError(NOT_IMPLEMENTED, f"{where} does not support global qos")
        arguments: dict[str, object] = dict(method.arguments or {})
        request = ConsumeRequest(queue, is_address(queue))
        request.read(_ARGUMENTS, arguments, f" for queue '{queue}' in vhost '{self._context.host.name}'")
        self._read_filter(request, arguments, queue)
        request.exclusive = method.exclusive
        request.own_group = tag
        # A reader that says where to start needs no memory of where it was.
        request.forgets_own_group = STREAM_OFFSET in arguments or tag.startswith(_GENERATED_TAG)
        request.credit = self._prefetch
        request.auto_ack = method.no_ack
        plan = self._client.resolve(request)
        subscription = Subscription(self._context, self._channel, tag, self._tags, self._answers)
        consumer = subscription.open(plan, self._shared)
        consumer.cancelled = lambda: self._cancelled(subscription)
        if plan.queue.declared.has_consumer_timeout and not plan.is_addressed:
            consumer.overdue = lambda: self._overdue(plan.queue.definition.lease_ms)
        self._client.consume(plan, consumer)
        self._by_tag[tag] = subscription
        if not self._is_open:
            subscription.allow(False)
        return tag

    def _read_filter(self, request: ConsumeRequest, arguments: dict[str, object], queue: str) -> None:
        """Read the filter values that a consumer of a stream asks for. Raises PreconditionFailed."""
        of = f"for queue '{queue}' in vhost '{self._context.host.name}'"
        if _FILTER in arguments:
            try:
                request.filter_values = read_values(arguments[_FILTER])
            except Refused as error:
                raise PreconditionFailed(f"invalid arg '{_FILTER}' {of}: {error}") from error
        others = arguments.get(_OTHERS, False)
        if not isinstance(others, bool):
            raise PreconditionFailed(f"invalid arg '{_OTHERS}' {of}: must be true or false")
        request.admits_others = others

    def _consume_replies(self, method: commands.Basic.Consume, tag: str) -> None:
        if not method.no_ack:
            raise PreconditionFailed("reply consumer cannot acknowledge")
        if self._publisher.reply_key:
            raise PreconditionFailed("reply consumer already set")
        subscription = Subscription(self._context, self._channel, tag, self._tags, self._answers)
        self._publisher.reply_key = REPLY_PREFIX + secrets.token_urlsafe(18)
        self._context.host.replies[self._publisher.reply_key] = subscription.deliver_reply
        self._by_tag[tag] = subscription

    def cancel(self, tag: str) -> None:
        """End a consumer; the channel may still settle what it holds."""
        subscription = self._by_tag.pop(tag, None)
        if subscription is None:
            return
        plan, consumer = subscription.plan, subscription.consumer
        if plan is None or consumer is None:
            self._forget_replies()
        else:
            self._retired = [other for other in (*self._retired, consumer) if other.holding]
            self._client.cancel(plan, consumer, keep=not plan.is_stream)

    def restrict(self) -> None:
        """Cancel consumers of queues that the user may not read any more, and tell the client."""
        for subscription in list(self._by_tag.values()):
            if subscription.plan is not None and not self._client.may_read(subscription.plan):
                self.cancel(subscription.consumer_tag)
                self._tell_cancelled(subscription)

    def _forget_replies(self) -> None:
        self._context.host.replies.pop(self._publisher.reply_key, None)
        self._publisher.reply_key = ""

    def _cancelled(self, subscription: Subscription) -> None:
        """Forget a consumer whose queue is gone. Who deleted it hears of that first, as from RabbitMQ."""
        self._by_tag.pop(subscription.consumer_tag, None)
        self._broker.at_flush(lambda: self._tell_cancelled(subscription))

    def _tell_cancelled(self, subscription: Subscription) -> None:
        if self._context.has("consumer_cancel_notify") and not self._publisher.is_closed:
            self._send(commands.Basic.Cancel, {"consumer_tag": subscription.consumer_tag, "nowait": True})

    def _overdue(self, timeout_ms: int) -> None:
        """End the channel of a consumer that did not acknowledge in time, as RabbitMQ does."""
        if self._publisher.is_closed:
            return
        self.end_channel(
            PreconditionFailed(
                f"delivery acknowledgement on channel {self._channel} timed out. Timeout value used: {timeout_ms} ms. "
                "The argument x-consumer-timeout of the queue sets another"
            )
        )

    def close(self) -> Iterator[None]:
        """End with the channel: silence the consumers now; the steps give back their messages and cancel them."""
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
        ended = [(each.plan, each.consumer) for each in subscriptions if each.consumer is not None]
        return chain(self._settling.rest(), self._client.end_each([*ended, *[(None, each) for each in others]]))

    # -- get and settle ----------------------------------------------------------------------------------------------

    def get(self, method: commands.Basic.Get, queue: str) -> None:
        """Send one message, or basic.get-empty."""
        name = self._client.check_read(queue, is_address(queue)).queue
        found = self._broker.queue(name, self._client.owner)
        if found.is_stream:
            raise self._not_for_streams("basic.get", name)
        if found.definition.kind == QUORUM and found.definition.single_active:
            raise ResourceLocked(
                f"cannot obtain access to locked queue '{name}' in vhost '{self._context.host.name}'. basic.get "
                f"operations are not supported by quorum queues with single active consumer"
            )
        delivery = self._broker.get(name, self._getter(name, method.no_ack))
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
        properties = counted(own_properties(message), delivery, first=1)
        self._answers.send(encode_content(self._channel, properties, message.payload, self._context.frame_max))

    def purge(self, name: str) -> int:
        """Drop the waiting messages of a queue; returns how many. Raises ProtocolError for a stream."""
        if self._broker.queue(name, self._client.owner).is_stream:
            raise self._not_for_streams("queue.purge", name)
        return self._broker.purge(name, self._client.owner)

    def _not_for_streams(self, method: str, queue: str) -> ProtocolError:
        where = f"queue '{queue}' in vhost '{self._context.host.name}'"
        return ProtocolError(NOT_IMPLEMENTED, f"{method} not supported by stream queues {where}")

    def _send(self, kind: type[base.Frame], fields: Mapping[str, object] | None = None) -> None:
        self._answers.send(encode_method(self._channel, kind, fields))

    def _getter(self, queue: str, no_ack: bool) -> Consumer:
        if no_ack:
            return Consumer("basic.get", _no_deliveries, auto_ack=True, owner=self._client.owner)
        getter = self._getters.get(queue)
        if getter is None or (getter.group is not None and getter.group.queue.is_gone):
            getter = self._getters[queue] = Consumer("basic.get", _no_deliveries, owner=self._client.owner)
        return getter

    def ack(self, first: int, tag: int, multiple: bool) -> None:
        """Settle a tag, all tags up to it, or a row of tags. Raises PreconditionFailed."""
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
        self._broker.acknowledge(found)
        if len(found) <= tag - first:
            raise _unknown(first + len(found))

    def nack(self, tag: int, multiple: bool, requeue: bool) -> None:
        self._settle_tags(tag, multiple, NACK if requeue else REJECT)

    def recover(self) -> None:
        """Deliver all unsettled messages again."""
        self._settling.start(self._tags.take_to(self._tags.last), RELEASE)

    def staged_settlements(self) -> list[tuple[Delivery, int]]:
        """The settlements of the transaction, without those of deleted queues."""
        return [(delivery, outcome) for _, delivery, outcome in self.staged or [] if not delivery.group.queue.is_gone]

    def unstage(self) -> None:
        """Roll back: give the deliveries of the transaction their tags again."""
        if self.staged:
            self._tags.put_back({tag: delivery for tag, delivery, _ in self.staged})

    def _settle_tags(self, tag: int, multiple: bool, outcome: int) -> None:
        if multiple and tag and self._tags.get(tag) is None:
            raise _unknown(tag)
        last = tag or self._tags.last
        if multiple and self.staged is None:
            found = self._tags.take_to(last)
            if outcome == ACK:
                self._broker.acknowledge(found)
            else:
                self._settling.start(found, outcome)
            return
        for number in self._tags.up_to(last) if multiple else [tag]:
            self._settle_or_stage(number, outcome)

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
            self._broker.settle(delivery, outcome)
        except Refused:
            return  # its lease ran out or its consumer left: nothing is left to settle


def _unknown(tag: int) -> PreconditionFailed:
    return PreconditionFailed(f"unknown delivery tag {tag}")


def _nothing(error: HeadraceError) -> None:
    return


def _no_deliveries(deliveries: list[Delivery]) -> None:
    raise AssertionError("basic.get asks for its messages")
