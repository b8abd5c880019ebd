"""Definitions of exchanges and bindings, and the JSON they are stored as."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from headrace.core.routing.exchange import Binding, Exchange
from headrace.errors import Refused
from headrace.wire.properties import from_json, to_json


def test_an_exchange_is_written_as_json() -> None:
    exchange = Exchange("x", "topic", durable=True, arguments={"alternate-exchange": "y"})

    assert exchange.to_json() == {
        "name": "x",
        "type": "topic",
        "durable": True,
        "auto_delete": False,
        "internal": False,
        "arguments": {"alternate-exchange": "y"},
    }


def test_an_exchange_is_read_from_json() -> None:
    written = Exchange("x", "topic", True, True, True, {"alternate-exchange": "y"}).to_json()

    exchange = Exchange.from_json(written)

    assert (exchange.to_json(), exchange.alternate) == (written, "y")


def test_a_binding_is_written_as_json() -> None:
    assert Binding("x", "y", "k", {"a": b"\0"}, to_exchange=True).to_json() == {
        "source": "x",
        "destination": "y",
        "destination_type": "exchange",
        "routing_key": "k",
        "arguments": {"a": {"$bytes": "AA=="}},
    }


@pytest.mark.parametrize("to_exchange", [True, False])
def test_a_binding_is_read_from_json(to_exchange: bool) -> None:
    binding = Binding("x", "y", "k", {"a": b"\0", "b": True}, to_exchange)

    assert Binding.from_json(binding.to_json()).identity == binding.identity


def test_members_that_other_tools_add_are_ignored() -> None:
    written = {**Exchange("x", "topic").to_json(), "vhost": "/", "user_who_performed_action": "guest"}

    assert Exchange.from_json(written).name == "x"


@pytest.mark.parametrize(
    ("member", "value", "message"),
    [
        ("name", None, "the key 'name' is missing"),
        ("durable", "yes", "'durable' must be true or false, not 'yes'"),
        ("arguments", [], "arguments must be a table, not list"),
    ],
)
def test_a_damaged_exchange_definition_is_refused(member: str, value: object, message: str) -> None:
    with pytest.raises(Refused, match=message):
        Exchange.from_json({**Exchange("x", "topic").to_json(), member: value})


def test_a_binding_to_neither_queue_nor_exchange_is_refused() -> None:
    with pytest.raises(Refused, match="'destination_type' must be one of queue, exchange, not 'topic'"):
        Binding.from_json({**Binding("x", "q").to_json(), "destination_type": "topic"})


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        1,
        1.0,
        -(2**63),
        float("inf"),
        "text",
        b"\xff\0",
        datetime(2026, 3, 26, 10, 0, tzinfo=UTC),
        datetime(2026, 3, 26, 10, 0, 0, 123456),
        datetime(2026, 3, 26, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        Decimal("1.500"),
        Decimal("1E+6"),
        [1, [b"x", None], {"a": []}],
        {"$bytes": "not bytes"},
        {"$table": {"$table": 1}},
        {"$a": 1, "$b": 2},
        {},
        [],
    ],
)
def test_an_argument_comes_back_from_json_as_it_was(value: object) -> None:
    again = from_json(json.loads(json.dumps(to_json(value), allow_nan=False)))

    assert (again, type(again)) == (value, type(value))


@pytest.mark.parametrize("value", [object(), {1: "a"}, [{"a": {b"b": 1}}], {1, 2}])
def test_what_no_table_can_hold_is_refused(value: object) -> None:
    with pytest.raises(Refused):
        to_json(value)


@pytest.mark.parametrize(
    "value",
    [{"$bytes": "%"}, {"$time": "noon"}, {"$decimal": "x"}, {"$float": "x"}, {"$other": "x"}, {"$bytes": 1}],
)
def test_json_that_no_value_was_written_as_is_refused(value: object) -> None:
    with pytest.raises(Refused):
        from_json(value)


def nested() -> object:
    value: object = 1
    for _ in range(50_000):
        value = [value]
    return value


def bound_with(value: object) -> object:
    return Binding("x", "q", "", {"a": value})


@pytest.mark.parametrize("use", [bound_with, to_json, from_json])
def test_arguments_nested_beyond_reason_are_refused(use: Callable[[object], object]) -> None:
    with pytest.raises(Refused, match="nested more than 64 deep"):
        use(nested())
