"""Values of protocols that survive a restart."""

from headrace.core.queue.definition import QueueDefinition
from headrace.errors import HeadraceError, Unavailable
from tests.house import House
from tests.refusing_engine import RefusingEngine


def _again(house: House) -> House:
    return House(house.engine, house.clock)


def test_keys_are_found_again_each_virtual_host_its_own(house: House) -> None:
    other = House(house.engine, house.clock, "other")
    house.broker.protocol_store.put(b"k", b"v")
    house.broker.protocol_store.put(b"gone", b"v")
    other.broker.protocol_store.put(b"k", b"theirs")
    house.broker.protocol_store.delete(b"gone")
    house.run()
    other.run()

    assert _again(house).broker.protocol_store.items() == [(b"k", b"v")]
    assert House(house.engine, house.clock, "other").broker.protocol_store.items() == [(b"k", b"theirs")]


def test_keys_are_stored_though_what_was_published_with_them_is_refused(
    refusing: RefusingEngine, refused: House
) -> None:
    refused.broker.declare(QueueDefinition("q"))
    refused.run()
    told: list[HeadraceError | None] = []
    refusing.failure = Unavailable("the disk is full")
    refused.broker.publish(refused.message("x", "q"), told.append)
    refused.broker.protocol_store.put(b"k", b"v")
    refused.run()
    refusing.failure = None
    refused.advance(2)

    assert [type(error) for error in told] == [Unavailable]
    assert refused.broker.protocol_store.items() == [(b"k", b"v")]
