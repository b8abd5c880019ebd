"""How numbers, texts and byte strings become bytes of a key or a value. No records: see keys.py and records.py.

In keys, numbers are big-endian, so that bytes sort as the numbers do; in values they are little-endian.

    TerminatedBytes  00 -> 01 01, 01 -> 01 02, everything else as it is, then 00      keys; sorts as the bytes do
    var_u64          LLLL DDDD: how many more bytes, then the number, big-endian      keys; sorts as the numbers do
    Utf8             u16 length, bytes                                                values
    VarBytes         u32 length, bytes                                                values
    Array<T>         u16 count, elements back to back                                 values
"""

import struct
from typing import Final, final

from headrace.errors import Corrupt, Refused

MAX_UTF8_BYTES: Final = 0xFFFF
MAX_ARRAY: Final = 0xFFFF

_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_I64: Final = struct.Struct("<q")
_SIGN: Final = 1 << 63


def encode_terminated(value: bytes) -> bytes:
    """Bytes of a key that another part follows."""
    return value.replace(b"\x01", b"\x01\x02").replace(b"\x00", b"\x01\x01") + b"\x00"


def decode_terminated(data: bytes, at: int, where: str) -> tuple[bytes, int]:
    """The bytes that begin here, and where the next part of the key begins. Raises Corrupt."""
    end = data.find(b"\x00", at)
    if end < 0:
        raise Corrupt(where, at, "a part of the key has no end")
    raw = data[at:end]
    if b"\x01" not in raw:
        return raw, end + 1
    found = bytearray()
    position = 0
    while position < len(raw):
        byte = raw[position]
        if byte == 1:
            position += 1
            escaped = raw[position] if position < len(raw) else 0
            if escaped not in (1, 2):
                raise Corrupt(where, at + position, f"01 {escaped:02x} is no escape")
            byte = escaped - 1
        found.append(byte)
        position += 1
    return bytes(found), end + 1


def encode_var_u64(value: int) -> bytes:
    """A number of a key in as few bytes as it takes."""
    if value < 1 << 4:
        return bytes((value,))
    more = (value.bit_length() + 3) // 8
    if more < 8:
        return ((more << 4 + 8 * more) | value).to_bytes(more + 1, "big")
    return b"\x80" + value.to_bytes(8, "big")


def decode_var_u64(data: bytes, at: int, where: str) -> tuple[int, int]:
    """The number that begins here, and where the next part begins. Raises Corrupt."""
    if at >= len(data):
        raise Corrupt(where, at, "a number is missing")
    more = data[at] >> 4
    if more > 8 or at + 1 + more > len(data):
        raise Corrupt(where, at, f"{data[at]:02x} is not the beginning of a number")
    value = int.from_bytes(data[at : at + 1 + more], "big") & ((1 << 4 + 8 * more) - 1)
    if value > (1 << 64) - 1:
        raise Corrupt(where, at, "a number is too large")
    return value, at + 1 + more


def encode_sortable_i64(value: int) -> bytes:
    """A number of a key that may be negative."""
    return (value + _SIGN).to_bytes(8, "big")


def decode_sortable_i64(data: bytes) -> int:
    return int.from_bytes(data, "big") - _SIGN


def lexical_successor(prefix: bytes) -> bytes | None:
    """The least bytes above everything that begins with the prefix; None when there is no end."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else None


def encode_utf8(text: str) -> bytes:
    """Raises Refused when the text is too long or not Unicode."""
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise Refused(f"{text[:64]!r} is not valid Unicode") from error
    if len(raw) > MAX_UTF8_BYTES:
        raise Refused(f"{text[:64]!r} is too long ({MAX_UTF8_BYTES} bytes of UTF-8 at most)")
    return _U16.pack(len(raw)) + raw


def encode_var_bytes(value: bytes) -> bytes:
    return _U32.pack(len(value)) + value


def encode_array(elements: list[bytes]) -> bytes:
    """Raises Refused when there are more elements than an array can have."""
    if len(elements) > MAX_ARRAY:
        raise Refused(f"an array of {len(elements)} elements is too long ({MAX_ARRAY} at most)")
    return _U16.pack(len(elements)) + b"".join(elements)


@final
class Reader:
    """Takes a value apart from front to back. Everything raises Corrupt where the bytes are not what they should be."""

    __slots__ = ("at", "data", "where")

    def __init__(self, data: bytes, where: str) -> None:
        self.data = data
        self.where = where
        self.at = 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise Corrupt(self.where, self.at, f"{count} bytes expected, {len(self.data) - self.at} are left")
        raw = self.data[self.at : end]
        self.at = end
        return raw

    def u8(self) -> int:
        return self.take(1)[0]

    def u16(self) -> int:
        return int(_U16.unpack(self.take(2))[0])

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def i64(self) -> int:
        return int(_I64.unpack(self.take(8))[0])

    def var_u64(self) -> int:
        value, self.at = decode_var_u64(self.data, self.at, self.where)
        return value

    def var_bytes(self) -> bytes:
        return self.take(self.u32())

    def utf8(self) -> str:
        begin = self.at
        try:
            return self.take(self.u16()).decode()
        except UnicodeDecodeError as error:
            raise Corrupt(self.where, begin, "a text is not UTF-8") from error

    def version(self, known: int) -> None:
        """The first byte of our own records."""
        found = self.u8()
        if found != known:
            raise Corrupt(self.where, 0, f"version {found} is not known; this release reads version {known}")

    def end(self) -> None:
        """Nothing may be left."""
        if self.at != len(self.data):
            raise Corrupt(self.where, self.at, f"{len(self.data) - self.at} bytes too many")
