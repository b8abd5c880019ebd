"""The links to and from the management nodes: requests as messages, replies as messages. What is done: see below.

`$management` takes operations on entities (entities.py), `/management` takes paths and verbs (paths.py).
"""

from collections import deque
from typing import TYPE_CHECKING, Final, final

from headrace.core.queue.dispatch import Delivery
from headrace.errors import HeadraceError, ProtocolError
from headrace.model import AMQP10, Message, Source
from headrace.protocols.amqp10.addresses import EXCHANGE, QUEUE, parse_node
from headrace.protocols.amqp10.conditions import error_for
from headrace.protocols.amqp10.entities import answer_entity
from headrace.protocols.amqp10.frames import RESOURCE_LIMIT, VALUE
from headrace.protocols.amqp10.links import Incoming, IncomingLink, Origin, OutgoingLink, Sink
from headrace.protocols.amqp10.paths import answer_path
from headrace.protocols.amqp10.performatives import ACCEPTED, Outcome, Rejected
from headrace.protocols.amqp10.properties import to_neutral
from headrace.protocols.amqp10.reading import Reader
from headrace.protocols.amqp10.requests import Reply, Request, refusal
from headrace.protocols.amqp10.sections import (
    CORRELATION_ID,
    MESSAGE_ID,
    REPLY_TO,
    Head,
    decode_head,
    joined,
    parts,
    split,
)
from headrace.protocols.amqp10.types import Described, Map
from headrace.protocols.amqp10.writing import encode_value

if TYPE_CHECKING:
    from headrace.protocols.amqp10.session import Session

_MAX_REPLIES: Final = 1024


@final
class Replies(Origin):
    """What a management node says to one link; it waits for credit."""

    def __init__(self, session: "Session", address: str) -> None:
        self._session = session
        self.address = address
        self._link: OutgoingLink | None = None
        self._waiting: deque[bytes] = deque()
        self._allowed = 0

    def open(self, link: OutgoingLink) -> None:
        self._link = link

    def say(self, message: bytes) -> None:
        """Raises ProtocolError (resource limit) when too many replies wait already."""
        if len(self._waiting) >= _MAX_REPLIES:
            raise ProtocolError(RESOURCE_LIMIT, f"{_MAX_REPLIES} replies wait for credit")
        self._waiting.append(message)
        self._send()

    def allow(self, count: int) -> None:
        self._allowed = count
        self._send()

    def _send(self) -> None:
        link = self._link
        while self._waiting and self._allowed and link is not None and not link.is_over:
            self._allowed -= 1
            link.send([self._waiting.popleft()], None)

    def settled(self, delivery: Delivery, outcome: Outcome) -> None:
        return

    def leave(self) -> None:
        self._waiting.clear()

    def end(self, is_closed: bool) -> None:
        self.leave()


@final
class ManagementSink(Sink):
    """Takes requests and answers each once what it asked for would survive a crash."""

    def __init__(self, session: "Session", is_by_path: bool) -> None:
        self._session = session
        self._is_by_path = is_by_path

    def take(self, link: IncomingLink, delivery: Incoming) -> None:
        try:
            request, reply_to, correlation = _read(delivery.message, link)
        except HeadraceError as error:
            _refuse(link, delivery, error)
            return
        is_by_path = self._is_by_path
        reply = answer_path(request) if is_by_path else answer_entity(request)

        def kept(error: HeadraceError | None) -> None:
            said = reply if error is None else refusal(error, is_by_path)
            try:
                self._send(link, reply_to, _written(said, reply_to, correlation, is_by_path))
            except HeadraceError as refused:
                _refuse(link, delivery, refused)
                return
            if not delivery.settled:
                link.done(delivery.number, ACCEPTED)

        if not link.peer.broker.when_kept(kept):
            kept(None)

    def _send(self, link: IncomingLink, reply_to: str, message: bytes) -> None:
        """To the link that is paired with the request's, to one that the address names, or to where that leads."""
        found = [
            (other, other.origin)
            for other in self._session.links()
            if isinstance(other, OutgoingLink) and isinstance(other.origin, Replies)
        ]
        for other, replies in found:
            if other.name == link.name or (reply_to and _target(other) == reply_to):
                replies.say(message)
                return
        if found and reply_to in ("", "$me"):
            found[0][1].say(message)
            return
        if reply_to:
            self._publish(reply_to, message)

    def _publish(self, reply_to: str, message: bytes) -> None:
        node = parse_node(reply_to, [])
        exchange, topic = (node.name, node.key or "") if node.kind == EXCHANGE else ("", node.name)
        peer = self._session.peer
        source = Source(topic, exchange, peer.container_id, "amqp10", AMQP10)
        properties, payload = split(message)
        reply = Message(source, payload, peer.now_us, properties)
        if node.kind in (EXCHANGE, QUEUE):
            peer.rights.check_publish(exchange, topic, peer.container_id)
            peer.broker.publish(reply)
        else:
            peer.rights.check_topic_publish(topic, peer.container_id)
            peer.broker.publish_topic(reply)

    def end(self, is_closed: bool) -> None:
        return


def _refuse(link: IncomingLink, delivery: Incoming, error: HeadraceError) -> None:
    """Say what is wrong with a request, or end its link where nobody waits to hear of the request."""
    if delivery.settled:
        link.detach(error)
    else:
        link.done(delivery.number, Rejected(error_for(error)))


def _target(link: OutgoingLink) -> str:
    target = link.attach.target
    return getattr(target, "address", None) or ""


def _read(message: bytes, link: IncomingLink) -> tuple[Request, str, object]:
    """The request, where its reply goes, and what the reply refers to. Raises ProtocolError."""
    properties, payload = split(message)
    head = decode_head(parts(properties)[0])
    body = joined(bytes([properties[0] & 0x7F]), payload)
    value = Reader(body).value() if body else None
    content = value.value if isinstance(value, Described) else None
    request = Request(link.peer, head, to_neutral(content))
    reply_to = head.property_field(REPLY_TO)
    correlation = head.property_field(CORRELATION_ID)
    if correlation is None:
        correlation = head.property_field(MESSAGE_ID)
    return request, str(reply_to) if isinstance(reply_to, str) else "", correlation


def _written(reply: Reply, reply_to: str, correlation: object, is_by_path: bool) -> bytes:
    head = Head()
    subject = str(reply.status) if is_by_path else None
    head.properties = [None, None, reply_to or None, subject, None, correlation]
    head.application = Map(reply.said(is_by_path))
    return head.encode() + bytes((0x00, 0x53, VALUE)) + encode_value(reply.body)
