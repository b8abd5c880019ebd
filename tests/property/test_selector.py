"""Laws of selectors: the compiled test agrees with a naive evaluator; no text breaks the parser."""

import math
import re
from decimal import Decimal
from fractions import Fraction

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.errors import BadExpression
from headrace.selector import MappingRow, canonical_text, header_text, parse, to_spark_sql

# A generated expression is a tuple: its form, then its parts.
Expression = tuple[object, ...]
Fields = dict[str, object]
Headers = dict[str, object]

TEXT_FIELDS = ["topic", "routing_key"]
NUMBER_FIELDS = ["priority", "offset"]
HEADERS = ["a", "b", "x-key", "topic"]
texts = st.sampled_from(
    ["", "a", "b", "ab", "aab", "a%", "a_b", "5", "5.0", "true", "it's", "\\", "\U0001f600", "a\nb"]
)
numbers = st.one_of(
    st.integers(-6, 6),
    st.sampled_from([0, 2**53 + 1, 2**63 - 1, 10**20 - 1]),
    st.decimals(-3, 3, allow_nan=False, places=2),
)


# Generation. Results of `number` and `value` are always allowed where they are used.


def number_values() -> st.SearchStrategy[Expression]:
    leaves = st.one_of(
        st.tuples(st.just("field"), st.sampled_from(NUMBER_FIELDS)),
        st.tuples(st.just("header"), st.sampled_from(HEADERS)),
        st.tuples(st.just("number"), numbers),
        st.just(("null",)),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(st.just("calculate"), st.sampled_from("+-*/%"), inner, inner),
            st.tuples(st.just("sign"), st.sampled_from("+-"), inner),
        ),
        max_leaves=4,
    )


ordered_values = st.one_of(
    number_values(),
    st.tuples(st.just("field"), st.sampled_from(TEXT_FIELDS)),
    st.tuples(st.just("text"), texts),
)
values = st.one_of(ordered_values, st.tuples(st.just("truth"), st.booleans()))
atoms = st.one_of(
    st.tuples(st.just("compare"), st.sampled_from(["<", "<=", ">", ">="]), ordered_values, ordered_values),
    st.tuples(st.just("compare"), st.sampled_from(["=", "<>"]), values, values),
    st.tuples(st.just("between"), st.booleans(), ordered_values, ordered_values, ordered_values),
    st.tuples(st.just("in"), st.booleans(), values, st.lists(values, min_size=1, max_size=4)),
    st.tuples(st.just("like"), st.booleans(), values, st.text("ab%_!", max_size=5), st.booleans()),
    st.tuples(st.just("is null"), st.booleans(), values),
    st.tuples(st.just("holds"), st.tuples(st.just("header"), st.sampled_from(HEADERS))),
    st.tuples(st.just("holds"), st.one_of(st.just(("null",)), st.tuples(st.just("truth"), st.booleans()))),
)
conditions: st.SearchStrategy[Expression] = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.just("and"), st.lists(inner, min_size=2, max_size=4)),
        st.tuples(st.just("or"), st.lists(inner, min_size=2, max_size=4)),
    ),
    max_leaves=6,
)
anything = st.one_of(
    st.none(),
    texts,
    st.integers(),
    st.floats(),
    st.booleans(),
    st.decimals(),
    st.binary(max_size=3),
    st.just([1]),
)
header_values = st.one_of(anything, numbers, numbers.map(str), st.from_regex(r"[+-]?[0-9.]{0,4}(e-?[0-9]{1,2})?"))
fields: st.SearchStrategy[Fields] = st.fixed_dictionaries(
    {
        **dict.fromkeys(TEXT_FIELDS, st.one_of(texts, anything)),
        **dict.fromkeys(NUMBER_FIELDS, st.one_of(st.integers(-6, 6), st.just(2**53 + 1), anything)),
    }
)
headers: st.SearchStrategy[Headers] = st.dictionaries(st.sampled_from(HEADERS), header_values)


# Spelling: every compound in parentheses.


def spelled(expression: object) -> str:
    assert isinstance(expression, tuple)
    match expression:
        case ("field", name):
            return str(name)
        case ("header", name):
            return f"headers['{name}']"
        case ("text", text):
            return quoted(text)
        case ("number", number):
            return f"{number:f}" if isinstance(number, Decimal) else str(number)
        case ("truth", truth):
            return str(truth)
        case ("null",):
            return "NULL"
        case ("calculate", operator, left, right):
            return f"({spelled(left)} {operator} {spelled(right)})"
        case ("sign", sign, operand):
            return f"({sign} {spelled(operand)})"
        case ("compare", operator, left, right):
            return f"({spelled(left)} {operator} {spelled(right)})"
        case ("between", negated, operand, low, high):
            return f"({spelled(operand)} {no(negated)}BETWEEN {spelled(low)} AND {spelled(high)})"
        case ("in", negated, operand, list() as items):
            return f"({spelled(operand)} {no(negated)}IN ({', '.join(map(spelled, items))}))"
        case ("like", negated, operand, pattern, escaped):
            spelling = f"{quoted(mended(pattern))} ESCAPE '!'" if escaped else quoted(pattern)
            return f"({spelled(operand)} {no(negated)}LIKE {spelling})"
        case ("is null", negated, operand):
            return f"({spelled(operand)} IS {no(negated)}NULL)"
        case ("holds", operand):
            return spelled(operand)
        case ("not", operand):
            return f"(NOT {spelled(operand)})"
        case (("and" | "or") as word, list() as terms):
            return f"({f' {word} '.join(map(spelled, terms))})"
    raise AssertionError(expression)


def no(negated: object) -> str:
    return "NOT " if negated else ""


def quoted(text: object) -> str:
    return "'" + str(text).replace("'", "''") + "'"


def mended(pattern: object) -> str:
    """The pattern without escapes that escape nothing."""
    return re.sub(r"!(?![%_])", "", re.sub(r"!!", "!%", str(pattern)))


# The naive evaluator: values carry their kind, conditions are True, False or None.


def number_in(text: str | None) -> Fraction | None:
    found = re.fullmatch(r"([+-]?)([0-9]{1,20})(?:\.([0-9]{1,40}))?(?:[eE]([+-]?[0-9]{1,2}))?", text or "")
    if found is None:
        return None
    sign, whole, part, power = found.groups()
    exponent = int(power or 0) - len(part or "")
    digits = (whole + (part or "")).lstrip("0") or "0"
    size = Fraction(int(digits)) * Fraction(10) ** exponent
    rounded = Fraction(math.floor(size * 10**18 + Fraction(1, 2)), 10**18)
    if len(digits) + exponent > 38 or rounded >= 10**20:
        return None
    return -rounded if sign == "-" else rounded


def value_of(expression: object, row: tuple[Fields, Headers]) -> tuple[str, object] | None:
    """The kind and the value, or None. A header is of kind H until it meets something else."""
    assert isinstance(expression, tuple)
    match expression:
        case ("field", str() as name):
            found = row[0][name]
            if name in TEXT_FIELDS:
                return ("T", found if type(found) is str else None)
            return ("N", Fraction(found) if type(found) is int else None)
        case ("header", str() as name):
            return ("H", header_text(row[1].get(name)))
        case ("text", text):
            return ("T", text)
        case ("number", int() | Decimal() as number):
            return ("N", Fraction(number))
        case ("truth", truth):
            return ("B", truth)
        case ("sign" | "calculate", *_):
            result = calculated(expression, row)
            return ("F", result if result is not None and math.isfinite(result) else None)
    return None


def calculated(expression: object, row: tuple[Fields, Headers]) -> float | None:
    assert isinstance(expression, tuple)
    match expression:
        case ("calculate", operator, left, right):
            one, other = calculated(left, row), calculated(right, row)
            if one is None or other is None:
                return None
            if operator == "/":
                return one / other if other else None
            if operator == "%":
                return math.fmod(one, other) if other and not math.isinf(one) else None
            return one + other if operator == "+" else one - other if operator == "-" else one * other
        case ("sign", sign, operand):
            result = calculated(operand, row)
            return result if result is None or sign == "+" else -result
    found = value_of(expression, row)
    number = None if found is None else read(found, "N")
    try:
        return None if number is None else float(number)  # type: ignore[arg-type]
    except OverflowError:
        return None


def read(value: tuple[str, object], kind: str) -> object:
    own, found = value
    if found is None:
        return None
    if own == "H" and kind in "NF":
        found = number_in(str(found))
    elif own == "H" and kind == "B":
        found = {"true": True, "false": False}.get(str(found))
    if kind == "F" and isinstance(found, Fraction):
        try:
            return float(found)
        except OverflowError:
            return None
    return found


def compared(operator: object, left: object, right: object, row: tuple[Fields, Headers]) -> bool | None:
    first, second = value_of(left, row), value_of(right, row)
    if first is None or second is None:
        return None
    kinds = {first[0], second[0]} - {"H"}
    kind = "T" if not kinds else "F" if kinds == {"N", "F"} else kinds.pop() if len(kinds) == 1 else ""
    one, other = (read(first, kind), read(second, kind)) if kind else (None, None)
    if one is None or other is None:
        return None
    equal = one == other
    below: bool = one < other  # type: ignore[operator]
    return {"=": equal, "<>": not equal, "<": below, "<=": below or equal, ">": not (below or equal)}.get(
        str(operator), not below
    )


def like(text: str, pattern: list[str]) -> bool:
    """The pattern is a list of letters, with a backslash before those that stand for themselves."""
    if not pattern:
        return not text
    first, rest = pattern[0], pattern[1:]
    if first == "%":
        return any(like(text[skip:], rest) for skip in range(len(text) + 1))
    return bool(text) and (first == "_" or first[-1] == text[0]) and like(text[1:], rest)


def both(terms: list[bool | None]) -> bool | None:
    return False if False in terms else None if None in terms else True


def negate(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


def holds(expression: object, row: tuple[Fields, Headers]) -> bool | None:
    assert isinstance(expression, tuple)
    answer: bool | None
    match expression:
        case ("compare", operator, left, right):
            return compared(operator, left, right, row)
        case ("between", negated, operand, low, high):
            answer = both([compared(">=", operand, low, row), compared("<=", operand, high, row)])
        case ("in", negated, operand, list() as items):
            answer = negate(both([compared("<>", operand, item, row) for item in items]))
        case ("like", negated, operand, pattern, escaped):
            found = value_of(operand, row)
            letters = re.findall("![%_]|.", mended(pattern)) if escaped else list(str(pattern))
            text = found[1] if found is not None and found[0] in "TH" else None
            answer = None if text is None else like(str(text), letters)
        case ("is null", negated, operand):
            found = value_of(operand, row)
            answer = found is None or found[1] is None
        case ("holds", operand):
            found = value_of(operand, row)
            truth = None if found is None else read(found, "B")
            return truth if isinstance(truth, bool) else None
        case ("not", operand):
            return negate(holds(operand, row))
        case ("and", list() as terms):
            return both([holds(term, row) for term in terms])
        case ("or", list() as terms):
            return negate(both([negate(holds(term, row)) for term in terms]))
        case _:
            raise AssertionError(expression)
    return negate(answer) if negated else answer


# The laws.


@settings(max_examples=6 * settings().max_examples)
@given(conditions, fields, headers)
def test_a_selector_matches_exactly_when_a_naive_evaluator_says_true(
    condition: Expression, some_fields: Fields, some_headers: Headers
) -> None:
    row = MappingRow(some_fields, some_headers)  # type: ignore[arg-type]
    expected = holds(condition, (some_fields, some_headers))

    assert parse(spelled(condition)).matches(row) is (expected is True)
    assert parse(f"NOT {spelled(condition)}").matches(row) is (expected is False)


@settings(max_examples=3 * settings().max_examples)
@given(conditions, fields, headers)
def test_canonical_text_has_the_same_meaning(condition: Expression, some_fields: Fields, some_headers: Headers) -> None:
    selector = parse(spelled(condition))
    again = parse(canonical_text(selector))
    row = MappingRow(some_fields, some_headers)  # type: ignore[arg-type]

    assert again.matches(row) == selector.matches(row)
    assert canonical_text(again) == again.text
    assert (again.fields, again.headers) == (selector.fields, selector.headers)
    assert to_spark_sql(again) == to_spark_sql(selector)


WORDS = "a topic headers 5 1.5 0x 'x' \"y\" ( ) , . [ ] + - * / = <> < AND OR NOT IN LIKE ESCAPE BETWEEN IS NULL"


@settings(max_examples=15 * settings().max_examples)
@given(
    st.one_of(
        st.text(max_size=40),
        st.text("a1'\"().e-x[] ", max_size=20),
        st.lists(st.sampled_from(WORDS.split()), max_size=12).map(" ".join),
    )
)
@example("headers")
@example("headers[")
@example("a = 1e")
@example("0x1g = a")
@example("'\ud800' = a")
def test_any_text_is_a_selector_or_refused_at_a_column_of_it(text: str) -> None:
    try:
        selector = parse(text)
    except BadExpression as error:
        assert 1 <= error.column <= len(text) + 1  # noqa: PT017 - either outcome is right
        assert str(error).split("\n")[2].endswith("^")  # noqa: PT017
    else:
        assert isinstance(selector.matches(MappingRow()), bool)
        assert parse(canonical_text(selector)).text == canonical_text(selector)
        to_spark_sql(selector).encode()
