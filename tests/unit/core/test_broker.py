"""Queues as clients declare, share, use up and delete them."""

from collections.abc import Callable

import pytest

from headrace.core.queue.definition import EPHEMERAL, QueueDefinition, declared
from headrace.core.queue.dispatch import Consumer, Credit
from headrace.core.queue.group import ACK
from headrace.core.routing.exchange import Binding, Exchange
from headrace.errors import AccessRefused, HeadraceError, NotFound, PreconditionFailed, Refused, ResourceLocked
from headrace.storage.memory import MemoryEngine
from tests.house import House
from tests.unit.core.conftest import World


def texts(house: House, queue: str) -> list[str]:
    return [message.payload.decode() for _, message in house.broker.queue(queue).browse(0, 1000)]


# -- declaring ---------------------------------------------------------------------------------------------------------


def test_declaring_a_queue_again_as_it_is_gives_the_same_queue(house: House) -> None:
    queue = house.broker.declare(declared("q", durable=True))

    assert house.broker.declare(declared("q", durable=True)) is queue


def test_declaring_a_queue_again_as_it_is_not_is_refused(house: House) -> None:
    house.broker.declare(declared("q", durable=True))

    with pytest.raises(PreconditionFailed, match="inequivalent arg 'durable' for queue 'q'"):
        house.broker.declare(declared("q"))


def test_asking_passively_for_a_queue_that_is_not_there_says_so(house: House) -> None:
    with pytest.raises(NotFound, match="no queue 'q' in vhost '/'"):
        house.broker.declare(declared("q"), passive=True)


def test_asking_passively_does_not_compare_and_gives_the_counts(house: House) -> None:
    house.broker.declare(declared("q", durable=True))
    house.publish("q", *"abc")
    house.consume("q", credit=1)

    queue = house.broker.declare(declared("q", arguments={"x-max-length": 1}), passive=True)

    assert (queue.messages, queue.consumers, queue.unsettled) == (2, 1, 1)


def test_a_queue_without_a_name_gets_one_that_no_other_has(house: House) -> None:
    names = {house.broker.declare(declared("", exclusive=True)).name for _ in range(10)}

    assert len(names) == 10
    assert all(name.startswith("amq.gen-") for name in names)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("amq.mine", AccessRefused),
        ("x" * 256, PreconditionFailed),
        ("\N{SNOWMAN}" * 86, PreconditionFailed),
        ("a\0b", PreconditionFailed),
        ("\ud800", PreconditionFailed),
    ],
)
def test_names_that_the_server_keeps_or_cannot_store_are_refused(
    house: House, name: str, error: type[HeadraceError]
) -> None:
    with pytest.raises(error):
        house.broker.declare(declared(name))


def test_a_filter_or_pattern_that_makes_no_sense_leaves_no_queue(house: House) -> None:
    for definition in (QueueDefinition("q", filter="a ="), QueueDefinition("q", topics=("a/#", "a/#/b"))):
        with pytest.raises(Refused):
            house.broker.declare(definition)

    assert "q" not in house.broker.topology.queues
    assert house.broker.topology.of_topic("$queue/q") == []


# -- restart -----------------------------------------------------------------------------------------------------------


def test_durable_queues_with_messages_groups_exchanges_and_bindings_survive_a_restart(world: World) -> None:
    house = world.house
    house.broker.declare(declared("q", durable=True, arguments={"x-max-length": 9}))
    house.exchange("events", "topic", arguments={"alternate-exchange": "amq.fanout"})
    house.bind("events", "q", "a.#")
    inbox = house.consume("q", group="workers", credit=1)
    house.publish("a.b", *"xyz", exchange="events")
    house.settle(ACK, *inbox.take())

    house = world.restart()

    house.broker.declare(declared("q", durable=True, arguments={"x-max-length": 9}))
    house.publish("a.c", "new", exchange="events")
    assert house.consume("q", group="workers").payloads == ["y", "z", "new"]
    assert house.broker.topology.exchanges.get("events").alternate == "amq.fanout"


@pytest.mark.parametrize(
    "definition",
    [
        declared("q"),
        declared("q", durable=True, exclusive=True),
        QueueDefinition("q", EPHEMERAL),
    ],
    ids=["transient", "exclusive", "ephemeral"],
)
def test_queues_that_are_not_stored_are_gone_after_a_restart(world: World, definition: QueueDefinition) -> None:
    house = world.house
    house.broker.declare(definition)
    house.exchange("events", "fanout")
    house.bind("events", "q")
    house.publish("", "a", exchange="events")
    assert texts(house, "q") == ["a"]

    house = world.restart()

    assert "q" not in house.broker.topology.queues
    assert house.broker.topology.exchanges.bindings() == []


def test_deleted_queues_and_bindings_stay_deleted_after_a_restart(world: World) -> None:
    house = world.house
    house.broker.declare(declared("q", durable=True))
    house.exchange("events", "fanout")
    house.bind("events", "q")
    house.publish("", "a", exchange="events")
    house.broker.delete("q")

    house = world.restart()

    assert "q" not in house.broker.topology.queues
    assert house.broker.topology.exchanges.bindings() == []
    assert "q" not in world.engine.logs()


def test_a_binding_of_a_durable_queue_to_a_transient_exchange_goes_with_the_exchange(world: World) -> None:
    world.house.broker.declare(declared("q", durable=True))
    world.house.broker.declare_exchange(Exchange("events", "fanout"))
    world.house.bind("events", "q")

    house = world.restart()

    assert house.broker.topology.exchanges.bindings() == []


# -- exclusive and auto-delete -----------------------------------------------------------------------------------------


def test_an_exclusive_queue_is_locked_to_all_but_its_connection(house: House) -> None:
    mine, other = object(), object()
    house.broker.declare(declared("q", exclusive=True), owner=mine)
    house.broker.declare_exchange(Exchange("events", "fanout"))
    house.broker.bind(Binding("events", "q"), owner=mine)
    calls: list[Callable[[], object]] = [
        lambda: house.broker.declare(declared("q", exclusive=True), owner=other),
        lambda: house.broker.declare(declared("q"), owner=other, passive=True),
        lambda: house.broker.delete("q", owner=other),
        lambda: house.broker.purge("q", owner=other),
        lambda: house.broker.bind(Binding("events", "q"), owner=other),
        lambda: house.broker.unbind(Binding("events", "q"), owner=other),
        lambda: house.broker.get("q", Consumer("c", print, owner=other)),
        lambda: house.broker.consume("q", Consumer("c", print, owner=other)),
    ]

    for call in calls:
        with pytest.raises(ResourceLocked, match="locked queue 'q'"):
            call()
    house.broker.bind(Binding("events", "q"), owner=mine)
    assert house.broker.publish(house.message("a", "q")) == 1


def test_exclusive_queues_go_with_their_connection_and_no_others(house: House) -> None:
    mine, other = object(), object()
    for name, owner in (("a", mine), ("b", mine), ("c", other)):
        house.broker.declare(declared(name, exclusive=True), owner=owner)
    house.broker.declare(declared("d"), owner=mine)
    house.broker.delete("b", owner=mine)

    house.broker.release_owner(mine)
    house.broker.release_owner(mine)

    assert sorted(house.broker.topology.queues) == ["c", "d"]


def test_an_auto_delete_queue_goes_with_its_last_consumer(house: House) -> None:
    house.broker.declare(declared("q", auto_delete=True))
    first, second = house.consume("q", "1"), house.consume("q", "2")

    house.broker.cancel(first.consumer)
    assert "q" in house.broker.topology.queues
    house.broker.cancel(second.consumer)

    assert "q" not in house.broker.topology.queues


def test_an_auto_delete_queue_that_never_had_a_consumer_stays(house: House) -> None:
    house.broker.declare(declared("q", auto_delete=True))
    house.publish("q", "a")
    house.broker.get("q", Consumer("getter", print))

    house.advance(3600)

    assert "q" in house.broker.topology.queues


# -- expiring ----------------------------------------------------------------------------------------------------------


def expiring(house: House) -> None:
    house.broker.declare(declared("q", durable=True, arguments={"x-expires": 10_000}))
    house.run()


def test_an_unused_queue_goes_after_its_time(world: World) -> None:
    expiring(world.house)
    world.house.publish("q", "publishing does not count as use")
    world.house.advance(9)
    assert "q" in world.house.broker.topology.queues

    world.house.advance(2)

    assert "q" not in world.house.broker.topology.queues
    assert "q" not in world.restart().broker.topology.queues


def test_a_queue_with_a_consumer_does_not_expire_and_its_time_begins_when_the_last_leaves(house: House) -> None:
    expiring(house)
    inbox = house.consume("q")
    house.advance(60)
    house.broker.cancel(inbox.consumer)

    house.advance(9)
    assert "q" in house.broker.topology.queues
    house.advance(2)

    assert "q" not in house.broker.topology.queues


def test_declaring_and_getting_count_as_use(house: House) -> None:
    expiring(house)
    house.advance(6)
    house.broker.declare(declared("q", durable=True, arguments={"x-expires": 10_000}))
    house.advance(6)
    house.broker.get("q", Consumer("getter", print))
    house.advance(6)

    assert "q" in house.broker.topology.queues


def test_a_restart_begins_the_time_anew(world: World) -> None:
    expiring(world.house)
    world.house.advance(9)

    house = world.restart()
    house.advance(9)
    assert "q" in house.broker.topology.queues
    house.advance(2)

    assert "q" not in house.broker.topology.queues


# -- deleting ----------------------------------------------------------------------------------------------------------


def test_deleting_says_how_many_messages_waited(house: House) -> None:
    house.broker.declare(declared("q", durable=True))
    house.publish("q", *"abc")

    assert house.broker.delete("q") == 3
    with pytest.raises(NotFound):
        house.broker.delete("q")


def test_a_queue_in_use_is_not_deleted_if_unused(house: House) -> None:
    house.broker.declare(declared("q"))
    inbox = house.consume("q")

    with pytest.raises(PreconditionFailed, match="in use"):
        house.broker.delete("q", if_unused=True)
    house.broker.cancel(inbox.consumer)
    house.broker.delete("q", if_unused=True)


def test_a_queue_with_messages_is_not_deleted_if_empty(house: House) -> None:
    house.broker.declare(declared("q"))
    house.publish("q", "a")

    with pytest.raises(PreconditionFailed, match="not empty"):
        house.broker.delete("q", if_empty=True)
    house.broker.purge("q")
    house.broker.delete("q", if_empty=True)


def test_consumers_are_told_when_their_queue_goes_and_get_their_credit_back(house: House) -> None:
    channel = Credit(2)
    house.broker.declare(declared("q"))
    house.broker.declare(declared("other"))
    inbox = house.consume("q", shared=channel)
    rest = house.consume("other", shared=channel)
    house.publish("q", "a", "b")

    house.broker.delete("q")
    house.publish("other", "c")

    assert (inbox.is_cancelled, rest.payloads) == (True, ["c"])


def test_settling_what_came_from_a_deleted_queue_is_no_error(world: World) -> None:
    house = world.house
    house.broker.declare(declared("q", durable=True))
    house.broker.declare(declared("other", durable=True))
    inbox = house.consume("q", credit=1)
    house.publish("q", "a", "b")
    channel = Credit(1)
    getter = Consumer("getter", print, shared=channel)
    single = house.broker.get("q", getter)
    house.broker.delete("q")
    house.run()

    assert single is not None
    house.settle(ACK, *inbox.got, single)

    assert channel.left == 1
    assert house.publish("other", "b") == [None]
    assert texts(world.restart(), "other") == ["b"]


def test_a_publish_to_a_queue_that_is_deleted_in_the_same_turn_is_confirmed_and_gone(world: World) -> None:
    house = world.house
    confirmed: list[HeadraceError | None] = []
    house.broker.declare(declared("q", durable=True))
    house.broker.publish(house.message("a", "q"), confirmed.append)
    house.broker.delete("q")

    house.run()

    assert confirmed == [None]
    assert "q" not in world.engine.logs()


@pytest.mark.parametrize("durable", [True, False])
def test_a_queue_deleted_and_declared_again_in_one_turn_has_only_the_new_messages(world: World, durable: bool) -> None:
    house = world.house
    house.broker.declare(declared("q", durable=durable))
    house.consume("q", credit=1)
    house.publish("q", "old", "older")

    house.broker.publish(house.message("lost", "q"))
    house.broker.delete("q")
    house.broker.declare(declared("q", durable=durable))
    house.broker.publish(house.message("new", "q"))
    inbox = house.consume("q")

    assert inbox.payloads == ["new"]
    if durable:
        assert world.restart().consume("q").payloads == ["new"]


def test_a_queue_deleted_and_declared_again_twice_in_one_turn_is_the_last_one(world: World) -> None:
    house = world.house
    house.broker.declare(declared("q", durable=True))
    house.publish("q", "first")
    for text in ("second", "third"):
        house.broker.delete("q")
        house.broker.declare(declared("q", durable=True))
        house.broker.publish(house.message(text, "q"))

    house.run()

    assert texts(house, "q") == ["third"]
    assert texts(world.restart(), "q") == ["third"]


def test_a_queue_can_change_from_stored_to_transient_and_back_within_a_turn(world: World) -> None:
    house = world.house
    house.broker.declare(declared("q", durable=True))
    house.publish("q", "stored")
    for durable in (False, True, False):
        house.broker.delete("q")
        house.broker.declare(declared("q", durable=durable))
        house.broker.publish(house.message(str(durable), "q"))

    house.run()

    assert texts(house, "q") == ["False"]
    assert "q" not in world.restart().broker.topology.queues


# -- consuming ---------------------------------------------------------------------------------------------------------


def test_what_was_taken_singly_goes_back_when_its_consumer_goes(house: House) -> None:
    house.broker.declare(declared("q", durable=True))
    house.publish("q", "a")
    getter = Consumer("getter", print)
    house.broker.get("q", getter)
    inbox = house.consume("q")
    assert inbox.payloads == []

    house.broker.cancel(getter)
    house.run()

    assert inbox.payloads == ["a"]


def test_a_stream_gives_no_single_messages(house: House) -> None:
    house.broker.declare(declared("s", durable=True, arguments={"x-queue-type": "stream"}))

    with pytest.raises(Refused, match="stream"):
        house.broker.get("s", Consumer("getter", print))


def test_an_ephemeral_queue_tracks_nothing_that_it_delivers(house: House) -> None:
    house.broker.declare(QueueDefinition("e", EPHEMERAL))
    inbox = house.consume("e")
    house.publish("e", "a")

    assert (inbox.payloads, house.broker.queue("e").unsettled) == (["a"], 0)


def test_a_transient_queue_does_not_wait_for_the_disk(house: House) -> None:
    house.broker.declare(declared("q"))
    inbox = house.consume("q")
    house.publish("q", "a")

    assert inbox.payloads == ["a"]
    assert "q" not in house.engine.logs()


# -- virtual hosts -----------------------------------------------------------------------------------------------------


def test_two_virtual_hosts_over_one_engine_know_nothing_of_each_other() -> None:
    engine = MemoryEngine()
    one, two = House(engine), House(engine, host="two")
    for house in (one, two):
        house.broker.declare(declared("q", durable=True))
        house.exchange("events", "fanout")
    one.bind("events", "q")
    one.publish("", "for one", exchange="events")
    two.publish("q", "for two")

    again_one, again_two = House(engine), House(engine, host="two")

    assert (texts(again_one, "q"), texts(again_two, "q")) == (["for one"], ["for two"])
    assert again_two.broker.topology.exchanges.bindings() == []
    again_one.broker.delete("q")
    again_one.run()
    assert texts(House(engine, host="two"), "q") == ["for two"]


def test_a_message_that_cannot_be_stored_is_refused_without_harm_to_others(house: House) -> None:
    house.broker.declare(declared("orders", durable=True))
    confirmed: list[HeadraceError | None] = []
    house.broker.publish(house.message("good", "orders"), confirmed.append)

    with pytest.raises(Refused, match="priority 256"):
        house.broker.publish(house.message("bad", "orders", priority=256), confirmed.append)
    house.run()

    assert confirmed == [None]
