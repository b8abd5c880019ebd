"""Messages that are asked for, held again or passed on are in one place, for as long as was said, and counted right."""

import pytest

from headrace.core.queue.definition import Retry
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.core.queue.group import ACK, NACK, RELEASE
from headrace.errors import HeadraceError, Unavailable
from tests.house import House, Inbox
from tests.refusing_engine import RefusingEngine
from tests.unit.core.test_claims import LEASE_MS, finish, hold, open_queue, take
from tests.unit.core.test_group import group_of, house_with


def nobody(deliveries: list[Delivery]) -> None:
    raise AssertionError("it asks for what it gets")


def again(house: House) -> House:
    """The group as a new process finds it."""
    house.run()
    return House(house.engine, house.clock)


# -- asking ------------------------------------------------------------------------------------------------------------


def test_what_is_got_without_acknowledgement_is_done(house: House) -> None:
    open_queue(house, 2)

    got = house.broker.get("q", Consumer("getter", nobody, auto_ack=True))
    house.run()

    assert got is not None
    assert house.broker.queue("q").messages == 1
    assert again(house).consume("q").payloads == ["1"]


def test_a_consumer_that_has_a_queue_for_itself_may_ask_too(house: House) -> None:
    open_queue(house, 2)
    inbox = house.consume("q", "alone", credit=1, exclusive=True)

    got = house.broker.get("q", inbox.consumer)

    assert got is not None
    assert got.offset == 1


def test_no_more_is_claimed_than_the_group_may_have_pending(house: House) -> None:
    open_queue(house)
    take(house, 2)
    group = house.broker.queue("q").groups["default"]
    group.max_pending = 5

    assert take(house) == [2, 3, 4]
    assert take(house) == []
    assert take(house, 0) == []


def test_what_is_not_there_or_not_due_or_over_cannot_be_held(house: House) -> None:
    now_us = house.clock.now_us()
    open_queue(house, 1, retry=Retry(5, 10_000, 10_000))
    house.publish("q", "later", not_before_us=now_us + 5_000_000)
    house.publish("q", "expires", expires_us=now_us + 1_000_000)
    inbox = house.consume("q", credit=1)
    house.settle(NACK, *inbox.take())
    house.broker.cancel(inbox.consumer)
    house.run()
    house.clock.advance(2)

    assert hold(house, (0, 9)) == []
    house.clock.advance(3)
    assert hold(house, (0, 9)) == [(1, 2)]
    house.clock.advance(5)
    assert hold(house, (0, 9)) == [(0, 2)]


def test_a_claim_that_goes_on_is_the_same_attempt(house: House) -> None:
    open_queue(house, 3)
    take(house)
    for _ in range(3):
        house.advance(LEASE_MS / 1000 - 1)
        assert hold(house, (0, 3)) == [(0, 3)]

    house.advance(LEASE_MS / 1000)

    assert [delivery.attempts for delivery in house.consume("q").got] == [2, 2, 2]


def test_a_claim_that_is_cut_short_ends_then(house: House) -> None:
    open_queue(house, 3)
    take(house)
    inbox = house.consume("q")

    assert house.broker.claims.hold("q", "", "job", [(0, 3)], 10_000) == [0, 1, 2]
    house.advance(9.999)
    assert inbox.texts() == []
    house.advance(0.001)

    assert inbox.texts() == ["0", "1", "2"]


def test_what_is_done_after_its_time_is_in_the_history_with_its_attempts(house: House) -> None:
    open_queue(house, 2, history_ms=3_600_000)
    take(house, 1)
    house.advance(LEASE_MS / 1000 + 1)

    assert hold(house, (0, 2)) == [(0, 2)]
    assert finish(house, (0, 2)) == 2

    assert [(entry["offset"], entry["deliveries"]) for _, entry in house.broker.history("q")] == [(0, 2), (1, 1)]


# -- passed on to a transaction and back -------------------------------------------------------------------------------


def failing(refusing: RefusingEngine, house: House, *deliveries: Delivery) -> None:
    """A transaction that acknowledges these and cannot be stored."""
    refusing.failure, refusing.fails_all = Unavailable("the disk is full"), True
    told: list[HeadraceError | None] = []
    house.broker.transaction([], [(delivery, ACK) for delivery in deliveries], told.append)
    house.turn()
    refusing.failure = None
    assert [type(error) for error in told] == [Unavailable]


@pytest.mark.parametrize(("own_us", "seconds"), [(0, 20), (7_000_000, 7)])
def test_after_a_transaction_that_failed_its_consumer_has_as_long_as_if_it_had_just_come(
    refusing: RefusingEngine, refused: House, own_us: int, seconds: int
) -> None:
    open_queue(refused, 1, lease_ms=20_000)
    inbox = Inbox(refused, "first", 0, False, 0, None)
    inbox.consumer.lease_us = own_us
    refused.broker.consume("q", inbox.consumer)
    refused.run()
    refused.clock.advance(3)
    failing(refusing, refused, *inbox.take())

    refused.advance(seconds - 0.001)
    assert inbox.texts() == []
    refused.advance(0.001)
    assert inbox.texts() == ["0"]


def test_a_transaction_that_failed_costs_its_consumer_no_allowance(refusing: RefusingEngine, refused: House) -> None:
    open_queue(refused, 4)
    inbox = refused.consume("q", credit=1)
    refused.broker.allow(inbox.consumer, 2)
    failing(refusing, refused, *inbox.take())

    refused.broker.groups.settle("q", "default", 0, ACK)
    refused.run()
    refused.broker.set_credit(inbox.consumer, 100)
    refused.run()

    assert inbox.texts() == ["1", "2"]


def test_what_was_noted_on_a_message_is_there_after_a_transaction_that_gave_it_back(house: House) -> None:
    open_queue(house, 1, retry=Retry(5, 0, 0))
    inbox = house.consume("q")
    (delivery,) = inbox.take()
    delivery.notes = {"reason": "busy"}

    house.broker.transaction([], [(delivery, NACK)])
    house.run()

    assert [each.notes for each in inbox.got] == [{"reason": "busy"}]


def test_what_a_transaction_acknowledged_leaves_the_log_without_any_other_call(house: House) -> None:
    open_queue(house, 2)
    inbox = house.consume("q")

    house.broker.transaction([], [(delivery, ACK) for delivery in inbox.take()])
    house.run()

    assert house.broker.queue("q").log.first_offset == 2


@pytest.mark.parametrize(("outcome", "came"), [(NACK, [[], [], ["a"]]), (RELEASE, [["a"], [], []])])
def test_what_a_transaction_gives_back_waits_for_another_member_as_long_as_without_one(
    outcome: int, came: list[list[str]]
) -> None:
    house = house_with(delivery_limit=5)
    picky = house.consume("orders", "picky", credit=1)
    house.consume("orders", "busy", credit=1)
    house.publish("orders", "a", "b")

    house.broker.transaction([], [(picky.take()[0], outcome)])
    house.run()

    seen = [picky.texts()]
    for seconds in (0.999, 0.001):
        house.advance(seconds)
        seen.append(picky.texts())
    assert seen == came
    assert group_of(house).unsettled == 2
