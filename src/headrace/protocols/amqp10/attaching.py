"""How a link comes to be, new or resumed: the answer to its attach, or why there is none."""

from typing import TYPE_CHECKING, Final

from headrace.core.queue.group import RELEASE
from headrace.errors import HeadraceError, ProtocolError, Refused
from headrace.protocols.amqp10.addresses import MANAGEMENT, PATHS, QUEUE, TOPIC, Node, parse_node, queue_path
from headrace.protocols.amqp10.conditions import ends_link_only, error_for
from headrace.protocols.amqp10.coordinator import CoordinatorSink
from headrace.protocols.amqp10.frames import INVALID_FIELD, RECEIVER_SECOND, SENDER_MIXED, SENDER_UNSETTLED
from headrace.protocols.amqp10.links import IncomingLink, Link, Origin, OutgoingLink, Sent, Sink, place_in
from headrace.protocols.amqp10.management import ManagementSink
from headrace.protocols.amqp10.performatives import (
    RELEASED,
    Attach,
    Coordinator,
    Detach,
    Source,
    State,
    Target,
    outcome_in,
    state_of,
)
from headrace.protocols.amqp10.publishing import Publisher, check_target
from headrace.protocols.amqp10.subscriptions import (
    Subscription,
    has_subscription,
    kept_subscription,
    origin_of,
    own_queue,
    own_topic,
)
from headrace.protocols.amqp10.suspended import StoredSource, SuspendedReceiver, SuspendedSender
from headrace.protocols.amqp10.types import Described, Map
from headrace.protocols.amqp10.writing import encode_value

if TYPE_CHECKING:
    from headrace.protocols.amqp10.links import IncomingLink
    from headrace.protocols.amqp10.session import Session

_AROUND_LIST: Final = 64
"""More than a frame and its lists need around what is in them, in bytes."""


def recall(kept: SuspendedReceiver, known: Map) -> None:
    """Have what was kept under the tags by which the receiver knows it."""
    tags = [int.from_bytes(tag) for tag, _ in known.pairs if isinstance(tag, bytes) and len(tag) == 8]
    places = {place_in(tag): tag for tag in tags if place_in(tag)}
    for sent in kept.unsettled:
        sent.tag = places.get(place_in(sent.tag), sent.tag)


def take_over(link: OutgoingLink, kept: SuspendedReceiver, attach: Attach) -> None:
    """Go on where a link to a receiver was detached.

    What the receiver has decided is settled so, what it still has is resumed, and what it knows nothing of goes back in
    line: untried if it says what it knows, else as what a consumer had that is gone.
    """
    origin, former = link.origin, kept.origin
    if not isinstance(origin, Subscription) or not isinstance(former, Subscription):
        if former is not None:
            former.end(False)
        return
    if attach.unsettled is None:
        former.give_back()
        return
    origin.former += former.former
    former.former = []
    link.last_tag = kept.last_tag
    states = {bytes(tag): state for tag, state in attach.unsettled.pairs if isinstance(tag, bytes)}
    for sent in kept.unsettled:
        if sent.tag_bytes in states:
            _resume(link, origin, sent, states[sent.tag_bytes])
        elif attach.incomplete_unsettled:
            link.dormant.append(sent)
        elif sent.delivery is not None:
            try:
                origin.broker.settle(sent.delivery, RELEASE)
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
    link.when_stored(delivery, lambda: link.resume(sent, b"", True))


def go_on(link: "IncomingLink", kept: SuspendedSender, attach: Attach) -> None:
    """Go on where a link from a sender was detached: it hears of what it still asks for, the rest is forgotten."""
    link.states = kept.states
    if kept.link is not None:
        kept.link.heir = link
    asked = {tag for tag, _ in (attach.unsettled or Map()).pairs}
    for tag in [] if attach.incomplete_unsettled else list(kept.states):
        if tag not in asked:
            link.forget(tag)


def say_unsettled(answer: Attach, states: dict[bytes, State | None], frame_max: int) -> None:
    """Have the answer to an attach say what is unsettled here, as far as a frame has room for it."""
    room = frame_max - _AROUND_LIST - len(answer.encode())
    pairs: list[tuple[object, object]] = []
    for tag, state in states.items():
        described = None if state is None else state.described()
        room -= len(encode_value(tag)) + len(encode_value(described))
        if room < 0:
            answer.incomplete_unsettled = True
            break
        pairs.append((tag, described))
    answer.unsettled = Map(pairs)


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
    answer.max_message_size = session.peer.broker.intake.largest_bytes
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
