"""The properties of a message apart from any protocol, and the codecs that read and write them. No wire formats.

A message carries its properties as its publisher's protocol sent them. Core looks inside only when it has to: to route
by headers, to evaluate a selector, to write a dead letter's history. The protocols bring the codec of their encoding.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from decimal import Decimal
from typing import Final, final

from mypy_extensions import mypyc_attr

from headrace.core.arguments import table_from_json, table_to_json
from headrace.errors import Refused
from headrace.model import NATIVE, Message
from headrace.selector import HeaderValue, Row

_FIELDS: Final = (
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


@final
class Properties:
    """What a message says about itself. "" and None mean that it does not say."""

    __slots__ = (
        "app_id",
        "content_encoding",
        "content_type",
        "correlation_id",
        "delivery_mode",
        "expiration",
        "extra",
        "headers",
        "message_id",
        "message_type",
        "reply_to",
        "user_id",
    )

    def __init__(self, headers: Mapping[str, object] | None = None, content_type: str = "") -> None:
        self.headers: dict[str, object] = dict(headers) if headers else {}
        self.content_type = content_type
        self.content_encoding = ""
        self.correlation_id = ""
        self.reply_to = ""
        self.expiration = ""
        self.message_id = ""
        self.message_type = ""
        self.user_id = ""
        self.app_id = ""
        self.delivery_mode = 0
        self.extra: dict[str, object] = {}
        """What only the publisher's encoding knows, kept for its codec; others ignore it."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PropertiesCodec(ABC):
    """Reads and writes the properties of one encoding."""

    @abstractmethod
    def decode(self, raw: bytes) -> Properties:
        """The properties in these bytes. Raises Refused when they are not in this encoding."""

    @abstractmethod
    def encode(self, properties: Properties) -> bytes:
        """The bytes of these properties."""


@final
class NativeCodec(PropertiesCodec):
    """The encoding of the embedded API: JSON, without what is not said; b"" when nothing is."""

    def decode(self, raw: bytes) -> Properties:
        if not raw:
            return Properties()
        try:
            values = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise Refused(f"the properties are not JSON: {error}") from error
        if not isinstance(values, dict):
            raise Refused("the properties are not a table")
        properties = Properties(table_from_json(values.get("headers", {})))
        for name in _FIELDS:
            setattr(properties, name, str(values.get(name, "")))
        mode = values.get("delivery_mode", 0)
        if isinstance(mode, bool) or not isinstance(mode, int):
            raise Refused(f"the delivery mode is not a number: {mode!r}")
        properties.delivery_mode = mode
        return properties

    def encode(self, properties: Properties) -> bytes:
        values: dict[str, object] = {name: value for name in _FIELDS if (value := getattr(properties, name))}
        if properties.delivery_mode:
            values["delivery_mode"] = properties.delivery_mode
        if properties.headers:
            values["headers"] = table_to_json(properties.headers)
        return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode() if values else b""


@final
class Codecs:
    """The codecs by encoding; protocols add theirs when the program is built."""

    def __init__(self) -> None:
        self._codecs: dict[int, PropertiesCodec] = {NATIVE: NativeCodec()}

    def add(self, encoding: int, codec: PropertiesCodec) -> None:
        self._codecs[encoding] = codec

    def decode(self, message: Message) -> Properties:
        """The properties of a message. Raises Refused when no codec knows their encoding."""
        return self._of(message.source.encoding).decode(message.properties)

    def encode(self, encoding: int, properties: Properties) -> bytes:
        """Properties in this encoding. Raises Refused when no codec knows it."""
        return self._of(encoding).encode(properties)

    def _of(self, encoding: int) -> PropertiesCodec:
        codec = self._codecs.get(encoding)
        if codec is None:
            raise Refused(f"no protocol here reads properties of encoding {encoding}")
        return codec


def plain_number(number: int) -> int:
    """The number as an int and of no class of a codec's. Compiled, int() leaves one of more than 62 bits as it was."""
    return number + 0


def plain_value(value: object) -> HeaderValue:
    """A header without what only its protocol's codec remembers of it; None for what has no text."""
    if value is None or isinstance(value, str | bool | Decimal):
        return value
    if isinstance(value, int):
        return plain_number(value)
    if isinstance(value, float):
        return float(value)
    return bytes(value) if isinstance(value, bytes) else None


@final
class MessageRow(Row):
    """A message as a selector sees it; properties are decoded when the first of them is asked for."""

    __slots__ = ("_codecs", "_message", "_properties")

    def __init__(self, message: Message, codecs: Codecs) -> None:
        self._message = message
        self._codecs = codecs
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
        if name in _FIELDS or name == "delivery_mode":
            value = getattr(self._decoded(), name)
            return value if isinstance(value, str | int) and value else None
        return None

    def header(self, name: str) -> HeaderValue:
        return plain_value(self._decoded().headers.get(name))

    def _decoded(self) -> Properties:
        if self._properties is None:
            self._properties = self._codecs.decode(self._message)
        return self._properties
