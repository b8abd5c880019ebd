"""A batch that is too much for one commit is cut into pieces that have every offset once."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.pipelines.assign_batch import Part, cut

_PARTS = st.lists(
    st.builds(Part, st.just("p"), st.integers(1, 50), st.sampled_from(["a", "b", "c"]), st.integers(0, 30)),
    min_size=1,
    unique_by=lambda part: (part.queue, part.first),
)


@given(_PARTS)
def test_every_offset_is_in_one_piece_and_no_piece_is_too_large(parts: list[Part]) -> None:
    pieces = cut(parts, 100)

    for queue in {part.queue for part in parts}:
        ranges = [(start, stop) for piece in pieces for name, start, stop in piece if name == queue]
        assert (ranges[0][0], ranges[-1][1]) == (0, 1 << 62)
        assert all(one[1] == other[0] for one, other in pairwise(ranges))
    for piece in pieces:
        within = [
            part.size
            for part in parts
            if any(queue == part.queue and start <= part.first < stop for queue, start, stop in piece)
        ]
        assert sum(within) <= 100


def test_what_fits_is_one_piece() -> None:
    assert cut([Part("p", 10, "a", 7), Part("q", 10, "a", 3), Part("r", 10, "b", 5)], 100) == [
        [("a", 0, 1 << 62), ("b", 0, 1 << 62)]
    ]
