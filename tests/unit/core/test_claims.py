"""Work claimed by name: shared with ordinary consumers, back in line when its time is over, done once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.queue.claims import merged
from headrace.core.queue.definition import QueueDefinition, Retry
from headrace.core.queue.group import ACK, NACK
from headrace.errors import AccessRefused, NotFound, Refused
from tests.house import House
from tests.unit.core.conftest import World

LEASE_MS = 60_000
ALL = 1 << 62


def open_queue(house: House, count: int = 10, **options: object) -> House:
    house.broker.declare(QueueDefinition("q", **options))  # type: ignore[arg-type]
    house.publish("q", *[str(number) for number in range(count)])
    return house


def take(house: House, most: int = 100, before: int = ALL, name: str = "job") -> list[int]:
    taken = house.broker.claims.take("q", "", name, most, before, LEASE_MS)
    house.run()
    return [delivery.offset for delivery in taken]


def finish(house: House, *ranges: tuple[int, int], name: str = "job") -> int:
    count = house.broker.claims.finish("q", "", name, ranges)
    house.run()
    return count


def hold(house: House, *ranges: tuple[int, int], name: str = "job") -> list[tuple[int, int]]:
    held = house.broker.claims.hold("q", "", name, ranges, LEASE_MS)
    house.run()
    return merged(held)


def test_claims_and_consumers_share_a_queue(house: House) -> None:
    open_queue(house)

    assert take(house, 4) == [0, 1, 2, 3]
    inbox = house.consume("q", "other", credit=3)
    assert inbox.texts() == ["4", "5", "6"]
    assert take(house, 100) == [7, 8, 9]
    assert take(house, 100) == []


def test_what_is_finished_leaves_the_queue_for_good(world: World) -> None:
    house = open_queue(world.house)
    take(house, 6)

    assert finish(house, (0, 3), (5, 6)) == 4
    house.broker.claims.release("q", "", "job")
    house = world.restart()

    assert house.broker.queue("q").log.first_offset == 3
    assert take(house) == [3, 4, 6, 7, 8, 9]


def test_what_is_not_finished_in_time_goes_back_in_line_and_counts_as_tried(house: House) -> None:
    open_queue(house)
    take(house, 3)

    house.advance(LEASE_MS / 1000 - 1)
    inbox = house.consume("q", "other", credit=7)
    assert inbox.texts() == [str(number) for number in range(3, 10)]
    house.broker.set_credit(inbox.consumer, 10)
    house.advance(2)

    assert [(delivery.offset, delivery.attempts) for delivery in inbox.take()] == [(0, 2), (1, 2), (2, 2)]


def test_a_claim_that_is_held_lasts(house: House) -> None:
    open_queue(house)
    take(house, 3)

    for _ in range(3):
        house.advance(LEASE_MS / 1000 - 1)
        assert hold(house, (0, 3)) == [(0, 3)]

    assert take(house, 1, name="another") == [3]


def test_after_a_restart_a_claim_is_held_again_as_far_as_nobody_else_has_it(world: World) -> None:
    house = open_queue(world.house)
    take(house, 6)
    house = world.restart()
    inbox = house.consume("q", "other", credit=2)
    assert inbox.texts() == ["0", "1"]

    assert hold(house, (0, 6)) == [(2, 6)]

    house.broker.set_credit(inbox.consumer, 100)
    house.run()
    assert inbox.texts() == ["6", "7", "8", "9"]  # each once, though their places in line were passed over
    assert finish(house, (0, 6)) == 4


def test_what_is_held_again_ahead_of_the_line_is_not_given_to_others(house: House) -> None:
    open_queue(house)

    assert hold(house, (5, 8)) == [(5, 8)]

    assert take(house, name="another") == [0, 1, 2, 3, 4, 8, 9]
    assert finish(house, (5, 8)) == 3


def test_what_came_back_is_finished_once_it_is_held_again_and_not_before(house: House) -> None:
    open_queue(house, 4)
    take(house)
    house.advance(LEASE_MS / 1000 + 1)
    inbox = house.consume("q", "other", credit=1)
    (delivery,) = inbox.take()

    assert finish(house, (0, 4)) == 0
    assert hold(house, (0, 4)) == [(1, 4)]
    assert finish(house, (0, 4)) == 3
    house.settle(ACK, delivery)

    assert house.broker.queue("q").log.first_offset == 4
    assert finish(house, (0, 4)) == 0
    assert finish(house, (0, 99)) == 0


def test_only_what_was_there_is_claimed_when_asked_so(house: House) -> None:
    open_queue(house)
    take(house, 4)
    house.broker.claims.release("q", "", "job")
    house.run()

    assert take(house, before=2) == [0, 1]
    assert take(house, before=2) == []
    assert take(house) == [2, 3, 4, 5, 6, 7, 8, 9]


def test_a_claim_that_fails_again_and_again_ends_as_a_dead_letter(house: House) -> None:
    house.broker.declare(QueueDefinition("graves"))
    open_queue(
        house, 1, retry=Retry(max_retries=1, initial_backoff_ms=0), dead_letter_exchange="", dead_letter_key="graves"
    )

    for _ in range(3):
        take(house)
        house.advance(LEASE_MS / 1000 + 1)

    assert house.broker.queue("graves").messages == 1


def test_nothing_is_claimed_where_nothing_may_be(house: House) -> None:
    house.broker.declare(QueueDefinition("log", kind="stream"))
    open_queue(house)
    house.consume("q", "alone", credit=1, exclusive=True)

    with pytest.raises(Refused, match="is a stream"):
        house.broker.claims.take("log", "", "job", 1, ALL, LEASE_MS)
    with pytest.raises(NotFound):
        house.broker.claims.take("none", "", "job", 1, ALL, LEASE_MS)
    with pytest.raises(AccessRefused, match="exclusive"):
        take(house)
    with pytest.raises(AccessRefused, match="exclusive"):
        hold(house, (1, 2))


def test_nothing_is_claimed_while_the_group_is_paused(house: House) -> None:
    open_queue(house)
    take(house, 1)
    house.broker.groups.pause("q", "default")

    assert take(house) == []

    house.broker.groups.pause("q", "default", False)
    assert take(house, 1) == [1]


@given(st.sets(st.integers(0, 60)))
def test_ranges_are_the_offsets_they_stand_for(offsets: set[int]) -> None:
    ranges = merged(offsets)

    assert [offset for start, stop in ranges for offset in range(start, stop)] == sorted(offsets)
    assert all(ranges[at][1] < ranges[at + 1][0] for at in range(len(ranges) - 1))


def test_a_message_that_waits_for_its_retry_is_not_finished_by_a_claim_that_does_not_hold_it(house: House) -> None:
    open_queue(house, 2, retry=Retry(initial_backoff_ms=60_000))
    house.settle(NACK, *house.consume("q").take())
    group = house.broker.queue("q").groups["default"]
    assert group.delayed == 2

    assert finish(house, (0, 1)) == 0

    assert (group.delayed, group.lag) == (2, 2)
