"""A value to a function that reads it from a row, as the kind it is compared as. None is unknown."""

import operator
from collections.abc import Callable
from decimal import Decimal
from typing import Final

from headrace.selector.fields import EXACT, FIELDS, TEXT
from headrace.selector.row import Row
from headrace.selector.tree import (
    FLOAT,
    TRUTH,
    Arithmetic,
    Field,
    Header,
    Null,
    Number,
    Signed,
    Text,
    Truth,
    Value,
)
from headrace.selector.values import header_number, header_text, header_truth

Comparable = str | int | float | Decimal
Get = Callable[[Row], Comparable | None]
Calculate = Callable[[Row], float | None]

LARGEST_FLOAT: Final = 1.7976931348623157e308


def constant_of(literal: Text | Number | Truth, kind: str) -> Comparable:
    """The literal's value as it is compared."""
    return float(literal.value) if kind == FLOAT else literal.value


def getter(value: Value, kind: str) -> Get:
    """A function that reads the value from a row as TEXT, EXACT, FLOAT or TRUTH."""
    if kind == TEXT:
        return text_getter(value)
    if kind == EXACT:
        return _exact_getter(value)
    if kind == TRUTH:
        return _truth_getter(value)
    calculate = _calculation(value)

    def finite(row: Row) -> float | None:
        result = calculate(row)
        # Not a number is in no range either.
        return result if result is not None and -LARGEST_FLOAT <= result <= LARGEST_FLOAT else None

    return finite


def text_getter(value: Value) -> Callable[[Row], str | None]:
    """A function that reads the value from a row as text."""
    match value:
        case Header(name):
            return lambda row: header_text(row.header(name))
        case Field(name):
            column, convert = FIELDS[name].column, FIELDS[name].convert

            def read(row: Row) -> str | None:
                found = row.field(column)
                if convert is not None:
                    found = convert(found) if type(found) is int else None
                return found if type(found) is str else None

            return read
        case Text(text):
            return lambda row: text
    return _nothing


def _exact_getter(value: Value) -> Callable[[Row], int | Decimal | None]:
    match value:
        case Header(name):
            return lambda row: header_number(row.header(name))
        case Field(name):
            column, convert = FIELDS[name].column, FIELDS[name].convert

            def read(row: Row) -> int | None:
                found = row.field(column)
                if convert is not None and type(found) is int:
                    found = convert(found)
                return found if type(found) is int else None

            return read
        case Number(number):
            return lambda row: number
    return _nothing


def _truth_getter(value: Value) -> Callable[[Row], bool | None]:
    match value:
        case Header(name):
            return lambda row: header_truth(row.header(name))
        case Truth(truth):
            return lambda row: truth
    return _nothing


def _nothing(row: Row) -> None:
    return None


# Calculations are in IEEE doubles, as Java's are: infinities and NaN arise and pass through alike in both.


def _divide(dividend: float, divisor: float) -> float | None:
    return None if divisor == 0 else dividend / divisor


_CALCULATE: Final[dict[str, Callable[[float, float], float | None]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
}


def _calculation(value: Value) -> Calculate:
    match value:
        case Arithmetic(sign, left, right):
            first, second, combine = _calculation(left), _calculation(right), _CALCULATE[sign]

            def calculate(row: Row) -> float | None:
                one = first(row)
                if one is None:
                    return None
                other = second(row)
                return None if other is None else combine(one, other)

            return calculate
        case Signed("-", operand):
            inner = _calculation(operand)

            def negate(row: Row) -> float | None:
                result = inner(row)
                return None if result is None else -result

            return negate
        case Signed(_, operand):
            return _calculation(operand)
        case Number(number):
            constant = float(number)
            return lambda row: constant
        case Null():
            return _nothing
    exact = _exact_getter(value)

    def read(row: Row) -> float | None:
        found = exact(row)
        try:
            return None if found is None else float(found)
        except OverflowError:  # an integer no column can hold
            return None

    return read
