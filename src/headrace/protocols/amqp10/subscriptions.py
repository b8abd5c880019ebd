"""Receivers of the peer: the answer to their attach, deliveries as messages, settlements, browsers. Credit: session.py.

context.py says which queue, group and position a source means.
"""

from collections.abc import Iterator
from typing import Final, final

from headrace.core.broker import Broker
from headrace.core.queue.dispatch import Delivery, Found
from headrace.core.queue.group import ACK, NACK, REJECT, RELEASE
from headrace.core.queue.queue import Browser
from headrace.core.queue.stream import StreamGroup
from headrace.core.routing.address import MAX_CACHED_KEY, format_message_id
from headrace.errors import HeadraceError, NotFound, ProtocolError, Refused
from headrace.model import AMQP10, Message
from headrace.model import Source as MessageSource
from headrace.protocols.amqp10 import addresses, frames
from headrace.protocols.amqp10.addresses import parse_node, queue_path, request_of
from headrace.protocols.amqp10.context import ConnectionContext, Reading
from headrace.protocols.amqp10.management import Replies
from headrace.protocols.amqp10.performatives import (
    RELEASED,
    Accepted,
    Attach,
    Modified,
    Outcome,
    Rejected,
    Source,
)
from headrace.protocols.amqp10.session import Link, Origin, OutgoingLink, Session
from headrace.selector import Selector
from headrace.wire.amqp10 import (
    TO,
    Head,
    annotated,
    body_start,
    decode_head,
    encode_annotations,
    from_neutral,
    joined,
    parts,
    stored,
    to_neutral,
    translated,
    with_changes,
)
from headrace.wire.amqp10_scan import annotations_place
from headrace.wire.encodings import encode_properties, properties_of
from headrace.wire.types import Map

STREAM_OFFSET: Final = "x-stream-offset"
_MAX_ROUTES: Final = 256
_OUTCOMES: Final = ["amqp:accepted:list", "amqp:rejected:list", "amqp:released:list", "amqp:modified:list"]
_COPY: Final = "copy"


# -- attaching -------------------------------------------------------------------------------------------------------


def attach_receiver(session: Session, attach: Attach) -> Link:
    """Attach a link to a receiver, and answer. Raises HeadraceError kinds if it cannot be."""
    context, sources = session.context, session.context.host.sources
    key = (context.container_id, attach.name)
    sources.make_way(key)
    if attach.source is None:
        found = sources.find(key)
        if found is None or context.subscriptions(attach.name):
            return _attach_found(session, attach)
        attach.source = found
    source = attach.source
    if attach.sender_settles == frames.SENDER_MIXED:
        attach.sender_settles = frames.SENDER_UNSETTLED
    source.outcomes = _OUTCOMES
    source.default_outcome = source.default_outcome or RELEASED
    origin = _origin_of(session, attach, source)
    link = OutgoingLink(session, attach, origin)
    try:
        sources.attached(key, source, _place_of(origin, source), link.steal)
    except ProtocolError:
        origin.end(False)
        raise
    origin.open(link)
    session.confirm(session.answer_to(attach))
    return link


def _place_of(origin: Origin, source: Source) -> tuple[str, str] | None:
    """Return the queue and group of a source to store; None if it is not durable, or its messages are not."""
    consumer = origin.consumer
    group = consumer.group if consumer is not None else None
    if not source.durable or not source.lasts or group is None or not group.queue.durable:
        return None
    return group.queue.name, group.name


def _attach_found(session: Session, attach: Attach) -> Link:
    """Attach a link to a durable subscription that its receiver looks up to end it. The link delivers nothing."""
    reading, attach.source = session.context.find_subscription(attach.name)
    origin = Subscription(session.context, reading)
    link = OutgoingLink(session, attach, origin)
    origin.open(link)
    session.confirm(session.answer_to(attach))
    return link


def _origin_of(session: Session, attach: Attach, source: Source) -> Origin:
    """Make the origin of a link's messages. Raises HeadraceError kinds if they cannot come from there."""
    context = session.context
    if source.dynamic:
        subscription = Subscription(context, context.own_reading())
        source.address = queue_path(subscription.queue)
        subscription.consume(attach)
        return subscription
    node = parse_node(source.address, source.capabilities)
    if node.kind in (addresses.MANAGEMENT, addresses.PATHS):
        return Replies()
    if node.kind == addresses.ANONYMOUS:
        raise ProtocolError(frames.INVALID_FIELD, f"the source of the link {attach.name[:64]!r} has no address")
    request = request_of(node, attach, source)
    reading = context.resolve(attach.name, source, node, request)
    tells_route = (source.address or "").startswith("/")
    queue = reading.plan.queue
    if source.distribution_mode == _COPY and node.kind == addresses.QUEUE and not queue.definition.is_stream:
        return Browsing(context, queue.name, tells_route, request.selector)
    subscription = Subscription(context, reading)
    subscription.tells_route = tells_route
    subscription.consume(attach)
    return subscription


# -- deliveries ------------------------------------------------------------------------------------------------------


@final
class Subscription(Origin):
    """A consumer of one queue, for one link."""

    def __init__(self, context: ConnectionContext, reading: Reading) -> None:
        self.broker = context.broker
        self.queue = reading.plan.queue.name
        self.consumer = None
        self._context = context
        self._reading = reading
        self._link: OutgoingLink | None = None
        self._is_stream = reading.plan.is_stream
        self._is_addressed = reading.plan.is_addressed
        self.tells_route = False
        """True if annotations tell where a message was published to, as RabbitMQ's clients expect."""
        self._routes: dict[MessageSource, bytes] = {}
        """The annotations that tell the route, by the origin of the messages."""

    def consume(self, attach: Attach) -> None:
        """Become a consumer of the queue. Raises HeadraceError kinds."""
        client, plan = self._context.client, self._reading.plan
        plan.request.auto_ack = attach.sender_settles == frames.SENDER_SETTLED
        consumer = client.consumer(plan, f"{client.client_id}/{attach.name}"[:255], self.deliver)
        consumer.allowance = 0
        consumer.exposes_offsets = self._is_stream or self._is_addressed
        consumer.cancelled = self.cancelled
        client.consume(plan, consumer)
        self.consumer = consumer

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Send the deliveries of core with one write."""
        link = self._link
        if link is None or link.is_over:
            return
        if self._reading.not_from:
            deliveries = self._from_others(link, deliveries)
        is_plain = not (self._is_stream or self._is_addressed)
        messages: list[bytes] = []
        for delivery in deliveries:
            message = delivery.message
            is_first = delivery.attempts == 1 and not delivery.notes
            if not (is_plain and is_first and message.source.encoding == AMQP10):
                messages.append(self._render(delivery))
            elif self.tells_route:
                messages.append(self._routed_message(message))
            else:
                messages.append(joined(message.properties, message.payload))
        link.send(messages, deliveries)

    def _from_others(self, link: OutgoingLink, deliveries: list[Delivery]) -> list[Delivery]:
        """Return the deliveries of other containers. The rest is settled, and its credit is free again."""
        not_from = self._reading.not_from
        wanted = [delivery for delivery in deliveries if delivery.message.source.client_id != not_from]
        for delivery in deliveries:
            if delivery not in wanted and not delivery.consumer.auto_ack:
                self.broker.settle(delivery, ACK)
        if len(wanted) < len(deliveries):
            self.broker.after_delivery(self.queue, link.refresh)
        return wanted

    def _routed_message(self, message: Message) -> bytes:
        """Return the whole message, with annotations that tell where it was published to."""
        properties, source = message.properties, message.source
        place = annotations_place(properties)
        if place < 0:
            return joined(_with_route(properties, message), message.payload)
        route = self._routes.get(source)
        if route is None:
            route = encode_annotations(_route_of(message))
            if len(self._routes) >= _MAX_ROUTES:
                self._routes.clear()
            if len(source.topic) <= MAX_CACHED_KEY:
                self._routes[source] = route
        start = body_start(properties[0], message.payload)
        return b"".join((properties[1:place], route, properties[place:], start, message.payload))

    def _render(self, delivery: Delivery) -> bytes:
        """Return the whole message, with the additions of this delivery."""
        properties, payload = _own_message(delivery.message)
        head, footer = parts(properties)
        count = delivery.attempts - 1
        annotations: dict[str, object] = {STREAM_OFFSET: delivery.offset} if self._is_stream else {}
        if self.tells_route:
            annotations.update(_route_of(delivery.message))
        annotations.update(delivery.notes or {})
        if count or annotations:
            head = with_changes(head, count or None, annotations)
        if self._is_addressed:
            head = self._addressed(head, delivery)
        return joined(stored(properties[0], head, footer), payload)

    def _addressed(self, raw: bytes, delivery: Delivery) -> bytes:
        """Return the head with the names that consumers of `$queue/` addresses know."""
        source = delivery.message.source
        old = decode_head(raw)
        head = Head()
        head.header, head.delivery_annotations, head.annotations = old.header, old.delivery_annotations, old.annotations
        fields = list(old.properties or [])
        fields += [None] * (TO + 1 - len(fields))
        fields[0] = format_message_id(self.queue, delivery.offset)
        fields[TO] = source.topic
        head.properties = fields
        names: dict[str, object] = {
            "group-id": delivery.group.name,
            "queue": self.queue,
            "offset": delivery.offset,
            "x-source-topic": source.topic,
            "client_id": source.client_id,
            "protocol": source.protocol,
        }
        if self._is_stream:
            names[STREAM_OFFSET] = delivery.offset
            names["x-stream-timestamp"] = delivery.message.timestamp_us // 1000
            if isinstance(delivery.group, StreamGroup):
                names.update(delivery.group.work_headers(delivery.offset))
        more = Map([(name, from_neutral(value)) for name, value in names.items()])
        head.application = annotated(old.application or Map(), more)
        return head.encode()

    # -- calls of the link -------------------------------------------------------------------------------------------

    def open(self, link: OutgoingLink) -> None:
        self._link = link

    def allow(self, count: int) -> None:
        if self.consumer is not None:
            self.broker.allow(self.consumer, count)

    def settled(self, delivery: Delivery, outcome: Outcome) -> None:
        settlement = settlement_of(delivery, outcome)
        try:
            self.broker.settle(delivery, settlement)
        except Refused:
            return  # its lease ran out and another consumer has it, or its own consumer left

    def accepted(self, deliveries: list[Delivery]) -> None:
        self.broker.acknowledge(deliveries)

    def ending(self, is_closed: bool) -> Iterator[None]:
        if self.consumer is not None:
            self.consumer.silence()
        return self._end_each(is_closed)

    def _end_each(self, is_closed: bool) -> Iterator[None]:
        if self.consumer is not None:
            yield from self.broker.give_back(self.consumer)
        self.end(is_closed)
        yield

    def end(self, is_closed: bool) -> None:
        client, reading = self._context.client, self._reading
        consumer, self.consumer = self.consumer, None
        if consumer is not None:
            client.cancel(reading.plan, consumer)
        if reading.deletes_queue and (is_closed or not reading.stays):
            try:
                client.broker.delete(self.queue, owner=client.owner)
            except (NotFound, Refused):
                return  # deleted before, with its connection or by another client

    def cancelled(self) -> None:
        """Detach the link: the queue is gone, and a durable source with it."""
        if self._link is not None:
            self._context.host.sources.forget(self._link.key)
            self._link.detach(_end_of(self.broker, self.queue))


@final
class Browsing(Origin):
    """A look at a queue's messages, which takes none."""

    def __init__(self, context: ConnectionContext, queue: str, tells_route: bool, selector: Selector | None) -> None:
        self._broker = context.broker
        self.queue = queue
        self._tells_route = tells_route
        self._link: OutgoingLink | None = None
        owner = context.client.owner
        self._browser: Browser = self._broker.browse(queue, self._show, selector, self._ended, owner)

    def open(self, link: OutgoingLink) -> None:
        self._link = link

    def allow(self, count: int) -> None:
        self._broker.allow_browser(self._browser, count)

    def settled(self, delivery: Delivery, outcome: Outcome) -> None:
        return

    def end(self, is_closed: bool) -> None:
        self._broker.end_browser(self._browser)

    def _show(self, found: list[Found]) -> None:
        link = self._link
        if link is None or link.is_over:
            return
        messages: list[bytes] = []
        for _, message in found:
            properties, payload = _own_message(message)
            messages.append(joined(_with_route(properties, message) if self._tells_route else properties, payload))
        link.send(messages, None)

    def _ended(self) -> None:
        if self._link is not None:
            self._link.detach(_end_of(self._broker, self.queue))


def _end_of(broker: Broker, name: str) -> HeadraceError:
    """Return the reason why a queue went away under its readers."""
    queue = broker.topology.queues.get(name)
    if queue is not None and queue.refusal is not None:
        return queue.refusal
    return ProtocolError(frames.RESOURCE_DELETED, f"the queue '{name}' was deleted")


def _route_of(message: Message) -> dict[str, object]:
    """Return the place that a message was published to, as RabbitMQ's clients know it."""
    return {"x-exchange": message.source.exchange, "x-routing-key": message.source.topic}


def _with_route(properties: bytes, message: Message) -> bytes:
    head, footer = parts(properties)
    return stored(properties[0], with_changes(head, None, _route_of(message)), footer)


def _own_message(message: Message) -> tuple[bytes, bytes]:
    """Return properties and payload as AMQP 1.0 has them, translated if another protocol brought the message."""
    if message.source.encoding == AMQP10 and message.properties:
        return message.properties, message.payload
    return translated(message, properties_of(message))


# -- settlements -----------------------------------------------------------------------------------------------------


def settlement_of(delivery: Delivery, outcome: Outcome) -> int:
    """Return core's settlement for an outcome. Annotations of a receiver go with the delivery."""
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
            delivery.message = _noted(delivery.message, delivery.notes)
        return REJECT
    return NACK if outcome.delivery_failed else RELEASE


def _noted(message: Message, notes: dict[str, object]) -> Message:
    """Return the message with a receiver's annotations, in its own encoding, for a dead letter."""
    properties = properties_of(message)
    properties.headers.update({name: to_neutral(value) for name, value in notes.items()})
    raw = encode_properties(message.source.encoding, properties)
    return Message(
        message.source,
        message.payload,
        message.timestamp_us,
        raw,
        message.priority,
        message.expires_us,
        message.not_before_us,
    )
