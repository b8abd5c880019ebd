"""Messages as JSON and back: payloads as text or base64, properties of every protocol in one form. No pages."""

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, final

from headrace.admin.pages import BadRequest, Section
from headrace.core.properties import Codecs, Properties, table_from_json, table_to_json
from headrace.errors import Refused
from headrace.model import NATIVE, Message, Source

PROTOCOL: Final = "http"
MAX_PAYLOAD: Final = 1 << 30
_MAX_MS: Final = 1 << 45
_TEXTS: Final = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "message_type",
    "user_id",
    "app_id",
)
_READABLE: Final = bytes([*b"\t\n\r", *range(0x20, 0x7F), *range(0x80, 0x100)])
"""The bytes that a text in UTF-8 has; others are control characters."""
TEXT: Final = "text"
BASE64: Final = "base64"


def payload_to_json(payload: bytes, as_base64: bool, max_bytes: int = MAX_PAYLOAD) -> tuple[str, str]:
    """The payload as a text and how that is to be read; what is not readable is in base64 in any case."""
    shown = payload[:max_bytes]
    if not as_base64 and not shown.translate(None, _READABLE):
        try:
            return shown.decode(), TEXT
        except UnicodeDecodeError as error:
            is_cut = len(shown) < len(payload) and error.start >= len(shown) - 3
            if is_cut and error.reason == "unexpected end of data":  # cut within a character, not wrong
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


def properties_to_json(codecs: Codecs, message: Message) -> dict[str, object]:
    """What the message says about itself, whichever protocol it came by."""
    try:
        properties = codecs.decode(message)
        headers = table_to_json(properties.headers)
    except Refused as error:
        return {"unreadable": str(error)}
    said: dict[str, object] = {name: value for name in _TEXTS if (value := getattr(properties, name))}
    if properties.delivery_mode:
        said["delivery_mode"] = properties.delivery_mode
    if message.priority:
        said["priority"] = message.priority
    if headers:
        said["headers"] = headers
    return said


def message_to_json(
    codecs: Codecs, offset: int, message: Message, as_base64: bool, max_bytes: int
) -> dict[str, object]:
    """Everything about a message."""
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
        "properties": properties_to_json(codecs, message),
        "payload": payload,
        "payload_encoding": encoding,
        "payload_bytes": len(message.payload),
        "is_cut": len(message.payload) > max_bytes,
    }


def time_to_json(time_us: int) -> str | None:
    """RFC 3339 with milliseconds; None for none, or for a time that no calendar has."""
    if not time_us:
        return None
    try:
        return datetime.fromtimestamp(time_us / 1_000_000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return None


@final
class Draft:
    """A message as somebody asked over HTTP to publish it."""

    __slots__ = ("headers", "is_topic", "message")

    def __init__(self, message: Message, headers: Mapping[str, object], is_topic: bool) -> None:
        self.message = message
        self.headers = headers
        self.is_topic = is_topic
        """Whether it goes to a topic rather than to an exchange."""


def draft(body: Section, codecs: Codecs, user: str, now_us: int) -> Draft:
    """The message that the body of a request describes. Raises Refused for what makes no sense in it."""
    topic = body.text("topic", "")
    exchange, key = body.text("exchange", ""), body.text("routing_key", "")
    if topic and (exchange or key):
        raise BadRequest("a message goes to a 'topic', or to an 'exchange' with a 'routing_key', not to both")
    payload = payload_from_json(body.get("payload") or "", body.text("payload_encoding", TEXT))
    given = body.section("properties")
    properties = Properties(table_from_json(given.get("headers") or {}))
    for name in _TEXTS:
        setattr(properties, name, _text(given, name))
    properties.delivery_mode = given.number("delivery_mode", 2, most=2)
    priority = given.number("priority", 0, most=255)
    expires_ms = body.number("expires_in_ms", 0, most=_MAX_MS)
    deliver_ms = body.number("deliver_in_ms", 0, most=_MAX_MS)
    body.check_all_read()
    source = Source(_encodable("topic", topic or key), _encodable("exchange", exchange), user, PROTOCOL, NATIVE)
    message = Message(
        source,
        payload,
        now_us,
        codecs.encode(NATIVE, properties),
        priority,
        now_us + expires_ms * 1000 if expires_ms else 0,
        now_us + deliver_ms * 1000 if deliver_ms else 0,
    )
    return Draft(message, properties.headers, bool(topic))


def _text(given: Section, name: str) -> str:
    return _encodable(name, given.text(name, ""))


def _encodable(name: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"{name!r} is not valid Unicode") from error
    return text
