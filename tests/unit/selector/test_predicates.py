"""Selectors, clause by clause: the answer of each predicate for TRUE, FALSE and unknown."""

import pickle
from decimal import Decimal

import pytest

from headrace.selector import HeaderValue, MappingRow, Row, parse, parse_plain

ROW = MappingRow(
    {
        "topic": "orders/eu/1",
        "priority": 5,
        "timestamp": 1_700_000_000_123_456,
        "sent_at": 1_700_000_000_000_000,
        "now": 1_700_000_001_000_000,
        "message_id": "m-1",
        "correlation_id": "c-1",
        "message_type": "invoice",
        "delivery_mode": 2,
    },
    {
        "region": "eu",
        "count": "10",
        "native": 10,
        "price": "0.10",
        "ratio": 0.1,
        "exact": Decimal("0.1"),
        "yes": True,
        "no": "false",
        "bytes": b"raw",
        "broken": b"\xff",
        "nested": ["a"],  # type: ignore[dict-item]
        "empty": "",
        "x-key": "k",
        "topic": "header",
        "it's": "quoted",
    },
)

TRUE, FALSE, UNKNOWN = "TRUE", "FALSE", "unknown"


def answer(text: str, row: Row = ROW) -> str:
    """The truth of an expression: TRUE matches, FALSE matches when negated, unknown never."""
    if parse(text).matches(row):
        assert not parse(f"NOT ({text})").matches(row)
        return TRUE
    return FALSE if parse(f"NOT ({text})").matches(row) else UNKNOWN


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("priority = 5", TRUE),
        ("priority % 3 = 2", TRUE),
        ("-priority % 3 = -2", TRUE),
        ("count % 4 = 1", FALSE),
        ("priority % 0 = 0", UNKNOWN),
        ("p.message_id = 'm-1' AND properties.subject = 'invoice' AND a.region = 'eu'", TRUE),
        ("application_properties.topic = 'header'", TRUE),
        ("header.priority = 5 AND header.durable", TRUE),
        ("NOT header.durable", FALSE),
        ("h.priority > 5", FALSE),
        ("properties.creation_time = 1700000000000 AND properties.creation_time < utc()", TRUE),
        ("UTC() - properties.creation_time > 1000", FALSE),
        ("properties.absolute_expiry_time IS NULL", TRUE),
        ("properties.group_id IS NULL", TRUE),
        ("headers.p = 1", UNKNOWN),
        ("priority = 5.0", TRUE),
        ("priority = 0x5", TRUE),
        ("priority = 50e-1", TRUE),
        ("priority <> 5", FALSE),
        ("priority != 4", TRUE),
        ("priority < 5", FALSE),
        ("priority <= 5", TRUE),
        ("priority > 4.99", TRUE),
        ("priority >= 6", FALSE),
        ("5 = priority", TRUE),
        ("6 > priority", TRUE),
        ("4 >= priority", FALSE),
        ("topic = 'orders/eu/1'", TRUE),
        ("topic < 'orders/fr'", TRUE),
        ("topic > 'Z'", TRUE),
        ("'it''s' = 'it''s'", TRUE),
        ("exchange = 'x'", UNKNOWN),
        ("exchange = exchange", UNKNOWN),
        ("priority = NULL", UNKNOWN),
        ("NULL = NULL", UNKNOWN),
        ("NULL <> NULL", UNKNOWN),
        ("1 < 2", TRUE),
        ("TRUE = TRUE", TRUE),
        ("TRUE = FALSE", FALSE),
        ("TRUE <> FALSE", TRUE),
    ],
)
def test_comparisons(text: str, expected: str) -> None:
    assert answer(text) == expected


@pytest.mark.parametrize(
    "text",
    ["topic = 5", "topic <> 5", "priority = '5'", "'5' = 5", "TRUE = 'true'", "TRUE = 1", "topic > priority"],
)
def test_unlike_types_never_compare(text: str) -> None:
    assert answer(text) == UNKNOWN


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("region = 'eu'", TRUE),
        ("headers.region = 'eu'", TRUE),
        ("headers['region'] = 'eu'", TRUE),
        ("\"region\" = 'eu'", TRUE),
        ("\"x-key\" = 'k'", TRUE),
        ("headers.\"x-key\" = 'k'", TRUE),
        ("headers['it''s'] = 'quoted'", TRUE),
        ("headers['topic'] = 'header'", TRUE),
        ("Topic = 'orders/eu/1'", UNKNOWN),
        ("count = 10", TRUE),
        ("count = '10'", TRUE),
        ("count = '10.0'", FALSE),
        ("count = 10.0", TRUE),
        ("count > 9", TRUE),
        ("count > '9'", FALSE),
        ("native = 10", TRUE),
        ("native = '10'", TRUE),
        ("price = 0.1", TRUE),
        ("ratio = 0.1", TRUE),
        ("exact = 0.1", TRUE),
        ("region = 5", UNKNOWN),
        ("region <> 5", UNKNOWN),
        ("empty = ''", TRUE),
        ("empty = 0", UNKNOWN),
        ("bytes = 'raw'", TRUE),
        ("broken = 'raw'", UNKNOWN),
        ("nested IS NULL", TRUE),
        ("missing = 'x'", UNKNOWN),
        ("count = native", TRUE),
        ("count < region", TRUE),
        ("count = priority", FALSE),
        ("native > priority", TRUE),
        ("yes = TRUE", TRUE),
        ("yes = 'true'", TRUE),
        ("yes = 1", UNKNOWN),
        ("no = FALSE", TRUE),
        ("no <> FALSE", FALSE),
        ("region = TRUE", UNKNOWN),
    ],
)
def test_a_header_is_its_text_and_is_read_as_what_it_is_compared_with(text: str, expected: str) -> None:
    assert answer(text) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("5", TRUE),
        ("+5", TRUE),
        ("5.000", TRUE),
        ("0.5e1", TRUE),
        ("500E-2", TRUE),
        ("00005", TRUE),
        ("5.0000000000000000004", TRUE),  # rounded to 18 digits
        ("-5", FALSE),
        ("5.1", FALSE),
        ("99999999999999999999", FALSE),
        ("100000000000000000000", UNKNOWN),
        ("1e20", UNKNOWN),
        ("0e50", UNKNOWN),
        ("1e100", UNKNOWN),
        (" 5", UNKNOWN),
        ("5\n", UNKNOWN),
        ("5.", UNKNOWN),
        (".5", UNKNOWN),
        ("0x5", UNKNOWN),
        ("5L", UNKNOWN),
        ("1_0", UNKNOWN),
        ("\u0665", UNKNOWN),
        ("NaN", UNKNOWN),
        ("Infinity", UNKNOWN),
        ("", UNKNOWN),
        (5.0, TRUE),
        (float("nan"), UNKNOWN),
        (float("inf"), UNKNOWN),
        (Decimal("5.0"), TRUE),
        (Decimal("NaN"), UNKNOWN),
        (Decimal("sNaN"), UNKNOWN),
        (10**20, UNKNOWN),
        (b"5", TRUE),
        (True, UNKNOWN),
    ],
)
def test_which_headers_are_numbers(value: HeaderValue, expected: str) -> None:
    assert answer("n = 5", MappingRow({}, {"n": value})) == expected


def test_an_integer_too_long_to_write_counts_as_absent() -> None:
    row = MappingRow({"offset": 10**5000}, {"n": 10**5000})

    assert answer("n = 5", row) == UNKNOWN
    assert answer("n IS NULL", row) == TRUE
    assert answer("offset + 1 > 5", row) == UNKNOWN


def test_sixty_four_bit_identifiers_compare_exactly() -> None:
    row = MappingRow({"offset": 2**63 - 1}, {"id": "9007199254740993", "wide": 2**64 - 1})

    assert answer("id = 9007199254740993", row) == TRUE
    assert answer("id = 9007199254740992", row) == FALSE
    assert answer("wide = 18446744073709551615", row) == TRUE
    assert answer("offset = 9223372036854775806", row) == FALSE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("priority + 1 = 6", TRUE),
        ("priority - 1 - 1 = 3", TRUE),
        ("priority * 2 + 1 = 11", TRUE),
        ("1 + priority * 2 = 11", TRUE),
        ("(1 + priority) * 2 = 12", TRUE),
        ("priority / 2 = 2.5", TRUE),
        ("12 / 2 / 3 = 2", TRUE),
        ("12 / (2 / 3) = 18", TRUE),
        ("-priority = -5", TRUE),
        ("+priority = 5", TRUE),
        ("- -priority = 5", TRUE),
        ("-priority + 10 = 5", TRUE),
        ("count + 1 = 11", TRUE),
        ("+count > +native - 1", TRUE),
        ("region + 1 = 2", UNKNOWN),
        ("missing + 1 = 2", UNKNOWN),
        ("missing + 1 IS NULL", TRUE),
        ("NULL + 1 = 2", UNKNOWN),
        ("priority / 0 = 1", UNKNOWN),
        ("priority / 0 IS NULL", TRUE),
        ("priority / (count - 10) > 0", UNKNOWN),
        ("0 / 0 = 0", UNKNOWN),
        ("1 / (1 / 0) = 0", UNKNOWN),
        ("1 / (1 / (priority - 5)) IS NULL", TRUE),
        ("0.1 + 0.2 = 0.3", FALSE),
        ("1 + 1 = topic", UNKNOWN),
    ],
)
def test_arithmetic(text: str, expected: str) -> None:
    assert answer(text) == expected


def test_a_result_that_is_not_finite_is_unknown() -> None:
    huge = " * ".join(["1e19"] * 17)

    assert answer(f"{huge} > 1") == UNKNOWN
    assert answer(f"{huge} - {huge} = 0") == UNKNOWN
    assert answer(f"1 / ({huge}) = 0") == TRUE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("priority BETWEEN 1 AND 5", TRUE),
        ("priority BETWEEN 5 AND 9", TRUE),
        ("priority BETWEEN 6 AND 9", FALSE),
        ("priority BETWEEN 9 AND 1", FALSE),
        ("priority NOT BETWEEN 6 AND 9", TRUE),
        ("priority BETWEEN 1 AND 5 AND region = 'eu'", TRUE),
        ("priority BETWEEN 2 + 2 AND 3 * 2", TRUE),
        ("topic BETWEEN 'a' AND 'p'", TRUE),
        ("count BETWEEN 2 AND 11", TRUE),
        ("count BETWEEN '2' AND '11'", FALSE),
        ("priority BETWEEN NULL AND 9", UNKNOWN),
        ("priority BETWEEN NULL AND 1", FALSE),
        ("priority NOT BETWEEN NULL AND 1", TRUE),
        ("missing BETWEEN 1 AND 2", UNKNOWN),
        ("missing NOT BETWEEN 1 AND 2", UNKNOWN),
    ],
)
def test_between(text: str, expected: str) -> None:
    assert answer(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("region IN ('us', 'eu')", TRUE),
        ("region IN ('us')", FALSE),
        ("region NOT IN ('us', 'ap')", TRUE),
        ("region NOT IN ('eu')", FALSE),
        ("region IN ('us', NULL)", UNKNOWN),
        ("region IN ('eu', NULL)", TRUE),
        ("region NOT IN ('us', NULL)", UNKNOWN),
        ("missing IN ('eu')", UNKNOWN),
        ("missing NOT IN ('eu')", UNKNOWN),
        ("priority IN (1, 5.0)", TRUE),
        ("priority IN (1, 'x')", UNKNOWN),
        ("count IN ('x', 10)", TRUE),
        ("region IN ('x', 10)", UNKNOWN),
        ("count IN (priority * 2, 7)", TRUE),
        ("count NOT IN (priority, 7)", TRUE),
        ("count NOT IN (missing, 7)", UNKNOWN),
        ("count IN (missing, 7, 10)", TRUE),
        ("yes IN (TRUE)", TRUE),
        ("NULL IN (1)", UNKNOWN),
    ],
)
def test_in(text: str, expected: str) -> None:
    assert answer(text) == expected


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("LIKE 'abc'", "abc", TRUE),
        ("LIKE 'abc'", "abcd", FALSE),
        ("LIKE 'ab%'", "abc", TRUE),
        ("LIKE '%bc'", "abc", TRUE),
        ("LIKE '%b%'", "abc", TRUE),
        ("LIKE '%'", "", TRUE),
        ("LIKE '%%'", "x", TRUE),
        ("LIKE ''", "", TRUE),
        ("LIKE ''", "x", FALSE),
        ("LIKE '_'", "x", TRUE),
        ("LIKE '_'", "\U0001f600", TRUE),
        ("LIKE '_'", "", FALSE),
        ("LIKE 'a_c'", "abc", TRUE),
        ("LIKE 'a_c'", "a\nc", TRUE),
        ("LIKE 'a%c'", "a\n\nc", TRUE),
        ("LIKE 'a%c'", "abc\n", FALSE),
        ("LIKE 'a%b%c'", "a1b2c", TRUE),
        ("LIKE 'a%b%c'", "acb", FALSE),
        ("LIKE 'a%a'", "a", FALSE),
        ("LIKE '%ab_%b'", "ababxb", TRUE),
        ("LIKE 'a.c'", "abc", FALSE),
        ("LIKE 'a\\%'", "a\\x", TRUE),
        ("LIKE 'a!%' ESCAPE '!'", "a%", TRUE),
        ("LIKE 'a!%' ESCAPE '!'", "ab", FALSE),
        ("LIKE 'a!_b' ESCAPE '!'", "a_b", TRUE),
        ("LIKE 'a!!%' ESCAPE '!'", "a!bc", TRUE),
        ("LIKE '%%%%' ESCAPE '%'", "%%", TRUE),
        ("LIKE '%%_' ESCAPE '%'", "%x", TRUE),
        ("LIKE 'A%'", "abc", FALSE),
        ("NOT LIKE 'a%'", "abc", FALSE),
        ("NOT LIKE 'b%'", "abc", TRUE),
        ("NOT LIKE 'b%'", None, UNKNOWN),
        ("LIKE 'b%'", None, UNKNOWN),
        ("LIKE '1%'", 10, TRUE),
    ],
)
def test_like(pattern: str, text: HeaderValue, expected: str) -> None:
    assert answer(f"h {pattern}", MappingRow({}, {"h": text})) == expected


def test_like_on_a_number_is_unknown() -> None:
    assert answer("priority LIKE '5'") == UNKNOWN
    assert answer("5 NOT LIKE '6'") == UNKNOWN
    assert answer("NULL LIKE '%'") == UNKNOWN


def test_a_pattern_of_many_runs_takes_no_time_to_fail() -> None:
    row = MappingRow({"topic": "a" * 5000}, {})

    assert answer(f"topic LIKE '{'%a_' * 40}%b'", row) == FALSE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("missing IS NULL", TRUE),
        ("missing IS NOT NULL", FALSE),
        ("region IS NULL", FALSE),
        ("region IS NOT NULL", TRUE),
        ("exchange IS NULL", TRUE),
        ("topic IS NOT NULL", TRUE),
        ("NULL IS NULL", TRUE),
        ("'x' IS NULL", FALSE),
        ("priority + 1 IS NOT NULL", TRUE),
        ("region + 1 IS NULL", TRUE),
    ],
)
def test_is_null_is_never_unknown(text: str, expected: str) -> None:
    assert answer(text) == expected


CONDITIONS = {TRUE: "priority = 5", FALSE: "priority = 4", UNKNOWN: "missing = 1"}
AND = {(TRUE, TRUE): TRUE, (TRUE, UNKNOWN): UNKNOWN, (UNKNOWN, TRUE): UNKNOWN, (UNKNOWN, UNKNOWN): UNKNOWN}
OR = {
    (FALSE, FALSE): FALSE,
    (FALSE, UNKNOWN): UNKNOWN,
    (UNKNOWN, FALSE): UNKNOWN,
    (UNKNOWN, UNKNOWN): UNKNOWN,
}


@pytest.mark.parametrize("left", [TRUE, FALSE, UNKNOWN])
@pytest.mark.parametrize("right", [TRUE, FALSE, UNKNOWN])
def test_the_truth_tables_of_and_and_or(left: str, right: str) -> None:
    assert answer(f"{CONDITIONS[left]} AND {CONDITIONS[right]}") == AND.get((left, right), FALSE)
    assert answer(f"{CONDITIONS[left]} OR {CONDITIONS[right]}") == OR.get((left, right), TRUE)


def test_the_truth_table_of_not() -> None:
    assert [answer(f"NOT {CONDITIONS[x]}") for x in (TRUE, FALSE, UNKNOWN)] == [FALSE, TRUE, UNKNOWN]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TRUE", TRUE),
        ("FALSE", FALSE),
        ("NULL", UNKNOWN),
        ("yes", TRUE),
        ("no", FALSE),
        ("region", UNKNOWN),
        ("missing", UNKNOWN),
        ("NOT no AND yes", TRUE),
        ("TRUE OR FALSE AND FALSE", TRUE),
        ("(TRUE OR FALSE) AND FALSE", FALSE),
        ("NOT TRUE OR TRUE", TRUE),
        ("NOT (TRUE OR TRUE)", FALSE),
        ("NOT NOT TRUE", TRUE),
        ("not priority = 4 and Region is null", TRUE),
        ("TRUE AND TRUE AND TRUE AND FALSE", FALSE),
        ("FALSE OR FALSE OR FALSE OR TRUE", TRUE),
    ],
)
def test_conditions_and_their_precedence(text: str, expected: str) -> None:
    assert answer(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "JMSPriority = 5",
        "JMSTimestamp = 1700000000123",
        "timestamp = 1700000000123456",
        "JMSMessageID = 'm-1'",
        "JMSCorrelationID = 'c-1'",
        "JMSType = 'invoice'",
        "JMSDeliveryMode = 'PERSISTENT'",
        "delivery_mode = 2",
    ],
)
def test_jms_names_are_message_fields(text: str) -> None:
    assert answer(text) == TRUE


def test_a_field_of_a_type_its_column_cannot_have_counts_as_absent() -> None:
    row = MappingRow({"topic": 5, "priority": "5", "timestamp": "x", "delivery_mode": True}, {})

    for text in (
        "topic = 'x'",
        "topic <> 'x'",
        "priority < 9",
        "JMSTimestamp > 1",
        "JMSDeliveryMode = 'PERSISTENT'",
    ):
        assert answer(text, row) == UNKNOWN


def test_a_selector_tells_its_text_and_what_it_reads() -> None:
    text = "JMSTimestamp > 5 AND topic IN (a, 'x') AND -b * 2 BETWEEN 1 AND headers.c AND (NOT d OR e LIKE 'x')"

    selector = parse(text)

    assert selector.text == text
    assert selector.fields == {"timestamp", "topic"}
    assert selector.headers == {"a", "b", "c", "d", "e"}
    assert repr(parse("TRUE")) == "Selector('TRUE')"


def test_a_selector_travels_to_another_process_as_its_text() -> None:
    selector = pickle.loads(pickle.dumps(parse("region = 'eu'")))

    assert selector.text == "region = 'eu'"
    assert selector.matches(ROW)


def test_names_of_rabbitmqs_filters_are_application_properties() -> None:
    row = MappingRow({"topic": "orders/eu/1", "message_type": "invoice"}, {"topic": "theirs", "JMSType": "x", "p": 1})

    assert parse_plain("topic = 'theirs' AND JMSType = 'x' AND p = 1 AND p.subject = 'invoice'").matches(row)
    assert parse_plain("topic = 'theirs'").text == "headers['topic'] = 'theirs'"
    assert parse(parse_plain("topic = 'theirs' AND \"JMSType\" = 'x'").text).matches(row)
