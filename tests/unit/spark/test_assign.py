"""A batch that is too much for one commit is cut in two, until pieces fit or are of a single message."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.pipelines.assign import Part, Range, halved

_PARTS = st.lists(
    st.builds(
        lambda queue, first, more: Part("p", queue, first, first + more),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 30),
        st.integers(0, 5),
    ),
    min_size=1,
)


def messages(ranges: list[Range]) -> list[tuple[str, int]]:
    return [(queue, offset) for queue, start, stop in ranges for offset in range(start, stop)]


@given(_PARTS)
def test_halves_have_every_message_once_and_are_smaller(parts: list[Part]) -> None:
    staged = {(part.queue, offset) for part in parts for offset in range(part.first, part.last + 1)}

    halves = halved(parts)

    if len(staged) == 1:
        assert halves == []
        return
    both = messages(halves[0]) + messages(halves[1])
    assert len(both) == len(set(both))
    assert staged <= set(both)
    assert all(0 < len(messages(half)) < len(both) for half in halves)


def test_nothing_cannot_be_halved() -> None:
    assert halved([]) == []
