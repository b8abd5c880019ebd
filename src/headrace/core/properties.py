"""Message properties in a form common to all protocols, and the equality of header and argument values. No wire
formats.

A message keeps its properties as its publisher's protocol encoded them. Core decodes them only to route by headers, to
evaluate a selector, or to write a dead letter's history. The protocols bring the codecs of their encodings.
"""

import json
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Hashable, Mapping
from datetime import datetime
from decimal import Decimal
from math import isfinite
from typing import Final, final

from mypy_extensions import mypyc_attr

from headrace.errors import Refused
from headrace.model import AMQP10, NATIVE, Message
from headrace.selector import HeaderValue, Row

MAX_DEPTH: Final = 64  # nested tables; far beyond any use, well within the interpreter's stack

# JSON has no bytes, times, decimals or infinities: each is an object with one member, named by a tag.
_BYTES: Final = "$bytes"
_TIME: Final = "$time"
_DECIMAL: Final = "$decimal"
_FLOAT: Final = "$float"
_TABLE: Final = "$table"  # a table whose only member is named like a tag


def frozen(value: object, depth: int = MAX_DEPTH) -> Hashable:
    """A hashable form of a value; two forms are equal exactly when type and content are.

    All integers are of one type, and so are all floats and all byte strings; True is not 1, 1 is not 1.0. Raises
    Refused for a value that no table can hold, or for deep nesting.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return ("float", value if value == value else "nan")
    if isinstance(value, (bytes, bytearray)):
        return ("bytes", bytes(value))
    if isinstance(value, datetime):
        return ("time", value)
    if isinstance(value, Decimal):
        return ("decimal", value if value.is_finite() else str(value))
    _check_depth(depth)
    if isinstance(value, (list, tuple)):
        return ("list", tuple([frozen(item, depth - 1) for item in value]))
    if isinstance(value, Mapping):
        return ("table", frozenset([(_name(key), frozen(item, depth - 1)) for key, item in value.items()]))
    raise Refused(f"a value of type {type(value).__name__} cannot be in a table of arguments")


def to_json(value: object, depth: int = MAX_DEPTH) -> object:
    """The value as JSON can hold it. Raises Refused for a value that no table can hold, or for deep nesting."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else {_FLOAT: str(value)}
    if isinstance(value, (bytes, bytearray)):
        return {_BYTES: b64encode(value).decode()}
    if isinstance(value, datetime):
        return {_TIME: value.isoformat()}
    if isinstance(value, Decimal):
        return {_DECIMAL: str(value)}
    _check_depth(depth)
    if isinstance(value, (list, tuple)):
        return [to_json(item, depth - 1) for item in value]
    if isinstance(value, Mapping):
        table = {_name(key): to_json(item, depth - 1) for key, item in value.items()}
        return {_TABLE: table} if _looks_tagged(table) else table
    raise Refused(f"a value of type {type(value).__name__} cannot be in a table of arguments")


def from_json(value: object, depth: int = MAX_DEPTH) -> object:
    """The value that `to_json` was given. Raises Refused for other JSON."""
    if not isinstance(value, (list, dict)):
        return value
    _check_depth(depth)
    if isinstance(value, list):
        return [from_json(item, depth - 1) for item in value]
    table = {_name(key): item for key, item in value.items()}
    if _looks_tagged(table):
        tag, content = next(iter(table.items()))
        return table_from_json(content, depth - 1) if tag == _TABLE else _untagged(tag, content)
    return {key: from_json(item, depth - 1) for key, item in table.items()}


def table_to_json(table: Mapping[str, object]) -> dict[str, object]:
    """A whole table of arguments as JSON; its own names are never read as tags."""
    return {name: to_json(value) for name, value in table.items()}


def table_from_json(value: object, depth: int = MAX_DEPTH) -> dict[str, object]:
    """The table that `table_to_json` was given. Raises Refused for other JSON."""
    if not isinstance(value, dict):
        raise Refused(f"arguments must be a table, not {type(value).__name__}")
    return {_name(name): from_json(item, depth) for name, item in value.items()}


def _untagged(tag: str, content: object) -> object:
    if isinstance(content, str):
        try:
            if tag == _BYTES:
                return b64decode(content, validate=True)
            if tag == _TIME:
                return datetime.fromisoformat(content)
            if tag == _DECIMAL:
                return Decimal(content)
            if tag == _FLOAT:
                return float(content)
        except (ValueError, ArithmeticError):
            raise Refused(f"{content!r} is not what {tag!r} stands for") from None
    raise Refused(f"{tag!r} is not a tag that stands for a value like {content!r}")


def _looks_tagged(table: dict[str, object]) -> bool:
    return len(table) == 1 and next(iter(table)).startswith("$")


def _name(key: object) -> str:
    if isinstance(key, str):
        return key
    raise Refused(f"a table's names are strings, not {type(key).__name__}")


def _check_depth(depth: int) -> None:
    if depth <= 0:
        raise Refused(f"arguments are nested more than {MAX_DEPTH} deep")


_NOT_PERSISTENT: Final = 1
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
    """Properties of a message. "" and None mean absent."""

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
        """Values of the publisher's encoding only, kept for its codec."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PropertiesCodec(ABC):
    """Reads and writes the properties of one encoding."""

    @abstractmethod
    def decode(self, raw: bytes) -> Properties:
        """Decode the properties. Raises Refused for bytes of another encoding."""

    @abstractmethod
    def encode(self, properties: Properties) -> bytes:
        """Encode the properties."""


@final
class NativeCodec(PropertiesCodec):
    """The encoding of the embedded API: JSON without absent properties; b"" when all are absent."""

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
        """Decode the properties of a message. Raises Refused for an unknown encoding."""
        return self._of(message.source.encoding).decode(message.properties)

    def encode(self, encoding: int, properties: Properties) -> bytes:
        """Encode properties. Raises Refused for an unknown encoding."""
        return self._of(encoding).encode(properties)

    def _of(self, encoding: int) -> PropertiesCodec:
        codec = self._codecs.get(encoding)
        if codec is None:
            raise Refused(f"no protocol here reads properties of encoding {encoding}")
        return codec


def plain_number(number: int) -> int:
    """The number as a plain int. Compiled, int() keeps a codec's subclass for more than 62 bits."""
    return number + 0


def plain_value(value: object) -> HeaderValue:
    """A header as a plain value, without its wire type; None if it has no text."""
    if value is None or isinstance(value, str | bool | Decimal):
        return value
    if isinstance(value, int):
        return plain_number(value)
    if isinstance(value, float):
        return float(value)
    return bytes(value) if isinstance(value, bytes) else None


@final
class MessageRow(Row):
    """A message as a selector sees it; it decodes the properties when the first of them is read."""

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
            if name == "delivery_mode" and not value and message.source.encoding == AMQP10:
                return _NOT_PERSISTENT  # AMQP 1.0 [3.2.1]: durable is false by default
            return value if isinstance(value, str | int) and value else None
        return None

    def header(self, name: str) -> HeaderValue:
        return plain_value(self._decoded().headers.get(name))

    def _decoded(self) -> Properties:
        if self._properties is None:
            self._properties = self._codecs.decode(self._message)
        return self._properties
