"""A tree as Spark SQL text with the broker's meaning. It needs no Spark.

Every reading is spelled out, so that no session setting (ANSI mode, escapes, reserved words) changes it.
docs/design/selectors.md defines each form and the columns of the frame.
"""

from decimal import Decimal
from typing import Final

from headrace.selector import tree
from headrace.selector.fields import DIGITS_AFTER_POINT, EXACT, FIELDS, NUMBER_TEXT, TEXT
from headrace.selector.like import regex_of, shape_of
from headrace.selector.selector import Selector

_UNKNOWN: Final = "CAST(NULL AS BOOLEAN)"
_LARGEST: Final = "1.7976931348623157E308D"
_DECIMAL: Final = f"DECIMAL(38,{DIGITS_AFTER_POINT})"


def to_spark_sql(selector: Selector) -> str:
    """The selector as a Spark SQL condition: TRUE for exactly the rows that `selector.matches`."""
    return _condition(selector.tree)


def _condition(condition: tree.Condition) -> str:
    match condition:
        case tree.Not(operand):
            return f"(NOT {_condition(operand)})"
        case tree.AllOf(terms):
            return f"({' AND '.join([_condition(term) for term in terms])})"
        case tree.AnyOf(terms):
            return f"({' OR '.join([_condition(term) for term in terms])})"
        case tree.Compare(operator, left, right):
            return _compare(operator, left, right)
        case tree.Between(operand, low, high):
            return f"({_compare('>=', operand, low)} AND {_compare('<=', operand, high)})"
        case tree.In(operand, items):
            return _is_in(operand, items)
        case tree.Like(operand, pattern, escape):
            return _like(operand, pattern, escape)
        case tree.IsNull(operand):
            kind = tree.kind_of(operand)
            return f"({_read(operand, TEXT if kind == tree.HEADER else kind)} IS NULL)"
        case tree.Holds(tree.Null()):
            return _UNKNOWN
        case tree.Holds(operand):
            return _read(operand, tree.TRUTH)


def _compare(operator: str, left: tree.Value, right: tree.Value) -> str:
    kind = tree.common_kind(left, right)
    return _UNKNOWN if kind == tree.UNLIKE else f"({_read(left, kind)} {operator} {_read(right, kind)})"


def _is_in(operand: tree.Value, items: tuple[tree.Value, ...]) -> str:
    kinds: dict[str, list[tree.Value]] = {}
    for item in items:
        kinds.setdefault(tree.common_kind(operand, item), []).append(item)
    parts = [
        _UNKNOWN
        if kind == tree.UNLIKE
        else f"({_read(operand, kind)} IN ({', '.join([_read(x, kind) for x in alike])}))"
        for kind, alike in kinds.items()
    ]
    return parts[0] if len(parts) == 1 else f"({' OR '.join(parts)})"


def _like(operand: tree.Value, pattern: str, escape: str | None) -> str:
    if tree.kind_of(operand) not in (TEXT, tree.HEADER):
        return _UNKNOWN
    value = _read(operand, TEXT)
    shape = shape_of(pattern, escape)
    if shape is None:
        # Not LIKE: Spark quotes a pattern by UTF-16 units, and then no character beyond U+FFFF matches.
        return f"({value} RLIKE {_string(regex_of(pattern, escape))})"
    wanted = _string(shape.text)
    if shape.open_start and shape.open_end:
        return f"contains({value}, {wanted})"
    if shape.open_start:
        return f"endswith({value}, {wanted})"
    if shape.open_end:
        return f"startswith({value}, {wanted})"
    return f"({value} = {wanted})"


def _read(value: tree.Value, kind: str) -> str:
    """The value as it is compared: the counterpart of `getter` in evaluate.py."""
    if kind == tree.FLOAT:
        result = _double(value)
        if isinstance(value, tree.Signed | tree.Arithmetic):
            return f"CASE WHEN abs({result}) <= {_LARGEST} THEN {result} END"
        return result
    match value:
        case tree.Header(name):
            return _header(f"headers[{_string(name)}]", kind)
        case tree.Field(name):
            return FIELDS[name].spark
        case tree.Text(text):
            return _string(text)
        case tree.Number(number):
            return _exact(number)
        case tree.Truth(truth):
            return "TRUE" if truth else "FALSE"
    return "NULL"


def _header(text: str, kind: str) -> str:
    if kind == EXACT:
        return f"CASE WHEN {text} RLIKE '{NUMBER_TEXT}' THEN TRY_CAST({text} AS {_DECIMAL}) END"
    if kind == tree.TRUTH:
        return f"CASE {text} WHEN 'true' THEN TRUE WHEN 'false' THEN FALSE END"
    return text


def _double(value: tree.Value) -> str:
    match value:
        case tree.Arithmetic("/", left, right):
            return f"try_divide({_double(left)}, {_double(right)})"
        case tree.Arithmetic("%", left, right):
            divisor = _double(right)
            return f"CASE WHEN {divisor} <> 0 THEN {_double(left)} % {divisor} END"
        case tree.Arithmetic(operator, left, right):
            return f"({_double(left)} {operator} {_double(right)})"
        case tree.Signed("-", operand):
            return f"(- {_double(operand)})"
        case tree.Signed(_, operand):
            return _double(operand)
        case tree.Number(number):
            return f"{float(number)!r}D" if number >= 0 else f"({float(number)!r}D)"
    return f"CAST({_read(value, EXACT)} AS DOUBLE)"


def _exact(number: int | Decimal) -> str:
    # Spark reads whole numbers as INT, BIGINT or DECIMAL by their size; all of them compare exactly.
    digits = str(number) if isinstance(number, int) else f"{number:f}BD"
    return digits if number >= 0 else f"({digits})"


def _string(text: str) -> str:
    """A string literal that reads the same under every parser setting of Spark."""
    # Spark has two rules for a backslash or a doubled quote, and `${` starts a variable even inside a literal.
    if text.isprintable() and not any(letter in text for letter in "'\\$"):
        return f"'{text}'"
    return f"CAST(X'{text.encode().hex().upper()}' AS STRING)"
