"""Values of AMQP 1.0 as all protocols understand them, and back. Types that only AMQP 1.0 has do not survive this."""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

from headrace.core.properties import plain_number
from headrace.protocols.amqp10.types import (
    Array,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Map,
    Symbol,
    Timestamp,
    ULong,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_MS: Final = 253402300799999  # the last millisecond that datetime knows
_MIN_MS: Final = -62135596800000

# IEEE 754 decimals in binary integer form: bits of the exponent, bias, digits.
_DECIMALS: Final = {4: (8, 101, 7), 8: (10, 398, 16), 16: (14, 6176, 34)}


def to_neutral(value: object) -> object:
    """The value in Python's own types: text, numbers, bytes, times, lists, dicts with text keys."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Timestamp):
        return _EPOCH + timedelta(milliseconds=value) if _MIN_MS <= value <= _MAX_MS else plain_number(value)
    if isinstance(value, int):
        return plain_number(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Char) and 0xD800 <= ord(value) < 0xE000:
        return "\ufffd"  # half a pair, which no text can hold
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Decimal32 | Decimal64 | Decimal128):
        return _decimal(value)
    if isinstance(value, bytes):
        return value
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, list):
        return [to_neutral(item) for item in value]
    if isinstance(value, Array):
        return [to_neutral(item) for item in value.items]
    if isinstance(value, Map):
        return {str(to_neutral(key)): to_neutral(item) for key, item in value.pairs}
    return to_neutral(value.value) if isinstance(value, Described) else None


def from_neutral(value: object) -> object:
    """The value as AMQP 1.0 can hold it: text, numbers, times and bytes in the types that are meant for them."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        number = plain_number(value)
        if -(1 << 63) <= number < 1 << 63:
            return number
        return ULong(number) if 0 <= number < 1 << 64 else str(number)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, datetime):
        since = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return Timestamp((since - _EPOCH) // timedelta(milliseconds=1))
    if isinstance(value, list | tuple):
        return [from_neutral(item) for item in value]
    if isinstance(value, Mapping):
        return Map([(str(key), from_neutral(item)) for key, item in value.items()])
    return str(value)


def annotations_from(values: Mapping[str, object]) -> Map:
    return Map([(Symbol(name), from_neutral(value)) for name, value in values.items()])


def id_text(value: object) -> str:
    """A message id or correlation id as text; "" for none."""
    if value is None:
        return ""
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(to_neutral(value))


def _decimal(raw: bytes) -> Decimal:
    exponent_bits, bias, digits = _DECIMALS[len(raw)]
    bits = int.from_bytes(raw)
    width = len(raw) * 8
    sign = bits >> (width - 1)
    top = bits >> (width - 6) & 0x1F
    if top >> 1 == 0b1111:
        return Decimal("NaN") if top & 1 else Decimal("-Infinity" if sign else "Infinity")
    if top >> 3 == 0b11:
        low = width - exponent_bits - 3
        exponent = bits >> low & ((1 << exponent_bits) - 1)
        coefficient = bits & ((1 << low) - 1) | 0b100 << low
    else:
        low = width - exponent_bits - 1
        exponent = bits >> low & ((1 << exponent_bits) - 1)
        coefficient = bits & ((1 << low) - 1)
    if coefficient >= 10**digits:
        coefficient = 0  # IEEE 754: what is too large for its digits is zero
    return Decimal((sign, tuple([int(digit) for digit in str(coefficient)]), exponent - bias))
