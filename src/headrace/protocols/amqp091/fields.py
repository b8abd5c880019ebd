"""Field values and tables of AMQP 0-9-1: every type, exact both ways. No frames, no methods.

A value decodes to the Python type that means the same; where Python has one type for several of AMQP's, a subclass
remembers which it was, so that encoding gives the same bytes again.
"""

import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final, final

from headrace.core.properties import MAX_DEPTH
from headrace.errors import ProtocolError
from headrace.protocols.amqp091.frames import SYNTAX_ERROR

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_F32: Final = struct.Struct(">f")
_F64: Final = struct.Struct(">d")
_DECIMAL: Final = struct.Struct(">Bi")
_MAX_DATE: Final = 253402300799  # the last second that datetime knows


class Int8(int):
    """`b`"""


class UInt8(int):
    """`B`"""


class Int16(int):
    """`s`"""


class UInt16(int):
    """`u`"""


class Int32(int):
    """`I`"""


class UInt32(int):
    """`i`"""


class UInt64(int):
    """`L`"""


class Seconds(int):
    """`T`, beyond what a datetime can hold."""


class Float32(float):
    """`f`"""


class LongString(bytes):
    """`S` that is not UTF-8."""


_INTEGERS: Final[dict[int, tuple[struct.Struct, type[int]]]] = {
    ord("b"): (struct.Struct(">b"), Int8),
    ord("B"): (struct.Struct(">B"), UInt8),
    ord("s"): (struct.Struct(">h"), Int16),
    ord("U"): (struct.Struct(">h"), Int16),
    ord("u"): (struct.Struct(">H"), UInt16),
    ord("I"): (struct.Struct(">i"), Int32),
    ord("i"): (struct.Struct(">I"), UInt32),
    ord("l"): (struct.Struct(">q"), int),
    ord("L"): (struct.Struct(">Q"), UInt64),
}
_TAG_OF: Final[dict[type[int], tuple[bytes, struct.Struct]]] = {
    kind: (bytes([tag]), form) for tag, (form, kind) in _INTEGERS.items() if tag != ord("U")
}


@final
class Reader:
    """Reads one value after the other. Raises ProtocolError (syntax error) for bytes that do not fit."""

    __slots__ = ("_at", "_data", "_end")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at
        self._end = len(data)

    @property
    def position(self) -> int:
        return self._at

    @property
    def is_at_end(self) -> bool:
        return self._at == self._end

    def octet(self) -> int:
        return self._data[self._step(1)]

    def short(self) -> int:
        value: int = _U16.unpack_from(self._data, self._step(2))[0]
        return value

    def long(self) -> int:
        value: int = _U32.unpack_from(self._data, self._step(4))[0]
        return value

    def longlong(self) -> int:
        value: int = _U64.unpack_from(self._data, self._step(8))[0]
        return value

    def raw(self, size: int) -> bytes:
        at = self._step(size)
        return self._data[at : at + size]

    def shortstr(self) -> str:
        try:
            return self.raw(self.octet()).decode()
        except UnicodeDecodeError as error:
            raise ProtocolError(SYNTAX_ERROR, f"a short string is not UTF-8: {error.reason}") from error

    def longstr(self) -> bytes:
        return self.raw(self.long())

    def table(self, depth: int = MAX_DEPTH) -> dict[str, object]:
        end = self._nested(depth)
        table: dict[str, object] = {}
        while self._at < end:
            name = self.shortstr()
            table[name] = self._value(depth - 1)
        self._check_end(end)
        return table

    def _array(self, depth: int) -> list[object]:
        end = self._nested(depth)
        values: list[object] = []
        while self._at < end:
            values.append(self._value(depth - 1))
        self._check_end(end)
        return values

    def _value(self, depth: int) -> object:
        tag = self.octet()
        if tag == 0x53:  # S
            raw = self.longstr()
            try:
                return raw.decode()
            except UnicodeDecodeError:
                return LongString(raw)
        integer = _INTEGERS.get(tag)
        if integer is not None:
            form, kind = integer
            return kind(form.unpack_from(self._data, self._step(form.size))[0])
        reader = _READERS.get(tag)
        if reader is not None:
            return reader(self)
        if tag == 0x46:  # F
            return self.table(depth)
        if tag == 0x41:  # A
            return self._array(depth)
        raise ProtocolError(SYNTAX_ERROR, f"there is no field type 0x{tag:02x}")

    def _nested(self, depth: int) -> int:
        """The end of the table or array that starts here."""
        if depth <= 0:
            raise ProtocolError(SYNTAX_ERROR, f"tables are nested more than {MAX_DEPTH} deep")
        size = self.long()
        end = self._at + size
        if end > self._end:
            raise ProtocolError(SYNTAX_ERROR, f"a table of {size} bytes does not fit into its frame")
        return end

    def _check_end(self, end: int) -> None:
        if self._at != end:
            raise ProtocolError(SYNTAX_ERROR, "a value goes beyond the end of its table")

    def _step(self, size: int) -> int:
        at = self._at
        if at + size > self._end:
            raise ProtocolError(SYNTAX_ERROR, f"{size} bytes are expected where {self._end - at} are left")
        self._at = at + size
        return at


def _read_timestamp(reader: Reader) -> object:
    seconds = reader.longlong()
    return datetime.fromtimestamp(seconds, UTC) if seconds <= _MAX_DATE else Seconds(seconds)


def _read_decimal(reader: Reader) -> Decimal:
    scale, value = _DECIMAL.unpack(reader.raw(5))
    return Decimal((value < 0, tuple(map(int, str(abs(value)))), -scale))


_READERS: Final[dict[int, Callable[[Reader], object]]] = {
    ord("t"): lambda reader: reader.octet() != 0,
    ord("f"): lambda reader: Float32(_F32.unpack(reader.raw(4))[0]),
    ord("d"): lambda reader: _F64.unpack(reader.raw(8))[0],
    ord("D"): _read_decimal,
    ord("T"): _read_timestamp,
    ord("V"): lambda reader: None,
    ord("x"): lambda reader: reader.longstr(),
}


def encode_shortstr(text: str) -> bytes:
    """A string of at most 255 bytes; a longer one, from another protocol, is cut."""
    raw = text.encode()
    if len(raw) > 255:
        raw = raw[:255].decode(errors="ignore").encode()
    return bytes([len(raw)]) + raw


def encode_longstr(raw: bytes) -> bytes:
    return _U32.pack(len(raw)) + raw


def encode_table(table: Mapping[str, object]) -> bytes:
    parts = [encode_entry(name, value) for name, value in table.items()]
    return encode_longstr(b"".join(parts))


def encode_entry(name: str, value: object) -> bytes:
    """One name and its value, as in a table."""
    return encode_shortstr(name) + _encode_value(value)


def _encode_value(value: object) -> bytes:
    if isinstance(value, str):
        return b"S" + encode_longstr(value.encode())
    if value is None:
        return b"V"
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, int):
        return _encode_integer(value)
    if isinstance(value, float):
        return b"f" + _F32.pack(value) if isinstance(value, Float32) else b"d" + _F64.pack(value)
    if isinstance(value, bytes | bytearray):
        return (b"S" if isinstance(value, LongString) else b"x") + encode_longstr(bytes(value))
    if isinstance(value, datetime):
        return b"T" + _U64.pack(max(0, int(value.timestamp())))
    if isinstance(value, Decimal):
        return _encode_decimal(value)
    if isinstance(value, Mapping):
        return b"F" + encode_table({str(name): item for name, item in value.items()})
    if isinstance(value, list | tuple):
        return b"A" + encode_longstr(b"".join([_encode_value(item) for item in value]))
    return b"S" + encode_longstr(str(value).encode())


def _encode_integer(value: int) -> bytes:
    if isinstance(value, Seconds):
        return b"T" + _U64.pack(value)
    form = _TAG_OF.get(type(value))
    if form is not None and (form[0] != b"l" or -(1 << 63) <= value < 1 << 63):
        return form[0] + form[1].pack(value)
    if 0 <= value < 1 << 64:
        return b"L" + _U64.pack(value)
    return b"S" + encode_longstr(str(value).encode())


def _encode_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if isinstance(exponent, int) and -255 <= exponent <= 0:
        number = int("".join(map(str, digits)) or "0")
        if number < 1 << 31:
            return b"D" + _DECIMAL.pack(-exponent, -number if sign else number)
    return b"S" + encode_longstr(str(value).encode())
