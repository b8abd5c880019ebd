"""The types of AMQP 1.0, every one told from every other. Values only: reading.py and writing.py know their bytes.

A value decodes to the Python type that means the same; where Python has one type for several of AMQP's, a subclass
remembers which it was. What a value's encoding was (how many bytes a small number took) is not remembered: the
shortest is written.
"""

import struct
from collections.abc import Mapping
from typing import Final, final

_F64: Final = struct.Struct(">d")

# The codes of the constructors.
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
"""How many bytes a value takes, by the upper half of its code."""


class UByte(int):
    """ubyte"""


class UShort(int):
    """ushort"""


class UInt(int):
    """uint"""


class ULong(int):
    """ulong"""


class Byte(int):
    """byte"""


class Short(int):
    """short"""


class Int(int):
    """int; a plain Python int is a long."""


class Timestamp(int):
    """timestamp: milliseconds since 1970 UTC."""


class Float(float):
    """float; a plain Python float is a double."""


class Char(str):
    """char: one code point. Those that UTF-8 cannot hold are kept as they came."""


class Symbol(str):
    """symbol: a name in ASCII."""


class Decimal32(bytes):
    """decimal32: four bytes of IEEE 754, as they came."""


class Decimal64(bytes):
    """decimal64: eight bytes."""


class Decimal128(bytes):
    """decimal128: sixteen bytes."""


@final
class Described:
    """A value that another one says the meaning of."""

    __slots__ = ("descriptor", "value")

    def __init__(self, descriptor: object, value: object) -> None:
        self.descriptor = descriptor
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Described) and same((self.descriptor, self.value), (other.descriptor, other.value))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Described({self.descriptor!r}, {self.value!r})"


@final
class Array:
    """Items of one type, which the code of their constructor says; perhaps all described by the same value."""

    __slots__ = ("code", "descriptor", "items")

    def __init__(self, code: int, items: list[object], descriptor: object = None) -> None:
        self.code = code
        self.items = items
        self.descriptor = descriptor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Array) and same(
            (self.code, self.descriptor, self.items), (other.code, other.descriptor, other.items)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Array({self.code:#04x}, {self.items!r}, {self.descriptor!r})"


@final
class Map:
    """Pairs in their order. A dict would take the uint 1, the int 1 and true for one key, and take no list for one."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[object, object]] | None = None) -> None:
        self.pairs = pairs if pairs is not None else []

    @staticmethod
    def of(values: Mapping[str, object]) -> "Map":
        """A map from symbols."""
        return Map([(Symbol(name), value) for name, value in values.items()])

    def get(self, name: str) -> object:
        """The value of a string or symbol, None when it is not there."""
        for key, value in self.pairs:
            if isinstance(key, str) and key == name:
                return value
        return None

    def texts(self) -> dict[str, object]:
        """Those whose key is a string or a symbol."""
        return {str(key): value for key, value in self.pairs if isinstance(key, str)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Map) and same(self.pairs, other.pairs)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Map({self.pairs!r})"


def same(left: object, right: object) -> bool:
    """Whether two values are of one type and equal: 1 is not true, the uint 1 is not the int 1, NaN is NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all([same(a, b) for a, b in zip(left, right, strict=True)])
    if isinstance(left, float) and isinstance(right, float):
        return _F64.pack(left) == _F64.pack(right) or (left != left and right != right)
    return left == right
