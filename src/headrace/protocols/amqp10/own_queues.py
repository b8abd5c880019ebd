"""Queues that are made for links: for replies, for topics, for subscriptions that stay or are shared.

A subscription that stays, or that several links share, is a queue named after the container and the link, so that the
next attach finds it again. Its selector is the queue's filter: what it does not want never comes in.
"""

import secrets
from typing import TYPE_CHECKING, Final

from headrace.core import rights
from headrace.core.definition import QueueDefinition
from headrace.core.exchange import Binding
from headrace.core.queue import Queue
from headrace.core.rights import READ
from headrace.errors import NotFound, PreconditionFailed
from headrace.protocols.amqp10.addresses import TOPIC, Node, queue_path
from headrace.protocols.amqp10.consuming import Subscription
from headrace.protocols.amqp10.termini import NEVER, UNSETTLED_STATE, Source

if TYPE_CHECKING:
    from headrace.protocols.amqp10.filters import Wanted
    from headrace.protocols.amqp10.peer import Peer

_TOPIC_EXCHANGE: Final = "amq.topic"
_AS_KEY: Final = str.maketrans({"/": ".", ".": "/", "+": "*"})
_SHARED: Final = "shared"
_GLOBAL: Final = "global"
_TEMPORARY_TOPICS: Final = "temporary/"


def own_queue(peer: "Peer", selector: str = "") -> Queue:
    """A queue for this connection alone, gone with it. Raises AccessRefused."""
    definition = QueueDefinition("", durable=False, exclusive=True, filter=selector)
    peer.rights.check_declare_queue(definition)
    return peer.broker.declare(definition, peer.owner)


def own_topic() -> str:
    """A topic that nobody else knows."""
    return _TEMPORARY_TOPICS + secrets.token_urlsafe(12)


def bound_subscription(peer: "Peer", link: str, source: Source, node: Node, wanted: "Wanted") -> Subscription:
    """A queue for a link that gets what is published to a topic or an exchange. Raises AccessRefused, NotFound."""
    if node.kind == TOPIC:
        peer.rights.check_topic_subscribe(node.name, peer.container_id)
    else:
        peer.rights.check(READ, rights.EXCHANGE, node.name)
        peer.rights.check_topic(READ, node.name, node.key or "", peer.container_id)
    selector = wanted.selector.text if wanted.selector is not None else ""
    exchange, key = (node.name, node.key or "")
    if node.kind == TOPIC:
        exchange, key = _TOPIC_EXCHANGE, node.name.translate(_AS_KEY)
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


def _kept(peer: "Peer", definition: QueueDefinition, exchange: str, key: str) -> Queue:
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


def kept_subscription(peer: "Peer", link: str) -> tuple[Subscription, Source]:
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


def has_subscription(peer: "Peer", link: str) -> bool:
    """Whether there is such a subscription."""
    return bool(_subscriptions(peer, link))


def _subscriptions(peer: "Peer", link: str) -> list[str]:
    """The queues of the subscriptions that a link may mean by its name: its own, or one that it shares."""
    named = [_name(peer, link, []), _name(peer, link, [_SHARED]), _name(peer, link, [_SHARED, _GLOBAL])]
    return [name for name in named if name in peer.broker.topology.queues]


def _name(peer: "Peer", link: str, capabilities: list[str]) -> str:
    """The queue of a subscription. Links that share one are named `<subscription>|<anything>`, as Qpid JMS does;
    it is shared among containers where it is global."""
    container = "" if _GLOBAL in capabilities else peer.container_id
    name = link.partition("|")[0] if _SHARED in capabilities else link
    return f"{container}:{name}"[:200]
