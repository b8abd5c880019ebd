"""Exchanges that pick one of their bindings: by the key, by a property, by chance."""

from random import Random

import pytest

from headrace.core.queue.definition import QueueDefinition
from headrace.core.routing.exchange import Binding, Exchange
from headrace.core.routing.exchanges import Exchanges
from headrace.errors import PreconditionFailed
from headrace.model import AMQP091, Message, Source
from headrace.wire.amqp091 import encode_properties
from headrace.wire.properties import Properties
from tests.house import House

QUEUES = ("a", "b", "c")


def picking(kind: str, key: str = "", **arguments: object) -> Exchanges:
    """An exchange `x` with three queues."""
    exchanges = Exchanges(chance=Random(1))
    exchanges.declare(Exchange("x", kind, durable=True, arguments=arguments))
    for queue in QUEUES:
        exchanges.bind(Binding("x", queue, key))
    return exchanges


def test_a_random_exchange_picks_each_time_anew() -> None:
    exchanges = picking("x-random")

    routes = [exchanges.route("x", "same") for _ in range(60)]

    assert {len(route) for route in routes} == {1}
    assert {queue for route in routes for queue in route} == set(QUEUES)


def test_no_other_exchange_is_routed_anew_because_of_a_random_one() -> None:
    exchanges = picking("x-random")
    exchanges.declare(Exchange("y", "topic"))
    exchanges.bind(Binding("y", "a", "#"))

    assert exchanges.route("y", "k") is exchanges.route("y", "k")
    assert not exchanges.routes_each("y")


def test_routes_that_lead_through_a_random_exchange_are_not_remembered() -> None:
    exchanges = picking("x-random")
    exchanges.declare(Exchange("y", "fanout"))
    exchanges.bind(Binding("y", "x", to_exchange=True))

    assert {exchanges.route("y", "k") for _ in range(60)} == {("a",), ("b",), ("c",)}


def test_all_looks_at_a_message_see_the_same_choice() -> None:
    exchanges = Exchanges(chance=Random(1))
    exchanges.declare(Exchange("x", "x-random"))
    exchanges.bind(Binding("x", "a"))
    exchanges.bind(Binding("x", "amq.topic", to_exchange=True))

    seen = [(exchanges.route("x", "k"), exchanges.passes("x", "k", None, (), "amq.topic")) for _ in range(40)]

    assert set(seen) == {(("a",), False), ((), True)}


def test_a_random_exchange_without_bindings_routes_nowhere_and_may_go() -> None:
    exchanges = picking("x-random")
    for queue in QUEUES:
        exchanges.unbind(Binding("x", queue))

    assert exchanges.route("x", "k") == ()
    exchanges.delete("x")
    assert not exchanges.reads_messages


def test_a_modulus_picks_by_the_key_whatever_the_order_of_the_bindings() -> None:
    first, again = picking("x-modulus-hash"), Exchanges()
    again.declare(Exchange("x", "x-modulus-hash"))
    for queue in reversed(QUEUES):
        again.bind(Binding("x", queue))

    routes = {str(key): first.route("x", str(key)) for key in range(60)}

    assert {str(key): again.route("x", str(key)) for key in range(60)} == routes
    assert set(routes.values()) == {("a",), ("b",), ("c",)}


@pytest.mark.parametrize(("kind", "key"), [("x-modulus-hash", ""), ("x-consistent-hash", "1"), ("x-random", "")])
def test_a_message_with_several_keys_goes_one_way(kind: str, key: str) -> None:
    exchanges = picking(kind, key)

    assert {len(exchanges.route("x", str(number), None, ("cc", "bcc"))) for number in range(30)} == {1}


@pytest.mark.parametrize("name", ["message_id", "correlation_id", "timestamp"])
def test_a_property_may_decide(name: str) -> None:
    house = House()
    house.exchange("x", "x-consistent-hash", arguments={"hash-property": name})
    for queue in QUEUES:
        house.broker.declare(QueueDefinition(queue))
        house.bind("x", queue, "1")
    for number in range(60):
        properties = Properties()
        setattr(properties, "timestamp_s" if name == "timestamp" else name, 7 if name == "timestamp" else "7")
        source = Source(str(number), "x", encoding=AMQP091)
        house.broker.publish(Message(source, b"", house.clock.now_us(), encode_properties(properties)))
    house.run()

    assert sorted(house.broker.queue(queue).messages for queue in QUEUES) == [0, 0, 60]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"hash-property": "app_id"}, "Unsupported property: app_id"),
        ({"hash-property": 5}, "invalid arg 'hash-property'"),
        ({"hash-property": "message_id", "hash-header": "h"}, "mutually exclusive"),
    ],
)
def test_hashed_properties_that_there_are_none_of_are_refused(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(PreconditionFailed, match=text):
        picking("x-consistent-hash", "1", **arguments)
