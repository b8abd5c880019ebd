"""A stream whose messages give way to others: all at once, offsets going on, readers not shown what they have read."""

import pytest

from headrace.core.publishing import TO_QUEUE
from headrace.core.queue.definition import STREAM, QueueDefinition, Retention
from headrace.core.queue.group import ACK
from headrace.errors import HeadraceError, PreconditionFailed, Refused
from tests.house import House
from tests.unit.core.conftest import World
from tests.unit.core.test_bulk import commit, rows


def opened(house: House, *payloads: str, **options: object) -> House:
    house.broker.declare(QueueDefinition("prices", STREAM, **options))  # type: ignore[arg-type]
    house.publish("prices", *payloads)
    return house


def contents(house: House) -> list[tuple[int, str]]:
    queue = house.broker.queue("prices")
    messages = queue.log.read(queue.first_offset, 1000)
    return [(offset, message.payload.decode()) for offset, message in enumerate(messages, queue.first_offset)]


def replace(house: House, before: int, *payloads: str) -> HeadraceError | None:
    bulk = house.broker.bulk()
    bulk.replace("prices", before)
    bulk.add(TO_QUEUE, "prices", rows(house, *payloads))
    return commit(house, bulk, f"compact-{before}")


def test_what_is_added_takes_the_place_of_all_before_it(world: World) -> None:
    house = opened(world.house, *"abcd")

    assert replace(house, 4, "B", "D") is None

    assert contents(house) == [(4, "B"), (5, "D")]
    assert contents(world.restart()) == [(4, "B"), (5, "D")]


def test_what_was_published_meanwhile_stays_behind_it_also_in_the_same_turn(world: World) -> None:
    house = opened(world.house, *"abcd")
    house.publish("prices", "e")
    bulk = house.broker.bulk()
    bulk.replace("prices", 4)
    bulk.add(TO_QUEUE, "prices", rows(house, "B", "D"))
    house.broker.publish(house.message("f", "prices"))  # staged, and not stored yet

    assert commit(house, bulk) is None

    assert [text for _, text in contents(house)] == ["B", "D", "e", "f"]
    assert [text for _, text in contents(world.restart())] == ["B", "D", "e", "f"]


def test_readers_that_had_read_everything_are_not_shown_it_again_and_the_others_go_on_with_what_is_left() -> None:
    house = opened(House(), *"abcd")
    done = house.consume("prices", "done", group="done")
    house.settle(ACK, *done.take())
    house.broker.groups.report("prices", "behind", 1)
    house.run()

    assert replace(house, 4, "B", "D") is None
    house.publish("prices", "e")

    assert done.texts() == ["e"]
    behind = house.consume("prices", "behind", group="behind")
    assert behind.texts() == ["B", "D", "e"]


def test_everything_may_go() -> None:
    house = opened(House(), *"ab")
    bulk = house.broker.bulk()
    bulk.replace("prices", 2)

    assert commit(house, bulk) is None

    assert contents(house) == []


@pytest.mark.parametrize("before", [0, 9])
def test_offsets_that_do_not_fit_the_stream_change_nothing(before: int) -> None:
    house = opened(House(), *"abcdef", retention=Retention(max_messages=4))

    error = replace(house, before, "X")

    assert isinstance(error, PreconditionFailed)
    assert "read it again" in str(error)
    assert [text for _, text in contents(house)] == ["c", "d", "e", "f"]


def test_what_somebody_needs_stays() -> None:
    house = opened(House(), *"ab", retention=Retention(keep_until_archived=True))

    assert "still needs messages" in str(replace(house, 2, "B"))
    assert [text for _, text in contents(house)] == ["a", "b"]

    house.broker.groups.report("prices", "archive", 2)
    house.run()
    assert replace(house, 2, "B") is None


def test_only_durable_streams_are_replaced() -> None:
    house = House()
    house.broker.declare(QueueDefinition("orders"))

    with pytest.raises(Refused, match="'orders' is no durable stream"):
        house.broker.bulk().replace("orders", 0)
