"""The properties of a message in any encoding, decoded as far as a caller needs. Each format has its file."""

from typing import Final, final

from headrace.errors import ProtocolError, Refused
from headrace.model import AMQP091, AMQP10, MQTT5, NATIVE, Message
from headrace.selector import HeaderValue, Row
from headrace.wire import amqp091, amqp10, mqtt5
from headrace.wire.properties import TEXTS, Properties, decode_native, encode_native, plain_value

_NAMES: Final = {AMQP091: "AMQP 0-9-1", AMQP10: "AMQP 1.0", MQTT5: "MQTT 5"}
_NOT_PERSISTENT: Final = 1


def decode_properties(encoding: int, raw: bytes) -> Properties:
    """Decode properties. Raises Refused for an unknown encoding, and for bytes of another one."""
    if encoding == NATIVE:
        return decode_native(raw)
    try:
        if encoding == AMQP091:
            return amqp091.decode_properties(raw)
        if encoding == AMQP10:
            return amqp10.decode_properties(raw)
        if encoding == MQTT5:
            return mqtt5.decode_properties(raw)
    except ProtocolError as error:
        raise Refused(f"the properties are not those of {_NAMES[encoding]}: {error}") from error
    raise _unknown(encoding)


def decode_headers(encoding: int, raw: bytes) -> dict[str, object]:
    """Decode the headers alone, which is all that routing needs. Raises Refused as decode_properties does."""
    if encoding != AMQP091:
        return decode_properties(encoding, raw).headers
    try:
        return amqp091.decode_headers(raw)
    except ProtocolError as error:
        raise Refused(f"the properties are not those of {_NAMES[encoding]}: {error}") from error


def encode_properties(encoding: int, properties: Properties) -> bytes:
    """Encode properties. Raises Refused for an unknown encoding."""
    if encoding == NATIVE:
        return encode_native(properties)
    if encoding == AMQP091:
        return amqp091.encode_properties(properties)
    if encoding == AMQP10:
        return amqp10.encode_properties(properties)
    if encoding == MQTT5:
        return mqtt5.encode_properties(properties)
    raise _unknown(encoding)


def properties_of(message: Message) -> Properties:
    """Decode the properties of a message. Raises Refused as decode_properties does."""
    return decode_properties(message.source.encoding, message.properties)


def _unknown(encoding: int) -> Refused:
    return Refused(f"no protocol here reads properties of encoding {encoding}")


@final
class MessageRow(Row):
    """A message as a selector sees it; it decodes the properties when the first of them is read."""

    __slots__ = ("_headers", "_message", "_now_us", "_properties")

    def __init__(self, message: Message, now_us: int = 0) -> None:
        self._message = message
        self._now_us = now_us
        self._headers: dict[str, object] | None = None
        self._properties: Properties | None = None

    def field(self, name: str) -> HeaderValue:
        message = self._message
        if name == "topic" or name == "routing_key":
            return message.source.topic
        if name == "exchange":
            return message.source.exchange
        if name == "priority":
            return message.priority
        if name == "timestamp":
            return message.timestamp_us
        if name == "expires_at":
            return message.expires_us or None
        if name == "now":
            return self._now_us or None
        if name in TEXTS or name == "delivery_mode" or name == "sent_at":
            if self._properties is None:
                self._properties = properties_of(message)
            if name == "sent_at":
                sent_s = self._properties.timestamp_s
                return sent_s * 1_000_000 if sent_s >= 0 else None
            value = getattr(self._properties, name)
            if name == "delivery_mode" and not value and message.source.encoding == AMQP10:
                return _NOT_PERSISTENT  # AMQP 1.0 [3.2.1]: durable is false by default
            return value if isinstance(value, str | int) and value else None
        return None

    def header(self, name: str) -> HeaderValue:
        if self._headers is None:
            message = self._message
            self._headers = decode_headers(message.source.encoding, message.properties)
        return plain_value(self._headers.get(name))
