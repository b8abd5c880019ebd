"""Policies: which ones count, how their settings join a queue's own, what happens to queues that are there."""

from collections.abc import Callable

import pytest

from headrace.core.policies import Policy
from headrace.core.queue.definition import QueueDefinition, Retention, Retry, declared
from headrace.core.queue.group import ACK
from headrace.core.routing.exchange import Exchange
from headrace.errors import NotFound, Refused
from tests.house import House
from tests.unit.core.conftest import World

_MANY = 2500
"""More messages than one batch gives up."""


def put(house: House, name: str, pattern: str = "", apply_to: str = "all", priority: int = 0, **given: object) -> None:
    _put(house, Policy(name, pattern, _settings(given), apply_to, priority))


def limit(house: House, name: str, pattern: str = "", **given: object) -> None:
    """Put an operator policy."""
    _put(house, Policy(name, pattern, _settings(given), is_operator=True))


def remove(house: House, name: str, is_operator: bool = False) -> None:
    told: list[bool] = []
    house.broker.administration.delete_policy(name, is_operator, lambda: told.append(True))
    house.run()
    assert told == [True]


def _put(house: House, policy: Policy) -> None:
    told: list[bool] = []
    house.broker.administration.put_policy(policy, lambda: told.append(True))
    house.run()
    assert told == [True]


def _settings(given: dict[str, object]) -> dict[str, object]:
    return {name.replace("_", "-"): value for name, value in given.items()}


def definition(house: House, name: str) -> QueueDefinition:
    return house.broker.topology.queue(name).definition


def declare(house: House, name: str, **arguments: object) -> None:
    x = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    house.broker.declare(declared(name, durable=True, arguments=x))


def waiting(house: House, name: str) -> list[str]:
    return [message.payload.decode() for _, message in house.broker.topology.queue(name).browse(0, 10_000)]


# -- which policy counts


def test_the_highest_priority_counts_and_then_the_first_name(house: House) -> None:
    declare(house, "orders")
    put(house, "b", max_length=1)
    put(house, "a", max_length=2)
    assert definition(house, "orders").max_length == 2
    put(house, "c", priority=1, max_length=3)
    assert definition(house, "orders").max_length == 3
    put(house, "d", pattern="^others", priority=2, max_length=4)
    assert definition(house, "orders").max_length == 3
    remove(house, "c")
    remove(house, "a")
    assert definition(house, "orders").max_length == 1
    remove(house, "b")
    assert definition(house, "orders").max_length is None


@pytest.mark.parametrize(
    ("apply_to", "kinds"),
    [
        ("all", {"classic", "quorum", "stream"}),
        ("queues", {"classic", "quorum", "stream"}),
        ("classic_queues", {"classic"}),
        ("quorum_queues", {"quorum"}),
        ("streams", {"stream"}),
        ("exchanges", set()),
    ],
)
def test_a_policy_is_for_the_things_that_it_names(house: House, apply_to: str, kinds: set[str]) -> None:
    put(house, "p", apply_to=apply_to, max_length_bytes=77)
    found: set[str] = set()
    for kind in ("classic", "quorum", "stream"):
        declare(house, kind, queue_type=kind)
        queue = definition(house, kind)
        if 77 in (queue.max_length_bytes, queue.retention.max_bytes):
            found.add(kind)
    assert found == kinds


@pytest.mark.parametrize(
    ("setting", "value", "kinds"),
    [
        ("message-ttl", 5, {"classic", "quorum"}),
        ("expires", 5, {"classic", "quorum"}),
        ("max-length", 5, {"classic", "quorum"}),
        ("overflow", "drop-head", {"classic", "quorum"}),
        ("dead-letter-exchange", "x", {"classic", "quorum"}),
        ("delivery-limit", 5, {"quorum"}),
        ("dead-letter-strategy", "at-least-once", {"quorum"}),
        ("max-age", "1h", {"stream"}),
        ("queue-mode", "lazy", {"classic"}),
        ("ha-mode", "all", {"classic"}),
        ("queue-leader-locator", "balanced", {"quorum", "stream"}),
        ("queue-version", 2, {"classic", "quorum", "stream"}),
    ],
)
def test_a_policy_with_a_setting_that_a_type_cannot_have_does_not_apply_to_it(
    house: House, setting: str, value: object, kinds: set[str]
) -> None:
    _put(house, Policy("p", "", {setting: value, "max-length-bytes": 77}))
    found: set[str] = set()
    for kind in ("classic", "quorum", "stream"):
        declare(house, kind, queue_type=kind)
        if house.broker.parameters.policies.of_queue(definition(house, kind)).policy == "p":
            found.add(kind)
    assert found == kinds


def test_the_brokers_own_queues_have_no_policies(house: House) -> None:
    put(house, "p", max_age="1h")
    house.broker.declare(QueueDefinition("watched", history_ms=60_000))
    inbox = house.consume("watched")
    house.publish("watched", "x")
    house.settle(ACK, *inbox.take())
    assert definition(house, "$history/watched").retention == Retention(max_age_ms=60_000)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("^[[:digit:]_]+$", {"12", "1_2"}),
        ("^[^[:alpha:]]", {"12", "1_2", "-"}),
        ("^[[:upper:][:punct:]]", {"Ab", "-"}),
        ("b|^-", {"ab", "Ab", "-"}),
    ],
)
def test_patterns_have_the_classes_of_posix(house: House, pattern: str, names: set[str]) -> None:
    put(house, "p", pattern=pattern, max_length=5)
    for name in ("12", "1_2", "ab", "Ab", "-"):
        declare(house, name)
    assert {name for name, queue in house.broker.topology.queues.items() if queue.definition.max_length == 5} == names


# -- how settings join


@pytest.mark.parametrize(
    ("arguments", "setting", "value", "member", "expected"),
    [
        ({}, "message-ttl", 50, "message_ttl_ms", 50),
        ({"message_ttl": 20}, "message-ttl", 50, "message_ttl_ms", 20),
        ({"message_ttl": 90}, "message-ttl", 50, "message_ttl_ms", 50),
        ({"expires": 90}, "expires", 50, "expires_ms", 50),
        ({"max_length": 1}, "max-length", 0, "max_length", 0),
        ({"max_length_bytes": 9}, "max-length-bytes", 10, "max_length_bytes", 9),
        ({}, "overflow", "reject-publish", "overflow", "reject-publish"),
        ({"overflow": "drop-head"}, "overflow", "reject-publish", "overflow", "drop-head"),
        ({"overflow": "drop-head", "queue_type": "quorum"}, "overflow", "reject-publish", "overflow", "reject-publish"),
        ({}, "dead-letter-exchange", "dlx", "dead_letter_exchange", "dlx"),
        ({"dead_letter_exchange": "own"}, "dead-letter-exchange", "dlx", "dead_letter_exchange", "own"),
        ({"dead_letter_exchange": "own"}, "dead-letter-routing-key", "k", "dead_letter_key", "k"),
        ({"queue_type": "quorum"}, "delivery-limit", 50, "delivery_limit", 50),
        ({"queue_type": "quorum", "delivery_limit": 7}, "delivery-limit", 50, "delivery_limit", 7),
        ({"queue_type": "quorum", "delivery_limit": -1}, "delivery-limit", 50, "delivery_limit", 50),
        ({"queue_type": "quorum"}, "delivery-limit", -1, "delivery_limit", None),
        ({}, "consumer-timeout", 1000, "lease_ms", 1000),
        ({"consumer_timeout": 500}, "consumer-timeout", 1000, "lease_ms", 500),
        ({"queue_type": "stream"}, "max-age", "1h", "retention", Retention(max_age_ms=3_600_000)),
        ({"queue_type": "stream", "max_age": "1m"}, "max-age", "1h", "retention", Retention(max_age_ms=60_000)),
        ({"queue_type": "stream"}, "max-length-bytes", 9, "retention", Retention(max_bytes=9)),
    ],
)
def test_the_lower_number_counts_and_else_the_queues_own_setting(
    house: House, arguments: dict[str, object], setting: str, value: object, member: str, expected: object
) -> None:
    declare(house, "before", **arguments)
    _put(house, Policy("p", "", {setting: value}))
    declare(house, "after", **arguments)
    assert getattr(definition(house, "before"), member) == expected
    assert getattr(definition(house, "after"), member) == expected
    remove(house, "p")
    for name in ("before", "after"):
        queue = house.broker.topology.queue(name)
        assert queue.definition == queue.declared


def test_a_configured_queue_keeps_its_own_dead_letters_and_takes_lower_limits(house: House) -> None:
    house.broker.declare(QueueDefinition("q", "quorum", dead_letter_queue="$dlq/q", retry=Retry(5)))
    put(house, "p", dead_letter_exchange="dlx", dead_letter_routing_key="k", delivery_limit=3)
    found = definition(house, "q")
    assert (found.dead_letter_exchange, found.dead_letter_key, found.dead_letter_queue) == (None, None, "$dlq/q")
    assert found.delivery_limit == 3
    put(house, "p", delivery_limit=30)
    assert definition(house, "q").delivery_limit == 5


def test_of_a_policy_and_an_operator_policy_the_stricter_limit_counts(house: House) -> None:
    declare(house, "q")
    put(house, "p", max_length=10, message_ttl=10, overflow="reject-publish")
    limit(house, "o", max_length=20, message_ttl=5, expires=1000)
    governed = house.broker.parameters.policies.of_queue(definition(house, "q"))
    assert (governed.policy, governed.operator) == ("p", "o")
    assert governed.settings == {"max-length": 10, "message-ttl": 5, "expires": 1000, "overflow": "reject-publish"}
    assert (definition(house, "q").max_length, definition(house, "q").message_ttl_ms) == (10, 5)
    remove(house, "p")
    assert (definition(house, "q").max_length, definition(house, "q").overflow) == (20, "drop-head")
    remove(house, "o", is_operator=True)
    assert definition(house, "q").max_length is None


def test_a_second_declaration_need_not_name_the_settings_of_a_policy(house: House) -> None:
    put(house, "p", max_length=10, message_ttl=10)
    declare(house, "q")
    declare(house, "q")
    put(house, "p", max_length=11)
    declare(house, "q")
    assert definition(house, "q").max_length == 11


# -- what happens to queues that are there


def test_a_new_limit_drops_the_oldest_at_once_and_dead_letters_them(house: House) -> None:
    declare(house, "dead")
    declare(house, "q")
    house.publish("q", *[str(number) for number in range(_MANY)])
    put(house, "p", pattern="^q", max_length=3, dead_letter_exchange="", dead_letter_routing_key="dead")
    assert waiting(house, "q") == [str(number) for number in range(_MANY - 3, _MANY)]
    assert waiting(house, "dead") == [str(number) for number in range(_MANY - 3)]
    house.publish("q", "new")
    assert waiting(house, "q")[-1] == "new"
    assert len(waiting(house, "q")) == 3


def test_a_batch_gives_up_a_bounded_number_of_messages(house: House) -> None:
    declare(house, "q")
    house.publish("q", *[str(number) for number in range(_MANY)])
    house.broker.administration.put_policy(Policy("p", "", {"max-length": 3}), lambda: None)
    assert house.broker.topology.queue("q").messages == _MANY - 1000
    house.run()
    assert house.broker.topology.queue("q").messages == 3


def test_a_full_queue_refuses_by_policy_and_takes_again_without(house: House) -> None:
    declare(house, "q")
    put(house, "p", max_length=1, overflow="reject-publish")
    errors = house.publish("q", "a", "b")
    assert [error is None for error in errors] == [True, False]
    remove(house, "p")
    assert house.publish("q", "c") == [None]
    assert waiting(house, "q") == ["a", "c"]


def test_time_to_live_counts_for_messages_that_come_later(house: House) -> None:
    declare(house, "q")
    house.publish("q", "before")
    put(house, "p", message_ttl=1000)
    house.publish("q", "after")
    remove(house, "p")
    house.publish("q", "last")
    inbox = house.consume("q", credit=1)
    house.broker.settle(inbox.take()[0], ACK)
    house.broker.cancel(inbox.consumer)
    house.advance(2)
    assert waiting(house, "q") == ["last"]


def test_an_unused_queue_expires_from_the_policy_on(house: House) -> None:
    declare(house, "q")
    house.advance(100)
    put(house, "p", expires=10_000)
    house.advance(9)
    assert "q" in house.broker.topology.queues
    house.advance(2)
    assert "q" not in house.broker.topology.queues


def test_a_queue_that_got_a_policy_in_time_does_not_expire_without_it(house: House) -> None:
    declare(house, "q")
    put(house, "p", expires=10_000)
    remove(house, "p")
    house.advance(100)
    assert "q" in house.broker.topology.queues


def test_a_policy_gives_exchanges_an_alternate(house: House) -> None:
    declare(house, "strays")
    house.exchange("own", arguments={"alternate-exchange": "own-alternate"})
    house.exchange("app", "topic")
    house.exchange("alternate", "fanout")
    house.exchange("own-alternate", "fanout")
    house.bind("alternate", "strays")
    house.publish("k", "lost", exchange="app")
    put(house, "p", pattern="^(app|own|later)$", apply_to="exchanges", alternate_exchange="alternate")
    house.exchange("later")
    house.publish("k", "kept", exchange="app")
    house.publish("k", "later", exchange="later")
    house.publish("k", "not ours", exchange="own")
    remove(house, "p")
    house.publish("k", "lost again", exchange="app")
    assert waiting(house, "strays") == ["kept", "later"]


# -- refused, stored


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (Policy("p", "(", {"max-length": 1}), "regular expression"),
        (Policy("p", "[[:odd:]]", {"max-length": 1}), "no class"),
        (Policy("p", "", {}), "no policy provided"),
        (Policy("p", "", {"max-lengt": 1}), "not recognised policy settings"),
        (Policy("p", "", {"max-length": -1}), "max-length"),
        (Policy("p", "", {"max-length": "1"}), "max-length"),
        (Policy("p", "", {"overflow": "explode"}), "overflow"),
        (Policy("p", "", {"max-age": "7x"}), "max-age"),
        (Policy("p", "", {"overflow": "drop-head"}, is_operator=True), "not recognised operator policy settings"),
    ],
)
def test_a_policy_that_cannot_be_used_is_refused_and_changes_nothing(house: House, policy: Policy, why: str) -> None:
    with pytest.raises(Refused, match=why):
        house.broker.administration.put_policy(policy, lambda: None)
    assert house.broker.parameters.policies.all(policy.is_operator) == []


def test_removing_an_unknown_policy_is_not_found(house: House) -> None:
    put(house, "p", max_length=1)
    with pytest.raises(NotFound, match="no operator policy 'p' in vhost '/'"):
        house.broker.administration.delete_policy("p", True, lambda: None)


def test_policies_and_limits_count_after_a_restart(world: World) -> None:
    house = world.house
    declare(house, "q", max_length=9)
    house.exchange("app")
    put(house, "p", priority=3, max_length=5, alternate_exchange="alternate")
    limit(house, "o", max_length=4)
    house.broker.administration.put_limits({"max-queues": 7, "max-connections": 3})
    house.broker.administration.put_limits({"max-connections": -1})
    house = world.restart()
    assert house.broker.parameters.policies.all(False) == [
        Policy("p", "", {"max-length": 5, "alternate-exchange": "alternate"}, "all", 3)
    ]
    assert house.broker.parameters.limits == {"max-queues": 7}
    assert definition(house, "q").max_length == 4
    assert house.broker.topology.queue("q").declared.max_length == 9
    remove(house, "o", is_operator=True)
    remove(house, "p")
    house = world.restart()
    assert house.broker.parameters.policies.all(False) == []
    assert definition(house, "q").max_length == 9


def test_a_changed_definition_keeps_its_policies(house: House) -> None:
    declare(house, "q")
    put(house, "p", max_length=5)
    house.broker.administration.alter(QueueDefinition("q", max_length=3, message_ttl_ms=7))
    assert (definition(house, "q").max_length, definition(house, "q").message_ttl_ms) == (3, 7)
    house.broker.administration.alter(QueueDefinition("q"))
    assert definition(house, "q").max_length == 5


def test_the_own_alternate_of_an_exchange_is_no_policys(house: House) -> None:
    put(house, "p", alternate_exchange="other")
    alternate_of: Callable[[Exchange], str | None] = house.broker.parameters.policies.alternate_of
    assert alternate_of(Exchange("x", "direct", arguments={"alternate-exchange": "own"})) == "own"
    assert alternate_of(Exchange("x", "direct")) == "other"
    assert alternate_of(Exchange("", "direct")) is None


def test_a_virtual_host_has_no_more_queues_than_its_limit(house: House) -> None:
    declare(house, "one")
    house.broker.administration.put_limits({"max-queues": 1})
    declare(house, "one")
    with pytest.raises(Refused, match=r"queue limit in vhost '/' \(1\) is reached"):
        declare(house, "two")
    house.broker.administration.put_limits({"max-queues": -1})
    declare(house, "two")
