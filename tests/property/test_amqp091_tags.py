"""Delivery tags against a dictionary of them, whatever is settled in whatever order; and how much they keep."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.queue.definition import QueueDefinition
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.model import Message, Source
from headrace.protocols.amqp091.subscriptions import Tags
from tests.house import House


def _delivery() -> Delivery:
    house = House()
    house.broker.declare(QueueDefinition("q"))
    house.broker.publish(Message(Source("q"), b"x", house.clock.now_us()))
    got: list[Delivery] = []
    house.broker.consume("q", Consumer("c", got.extend))
    house.run()
    return got[0]


_FROM = _delivery()


def _new() -> Delivery:
    return Delivery(_FROM.group, _FROM.consumer, 0, _FROM.message, 1, False)


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["hold", "pass by"]), st.integers(1, 700)),
        st.tuples(st.sampled_from(["take", "take to", "put back"]), st.floats(0, 1)),
        st.tuples(st.just("take some"), st.integers(1, 7)),
    ),
    max_size=12,
)


@given(_STEPS)
def test_tags_are_what_a_dictionary_of_them_is(steps: list[tuple[str, float]]) -> None:
    tags = Tags()
    known: dict[int, Delivery] = {}
    last = 0
    for what, number in steps:
        chosen = int(number * last)
        if what == "hold":
            for _ in range(int(number)):
                delivery, last = _new(), last + 1
                assert tags.hold(delivery) == last
                known[last] = delivery
        elif what == "pass by":
            for _ in range(int(number)):
                last += 1
                assert tags.pass_by() == last
        elif what == "take":
            assert tags.take(chosen) is known.pop(chosen, None)
        elif what == "take some":
            for tag in list(known)[:: int(number)]:
                assert tags.take(tag) is known.pop(tag)
        elif what == "take to":
            assert tags.up_to(chosen) == [tag for tag in known if tag <= chosen]
            assert tags.take_to(chosen) == [known.pop(tag) for tag in list(known) if tag <= chosen]
        else:
            some = {tag: delivery for tag, delivery in known.items() if tag <= chosen}
            for tag in reversed(some):
                assert tags.take(tag) is some[tag]
            assert tags.get(chosen) is None
            tags.put_back(some)
        assert len(tags) == len(known)
        assert [tags.get(tag) for tag in range(last + 3)] == [known.get(tag) for tag in range(last + 3)]
        assert tags.up_to(last) == list(known)
    assert tags.last == last
    tags.clear()
    assert (len(tags), tags.up_to(last), tags.take_to(last)) == (0, [], [])


@pytest.mark.parametrize("is_held", [True, False])
def test_one_that_is_never_settled_does_not_keep_the_places_of_all_after_it(is_held: bool) -> None:
    tags, stuck, others = Tags(), _new(), _new()
    tags.hold(stuck)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(100_000):
        if is_held:
            tags.take(tags.hold(others))
        else:
            tags.pass_by()
    after, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert tags.take_to(tags.last) == [stuck]
    assert after - before < 20_000
    assert peak - before < 20_000
