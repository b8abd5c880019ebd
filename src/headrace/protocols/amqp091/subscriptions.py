"""The consuming side of a channel: consume, cancel, get, settle, recover, prefetch. Deliveries: subscription.py."""

import secrets
from collections.abc import Callable, Mapping
from typing import Final, final

from pamqp import base, commands

from headrace.core.address import effective_group, is_address, parse_address
from headrace.core.definition import QUORUM
from headrace.core.delivery import UNLIMITED, Consumer, Credit, Delivery
from headrace.core.group import ACK, NACK, REJECT, RELEASE
from headrace.core.modes import STREAM_MODE, mode_to_join
from headrace.core.queue import DEFAULT_GROUP
from headrace.core.rights import QUEUE, READ
from headrace.core.topology import key_of
from headrace.errors import HeadraceError, PreconditionFailed, ProtocolError, Refused
from headrace.protocols.amqp091.encoding import encode_content
from headrace.protocols.amqp091.frames import NOT_ALLOWED, NOT_IMPLEMENTED
from headrace.protocols.amqp091.link import Link
from headrace.protocols.amqp091.methods import encode_method
from headrace.protocols.amqp091.publishing import REPLY_PREFIX, REPLY_TO, Publisher
from headrace.protocols.amqp091.subscription import STREAM_OFFSET, Subscription, counted, own_properties
from headrace.protocols.amqp091.tags import Tags
from headrace.protocols.answers import Answers

_GENERATED_TAG: Final = "amq.ctag-"


@final
class Subscriptions:
    """Everything that a channel consumes and has not settled."""

    def __init__(self, link: Link, channel: int, publisher: Publisher, answers: Answers) -> None:
        self._link = link
        self._channel = channel
        self._publisher = publisher
        self._answers = answers
        self._tags = Tags()
        self._by_tag: dict[str, Subscription] = {}
        self._getters: dict[str, Consumer] = {}
        """Who holds what basic.get took, by queue."""
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
        self._link.broker.set_shared_credit(self._shared, method.prefetch_count)

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
        return self._is_flowing and not (self._link.is_held or self._answers.is_waiting)

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
            self._link.broker.addressed(queue, self._link.owner)
        found = self._link.broker.queue(queue, self._link.owner)
        definition = found.definition
        subscription = Subscription(self._link, self._channel, tag, queue, self._tags, self._answers)
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
        self._link.broker.consume(
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
            self._link.rights.check_topic_subscribe(queue, self._link.client_id)
        else:
            self._link.rights.check(READ, QUEUE, queue)

    def _own_group(self, subscription: Subscription, arguments: dict[str, object], key_filter: str) -> str:
        """The group of a stream's reader that names none: its tag, or one of its own where another has that tag.

        A reader that says where to start needs no memory of where it was: its group goes with it.
        """
        tag = subscription.consumer_tag
        subscription.forgets_group = STREAM_OFFSET in arguments or tag.startswith(_GENERATED_TAG)
        taken = self._link.broker.topology.queue(subscription.queue).groups.get(effective_group(tag, key_filter))
        if taken is None or not len(taken.consumers):
            return tag
        subscription.forgets_group = True
        return f"{tag}-{secrets.token_urlsafe(9)}"

    def _consume_replies(self, method: commands.Basic.Consume, tag: str) -> None:
        if not method.no_ack:
            raise PreconditionFailed("reply consumer cannot acknowledge")
        if self._publisher.reply_key:
            raise PreconditionFailed("reply consumer already set")
        subscription = Subscription(self._link, self._channel, tag, REPLY_TO, self._tags, self._answers)
        self._publisher.reply_key = REPLY_PREFIX + secrets.token_urlsafe(18)
        self._link.host.replies[self._publisher.reply_key] = subscription.deliver_reply
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
        self._link.broker.cancel(consumer, keep)
        if subscription.forgets_group and group is not None and not group.queue.is_gone and not len(group.consumers):
            self._link.broker.cancel(consumer)
            self._link.broker.groups.delete(subscription.queue, group.name)

    def _forget_replies(self) -> None:
        self._link.host.replies.pop(self._publisher.reply_key, None)
        self._publisher.reply_key = ""

    def _cancelled(self, subscription: Subscription) -> None:
        """The queue went away under a consumer."""
        self._by_tag.pop(subscription.consumer_tag, None)
        self._tell_cancelled(subscription)

    def _tell_cancelled(self, subscription: Subscription) -> None:
        if self._link.has("consumer_cancel_notify"):
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

    def close(self) -> None:
        """The channel ends: consumers go, and everything unsettled goes back in line."""
        for subscription in list(self._by_tag.values()):
            if subscription.consumer is None:
                self._forget_replies()
            else:
                self._leave(subscription, subscription.consumer)
        self._by_tag.clear()
        for consumer in (*self._retired, *self._getters.values()):
            self._link.broker.cancel(consumer)
        self._tags.clear()

    # -- get and settle ----------------------------------------------------------------------------------------------

    def get(self, method: commands.Basic.Get, queue: str) -> None:
        """One message, or the answer that there is none."""
        link = self._link
        self._check_read(queue)
        name = parse_address(queue).queue if is_address(queue) else queue
        delivery = link.broker.get(name, self._getter(name, method.no_ack))
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
        properties = counted(own_properties(link.broker, message), delivery)
        self._answers.send(encode_content(self._channel, properties, message.payload, link.frame_max))

    def _send(self, kind: type[base.Frame], fields: Mapping[str, object] | None = None) -> None:
        self._answers.send(encode_method(self._channel, kind, fields))

    def _getter(self, queue: str, no_ack: bool) -> Consumer:
        if no_ack:
            return Consumer("basic.get", _no_deliveries, auto_ack=True, owner=self._link.owner)
        getter = self._getters.get(queue)
        if getter is None or (getter.group is not None and getter.group.queue.is_gone):
            getter = self._getters[queue] = Consumer("basic.get", _no_deliveries, owner=self._link.owner)
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
        self._link.broker.acknowledge(found)
        if len(found) <= tag - first:
            raise _unknown(first + len(found))

    def nack(self, tag: int, multiple: bool, requeue: bool) -> None:
        self._settle_tags(tag, multiple, NACK if requeue else REJECT)

    def recover(self) -> None:
        """Have everything that is unsettled delivered again."""
        for delivery in self._tags.take_to(self._tags.last):
            self._settle(delivery, RELEASE)

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
        if multiple and outcome == ACK and self.staged is None:
            self._link.broker.acknowledge(self._tags.take_to(last))
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
            self._link.broker.settle(delivery, outcome)
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
