"""A header's value as the name of its type and its bytes, for tables that keep both. The encodings have own files.

Names are those of AMQP 1.0. Numbers are big-endian, texts UTF-8, decimals texts, times milliseconds since 1970 as a
long. Maps and lists are JSON, in the form of properties.py.
"""

import json
import struct
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

from headrace.errors import Refused
from headrace.wire.properties import to_json
from headrace.wire.types import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Float,
    Int,
    LongString,
    Seconds,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

TypedValue = tuple[str, bytes | None]
"""The name of a type, and the bytes of a value; None for null, and for a value that no table can hold."""

_F32: Final = struct.Struct(">f")
_F64: Final = struct.Struct(">d")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INTEGERS: Final[dict[object, tuple[str, int, bool]]] = {
    Byte: ("byte", 1, True),
    UByte: ("ubyte", 1, False),
    Short: ("short", 2, True),
    UShort: ("ushort", 2, False),
    Int: ("int", 4, True),
    UInt: ("uint", 4, False),
    ULong: ("ulong", 8, False),
    Seconds: ("seconds", 8, False),
    Timestamp: ("timestamp", 8, True),
}
"""Name, size and sign by type; all others are longs."""
_TEXTS: Final[dict[object, str]] = {Symbol: "symbol", Char: "char"}
_BYTES: Final[dict[object, str]] = {
    LongString: "string",
    Decimal32: "decimal32",
    Decimal64: "decimal64",
    Decimal128: "decimal128",
}


def typed_value(value: object) -> TypedValue:
    """Return the name of the type of a header's value, and its bytes."""
    kind = type(value)
    if value is None:
        return "null", None
    if isinstance(value, bool):
        return "boolean", b"\x01" if value else b"\x00"
    if isinstance(value, int):
        return _integer(value, kind)
    if isinstance(value, str):
        return _TEXTS.get(kind, "string"), value.encode(errors="surrogatepass")
    if isinstance(value, float):
        return ("float", _F32.pack(value)) if isinstance(value, Float) else ("double", _F64.pack(value))
    if isinstance(value, bytes | bytearray):
        return _BYTES.get(kind, "binary"), bytes(value)
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return "timestamp", ((aware - _EPOCH) // timedelta(milliseconds=1)).to_bytes(8, "big", signed=True)
    if isinstance(value, Decimal):
        return "decimal", str(value).encode()
    if not isinstance(value, Mapping | list | tuple):
        return "other", None
    try:
        raw = json.dumps(to_json(value), ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
    except Refused:
        return "other", None
    return "map" if isinstance(value, Mapping) else "list", raw


def _integer(value: int, kind: object) -> TypedValue:
    name, size, signed = _INTEGERS.get(kind, ("long", 8, True))
    if not -(1 << 63) <= value < 1 << 63 and signed:
        name, signed = "ulong", False
    return name, value.to_bytes(size, "big", signed=signed)
