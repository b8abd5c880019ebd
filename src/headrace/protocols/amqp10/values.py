"""Values of AMQP 1.0 to bytes and back. types.py has the types of the values.

Reading raises ProtocolError and nothing else, for any bytes. Writing chooses the shortest encoding.
"""

import struct
import uuid
from collections.abc import Callable
from typing import Final, final

from headrace.core.properties import MAX_DEPTH
from headrace.errors import ProtocolError
from headrace.protocols.amqp10 import frames
from headrace.protocols.amqp10.frames import DECODE_ERROR
from headrace.protocols.amqp10.types import (
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

# Codes of the constructors.
DESCRIBED: Final = 0x00
NULL: Final = 0x40
TRUE: Final = 0x41
FALSE: Final = 0x42
UINT0: Final = 0x43
ULONG0: Final = 0x44
LIST0: Final = 0x45
UBYTE: Final = 0x50
BYTE: Final = 0x51
SMALLUINT: Final = 0x52
SMALLULONG: Final = 0x53
SMALLINT: Final = 0x54
SMALLLONG: Final = 0x55
BOOLEAN: Final = 0x56
USHORT: Final = 0x60
SHORT: Final = 0x61
UINT: Final = 0x70
INT: Final = 0x71
FLOAT: Final = 0x72
CHAR: Final = 0x73
DECIMAL32: Final = 0x74
ULONG: Final = 0x80
LONG: Final = 0x81
DOUBLE: Final = 0x82
TIMESTAMP: Final = 0x83
DECIMAL64: Final = 0x84
DECIMAL128: Final = 0x94
UUID: Final = 0x98
VBIN8: Final = 0xA0
STR8: Final = 0xA1
SYM8: Final = 0xA3
VBIN32: Final = 0xB0
STR32: Final = 0xB1
SYM32: Final = 0xB3
LIST8: Final = 0xC0
MAP8: Final = 0xC1
LIST32: Final = 0xD0
MAP32: Final = 0xD1
ARRAY8: Final = 0xE0
ARRAY32: Final = 0xF0

FIXED_WIDTHS: Final = {0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
"""Bytes of a value, by the upper half of its code."""

# -- reading -----------------------------------------------------------------------------------------------------------

_MAX_EMPTY_ITEMS: Final = 65_536
"""Most items of an array whose items take no bytes, since its size does not bound it."""


@final
class Reader:
    """Reads one value after the other. Raises ProtocolError (decode error) for other bytes."""

    __slots__ = ("_data", "_end", "at")

    def __init__(self, data: bytes, at: int = 0, end: int = -1) -> None:
        self._data = data
        self.at = at
        self._end = end if end >= 0 else len(data)

    @property
    def is_at_end(self) -> bool:
        return self.at >= self._end

    def value(self, depth: int = MAX_DEPTH) -> object:
        """Return the next value."""
        code = self._octet()
        if code == DESCRIBED:
            _check_depth(depth)
            return Described(self.value(depth - 1), self.value(depth - 1))
        return self._of(code, depth)

    def skip(self) -> None:
        """Step over the next value without decoding it. Only its outermost size is checked."""
        code = self._octet()
        described = 0
        while code == DESCRIBED:
            described += 1
            if described > MAX_DEPTH:
                raise ProtocolError(DECODE_ERROR, f"descriptors are nested more than {MAX_DEPTH} deep")
            self.skip()
            code = self._octet()
        width = code >> 4
        if width == 4:
            return
        if width in FIXED_WIDTHS:
            self._step(FIXED_WIDTHS[width])
        elif width in (0xA, 0xC, 0xE):
            self._step(self._octet())
        elif width in (0xB, 0xD, 0xF):
            self._step(self._u32())
        else:
            raise _unknown(code)

    def descriptor(self) -> int:
        """Return the number that describes the next value, and stop before the value itself."""
        if self._octet() != DESCRIBED:
            raise ProtocolError(DECODE_ERROR, "a described value is due and something else is there")
        descriptor = self.value()
        if isinstance(descriptor, ULong):
            return int(descriptor)
        if isinstance(descriptor, Symbol):
            number = _DESCRIPTOR_NAMES.get(descriptor)
            if number is not None:
                return number
        raise ProtocolError(DECODE_ERROR, f"{_shown(descriptor)} describes nothing that is known here")

    def fields(self) -> list[object]:
        """Return the items of a list, which must be the next value."""
        value = self.value()
        if not isinstance(value, list):
            raise ProtocolError(DECODE_ERROR, f"a list is due and {_shown(value)} is there")
        return value

    def _of(self, code: int, depth: int) -> object:
        """Return the value behind a constructor."""
        reading = _READERS.get(code)
        if reading is not None:
            width, make = reading
            at = self._step(width)
            return make(self._data[at : at + width])
        if code in (VBIN8, VBIN32):
            return self._sized(code == VBIN8)
        if code in (STR8, STR32):
            return _text(self._sized(code == STR8))
        if code in (SYM8, SYM32):
            return _symbol(self._sized(code == SYM8))
        if code in (LIST8, LIST32):
            return self._list(code == LIST8, depth)
        if code in (MAP8, MAP32):
            return self._map(code == MAP8, depth)
        if code in (ARRAY8, ARRAY32):
            return self._array(code == ARRAY8, depth)
        raise _unknown(code)

    def _sized(self, is_short: bool) -> bytes:
        size = self._octet() if is_short else self._u32()
        at = self._step(size)
        return self._data[at : at + size]

    def _counted(self, is_short: bool) -> tuple[int, int]:
        """Return the end of a compound value, and the number of its items."""
        size = self._octet() if is_short else self._u32()
        end = self.at + size
        if end > self._end:
            raise _cut_short()
        count = self._octet() if is_short else self._u32()
        if self.at > end:
            raise ProtocolError(DECODE_ERROR, "a compound value is too short for its count")
        return end, count

    def _list(self, is_short: bool, depth: int) -> list[object]:
        _check_depth(depth)
        end, count = self._counted(is_short)
        if count > end - self.at:
            raise ProtocolError(DECODE_ERROR, f"{count} items cannot be in {end - self.at} bytes")
        inner = Reader(self._data, self.at, end)
        items = [inner.value(depth - 1) for _ in range(count)]
        self._close(inner, end)
        return items

    def _map(self, is_short: bool, depth: int) -> Map:
        items = self._list(is_short, depth)
        if len(items) % 2:
            raise ProtocolError(DECODE_ERROR, "a map has a key without a value")
        return Map(list(zip(items[::2], items[1::2], strict=True)))

    def _array(self, is_short: bool, depth: int) -> Array:
        _check_depth(depth)
        end, count = self._counted(is_short)
        inner = Reader(self._data, self.at, end)
        code = inner._octet()
        descriptor: object = None
        if code == DESCRIBED:
            descriptor = inner.value(depth - 1)
            code = inner._octet()
            if code == DESCRIBED:
                raise ProtocolError(DECODE_ERROR, "the items of an array are described twice")
        most = _MAX_EMPTY_ITEMS if code >> 4 == 4 else end - inner.at
        if count > most:
            raise ProtocolError(DECODE_ERROR, f"an array of {count} items where {most} can be at most")
        items = [inner._of(code, depth - 1) for _ in range(count)]
        self._close(inner, end)
        return Array(_WIDEST.get(code, code), items, descriptor)

    def _close(self, inner: "Reader", end: int) -> None:
        if inner.at != end:
            raise ProtocolError(DECODE_ERROR, f"{end - inner.at} bytes are left over in a compound value")
        self.at = end

    def _octet(self) -> int:
        return self._data[self._step(1)]

    def _u32(self) -> int:
        value: int = _U32.unpack_from(self._data, self._step(4))[0]
        return value

    def _step(self, size: int) -> int:
        at = self.at
        if at + size > self._end:
            raise _cut_short()
        self.at = at + size
        return at


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(DECODE_ERROR, f"a string is not UTF-8: {error.reason}") from error


def _symbol(raw: bytes) -> Symbol:
    try:
        return Symbol(raw.decode("ascii"))
    except UnicodeDecodeError as error:
        raise ProtocolError(DECODE_ERROR, "a symbol is not ASCII") from error


def _boolean(raw: bytes) -> bool:
    if raw[0] > 1:
        raise ProtocolError(DECODE_ERROR, f"{raw[0]} is neither true nor false")
    return raw[0] == 1


def _char(raw: bytes) -> Char:
    number = _U32.unpack(raw)[0]
    if number > 0x10FFFF:
        raise ProtocolError(DECODE_ERROR, f"{number:#x} is no code point")
    return Char(chr(number))


def _cut_short() -> ProtocolError:
    return ProtocolError(DECODE_ERROR, "a value is cut short")


def _unknown(code: int) -> ProtocolError:
    return ProtocolError(DECODE_ERROR, f"there is no type with the code {code:#04x}")


def _check_depth(depth: int) -> None:
    if depth <= 0:
        raise ProtocolError(DECODE_ERROR, f"values are nested more than {MAX_DEPTH} deep")


def _shown(value: object) -> str:
    return f"{type(value).__name__.lower()} {str(value)[:64]}"


_READERS: Final[dict[int, tuple[int, Callable[[bytes], object]]]] = {
    NULL: (0, lambda raw: None),
    TRUE: (0, lambda raw: True),
    FALSE: (0, lambda raw: False),
    UINT0: (0, lambda raw: UInt(0)),
    ULONG0: (0, lambda raw: ULong(0)),
    LIST0: (0, lambda raw: []),
    UBYTE: (1, lambda raw: UByte(raw[0])),
    BYTE: (1, lambda raw: Byte(int.from_bytes(raw, signed=True))),
    SMALLUINT: (1, lambda raw: UInt(raw[0])),
    SMALLULONG: (1, lambda raw: ULong(raw[0])),
    SMALLINT: (1, lambda raw: Int(int.from_bytes(raw, signed=True))),
    SMALLLONG: (1, lambda raw: int.from_bytes(raw, signed=True)),
    BOOLEAN: (1, _boolean),
    USHORT: (2, lambda raw: UShort(int.from_bytes(raw))),
    SHORT: (2, lambda raw: Short(int.from_bytes(raw, signed=True))),
    UINT: (4, lambda raw: UInt(int.from_bytes(raw))),
    INT: (4, lambda raw: Int(int.from_bytes(raw, signed=True))),
    FLOAT: (4, lambda raw: Float(_F32.unpack(raw)[0])),
    CHAR: (4, _char),
    DECIMAL32: (4, Decimal32),
    ULONG: (8, lambda raw: ULong(int.from_bytes(raw))),
    LONG: (8, lambda raw: int.from_bytes(raw, signed=True)),
    DOUBLE: (8, lambda raw: _F64.unpack(raw)[0]),
    TIMESTAMP: (8, lambda raw: Timestamp(int.from_bytes(raw, signed=True))),
    DECIMAL64: (8, Decimal64),
    DECIMAL128: (16, Decimal128),
    UUID: (16, lambda raw: uuid.UUID(bytes=raw)),
}

# The code of an array in memory, for each code that it may come with: the one that holds every value of the type.
_WIDEST: Final = {
    TRUE: BOOLEAN,
    FALSE: BOOLEAN,
    UINT0: UINT,
    SMALLUINT: UINT,
    ULONG0: ULONG,
    SMALLULONG: ULONG,
    SMALLINT: INT,
    SMALLLONG: LONG,
    VBIN8: VBIN32,
    STR8: STR32,
    SYM8: SYM32,
    LIST0: LIST32,
    LIST8: LIST32,
    MAP8: MAP32,
    ARRAY8: ARRAY32,
}

# Names of descriptors. The names of one line have consecutive numbers, from the first on.
_LIST_NAMES: Final = (
    (frames.OPEN, "open begin attach flow transfer disposition detach end close"),
    (frames.ERROR, "error"),
    (frames.RECEIVED, "received accepted rejected released modified source target"),
    (frames.COORDINATOR, "coordinator declare discharge declared transactional-state"),
    (frames.SASL_MECHANISMS, "sasl-mechanisms sasl-init sasl-challenge sasl-response sasl-outcome"),
)
_DESCRIPTOR_NAMES: Final = {
    **{f"amqp:{name}:list": first + at for first, names in _LIST_NAMES for at, name in enumerate(names.split())},
    "amqp:header:list": frames.HEADER,
    "amqp:delivery-annotations:map": frames.DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": frames.MESSAGE_ANNOTATIONS,
    "amqp:properties:list": frames.PROPERTIES,
    "amqp:application-properties:map": frames.APPLICATION_PROPERTIES,
    "amqp:data:binary": frames.DATA,
    "amqp:amqp-sequence:list": frames.SEQUENCE,
    "amqp:amqp-value:*": frames.VALUE,
    "amqp:footer:map": frames.FOOTER,
}


def descriptor_number(descriptor: object) -> int:
    """Return the number of a descriptor, which may be a name; -1 if it is neither."""
    if isinstance(descriptor, Symbol):
        return _DESCRIPTOR_NAMES.get(descriptor, -1)
    return int(descriptor) if isinstance(descriptor, int) else -1


# -- writing -----------------------------------------------------------------------------------------------------------


def encode_value(value: object) -> bytes:
    """Encode a value in its shortest form. Raises ValueError if no type of AMQP holds it."""
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
    """Encode a list described by a small number, without the nulls at its end."""
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
    """Encode a string. Code points without UTF-8 bytes become question marks."""
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
    """Encode an item of an array: its value without a constructor, in the form of the array's constructor."""
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
    """Return a compound value with four bytes each for size and count, without its constructor."""
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
