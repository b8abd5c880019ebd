"""Values of AMQP 1.0 to bytes, each in its shortest encoding. Nothing is read here."""

import struct
import uuid
from collections.abc import Callable
from typing import Final

from headrace.protocols.amqp10.types import (
    ARRAY8,
    ARRAY32,
    BOOLEAN,
    BYTE,
    DESCRIBED,
    FIXED_WIDTHS,
    INT,
    LIST0,
    LIST8,
    LIST32,
    LONG,
    MAP8,
    MAP32,
    SHORT,
    SMALLUINT,
    SMALLULONG,
    STR8,
    STR32,
    SYM8,
    SYM32,
    TIMESTAMP,
    VBIN8,
    VBIN32,
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Map,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_F32: Final = struct.Struct(">f")
_F64: Final = struct.Struct(">d")
_TWO_U32: Final = struct.Struct(">II")


def encode_value(value: object) -> bytes:
    """The value in its shortest encoding. Raises ValueError for what no type of AMQP holds."""
    if value is None:
        return b"\x40"
    if value is True:
        return b"\x41"
    if value is False:
        return b"\x42"
    writer = _WRITERS.get(type(value))
    if writer is None:
        raise ValueError(f"a {type(value).__name__} is of no type of AMQP 1.0")
    return writer(value)


def encode_described(descriptor: int, fields: list[object]) -> bytes:
    """A list described by a small number, without the nulls at its end."""
    last = len(fields)
    while last and fields[last - 1] is None:
        last -= 1
    return bytes((DESCRIBED, SMALLULONG, descriptor)) + encode_list(fields[:last])


def encode_list(items: list[object]) -> bytes:
    if not items:
        return b"\x45"
    return _compound(LIST8, LIST32, len(items), b"".join([encode_value(item) for item in items]))


def encode_binary(raw: bytes) -> bytes:
    return _variable(VBIN8, VBIN32, raw)


def encode_string(text: str) -> bytes:
    """Code points that UTF-8 has no bytes for become question marks."""
    return _variable(STR8, STR32, text.encode(errors="replace"))


def encode_symbol(text: str) -> bytes:
    return _variable(SYM8, SYM32, text.encode("ascii", errors="replace"))


def encode_uint(value: int) -> bytes:
    if 0 < value < 256:
        return bytes((SMALLUINT, value))
    return b"\x70" + _U32.pack(value) if value else b"\x43"


def _encode_ulong(value: int) -> bytes:
    if 0 < value < 256:
        return bytes((SMALLULONG, value))
    return b"\x80" + _U64.pack(value) if value else b"\x44"


def _encode_int(value: int) -> bytes:
    return b"\x54" + value.to_bytes(1, signed=True) if -128 <= value < 128 else b"\x71" + _I32.pack(value)


def _encode_long(value: int) -> bytes:
    if -128 <= value < 128:
        return b"\x55" + value.to_bytes(1, signed=True)
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value} does not fit into 64 bits")
    return b"\x81" + _I64.pack(value)


def _encode_map(value: Map) -> bytes:
    parts: list[bytes] = []
    for key, item in value.pairs:
        parts.append(encode_value(key))
        parts.append(encode_value(item))
    return _compound(MAP8, MAP32, len(parts), b"".join(parts))


def _encode_array(value: Array) -> bytes:
    head = bytes([value.code])
    if value.descriptor is not None:
        head = b"\x00" + encode_value(value.descriptor) + head
    body = b"".join([_item(value.code, item) for item in value.items])
    return _compound(ARRAY8, ARRAY32, len(value.items), head + body)


def _item(code: int, item: object) -> bytes:
    """An item of an array: its value without a constructor, in the form that the array's constructor says."""
    width = code >> 4
    if code == BOOLEAN:
        return b"\x01" if item else b"\x00"
    if width in FIXED_WIDTHS and isinstance(item, int):
        return int(item).to_bytes(FIXED_WIDTHS[width], signed=code in _SIGNED)
    if code in (LIST32, MAP32):
        return _widened(encode_value(item))
    if isinstance(item, Array):
        whole = _encode_array(item)
        return whole[1:] if whole[0] == ARRAY32 else _widened(whole)
    whole = encode_value(item)
    if width == 0xB and whole[0] >> 4 == 0xA:
        return _U32.pack(whole[1]) + whole[2:]
    return whole[1:]


def _widened(whole: bytes) -> bytes:
    """A compound value with four bytes each for its size and its count, without its constructor."""
    if whole[0] == LIST0:
        return _TWO_U32.pack(4, 0)
    if whole[0] in (LIST8, MAP8, ARRAY8):
        return _TWO_U32.pack(whole[1] + 3, whole[2]) + whole[3:]
    return whole[1:]


def _variable(short: int, long: int, raw: bytes) -> bytes:
    size = len(raw)
    return bytes((short, size)) + raw if size < 256 else bytes([long]) + _U32.pack(size) + raw


def _compound(short: int, long: int, count: int, body: bytes) -> bytes:
    size = len(body)
    if size < 255 and count < 256:
        return bytes((short, size + 1, count)) + body
    return bytes([long]) + _TWO_U32.pack(size + 4, count) + body


_SIGNED: Final = frozenset({BYTE, SHORT, INT, LONG, TIMESTAMP})
_WRITERS: Final[dict[type, Callable[..., bytes]]] = {
    UByte: lambda value: b"\x50" + int(value).to_bytes(1),
    UShort: lambda value: b"\x60" + _U16.pack(value),
    UInt: encode_uint,
    ULong: _encode_ulong,
    Byte: lambda value: b"\x51" + int(value).to_bytes(1, signed=True),
    Short: lambda value: b"\x61" + _I16.pack(value),
    Int: _encode_int,
    int: _encode_long,
    Timestamp: lambda value: b"\x83" + _I64.pack(value),
    Float: lambda value: b"\x72" + _F32.pack(value),
    float: lambda value: b"\x82" + _F64.pack(value),
    Char: lambda value: b"\x73" + _U32.pack(ord(value)),
    Symbol: encode_symbol,
    str: encode_string,
    bytes: encode_binary,
    Decimal32: lambda value: b"\x74" + value,
    Decimal64: lambda value: b"\x84" + value,
    Decimal128: lambda value: b"\x94" + value,
    uuid.UUID: lambda value: b"\x98" + value.bytes,
    list: encode_list,
    Map: _encode_map,
    Array: _encode_array,
    Described: lambda value: b"\x00" + encode_value(value.descriptor) + encode_value(value.value),
}
