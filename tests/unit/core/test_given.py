"""When it is stored that a message is with a consumer: not if it is done soon, and in time if it is not."""

import gc

from headrace.core.declared import declared
from headrace.core.delivery import Delivery
from headrace.core.given import STORED_AFTER_US
from headrace.core.group import ACK, NACK
from headrace.core.line import HOLD_US
from headrace.storage.group_state import CLAIMED, Transition
from tests.house import House, Inbox
from tests.stubborn import StubbornEngine


def prepared(house: House) -> Inbox:
    for name in ("orders", "others"):
        house.broker.declare(declared(name, durable=True))
    return house.consume("orders")


def publish(house: House, *texts: str, queue: str = "orders") -> None:
    for text in texts:
        house.broker.publish(house.message(text, queue))
    house.turn()


def claims(stubborn: StubbornEngine) -> list[tuple[int, int]]:
    steps: list[Transition] = [step for commit in stubborn.committed for step in commit.steps]
    return [(step.start, step.stop) for step in steps if step.kind == CLAIMED]


def test_a_claim_that_ends_well_at_once_is_never_stored(stubborn: StubbornEngine, refused: House) -> None:
    inbox = prepared(refused)
    publish(refused, "a", "b")

    for delivery in inbox.take():
        refused.broker.settle(delivery, ACK)
    publish(refused, "c", queue="others")
    refused.advance(1)

    assert claims(stubborn) == []


def test_what_is_still_held_is_stored_along_with_what_comes_later(stubborn: StubbornEngine, refused: House) -> None:
    inbox = prepared(refused)
    publish(refused, "a", "b", "c")
    refused.broker.settle(inbox.got[1], ACK)
    for _ in range(3):
        assert claims(stubborn) == []
        refused.clock.advance(STORED_AFTER_US / 2 / 1_000_000)
        publish(refused, "x", queue="others")
    refused.clock.advance(STORED_AFTER_US / 2 / 1_000_000)
    publish(refused, "y", queue="others")

    assert claims(stubborn) == [(0, 1), (2, 3)]


def test_where_nothing_else_is_stored_a_claim_does_not_wait_for_it(stubborn: StubbornEngine, refused: House) -> None:
    prepared(refused)
    publish(refused, "a")
    assert claims(stubborn) == []

    refused.clock.advance(HOLD_US / 1_000_000)
    refused.broker.tick()
    refused.turn()

    assert claims(stubborn) == [(0, 1)]


def test_what_is_given_back_at_once_counts_as_an_attempt(stubborn: StubbornEngine, refused: House) -> None:
    inbox = prepared(refused)
    publish(refused, "a")
    refused.broker.settle(inbox.got[0], NACK)
    refused.turn()
    refused.advance(10)

    inbox = House(stubborn, refused.clock).consume("orders")

    assert [(each.attempts, each.redelivered) for each in inbox.got] == [(3, True)]


def test_an_engine_that_keeps_claims_is_told_of_each(stubborn: StubbornEngine) -> None:
    stubborn.keeps_claims = True
    house = House(stubborn)
    inbox = prepared(house)
    publish(house, "a")

    house.settle(ACK, inbox.got[0])

    assert claims(stubborn) == [(0, 1)]


def test_what_is_done_does_not_stay_in_memory_while_storage_takes_nothing(
    stubborn: StubbornEngine, refused: House
) -> None:
    for name in ("orders", "others"):
        refused.broker.declare(declared(name, durable=True))
    publish(refused, *[str(number) for number in range(5000)])
    inbox = refused.consume("orders", credit=100)
    stubborn.is_closed_door = True
    publish(refused, "x", queue="others")

    done = 0
    while deliveries := inbox.take():
        done += len(deliveries)
        refused.broker.acknowledge(deliveries)
        refused.turn()

    orders = refused.broker.queue("orders")
    left = [each for each in gc.get_objects() if isinstance(each, Delivery) and each.group.queue is orders]
    assert done == 5000
    assert len(left) < 1000
