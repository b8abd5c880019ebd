"""What the source of a link means: the queue, group and position of its consumer, or a queue made for it."""

import re
import secrets
from typing import TYPE_CHECKING, Final

from headrace.core import rights
from headrace.core.address import effective_group, group_of_client, parse_address
from headrace.core.definition import QueueDefinition
from headrace.core.delivery import Consumer
from headrace.core.modes import STREAM_MODE, mode_to_join
from headrace.core.queue import DEFAULT_GROUP
from headrace.core.rights import READ
from headrace.errors import AccessRefused, ProtocolError
from headrace.protocols.amqp10.addresses import (
    ADDRESS,
    ANONYMOUS,
    EXCHANGE,
    MANAGEMENT,
    PATHS,
    QUEUE,
    TOPIC,
    Node,
    parse_node,
    queue_path,
)
from headrace.protocols.amqp10.browsing import Browsing
from headrace.protocols.amqp10.consuming import Subscription, consumer_name
from headrace.protocols.amqp10.filters import Wanted, wanted_of
from headrace.protocols.amqp10.frames import INVALID_FIELD, SENDER_SETTLED
from headrace.protocols.amqp10.management import Replies
from headrace.protocols.amqp10.outgoing import Origin
from headrace.protocols.amqp10.own_queues import bound_subscription, own_queue
from headrace.protocols.amqp10.performatives import Attach
from headrace.protocols.amqp10.termini import UNSETTLED_STATE, Source

if TYPE_CHECKING:
    from headrace.protocols.amqp10.peer import Peer
    from headrace.protocols.amqp10.session import Session

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
    peer: "Peer", subscription: Subscription, attach: Attach, wanted: Wanted, group: str, key_filter: str, mode: int = 0
) -> Subscription:
    is_settled = attach.sender_settles == SENDER_SETTLED
    name = consumer_name((peer.container_id, attach.name))
    consumer = Consumer(name, subscription.deliver, 0, is_settled, wanted.priority, owner=peer.owner)
    consumer.allowance = 0
    consumer.tells_offsets = subscription.is_stream or subscription.is_addressed
    consumer.selector = wanted.selector
    consumer.cancelled = subscription.cancelled
    peer.broker.consume(
        subscription.queue, consumer, group, key_filter, mode, wanted.position, auto_commit=wanted.auto_commit
    )
    subscription.consumer = consumer
    return subscription


def _subscription(peer: "Peer", attach: Attach, source: Source, node: Node, wanted: Wanted) -> tuple[Subscription, str]:
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


def refusal_of(peer: "Peer", source: object) -> AccessRefused | None:
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
