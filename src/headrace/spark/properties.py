"""The content type and the headers in stored properties, for reading a data directory without a broker. Nothing else.

A message keeps its properties as its publisher's protocol sent them; the protocols have the codecs that know all of
them both ways. An executor must not load the server for two fields, so these are read here, and a property test holds
each reader against the protocol's own codec. What cannot be read says nothing, as for a selector.
"""

import json
import struct
from base64 import b64decode
from collections.abc import Callable
from decimal import Decimal
from typing import Final

from headrace.model import AMQP091, AMQP10, MQTT5, NATIVE
from headrace.selector.values import header_text
from headrace.spark.amqp10_properties import read_amqp10
from headrace.spark.mqtt5_properties import read_mqtt5

Said = tuple[str | None, dict[str, str] | None]
_NOTHING: Final[Said] = (None, None)


def read_properties(encoding: int, raw: bytes) -> Said:
    """The content type and the headers; None for what the properties do not say."""
    reader = _READERS.get(encoding)
    if reader is None or not raw:
        return _NOTHING
    try:
        content_type, headers = reader(raw)
    except (ValueError, IndexError, struct.error, ArithmeticError, RecursionError):
        return _NOTHING
    texts = {name: text for name, value in headers.items() if (text := header_text(value)) is not None}
    return content_type or None, texts or None


# -- native: JSON ----------------------------------------------------------------------------------------------------


def _read_native(raw: bytes) -> tuple[str, dict[str, object]]:
    values = json.loads(raw)
    if not isinstance(values, dict):
        return "", {}
    headers = values.get("headers", {})
    table = {name: _untagged(value) for name, value in headers.items()} if isinstance(headers, dict) else {}
    return str(values.get("content_type", "")), table


def _untagged(value: object) -> object:
    """What JSON cannot hold is an object with one member whose name says what it is; tables have no text."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((tag, content),) = value.items()
    if not isinstance(content, str):
        return None
    if tag == "$bytes":
        return b64decode(content, validate=True)
    if tag == "$decimal":
        return Decimal(content)
    return float(content) if tag == "$float" else None


# -- AMQP 0-9-1: flags, then the properties that they announce --------------------------------------------------------

_CONTENT_TYPE: Final = 1 << 15
_CONTENT_ENCODING: Final = 1 << 14
_HEADERS: Final = 1 << 13
_NUMBERS: Final = {
    tag: struct.Struct(">" + form)
    for tag, form in zip(b"bBsUuIilLfd", ("b", "B", "h", "h", "H", "i", "I", "q", "Q", "f", "d"), strict=True)
}


def _read_amqp091(raw: bytes) -> tuple[str, dict[str, object]]:
    flags = int.from_bytes(raw[:2])
    at = 2
    content_type = ""
    if flags & _CONTENT_TYPE:
        content_type = raw[at + 1 : at + 1 + raw[at]].decode(errors="replace")
        at += 1 + raw[at]
    if flags & _CONTENT_ENCODING:
        at += 1 + raw[at]
    headers: dict[str, object] = {}
    if flags & _HEADERS:
        end = at + 4 + int.from_bytes(raw[at : at + 4])
        at += 4
        while at < end:
            name = raw[at + 1 : at + 1 + raw[at]].decode()
            headers[name], at = _field(raw, at + 1 + raw[at])
    return content_type, headers


def _field(raw: bytes, at: int) -> tuple[object, int]:
    """A field's value and where it ends; None for what has no text."""
    tag = raw[at]
    at += 1
    number = _NUMBERS.get(tag)
    if number is not None:
        return number.unpack_from(raw, at)[0], at + number.size
    if tag in b"SxAF":
        end = at + 4 + int.from_bytes(raw[at : at + 4])
        return (raw[at + 4 : end] if tag in b"Sx" else None), end
    if tag == ord("t"):
        return raw[at] != 0, at + 1
    if tag == ord("D"):
        scale, value = struct.unpack_from(">Bi", raw, at)
        return Decimal(value).scaleb(-scale) if scale else Decimal(value), at + 5
    if tag == ord("T"):
        return None, at + 8
    if tag == ord("V"):
        return None, at
    raise ValueError(f"there is no field type {tag}")


_READERS: Final[dict[int, Callable[[bytes], tuple[str, dict[str, object]]]]] = {
    NATIVE: _read_native,
    AMQP091: _read_amqp091,
    AMQP10: read_amqp10,
    MQTT5: read_mqtt5,
}
