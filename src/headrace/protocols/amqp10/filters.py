"""Filters of the standard "AMQP Filter Expressions" over properties, as selectors. No termini: addresses.py."""

from decimal import Decimal
from typing import Final

from headrace.errors import ProtocolError
from headrace.protocols.amqp10.frames import INVALID_FIELD
from headrace.selector import Selector, selector_of
from headrace.selector.fields import IN_HEADERS, IN_SECTIONS
from headrace.selector.tree import AllOf, Compare, Condition, Field, Header, IsNull, Like, Number, Text, Truth, Value
from headrace.wire.amqp10 import text_of_id
from headrace.wire.properties import plain_number
from headrace.wire.types import Map, Timestamp

_PROPERTIES: Final = ("amqp:properties-filter", 0x173)
_APPLICATION: Final = ("amqp:application-properties-filter", 0x174)
PROPERTY_FILTERS: Final = (*_PROPERTIES, *_APPLICATION)
_NAMES: Final = IN_SECTIONS["properties"]
_PREFIX: Final = "&p:"
_SUFFIX: Final = "&s:"
_ESCAPE: Final = "!"


def selector_of_properties(descriptor: object, content: object) -> Selector | None:
    """Return the selector for a filter whose pairs must all hold; None for pairs that no message here has.

    A text may begin with `&p:` for a prefix, `&s:` for a suffix, and `&&` for a plain `&`. Raises ProtocolError.
    """
    if not isinstance(content, Map) or not content.pairs:
        raise ProtocolError(INVALID_FIELD, f"the filter {descriptor} must be a map that is not empty")
    conditions: list[Condition] = []
    for key, value in content.pairs:
        if not isinstance(key, str):
            raise ProtocolError(INVALID_FIELD, f"the filter {descriptor} has the key {key!r}, which is no name")
        operand = _operand(key) if descriptor in _PROPERTIES else Header(str(key))
        if operand is None:
            return None
        conditions.append(_condition(operand, value))
    return selector_of(conditions[0] if len(conditions) == 1 else AllOf(tuple(conditions)))


def _operand(key: str) -> Value | None:
    name = _NAMES.get(key.replace("-", "_"))
    if name is None:
        return None
    return Header(name[len(IN_HEADERS) :]) if name.startswith(IN_HEADERS) else Field(name)


def _condition(operand: Value, value: object) -> Condition:
    """Return the condition that a property has this value. Raises ProtocolError."""
    if value is None:
        return IsNull(operand)
    if isinstance(value, bool):
        return Compare("=", operand, Truth(value))
    if isinstance(value, Timestamp) or (isinstance(operand, Header) and isinstance(value, int)):
        return Compare("=", operand, Number(plain_number(value)))
    if isinstance(value, float) and value - value == 0:
        return Compare("=", operand, Number(Decimal(repr(float(value)))))
    if not isinstance(value, str):
        return Compare("=", operand, Text(text_of_id(value)))  # ids may be numbers, UUIDs and bytes
    if value.startswith(_PREFIX):
        return Like(operand, _escaped(value[len(_PREFIX) :]) + "%", _ESCAPE)
    if value.startswith(_SUFFIX):
        return Like(operand, "%" + _escaped(value[len(_SUFFIX) :]), _ESCAPE)
    return Compare("=", operand, Text(value[1:] if value.startswith("&&") else str(value)))


def _escaped(text: str) -> str:
    return "".join([_ESCAPE + letter if letter in ("%", "_", _ESCAPE) else letter for letter in text])
