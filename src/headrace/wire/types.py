"""Values of AMQP that Python has no type of its own for. amqp091.py and amqp10_values.py know their bytes.

A value decodes to the Python type with the same meaning. Where Python has one type for several of AMQP's, a subclass
names the wire type, so that encoding gives the same type again. A plain int is a long, a plain float a double.
"""

import struct
from collections.abc import Mapping
from typing import Final, final

_F64: Final = struct.Struct(">d")


class Byte(int):
    """byte; `b` in 0-9-1."""


class UByte(int):
    """ubyte; `B` in 0-9-1."""


class Short(int):
    """short; `s` in 0-9-1."""


class UShort(int):
    """ushort; `u` in 0-9-1."""


class Int(int):
    """int; `I` in 0-9-1."""


class UInt(int):
    """uint; `i` in 0-9-1."""


class ULong(int):
    """ulong; `L` in 0-9-1."""


class Float(float):
    """float; `f` in 0-9-1."""


# -- 0-9-1 alone -------------------------------------------------------------------------------------------------------


class Seconds(int):
    """`T`, seconds since 1970 UTC beyond the range of datetime."""


class LongString(bytes):
    """`S` that is not UTF-8."""


# -- 1.0 alone ---------------------------------------------------------------------------------------------------------


class Timestamp(int):
    """timestamp: milliseconds since 1970 UTC."""


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


_TYPE_NAMES: Final[dict[object, str]] = {
    bool: "bool",
    str: "longstr",
    LongString: "longstr",
    int: "long",
    Int: "signedint",
    UInt: "unsignedint",
    Short: "short",
    UShort: "unsignedshort",
    Byte: "byte",
    UByte: "unsignedbyte",
    float: "double",
    Float: "float",
    list: "array",
    dict: "table",
    bytes: "binary",
}
"""AMQP 0-9-1's names of types, as RabbitMQ tells them."""


def shown_argument(value: object) -> str:
    """Return an argument in the words of RabbitMQ: its value and its type."""
    if value is None:
        return "none"
    kind = type(value)
    text = str(value).lower() if kind is bool else value.decode(errors="replace") if isinstance(value, bytes) else value
    return f"the value '{text}' of type '{_TYPE_NAMES.get(kind, kind.__name__.lower())}'"
