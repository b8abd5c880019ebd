"""How a link comes to be: the answer to its attach, or why there is none. What a source means is in subscribing.py."""

from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError, ProtocolError
from headrace.protocols.amqp10.addresses import MANAGEMENT, PATHS, QUEUE, TOPIC, Node, parse_node, queue_path
from headrace.protocols.amqp10.conditions import ends_link_only, error_for
from headrace.protocols.amqp10.consuming import Subscription
from headrace.protocols.amqp10.coordinator import CoordinatorSink
from headrace.protocols.amqp10.frames import (
    INVALID_FIELD,
    MAX_MESSAGE_BYTES,
    RECEIVER_SECOND,
    SENDER_MIXED,
    SENDER_UNSETTLED,
)
from headrace.protocols.amqp10.incoming import IncomingLink, Sink
from headrace.protocols.amqp10.link import Link
from headrace.protocols.amqp10.management import ManagementSink
from headrace.protocols.amqp10.outgoing import Origin, OutgoingLink
from headrace.protocols.amqp10.own_queues import has_subscription, kept_subscription, own_queue, own_topic
from headrace.protocols.amqp10.performatives import Attach, Detach
from headrace.protocols.amqp10.publishing import Publisher, check_target
from headrace.protocols.amqp10.resuming import go_on, recall, say_unsettled, take_over
from headrace.protocols.amqp10.states import RELEASED
from headrace.protocols.amqp10.subscribing import origin_of
from headrace.protocols.amqp10.termini import Coordinator, Source, Target
from headrace.protocols.amqp10.terminus_store import StoredSource
from headrace.protocols.amqp10.types import Map

if TYPE_CHECKING:
    from headrace.protocols.amqp10.session import Session

_OUTCOMES: Final = ["amqp:accepted:list", "amqp:rejected:list", "amqp:released:list", "amqp:modified:list"]


def attach_link(session: "Session", attach: Attach) -> Link | None:
    """Answer an attach: the link, or None when it was answered with a detach that says why."""
    try:
        return _attach_outgoing(session, attach) if attach.is_receiver else _attach_incoming(session, attach)
    except HeadraceError as error:
        if not ends_link_only(error):
            raise
        _refuse(session, attach, error)
        return None


def _refuse(session: "Session", attach: Attach, error: HeadraceError) -> None:
    """An answer without the terminus that was asked for, then a detach that says why."""
    answer = Attach(attach.name, attach.handle, not attach.is_receiver)
    if attach.is_receiver:
        answer.target = attach.target
    else:
        answer.source = attach.source
    session.send(answer.encode())
    session.send(Detach(attach.handle, True, error_for(error)).encode())


def _answer(attach: Attach) -> Attach:
    answer = Attach(attach.name, attach.handle, not attach.is_receiver)
    answer.sender_settles = attach.sender_settles
    answer.receiver_settles = attach.receiver_settles
    answer.source = attach.source
    answer.target = attach.target
    answer.properties = Map([(key, value) for key, value in attach.properties.pairs if key == "paired"])
    return answer


def _send_kept(session: "Session", answer: Attach) -> None:
    """Say that a link is there, once what was made for it would survive a crash."""
    session.way_out.hold()
    session.send(answer.encode())


# -- what comes in ---------------------------------------------------------------------------------------------------


def _attach_incoming(session: "Session", attach: Attach) -> Link:
    peer, suspended = session.peer, session.peer.host.suspended
    key = (peer.container_id, attach.name)
    suspended.make_way(key, False)
    kept = suspended.sender(key)
    if attach.target is None and kept is not None:
        attach.target = kept.terminus
    target = attach.target
    if target is None:
        raise ProtocolError(INVALID_FIELD, f"the link {attach.name[:64]!r} has no target")
    answer = _answer(attach)
    answer.max_message_size = MAX_MESSAGE_BYTES
    if isinstance(target, Coordinator):
        answer.target = Coordinator(["amqp:local-transactions", "amqp:multi-txns-per-ssn"])
        link = IncomingLink(session, attach, CoordinatorSink(session.transactions))
    else:
        link = IncomingLink(session, attach, _sink(session, target))
        suspended.sender_attached(link, target)
        link.is_exact = target.is_exact
        if kept is not None:
            suspended.resume_sender(key)
            go_on(link, kept, attach)
    if attach.receiver_settles == RECEIVER_SECOND:
        say_unsettled(answer, link.states, peer.frame_max)
    _send_kept(session, answer)
    link.grant()
    return link


def _sink(session: "Session", target: Target) -> Sink:
    peer = session.peer
    if target.dynamic and "temporary-topic" in target.capabilities:
        target.address = own_topic()
        return Publisher(peer, Node(TOPIC, target.address))
    if target.dynamic:
        queue = own_queue(peer)
        target.address = queue_path(queue.name)
        return Publisher(peer, Node(QUEUE, queue.name), owns_queue=True)
    node = parse_node(target.address, target.capabilities)
    if node.kind in (MANAGEMENT, PATHS):
        return ManagementSink(session, node.kind == PATHS)
    check_target(peer, node, target.capabilities)
    return Publisher(peer, node)


# -- what goes out ---------------------------------------------------------------------------------------------------


def _attach_outgoing(session: "Session", attach: Attach) -> Link:
    peer, suspended = session.peer, session.peer.host.suspended
    key = (peer.container_id, attach.name)
    suspended.make_way(key, True)
    if attach.source is None:
        kept = suspended.receiver(key)
        if kept is None or has_subscription(peer, attach.name):
            return _attach_kept(session, attach)
        attach.source = kept.terminus
    source = attach.source
    if attach.sender_settles == SENDER_MIXED:
        attach.sender_settles = SENDER_UNSETTLED
    answer = _answer(attach)
    source.outcomes = _OUTCOMES
    source.default_outcome = source.default_outcome or RELEASED
    origin = origin_of(session, attach, source)
    link = OutgoingLink(session, attach, origin)
    origin.open(link)
    suspended.receiver_attached(link, _stored(origin, source))
    kept = suspended.resume_receiver(key)
    if kept is not None and attach.unsettled is not None:
        recall(kept, attach.unsettled)
        say_unsettled(answer, {sent.tag_bytes: sent.state for sent in kept.unsettled}, peer.frame_max)
    _send_kept(session, answer)
    if kept is not None:
        take_over(link, kept, attach)
    return link


def _stored(origin: Origin, source: Source) -> StoredSource | None:
    """What is stored of a source that is to be durable; None where nothing is: its messages would be gone too."""
    consumer = origin.consumer
    group = consumer.group if consumer is not None else None
    if not source.durable or not source.lasts or group is None or not group.queue.durable:
        return None
    return StoredSource(source, group.queue.name, group.name)


def _attach_kept(session: "Session", attach: Attach) -> Link:
    """A durable subscription that is looked up to be ended: nothing is delivered, and it holds nothing any more."""
    origin, attach.source = kept_subscription(session.peer, attach.name)
    answer = _answer(attach)
    link = OutgoingLink(session, attach, origin)
    origin.open(link)
    kept = session.peer.host.suspended.resume_receiver(link.key)
    if kept is not None and isinstance(kept.origin, Subscription):
        kept.origin.give_back()
    _send_kept(session, answer)
    return link
