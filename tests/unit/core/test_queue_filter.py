"""A queue with a filter expression takes only the messages that satisfy it."""

import pytest

from headrace.core.queue.definition import STREAM, QueueDefinition
from headrace.errors import BadExpression
from tests.house import House


def house_with(expression: str, **options: object) -> House:
    house = House()
    house.broker.declare(QueueDefinition("large", topics=("$queue/orders/#",), filter=expression, **options))  # type: ignore[arg-type]
    house.broker.declare(QueueDefinition("all", topics=("$queue/orders/#",)))
    house.run()
    return house


def payloads(house: House, name: str) -> list[str]:
    log = house.broker.queue(name).log
    return [message.payload.decode() for message in log.read(log.first_offset, 100)]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("amount > 10", ["b"]),
        ("amount BETWEEN 5 AND 20 AND country IN ('de', 'at')", ["a", "b"]),
        ("topic LIKE '$queue/orders/us/%'", ["c"]),
        ("amount IS NULL", ["c"]),
        ("NOT (amount > 10)", ["a"]),
    ],
)
def test_only_what_satisfies_the_expression_enters(expression: str, expected: list[str]) -> None:
    house = house_with(expression)

    house.publish("$queue/orders/eu/1", "a", headers={"amount": 5, "country": "de"})
    house.publish("$queue/orders/eu/2", "b", headers={"amount": 20, "country": "at"})
    house.publish("$queue/orders/us/3", "c", headers={"country": "us"})

    assert payloads(house, "large") == expected
    assert payloads(house, "all") == ["a", "b", "c"]


def test_a_message_that_no_queue_admits_is_reported_as_taken_by_none() -> None:
    house = House()
    house.broker.declare(QueueDefinition("large", filter="amount > 10"))
    house.run()

    taken = house.broker.publish(house.message("a", "large", headers={"amount": 1}))

    assert taken == 0


def test_the_filter_of_a_queue_holds_after_a_restart() -> None:
    house = house_with("amount > 10")

    house = House(house.engine, house.clock)
    house.publish("$queue/orders/x", "a", headers={"amount": 1})
    house.publish("$queue/orders/x", "b", headers={"amount": 11})

    assert payloads(house, "large") == ["b"]


def test_a_stream_may_have_a_filter() -> None:
    house = house_with("amount > 10", kind=STREAM)

    house.publish("$queue/orders/x", "a", headers={"amount": 1})
    house.publish("$queue/orders/x", "b", headers={"amount": 11})

    assert house.consume("large", group="readers").payloads == ["b"]


def test_a_bad_expression_is_refused_with_its_column_and_makes_no_queue() -> None:
    house = House()

    with pytest.raises(BadExpression) as refusal:
        house.broker.declare(QueueDefinition("large", filter="amount >"))

    assert refusal.value.column == 9
    assert "large" not in house.broker.topology.queues
