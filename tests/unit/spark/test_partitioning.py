"""Partitions are whole pieces in order, and triggers take the same part of every queue."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.place import Piece, grouped, within_bytes, within_rows


def pieces(*sizes: int) -> list[Piece]:
    return [Piece(10 * number, 10 * number + 10, size) for number, size in enumerate(sizes)]


def test_pieces_are_put_together_up_to_a_size_and_never_cut() -> None:
    assert [len(group) for group in grouped(pieces(4, 4, 4, 20, 1, 1), 10)] == [2, 1, 1, 2]


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 100), st.integers(1, 12))
def test_grouping_keeps_every_piece_once_and_in_order(sizes: list[int], most: int, least: int) -> None:
    every = pieces(*sizes)

    groups = grouped(every, most, least)

    assert [piece for group in groups for piece in group] == every
    assert all(len(group) == 1 or sum(piece.size_bytes for piece in group) <= most for group in groups)
    assert len(groups) >= min(least, len(every))


@given(st.integers(1, 60), st.integers(1, 10), st.integers(1, 12))
def test_pieces_of_one_size_are_shared_out_evenly(count: int, most: int, least: int) -> None:
    groups = grouped(pieces(*[10] * count), 10 * most, least)

    lengths = {len(group) for group in groups}
    assert max(lengths) - min(lengths) <= 1
    assert len(groups) == max(min(least, count), -(-count // most))


def test_what_is_too_large_for_one_partition_becomes_two_of_the_same_size() -> None:
    assert [len(group) for group in grouped(pieces(*[3] * 62), 130)] == [31, 31]


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 99), st.integers(0, 99))), st.integers(1, 200)
)
def test_a_trigger_takes_as_many_messages_as_it_may_and_never_too_many(
    ranges: dict[str, tuple[int, int]], most: int
) -> None:
    starts = {queue: start for queue, (start, _) in ranges.items()}
    ends = {queue: start + count for queue, (start, count) in ranges.items()}

    moved = within_rows(starts, ends, most)

    assert all(starts[queue] <= moved[queue] <= ends[queue] for queue in ranges)
    waiting = sum(count for _, count in ranges.values())
    assert sum(moved[queue] - starts[queue] for queue in ranges) == min(most, waiting)


def test_a_trigger_by_bytes_takes_at_least_one_piece() -> None:
    three = pieces(5, 5, 5)

    assert within_bytes(three, 0, 30, 11) == 20
    assert within_bytes(three, 0, 30, 1) == 10
    assert within_bytes(three, 0, 25, 100) == 25
