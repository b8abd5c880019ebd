"""The types of AMQP 1.0 in Python. Values only: values.py knows their bytes.

A value decodes to the Python type with the same meaning. Where Python has one type for several of AMQP's, a subclass
tells which it was. The length of an encoding is not kept: the shortest is written.
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
    """char: one code point, also one that UTF-8 cannot hold."""


class Symbol(str):
    """symbol: a name in ASCII."""


class Decimal32(bytes):
    """decimal32: four bytes of IEEE 754."""


class Decimal64(bytes):
    """decimal64: eight bytes."""


class Decimal128(bytes):
    """decimal128: sixteen bytes."""


@final
class Described:
    """A value with a descriptor, which gives its meaning."""

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
    """Items of one type, which the code of their constructor names, perhaps with one descriptor for all."""

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
    """Pairs in their order. In a dict the uint 1, the int 1 and true would be one key, and a list could be none."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[object, object]] | None = None) -> None:
        self.pairs = pairs if pairs is not None else []

    @staticmethod
    def of(values: Mapping[str, object]) -> "Map":
        """Make a map with symbols for keys."""
        return Map([(Symbol(name), value) for name, value in values.items()])

    def get(self, name: str) -> object:
        """Return the value of a string or symbol, None if there is none."""
        for key, value in self.pairs:
            if isinstance(key, str) and key == name:
                return value
        return None

    def texts(self) -> dict[str, object]:
        """Return the pairs whose key is a string or a symbol."""
        return {str(key): value for key, value in self.pairs if isinstance(key, str)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Map) and same(self.pairs, other.pairs)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Map({self.pairs!r})"


def same(left: object, right: object) -> bool:
    """True if two values are of one type and equal: 1 is not true, the uint 1 is not the int 1, NaN is NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all([same(a, b) for a, b in zip(left, right, strict=True)])
    if isinstance(left, float) and isinstance(right, float):
        return _F64.pack(left) == _F64.pack(right) or (left != left and right != right)
    return left == right
