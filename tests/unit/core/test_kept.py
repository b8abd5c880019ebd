"""What protocols keep over a restart: keys, proofs of what was published, and what consumers held."""

import pytest

from headrace.core.queue.definition import QueueDefinition
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.core.queue.group import ACK, NACK, RELEASE
from headrace.errors import HeadraceError, Refused, Unavailable
from tests.house import House
from tests.refusing_engine import RefusingEngine


def _nobody(deliveries: list[Delivery]) -> None:
    raise AssertionError("nothing is delivered to it")


def _again(house: House) -> House:
    return House(house.engine, house.clock)


def test_keys_are_found_again_each_virtual_host_its_own(house: House) -> None:
    other = House(house.engine, house.clock, "other")
    house.broker.kept.put(b"k", b"v")
    house.broker.kept.put(b"gone", b"v")
    other.broker.kept.put(b"k", b"theirs")
    house.broker.kept.delete(b"gone")
    house.run()
    other.run()

    assert _again(house).broker.kept.items() == [(b"k", b"v")]
    assert House(house.engine, house.clock, "other").broker.kept.items() == [(b"k", b"theirs")]


@pytest.mark.parametrize("durable", [True, False])
def test_a_proof_is_stored_with_what_was_published(house: House, durable: bool) -> None:
    house.broker.declare(QueueDefinition("q", durable=durable))
    house.broker.publish(house.message("x", "q"))
    house.broker.kept.prove(b"tag")
    house.run()

    assert house.broker.kept.items() == [(b"tag", b"")]


def test_a_proof_is_refused_with_what_was_published(stubborn: RefusingEngine, refused: House) -> None:
    refused.broker.declare(QueueDefinition("q"))
    refused.run()
    told: list[HeadraceError | None] = []
    stubborn.failure = Unavailable("the disk is full")
    refused.broker.publish(refused.message("x", "q"), told.append)
    refused.broker.kept.prove(b"tag")
    refused.broker.kept.put(b"other", b"")
    refused.run()
    stubborn.failure = None
    refused.advance(2)

    assert [type(error) for error in told] == [Unavailable]
    assert refused.broker.kept.items() == [(b"other", b"")], "what is no proof is tried again"


def test_a_consumer_holds_again_what_it_held_before_a_restart(house: House) -> None:
    house.broker.declare(QueueDefinition("q"))
    first, second = house.consume("q", "first", credit=2), house.consume("q", "second", credit=1)
    house.publish("q", "a", "b", "c", "d")
    held = sorted(first.texts())
    house.settle(RELEASE)

    house = _again(house)
    back = Consumer("first", _nobody)
    deliveries = house.broker.reclaim("q", "default", back)
    third = house.consume("q", "third")

    assert sorted([one.message.payload.decode() for one in deliveries]) == held
    assert [one.attempts for one in deliveries] == [1, 1]
    assert sorted([*third.texts(), *held]) == ["a", "b", "c", "d"], "the others go to whoever wants them"
    house.settle(ACK, deliveries[0])
    house.settle(NACK, deliveries[1])
    assert third.texts() == [deliveries[1].message.payload.decode()]
    with pytest.raises(Refused):
        house.broker.settle(deliveries[0], ACK)
    del second


def test_what_was_held_goes_back_when_its_consumer_leaves_or_its_time_is_over(house: House) -> None:
    house.broker.declare(QueueDefinition("q", lease_ms=1000))
    house.consume("q", "first")
    house.publish("q", "a")
    house = _again(house)
    house.broker.reclaim("q", "default", Consumer("first", _nobody))
    inbox = house.consume("q", "second")
    assert inbox.texts() == []
    house.advance(2)
    assert inbox.texts() == ["a"]

    house = _again(house)
    back = Consumer("second", _nobody)
    (delivery,) = house.broker.reclaim("q", "default", back)
    assert delivery.redelivered
    house.broker.cancel(back)
    assert house.consume("q", "third").texts() == ["a"]


def test_nothing_is_held_of_what_is_gone(house: House) -> None:
    house.broker.declare(QueueDefinition("q"))
    house.consume("q", "first")
    house.publish("q", "a", expires_us=house.clock.now_us() + 1_000_000)
    house = _again(house)
    house.clock.advance(2)

    assert house.broker.reclaim("q", "default", Consumer("first", _nobody)) == []
    assert house.broker.reclaim("q", "no such group", Consumer("first", _nobody)) == []
    assert house.broker.reclaim("no such queue", "default", Consumer("first", _nobody)) == []
