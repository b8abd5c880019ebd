"""The content type and the headers of stored properties of all protocols, for reads without a broker.

A message keeps its properties as its publisher's protocol sent them, and the protocols have the codecs for all of them.
An executor must not load the server for two fields, so this module reads them; a property test compares each reader
with the protocol's codec. Unreadable properties have no content type and no headers, as for a selector.

AMQP 1.0: a byte for the encoding of the body; if its highest bit is set, four bytes with the size of the rest; then the
sections before the body. Annotations named `x-...` and application properties are the headers.

MQTT 5: one property after the other, each an identifier (one byte) and a value whose form depends on the identifier.
Texts and binary data begin with their length (u16, big-endian); a user property is two texts.
"""

import json
import struct
import uuid
from base64 import b64decode
from collections.abc import Callable
from decimal import Decimal
from typing import Final

from headrace.model import AMQP091, AMQP10, MQTT5, NATIVE
from headrace.selector.fields import header_text

_MQTT5_CONTENT_TYPE: Final = 0x03
_USER_PROPERTY: Final = 0x26
_SIZES: Final = {0x01: 1, 0x02: 4, 0x23: 2}
"""Sizes in bytes of payload format, message expiry and topic alias."""
_BINARIES: Final = (0x08, 0x09)
"""Response topic and correlation data."""


def read_mqtt5(raw: bytes) -> tuple[str, dict[str, object]]:
    """Read a list of properties; the last value of a name wins. Raises ValueError, IndexError."""
    content_type = ""
    headers: dict[str, object] = {}
    at = 0
    while at < len(raw):
        identifier = raw[at]
        at += 1
        if identifier == _USER_PROPERTY:
            name, at = _text(raw, at)
            headers[name], at = _text(raw, at)
        elif identifier == _MQTT5_CONTENT_TYPE:
            content_type, at = _text(raw, at)
        elif identifier in _BINARIES:
            at = _end(raw, at)
        elif identifier in _SIZES:
            at += _SIZES[identifier]
        else:
            raise ValueError(f"a message has no property 0x{identifier:02x}")
    return content_type, headers


def _text(raw: bytes, at: int) -> tuple[str, int]:
    end = _end(raw, at)
    return raw[at + 2 : end].decode(), end


def _end(raw: bytes, at: int) -> int:
    """Return the end of a value that begins with its length."""
    end = at + 2 + int.from_bytes(raw[at : at + 2])
    if end > len(raw):
        raise ValueError("the list ends in the middle of a property")
    return end


_HAS_FOOTER: Final = 0x80
_ANNOTATIONS: Final = 0x72
_PROPERTIES: Final = 0x73
_APPLICATION: Final = 0x74
_AMQP10_CONTENT_TYPE: Final = 6
_JMS_NAMES: Final = {1: "JMSXUserID", 10: "JMSXGroupID", 11: "JMSXGroupSeq"}
"""Properties that JMS has among the application's, by position."""
_NAMES: Final = {
    "amqp:message-annotations:map": _ANNOTATIONS,
    "amqp:properties:list": _PROPERTIES,
    "amqp:application-properties:map": _APPLICATION,
}
_NOT_HEADERS: Final = ("x-basic-type", "x-basic-app-id")
_MAX_DEPTH: Final = 64
_LAST_MS: Final = 253402300799999  # times up to here are datetimes in the broker, which have no text
_FIRST_MS: Final = -62135596800000

_CONSTANTS: Final[dict[int, object]] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
_AMQP10_NUMBERS: Final = {
    0x50: struct.Struct(">B"),
    0x51: struct.Struct(">b"),
    0x52: struct.Struct(">B"),
    0x53: struct.Struct(">B"),
    0x54: struct.Struct(">b"),
    0x55: struct.Struct(">b"),
    0x60: struct.Struct(">H"),
    0x61: struct.Struct(">h"),
    0x70: struct.Struct(">I"),
    0x71: struct.Struct(">i"),
    0x72: struct.Struct(">f"),
    0x80: struct.Struct(">Q"),
    0x81: struct.Struct(">q"),
    0x82: struct.Struct(">d"),
}
_WIDTHS: Final = {0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
# Decimals of IEEE 754 as binary integers: bits of the exponent, bias, digits.
_DECIMALS: Final = {0x74: (8, 101, 7), 0x84: (10, 398, 16), 0x94: (14, 6176, 34)}


def read_amqp10(raw: bytes) -> tuple[str, dict[str, object]]:
    """Read the sections before the body. Raises ValueError, IndexError, struct.error."""
    head = raw[1:]
    if raw[0] & _HAS_FOOTER:
        head = raw[5 : 5 + int.from_bytes(raw[1:5])]
    content_type = ""
    named: dict[str, object] = {}
    annotations: dict[str, object] = {}
    application: dict[str, object] = {}
    at = 0
    while at < len(head):
        if head[at] != 0:
            raise ValueError("a section is no described value")
        kind, at = _value(head, at + 1)
        kind = _NAMES.get(kind, 0) if isinstance(kind, str) else kind
        if kind == _ANNOTATIONS:
            found, at = _pairs(head, at)
            annotations = {name: value for name, value in found.items() if name.startswith("x-")}
        elif kind == _APPLICATION:
            application, at = _pairs(head, at)
        elif kind == _PROPERTIES:
            fields, at = _items(head, at)
            text = fields[_AMQP10_CONTENT_TYPE] if len(fields) > _AMQP10_CONTENT_TYPE else None
            content_type = text if isinstance(text, str) else ""
            named = {_JMS_NAMES[place]: _plain(fields[place]) for place in _JMS_NAMES if place < len(fields)}
        else:
            _, at = _value(head, at)
    for name in _NOT_HEADERS:
        annotations.pop(name, None)
    return content_type, {**named, **annotations, **application}


def _plain(value: object) -> object:
    """Return the text of a user's name, which is bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _pairs(raw: bytes, at: int) -> tuple[dict[str, object], int]:
    """Read the entries of a map whose names are texts."""
    items, at = _items(raw, at)
    pairs = zip(items[::2], items[1::2], strict=True)
    return {name: value for name, value in pairs if isinstance(name, str)}, at


def _items(raw: bytes, at: int) -> tuple[list[object], int]:
    """Read the items of a list or a map."""
    code = raw[at]
    if code == 0x45:
        return [], at + 1
    if code in (0xC0, 0xC1):
        end, count, at = at + 2 + raw[at + 1], raw[at + 2], at + 3
    elif code in (0xD0, 0xD1):
        size, count = struct.unpack_from(">II", raw, at + 1)
        end, at = at + 5 + size, at + 9
    else:
        raise ValueError(f"{code:#x} is neither a list nor a map")
    items: list[object] = []
    for _ in range(count):
        item, at = _value(raw, at)
        items.append(item)
    if at != end:
        raise ValueError("a compound value does not end where it says")
    return items, at


def _value(raw: bytes, at: int, depth: int = _MAX_DEPTH) -> tuple[object, int]:
    """Read a value and its end; None for values without a text."""
    code = raw[at]
    at += 1
    if code == 0 and depth:
        _, at = _value(raw, at, depth - 1)
        return _value(raw, at, depth - 1)
    if code in _CONSTANTS:
        return _CONSTANTS[code], at
    number = _AMQP10_NUMBERS.get(code)
    if number is not None:
        return number.unpack_from(raw, at)[0], at + number.size
    width = _WIDTHS.get(code >> 4)
    if width is not None:
        piece = raw[at : at + width]
        if len(piece) < width:
            raise ValueError("a value is cut short")
        return _fixed(code, piece), at + width
    if code == 0x45:
        return None, at
    start = at + 1 if code >> 4 in (0xA, 0xC, 0xE) else at + 4
    end = start + int.from_bytes(raw[at:start])
    if code >> 4 < 0xA or end > len(raw):
        raise ValueError("a value is cut short, or of no type")
    return _variable(code, raw[start:end]), end


def _fixed(code: int, piece: bytes) -> object:
    if code == 0x56:
        return piece[0] == 1
    if code == 0x73:
        number = int.from_bytes(piece)
        return "\ufffd" if 0xD800 <= number < 0xE000 else chr(number)
    if code == 0x83:
        time_ms = int.from_bytes(piece, signed=True)
        return None if _FIRST_MS <= time_ms <= _LAST_MS else time_ms
    if code == 0x98:
        return str(uuid.UUID(bytes=piece))
    if code in _DECIMALS:
        return _decimal(code, piece)
    raise ValueError(f"there is no type {code:#x}")


def _variable(code: int, piece: bytes) -> object:
    if code in (0xA0, 0xB0):
        return piece
    if code in (0xA1, 0xB1):
        return piece.decode()
    if code in (0xA3, 0xB3):
        return piece.decode("ascii")
    if code in (0xC0, 0xC1, 0xD0, 0xD1, 0xE0, 0xF0):
        return None
    raise ValueError(f"there is no type {code:#x}")


def _decimal(code: int, piece: bytes) -> Decimal:
    exponent_bits, bias, digits = _DECIMALS[code]
    bits, width = int.from_bytes(piece), len(piece) * 8
    sign, top = bits >> (width - 1), bits >> (width - 6) & 0x1F
    if top >> 1 == 0b1111:
        return Decimal("NaN") if top & 1 else Decimal("-Infinity" if sign else "Infinity")
    is_large = top >> 3 == 0b11
    low = width - exponent_bits - (3 if is_large else 1)
    coefficient = bits & ((1 << low) - 1) | (0b100 << low if is_large else 0)
    exponent = bits >> low & ((1 << exponent_bits) - 1)
    number = 0 if coefficient >= 10**digits else coefficient
    return Decimal((sign, tuple([int(digit) for digit in str(number)]), exponent - bias))


ReadProperties = tuple[str | None, dict[str, str] | None]
_NOTHING: Final[ReadProperties] = (None, None)


def read_properties(encoding: int, raw: bytes) -> ReadProperties:
    """Return the content type and the headers, each None if absent."""
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
    """Return the value of a tagged object: JSON cannot hold bytes, decimals and some floats. Tables have no text."""
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
    """Read a field's value and its end; None for values without a text."""
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
