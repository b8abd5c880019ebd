"""The frames of AMQP 1.0, its numbers, and the typed fields of described lists. codec.py reads and writes frames.

A frame:

    0          4       5       6          8          doff * 4             size
    +----------+-------+-------+----------+--- - - --+------------- - - --+
    | size     | doff  | type  | channel  | extended | body               |
    | 4 bytes  | 1     | 1     | 2        | header   |                    |
    +----------+-------+-------+----------+--- - - --+------------- - - --+

The body of an AMQP frame (type 0) is empty, which only shows that the peer lives, or a performative: a list that is
described by a number, and behind a transfer a piece of the message. That of a SASL frame (type 1) is a performative.
All numbers are big-endian.
"""

from typing import Final, final

from headrace.errors import ProtocolError
from headrace.protocols.amqp10.types import Array, Described, Map, Symbol, UByte, UInt, ULong, UShort

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
HEADER_BYTES: Final = 8

AMQP: Final = 0
SASL: Final = 1
MIN_FRAME_SIZE: Final = 512
MAX_FRAME_SIZE: Final = 131072
EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"

CHANNEL_MAX: Final = 1023
HANDLE_MAX: Final = 1023
IDLE_TIMEOUT_MS: Final = 60_000
INCOMING_WINDOW: Final = 4096
OUTGOING_WINDOW: Final = 0x7FFFFFFF
LINK_CREDIT: Final = 1024
MAX_TAG_BYTES: Final = 32

# Descriptors of the performatives.
OPEN: Final = 0x10
BEGIN: Final = 0x11
ATTACH: Final = 0x12
FLOW: Final = 0x13
TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
DETACH: Final = 0x16
END: Final = 0x17
CLOSE: Final = 0x18
SASL_MECHANISMS: Final = 0x40
SASL_INIT: Final = 0x41
SASL_CHALLENGE: Final = 0x42
SASL_RESPONSE: Final = 0x43
SASL_OUTCOME: Final = 0x44

# Of what they hold.
ERROR: Final = 0x1D
RECEIVED: Final = 0x23
ACCEPTED: Final = 0x24
REJECTED: Final = 0x25
RELEASED: Final = 0x26
MODIFIED: Final = 0x27
SOURCE: Final = 0x28
TARGET: Final = 0x29
COORDINATOR: Final = 0x30
DECLARE: Final = 0x31
DISCHARGE: Final = 0x32
DECLARED: Final = 0x33
TRANSACTIONAL_STATE: Final = 0x34

# Of the sections of a message.
HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78

# Settlement modes.
SENDER_UNSETTLED: Final = 0
SENDER_SETTLED: Final = 1
SENDER_MIXED: Final = 2
RECEIVER_FIRST: Final = 0
RECEIVER_SECOND: Final = 1

# How a login ended.
SASL_OK: Final = 0
SASL_AUTH: Final = 1
SASL_SYSTEM: Final = 2

# What goes wrong, by number: ProtocolError carries these, conditions.py has their names.
INTERNAL_ERROR: Final = 1
DECODE_ERROR: Final = 2
FRAMING_ERROR: Final = 3
NOT_ALLOWED: Final = 4
INVALID_FIELD: Final = 5
NOT_IMPLEMENTED: Final = 6
ILLEGAL_STATE: Final = 7
FRAME_SIZE_TOO_SMALL: Final = 8
UNATTACHED_HANDLE: Final = 9
HANDLE_IN_USE: Final = 10
WINDOW_VIOLATION: Final = 11
MESSAGE_SIZE_EXCEEDED: Final = 12
TRANSFER_LIMIT_EXCEEDED: Final = 13
CONNECTION_FORCED: Final = 14
UNKNOWN_TRANSACTION: Final = 15
TRANSACTION_ROLLBACK: Final = 16
RESOURCE_LIMIT: Final = 17
STOLEN: Final = 18
RESOURCE_DELETED: Final = 19
ERRANT_LINK: Final = 20
UNAUTHORIZED: Final = 21
NOT_FOUND: Final = 22
CONTAINER_IN_USE: Final = 23


MAX_UINT: Final = 0xFFFFFFFF


@final
class Fields:
    """One list; fields beyond its end are null. Raises ProtocolError that names the field and what it should be."""

    __slots__ = ("_name", "_values")

    def __init__(self, name: str, values: list[object]) -> None:
        self._name = name
        self._values = values

    def get(self, index: int) -> object:
        return self._values[index] if index < len(self._values) else None

    def text(self, index: int, field: str) -> str | None:
        """A string, or a symbol where a careless client sends one."""
        value = self.get(index)
        if value is None or isinstance(value, str):
            return None if value is None else str(value)
        raise self._wrong(field, "a string", value)

    def required_text(self, index: int, field: str) -> str:
        value = self.text(index, field)
        if value is None:
            raise self._missing(field)
        return value

    def binary(self, index: int, field: str) -> bytes | None:
        value = self.get(index)
        if value is None or isinstance(value, bytes):
            return value
        raise self._wrong(field, "binary", value)

    def number(self, index: int, field: str, default: int = 0) -> int:
        value = self.get(index)
        if value is None:
            return default
        if isinstance(value, UInt | UShort | UByte | ULong):
            return int(value)
        raise self._wrong(field, "an unsigned number", value)

    def optional_number(self, index: int, field: str) -> int | None:
        return None if self.get(index) is None else self.number(index, field)

    def required_number(self, index: int, field: str) -> int:
        if self.get(index) is None:
            raise self._missing(field)
        return self.number(index, field)

    def flag(self, index: int, field: str, default: bool = False) -> bool:
        value = self.get(index)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        raise self._wrong(field, "true or false", value)

    def required_flag(self, index: int, field: str) -> bool:
        if self.get(index) is None:
            raise self._missing(field)
        return self.flag(index, field)

    def table(self, index: int, field: str) -> Map:
        value = self.get(index)
        if value is None:
            return Map()
        if isinstance(value, Map):
            return value
        raise self._wrong(field, "a map", value)

    def optional_table(self, index: int, field: str) -> Map | None:
        return None if self.get(index) is None else self.table(index, field)

    def symbols(self, index: int, field: str) -> list[str]:
        """None, one or an array of them."""
        value = self.get(index)
        if value is None:
            return []
        items = value.items if isinstance(value, Array) else [value]
        names: list[str] = []
        for item in items:
            if not isinstance(item, str):
                raise self._wrong(field, "symbols", item)
            names.append(str(item))
        return names

    def described(self, index: int, field: str) -> Described | None:
        value = self.get(index)
        if value is None or isinstance(value, Described):
            return value
        raise self._wrong(field, "a described value", value)

    def _wrong(self, field: str, expected: str, value: object) -> ProtocolError:
        what = type(value).__name__.lower()
        return ProtocolError(DECODE_ERROR, f"the field '{field}' of {self._name} must be {expected}, not {what}")

    def _missing(self, field: str) -> ProtocolError:
        return ProtocolError(DECODE_ERROR, f"{self._name} lacks its field '{field}'")


def symbols(names: list[str]) -> Array | None:
    """How several symbols are written; None for none."""
    return Array(0xB3, [Symbol(name) for name in names]) if names else None


def uint(value: int | None) -> UInt | None:
    return None if value is None else UInt(value)


def symbol(text: str | None) -> Symbol | None:
    return None if text is None else Symbol(text)
