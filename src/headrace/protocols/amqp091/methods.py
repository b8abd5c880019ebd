"""The rare methods of AMQP 0-9-1, read and written field by field. The hot ones are in codec.py.

The classes and the types of their fields are pamqp's; the bytes are ours: pamqp accepts values that are cut short, and
refuses names that RabbitMQ's clients use.
"""

import struct
from collections.abc import Mapping
from typing import Final

from pamqp import base, commands

from headrace.errors import ProtocolError
from headrace.protocols.amqp091.frames import FRAME_END, METHOD, NOT_IMPLEMENTED
from headrace.wire.amqp091 import Reader, encode_longstr, encode_shortstr, encode_table

_HEAD: Final = struct.Struct(">BHII")
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_END: Final = bytes([FRAME_END])

_KINDS: Final[dict[int, type[base.Frame]]] = {
    index: kind for index, kind in commands.INDEX_MAPPING.items() if issubclass(kind, base.Frame)
}
_FIELDS: Final[dict[int, list[tuple[str, str]]]] = {
    index: [(name, kind.amqp_type(name)) for name in kind.attributes()] for index, kind in _KINDS.items()
}


def decode_method(payload: bytes) -> base.Frame:
    """The method in the payload of a frame. Raises ProtocolError for an unknown method or incomplete fields."""
    reader = Reader(payload)
    index = reader.long()
    kind = _KINDS.get(index)
    if kind is None:
        raise ProtocolError(NOT_IMPLEMENTED, f"there is no method {index & 0xFFFF} of class {index >> 16}")
    method = kind.__new__(kind)
    bits = 0
    bit = 8
    for name, form in _FIELDS[index]:
        if form == "bit":
            if bit == 8:
                bits = reader.octet()
                bit = 0
            setattr(method, name, bool(bits >> bit & 1))
            bit += 1
            continue
        bit = 8
        setattr(method, name, _read(reader, form))
    return method


def encode_method(channel: int, kind: type[base.Frame], fields: Mapping[str, object] | None = None) -> bytes:
    """The frame of a method; absent fields are zero, false or empty."""
    given = fields or {}
    parts: list[bytes] = []
    bits = -1
    bit = 0
    for name, form in _FIELDS[kind.index]:
        value = given.get(name)
        if form == "bit":
            bits = max(bits, 0) | (1 << bit if value else 0)
            bit += 1
            continue
        if bits >= 0:
            parts.append(bytes([bits]))
            bits, bit = -1, 0
        parts.append(_written(value, form))
    if bits >= 0:
        parts.append(bytes([bits]))
    arguments = b"".join(parts)
    return _HEAD.pack(METHOD, channel, 4 + len(arguments), kind.index) + arguments + _END


def _read(reader: Reader, form: str) -> object:
    if form == "shortstr":
        return reader.shortstr()
    if form == "longstr":
        return reader.longstr()
    if form == "table":
        return reader.table()
    if form == "short":
        return reader.short()
    if form == "long":
        return reader.long()
    return reader.octet() if form == "octet" else reader.longlong()


def _written(value: object, form: str) -> bytes:
    if form == "table":
        return encode_table(value if isinstance(value, Mapping) else {})
    if form == "shortstr":
        return encode_shortstr(value if isinstance(value, str) else "")
    if form == "longstr":
        return encode_longstr(value if isinstance(value, bytes) else b"")
    number = value if isinstance(value, int) else 0
    if form == "octet":
        return bytes([number])
    if form == "short":
        return _U16.pack(number)
    return _U32.pack(number) if form == "long" else _U64.pack(number)
