"""Values of AMQP 1.0 to bytes and back. types.py has the types of the values.

Reading raises ProtocolError and nothing else, for any bytes. Writing chooses the shortest encoding.
"""

import struct
import uuid
from collections.abc import Callable
from typing import Final, final

from headrace.errors import ProtocolError
from headrace.wire.properties import MAX_DEPTH
from headrace.wire.reader import ByteReader
from headrace.wire.types import (
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

DECODE_ERROR: Final = 2
"""The error code of every error here, as the protocol numbers its errors."""

# -- reading -----------------------------------------------------------------------------------------------------------

_MAX_EMPTY_ITEMS: Final = 65_536
"""Most items of an array whose items take no bytes, since its size does not bound it."""
_INTEGERS: Final[dict[int, tuple[int, bool, Callable[[int], object]]]] = {
    UINT0: (0, False, UInt),
    ULONG0: (0, False, ULong),
    UBYTE: (1, False, UByte),
    BYTE: (1, True, Byte),
    SMALLUINT: (1, False, UInt),
    SMALLULONG: (1, False, ULong),
    SMALLINT: (1, True, Int),
    SMALLLONG: (1, True, int),
    USHORT: (2, False, UShort),
    SHORT: (2, True, Short),
    UINT: (4, False, UInt),
    INT: (4, True, Int),
    ULONG: (8, False, ULong),
    LONG: (8, True, int),
    TIMESTAMP: (8, True, Timestamp),
}
"""Size, sign and Python type by code."""
FieldTypes = tuple[tuple[str, tuple[int, ...]], ...]
"""The name of each field, and the codes that it may have; none for a field of any type."""


@final
class Reader(ByteReader):
    """Reads one value after the other. Raises ProtocolError (decode error) for other bytes."""

    __slots__ = ()

    def __init__(self, data: bytes, at: int = 0, end: int = -1) -> None:
        super().__init__(data, at, end if end >= 0 else len(data), DECODE_ERROR, "a value")

    def value(self, depth: int = MAX_DEPTH) -> object:
        """Return the next value."""
        code = self.octet()
        if code == DESCRIBED:
            self._check_depth(depth)
            return Described(self.value(depth - 1), self.value(depth - 1))
        return self._of(code, depth)

    def skip(self, depth: int = MAX_DEPTH) -> None:
        """Step over the next value without decoding it. Only its outermost size is checked."""
        code = self.octet()
        while code == DESCRIBED:
            self._check_depth(depth)
            depth -= 1
            self.skip(depth)
            code = self.octet()
        self._skip_body(code)

    def check(self, depth: int = MAX_DEPTH) -> None:
        """Step over a value that `value` can read, without making it."""
        code = self.octet()
        if code == DESCRIBED:
            self._check_depth(depth)
            self.check(depth - 1)
            self.check(depth - 1)
        else:
            self._check_body(code, depth)

    def descriptor(self) -> int:
        """Return the number that describes the next value, and stop before the value itself."""
        if self.octet() != DESCRIBED:
            raise ProtocolError(DECODE_ERROR, "a described value is due and something else is there")
        if self.at < self._end and self._data[self.at] == SMALLULONG:
            self.at += 1
            return self.octet()
        descriptor = self.value()
        number = descriptor_number(descriptor) if isinstance(descriptor, ULong | Symbol) else -1
        if number < 0:
            raise ProtocolError(DECODE_ERROR, f"{_shown(descriptor)} describes nothing that is known here")
        return number

    def fields(self) -> list[object]:
        """Return the items of a list, which must be the next value."""
        value = self.value()
        if not isinstance(value, list):
            raise ProtocolError(DECODE_ERROR, f"a list is due and {_shown(value)} is there")
        return value

    def typed_fields(self, what: str, types: FieldTypes, wanted: frozenset[int]) -> list[object]:
        """Return the items of a list of typed fields: None for those that are not wanted, which are checked only."""
        code = self.octet()
        if code == LIST0:
            return []
        if code not in (LIST8, LIST32):
            raise ProtocolError(DECODE_ERROR, f"a list is due as the {what} of a message, not the code {code:#04x}")
        end, count = self._open(code, MAX_DEPTH)
        if count > len(types):
            raise ProtocolError(DECODE_ERROR, f"the {what} of a message has {count} fields")
        outer, self._end = self._end, end
        items: list[object] = []
        for index in range(count):
            name, codes = types[index]
            code = self._data[self.at] if self.at < end else NULL
            if codes and code != NULL and code not in codes:
                raise ProtocolError(
                    DECODE_ERROR, f"the field '{name}' of a message's {what} cannot have the code {code:#04x}"
                )
            if index in wanted:
                items.append(self.value(MAX_DEPTH - 1))
            else:
                self.check(MAX_DEPTH - 1)
                items.append(None)
        self._close(outer)
        return items

    def chosen(self, keys: frozenset[bytes]) -> Map:
        """Return the pairs of a map with these encoded keys. The others are checked only."""
        code = self.octet()
        if code not in (MAP8, MAP32):
            raise ProtocolError(DECODE_ERROR, f"a map is due and the code {code:#04x} is there")
        end, count = self._open(code, MAX_DEPTH)
        self._check_pairs(count)
        outer, self._end = self._end, end
        pairs: list[tuple[object, object]] = []
        for _ in range(count // 2):
            start = self.at
            self.check(MAX_DEPTH - 1)
            if self._data[start : self.at] in keys:
                self.at = start
                pairs.append((self.value(), self.value(MAX_DEPTH - 1)))
            else:
                self.check(MAX_DEPTH - 1)
        self._close(outer)
        return Map(pairs)

    def _of(self, code: int, depth: int) -> object:
        """Return the value behind a constructor."""
        if code == NULL:
            return None
        if code in (TRUE, FALSE):
            return code == TRUE
        integer = _INTEGERS.get(code)
        if integer is not None:
            size, signed, make = integer
            return make(int.from_bytes(self.raw(size), "big", signed=signed))
        if code in (STR8, STR32):
            return self._text(self._sized(code))
        if code in (SYM8, SYM32):
            return self._symbol(self._sized(code))
        if code in (VBIN8, VBIN32):
            return self._sized(code)
        if code in (LIST8, LIST32):
            return self._list(code, depth)
        if code in (MAP8, MAP32):
            items = self._list(code, depth)
            self._check_pairs(len(items))
            return Map(list(zip(items[::2], items[1::2], strict=True)))
        if code in (ARRAY8, ARRAY32):
            return self._array(code, depth)
        return self._other(code)

    def _other(self, code: int) -> object:
        """Return a value of fixed size that is no integer."""
        if code == BOOLEAN:
            return self._boolean()
        if code == LIST0:
            return []
        if code == FLOAT:
            return Float(_F32.unpack(self.raw(4))[0])
        if code == DOUBLE:
            double: float = _F64.unpack(self.raw(8))[0]
            return double
        if code == CHAR:
            return Char(chr(self._code_point()))
        if code == UUID:
            return uuid.UUID(bytes=self.raw(16))
        make = _DECIMALS.get(code)
        if make is None:
            raise _unknown(code)
        return make(self.raw(FIXED_WIDTHS[code >> 4]))

    def _skip_body(self, code: int) -> None:
        """Step over what follows a constructor."""
        width = code >> 4
        if width == 4:
            return
        if width in FIXED_WIDTHS:
            self.step(FIXED_WIDTHS[width])
        elif width >= 0xA:
            self.step(self._size(code))
        else:
            raise _unknown(code)

    def _check_body(self, code: int, depth: int) -> None:
        """Step over what follows a constructor, checked."""
        if code in (STR8, STR32):
            self._text(self._sized(code))
        elif code in (SYM8, SYM32):
            self._symbol(self._sized(code))
        elif code in (LIST8, LIST32, MAP8, MAP32):
            end, count = self._open(code, depth)
            if code in (MAP8, MAP32):
                self._check_pairs(count)
            outer, self._end = self._end, end
            for _ in range(count):
                self.check(depth - 1)
            self._close(outer)
        elif code in (ARRAY8, ARRAY32):
            self._array(code, depth)
        elif code == BOOLEAN:
            self._boolean()
        elif code == CHAR:
            self._code_point()
        elif code in _CODES:
            self._skip_body(code)
        else:
            raise _unknown(code)

    def _size(self, code: int) -> int:
        """Read the size of a value of variable size: one byte or four."""
        return self.long() if code & 0x10 else self.octet()

    def _sized(self, code: int) -> bytes:
        return self.raw(self._size(code))

    def _open(self, code: int, depth: int) -> tuple[int, int]:
        """Return the end of a list or a map, and the number of its items."""
        end, count = self._counted(code, depth)
        if count > end - self.at:
            raise ProtocolError(DECODE_ERROR, f"{count} items cannot be in {end - self.at} bytes")
        return end, count

    def _counted(self, code: int, depth: int) -> tuple[int, int]:
        """Return the end of a compound value, and the number of its items."""
        self._check_depth(depth)
        size = self._size(code)
        end = self.at + size
        if end > self._end:
            raise self.error(f"{size} bytes are due where {self._end - self.at} are left")
        count = self._size(code)
        if self.at > end:
            raise ProtocolError(DECODE_ERROR, "a compound value is too short for its count")
        return end, count

    def _list(self, code: int, depth: int) -> list[object]:
        end, count = self._open(code, depth)
        outer, self._end = self._end, end
        items = [self.value(depth - 1) for _ in range(count)]
        self._close(outer)
        return items

    def _array(self, code: int, depth: int) -> Array:
        end, count = self._counted(code, depth)
        outer, self._end = self._end, end
        kind = self.octet()
        descriptor: object = None
        if kind == DESCRIBED:
            descriptor = self.value(depth - 1)
            kind = self.octet()
            if kind == DESCRIBED:
                raise ProtocolError(DECODE_ERROR, "the items of an array are described twice")
        most = _MAX_EMPTY_ITEMS if kind >> 4 == 4 else end - self.at
        if count > most:
            raise ProtocolError(DECODE_ERROR, f"an array of {count} items where {most} can be at most")
        items = [self._of(kind, depth - 1) for _ in range(count)]
        self._close(outer)
        return Array(_WIDEST.get(kind, kind), items, descriptor)

    def _close(self, outer: int) -> None:
        """End a compound value, and go on up to the end of the one around it."""
        if self.at != self._end:
            raise ProtocolError(DECODE_ERROR, f"{self._end - self.at} bytes are left over in a compound value")
        self._end = outer

    def _check_depth(self, depth: int) -> None:
        if depth <= 0:
            raise ProtocolError(DECODE_ERROR, f"values are nested more than {MAX_DEPTH} deep")

    def _check_pairs(self, count: int) -> None:
        if count % 2:
            raise ProtocolError(DECODE_ERROR, "a map has a key without a value")

    def _text(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise ProtocolError(DECODE_ERROR, f"a string is not UTF-8: {error.reason}") from error

    def _symbol(self, raw: bytes) -> object:
        if not raw.isascii():
            raise ProtocolError(DECODE_ERROR, "a symbol is not ASCII")
        return Symbol(raw.decode("ascii"))

    def _boolean(self) -> bool:
        number = self.octet()
        if number > 1:
            raise ProtocolError(DECODE_ERROR, f"{number} is neither true nor false")
        return number == 1

    def _code_point(self) -> int:
        number = self.long()
        if number > 0x10FFFF:
            raise ProtocolError(DECODE_ERROR, f"{number:#x} is no code point")
        return number


def _unknown(code: int) -> ProtocolError:
    return ProtocolError(DECODE_ERROR, f"there is no type with the code {code:#04x}")


def _shown(value: object) -> str:
    return f"{type(value).__name__.lower()} {str(value)[:64]}"


_DECIMALS: Final[dict[int, Callable[[bytes], object]]] = {
    DECIMAL32: Decimal32,
    DECIMAL64: Decimal64,
    DECIMAL128: Decimal128,
}
_CODES: Final = frozenset((*_INTEGERS, *_DECIMALS, NULL, TRUE, FALSE, LIST0, FLOAT, DOUBLE, UUID, VBIN8, VBIN32))
"""The codes of values that are valid whatever their bytes are."""

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

# AMQP 1.0 [2.7], [2.8.14], [3.2], [3.4], [3.5], [4.5], [5.3.3]: the names of descriptors. Those of one line have
# consecutive numbers, from the first on.
_NAMES: Final = (
    (0x10, "open:list begin:list attach:list flow:list transfer:list disposition:list detach:list end:list close:list"),
    (0x1D, "error:list"),
    (0x23, "received:list accepted:list rejected:list released:list modified:list source:list target:list"),
    (0x30, "coordinator:list declare:list discharge:list declared:list transactional-state:list"),
    (0x40, "sasl-mechanisms:list sasl-init:list sasl-challenge:list sasl-response:list sasl-outcome:list"),
    (0x70, "header:list delivery-annotations:map message-annotations:map properties:list application-properties:map"),
    (0x75, "data:binary amqp-sequence:list amqp-value:* footer:map"),
)
_DESCRIPTORS: Final = {f"amqp:{name}": first + at for first, names in _NAMES for at, name in enumerate(names.split())}


def descriptor_number(descriptor: object) -> int:
    """Return the number of a descriptor, which may be a name; -1 if it is neither."""
    if isinstance(descriptor, Symbol):
        return _DESCRIPTORS.get(descriptor, -1)
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
