"""Sources of links: queue, group and position, deliveries, browsers, and queues made for links. Credit: links.py.

A subscription that stays, or that several links share, is a queue named after the container and the link, so that the
next attach finds it again. Its selector is the queue's filter: what it does not want never comes in.
"""

import re
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, final

from headrace.core.access import permissions as rights
from headrace.core.access.permissions import READ
from headrace.core.broker import Broker
from headrace.core.queue.definition import QueueDefinition
from headrace.core.queue.dispatch import Consumer, Delivery, Found
from headrace.core.queue.group import ACK, NACK, REJECT, RELEASE, STREAM_MODE, mode_to_join
from headrace.core.queue.queue import DEFAULT_GROUP, Browser, Queue
from headrace.core.queue.stream import StreamGroup
from headrace.core.routing.address import effective_group, format_message_id, group_of_client, parse_address
from headrace.core.routing.exchange import Binding
from headrace.core.routing.topics import key_of_filter
from headrace.errors import AccessRefused, HeadraceError, NotFound, PreconditionFailed, ProtocolError, Refused
from headrace.model import AMQP10, Message
from headrace.model import Source as MessageSource
from headrace.protocols.amqp10.addresses import (
    ADDRESS,
    ANONYMOUS,
    EXCHANGE,
    MANAGEMENT,
    PATHS,
    QUEUE,
    TOPIC,
    Node,
    Wanted,
    parse_node,
    queue_path,
    wanted_of,
)
from headrace.protocols.amqp10.frames import INVALID_FIELD, RESOURCE_DELETED, SENDER_SETTLED
from headrace.protocols.amqp10.links import Origin, OutgoingLink
from headrace.protocols.amqp10.management import Replies
from headrace.protocols.amqp10.performatives import (
    NEVER,
    UNSETTLED_STATE,
    Accepted,
    Attach,
    Modified,
    Outcome,
    Rejected,
    Source,
)
from headrace.protocols.amqp10.properties import from_neutral, to_neutral, translated
from headrace.protocols.amqp10.sections import TO, Head, annotated, decode_head, joined, parts, stored, with_changes
from headrace.protocols.amqp10.types import Map

if TYPE_CHECKING:
    from headrace.protocols.amqp10.addresses import Wanted
    from headrace.protocols.amqp10.context import ConnectionContext
    from headrace.protocols.amqp10.session import Session

STREAM_OFFSET: Final = "x-stream-offset"
_MAX_ROUTED: Final = 256


@final
class Subscription(Origin):
    """A consumer of one queue, for one link."""

    def __init__(self, broker: Broker, queue: str, owner: object = None) -> None:
        self.broker = broker
        self.queue = queue
        self._owner = owner
        self.link: OutgoingLink | None = None
        self.consumer = None
        self.is_stream = False
        self.is_addressed = False
        """Whether it came by a `$queue/` address or with a group: deliveries then say where they are from."""
        self.tells_route = False
        """Whether deliveries have annotations with where they were published to, as RabbitMQ's clients expect."""
        self.not_from = ""
        """The container whose own messages are not for this link; "" for none."""
        self._routed: dict[tuple[MessageSource, bytes], bytes] = {}
        self.forgets_group = False
        """Whether the group was made for this link alone and goes with it."""
        self.deletes_queue = False
        """Whether the queue was made for this link alone and goes with it."""
        self.stays = False
        """Whether that queue stays until the link is closed, not only detached."""
        self.former: list[Consumer] = []
        """Who holds what an earlier link of this name had not settled."""

    # -- deliveries --------------------------------------------------------------------------------------------------

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Send what core delivers, in one piece."""
        link = self.link
        if link is None or link.is_over:
            return
        if self.not_from:
            deliveries = self._from_others(link, deliveries)
        is_plain = not (self.is_stream or self.is_addressed)
        messages: list[bytes] = []
        for delivery in deliveries:
            message = delivery.message
            is_first = delivery.attempts == 1 and not delivery.notes
            if not (is_plain and is_first and message.source.encoding == AMQP10):
                messages.append(self.rendered(delivery))
            elif self.tells_route:
                messages.append(joined(self._with_route(message), message.payload))
            else:
                messages.append(joined(message.properties, message.payload))
        link.send(messages, deliveries)

    def _from_others(self, link: OutgoingLink, deliveries: list[Delivery]) -> list[Delivery]:
        """Those that another container published; the others are done with, and their credit is there again."""
        wanted = [delivery for delivery in deliveries if delivery.message.source.client_id != self.not_from]
        for delivery in deliveries:
            if delivery not in wanted and not delivery.consumer.auto_ack:
                self.broker.settle(delivery, ACK)
        if len(wanted) < len(deliveries):
            self.broker.after_delivery(self.queue, link.refresh)
        return wanted

    def _with_route(self, message: Message) -> bytes:
        """The properties with their route, looked up where the same ones went out before."""
        key = (message.source, message.properties)
        found = self._routed.get(key)
        if found is None:
            head, footer = parts(message.properties)
            found = stored(message.properties[0], with_changes(head, None, route_of(message)), footer)
            if len(self._routed) >= _MAX_ROUTED:
                self._routed.clear()
            self._routed[key] = found
        return found

    def rendered(self, delivery: Delivery) -> bytes:
        """The whole message, with what this delivery adds to it."""
        properties, payload = own_message(self.broker, delivery.message)
        head, footer = parts(properties)
        count = delivery.attempts - 1
        annotations: dict[str, object] = {STREAM_OFFSET: delivery.offset} if self.is_stream else {}
        if self.tells_route:
            annotations.update(route_of(delivery.message))
        annotations.update(delivery.notes or {})
        if count or annotations:
            head = with_changes(head, count or None, annotations)
        if self.is_addressed:
            head = self._addressed(head, delivery)
        return joined(stored(properties[0], head, footer), payload)

    def _addressed(self, raw: bytes, delivery: Delivery) -> bytes:
        """The head with the names that consumers of `$queue/` addresses know."""
        source = delivery.message.source
        old = decode_head(raw)
        head = Head()
        head.header, head.delivery_annotations, head.annotations = old.header, old.delivery_annotations, old.annotations
        fields = list(old.properties or [])
        fields += [None] * (TO + 1 - len(fields))
        fields[0] = format_message_id(self.queue, delivery.offset)
        fields[TO] = source.topic
        head.properties = fields
        said: dict[str, object] = {
            "group-id": delivery.group.name,
            "queue": self.queue,
            "offset": delivery.offset,
            "x-source-topic": source.topic,
            "client_id": source.client_id,
            "protocol": source.protocol,
        }
        if self.is_stream:
            said[STREAM_OFFSET] = delivery.offset
            said["x-stream-timestamp"] = delivery.message.timestamp_us // 1000
            if isinstance(delivery.group, StreamGroup):
                said.update(delivery.group.work_headers(delivery.offset))
        more = Map([(name, from_neutral(value)) for name, value in said.items()])
        head.application = annotated(old.application or Map(), more)
        return head.encode()

    def open(self, link: OutgoingLink) -> None:
        self.link = link

    # -- what the link calls -----------------------------------------------------------------------------------------

    def allow(self, count: int) -> None:
        if self.consumer is not None:
            self.broker.allow(self.consumer, count)

    def settled(self, delivery: Delivery, outcome: Outcome) -> None:
        settlement = settlement_of(self.broker, delivery, outcome)
        try:
            self.broker.settle(delivery, settlement)
        except Refused:
            return  # its time ran out and another has it, or its consumer left: nothing is left to settle

    def leave(self) -> None:
        consumer, self.consumer = self.consumer, None
        if consumer is not None:
            self.broker.cancel(consumer, keep=True)
            self.former.append(consumer)

    def give_back(self) -> None:
        """What this link and those before it held goes back in line."""
        broker = self.broker
        for consumer in self.former:
            group = consumer.group
            broker.cancel(consumer)
            if self.forgets_group and group is not None and not group.queue.is_gone and not len(group.consumers):
                broker.groups.delete(self.queue, group.name)
        self.former.clear()

    def ending(self, is_closed: bool) -> Iterator[None]:
        if self.consumer is not None:
            self.consumer.silence()
        return self._end_each(is_closed)

    def _end_each(self, is_closed: bool) -> Iterator[None]:
        for consumer in [*self.former, *([] if self.consumer is None else [self.consumer])]:
            yield from self.broker.give_back(consumer)
        self.end(is_closed)
        yield

    def end(self, is_closed: bool) -> None:
        self.leave()
        self.give_back()
        broker = self.broker
        if self.deletes_queue and (is_closed or not self.stays):
            try:
                broker.delete(self.queue, owner=self._owner)
            except (NotFound, Refused):
                return  # gone already, with its connection or by another's hand

    def cancelled(self) -> None:
        """The queue went away under the consumer."""
        if self.link is not None:
            self.link.detach(end_of(self.broker, self.queue))


def end_of(broker: Broker, name: str) -> HeadraceError:
    """Why a queue went away under those who read it."""
    queue = broker.topology.queues.get(name)
    if queue is not None and queue.refusal is not None:
        return queue.refusal
    return ProtocolError(RESOURCE_DELETED, f"the queue '{name}' was deleted")


def consumer_name(key: tuple[str, str]) -> str:
    """The consumer of a link, as its queue's group knows it: also after a restart."""
    return "/".join(key)[:255]


def route_of(message: Message) -> dict[str, object]:
    """Where a message was published to, as RabbitMQ's clients are told."""
    return {"x-exchange": message.source.exchange, "x-routing-key": message.source.topic}


def own_message(broker: Broker, message: Message) -> tuple[bytes, bytes]:
    """Properties and payload as AMQP 1.0 has them, translated if another protocol brought the message."""
    if message.source.encoding == AMQP10 and message.properties:
        return message.properties, message.payload
    return translated(message, broker.codecs.decode(message))


def settlement_of(broker: Broker, delivery: Delivery, outcome: Outcome) -> int:
    """How core is to end a delivery; what a receiver noted on it goes with it."""
    if isinstance(outcome, Accepted):
        return ACK
    if isinstance(outcome, Rejected):
        return REJECT
    if not isinstance(outcome, Modified):
        return RELEASE
    if outcome.annotations is not None:
        delivery.notes = {**(delivery.notes or {}), **outcome.annotations.texts()}
    if outcome.undeliverable_here:
        if delivery.notes:
            delivery.message = _noted(broker, delivery.message, delivery.notes)
        return REJECT
    return NACK if outcome.delivery_failed else RELEASE


def _noted(broker: Broker, message: Message, notes: dict[str, object]) -> Message:
    """The message with what a receiver noted on it, in its own encoding: what a dead letter is made from."""
    properties = broker.codecs.decode(message)
    properties.headers.update({name: to_neutral(value) for name, value in notes.items()})
    raw = broker.codecs.encode(message.source.encoding, properties)
    return Message(
        message.source,
        message.payload,
        message.timestamp_us,
        raw,
        message.priority,
        message.expires_us,
        message.not_before_us,
    )


_TOPIC_EXCHANGE: Final = "amq.topic"
_SHARED: Final = "shared"
_GLOBAL: Final = "global"
_TEMPORARY_TOPICS: Final = "temporary/"


def own_queue(peer: "ConnectionContext", selector: str = "") -> Queue:
    """A queue for this connection alone, gone with it. Raises AccessRefused."""
    definition = QueueDefinition("", durable=False, exclusive=True, filter=selector)
    peer.rights.check_declare_queue(definition)
    return peer.broker.declare(definition, peer.owner)


def own_topic() -> str:
    """A topic that nobody else knows."""
    return _TEMPORARY_TOPICS + secrets.token_urlsafe(12)


def bound_subscription(
    peer: "ConnectionContext", link: str, source: Source, node: Node, wanted: "Wanted"
) -> Subscription:
    """A queue for a link that gets what is published to a topic or an exchange. Raises AccessRefused, NotFound."""
    if node.kind == TOPIC:
        peer.rights.check_topic_subscribe(node.name, peer.container_id)
    else:
        peer.rights.check(READ, rights.EXCHANGE, node.name)
        peer.rights.check_topic(READ, node.name, node.key or "", peer.container_id)
    selector = wanted.selector.text if wanted.selector is not None else ""
    exchange, key = (node.name, node.key or "")
    if node.kind == TOPIC:
        exchange, key = _TOPIC_EXCHANGE, key_of_filter(node.name)
    stays = source.expiry_policy == NEVER or source.timeout > 0
    is_shared = _SHARED in source.capabilities
    if stays or is_shared:
        expires_ms = 0 if source.expiry_policy == NEVER else source.timeout * 1000
        definition = QueueDefinition(
            _name(peer, link, source.capabilities),
            durable=source.durable > 0,
            auto_delete=not stays,
            expires_ms=expires_ms,
            filter=selector,
        )
        queue = _kept(peer, definition, exchange, key)
    else:
        queue = own_queue(peer, selector)
        peer.broker.bind(Binding(exchange, queue.name, key), peer.owner)
    subscription = Subscription(peer.broker, queue.name, peer.owner)
    subscription.deletes_queue = stays or not is_shared
    subscription.stays = stays
    if wanted.no_local:
        subscription.not_from = peer.container_id
    wanted.selector = None  # the queue has nothing but what is wanted
    return subscription


def _kept(peer: "ConnectionContext", definition: QueueDefinition, exchange: str, key: str) -> Queue:
    """The queue of a subscription: as it was left, or new where another topic or selector is wanted now, as JMS has it.

    Raises PreconditionFailed when others share it and want something else.
    """
    broker = peer.broker
    peer.rights.check_declare_queue(definition)
    peer.rights.check(READ, rights.QUEUE, definition.name)
    found = broker.topology.queues.get(definition.name)
    if found is not None:
        bindings = [(one.source, one.key) for one in broker.topology.exchanges.bindings_to(definition.name)]
        if found.definition.filter != definition.filter or bindings != [(exchange, key)]:
            if found.consumers:
                raise PreconditionFailed(
                    f"the subscription {definition.name!r} is in use with another topic or selector"
                )
            broker.delete(definition.name, owner=peer.owner)
    queue = broker.declare(definition)
    broker.bind(Binding(exchange, queue.name, key), peer.owner)
    return queue


def kept_subscription(peer: "ConnectionContext", link: str) -> tuple[Subscription, Source]:
    """The durable subscription of this container and name, for a receiver that asks for it without a source.

    That is how one is looked up to be ended: by closing the link. Raises NotFound, AccessRefused.
    """
    here = _subscriptions(peer, link)
    if not here:
        raise NotFound(f"no subscription '{link[:128]}' of the container '{peer.container_id[:128]}'")
    queue = peer.broker.queue(here[0], peer.owner)
    peer.rights.check(rights.CONFIGURE, rights.QUEUE, queue.name)
    subscription = Subscription(peer.broker, queue.name, peer.owner)
    subscription.deletes_queue = subscription.stays = True
    source = Source(queue_path(queue.name))
    source.durable = UNSETTLED_STATE
    source.expiry_policy = NEVER
    return subscription, source


def has_subscription(peer: "ConnectionContext", link: str) -> bool:
    """Whether there is such a subscription."""
    return bool(_subscriptions(peer, link))


def _subscriptions(peer: "ConnectionContext", link: str) -> list[str]:
    """The queues of the subscriptions that a link may mean by its name: its own, or one that it shares."""
    named = [_name(peer, link, []), _name(peer, link, [_SHARED]), _name(peer, link, [_SHARED, _GLOBAL])]
    return [name for name in named if name in peer.broker.topology.queues]


def _name(peer: "ConnectionContext", link: str, capabilities: list[str]) -> str:
    """The queue of a subscription. Links that share one are named `<subscription>|<anything>`, as Qpid JMS does;
    it is shared among containers where it is global."""
    container = "" if _GLOBAL in capabilities else peer.container_id
    name = link.partition("|")[0] if _SHARED in capabilities else link
    return f"{container}:{name}"[:200]


@final
class Browsing(Origin):
    """What one link is shown of a queue, whatever it says of it."""

    def __init__(self, broker: Broker, queue: str, tells_route: bool, wanted: Wanted, owner: object) -> None:
        self._broker = broker
        self.queue = queue
        self._tells_route = tells_route
        self._link: OutgoingLink | None = None
        self._browser: Browser = broker.browse(queue, self._show, wanted.selector, self._ended, owner)

    def open(self, link: OutgoingLink) -> None:
        self._link = link

    def allow(self, count: int) -> None:
        self._broker.allow_browser(self._browser, count)

    def settled(self, delivery: Delivery, outcome: Outcome) -> None:
        return

    def leave(self) -> None:
        self._broker.end_browser(self._browser)

    def end(self, is_closed: bool) -> None:
        self.leave()

    def _show(self, found: list[Found]) -> None:
        link = self._link
        if link is None or link.is_over:
            return
        messages: list[bytes] = []
        for _, message in found:
            properties, payload = own_message(self._broker, message)
            if self._tells_route:
                head, footer = parts(properties)
                properties = stored(properties[0], with_changes(head, None, route_of(message)), footer)
            messages.append(joined(properties, payload))
        link.send(messages, None)

    def _ended(self) -> None:
        if self._link is not None:
            self._link.detach(end_of(self._broker, self.queue))


_COPY: Final = "copy"
_GENERATED: Final = re.compile(r"[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")
"""A container id that nobody will have again."""


def origin_of(session: "Session", attach: Attach, source: Source) -> Origin:
    """Where the messages of a link come from. Raises HeadraceError kinds when they cannot come from there."""
    peer = session.peer
    if source.dynamic:
        queue = own_queue(peer)
        source.address = queue_path(queue.name)
        subscription = Subscription(peer.broker, queue.name, peer.owner)
        subscription.deletes_queue = True
        return _consume(peer, subscription, attach, Wanted(), DEFAULT_GROUP, "")
    node = parse_node(source.address, source.capabilities)
    if node.kind in (MANAGEMENT, PATHS):
        return Replies(session, source.address or "")
    if node.kind == ANONYMOUS:
        raise ProtocolError(INVALID_FIELD, f"the source of the link {attach.name[:64]!r} has no address")
    wanted = wanted_of(attach, source)
    source.filter = wanted.applied
    subscription, key_filter = _subscription(peer, attach, source, node, wanted)
    subscription.is_addressed = node.kind == ADDRESS or bool(wanted.group)
    subscription.tells_route = (source.address or "").startswith("/")
    queue = peer.broker.queue(subscription.queue, peer.owner)
    mode = mode_to_join(queue, wanted.group, wanted.mode)
    subscription.is_stream = mode == STREAM_MODE
    if source.distribution_mode == _COPY and node.kind == QUEUE and not queue.definition.is_stream:
        return Browsing(peer.broker, subscription.queue, subscription.tells_route, wanted, peer.owner)
    subscription.tags_by_offset = source.durable == UNSETTLED_STATE and not subscription.is_stream
    group = wanted.group
    if not group:
        group = _own_group(subscription, peer, wanted, key_filter) if subscription.is_stream else DEFAULT_GROUP
    return _consume(peer, subscription, attach, wanted, group, key_filter, mode)


def _consume(
    peer: "ConnectionContext",
    subscription: Subscription,
    attach: Attach,
    wanted: Wanted,
    group: str,
    key_filter: str,
    mode: int = 0,
) -> Subscription:
    is_settled = attach.sender_settles == SENDER_SETTLED
    name = consumer_name((peer.container_id, attach.name))
    consumer = Consumer(name, subscription.deliver, 0, is_settled, wanted.priority, owner=peer.owner)
    consumer.allowance = 0
    consumer.exposes_offsets = subscription.is_stream or subscription.is_addressed
    consumer.selector = wanted.selector
    consumer.cancelled = subscription.cancelled
    peer.broker.consume(
        subscription.queue, consumer, group, key_filter, mode, wanted.position, auto_commit=wanted.auto_commit
    )
    subscription.consumer = consumer
    return subscription


def _subscription(
    peer: "ConnectionContext", attach: Attach, source: Source, node: Node, wanted: Wanted
) -> tuple[Subscription, str]:
    """The queue that a source means, made if it is to be, and the filter of its keys."""
    broker = peer.broker
    if node.kind == ADDRESS:
        peer.rights.check_topic_subscribe(node.name, peer.container_id)
        address = parse_address(node.name)
        broker.addressed(address.queue, peer.owner)
        return Subscription(broker, address.queue, peer.owner), address.key
    if node.kind in (TOPIC, EXCHANGE):
        return bound_subscription(peer, attach.name, source, node, wanted), ""
    peer.rights.check(READ, rights.QUEUE, node.name)
    if node.name not in broker.topology.queues and "queue" in source.capabilities:
        definition = QueueDefinition(node.name)
        peer.rights.check_declare_queue(definition)
        broker.declare(definition, peer.owner)
    return Subscription(broker, node.name, peer.owner), ""


def _own_group(subscription: Subscription, peer: "ConnectionContext", wanted: Wanted, key_filter: str) -> str:
    """The group of a stream's reader that names none: that of its container, or one of its own where that is in use.

    A reader that says where to start, or whose container has a name for once only, leaves no group behind.
    """
    name = group_of_client(peer.container_id) or "default"
    is_generated = _GENERATED.fullmatch(peer.container_id) is not None
    subscription.forgets_group = wanted.position is not None or is_generated
    taken = peer.broker.topology.queue(subscription.queue).groups.get(effective_group(name, key_filter))
    if taken is None or not len(taken.consumers):
        return name
    subscription.forgets_group = True
    return f"{name}-{secrets.token_urlsafe(9)}"


def refusal_of(peer: "ConnectionContext", source: object) -> AccessRefused | None:
    """Why a user may not read what a link reads, which it once might; None when it still may."""
    if not isinstance(source, Source) or source.dynamic:
        return None
    node = parse_node(source.address, source.capabilities)
    try:
        if node.kind in (ADDRESS, TOPIC):
            peer.rights.check_topic_subscribe(node.name, peer.container_id)
        elif node.kind == EXCHANGE:
            peer.rights.check(READ, rights.EXCHANGE, node.name)
            peer.rights.check_topic(READ, node.name, node.key or "", peer.container_id)
        elif node.kind == QUEUE:
            peer.rights.check(READ, rights.QUEUE, node.name)
    except AccessRefused as error:
        return error
    return None
