"""Queues of the configuration: made, changed, and refused where messages would be lost."""

from itertools import chain

import pytest

from headrace.config.table import Fault
from headrace.core.queue.configured import Plan, configured, wanted_queues
from headrace.core.queue.definition import declared
from headrace.core.queue.group import ACK
from headrace.errors import Refused
from tests.house import House
from tests.unit.core.conftest import World


def _reconcile(house: House, *entries: dict[str, object], may_drop: bool = False, is_start: bool = True) -> Plan:
    plan = Plan(house.broker, wanted_queues(entries), may_drop, is_start)
    for _ in chain(plan.look(), plan.carry_out()):
        pass
    house.run()
    return plan


def _count(house: House, queue: str) -> int:
    return house.broker.queue(queue).messages


def test_a_queue_of_the_file_is_made_once_and_kept(world: World) -> None:
    entry: dict[str, object] = {"name": "orders", "limits": {"max_depth": 7}}

    first = _reconcile(world.house, entry)
    second = _reconcile(world.restart(), entry)

    assert [definition.name for definition in first.created] == ["orders"]
    assert (second.created, second.altered) == ([], [])
    assert world.house.broker.queue("orders").definition.max_length == 7


def test_a_queue_of_another_replication_group_is_refused_and_one_of_no_group_is_made_here(house: House) -> None:
    house.broker.declare(configured({"name": "here", "replication": {"enabled": True, "mode": "async"}}))
    house.broker.declare(configured({"name": "main", "replication": {"enabled": True, "group": "default"}}))

    with pytest.raises(Refused, match="'hot', and this broker serves 'main'"):
        house.broker.declare(configured({"name": "q", "replication": {"enabled": True, "group": "hot"}}))
    assert sorted(house.broker.topology.queues) == ["here", "main"]


def test_limits_that_changed_in_the_file_count_for_what_is_published_next_and_after_a_restart(world: World) -> None:
    house = world.house
    _reconcile(house, {"name": "orders", "limits": {"max_depth": 100}})
    assert house.publish("orders", "1", "2") == [None, None]

    plan = _reconcile(house, {"name": "orders", "limits": {"max_depth": 3}}, is_start=False)

    assert [changes for _, changes in plan.altered] == [["max_length"]]
    assert house.publish("orders", "3") == [None]
    assert "is full" in str(house.publish("orders", "4")[0])
    house = world.restart()
    assert "is full" in str(house.publish("orders", "6")[0])
    assert _count(house, "orders") == 3


def test_limits_given_to_a_queue_that_had_none_hold_while_messages_are_on_their_way(house: House) -> None:
    _reconcile(house, {"name": "q", "limits": {"max_depth": 0, "message_ttl": 0}})
    for payload in "abc":
        house.broker.publish(house.message(payload, "q"))

    _reconcile(house, {"name": "q", "limits": {"max_depth": 4}}, is_start=False)

    assert house.publish("q", "d") == [None]
    assert "is full" in str(house.publish("q", "e")[0])


def test_topics_that_changed_lead_to_the_queue_and_former_ones_do_not(house: House) -> None:
    _reconcile(house, {"name": "q", "topics": ["$queue/a/#"]})

    _reconcile(house, {"name": "q", "topics": ["$queue/b/#"]}, is_start=False)

    house.publish_topic("$queue/b/x", "new")
    house.publish_topic("$queue/a/x", "former")
    assert [message.payload for _, message in house.broker.queue("q").browse(0, 10)] == [b"new"]


def test_a_filter_and_a_dead_letter_queue_can_be_added(house: House) -> None:
    _reconcile(house, {"name": "q", "dlq": {"enabled": False}})

    _reconcile(house, {"name": "q", "filter": "region = 'eu'", "dlq": {"topic": "graves"}}, is_start=False)

    house.publish("q", "in", headers={"region": "eu"})
    house.publish("q", "out", headers={"region": "us"})
    inbox = house.consume("q", credit=10)
    assert inbox.payloads == ["in"]
    assert house.broker.queue("q").definition.dead_letter_queue == "graves"


def test_another_type_is_refused_with_the_way_out(house: House) -> None:
    _reconcile(house, {"name": "q"})

    with pytest.raises(Fault, match="headrace queues delete q") as raised:
        _reconcile(house, {"name": "other"}, {"name": "q", "type": "stream"}, may_drop=True)

    assert raised.value.path == ("queues", 1, "type")
    assert "other" not in house.broker.topology.queues, "nothing happens when something is refused"


@pytest.mark.parametrize("limits", [{"max_depth": 2}, {"max_depth_bytes": 2}])
def test_limits_that_would_drop_stored_messages_are_refused_unless_they_may_go(
    world: World, limits: dict[str, object]
) -> None:
    house = world.house
    entry: dict[str, object] = {"name": "q", "overflow": "drop-head"}
    _reconcile(house, entry)
    house.publish("q", "1", "2", "3", "4", "5")

    with pytest.raises(Fault, match="drop 3 of its stored messages"):
        _reconcile(house, {**entry, "limits": limits})
    assert _count(house, "q") == 5

    _reconcile(house, {**entry, "limits": limits}, may_drop=True)
    assert _count(house, "q") == 2
    assert world.restart().consume("q", credit=10).payloads == ["4", "5"]


def test_a_full_queue_that_rejects_keeps_what_it_has_when_its_limit_falls(house: House) -> None:
    _reconcile(house, {"name": "q"})
    house.publish("q", "1", "2", "3")

    _reconcile(house, {"name": "q", "limits": {"max_depth": 1}}, is_start=False)

    assert _count(house, "q") == 3
    inbox = house.consume("q", credit=10)
    house.settle(ACK, *inbox.take())
    assert house.publish("q", "4") == [None]


def test_shorter_retention_is_refused_when_a_stream_would_lose_messages(world: World) -> None:
    house = world.house
    _reconcile(house, {"name": "s", "type": "stream"})
    house.publish("s", "1", "2", "3", "4")
    wanted: dict[str, object] = {"name": "s", "type": "stream", "retention": {"max_length_messages": 3}}

    with pytest.raises(Fault, match=r"drop 1 of its stored messages.*HEADRACE_QUEUE_MANAGER_SHRINK"):
        _reconcile(house, wanted)

    _reconcile(house, wanted, may_drop=True)
    assert house.broker.queue("s").first_offset == 1
    assert house.broker.queue("s").log.next_offset == 4


def test_priorities_and_single_consumers_change_at_a_start_only(world: World) -> None:
    house = world.house
    _reconcile(house, {"name": "q"})
    house.publish("q", "low", priority=1)
    house.publish("q", "high", priority=9)
    wanted: dict[str, object] = {"name": "q", "max_priority": 9, "single_active_consumer": True}

    with pytest.raises(Fault, match="'max_priority' changes with a restart only"):
        _reconcile(house, wanted, is_start=False)

    house = world.restart()
    _reconcile(house, wanted)
    first, second = house.consume("q", "a", credit=1), house.consume("q", "b", credit=1)
    assert (first.payloads, second.payloads) == (["high"], [])


def test_a_queue_that_clients_declared_is_taken_over_and_their_declaration_still_fits(house: House) -> None:
    made = declared("q", durable=True, arguments={"x-max-length": 5})
    house.broker.declare(made)

    _reconcile(house, {"name": "q", "limits": {"max_depth": 50}})

    assert house.broker.declare(made).definition.max_length == 50


def test_consumers_of_a_queue_that_changes_go_on(house: House) -> None:
    _reconcile(house, {"name": "q"})
    inbox = house.consume("q", credit=10)
    house.publish("q", "before")

    _reconcile(house, {"name": "q", "visibility_timeout": "1h", "history": "1h"}, is_start=False)

    house.publish("q", "after")
    assert inbox.payloads == ["before", "after"]
    house.settle(ACK, *inbox.take())
    assert house.broker.queue("q").unsettled == 0
    assert [entry["outcome"] for _, entry in house.broker.history("q")] == ["done", "done"]


def test_how_often_streams_commit_can_change(house: House) -> None:
    _reconcile(house, {"name": "s", "type": "stream"})
    house.broker.administration.limit(1 << 20, 1 << 20, auto_commit_ms=60_000)
    house.consume("s", credit=10, auto_ack=True)
    house.publish("s", "1")
    group = next(iter(house.broker.queue("s").groups.values()))

    house.advance(59)
    assert group.state.committed == 0
    house.advance(2)
    assert group.state.committed == 1
