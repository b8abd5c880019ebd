"""A paused group gets nothing, over restarts too, and goes on where it was."""

from collections.abc import Callable

from headrace.core.queue.definition import QueueDefinition
from headrace.core.queue.dispatch import Consumer
from headrace.core.queue.group import ACK
from headrace.storage.api import PAUSES
from tests.house import House
from tests.unit.core.conftest import World


def test_a_paused_group_gets_nothing_until_it_goes_on(house: House) -> None:
    house.broker.declare(QueueDefinition("jobs"))
    inbox = house.consume("jobs")

    house.broker.groups.pause("jobs", "default")
    house.publish("jobs", "one")
    before = inbox.texts()
    house.broker.groups.pause("jobs", "default", is_paused=False)
    house.run()

    assert before == []
    assert inbox.texts() == ["one"]


def test_nobody_takes_single_messages_from_a_paused_group(house: House) -> None:
    house.broker.declare(QueueDefinition("jobs"))
    house.publish("jobs", "one")
    getter = Consumer("getter", lambda _: None)
    assert house.broker.get("jobs", getter) is not None
    house.publish("jobs", "two")

    house.broker.groups.pause("jobs", "default")

    assert house.broker.get("jobs", getter) is None


def test_what_a_consumer_holds_of_a_paused_group_can_be_settled(house: House) -> None:
    house.broker.declare(QueueDefinition("jobs"))
    inbox = house.consume("jobs")
    house.publish("jobs", "one")

    house.broker.groups.pause("jobs", "default")
    house.settle(ACK, *inbox.take())

    assert house.broker.queue("jobs").log.first_offset == 1


def test_a_pause_survives_a_restart_and_so_does_its_end(world: World) -> None:
    world.house.broker.declare(QueueDefinition("jobs"))
    world.house.consume("jobs")
    world.house.broker.groups.pause("jobs", "default")

    paused = world.restart()
    inbox = paused.consume("jobs")
    paused.publish("jobs", "one")
    assert inbox.texts() == []
    paused.broker.groups.pause("jobs", "default", is_paused=False)

    assert world.restart().consume("jobs").texts() == ["one"]


def test_a_group_or_queue_that_is_made_anew_is_not_paused(world: World) -> None:
    ways: list[Callable[[], int]] = [
        lambda: world.house.broker.groups.delete("jobs", "workers"),
        lambda: world.house.broker.delete("jobs"),
    ]
    for forget in ways:
        world.house.broker.declare(QueueDefinition("jobs"))
        inbox = world.house.consume("jobs", group="workers")
        world.house.broker.groups.pause("jobs", "workers")
        world.house.broker.cancel(inbox.consumer)

        forget()
        world.house.run()

        assert list(world.engine.items(PAUSES)) == []
