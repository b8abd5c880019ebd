"""Ends of a work queue's messages: alone, among others, and after a restart."""

import pytest

from headrace.core.queue.definition import QueueDefinition, Retry
from headrace.core.queue.group import ACK, NACK
from headrace.errors import Refused
from headrace.selector import parse
from tests.house import House, Inbox
from tests.unit.core.conftest import World


def working(house: House, *payloads: str, credit: int = 0, **options: object) -> Inbox:
    """A consumer that holds these, as far as it has room."""
    house.broker.declare(QueueDefinition("q", **options))  # type: ignore[arg-type]
    inbox = house.consume("q", credit=credit)
    house.publish("q", *payloads)
    return inbox


def test_what_is_acknowledged_with_gaps_is_done_and_nothing_between(world: World) -> None:
    inbox = working(world.house, *"abcdefg")

    world.house.broker.acknowledge([inbox.got[at] for at in (1, 3, 4, 6)])

    assert world.restart().consume("q").payloads == ["a", "c", "f"]


def test_of_what_is_acknowledged_twice_only_the_rest_is_done_then(world: World) -> None:
    inbox = working(world.house, *"abc")
    world.house.settle(ACK, inbox.got[0])

    world.house.broker.acknowledge(inbox.got[:2])
    world.house.run()

    group = world.house.broker.queue("q").groups["default"]
    assert (group.acknowledged, group.unsettled) == (2, 1)
    assert world.restart().consume("q").payloads == ["c"]


def test_what_waits_for_its_next_try_leaves_its_neighbours_alone_over_a_restart(world: World) -> None:
    inbox = working(world.house, *"abc", retry=Retry(5, 100_000, 100_000))
    world.house.settle(NACK, inbox.got[0])

    assert world.restart().consume("q").payloads == ["b", "c"]


def test_what_was_dropped_stays_so_over_a_restart_and_its_neighbours_stay(world: World) -> None:
    inbox = working(world.house, *"abcde", credit=1, max_length=2)
    assert (inbox.payloads, world.house.broker.queue("q").messages) == (["a"], 2)
    group = world.house.broker.queue("q").groups["default"]
    assert group.acknowledged == 0

    assert world.restart().consume("q").payloads == ["a", "d", "e"]


def test_all_that_was_noted_on_messages_comes_with_them_until_they_are_done(house: House) -> None:
    inbox = working(house, *"ab", retry=Retry(5, 0, 0))
    first, second = inbox.take()
    first.notes, second.notes = {"reason": "busy"}, {"reason": "late"}
    house.settle(NACK, first, second)

    again = inbox.take()

    assert [(each.offset, each.notes) for each in again] == [(0, {"reason": "busy"}), (1, {"reason": "late"})]


def test_one_that_is_acknowledged_by_itself_is_in_the_history(house: House) -> None:
    inbox = working(house, "a", history_ms=3_600_000)

    house.broker.acknowledge(inbox.take())
    house.run()

    assert [(entry["outcome"], entry["deliveries"]) for _, entry in house.broker.history("q")] == [("done", 1)]


def test_one_that_is_acknowledged_by_itself_leaves_room_for_its_bytes(house: House) -> None:
    inbox = working(house, "aa", credit=1, max_length_bytes=2, overflow="reject-publish")
    house.broker.acknowledge(inbox.take())
    house.run()

    for _ in range(3):
        assert house.publish("q", "bb") == [None]
        house.broker.acknowledge(inbox.take())
        house.run()


def test_one_whose_time_was_over_before_its_consumer_had_room_is_not_delivered(world: World) -> None:
    house = world.house
    inbox = working(house, "a", credit=1)
    house.publish("q", "b", expires_us=house.clock.now_us() + 1_000_000)
    house.clock.advance(2)

    house.settle(ACK, *inbox.take())

    assert (inbox.texts(), house.broker.queue("q").messages) == ([], 0)


def test_a_message_that_is_alone_in_its_queue_is_a_first_delivery(world: World) -> None:
    house = world.house
    inbox = working(house)
    for text in "abc":
        house.publish("q", text)
        (delivery,) = inbox.take()
        assert (delivery.redelivered, delivery.attempts, delivery.message.payload.decode()) == (False, 1, text)
        house.settle(ACK, delivery)

    assert house.broker.queue("q").groups["default"].state.cursor == 3


def test_a_consumer_whose_time_ran_out_hears_of_it_once(house: House) -> None:
    inbox = working(house, *"ab", lease_ms=1000)
    heard: list[int] = []
    inbox.consumer.overdue = lambda: heard.append(len(inbox.got))

    house.advance(1)

    assert len(heard) == 1


def test_the_first_of_two_times_is_the_next_to_be_looked_at(house: House) -> None:
    inbox = working(house, *"ab", lease_ms=50_000, retry=Retry(5, 5_000, 5_000))
    now_us = house.clock.now_us()
    house.settle(NACK, inbox.got[0])

    assert house.broker.queue("q").groups["default"].next_due_us() == now_us + 5_000_000


def test_what_is_held_of_a_queue_that_goes_is_nobodys(house: House) -> None:
    inbox = working(house, *"ab")
    held = inbox.take()

    house.broker.delete("q")
    house.run()

    assert (inbox.consumer.holding, inbox.consumer.group) == (0, None)
    assert [each.is_held for each in held] == [False, False]
    house.broker.settle(held[0])  # nothing is there to be settled


def test_what_a_filter_leaves_out_is_done_with_over_a_restart(world: World) -> None:
    house = world.house
    house.broker.declare(QueueDefinition("q", max_length_bytes=100))
    inbox = house.consume("q", group="some", key_filter="a/#")
    for key in ("b/1", "a/1", "b/2", "a/2"):
        house.publish_topic(f"$queue/q/{key}", key)
    assert inbox.payloads == ["a/1", "a/2"]
    assert house.broker.queue("q").log.first_offset == 1
    house.settle(ACK, *inbox.take())

    house = world.restart()
    assert house.broker.queue("q").log.first_offset == 4
    assert house.consume("q", group="some", key_filter="a/#").payloads == []


def test_what_came_back_from_a_transaction_that_was_refused_can_be_acknowledged(house: House) -> None:
    inbox = working(house, *"ab")
    first, second = inbox.take()
    house.settle(ACK, second)
    try:
        house.broker.transaction([], [(first, ACK), (second, ACK)])
    except Refused:
        house.run()

    house.broker.acknowledge([first])
    house.run()

    assert house.broker.queue("q").groups["default"].lag == 0


@pytest.mark.parametrize("way", ["one", "many"])
@pytest.mark.parametrize("others", [0, 1])
def test_a_member_that_wants_some_gets_the_next_when_it_settles_one(house: House, way: str, others: int) -> None:
    house.broker.declare(QueueDefinition("q"))
    inbox = Inbox(house, "picky", 1, False, 0, None)
    inbox.consumer.selector = parse("n = 1")
    house.broker.consume("q", inbox.consumer)
    for _ in range(others):
        other = Inbox(house, "also picky", 1, False, 0, None)
        other.consumer.selector = parse("n = 2")
        house.broker.consume("q", other.consumer)
    house.run()
    for text in "abc":
        house.publish("q", text, headers={"n": 1})

    got: list[str] = []
    while deliveries := inbox.take():
        got += [each.message.payload.decode() for each in deliveries]
        if way == "one":
            house.broker.settle(deliveries[0], ACK)
        else:
            house.broker.acknowledge(deliveries)
        house.turn()

    assert got == ["a", "b", "c"]
