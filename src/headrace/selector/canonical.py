"""A selector as text again, in one form for all spellings, which parses to the same tree."""

from typing import Final

from headrace.selector.fields import FIELDS
from headrace.selector.parser import KEYWORDS
from headrace.selector.selector import Selector
from headrace.selector.tree import (
    AllOf,
    AnyOf,
    Arithmetic,
    Between,
    Compare,
    Condition,
    Field,
    Header,
    Holds,
    In,
    IsNull,
    Like,
    Not,
    Null,
    Number,
    Signed,
    Text,
    Truth,
    Value,
)

_SUM: Final = 1
_PRODUCT: Final = 2
_POWER: Final = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT}


def canonical_text(selector: Selector) -> str:
    """The selector's text with names, spaces and parentheses in one form: equal texts are equal filters."""
    return _condition(selector.tree)


def _condition(condition: Condition) -> str:
    match condition:
        case AnyOf(terms):
            return " OR ".join([_condition(term) for term in terms])
        case AllOf(terms):
            return " AND ".join([f"({_condition(x)})" if isinstance(x, AnyOf) else _condition(x) for x in terms])
        case Not(Between() | In() | Like() | IsNull() as predicate):
            return _predicate(predicate, "NOT ")
        case Not(AllOf() | AnyOf() as joined):
            return f"NOT ({_condition(joined)})"
        case Not(operand):
            return f"NOT {_condition(operand)}"
        case Compare(operator, left, right):
            return f"{_value(left)} {operator} {_value(right)}"
        case Holds(operand):
            return _value(operand)
        case Between() | In() | Like() | IsNull():
            return _predicate(condition, "")


def _predicate(predicate: Between | In | Like | IsNull, negation: str) -> str:
    operand = _value(predicate.operand)
    match predicate:
        case Between(_, low, high):
            return f"{operand} {negation}BETWEEN {_value(low)} AND {_value(high)}"
        case In(_, items):
            return f"{operand} {negation}IN ({', '.join([_value(item) for item in items])})"
        case Like(_, pattern, escape):
            return f"{operand} {negation}LIKE {_quoted(pattern)}" + (f" ESCAPE {_quoted(escape)}" if escape else "")
        case IsNull():
            return f"{operand} IS {negation}NULL"


def _value(value: Value, power: int = 0) -> str:
    match value:
        case Field(name):
            return name
        case Header(name):
            return _header(name)
        case Text(text):
            return _quoted(text)
        case Number(number):
            return f"{number:f}" if not isinstance(number, int) else str(number)
        case Truth(truth):
            return "TRUE" if truth else "FALSE"
        case Null():
            return "NULL"
        case Signed(sign, operand):
            # A space, so that two signs never become a comment.
            return f"{sign} {_value(operand, _PRODUCT + 1)}"
        case Arithmetic(operator, left, right):
            own = _POWER[operator]
            text = f"{_value(left, own)} {operator} {_value(right, own + 1)}"
            return f"({text})" if own < power else text


def _header(name: str) -> str:
    plain = name.isascii() and name.isidentifier() and name.upper() not in KEYWORDS
    if plain and name not in FIELDS and name != "headers" and not name.startswith("JMS"):
        return name
    return f"headers[{_quoted(name)}]"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
