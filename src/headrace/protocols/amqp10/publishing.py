"""What comes in on a link to the core's publish; outcomes when the commit is safe. Pieces and credit: links.py."""

from collections import deque
from typing import Final, final

from headrace.core.properties import Properties
from headrace.core.queue.definition import QueueDefinition
from headrace.core.routing.address import is_address
from headrace.core.transaction import Publish
from headrace.errors import HeadraceError, NotFound, ProtocolError, Refused
from headrace.model import AMQP10, Message, Source
from headrace.protocols.amqp10.addresses import ADDRESS, ANONYMOUS, EXCHANGE, QUEUE, TOPIC, Node, parse_node
from headrace.protocols.amqp10.conditions import error_for
from headrace.protocols.amqp10.context import ConnectionContext
from headrace.protocols.amqp10.frames import INVALID_FIELD, NOT_IMPLEMENTED, UNAUTHORIZED
from headrace.protocols.amqp10.links import Incoming, IncomingLink, Sink
from headrace.protocols.amqp10.performatives import ACCEPTED, RELEASED, Rejected, Transactional
from headrace.protocols.amqp10.properties import expires_us, properties_of
from headrace.protocols.amqp10.sections import SUBJECT, TO, USER_ID, Head, decode_head, parts, split
from headrace.protocols.amqp10.types import Map

PROTOCOL: Final = "amqp10"
DEFAULT_PRIORITY: Final = 4

# Annotations that say when a message is to be delivered: a time or a delay, in milliseconds.
_DELIVERY_TIME: Final = "x-opt-delivery-time"
_DELIVERY_DELAY: Final = "x-opt-delivery-delay"

# What a message's address is to JMS, by the annotation that says it: the capabilities of a link to there.
_JMS_DESTINATION: Final = "x-opt-jms-dest"
_JMS_CAPABILITIES: Final = {0: ["queue"], 1: ["topic"], 3: ["topic"]}

# Publishers repeat themselves: what was read once is looked up, not read again. Per link, so small.
_MAX_SAID: Final = 256
_MAX_SAID_BYTES: Final = 256
_MAX_WAYS: Final = 256
_MAX_MILLISECONDS: Final = 1 << 50


@final
class Said:
    """What stands before a message's body, read."""

    __slots__ = ("_delay_us", "_due_us", "has_expiry", "head", "headers", "is_for_later", "priority", "properties")

    def __init__(self, head: Head) -> None:
        self.head = head
        self.properties: Properties = properties_of(head)
        self.headers = self.properties.headers or None
        priority = head.priority
        self.priority = DEFAULT_PRIORITY if priority is None else priority
        self.has_expiry = expires_us(head, 1) != 0
        self._due_us = _milliseconds(head, _DELIVERY_TIME) * 1000
        self._delay_us = _milliseconds(head, _DELIVERY_DELAY) * 1000
        self.is_for_later = self._due_us > 0 or self._delay_us > 0

    def not_before_us(self, now_us: int) -> int:
        """When the message may be delivered."""
        return now_us + self._delay_us if self._delay_us else self._due_us


@final
class Way:
    """Where messages go: what core is told, and whether as a topic."""

    __slots__ = ("is_checked_always", "is_topic", "source")

    def __init__(self, source: Source, is_topic: bool) -> None:
        self.source = source
        self.is_topic = is_topic
        self.is_checked_always = is_topic or is_address(source.topic)
        """Whether the right to send there is more than that to write to the exchange."""


@final
class Publisher(Sink):
    """Publishes what comes in on one link."""

    def __init__(self, peer: ConnectionContext, node: Node, owns_queue: bool = False) -> None:
        self._peer = peer
        self._node = node
        self._owns_queue = owns_queue
        """Whether the queue was made for this link and goes with it."""
        self._said: dict[bytes, Said] = {}
        self._ways: dict[tuple[int, str, str], Way] = {}
        self._fixed: Way | None = None
        if node.kind in (QUEUE, TOPIC) or (node.kind == EXCHANGE and node.key is not None):
            self._fixed = self._way(node.kind, node.name, node.key or "")
        self._awaiting: deque[tuple[IncomingLink, int, bool]] = deque()
        """What was published and is not safe yet, in order, and whether it goes anywhere: a topic need not be read."""

    def take(self, link: IncomingLink, delivery: Incoming) -> None:
        try:
            publish, is_topic = self._read(delivery)
            if isinstance(delivery.state, Transactional):
                link.session.transactions.post(link, delivery, publish)
                return
            confirm = None if delivery.settled else self._confirmed
            if is_topic:
                count = self._peer.broker.publish_topic(publish.message, confirm)
            else:
                count = self._peer.broker.publish(publish.message, confirm, publish.headers)
        except HeadraceError as error:
            if delivery.settled:
                raise
            link.done(delivery.number, Rejected(error_for(error)))
            return
        if confirm is not None:
            if count or is_topic:
                link.published(delivery.number)
            self._awaiting.append((link, delivery.number, count > 0 or is_topic))

    def _confirmed(self, error: HeadraceError | None) -> None:
        """One more is safe, or is not: core tells in the order of the publishes."""
        link, number, is_routed = self._awaiting.popleft()
        if error is not None:
            link.done(number, Rejected(error_for(error)))
        else:
            link.done(number, ACCEPTED if is_routed else RELEASED)

    def end(self, is_closed: bool) -> None:
        """What is on its way to the disk gets there."""
        if self._owns_queue:
            try:
                self._peer.broker.delete(self._node.name, owner=self._peer.owner)
            except (NotFound, Refused):
                return  # gone already, with its connection or by another's hand

    # -- reading -----------------------------------------------------------------------------------------------------

    def _read(self, delivery: Incoming) -> tuple[Publish, bool]:
        """The message, and whether it goes to a topic. Raises ProtocolError when it is none, or goes nowhere."""
        if delivery.format:
            raise ProtocolError(NOT_IMPLEMENTED, f"there is no message format {delivery.format:#x} here")
        peer = self._peer
        peer.has_published = True
        account = peer.account
        if account.is_metered:
            peer.published += 1
            account.check_size(len(delivery.message))
        properties, payload = split(delivery.message)
        said = self._said.get(properties)
        if said is None:
            said = self._learn(properties)
        way = self._fixed
        if way is None:
            way = self._way_of(said.head)
        if way.source.exchange not in peer.rights.writable or peer.rights.topics or way.is_checked_always:
            self._check(way)
        expires = expires_us(said.head, peer.now_us) if said.has_expiry else 0
        due = said.not_before_us(peer.now_us) if said.is_for_later else 0
        message = Message(way.source, payload, peer.now_us, properties, said.priority, expires, due)
        publish = Publish(message, said.headers if way.source.exchange else None)
        publish.is_topic = way.is_topic
        return publish, way.is_topic

    def _check(self, way: Way) -> None:
        """Raises AccessRefused unless the user may send there."""
        peer = self._peer
        if way.is_topic:
            peer.rights.check_topic_publish(way.source.topic, peer.container_id)
        else:
            peer.rights.check_publish(way.source.exchange, way.source.topic, peer.container_id)

    def _learn(self, properties: bytes) -> Said:
        head = decode_head(parts(properties)[0])
        user = head.property_field(USER_ID)
        if isinstance(user, bytes) and user and user != self._peer.account.name.encode():
            raise ProtocolError(UNAUTHORIZED, "the property user-id is not the user that logged in")
        said = Said(head)
        if len(properties) <= _MAX_SAID_BYTES:
            if len(self._said) >= _MAX_SAID:
                self._said.clear()
            self._said[properties] = said
        return said

    def _way_of(self, head: Head) -> Way:
        """Where a message goes whose link does not say it all."""
        node = self._node
        to, subject = head.property_field(TO), head.property_field(SUBJECT)
        key = subject if isinstance(subject, str) else ""
        if node.kind == ANONYMOUS:
            if not isinstance(to, str) or not to:
                raise ProtocolError(INVALID_FIELD, "a message on a link without an address needs the property 'to'")
            kind = (head.annotations or Map()).get(_JMS_DESTINATION)
            capabilities = _JMS_CAPABILITIES.get(int(kind), []) if isinstance(kind, int) else []
            node = parse_node(to, capabilities)
            if node.kind == QUEUE:
                check_target(self._peer, node, capabilities)
        if node.kind == ADDRESS:
            address = to if isinstance(to, str) and is_address(to) else node.name
            at_root = address.count("/") == 1
            return self._way(ADDRESS, f"{address}/{key}" if key and at_root else address, "")
        if node.kind == EXCHANGE:
            return self._way(EXCHANGE, node.name, key if node.key is None else node.key)
        if node.kind in (QUEUE, TOPIC):
            return self._way(node.kind, node.name, "")
        raise ProtocolError(INVALID_FIELD, f"messages cannot be sent to {str(to)[:128]!r} without a link of their own")

    def _way(self, kind: int, name: str, key: str) -> Way:
        way = self._ways.get((kind, name, key))
        if way is None:
            exchange, topic = (name, key) if kind == EXCHANGE else ("", name)
            way = Way(Source(topic, exchange, self._peer.container_id, PROTOCOL, AMQP10), kind == TOPIC)
            if len(self._ways) >= _MAX_WAYS:
                self._ways.clear()
            self._ways[kind, name, key] = way
        return way


def _milliseconds(head: Head, name: str) -> int:
    """An annotation that is a time or a span of it; 0 where there is none. Raises ProtocolError (invalid field)."""
    value = (head.annotations or Map()).get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_MILLISECONDS:
        raise ProtocolError(INVALID_FIELD, f"the annotation {name!r} must be milliseconds, not {value!r}")
    return int(value)


def check_target(peer: ConnectionContext, node: Node, capabilities: list[str]) -> None:
    """Have a target that messages can be sent to. A queue asked for by its capability is made if it is not there.

    Raises NotFound, AccessRefused.
    """
    broker = peer.broker
    if node.kind == QUEUE and node.name not in broker.topology.queues:
        if "queue" not in capabilities:
            raise NotFound(f"no queue '{node.name}' in vhost '{peer.host.name}'")
        definition = QueueDefinition(node.name)
        peer.rights.check_declare_queue(definition)
        broker.declare(definition, peer.owner)
    elif node.kind == EXCHANGE:
        broker.topology.exchanges.check_publish(node.name)
