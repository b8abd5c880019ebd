"""Message properties and header values apart from any protocol, and their JSON. No wire formats.

A message keeps its properties as its publisher's protocol encoded them. encodings.py decodes those bytes to
`Properties` for whoever needs more than a few fields: other protocols, selectors, dead letters.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Hashable, Mapping
from datetime import datetime
from decimal import Decimal
from math import isfinite
from typing import Final, final

from headrace.errors import Refused
from headrace.selector.fields import HeaderValue

MAX_DEPTH: Final = 64  # nested tables; far beyond any use, well within the interpreter's stack

# JSON has no bytes, times, decimals or infinities: each is an object with one member, named by a tag.
_BYTES: Final = "$bytes"
_TIME: Final = "$time"
_DECIMAL: Final = "$decimal"
_FLOAT: Final = "$float"
_TABLE: Final = "$table"  # a table whose only member is named like a tag


def frozen(value: object, depth: int = MAX_DEPTH) -> Hashable:
    """Return a hashable form of a value; two forms are equal exactly when type and content are.

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
    """Return the value as JSON can hold it. Raises Refused for a value that no table can hold, or for deep nesting."""
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
    """Return the value that `to_json` was given. Raises Refused for other JSON."""
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
    """Return a whole table of arguments as JSON; its own names are never read as tags."""
    return {name: to_json(value) for name, value in table.items()}


def table_from_json(value: object, depth: int = MAX_DEPTH) -> dict[str, object]:
    """Return the table that `table_to_json` was given. Raises Refused for other JSON."""
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


def plain_number(number: int) -> int:
    """Return the number as a plain int. Compiled, int() keeps a subclass for more than 62 bits."""
    return number + 0


def plain_value(value: object) -> HeaderValue:
    """Return a header as a plain value, without its wire type; None if it has no text."""
    if value is None or isinstance(value, str | bool | Decimal):
        return value
    if isinstance(value, int):
        return plain_number(value)
    if isinstance(value, float):
        return float(value)
    return bytes(value) if isinstance(value, bytes) else None


FILTER_VALUE: Final = "x-stream-filter-value"
"""The annotation of AMQP 1.0, or the header of other protocols, by which readers of a stream filter."""

TEXTS: Final = (
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
"""The properties that are texts."""


@final
class Properties:
    """Properties of a message. "" means absent, and so does a number below 0."""

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
        "priority",
        "reply_to",
        "timestamp_s",
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
        """1 for transient, 2 for persistent, 0 if absent."""
        self.priority = -1
        self.timestamp_s = -1
        """The publisher's own time, in seconds since 1970."""
        self.extra: dict[str, object] = {}
        """Values of one encoding only, kept for its encoder."""


# -- the encoding of the embedded API: JSON without absent properties, b"" if all are absent ---------------------------


def decode_native(raw: bytes) -> Properties:
    """Decode JSON. Raises Refused for other bytes."""
    if not raw:
        return Properties()
    try:
        values = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the properties are not JSON: {error}") from error
    if not isinstance(values, dict):
        raise Refused("the properties are not a table")
    properties = Properties(table_from_json(values.get("headers", {})))
    for name in TEXTS:
        setattr(properties, name, str(values.get(name, "")))
    mode = values.get("delivery_mode", 0)
    if isinstance(mode, bool) or not isinstance(mode, int):
        raise Refused(f"the delivery mode is not a number: {mode!r}")
    properties.delivery_mode = mode
    return properties


def encode_native(properties: Properties) -> bytes:
    values: dict[str, object] = {name: value for name in TEXTS if (value := getattr(properties, name))}
    if properties.delivery_mode:
        values["delivery_mode"] = properties.delivery_mode
    if properties.headers:
        values["headers"] = table_to_json(properties.headers)
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode() if values else b""
