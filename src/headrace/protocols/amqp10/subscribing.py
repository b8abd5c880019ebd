"""What the source of a link means: the queue, group and position of its consumer, or a queue made for it."""

import re
import secrets
from typing import TYPE_CHECKING, Final

from headrace.core import rights
from headrace.core.address import effective_group, group_of_client, parse_address
from headrace.core.definition import EPHEMERAL, QueueDefinition
from headrace.core.delivery import Consumer
from headrace.core.exchange import Binding
from headrace.core.group import RELEASE
from headrace.core.queue import DEFAULT_GROUP, Queue
from headrace.core.rights import READ
from headrace.errors import ProtocolError, Refused
from headrace.protocols.amqp10.addresses import (
    ADDRESS,
    ANONYMOUS,
    EXCHANGE,
    MANAGEMENT,
    PATHS,
    TOPIC,
    Node,
    parse_node,
    queue_path,
)
from headrace.protocols.amqp10.consuming import Subscription
from headrace.protocols.amqp10.filters import Wanted, wanted_of
from headrace.protocols.amqp10.frames import INVALID_FIELD, NOT_IMPLEMENTED, SENDER_SETTLED
from headrace.protocols.amqp10.management import Replies
from headrace.protocols.amqp10.outgoing import Origin, OutgoingLink, Sent
from headrace.protocols.amqp10.performatives import Attach
from headrace.protocols.amqp10.states import outcome_in, state_of
from headrace.protocols.amqp10.suspended import SuspendedLink
from headrace.protocols.amqp10.termini import NEVER, UNSETTLED_STATE, Source
from headrace.protocols.amqp10.types import Described, Map

if TYPE_CHECKING:
    from headrace.protocols.amqp10.peer import Peer
    from headrace.protocols.amqp10.session import Session

_TOPIC_EXCHANGE: Final = "amq.topic"
_AS_KEY: Final = str.maketrans({"/": ".", ".": "/", "+": "*"})
_GENERATED: Final = re.compile(r"[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")
"""A container id that nobody will have again."""


def origin_of(session: "Session", attach: Attach, source: Source) -> Origin:
    """Where the messages of a link come from. Raises HeadraceError kinds when they cannot come from there."""
    peer = session.peer
    if source.dynamic:
        queue = own_queue(peer)
        source.address = queue_path(queue.name)
        subscription = Subscription(peer, queue.name)
        subscription.deletes_queue = True
        return _consume(subscription, attach, Wanted(), DEFAULT_GROUP, "")
    node = parse_node(source.address, source.capabilities)
    if node.kind in (MANAGEMENT, PATHS):
        return Replies(session, source.address or "")
    if node.kind == ANONYMOUS:
        raise ProtocolError(INVALID_FIELD, f"the source of the link {attach.name[:64]!r} has no address")
    wanted = wanted_of(attach, source)
    source.filter = wanted.applied
    subscription, key_filter = _subscription(peer, attach, source, node)
    subscription.is_addressed = node.kind == ADDRESS or bool(wanted.group)
    subscription.tells_route = (source.address or "").startswith("/")
    kind = peer.broker.queue(subscription.queue, peer.owner).definition
    if source.distribution_mode == "copy" and not kind.is_stream:
        raise ProtocolError(NOT_IMPLEMENTED, "the distribution mode 'copy' is for streams: queues are not browsed")
    subscription.is_stream = kind.is_stream
    group = wanted.group
    if not group:
        group = _own_group(subscription, peer, wanted, key_filter) if kind.is_stream else DEFAULT_GROUP
    return _consume(subscription, attach, wanted, group, key_filter)


def _consume(subscription: Subscription, attach: Attach, wanted: Wanted, group: str, key_filter: str) -> Subscription:
    peer = subscription.peer
    is_settled = attach.sender_settles == SENDER_SETTLED
    name = f"{peer.container_id}/{attach.name}"[:255]
    consumer = Consumer(name, subscription.deliver, 0, is_settled, wanted.priority, owner=peer.owner)
    consumer.allowance = 0
    consumer.tells_offsets = subscription.is_stream or subscription.is_addressed
    consumer.selector = wanted.selector
    consumer.cancelled = subscription.cancelled
    peer.broker.consume(
        subscription.queue, consumer, group, key_filter, position=wanted.position, auto_commit=wanted.auto_commit
    )
    subscription.consumer = consumer
    return subscription


def _subscription(peer: "Peer", attach: Attach, source: Source, node: Node) -> tuple[Subscription, str]:
    """The queue that a source means, made if it is to be, and the filter of its keys."""
    broker = peer.broker
    if node.kind == ADDRESS:
        peer.rights.check_topic_subscribe(node.name, peer.container_id)
        address = parse_address(node.name)
        if address.queue not in broker.topology.queues:
            broker.declare(QueueDefinition(address.queue, EPHEMERAL, durable=False))
        return Subscription(peer, address.queue), address.key
    if node.kind in (TOPIC, EXCHANGE):
        return _bound(peer, attach, source, node), ""
    peer.rights.check(READ, rights.QUEUE, node.name)
    if node.name not in broker.topology.queues and "queue" in source.capabilities:
        definition = QueueDefinition(node.name)
        peer.rights.check_declare_queue(definition)
        broker.declare(definition, peer.owner)
    return Subscription(peer, node.name), ""


def _bound(peer: "Peer", attach: Attach, source: Source, node: Node) -> Subscription:
    """A queue of the link's own that gets what is published to a topic or an exchange."""
    if node.kind == TOPIC:
        peer.rights.check_topic_subscribe(node.name, peer.container_id)
    else:
        peer.rights.check(READ, rights.EXCHANGE, node.name)
        peer.rights.check_topic(READ, node.name, node.key or "", peer.container_id)
    stays = source.expiry_policy == NEVER or source.timeout > 0
    if stays:
        expires_ms = 0 if source.expiry_policy == NEVER else source.timeout * 1000
        definition = QueueDefinition(_kept_name(peer, attach), durable=source.durable > 0, expires_ms=expires_ms)
        peer.rights.check_declare_queue(definition)
        peer.rights.check(READ, rights.QUEUE, definition.name)
        queue = peer.broker.declare(definition)
    else:
        queue = own_queue(peer)
    exchange, key = (node.name, node.key or "")
    if node.kind == TOPIC:
        exchange, key = _TOPIC_EXCHANGE, node.name.translate(_AS_KEY)
    peer.broker.bind(Binding(exchange, queue.name, key), peer.owner)
    subscription = Subscription(peer, queue.name)
    subscription.deletes_queue = True
    subscription.stays = stays
    return subscription


def kept_subscription(peer: "Peer", attach: Attach) -> tuple[Subscription, Source]:
    """The durable subscription of this container and name, for a receiver that asks for it without a source.

    That is how one is looked up to be ended: by closing the link. Raises NotFound, AccessRefused.
    """
    queue = peer.broker.queue(_kept_name(peer, attach), peer.owner)
    peer.rights.check(rights.CONFIGURE, rights.QUEUE, queue.name)
    subscription = Subscription(peer, queue.name)
    subscription.deletes_queue = subscription.stays = True
    source = Source(queue_path(queue.name))
    source.durable = UNSETTLED_STATE
    source.expiry_policy = NEVER
    return subscription, source


def _kept_name(peer: "Peer", attach: Attach) -> str:
    """The queue of a subscription that stays: named by container and link, so that the next attach finds it again."""
    return f"{peer.container_id}:{attach.name}"[:200]


def own_queue(peer: "Peer") -> Queue:
    """A queue for this connection alone, gone with it. Raises AccessRefused."""
    definition = QueueDefinition("", durable=False, exclusive=True)
    peer.rights.check_declare_queue(definition)
    return peer.broker.declare(definition, peer.owner)


def _own_group(subscription: Subscription, peer: "Peer", wanted: Wanted, key_filter: str) -> str:
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


def take_over(link: OutgoingLink, kept: SuspendedLink, known: Map | None) -> None:
    """Go on where a link of that name was detached; `known` is what the receiver has not settled, by tag.

    AMQP 1.0 [2.6.13]: what it has decided is settled so, what it still has is resumed, the rest goes back in line.
    """
    origin, former = link.origin, kept.link.origin
    if not isinstance(origin, Subscription) or not isinstance(former, Subscription):
        former.end(False)
        return
    origin.former += former.former
    former.former = []
    link.last_tag = kept.link.last_tag
    states = {bytes(tag): state for tag, state in (known or Map()).pairs if isinstance(tag, bytes)}
    for sent in kept.unsettled:
        tag = sent.tag.to_bytes(4)
        if tag in states:
            _resume(link, origin, sent, states[tag])
        elif sent.delivery is not None:
            try:
                link.peer.broker.settle(sent.delivery, RELEASE)
            except Refused:
                continue  # its time ran out meanwhile


def _resume(link: OutgoingLink, origin: Subscription, sent: Sent, value: object) -> None:
    delivery = sent.delivery
    assert delivery is not None
    outcome = outcome_in(state_of(value if isinstance(value, Described) else None))
    if outcome is None:
        link.resume(sent, origin.rendered(delivery), False)
        return
    origin.settled(delivery, outcome)
    sent.state = outcome
    link.resume(sent, b"", True)
