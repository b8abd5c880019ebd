"""The Spark SQL text of each form, and the canonical text. The Spark suite runs it in Spark."""

import pytest

from headrace.selector import canonical_text, parse, to_spark_sql

NUMBER = "CASE WHEN headers['n'] RLIKE '(?s)^[+-]?[0-9]{1,20}([.][0-9]{1,40})?([eE][+-]?[0-9]{1,2})?(?!.)' \
THEN TRY_CAST(headers['n'] AS DECIMAL(38,18)) END"


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("topic = 'a'", "(`topic` = 'a')"),
        ("topic != 'a'", "(`topic` <> 'a')"),
        ("priority > 3", "(`priority` > 3)"),
        ("priority > 3.50", "(`priority` > 3.5BD)"),
        ("priority > -3", "(`priority` > (-3))"),
        ("timestamp > 5", "(unix_micros(`timestamp`) > 5)"),
        ("JMSTimestamp > 5", "(unix_millis(`timestamp`) > 5)"),
        (
            "JMSDeliveryMode = 'PERSISTENT'",
            "(CASE `delivery_mode` WHEN 1 THEN 'NON_PERSISTENT' WHEN 2 THEN 'PERSISTENT' END = 'PERSISTENT')",
        ),
        ("region = 'eu'", "(headers['region'] = 'eu')"),
        ("a < b", "(headers['a'] < headers['b'])"),
        ("n = 5", f"({NUMBER} = 5)"),
        ("n = TRUE", "(CASE headers['n'] WHEN 'true' THEN TRUE WHEN 'false' THEN FALSE END = TRUE)"),
        ("n", "CASE headers['n'] WHEN 'true' THEN TRUE WHEN 'false' THEN FALSE END"),
        ("topic = 5", "CAST(NULL AS BOOLEAN)"),
        ("NULL", "CAST(NULL AS BOOLEAN)"),
        ("a = NULL", "CAST(NULL AS BOOLEAN)"),
        (
            "priority / 2 = 1",
            "(CASE WHEN abs(try_divide(CAST(`priority` AS DOUBLE), 2.0D)) <= 1.7976931348623157E308D "
            "THEN try_divide(CAST(`priority` AS DOUBLE), 2.0D) END = 1.0D)",
        ),
        ("priority BETWEEN 1 AND 2", "((`priority` >= 1) AND (`priority` <= 2))"),
        ("priority NOT BETWEEN 1 AND 2", "(NOT ((`priority` >= 1) AND (`priority` <= 2)))"),
        ("a IN ('x', 'y')", "(headers['a'] IN ('x', 'y'))"),
        ("topic IN ('x', 1)", "((`topic` IN ('x')) OR CAST(NULL AS BOOLEAN))"),
        ("a IS NULL", "(headers['a'] IS NULL)"),
        ("a IS NOT NULL", "(NOT (headers['a'] IS NULL))"),
        ("topic LIKE 'x%'", "startswith(`topic`, 'x')"),
        ("topic LIKE '%x'", "endswith(`topic`, 'x')"),
        ("topic LIKE '%x%'", "contains(`topic`, 'x')"),
        ("topic LIKE 'x'", "(`topic` = 'x')"),
        ("topic LIKE 'x!%' ESCAPE '!'", "(`topic` = 'x%')"),
        ("topic LIKE '%x_%y'", "(`topic` RLIKE '(?s)^(?>.*?x.).*y(?!.)')"),
        ("priority LIKE 'x'", "CAST(NULL AS BOOLEAN)"),
        ("a = 'it''s'", "(headers['a'] = CAST(X'69742773' AS STRING))"),
        ("a = '\\'", "(headers['a'] = CAST(X'5C' AS STRING))"),
        ("a = '${x}'", "(headers['a'] = CAST(X'247B787D' AS STRING))"),
        ("headers['a''b'] = 'x'", "(headers[CAST(X'612762' AS STRING)] = 'x')"),
        ("TRUE AND TRUE OR FALSE", "((TRUE AND TRUE) OR FALSE)"),
    ],
)
def test_every_form_has_one_spelling_in_spark(text: str, sql: str) -> None:
    assert to_spark_sql(parse(text)) == sql


def test_spark_reads_calculations_as_doubles() -> None:
    sql = to_spark_sql(parse("-n + NULL * 2.5 > priority - -1"))

    double = f"((- CAST({NUMBER} AS DOUBLE)) + (CAST(NULL AS DOUBLE) * 2.5D))"
    assert f"abs({double})" in sql
    assert "(CAST(`priority` AS DOUBLE) - (-1.0D))" in sql


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("((a=1))and(b=2 and c=3)", "a = 1 AND b = 2 AND c = 3"),
        ("(a or b) and not(c and d)", "(a OR b) AND NOT (c AND d)"),
        ("not a not like 'x''y' escape 'z'", "NOT a NOT LIKE 'x''y' ESCAPE 'z'"),
        ("JMSPriority != 0x10", "priority <> 16"),
        ("a - (b - c) = (a - b) - c", "a - (b - c) = a - b - c"),
        ("a%(b*c)=1", "a % (b * c) = 1"),
        ("p.creation_time>utc()and h.priority=1", "properties.creation_time > UTC() AND priority = 1"),
        ("header.durable or a.topic=p.user_id", "delivery_mode = 2 OR headers['topic'] = headers['JMSXUserID']"),
        ("a * (b + 1.50) = -(-c) + +d", "a * (b + 1.5) = - - c + + d"),
        ("x NOT BETWEEN 1 AND 2 OR y IS NOT NULL", "x NOT BETWEEN 1 AND 2 OR y IS NOT NULL"),
        ("headers.a IN (1,'x',NULL,TRUE)", "a IN (1, 'x', NULL, TRUE)"),
        ("headers['topic'] = headers['and']", "headers['topic'] = headers['and']"),
        ('headers.headers = "x-y"', "headers['headers'] = headers['x-y']"),
    ],
)
def test_every_spelling_has_one_canonical_text(text: str, canonical: str) -> None:
    selector = parse(text)

    assert canonical_text(selector) == canonical
    assert canonical_text(parse(canonical)) == canonical
