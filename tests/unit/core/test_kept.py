"""What protocols keep over a restart."""

from headrace.core.queue.definition import QueueDefinition
from headrace.errors import HeadraceError, Unavailable
from tests.house import House
from tests.refusing_engine import RefusingEngine


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


def test_keys_are_stored_though_what_was_published_with_them_is_refused(
    stubborn: RefusingEngine, refused: House
) -> None:
    refused.broker.declare(QueueDefinition("q"))
    refused.run()
    told: list[HeadraceError | None] = []
    stubborn.failure = Unavailable("the disk is full")
    refused.broker.publish(refused.message("x", "q"), told.append)
    refused.broker.kept.put(b"k", b"v")
    refused.run()
    stubborn.failure = None
    refused.advance(2)

    assert [type(error) for error in told] == [Unavailable]
    assert refused.broker.kept.items() == [(b"k", b"v")]
