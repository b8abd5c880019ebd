"""Ranges merge what touches, and stay sorted and disjoint."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.ranges import RangeSet


def _ranges(*pairs: tuple[int, int]) -> RangeSet:
    found = RangeSet()
    for start, stop in pairs:
        found.add(start, stop)
    return found


def test_a_new_set_is_empty() -> None:
    assert list(RangeSet()) == []


def test_an_empty_range_adds_nothing() -> None:
    assert list(_ranges((3, 3))) == []


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        pytest.param([(1, 2), (2, 3)], [(1, 3)], id="touching above"),
        pytest.param([(2, 3), (1, 2)], [(1, 3)], id="touching below"),
        pytest.param([(1, 4), (2, 6)], [(1, 6)], id="overlapping"),
        pytest.param([(1, 9), (3, 4)], [(1, 9)], id="inside"),
        pytest.param([(3, 4), (1, 9)], [(1, 9)], id="around"),
        pytest.param([(1, 2), (5, 6), (2, 5)], [(1, 6)], id="filling a gap"),
        pytest.param([(1, 2), (3, 4), (5, 6), (0, 9)], [(0, 9)], id="over several"),
        pytest.param([(7, 8), (1, 2)], [(1, 2), (7, 8)], id="apart and out of order"),
    ],
)
def test_ranges_that_touch_become_one(pairs: list[tuple[int, int]], expected: list[tuple[int, int]]) -> None:
    assert list(_ranges(*pairs)) == expected


def test_the_length_is_the_number_of_ranges_not_of_offsets() -> None:
    assert len(_ranges((0, 1_000_000), (2_000_000, 2_000_001))) == 2


def test_a_range_holds_its_start_and_not_its_stop() -> None:
    found = _ranges((3, 5))

    assert [offset for offset in range(8) if offset in found] == [3, 4]


def test_discarding_below_cuts_the_range_it_falls_into() -> None:
    found = _ranges((1, 3), (5, 9))

    found.discard_below(6)

    assert list(found) == [(6, 9)]


def test_discarding_below_a_stop_removes_that_range() -> None:
    found = _ranges((1, 3), (5, 9))

    found.discard_below(3)

    assert list(found) == [(5, 9)]


def test_taking_from_the_first_range_removes_it_and_gives_its_stop() -> None:
    found = _ranges((3, 5), (7, 9))

    assert found.take_from(3) == 5
    assert list(found) == [(7, 9)]


def test_taking_from_a_gap_gives_the_offset_back() -> None:
    found = _ranges((3, 5))

    assert found.take_from(2) == 2
    assert list(found) == [(3, 5)]


_pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair))))


@given(_pairs)
def test_any_additions_hold_what_a_plain_set_holds(pairs: list[tuple[int, int]]) -> None:
    expected = {offset for start, stop in pairs for offset in range(start, stop)}

    assert {offset for start, stop in _ranges(*pairs) for offset in range(start, stop)} == expected


@given(_pairs)
def test_any_additions_leave_gaps_between_ranges(pairs: list[tuple[int, int]]) -> None:
    bounds = [bound for pair in _ranges(*pairs) for bound in pair]

    assert all(low < high for low, high in pairwise(bounds))


@given(_pairs, st.integers(0, 72))
def test_any_discarding_keeps_exactly_what_is_above(pairs: list[tuple[int, int]], below: int) -> None:
    found = _ranges(*pairs)
    expected = {offset for start, stop in found for offset in range(start, stop) if offset >= below}

    found.discard_below(below)

    assert {offset for start, stop in found for offset in range(start, stop)} == expected
