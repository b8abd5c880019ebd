"""Filters over whole record batches answer as the broker does for each message."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import Refused
from headrace.selector import MappingRow, parse
from headrace.spark.pipelines.predicates import PredicateSet
from headrace.storage.frame import FRAME
from tests.property.test_selector import conditions, spelled

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMES = ["queue", "offset", "timestamp", "topic", "routing_key", "expires_at", "priority", "content_type", "headers"]
TEXTS = ["", "a", "b", "ab", "aab", "a%", "a_b", "5", "5.0", "-0.5", "1e2", "true", "it's", "\\", "\U0001f600", "a\nb"]
Fields = dict[str, str | int | None]
Headers = dict[str, str] | None
Rows = list[tuple[Fields, Headers]]


def batch_of(rows: Rows) -> pa.RecordBatch:
    schema = pa.schema([FRAME.field(name) for name in NAMES])
    columns: dict[str, list[object]] = {name: [] for name in NAMES}
    for fields, headers in rows:
        for name in NAMES:
            value: object = list(headers.items()) if name == "headers" and headers is not None else fields.get(name)
            if name in ("timestamp", "expires_at") and isinstance(value, int):
                value = EPOCH + timedelta(microseconds=value)
            columns[name].append(value)
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[name], schema.field(name).type) for name in NAMES], schema=schema
    )


def expected(filters: list[str], rows: Rows) -> set[tuple[int, int]]:
    selectors = [parse(text) for text in filters]
    return {
        (row, number)
        for row, (fields, headers) in enumerate(rows)
        for number, selector in enumerate(selectors)
        if selector.matches(MappingRow(fields, headers or {}))
    }


def found(filters: list[str], batch: pa.RecordBatch) -> list[tuple[int, int]]:
    rows, numbers = PredicateSet([parse(text) for text in filters]).matches(batch)
    return list(zip(rows.tolist(), numbers.tolist(), strict=True))


texts = st.sampled_from(TEXTS)
rows = st.lists(
    st.tuples(
        st.fixed_dictionaries(
            {
                "queue": texts,
                "offset": st.integers(-6, 6) | st.just(2**53 + 1),
                "timestamp": st.integers(0, 5),
                "topic": texts,
                "routing_key": texts,
                "expires_at": st.none() | st.integers(0, 5),
                "priority": st.integers(0, 6),
                "content_type": st.none() | texts,
            }
        ),
        st.none() | st.dictionaries(st.sampled_from(["a", "b", "x-key", "topic"]), texts),
    ),
    max_size=8,
)


@settings(max_examples=3 * settings().max_examples)
@given(st.lists(conditions, min_size=1, max_size=8), rows, st.integers(0, 3))
def test_a_set_of_filters_answers_as_the_filters_do_row_by_row(
    some: list[tuple[object, ...]], table: Rows, skipped: int
) -> None:
    filters = [spelled(each) for each in some] + [f"NOT {spelled(each)}" for each in some]

    answer = found(filters, batch_of(table).slice(skipped))

    assert len(set(answer)) == len(answer)
    assert set(answer) == expected(filters, table[skipped:])


def thousand_filters(random: Random) -> list[str]:
    """Filters of every shape, as a thousand tenants would write them."""

    def one() -> str:
        key, number = random.randrange(60), random.randrange(-20, 120)
        return random.choice(
            [
                f"topic = 'orders/{key}'",
                f"topic LIKE 'orders/{key}%' AND priority > {number % 7}",
                f"topic LIKE '%/{key}'",
                f"topic LIKE 'or_ers/{key % 10}%{key % 3}'",
                f"region IN ('eu', 'r{key}', 'us') AND NOT (amount BETWEEN {number} AND {number + 20.5})",
                f"amount > {number} OR topic IN ('orders/{key}', 'orders/{key + 1}')",
                f'amount <= {Decimal(number) / 8} AND "x-trace" IS NULL',
                f"amount * 2 + priority >= {number}",
                f"offset >= {number * 9} AND offset < {number * 9 + 40}",
                f"vip AND region <> 'r{key}'",
                f"NOT (vip OR region = 'r{key}') AND priority <= {number % 10}",
                "region < origin AND content_type LIKE 'text/%'",
                f"timestamp > {number} AND content_type IS NOT NULL AND NOT region LIKE 'r{key % 9}%'",
            ]
        )

    return [one() for _ in range(1000)]


def thousand_rows(random: Random, count: int) -> Rows:
    def headers() -> Headers:
        said = {
            "region": random.choice(["eu", "us", "ap", *[f"r{key}" for key in range(60)]]),
            "amount": random.choice([str(random.randrange(-20, 140)), f"{random.uniform(-20, 140):.4f}", "much", ""]),
            "vip": random.choice(["true", "false", "yes"]),
            "origin": random.choice(["eu", "r3"]),
            "x-trace": "1",
        }
        return random.choice([None, {name: text for name, text in said.items() if random.random() < 0.8}])

    return [
        (
            {
                "queue": "events",
                "offset": number,
                "timestamp": random.randrange(200),
                "topic": f"orders/{random.randrange(80)}",
                "routing_key": "",
                "expires_at": None,
                "priority": random.randrange(10),
                "content_type": random.choice([None, "text/plain", "application/json"]),
            },
            headers(),
        )
        for number in range(count)
    ]


def test_a_thousand_filters_answer_as_the_broker_does() -> None:
    random = Random(7)
    filters, table = thousand_filters(random), thousand_rows(random, 300)

    answer = found(filters, batch_of(table))

    assert set(answer) == expected(filters, table)
    assert len(answer) == len(set(answer)) > 10_000


def test_a_filter_that_reads_what_a_log_does_not_show_is_refused() -> None:
    with pytest.raises(Refused, match="reads delivery_mode, which a log's table does not have"):
        PredicateSet([parse("delivery_mode = 2")])
