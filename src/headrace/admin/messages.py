"""Messages over HTTP: as JSON and back, published, taken and settled. Pages of both APIs call this."""

import asyncio
import base64
import binascii
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, final

from headrace.admin.pages import BadRequest, Call, done
from headrace.config.kinds import Choice, Number, Secret, Unchecked, Unicode
from headrace.config.table import option
from headrace.core.access.permissions import Rights
from headrace.core.broker import Broker
from headrace.core.client import Client, ConsumeRequest
from headrace.core.queue.dispatch import Delivery
from headrace.core.queue.stream import StreamGroup
from headrace.errors import HeadraceError, Refused
from headrace.model import NATIVE, Message, Source
from headrace.names import check_topic
from headrace.storage.api import Done
from headrace.wire.encodings import properties_of
from headrace.wire.properties import Properties, encode_native, table_from_json, table_to_json

PROTOCOL: Final = "http"
MAX_PAYLOAD: Final = 1 << 30
MAX_SHOWN_BYTES: Final = 16 << 20
"""Most payload bytes of one answer."""
TEXT: Final = "text"
BASE64: Final = "base64"
_MAX_MS: Final = 1 << 45
_READABLE: Final = bytes([*b"\t\n\r", *range(0x20, 0x7F), *range(0x80, 0x100)])
"""Bytes of readable UTF-8; the others are control characters."""

# -- as JSON ---------------------------------------------------------------------------------------------------------


def payload_to_json(payload: bytes, as_base64: bool, max_bytes: int = MAX_PAYLOAD) -> tuple[str, str]:
    """Return the payload as a text, and its encoding; an unreadable payload is always base64."""
    shown = payload[:max_bytes]
    if not as_base64 and not shown.translate(None, _READABLE):
        try:
            return shown.decode(), TEXT
        except UnicodeDecodeError as error:
            is_cut = len(shown) < len(payload) and error.start >= len(shown) - 3
            if is_cut and error.reason == "unexpected end of data":  # the cut is within a character
                return shown[: error.start].decode(), TEXT
    return base64.b64encode(shown).decode(), BASE64


def payload_from_json(value: object, encoding: object) -> bytes:
    """Raises BadRequest."""
    if not isinstance(value, str):
        raise BadRequest(f"'payload' must be a string, not {type(value).__name__}")
    if encoding in (TEXT, "string"):
        return value.encode(errors="surrogatepass")
    if encoding != BASE64:
        raise BadRequest("'payload_encoding' must be 'text', 'string' or 'base64'")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"'payload' is not base64: {error}") from error


def properties_to_json(message: Message) -> dict[str, object]:
    """Return the properties of a message of any protocol."""
    try:
        properties = properties_of(message)
        headers = table_to_json(properties.headers)
    except Refused as error:
        return {"unreadable": str(error)}
    found: dict[str, object] = {name: value for name in _TEXTS if (value := getattr(properties, name))}
    if properties.delivery_mode:
        found["delivery_mode"] = properties.delivery_mode
    if message.priority:
        found["priority"] = message.priority
    if headers:
        found["headers"] = headers
    return found


def message_to_json(offset: int, message: Message, as_base64: bool, max_bytes: int) -> dict[str, object]:
    payload, encoding = payload_to_json(message.payload, as_base64, max_bytes)
    source = message.source
    return {
        "offset": offset,
        "timestamp": time_to_json(message.timestamp_us),
        "exchange": source.exchange,
        "topic": source.topic,
        "client_id": source.client_id,
        "protocol": source.protocol,
        "expires_at": time_to_json(message.expires_us),
        "not_before": time_to_json(message.not_before_us),
        "properties": properties_to_json(message),
        "payload": payload,
        "payload_encoding": encoding,
        "payload_bytes": len(message.payload),
        "is_cut": len(message.payload) > max_bytes,
    }


def time_to_json(time_us: int) -> str | None:
    """Return RFC 3339 with milliseconds; None for no time, or for one outside of the calendar."""
    if not time_us:
        return None
    try:
        return datetime.fromtimestamp(time_us / 1_000_000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return None


# -- published -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MessageProperties:
    """Properties of a message to publish."""

    content_type: str = option("", Unicode())
    content_encoding: str = option("", Unicode())
    correlation_id: str = option("", Unicode())
    reply_to: str = option("", Unicode())
    expiration: str = option("", Unicode())
    message_id: str = option("", Unicode())
    message_type: str = option("", Unicode())
    user_id: str = option("", Unicode())
    app_id: str = option("", Unicode())
    delivery_mode: int = option(2, Number(0, 2))
    priority: int = option(0, Number(0, 255))
    headers: object = option(None, Unchecked(type=["object", "null"]))


_TEXTS: Final = tuple(name for name, value in vars(MessageProperties()).items() if value == "")


@dataclass(frozen=True)
class Publication:
    """A message to publish: to a topic, or to an exchange with a routing key."""

    topic: str = option("", Unicode(), "A plain topic or an address, $queue/<name>/<key>")
    exchange: str = option("", Unicode())
    routing_key: str = option("", Unicode())
    payload: str = option("", Secret())
    payload_encoding: str = option(TEXT, Choice(TEXT, BASE64, "string"))
    properties: MessageProperties = option(MessageProperties(), MessageProperties)
    expires_in_ms: int = option(0, Number(0, _MAX_MS))
    deliver_in_ms: int = option(0, Number(0, _MAX_MS))


@final
class Draft:
    """A message before it is published."""

    __slots__ = ("headers", "is_topic", "message")

    def __init__(self, message: Message, headers: Mapping[str, object], is_topic: bool) -> None:
        self.message = message
        self.headers = headers
        self.is_topic = is_topic
        """True if it goes to a topic rather than to an exchange."""


def draft(body: Publication, user: str, now_us: int) -> Draft:
    """Make the message that a request describes. Raises Refused."""
    if body.topic and (body.exchange or body.routing_key):
        raise BadRequest("a message goes to a 'topic', or to an 'exchange' with a 'routing_key', not to both")
    properties = Properties(table_from_json(body.properties.headers or {}))
    for name in (*_TEXTS, "delivery_mode"):
        setattr(properties, name, getattr(body.properties, name))
    message = Message(
        Source(body.topic or body.routing_key, body.exchange, user, PROTOCOL, NATIVE),
        payload_from_json(body.payload, body.payload_encoding),
        now_us,
        encode_native(properties),
        body.properties.priority,
        now_us + body.expires_in_ms * 1000 if body.expires_in_ms else 0,
        now_us + body.deliver_in_ms * 1000 if body.deliver_in_ms else 0,
    )
    return Draft(message, properties.headers, bool(body.topic))


async def publish(call: Call, host: str, body: Publication) -> int:
    """Publish a message; return the number of queues that took it, once it is durable there. Raises Refused."""
    broker = call.broker(host)
    found = draft(body, call.visitor.name, call.site.clock.now_us())
    source, size = found.message.source, len(found.message.payload)
    client = Client(broker, call.visitor.account, call.rights(host), source.client_id, PROTOCOL, NATIVE)
    client.check_user_id(body.properties.user_id)
    if found.is_topic:
        check_topic(source.topic)
        client.check_publish_topic(source.topic, size)
    else:
        client.check_publish(source.exchange, source.topic, size)
    client.check_rate(call.site.clock.monotonic_us())
    taken = 0

    def start(confirm: Done) -> None:
        nonlocal taken
        if found.is_topic:
            taken = broker.publish_topic(found.message, confirm)
        else:
            taken = broker.publish(found.message, confirm, found.headers)

    await done(start)
    return taken


def client_of(call: Call, broker: Broker, rights: Rights) -> Client:
    """Return the visitor as a client of a virtual host."""
    return Client(broker, call.visitor.account, rights, f"{PROTOCOL}:{call.visitor.name}", PROTOCOL, NATIVE)


# -- taken -----------------------------------------------------------------------------------------------------------

_AT_ONCE: Final = 16
_LEAST_WAIT_MS: Final = 50


@final
class Taker:
    """A consumer for one HTTP request."""

    def __init__(self, client: Client, request: ConsumeRequest, name: str, limit: int) -> None:
        """Raises what `Client.resolve` raises."""
        request.credit = min(limit, _AT_ONCE)
        self._client = client
        self._broker = client.broker
        self._plan = client.resolve(request)
        self._limit = limit
        self._got: list[Delivery] = []
        self._bytes = 0
        self._is_enough = asyncio.Event()
        self._consumer = client.consumer(self._plan, name, self._deliver)
        self._consumer.allowance = limit
        self._consumer.cancelled = self._is_enough.set

    async def take(self, wait_ms: int, outcome: int) -> list[Delivery]:
        """Return messages that arrive in time, up to the limit, once their settlement is durable.

        Raises the errors of consuming and of storing; after these, all messages are back in line.
        """
        members = self._client.consume(self._plan, self._consumer)
        try:
            with contextlib.suppress(TimeoutError):
                # Deliveries need a few turns of the event loop; a group that is behind on disk needs longer.
                async with asyncio.timeout(max(wait_ms, _LEAST_WAIT_MS) / 1000):
                    await self._is_enough.wait()
            self._broker.allow(self._consumer, 0)
            await settle_all(self._broker, self._got, outcome)
        finally:
            self._client.cancel(self._plan, self._consumer)
        if members.queue.is_gone and not self._got:
            raise members.queue.end
        if isinstance(members, StreamGroup):  # its progress is staged when the consumer leaves
            with contextlib.suppress(HeadraceError):  # it is stored later; after a crash the group reads these again
                await done(self._broker.when_safe)
        return self._got

    def _deliver(self, deliveries: list[Delivery]) -> None:
        self._got += deliveries
        self._bytes += sum([len(delivery.message.payload) for delivery in deliveries])
        if len(self._got) >= self._limit or self._bytes >= MAX_SHOWN_BYTES:
            self._broker.allow(self._consumer, 0)
            self._is_enough.set()
        elif len(self._got) >= self._consumer.limit:
            self._broker.set_credit(self._consumer, len(self._got) + _AT_ONCE)


async def settle_all(broker: Broker, deliveries: list[Delivery], outcome: int) -> None:
    """Settle deliveries in one transaction, and wait until that is durable; skip those of other consumers by now.

    Raises the error of storing; then their consumer holds them as before.
    """
    held = [each for each in deliveries if not each.group.queue.is_gone and each.consumer.holds(each.offset)]
    if held:
        await done(lambda tell: broker.transaction([], [(delivery, outcome) for delivery in held], tell))
