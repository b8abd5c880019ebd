"""A parsed selector: values and conditions over them. No text, no evaluation, no rendering.

Plain classes, because frozen dataclasses made this module's import take 15 ms instead of 1.4.
"""

from decimal import Decimal
from typing import Final, final

from headrace.selector.fields import EXACT, FIELDS, TEXT

# Kinds of values, known without a row. EXACT and TEXT come from fields.py.
FLOAT: Final = "a calculated number"
TRUTH: Final = "TRUE or FALSE"
HEADER: Final = "a header"
NOTHING: Final = "NULL"
# The kind of a comparison whose result is always unknown.
UNLIKE: Final = "unlike"


@final
class Field:
    __match_args__: Final = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


@final
class Header:
    __match_args__: Final = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


@final
class Text:
    __match_args__: Final = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value


@final
class Number:
    """A number: an int when it is whole, so that most comparisons are between two ints."""

    __match_args__: Final = ("value",)

    def __init__(self, value: int | Decimal) -> None:
        self.value = value


@final
class Truth:
    __match_args__: Final = ("value",)

    def __init__(self, value: bool) -> None:
        self.value = value


@final
class Null:
    pass


@final
class Signed:
    __match_args__: Final = ("sign", "operand", "depth")

    def __init__(self, sign: str, operand: "Value", depth: int) -> None:
        self.sign = sign
        self.operand = operand
        self.depth = depth


@final
class Arithmetic:
    __match_args__: Final = ("operator", "left", "right", "depth")

    def __init__(self, operator: str, left: "Value", right: "Value", depth: int) -> None:
        self.operator = operator
        self.left = left
        self.right = right
        self.depth = depth


Value = Field | Header | Text | Number | Truth | Null | Signed | Arithmetic


@final
class Holds:
    """A header, TRUE, FALSE or NULL in the place of a condition."""

    __match_args__: Final = ("operand",)

    def __init__(self, operand: Header | Truth | Null) -> None:
        self.operand = operand


@final
class Compare:
    __match_args__: Final = ("operator", "left", "right")

    def __init__(self, operator: str, left: Value, right: Value) -> None:
        self.operator = operator
        self.left = left
        self.right = right


@final
class Between:
    __match_args__: Final = ("operand", "low", "high")

    def __init__(self, operand: Value, low: Value, high: Value) -> None:
        self.operand = operand
        self.low = low
        self.high = high


@final
class In:
    __match_args__: Final = ("operand", "items")

    def __init__(self, operand: Value, items: tuple[Value, ...]) -> None:
        self.operand = operand
        self.items = items


@final
class Like:
    __match_args__: Final = ("operand", "pattern", "escape")

    def __init__(self, operand: Value, pattern: str, escape: str | None) -> None:
        self.operand = operand
        self.pattern = pattern
        self.escape = escape


@final
class IsNull:
    __match_args__: Final = ("operand",)

    def __init__(self, operand: Value) -> None:
        self.operand = operand


@final
class Not:
    __match_args__: Final = ("operand",)

    def __init__(self, operand: "Condition") -> None:
        self.operand = operand


@final
class AllOf:
    __match_args__: Final = ("terms",)

    def __init__(self, terms: tuple["Condition", ...]) -> None:
        self.terms = terms


@final
class AnyOf:
    __match_args__: Final = ("terms",)

    def __init__(self, terms: tuple["Condition", ...]) -> None:
        self.terms = terms


Condition = Holds | Compare | Between | In | Like | IsNull | Not | AllOf | AnyOf
Node = Value | Condition


def kind_of(value: Value) -> str:
    """The kind of a value before any row: only a header's type is open."""
    match value:
        case Field(name):
            return FIELDS[name].kind
        case Header():
            return HEADER
        case Text():
            return TEXT
        case Number():
            return EXACT
        case Truth():
            return TRUTH
        case Null():
            return NOTHING
        case Signed() | Arithmetic():
            return FLOAT


def common_kind(left: Value, right: Value) -> str:
    """The kind in which two values compare: TEXT, EXACT, FLOAT, TRUTH, or UNLIKE if they never do."""
    kinds = {kind_of(left), kind_of(right)}
    if NOTHING in kinds:
        return UNLIKE
    if kinds == {HEADER}:
        return TEXT
    kinds.discard(HEADER)
    if kinds == {EXACT, FLOAT}:
        return FLOAT
    return kinds.pop() if len(kinds) == 1 else UNLIKE


def depth_of(value: Value) -> int:
    """Nesting depth of the calculation below this value."""
    return value.depth if isinstance(value, Signed | Arithmetic) else 0
