"""SUBSCRIBE to a core consumer, deliveries to MESSAGE, ACK and NACK to settlements. Core decides what is read."""

import base64
import hashlib
import json
import secrets
from collections.abc import Iterator
from itertools import chain
from typing import Final, final

from headrace.core.access.permissions import CONFIGURE
from headrace.core.access.permissions import QUEUE as QUEUES
from headrace.core.client import ConsumePlan, ConsumeRequest, Settling, request_table
from headrace.core.queue.definition import declared
from headrace.core.queue.dispatch import UNLIMITED, Consumer, Delivery, Recipient
from headrace.core.queue.group import ACK, NACK, REJECT
from headrace.core.routing.address import is_address
from headrace.core.routing.exchange import Binding
from headrace.core.routing.topology import key_of
from headrace.errors import HeadraceError, NotFound, Refused
from headrace.model import Message, Source
from headrace.protocols.stomp.codec import CONTENT_LENGTH, MESSAGE, V10, V12, Frame, encode_header, malformed
from headrace.protocols.stomp.destinations import (
    ADDRESS,
    QUEUE,
    TEMPORARY,
    Destination,
    format_destination,
    format_reply,
    parse_destination,
)
from headrace.protocols.stomp.publishing import (
    SWITCHES,
    Settlement,
    Transaction,
    declare_named,
    number,
    queue_arguments,
    switch,
)
from headrace.protocols.stomp.server import ConnectionContext
from headrace.selector import Selector, parse
from headrace.wire.encodings import properties_of
from headrace.wire.properties import to_json

AUTO: Final = "auto"
CLIENT: Final = "client"
EACH: Final = "client-individual"
_MODES: Final = (AUTO, CLIENT, EACH)
_ARGUMENTS: Final = request_table("x-consumer-group", "x-group-mode", "x-stream-offset", "x-auto-commit", "x-priority")
_ARGUMENT_NAMES: Final = ("x-consumer-group", "x-group-mode", "x-stream-offset", "x-auto-commit", "x-priority")
_OWN_QUEUE: Final = "stomp-subscription-"
_ID: Final = "@@"
"""Between the parts of a message id."""
_MAX_CREDIT: Final = 65_535
_TEXTS: Final = (
    ("content-type", "content_type"),
    ("content-encoding", "content_encoding"),
    ("correlation-id", "correlation_id"),
    ("expiration", "expiration"),
    ("amqp-message-id", "message_id"),
    ("type", "message_type"),
    ("user-id", "user_id"),
    ("app-id", "app_id"),
)
_PERSISTENT: Final = 2


@final
class Subscription(Recipient):
    """A subscription and its unsettled deliveries, oldest first."""

    __slots__ = (
        "_context",
        "_head",
        "_last_source",
        "_number",
        "_place",
        "consumer",
        "id",
        "is_durable",
        "mode",
        "plan",
        "tag",
        "unsettled",
    )

    def __init__(self, context: ConnectionContext, number: int, id_: str, mode: str) -> None:
        self._context = context
        self._number = number
        self.id = id_
        """The client's name for it, or its destination where the client gave none."""
        self.mode = mode
        self.is_durable = False
        self.tag = 0
        """The number of its last delivery."""
        self.unsettled: dict[int, Delivery] = {}
        self.plan: ConsumePlan | None = None
        self.consumer: Consumer | None = None
        self._head = f"{MESSAGE}\n".encode() + encode_header("subscription", id_, context.version).encode()
        self._last_source: Source | None = None
        self._place = b""
        """The header with the destination of the last source: neighbours are mostly of one."""

    @property
    def is_auto(self) -> bool:
        return self.mode == AUTO

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Send deliveries of core."""
        send = self._context.wire.send
        for delivery in deliveries:
            self.tag += 1
            if not self.is_auto:
                self.unsettled[self.tag] = delivery
            send(self._encode(delivery))

    def _encode(self, delivery: Delivery) -> bytes:
        context, message = self._context, delivery.message
        source = message.source
        if source is not self._last_source:
            self._last_source = source
            exchange, key = key_of(source)
            self._place = encode_header("destination", format_destination(exchange, key), context.version).encode(
                errors="surrogateescape"
            )
        name = f"T_{self._number}{_ID}{context.session}{_ID}{self.tag}"
        ack = f"ack:{name}\n" if context.version == V12 and not self.is_auto else ""
        own = f"message-id:{name}\n{ack}redelivered:{'true' if delivery.redelivered else 'false'}\n"
        if self.plan is not None and self.plan.is_stream:
            own += f"x-stream-offset:{delivery.offset}\n"
        length = f"{CONTENT_LENGTH}:{len(message.payload)}\n\n"
        return b"".join(
            (
                self._head,
                self._place,
                own.encode(),
                _header_lines(message, context.version),
                length.encode(),
                message.payload,
                b"\0",
            )
        )

    def allow(self, is_open: bool) -> None:
        """Let deliveries come, or pause them."""
        if self.consumer is not None:
            self._context.broker.allow(self.consumer, UNLIMITED if is_open else 0)

    def take(self, tag: int) -> list[tuple[int, Delivery]]:
        """Remove what an ACK or NACK with this tag means: one delivery, or all up to it. Raises Refused."""
        if tag not in self.unsettled:
            raise Refused("this message is not to be acknowledged: it is not known, or settled")
        if self.mode == EACH:
            return [(tag, self.unsettled.pop(tag))]
        found: list[tuple[int, Delivery]] = []
        for each in list(self.unsettled):
            if each > tag:
                break
            found.append((each, self.unsettled.pop(each)))
        return found


def _header_lines(message: Message, version: str) -> bytes:
    """The properties and headers of a message as header lines."""
    properties = properties_of(message)
    lines = [
        encode_header(name, value, version) for name, field in _TEXTS if (value := str(getattr(properties, field)))
    ]
    if properties.reply_to:
        reply = properties.reply_to
        lines.append(encode_header("reply-to", reply if reply.startswith("/") else format_reply(reply), version))
    if properties.delivery_mode == _PERSISTENT:
        lines.append("persistent:true\n")
    priority = properties.priority if properties.priority >= 0 else message.priority
    if priority:
        lines.append(f"priority:{priority}\n")
    if properties.timestamp_s >= 0:
        lines.append(f"timestamp:{properties.timestamp_s}\n")
    for name, header in properties.headers.items():
        lines.append(encode_header(name, _text(header), version))
    return "".join(lines).encode(errors="surrogateescape")


def _text(value: object) -> str:
    """A header value as text; tables and lists as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    if value is None or isinstance(value, int | float):
        return "" if value is None else str(value + 0)
    found = to_json(value)
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, separators=(",", ":"))


@final
class Subscriptions:
    """The subscriptions of a connection."""

    def __init__(self, context: ConnectionContext) -> None:
        self._context = context
        self._client = context.client
        self._broker = context.broker
        self._by_id: dict[str, Subscription] = {}
        self._by_number: dict[int, Subscription] = {}
        """The same, and those that ended and still hold messages."""
        self._numbers = 0
        self._settling = Settling(self._broker)
        self._temporary: dict[str, str] = {}
        """By the name of a `/temp-queue/`, its queue."""

    @property
    def consumers(self) -> list[Consumer]:
        return [found.consumer for found in self._by_id.values() if found.consumer is not None]

    @property
    def unsettled(self) -> int:
        return sum([len(found.unsettled) for found in self._by_number.values()])

    # -- subscribe and unsubscribe -----------------------------------------------------------------------------------

    def subscribe(self, frame: Frame) -> None:
        """Raises Refused kinds and ProtocolError."""
        destination = parse_destination(frame.require("destination"))
        id_ = frame.get("id")
        if not id_:
            if self._context.version != V10:
                raise malformed("SUBSCRIBE needs the header 'id'")
            id_ = destination.text
        if id_ in self._by_id:
            raise Refused(f"there is a subscription {id_[:64]!r} already")
        mode = frame.get("ack") or AUTO
        if mode not in _MODES:
            raise Refused(f"SUBSCRIBE: the header 'ack' is {', '.join(_MODES)}, not {mode[:32]!r}")
        request = self._request(frame, destination, id_)
        request.auto_ack = mode == AUTO
        self._begin(request, id_, mode, self._is_durable(frame) and not destination.is_queue)

    def _request(self, frame: Frame, destination: Destination, id_: str) -> ConsumeRequest:
        """The request of a SUBSCRIBE; the queue of its destination exists then."""
        name = destination.key
        if destination.kind == QUEUE:
            declare_named(self._context, frame, name)
        elif destination.kind == TEMPORARY:
            name = self.reply_queue(name)
        elif destination.kind != ADDRESS and not destination.is_queue:
            name = self._own_queue(frame, destination, id_)
        request = ConsumeRequest(name, is_address(name))
        request.read(
            _ARGUMENTS, {each: _read(frame.headers[each]) for each in _ARGUMENT_NAMES if each in frame.headers}
        )
        request.own_group = f"stomp-{id_}"
        request.forgets_own_group = "x-stream-offset" in frame.headers
        request.exclusive = switch(frame, "exclusive", False) and destination.kind != QUEUE
        request.credit = max(number(frame, "prefetch-count", _MAX_CREDIT), 0)
        request.selector = _selector(frame.get("selector"))
        return request

    def _begin(self, request: ConsumeRequest, id_: str, mode: str, is_durable: bool) -> None:
        plan = self._client.resolve(request)
        self._numbers += 1
        subscription = Subscription(self._context, self._numbers, id_, mode)
        subscription.is_durable = is_durable
        subscription.plan = plan
        subscription.consumer = consumer = self._client.consumer(plan, id_, subscription)
        consumer.exposes_offsets = plan.is_stream or plan.is_addressed
        consumer.cancelled = lambda: self._cancelled(subscription)
        self._client.consume(plan, consumer)
        self._by_id[id_] = subscription
        self._by_number[self._numbers] = subscription
        if self._context.is_held:
            subscription.allow(False)

    def _own_queue(self, frame: Frame, destination: Destination, id_: str) -> str:
        """Declare and bind the queue of a subscription to an exchange; a durable one outlives the connection."""
        client, broker = self._client, self._broker
        is_durable = self._is_durable(frame)
        if is_durable and not frame.get("id"):
            raise malformed("a durable subscription needs the header 'id'")
        name = frame.get("x-queue-name") or _own_name(destination, id_, is_durable)
        auto_delete = switch(frame, "auto-delete", not is_durable)
        exclusive = switch(frame, "exclusive", not is_durable)
        definition = declared(name, is_durable, exclusive, auto_delete, queue_arguments(frame))
        binding = Binding(destination.exchange, name, destination.key, {})
        client.rights.check_bind(binding)
        broker.topology.exchanges.get(destination.exchange)  # before anything is declared
        client.declare(definition)
        broker.bind(binding, client.owner)
        return name

    @staticmethod
    def _is_durable(frame: Frame) -> bool:
        return switch(frame, "durable", False) or switch(frame, "persistent", False)

    def reply_queue(self, name: str) -> str:
        """The queue of a `/temp-queue/` of this connection; the first use makes it and subscribes to it."""
        queue = self._temporary.get(name)
        if queue is None:
            definition = declared("", False, True, True)
            queue = self._client.declare(definition).name
            self._temporary[name] = queue
            request = ConsumeRequest(queue)
            request.auto_ack = True
            self._begin(request, f"/{TEMPORARY}/{name}", AUTO, False)
        return queue

    def unsubscribe(self, frame: Frame) -> None:
        """End a subscription. A durable one is forgotten with its queue if the client says `durable:true`."""
        id_ = frame.get("id")
        if not id_:
            if self._context.version != V10:
                raise malformed("UNSUBSCRIBE needs the header 'id'")
            id_ = frame.require("destination")
        subscription = self._by_id.pop(id_, None)
        is_durable = self._is_durable(frame)
        if subscription is None:
            if is_durable and frame.get("destination"):
                self._forget(_own_name(parse_destination(frame.get("destination")), id_, True))
                return
            raise Refused(f"there is no subscription {id_[:64]!r}")
        self._end(subscription)
        if is_durable and subscription.is_durable and subscription.plan is not None:
            self._forget(subscription.plan.queue.name)

    def _forget(self, queue: str) -> None:
        """Delete the queue of a durable subscription. Raises NotFound, AccessRefused."""
        self._client.rights.check(CONFIGURE, QUEUES, queue)
        self._broker.delete(queue, owner=self._client.owner)

    def _end(self, subscription: Subscription) -> None:
        """End a consumer; the connection may still settle what it holds."""
        plan, consumer = subscription.plan, subscription.consumer
        if plan is None or consumer is None:
            return
        self._client.cancel(plan, consumer, keep=not plan.is_stream)
        ended = [
            number for number, each in self._by_number.items() if each.id not in self._by_id and not each.unsettled
        ]
        for number_ in ended:
            del self._by_number[number_]

    def _cancelled(self, subscription: Subscription) -> None:
        """End the connection: STOMP has no other word for a queue that is gone."""
        if self._by_id.get(subscription.id) is not subscription:
            return
        del self._by_id[subscription.id]
        plan = subscription.plan
        error: HeadraceError = NotFound(f"the queue of the subscription {subscription.id[:64]!r} is deleted")
        if plan is not None and plan.queue.refusal is not None:
            error = plan.queue.refusal
        self._context.end(error, "")

    def restrict(self) -> None:
        """End the connection if the user may not read any more what it has subscribed to."""
        for subscription in self._by_id.values():
            if subscription.plan is not None and not self._client.may_read(subscription.plan):
                self._context.end(Refused(f"the subscription {subscription.id[:64]!r} may not be read any more"), "")
                return

    # -- settling ----------------------------------------------------------------------------------------------------

    def settle(self, frame: Frame, is_ack: bool, transaction: Transaction | None) -> None:
        """ACK or NACK. Raises Refused for a message that is not unsettled."""
        name = frame.require("id" if self._context.version == V12 else "message-id")
        subscription, tag = self._named(name)
        outcome = ACK if is_ack else _outcome(frame)
        found = subscription.take(tag)
        if transaction is not None:
            unsettled = subscription.unsettled
            transaction.settlements += [Settlement(unsettled, tag, delivery, outcome) for tag, delivery in found]
        elif outcome == ACK:
            self._broker.acknowledge([delivery for _, delivery in found])
        else:
            self._settling.start([delivery for _, delivery in found], outcome)

    def _named(self, name: str) -> tuple[Subscription, int]:
        parts = name.split(_ID)
        if len(parts) == 3 and parts[1] == self._context.session and parts[0].startswith("T_"):
            number_, tag = parts[0][2:], parts[2]
            if number_.isdecimal() and tag.isdecimal():
                found = self._by_number.get(int(number_))
                if found is not None:
                    return found, int(tag)
        raise Refused(f"no message {name[:64]!r} was sent over this connection")

    # -- flow and the end --------------------------------------------------------------------------------------------

    def hold(self, is_held: bool) -> None:
        """Start or stop deliveries, as the client's reading allows."""
        self._context.is_held = is_held
        for subscription in self._by_id.values():
            subscription.allow(not is_held)

    def close(self) -> Iterator[None]:
        """End with the connection: silence the consumers now; the steps give back their messages and cancel them."""
        subscriptions = list(self._by_number.values())
        self._by_id.clear()
        self._by_number.clear()
        for subscription in subscriptions:
            subscription.unsettled.clear()
            if subscription.consumer is not None:
                subscription.consumer.silence()
        ended = [(each.plan, each.consumer) for each in subscriptions if each.consumer is not None]
        return chain(self._settling.rest(), self._client.end_each(ended))


def _read(text: str) -> object:
    """A consumer argument: numbers and switches as such."""
    if text.isascii() and text.removeprefix("-").isdecimal() and len(text) <= 20:
        return int(text)
    return SWITCHES.get(text, text)


def _selector(text: str) -> Selector | None:
    """Raises BadExpression."""
    return parse(text) if text else None


def _own_name(destination: Destination, id_: str, is_durable: bool) -> str:
    """The queue of a subscription to an exchange; that of a durable one has the same name next time."""
    if not is_durable:
        return _OWN_QUEUE + secrets.token_urlsafe(16)
    digest = hashlib.md5(f"{id_}\0{destination.text}".encode(), usedforsecurity=False).digest()
    return _OWN_QUEUE + base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _outcome(frame: Frame) -> int:
    """NACK gives the message back, for its next try; with `requeue:false` it is a dead letter."""
    return NACK if switch(frame, "requeue", True) else REJECT
