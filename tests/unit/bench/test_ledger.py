"""The books of a consumer: what is missing, twice or out of order is noticed, lane by lane."""

from array import array

import pytest
from bench.compare.ledger import Ledger
from bench.compare.payload import LANE_SHIFT, key_sum


def entered(*keys: int, is_exclusive: bool = True) -> Ledger:
    """A ledger with these keys, entered at once."""
    ledger = Ledger(is_exclusive)
    ledger.add(array("Q", keys).tobytes())
    return ledger


def lane(number: int, *sequence: int) -> list[int]:
    return [(number << LANE_SHIFT) + each for each in sequence]


def test_messages_in_order_are_no_reason_to_complain() -> None:
    ledger = entered(*range(1000))

    assert ledger.complaint() == ""
    assert (ledger.count, ledger.total) == (1000, key_sum(0, 0, 1000))


def test_lanes_have_an_order_of_their_own() -> None:
    ledger = entered(*lane(0, 0, 1), *lane(7, 0), *lane(0, 2), *lane(7, 1, 2))

    assert ledger.complaint() == ""
    assert ledger.total == key_sum(0, 0, 3) + key_sum(7, 0, 3)


@pytest.mark.parametrize("keys", [(0, 1, 3, 4), (1, 2, 3), (0, 5)])
def test_a_missing_message_is_noticed(keys: tuple[int, ...]) -> None:
    assert "missing" in entered(*keys).complaint()


@pytest.mark.parametrize("keys", [(0, 1, 1, 2), (0, 1, 2, 1), (0, 2, 1, 3)])
def test_a_message_that_comes_twice_or_late_is_noticed(keys: tuple[int, ...]) -> None:
    assert "out of order or twice" in entered(*keys).complaint()


def test_a_message_that_comes_twice_in_different_reads_is_noticed() -> None:
    ledger = entered(*range(10))
    ledger.add(array("Q", range(9, 12)).tobytes())

    assert "twice" in ledger.complaint()


def test_messages_that_were_consumed_before_are_not_missed() -> None:
    ledger = Ledger(True, taken=(100, 40), lanes=2)
    ledger.add(array("Q", [*lane(0, 100, 101), *lane(1, 100), *lane(3, 40, 41)]).tobytes())

    assert ledger.complaint() == ""

    ledger.add(array("Q", lane(2, 0)).tobytes())
    assert "twice" in ledger.complaint()


def test_who_shares_a_queue_gets_some_of_the_messages_in_order() -> None:
    assert entered(3, 7, 8, 20, is_exclusive=False).complaint() == ""
    assert "out of order" in entered(3, 8, 7, is_exclusive=False).complaint()
