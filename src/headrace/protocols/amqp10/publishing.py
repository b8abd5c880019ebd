"""Senders of the peer: the answer to their attach, and their messages to core's publish. Pieces and credit: session.py.

A sender hears `accepted` when the commit of its message is durable.
"""

import secrets
from collections import deque
from collections.abc import Callable
from typing import Final, final

from headrace.core.batch import ConfirmAll
from headrace.core.routing.address import MAX_CACHED_KEY, is_address
from headrace.core.transaction import Publish
from headrace.errors import HeadraceError, NotFound, PreconditionFailed, ProtocolError, Refused
from headrace.model import AMQP10, Message, Source
from headrace.protocols.amqp10 import addresses, frames
from headrace.protocols.amqp10.addresses import Node, parse_node, queue_path
from headrace.protocols.amqp10.context import PROTOCOL, ConnectionContext
from headrace.protocols.amqp10.coordinator import CoordinatorSink
from headrace.protocols.amqp10.management import ManagementSink
from headrace.protocols.amqp10.performatives import (
    ACCEPTED,
    RELEASED,
    Attach,
    Coordinator,
    Rejected,
    State,
    Target,
    Transactional,
    error_for,
)
from headrace.protocols.amqp10.session import Incoming, IncomingLink, Link, Session, Sink
from headrace.wire.amqp10 import SUBJECT, TO, Head, annotation_keys, expires_us, scan_head, split, user_id_of
from headrace.wire.amqp10_scan import DEFAULT_PRIORITY, DELIVERY_DELAY, DELIVERY_TIME, plain_priority
from headrace.wire.encodings import decode_headers
from headrace.wire.types import Map

_TEMPORARY_TOPICS: Final = "temporary/"

# JMS says by this annotation what an address is. These are the capabilities of a link to there.
_JMS_DESTINATION: Final = "x-opt-jms-dest"
_ANNOTATIONS: Final = annotation_keys(DELIVERY_TIME, DELIVERY_DELAY, _JMS_DESTINATION)
_JMS_CAPABILITIES: Final = {0: ["queue"], 1: ["topic"], 3: ["topic"]}

# Publishers repeat themselves, so each link remembers a few heads and routes that it has read.
_MAX_HEADS: Final = 256
_MAX_HEAD_BYTES: Final = 256
_MAX_ROUTES: Final = 256
_MAX_MILLISECONDS: Final = 1 << 50


# -- attaching -------------------------------------------------------------------------------------------------------


def attach_sender(session: Session, attach: Attach) -> Link:
    """Attach a link from a sender, and answer. Raises HeadraceError kinds if it cannot be."""
    target = attach.target
    if target is None:
        raise ProtocolError(frames.INVALID_FIELD, f"the link {attach.name[:64]!r} has no target")
    answer = session.answer_to(attach)
    answer.max_message_size = session.context.broker.intake.largest_bytes
    if isinstance(target, Coordinator):
        answer.target = Coordinator(["amqp:local-transactions", "amqp:multi-txns-per-ssn"])
        link = IncomingLink(session, attach, CoordinatorSink(session.transactions))
    else:
        link = IncomingLink(session, attach, _sink_of(session, target))
    session.confirm(answer)
    link.grant()
    return link


def _sink_of(session: Session, target: Target) -> Sink:
    context = session.context
    if target.dynamic and "temporary-topic" in target.capabilities:
        target.address = _TEMPORARY_TOPICS + secrets.token_urlsafe(12)
        return Publisher(context, Node(addresses.TOPIC, target.address))
    if target.dynamic:
        queue = context.declare_own()
        target.address = queue_path(queue.name)
        return Publisher(context, Node(addresses.QUEUE, queue.name), owns_queue=True)
    node = parse_node(target.address, target.capabilities)
    if node.kind in (addresses.MANAGEMENT, addresses.PATHS):
        return ManagementSink(session, node.kind == addresses.PATHS)
    context.check_target(node, target.capabilities)
    return Publisher(context, node)


# -- publishing ------------------------------------------------------------------------------------------------------


@final
class KnownHead:
    """The sections before a message's body, as far as a publish depends on them."""

    __slots__ = (
        "_delay_us",
        "_due_us",
        "_headers",
        "_properties",
        "has_expiry",
        "head",
        "is_for_later",
        "priority",
        "user_id",
    )

    def __init__(self, properties: bytes) -> None:
        head = scan_head(properties, _ANNOTATIONS)
        self.head = head
        self._properties = properties
        self._headers: dict[str, object] | None = None
        priority = head.priority
        self.priority = DEFAULT_PRIORITY if priority is None else priority
        self.user_id = user_id_of(head)
        self.has_expiry = expires_us(head, 1) != 0
        self._due_us = _milliseconds(head, DELIVERY_TIME) * 1000
        self._delay_us = _milliseconds(head, DELIVERY_DELAY) * 1000
        self.is_for_later = self._due_us > 0 or self._delay_us > 0

    def headers(self) -> dict[str, object] | None:
        """Return the headers, which exchanges route by; None if there are none."""
        if self._headers is None:
            self._headers = decode_headers(AMQP10, self._properties)
        return self._headers or None

    def not_before_us(self, now_us: int) -> int:
        """Return the time from which the message may be delivered."""
        return now_us + self._delay_us if self._delay_us else self._due_us


@final
class Route:
    """The place that messages go to, as core knows it."""

    __slots__ = ("is_single", "is_topic", "source")

    def __init__(self, source: Source, is_topic: bool) -> None:
        self.source = source
        self.is_topic = is_topic
        self.is_single = is_topic or is_address(source.topic)
        """True if each message is published by itself: the right to write to the exchange does not suffice."""


@final
class _Awaited:
    """Deliveries with consecutive numbers that core will confirm."""

    __slots__ = ("count", "first", "is_routed", "link")

    def __init__(self, link: IncomingLink, first: int, count: int, is_routed: bool) -> None:
        self.link = link
        self.first = first
        self.count = count
        self.is_routed = is_routed
        """True if they go anywhere; to a topic they always do."""


@final
class Publisher(Sink):
    """Publishes the messages of one link, those that came in one read with one call."""

    def __init__(self, context: ConnectionContext, node: Node, owns_queue: bool = False) -> None:
        self._context = context
        self._node = node
        self._owns_queue = owns_queue
        """True if the queue was made for this link and goes with it."""
        self._heads: dict[bytes, KnownHead] = {}
        self._routes: dict[tuple[int, str, str], Route] = {}
        self._fixed: Route | None = None
        """The route of all messages, if the link alone decides it."""
        if node.kind in (addresses.QUEUE, addresses.TOPIC) or (
            node.kind == addresses.EXCHANGE and node.key is not None
        ):
            self._fixed = self._route(node.kind, node.name, node.key or "")
        self._is_quick = self._fixed is not None and not self._fixed.is_single
        """True if neighbours may be published in one call."""
        self._row: list[Message] = []
        """Messages that are not with core yet: neighbours are published with one call."""
        self._row_link: IncomingLink | None = None
        self._row_number = 0
        """The delivery number of the first of them."""
        self._awaiting: deque[_Awaited] = deque()
        """Published deliveries that are not durable yet, in order."""
        self._tell: ConfirmAll = self._confirmed
        """Always the same object, so that core confirms neighbours in one call."""
        self._flush: Callable[[], None] = self._publish_row
        """Always the same object, so that the row is known by it."""

    def take(self, link: IncomingLink, delivery: Incoming) -> None:
        try:
            properties, payload = split(delivery.message)
            if self._is_quick and not (delivery.settled or delivery.format or delivery.state is not None):
                priority = plain_priority(properties)
                if priority >= 0 and self._add(link, delivery.number, properties, payload, priority):
                    return
            self._context.flush_row()
            publish, is_topic = self._read(delivery, properties, payload)
            if isinstance(delivery.state, Transactional):
                link.session.transactions.post(link, delivery, publish)
                return
            confirm = None if delivery.settled else self._confirmed_one
            if is_topic:
                count = self._context.broker.publish_topic(publish.message, confirm)
            else:
                count = self._context.broker.publish(publish.message, confirm, publish.headers)
        except HeadraceError as error:
            if delivery.settled:
                raise
            link.done(delivery.number, Rejected(error_for(error)))
            return
        if confirm is not None:
            self._awaiting.append(_Awaited(link, delivery.number, 1, count > 0 or is_topic))

    def _add(self, link: IncomingLink, number: int, properties: bytes, payload: bytes, priority: int) -> bool:
        """Add a message to the row; False, and nothing is done, where more than its bytes decides."""
        context, route = self._context, self._fixed
        assert route is not None
        client, source = context.client, route.source
        if not client.is_publisher or client.account.is_metered or source.exchange not in client.rights.free:
            return False
        if (
            context.open_row is not self._flush
            or self._row_link is not link
            or number != self._row_number + len(self._row)
        ):
            context.flush_row()
            if source.exchange and context.broker.routes_each(source.exchange):
                return False
            context.open_row, self._row_link, self._row_number = self._flush, link, number
        self._row.append(Message(source, payload, context.now_us, properties, priority))
        return True

    def _publish_row(self) -> None:
        """Give the row to core."""
        link, first, messages = self._row_link, self._row_number, self._row
        self._row, self._row_link = [], None
        if link is None:
            return
        count = len(messages)
        try:
            meant = self._context.broker.publish_all(messages, self._tell)
        except HeadraceError as error:
            for number in range(first, first + count):
                link.done(number, Rejected(error_for(error)))
            return
        self._awaiting.append(_Awaited(link, first, count, meant > 0))

    def _confirmed_one(self, error: HeadraceError | None) -> None:
        self._confirmed(1, error)

    def _confirmed(self, count: int, error: HeadraceError | None) -> None:
        """Answer the next deliveries: core confirms in the order of the publishes."""
        while count:
            awaited = self._awaiting[0]
            link, first, done = awaited.link, awaited.first, min(count, awaited.count)
            count -= done
            awaited.first += done
            awaited.count -= done
            if not awaited.count:
                self._awaiting.popleft()
            if error is not None:
                state: State = Rejected(error_for(error))
            else:
                state = ACCEPTED if awaited.is_routed else RELEASED
            for number in range(first, first + done):
                link.done(number, state)

    def end(self) -> None:
        """Delete the link's own queue. Published messages still get to the disk."""
        if self._owns_queue:
            try:
                self._context.broker.delete(self._node.name, owner=self._context.client.owner)
            except (NotFound, Refused):
                return  # deleted before, with its connection or by another client

    # -- reading -----------------------------------------------------------------------------------------------------

    def _read(self, delivery: Incoming, properties: bytes, payload: bytes) -> tuple[Publish, bool]:
        """Return the message, and whether it goes to a topic. Raises ProtocolError if it is none, or goes nowhere."""
        if delivery.format:
            error = f"there is no message format {delivery.format:#x} here"
            raise ProtocolError(frames.NOT_IMPLEMENTED, error)
        context = self._context
        known = self._heads.get(properties)
        if known is None:
            known = self._learn(properties)
        if known.user_id:
            self._check_user_id(known.user_id)
        route = self._fixed
        if route is None:
            route = self._route_of(known.head)
        self._check(route, len(delivery.message))
        expires = expires_us(known.head, context.now_us) if known.has_expiry else 0
        due = known.not_before_us(context.now_us) if known.is_for_later else 0
        message = Message(route.source, payload, context.now_us, properties, known.priority, expires, due)
        publish = Publish(message, known.headers() if route.source.exchange else None)
        publish.is_topic = route.is_topic
        return publish, route.is_topic

    def _check(self, route: Route, size_bytes: int) -> None:
        """Raises AccessRefused unless the user may send there, TooLarge."""
        client, source = self._context.client, route.source
        if route.is_topic:
            client.check_publish_topic(source.topic, size_bytes)
        else:
            client.check_publish(source.exchange, source.topic, size_bytes)

    def _check_user_id(self, claimed: str) -> None:
        try:
            self._context.client.check_user_id(claimed)
        except PreconditionFailed as error:
            raise ProtocolError(frames.UNAUTHORIZED, str(error)) from error  # the condition that RabbitMQ gives

    def _learn(self, properties: bytes) -> KnownHead:
        known = KnownHead(properties)
        if len(properties) <= _MAX_HEAD_BYTES:
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            self._heads[properties] = known
        return known

    def _route_of(self, head: Head) -> Route:
        """Return the route of a message whose link does not fix it. Raises ProtocolError (invalid field)."""
        node = self._node
        to, subject = head.property_field(TO), head.property_field(SUBJECT)
        key = subject if isinstance(subject, str) else ""
        if node.kind == addresses.ANONYMOUS:
            if not isinstance(to, str) or not to:
                error = "a message on a link without an address needs the property 'to'"
                raise ProtocolError(frames.INVALID_FIELD, error)
            kind = (head.annotations or Map()).get(_JMS_DESTINATION)
            capabilities = _JMS_CAPABILITIES.get(int(kind), []) if isinstance(kind, int) else []
            node = parse_node(to, capabilities)
            if node.kind == addresses.QUEUE:
                self._context.check_target(node, capabilities)
        if node.kind == addresses.ADDRESS:
            address = to if isinstance(to, str) and is_address(to) else node.name
            at_root = address.count("/") == 1
            return self._route(addresses.ADDRESS, f"{address}/{key}" if key and at_root else address, "")
        if node.kind == addresses.EXCHANGE:
            return self._route(addresses.EXCHANGE, node.name, key if node.key is None else node.key)
        if node.kind in (addresses.QUEUE, addresses.TOPIC):
            return self._route(node.kind, node.name, "")
        error = f"messages cannot be sent to {str(to)[:128]!r} without a link of their own"
        raise ProtocolError(frames.INVALID_FIELD, error)

    def _route(self, kind: int, name: str, key: str) -> Route:
        route = self._routes.get((kind, name, key))
        if route is None:
            exchange, topic = (name, key) if kind == addresses.EXCHANGE else ("", name)
            route = Route(
                Source(topic, exchange, self._context.container_id, PROTOCOL, AMQP10), kind == addresses.TOPIC
            )
            if len(self._routes) >= _MAX_ROUTES:
                self._routes.clear()
            if len(name) <= MAX_CACHED_KEY >= len(key):
                self._routes[kind, name, key] = route
        return route


def _milliseconds(head: Head, name: str) -> int:
    """Return an annotation in milliseconds; 0 if there is none. Raises ProtocolError (invalid field)."""
    value = (head.annotations or Map()).get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_MILLISECONDS:
        raise ProtocolError(frames.INVALID_FIELD, f"the annotation {name!r} must be milliseconds, not {value!r}")
    return int(value)
