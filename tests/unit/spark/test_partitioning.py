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


class Queues:
    """Queues of pieces of ten messages each, that are read batch by batch within bytes."""

    def __init__(self, **sizes: list[int]) -> None:
        self.pieces = {queue: pieces(*found) for queue, found in sizes.items()}
        self.starts = dict.fromkeys(sizes, 0)
        self.ends = {queue: 10 * len(found) for queue, found in sizes.items()}
        self.first = ""
        self.looks = 0

    def batch(self, most: int) -> dict[str, list[int]]:
        """Read a batch; return the sizes of its pieces by queue."""

        def pieces_of(queue: str, start: int, end: int, enough: int) -> list[Piece]:
            self.looks += 1
            return [piece for piece in self.pieces[queue] if piece.stop > start and piece.start < end]

        ends, self.first = within_bytes(self.starts, self.ends, most, self.first, pieces_of)
        found = {
            queue: [piece.size_bytes for piece in every if self.starts[queue] < piece.stop <= ends[queue]]
            for queue, every in self.pieces.items()
        }
        self.starts = ends
        return {queue: sizes for queue, sizes in found.items() if sizes}


def test_a_trigger_by_bytes_takes_at_least_one_piece() -> None:
    assert Queues(a=[5, 5, 5]).batch(11) == {"a": [5, 5]}
    assert Queues(a=[5, 5, 5]).batch(1) == {"a": [5]}
    assert Queues(a=[5, 5, 5]).batch(100) == {"a": [5, 5, 5]}


def test_queues_with_large_pieces_take_turns_within_one_limit() -> None:
    queues = Queues(**{f"q{number:03}": [4, 4] for number in range(500)})

    batches = [queues.batch(64) for _ in range(62)]

    assert {sum(map(sum, batch.values())) for batch in batches} == {64}
    served = [queue for batch in batches for queue in batch]
    assert sorted(set(served[:512])) == [f"q{number:03}" for number in range(500)]
    assert queues.looks < 62 * 32  # not all of them for every batch


def test_the_rest_of_a_small_queue_is_for_the_others() -> None:
    assert Queues(a=[1], b=[1] * 30, c=[1] * 30).batch(21) == {"a": [1], "b": [1] * 10, "c": [1] * 10}


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.lists(st.integers(0, 30), max_size=12)), st.integers(1, 60))
def test_batches_within_bytes_have_at_most_one_piece_that_is_larger_and_read_all(
    sizes: dict[str, list[int]], most: int
) -> None:
    queues = Queues(**sizes)
    unserved: dict[str, int] = {}
    done: dict[str, list[int]] = {queue: [] for queue in sizes}
    while done != sizes:
        batch = queues.batch(most)

        every = [size for found in batch.values() for size in found if size]
        assert sum(every) <= most or len(every) == 1
        for queue, found in sizes.items():
            done[queue] += batch.get(queue, [])
            is_served = queue in batch or len(done[queue]) == len(found)
            unserved[queue] = 0 if is_served else unserved.get(queue, 0) + 1
            assert unserved[queue] < len(sizes)
