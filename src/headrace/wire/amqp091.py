"""Properties, tables and values of AMQP 0-9-1: bytes to Python and back, every type exact. No frames, no methods.

The properties of a content header:

    +----------------+-------- - - - --------+
    | flags, 2 bytes | one value per set bit |     bit 15 content type ... bit 2 cluster id; bit 0: more flags follow
    +----------------+-------- - - - --------+

Messages keep these bytes as they came; amqp091_scan.py finds in them what a publish depends on. All are decoded for
selectors and other protocols, and encoded again only after a change: a dead letter's history, for one.
"""

import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final, final

from headrace.wire.properties import MAX_DEPTH, Properties
from headrace.wire.reader import ByteReader
from headrace.wire.types import Byte, Float, Int, LongString, Seconds, Short, UByte, UInt, ULong, UShort

SYNTAX_ERROR: Final = 502
"""The reply code of every error here."""

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_F32: Final = struct.Struct(">f")
_F64: Final = struct.Struct(">d")
_DECIMAL_FORM: Final = struct.Struct(">Bi")
_MAX_DATE: Final = 253402300799  # the last second of datetime

# The type of a value is a letter before it.
ARRAY: Final = 0x41
_DECIMAL: Final = 0x44
TABLE: Final = 0x46
STRING: Final = 0x53
_TIMESTAMP: Final = 0x54
_VOID: Final = 0x56
_DOUBLE: Final = 0x64
_FLOAT: Final = 0x66
_BOOLEAN: Final = 0x74
BYTES: Final = 0x78
_INTEGERS: Final[dict[int, tuple[int, bool, Callable[[int], object]]]] = {
    ord("b"): (1, True, Byte),
    ord("B"): (1, False, UByte),
    ord("s"): (2, True, Short),
    ord("U"): (2, True, Short),
    ord("u"): (2, False, UShort),
    ord("I"): (4, True, Int),
    ord("i"): (4, False, UInt),
    ord("l"): (8, True, int),
    ord("L"): (8, False, ULong),
}
"""Size, sign and Python type by letter."""
_LETTERS: Final[dict[object, tuple[bytes, int, bool]]] = {
    kind: (bytes((letter,)), size, signed)
    for letter, (size, signed, kind) in _INTEGERS.items()
    if letter != ord("U")  # an older letter for `s`
}


_FIXED: Final = {_DECIMAL: 5, _TIMESTAMP: 8, _VOID: 0, _DOUBLE: 8, _FLOAT: 4, _BOOLEAN: 1}
SIZED: Final = 255
LENGTHS: Final = bytes(
    [_INTEGERS[letter][0] if letter in _INTEGERS else _FIXED.get(letter, SIZED) for letter in range(256)]
)
"""The bytes of a value by its letter. Strings, tables and arrays begin with their length."""


@final
class Reader(ByteReader):
    """Reads one value after the other. Raises ProtocolError (syntax error) for bytes that do not fit."""

    __slots__ = ()

    def __init__(self, data: bytes, at: int = 0) -> None:
        super().__init__(data, at, len(data), SYNTAX_ERROR, "")

    def shortstr(self) -> str:
        try:
            return self.raw(self.octet()).decode()
        except UnicodeDecodeError as error:
            raise self.error(f"a short string is not UTF-8: {error.reason}") from error

    def longstr(self) -> bytes:
        return self.raw(self.long())

    def text(self) -> str:
        """Read a property. Clients put bytes of their own into ids, so those that are not UTF-8 stay as they are."""
        return self.raw(self.octet()).decode(errors="surrogateescape")

    def table(self, depth: int = MAX_DEPTH) -> dict[str, object]:
        end = self._nested(depth)
        table: dict[str, object] = {}
        while self.at < end:
            name = self.shortstr()
            table[name] = self._value(depth - 1)
        self._check_end(end)
        return table

    def _array(self, depth: int) -> list[object]:
        end = self._nested(depth)
        values: list[object] = []
        while self.at < end:
            values.append(self._value(depth - 1))
        self._check_end(end)
        return values

    def _value(self, depth: int) -> object:
        letter = self.octet()
        if letter == STRING:
            raw = self.longstr()
            try:
                return raw.decode()
            except UnicodeDecodeError:
                return LongString(raw)
        integer = _INTEGERS.get(letter)
        if integer is not None:
            size, signed, kind = integer
            return kind(int.from_bytes(self.raw(size), "big", signed=signed))
        if letter == _BOOLEAN:
            return self.octet() != 0
        if letter == TABLE:
            return self.table(depth)
        if letter == ARRAY:
            return self._array(depth)
        if letter == BYTES:
            return self.longstr()
        if letter == _TIMESTAMP:
            seconds = self.longlong()
            return datetime.fromtimestamp(seconds, UTC) if seconds <= _MAX_DATE else Seconds(seconds)
        if letter == _FLOAT:
            return Float(_F32.unpack(self.raw(4))[0])
        return self._rare_value(letter)

    def _rare_value(self, letter: int) -> object:
        if letter == _VOID:
            return None
        if letter == _DOUBLE:
            double: float = _F64.unpack(self.raw(8))[0]
            return double
        if letter == _DECIMAL:
            scale, value = _DECIMAL_FORM.unpack(self.raw(5))
            return Decimal((value < 0, tuple(map(int, str(abs(value)))), -scale))
        raise self.error(f"there is no field type 0x{letter:02x}")

    def _nested(self, depth: int) -> int:
        """Return the end of the table or array that starts here."""
        if depth <= 0:
            raise self.error(f"tables are nested more than {MAX_DEPTH} deep")
        size = self.long()
        end = self.at + size
        if end > self._end:
            raise self.error(f"a table of {size} bytes does not fit into its frame")
        return end

    def _check_end(self, end: int) -> None:
        if self.at != end:
            raise self.error("a value goes beyond the end of its table")


def encode_shortstr(text: str) -> bytes:
    """Encode a string of at most 255 bytes; a longer one, from another protocol, is cut."""
    raw = text.encode()
    if len(raw) > 255:
        raw = raw[:255].decode(errors="ignore").encode()
    return bytes((len(raw),)) + raw


def encode_longstr(raw: bytes) -> bytes:
    return _U32.pack(len(raw)) + raw


def encode_table(table: Mapping[str, object]) -> bytes:
    return encode_longstr(b"".join([encode_entry(name, value) for name, value in table.items()]))


def encode_entry(name: str, value: object) -> bytes:
    """Encode one name and its value, as in a table."""
    return encode_shortstr(name) + _encode_value(value)


def _encode_value(value: object) -> bytes:
    if isinstance(value, str):
        return b"S" + encode_longstr(value.encode())
    if value is None:
        return b"V"
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    kind = type(value)  # compiled code makes a plain int of what is known to be one
    if isinstance(value, int):
        return _encode_integer(value, kind)
    if isinstance(value, float):
        return b"f" + _F32.pack(value) if isinstance(value, Float) else b"d" + _F64.pack(value)
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


def _encode_integer(value: int, kind: type) -> bytes:
    """Encode a number of the wire type that `kind` stands for."""
    if kind is Seconds:
        return b"T" + _U64.pack(value)
    form = _LETTERS.get(kind)
    if form is not None and (kind is not int or -(1 << 63) <= value < 1 << 63):
        letter, size, signed = form
        return letter + value.to_bytes(size, "big", signed=signed)
    if 0 <= value < 1 << 64:
        return b"L" + _U64.pack(value)
    return b"S" + encode_longstr(str(value).encode())


def _encode_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if isinstance(exponent, int) and -255 <= exponent <= 0:
        number = int("".join(map(str, digits)) or "0")
        if number < 1 << 31:
            return b"D" + _DECIMAL_FORM.pack(-exponent, -number if sign else number)
    return b"S" + encode_longstr(str(value).encode())


# -- properties --------------------------------------------------------------------------------------------------------

NONE: Final = b"\0\0"
HAS_CONTENT_TYPE: Final = 1 << 15
HAS_CONTENT_ENCODING: Final = 1 << 14
HAS_HEADERS: Final = 1 << 13
HAS_DELIVERY_MODE: Final = 1 << 12
HAS_PRIORITY: Final = 1 << 11
_CORRELATION_ID: Final = 1 << 10
HAS_REPLY_TO: Final = 1 << 9
HAS_EXPIRATION: Final = 1 << 8
_MESSAGE_ID: Final = 1 << 7
HAS_TIMESTAMP: Final = 1 << 6
_MESSAGE_TYPE: Final = 1 << 5
HAS_USER_ID: Final = 1 << 4
_APP_ID: Final = 1 << 3
HAS_CLUSTER_ID: Final = 1 << 2
UNKNOWN_FLAGS: Final = 0b11
_CLUSTER_NAME: Final = "cluster_id"


def decode_properties(raw: bytes) -> Properties:
    """Decode flags and values. Raises ProtocolError if they are not complete, or bytes follow them."""
    properties = Properties()
    if not raw or raw == NONE:
        return properties
    reader = Reader(raw)
    flags = _flags(reader)
    if flags & HAS_CONTENT_TYPE:
        properties.content_type = reader.text()
    if flags & HAS_CONTENT_ENCODING:
        properties.content_encoding = reader.text()
    if flags & HAS_HEADERS:
        properties.headers = reader.table()
    if flags & HAS_DELIVERY_MODE:
        properties.delivery_mode = reader.octet()
    if flags & HAS_PRIORITY:
        properties.priority = reader.octet()
    if flags & _CORRELATION_ID:
        properties.correlation_id = reader.text()
    if flags & HAS_REPLY_TO:
        properties.reply_to = reader.text()
    if flags & HAS_EXPIRATION:
        properties.expiration = reader.text()
    if flags & _MESSAGE_ID:
        properties.message_id = reader.text()
    if flags & HAS_TIMESTAMP:
        properties.timestamp_s = reader.longlong()
    if flags & _MESSAGE_TYPE:
        properties.message_type = reader.text()
    if flags & HAS_USER_ID:
        properties.user_id = reader.text()
    if flags & _APP_ID:
        properties.app_id = reader.text()
    if flags & HAS_CLUSTER_ID:
        properties.extra[_CLUSTER_NAME] = reader.text()
    _check_all_read(reader)
    return properties


def decode_headers(raw: bytes) -> dict[str, object]:
    """Decode the headers alone. Raises ProtocolError if they are not complete."""
    if not raw or not raw[0] & HAS_HEADERS >> 8:
        return {}
    reader = Reader(raw)
    flags = _flags(reader)
    for bit in (HAS_CONTENT_TYPE, HAS_CONTENT_ENCODING):
        if flags & bit:
            reader.step(reader.octet())
    return reader.table()


def _flags(reader: Reader) -> int:
    flags = reader.short()
    if flags & UNKNOWN_FLAGS:
        raise reader.error("property flags are set that basic has no property for")
    return flags


def _check_all_read(reader: Reader) -> None:
    if not reader.is_at_end:
        raise reader.error("there are bytes behind the last property")


def encode_properties(properties: Properties) -> bytes:
    """Encode flags and values."""
    flags = 0
    parts: list[bytes] = []
    cluster_id = properties.extra.get(_CLUSTER_NAME)
    for bit, value in (
        (HAS_CONTENT_TYPE, _shortstr(properties.content_type)),
        (HAS_CONTENT_ENCODING, _shortstr(properties.content_encoding)),
        (HAS_HEADERS, encode_table(properties.headers) if properties.headers else b""),
        (HAS_DELIVERY_MODE, bytes((properties.delivery_mode & 0xFF,)) if properties.delivery_mode else b""),
        (HAS_PRIORITY, bytes((properties.priority & 0xFF,)) if properties.priority >= 0 else b""),
        (_CORRELATION_ID, _shortstr(properties.correlation_id)),
        (HAS_REPLY_TO, _shortstr(properties.reply_to)),
        (HAS_EXPIRATION, _shortstr(properties.expiration)),
        (_MESSAGE_ID, _shortstr(properties.message_id)),
        (HAS_TIMESTAMP, _U64.pack(properties.timestamp_s) if properties.timestamp_s >= 0 else b""),
        (_MESSAGE_TYPE, _shortstr(properties.message_type)),
        (HAS_USER_ID, _shortstr(properties.user_id)),
        (_APP_ID, _shortstr(properties.app_id)),
        (HAS_CLUSTER_ID, (_shortstr(cluster_id) or b"\0") if isinstance(cluster_id, str) else b""),
    ):
        if value:
            flags |= bit
            parts.append(value)
    return _U16.pack(flags) + b"".join(parts)


def _shortstr(text: str) -> bytes:
    """Encode a property; b"" for an absent one."""
    if not text:
        return b""
    raw = text.encode(errors="surrogateescape")[:255]
    return bytes((len(raw),)) + raw
