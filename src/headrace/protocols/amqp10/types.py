"""The types of AMQP 1.0, every one told from every other. Values only: reading.py and writing.py know their bytes.

A value decodes to the Python type that means the same; where Python has one type for several of AMQP's, a subclass
remembers which it was. What a value's encoding was (how many bytes a small number took) is not remembered: the
shortest is written.
"""

import struct
from collections.abc import Mapping
from typing import Final, final

_F64: Final = struct.Struct(">d")


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
