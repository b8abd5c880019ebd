"""Refused selectors, and the position of each error."""

import pickle
import sys
from collections.abc import Callable

import pytest

from headrace.errors import BadExpression, Refused
from headrace.selector import canonical_text, parse, to_spark_sql
from headrace.selector.evaluate import MappingRow


def refusal(text: str) -> BadExpression:
    with pytest.raises(Refused) as caught:
        parse(text)
    assert isinstance(caught.value, BadExpression)
    return caught.value


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("", 1, "empty"),
        ("   ", 1, "empty"),
        ("p.nothing = 1", 3, "filters read no such name of properties; they read message_id, "),
        ("header. = 1", 9, "header needs a name"),
        ("UTC(1) > 2", 5, "UTC() takes nothing"),
        ("NOW() > 2", 1, "functions other than UTC() are not allowed"),
        ("header.durable = TRUE", 1, "a condition is no value"),
        ("a =", 4, "a value or a condition is expected; here is the end"),
        ("a =   ", 4, "here is the end"),
        ("a = = 1", 5, "here is ="),
        ("a = 1 b = 2", 7, "AND, OR or the end is expected; here is the name 'b'"),
        ("a = 1)", 6, "here is )"),
        ("(a = 1", 7, "the ( at column 1 is not closed"),
        ("a = 'x", 5, "no closing '"),
        ('"a = 1', 1, 'no closing "'),
        ('"" = 1', 1, "empty"),
        ("a = 1 AND", 10, "here is the end"),
        ("AND a = 1", 1, "here is AND"),
        ("a BETWEEN 1", 12, "BETWEEN needs"),
        ("a BETWEEN 1 OR 2", 13, "BETWEEN needs"),
        ("a IN 1", 6, "parentheses"),
        ("a IN ()", 7, "here is )"),
        ("a IN (1", 8, "ends with )"),
        ("a IN (1 2)", 9, "goes on with ,"),
        ("a LIKE b", 8, "pattern in single quotes"),
        ("a LIKE 1", 8, "pattern in single quotes"),
        ("a LIKE 'x' ESCAPE 'yy'", 19, "exactly one character"),
        ("a LIKE 'x' ESCAPE ''", 19, "exactly one character"),
        ("a LIKE 'x!y' ESCAPE '!'", 8, "may only stand before"),
        ("a LIKE 'x!' ESCAPE '!'", 8, "may only stand before"),
        ("a IS 1", 6, "NULL or NOT NULL"),
        ("a IS TRUE", 6, "NULL or NOT NULL"),
        ("a NOT = 1", 7, "BETWEEN, IN or LIKE"),
        ("a NOT IS NULL", 7, "BETWEEN, IN or LIKE"),
        ("priority", 1, "a condition is expected, and this is a number"),
        ("'x'", 1, "a condition is expected, and this is text"),
        ("a = 1 AND topic", 11, "this is text"),
        ("NOT 5", 5, "this is a number"),
        ("a + 1", 1, "this is a calculated number"),
        ("topic + 1 = 2", 1, "+ needs numbers"),
        ("1 + topic = 2", 5, "+ needs numbers"),
        ("-'x' = 2", 2, "- needs numbers"),
        ("a * TRUE = 2", 5, "* needs numbers"),
        ("a < TRUE", 3, "no order"),
        ("a BETWEEN FALSE AND TRUE", 3, "no order"),
        ("a < b < c", 1, "a condition is no value"),
        ("a = b = c", 1, "a condition is no value"),
        ("a = (b = 1)", 8, "a condition is no value"),
        ("a = NOT b", 5, "a condition is no value"),
        ("(a = 1) IS NULL", 1, "a condition is no value"),
        ("(a = 1) + 1 = 2", 1, "a condition is no value"),
        ("f(a) = 1", 1, "functions"),
        ("a = upper('x')", 5, "functions"),
        ("EXISTS (SELECT 1)", 1, "functions"),
        ("a = (SELECT 1)", 13, "is not closed"),
        ("SELECT 1", 8, "here is the number '1'"),
        ("a = 1; DROP TABLE x", 6, "; means nothing"),
        ("a = 1 -- more", 7, "comments"),
        ("a /* b */ = 1", 3, "comments"),
        ("a--1 = 2", 2, "comments"),
        ("CASE WHEN a THEN b END", 6, "here is the name 'WHEN'"),
        ("a::int = 1", 2, ": means nothing"),
        ("a = @b", 5, "@ means nothing"),
        ("a = \x00", 5, "U+0000 means nothing"),
        ("a = '\ud800'", 6, "half a surrogate"),
        ("x.b = 1", 2, "headers['a.b']"),
        ("headers = 1", 9, "headers needs a name"),
        ("headers", 8, "headers needs a name"),
        ("headers. = 1", 8, "headers needs a name"),
        ("headers[1] = 1", 8, "headers needs a name"),
        ("headers['a' = 1", 13, "ends with ]"),
        ("JMSReplyTo = 'x'", 1, "its names are JMSCorrelationID"),
        ("JMSPriorty > 3", 1, "its names are"),
        ("1e20 = a", 1, "does not fit"),
        ("a = 1e-19", 5, "does not fit"),
        ("a = 0.1234567890123456789", 5, "does not fit"),
        ("a = 1e99999999999999999999", 5, "does not fit"),
        ("a = 0x56BC75E2D63100000", 5, "does not fit"),
        ("a = 12abc", 7, "cannot follow the number 12"),
        ("a = 1L", 6, "cannot follow"),
        ("a = 1.2.3", 8, "cannot follow"),
        ("a = 0x", 6, "cannot follow"),
        ("a <=> 1", 5, "here is >"),
        ("a ^ 2 = 1", 3, "^ means nothing"),
        ("a || 'x' = 'y'", 3, "| means nothing"),
    ],
)
def test_a_bad_expression_is_refused_where_it_goes_wrong(text: str, column: int, reason: str) -> None:
    error = refusal(text)

    assert reason in error.reason
    assert error.column == column


def test_the_message_shows_the_place_with_a_caret() -> None:
    assert str(refusal("region == 'eu'")) == (
        "a value or a condition is expected; here is = (column 9)\n  region == 'eu'\n          ^"
    )


def test_the_message_shows_the_neighbourhood_of_a_place_far_inside() -> None:
    error = refusal("a = 1 AND\n" * 1000 + "%")

    _, shown, caret = str(error).split("\n")
    assert shown[len(caret) - 1] == "%"
    assert len(shown) < 80


def test_an_error_travels_to_another_process() -> None:
    error = refusal("a =")

    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_keywords_in_foreign_letters_are_names() -> None:
    assert parse("\u0131N = 'x'").headers == {"\u0131N"}  # a dotless i, whose capital is I


def test_an_expression_of_the_longest_length_is_read_and_a_longer_one_refused() -> None:
    text = " OR ".join(["a = 1"] * 7280)
    text += " " * (65536 - len(text))

    assert not parse(text).matches(MappingRow())
    assert refusal(text + " ").column == 65537


DEEPEST: dict[str, Callable[[int], str]] = {
    "parentheses": lambda n: "(" * n + "a = 1" + ")" * n,
    "negations": lambda n: "NOT " * n + "a = 1",
    "signs": lambda n: "- " * n + "a = 1",
    "sums": lambda n: " + ".join(["a"] * (n + 1)) + " = 1",
    "right sums": lambda n: "a + (" * (n // 2) + "a" + ")" * (n // 2) + " = 1",
    "conditions": lambda n: "a = 1 OR b = 2 AND (" * (n // 3) + "a = 1" + ")" * (n // 3),
    "lists": lambda n: "a IN (1 + 2 * (" * (n // 3) + "a = 1" + "))" * (n // 3),
}


@pytest.mark.parametrize("size", [150, 195, 205, 1000])
@pytest.mark.parametrize("name", DEEPEST)
def test_deep_nesting_is_read_or_refused_and_never_overflows_the_stack(name: str, size: int) -> None:
    text = DEEPEST[name](size)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(_frames() + 500)
    refused = ""
    try:
        selector = parse(text)
        assert not selector.matches(MappingRow())
        assert parse(canonical_text(selector)).text == canonical_text(parse(canonical_text(selector)))
        assert to_spark_sql(selector)
    except BadExpression as error:
        refused = error.reason
    finally:
        sys.setrecursionlimit(limit)
    assert bool(refused) is (size > 200 or name == "lists")
    assert "deeper than 200" in refused or "no value" in refused or not refused


def _frames() -> int:
    frame, count = sys._getframe(), 0
    while frame.f_back is not None:
        frame, count = frame.f_back, count + 1
    return count
