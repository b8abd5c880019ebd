"""Bytes to values of AMQP 1.0. Raises ProtocolError and nothing else, whatever the bytes are."""

import struct
import uuid
from collections.abc import Callable
from typing import Final, final

from headrace.core.properties import MAX_DEPTH
from headrace.errors import ProtocolError
from headrace.protocols.amqp10 import frames
from headrace.protocols.amqp10.frames import DECODE_ERROR
from headrace.protocols.amqp10.types import (
    ARRAY8,
    ARRAY32,
    BOOLEAN,
    BYTE,
    CHAR,
    DECIMAL32,
    DECIMAL64,
    DECIMAL128,
    DESCRIBED,
    DOUBLE,
    FALSE,
    FIXED_WIDTHS,
    FLOAT,
    INT,
    LIST0,
    LIST8,
    LIST32,
    LONG,
    MAP8,
    MAP32,
    NULL,
    SHORT,
    SMALLINT,
    SMALLLONG,
    SMALLUINT,
    SMALLULONG,
    STR8,
    STR32,
    SYM8,
    SYM32,
    TIMESTAMP,
    TRUE,
    UBYTE,
    UINT,
    UINT0,
    ULONG,
    ULONG0,
    USHORT,
    UUID,
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

_U32: Final = struct.Struct(">I")
_F32: Final = struct.Struct(">f")
_F64: Final = struct.Struct(">d")

_MAX_EMPTY_ITEMS: Final = 65_536
"""How many items an array may have whose items take no bytes: nothing else would bound it."""


@final
class Reader:
    """Reads one value after the other. Raises ProtocolError (decode error) where the bytes are not what is due."""

    __slots__ = ("_data", "_end", "at")

    def __init__(self, data: bytes, at: int = 0, end: int = -1) -> None:
        self._data = data
        self.at = at
        self._end = end if end >= 0 else len(data)

    @property
    def is_at_end(self) -> bool:
        return self.at >= self._end

    def value(self, depth: int = MAX_DEPTH) -> object:
        """The next value, whatever it is."""
        code = self._octet()
        if code == DESCRIBED:
            _check_depth(depth)
            return Described(self.value(depth - 1), self.value(depth - 1))
        return self._of(code, depth)

    def skip(self) -> None:
        """Step over the next value without making it; only its outermost sizes are looked at."""
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
        """The number that describes the next value; the value itself is next then."""
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
        """The items of the list that is next."""
        value = self.value()
        if not isinstance(value, list):
            raise ProtocolError(DECODE_ERROR, f"a list is due and {_shown(value)} is there")
        return value

    def _of(self, code: int, depth: int) -> object:
        """The value of a constructor that was read."""
        simple = _SIMPLE.get(code, _NOTHING)
        if simple is not _NOTHING:
            return [] if code == LIST0 else simple
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
        """Where a compound value ends, and how many items it has."""
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


class _Nothing:
    """No such value."""


_NOTHING: Final = _Nothing()
_SIMPLE: Final[dict[int, object]] = {
    NULL: None,
    TRUE: True,
    FALSE: False,
    UINT0: UInt(0),
    ULONG0: ULong(0),
    LIST0: [],
}
_READERS: Final[dict[int, tuple[int, Callable[[bytes], object]]]] = {
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

# The code that an array of a type has here, whichever of the type's codes it came with: the one that holds every value.
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

# Descriptors may be names too.
_DESCRIPTOR_NAMES: Final = {
    "amqp:open:list": frames.OPEN,
    "amqp:begin:list": frames.BEGIN,
    "amqp:attach:list": frames.ATTACH,
    "amqp:flow:list": frames.FLOW,
    "amqp:transfer:list": frames.TRANSFER,
    "amqp:disposition:list": frames.DISPOSITION,
    "amqp:detach:list": frames.DETACH,
    "amqp:end:list": frames.END,
    "amqp:close:list": frames.CLOSE,
    "amqp:error:list": frames.ERROR,
    "amqp:received:list": frames.RECEIVED,
    "amqp:accepted:list": frames.ACCEPTED,
    "amqp:rejected:list": frames.REJECTED,
    "amqp:released:list": frames.RELEASED,
    "amqp:modified:list": frames.MODIFIED,
    "amqp:source:list": frames.SOURCE,
    "amqp:target:list": frames.TARGET,
    "amqp:coordinator:list": frames.COORDINATOR,
    "amqp:declare:list": frames.DECLARE,
    "amqp:discharge:list": frames.DISCHARGE,
    "amqp:declared:list": frames.DECLARED,
    "amqp:transactional-state:list": frames.TRANSACTIONAL_STATE,
    "amqp:sasl-mechanisms:list": frames.SASL_MECHANISMS,
    "amqp:sasl-init:list": frames.SASL_INIT,
    "amqp:sasl-challenge:list": frames.SASL_CHALLENGE,
    "amqp:sasl-response:list": frames.SASL_RESPONSE,
    "amqp:sasl-outcome:list": frames.SASL_OUTCOME,
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
