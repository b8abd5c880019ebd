"""SEND to core's publish: destinations to exchanges and keys, headers to properties, transactions. No subscriptions."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final, final

from headrace.core.batch import Confirm
from headrace.core.queue.definition import COMPARED, declared
from headrace.core.queue.dispatch import Delivery
from headrace.core.routing.address import MAX_CACHED_KEY
from headrace.core.transaction import Publish as Staging
from headrace.errors import NotFound, Refused
from headrace.model import AMQP091, Message, Source
from headrace.protocols.stomp.codec import CONTENT_LENGTH, CONTENT_TYPE, Frame
from headrace.protocols.stomp.destinations import (
    QUEUE,
    TEMPORARY,
    Destination,
    parse_destination,
)
from headrace.protocols.stomp.server import PROTOCOL, ConnectionContext
from headrace.wire.amqp091 import encode_properties
from headrace.wire.properties import Properties

_MAX_ROUTES: Final = 256
_MAX_EXPIRATION_MS: Final = (1 << 32) - 1
_MAX_PRIORITY: Final = 255
_STAGED_BYTES: Final = 512
"""Memory of a staged message besides its payload and properties."""
_PERSISTENT: Final = 2
_TRANSIENT: Final = 1

_TEXTS: Final = {
    CONTENT_TYPE: "content_type",
    "content-encoding": "content_encoding",
    "correlation-id": "correlation_id",
    "reply-to": "reply_to",
    "expiration": "expiration",
    "amqp-message-id": "message_id",
    "type": "message_type",
    "user-id": "user_id",
    "app-id": "app_id",
}
"""Headers that are properties, by RabbitMQ's names."""
QUEUE_ARGUMENTS: Final = frozenset((*COMPARED, "x-queue-type"))
"""Headers that are arguments of the queue."""
_WORDS: Final = ("x-dead-letter-exchange", "x-dead-letter-routing-key", "x-filter", "x-source", "x-source-from")
"""Queue arguments whose digits are text."""
_ABOUT_QUEUE: Final = ("durable", "auto-delete", "exclusive")
_OF_FRAME: Final = frozenset(
    ("destination", CONTENT_LENGTH, "receipt", "transaction", "persistent", "priority", "timestamp")
)
"""Headers of SEND that are neither a text property nor a header of the message."""
SWITCHES: Final = {"true": True, "false": False}


def switch(frame: Frame, name: str, default: bool) -> bool:
    """A header that is true or false. Raises Refused for another value."""
    text = frame.get(name)
    if not text:
        return default
    value = SWITCHES.get(text)
    if value is None:
        raise Refused(f"{frame.command}: the header {name!r} is true or false, not {text[:32]!r}")
    return value


def number(frame: Frame, name: str, most: int) -> int:
    """A header that is a whole number; -1 if it is absent. Raises Refused for another value."""
    text = frame.get(name)
    if not text:
        return -1
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= most):
        raise Refused(f"{frame.command}: the header {name!r} is a number up to {most}, not {text[:32]!r}")
    return int(text)


def queue_arguments(frame: Frame) -> dict[str, object]:
    """The arguments of a queue among the headers: numbers and switches as such."""
    found: dict[str, object] = {}
    for name, text in frame.headers.items():
        if name in QUEUE_ARGUMENTS:
            is_number = text.isascii() and text.isdecimal() and len(text) <= 19 and name not in _WORDS
            found[name] = int(text) if is_number else SWITCHES.get(text, text)
    return found


def declare_named(context: ConnectionContext, frame: Frame, name: str) -> None:
    """Declare the queue of `/queue/NAME`, durable unless the headers say otherwise.

    Without such headers an existing queue is right as it is. Raises what a declaration raises.
    """
    client = context.client
    arguments = queue_arguments(frame)
    if not arguments and not any([each in frame.headers for each in _ABOUT_QUEUE]):
        with suppress(NotFound):
            client.broker.queue(name, client.owner)
            return
    definition = declared(
        name,
        switch(frame, "durable", True),
        switch(frame, "exclusive", False),
        switch(frame, "auto-delete", False),
        arguments,
    )
    client.declare(definition)


@final
class _Route:
    """A destination that was sent to, and the source of its messages."""

    __slots__ = ("destination", "source")

    def __init__(self, destination: Destination, source: Source) -> None:
        self.destination = destination
        self.source = source


@final
class Settlement:
    """A delivery that a transaction settles, and where it was unsettled."""

    __slots__ = ("delivery", "outcome", "tag", "unsettled")

    def __init__(self, unsettled: dict[int, Delivery], tag: int, delivery: Delivery, outcome: int) -> None:
        self.unsettled = unsettled
        self.tag = tag
        self.delivery = delivery
        self.outcome = outcome


@final
class Transaction:
    """The messages and settlements of a client between BEGIN and COMMIT."""

    __slots__ = ("publishes", "settlements", "size_bytes")

    def __init__(self) -> None:
        self.publishes: list[Staging] = []
        self.settlements: list[Settlement] = []
        self.size_bytes = 0

    def abort(self) -> None:
        """Make its deliveries unsettled again, in their order."""
        for settlement in self.settlements:
            settlement.unsettled[settlement.tag] = settlement.delivery
        for unsettled in {id(each.unsettled): each.unsettled for each in self.settlements}.values():
            ordered = dict(sorted(unsettled.items()))
            unsettled.clear()
            unsettled.update(ordered)


@final
class Publisher:
    """The publishing side of a connection."""

    def __init__(self, context: ConnectionContext, reply_queue: Callable[[str], str]) -> None:
        """`reply_queue` gives the queue that stands for a `/temp-queue/` of this connection."""
        self._context = context
        self._client = context.client
        self._reply_queue = reply_queue
        self._routes: dict[str, _Route] = {}

    def send(self, frame: Frame, confirm: Confirm | None, transaction: Transaction | None) -> None:
        """Publish a message, or add it to a transaction. Raises Refused, ProtocolError."""
        client, context = self._client, self._context
        route = self._route(frame)
        source = route.source
        client.check_publish(source.exchange, source.topic, len(frame.body))
        given = self._properties(frame)
        expires_us = self._expires_us(given.expiration)
        priority = max(given.priority, 0)
        raw = encode_properties(given)
        message = Message(source, frame.body, context.now_us, raw, priority, expires_us)
        if transaction is not None:
            transaction.publishes.append(Staging(message, given.headers or None))
            transaction.size_bytes += len(frame.body) + len(raw) + _STAGED_BYTES
            return
        context.broker.publish(message, confirm, given.headers or None)

    def _route(self, frame: Frame) -> _Route:
        """The route of a destination; the queue of a new one is declared."""
        text = frame.require("destination")
        route = self._routes.get(text)
        if route is not None:
            return route
        destination = parse_destination(text)
        key = destination.key
        if destination.kind == TEMPORARY:
            key = self._reply_queue(key)
        elif destination.kind == QUEUE:
            declare_named(self._context, frame, key)
        source = Source(key, destination.exchange, self._client.client_id, PROTOCOL, AMQP091)
        route = _Route(destination, source)
        if len(self._routes) >= _MAX_ROUTES:
            self._routes.clear()
        if len(text) <= MAX_CACHED_KEY:
            self._routes[text] = route
        return route

    def _properties(self, frame: Frame) -> Properties:
        properties = Properties()
        headers = properties.headers
        for name, value in frame.headers.items():
            property_name = _TEXTS.get(name)
            if property_name is not None:
                setattr(properties, property_name, value)
            elif name not in _OF_FRAME and name not in QUEUE_ARGUMENTS:
                headers[name] = value
        for name in _ABOUT_QUEUE:
            headers.pop(name, None)
        properties.delivery_mode = _PERSISTENT if switch(frame, "persistent", False) else _TRANSIENT
        properties.priority = number(frame, "priority", _MAX_PRIORITY)
        properties.timestamp_s = number(frame, "timestamp", (1 << 63) - 1)
        self._client.check_user_id(properties.user_id)
        if properties.reply_to.startswith(f"/{TEMPORARY}/"):
            destination = parse_destination(properties.reply_to)
            properties.reply_to = self._reply_queue(destination.key)
        return properties

    def _expires_us(self, text: str) -> int:
        if not text:
            return 0
        if not (text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) <= _MAX_EXPIRATION_MS):
            raise Refused(
                f"the header 'expiration' is {text[:32]!r}: it must be milliseconds, up to {_MAX_EXPIRATION_MS}"
            )
        return self._context.now_us + int(text) * 1000

    def commit(self, transaction: Transaction, confirm: Confirm) -> None:
        """Publish and settle all of a transaction, or nothing. Raises Refused before anything is done."""
        settlements = [
            (each.delivery, each.outcome) for each in transaction.settlements if not each.delivery.group.queue.is_gone
        ]
        self._context.broker.transaction(transaction.publishes, settlements, confirm)
