"""Leases behave as a table of who holds what until when, whatever order they end in."""

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.queue.definition import declared
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.core.queue.leases import Leases
from headrace.model import Message, Source
from tests.house import House

MESSAGE = Message(Source("orders"), b"", 0)
CONSUMER = Consumer("ann", lambda deliveries: None)
HOUSE = House()
HOUSE.broker.declare(declared("orders", durable=True))
HOUSE.consume("orders")
GROUP = HOUSE.broker.queue("orders").groups["default"]

offsets = st.integers(0, 30)
times = st.integers(1, 40)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("give"), st.sets(offsets, min_size=1, max_size=5), times),
        st.tuples(st.just("renew"), st.sets(offsets, min_size=1, max_size=5), times),
        st.tuples(st.just("end"), st.sets(offsets, min_size=1, max_size=1), times),
        st.tuples(st.just("end_of"), st.sets(offsets, min_size=1, max_size=8), times),
        st.tuples(st.just("ended"), st.just(frozenset[int]()), times),
        st.tuples(st.just("clear"), st.just(frozenset[int]()), times),
    ),
    max_size=60,
)


class Table:
    """The same as one table that is gone through for every question."""

    def __init__(self) -> None:
        self.leases = Leases()
        self.dues: dict[int, int] = {}
        self.all: list[Delivery] = []

    def give(self, wanted: set[int], due_us: int) -> None:
        free = sorted(wanted - self.dues.keys())
        made = [Delivery(GROUP, CONSUMER, offset, MESSAGE, 1, False) for offset in free]
        self.leases.give(made, due_us)
        self.dues.update(dict.fromkeys(free, due_us))
        self.all += made

    def held(self, wanted: set[int]) -> list[Delivery]:
        found = [self.leases.held.get(offset) for offset in sorted(wanted & self.dues.keys())]
        return [delivery for delivery in found if delivery is not None]

    def forget(self, gone: list[Delivery]) -> None:
        for delivery in gone:
            del self.dues[delivery.offset]

    def step(self, kind: str, wanted: set[int], time_us: int) -> None:
        if kind == "give":
            self.give(wanted, time_us)
        elif kind == "renew":
            renewed = self.held(wanted)
            self.leases.renew(renewed, time_us)
            self.dues.update(dict.fromkeys([delivery.offset for delivery in renewed], time_us))
        elif kind == "end":
            held = self.held(wanted)
            for delivery in held:
                self.leases.end(delivery)
            self.forget(held)
        elif kind == "end_of":
            ended = [self.leases.end_of(CONSUMER, delivery.offset) for delivery in self.held(wanted)]
            self.forget([each for each in ended if each is not None])
        elif kind == "ended":
            most = (1, 2, 5, 1000)[time_us % 4]
            due = [offset for offset, due_us in self.dues.items() if due_us <= time_us]
            over = [delivery.offset for delivery in self.leases.take_ended(time_us, most)]
            assert over == sorted(set(over) & set(due))
            assert len(over) == min(most, len(due))
            last_us = max([self.dues.pop(offset) for offset in over], default=0)
            assert last_us <= min([self.dues[offset] for offset in due if offset in self.dues], default=last_us)
        else:
            self.leases.clear()
            self.dues.clear()


@given(steps)
def test_what_is_held_and_when_it_ends_is_as_in_a_table(made: list[tuple[str, set[int], int]]) -> None:
    table = Table()

    for kind, wanted, time_us in made:
        table.step(kind, set(wanted), time_us)

        assert {delivery.offset: delivery.due_us for delivery in table.leases.held.values()} == table.dues
        assert table.leases.next_end_us() == min(table.dues.values(), default=0)
        assert {id(each) for each in table.all if each.is_held} == {id(each) for each in table.leases.held.values()}


@pytest.mark.parametrize("most", [1, 2, 6])
@pytest.mark.parametrize("is_ordered", [True, False])
def test_questions_about_one_claim_need_no_look_at_all_of_them(is_ordered: bool, most: int) -> None:
    """Whoever goes through all of them finds them in a table; most questions are asked before anybody does."""
    chance = random.Random(most)
    table, now_us = Table(), 0
    for _ in range(1500):
        kind = chance.choice(["give", "give", "renew", "end", "end", "end_of", "ended"])
        wanted = set(chance.sample(range(8), chance.randint(1, most)))
        if kind == "give" and len(table.dues) + len(wanted - table.dues.keys()) > most:
            kind = "end"
        now_us += is_ordered
        table.step(kind, wanted, now_us + (5 if kind in ("give", "renew") and is_ordered else chance.randint(1, 9)))

        assert len(table.leases.held) == len(table.dues)
        assert table.leases.next_end_us() == min(table.dues.values(), default=0)
        assert {offset for offset in range(8) if offset in table.leases.held} == table.dues.keys()
        assert {each.offset for each in table.all if each.is_held} == table.dues.keys()
        table.all = [each for each in table.all if each.is_held]


def test_one_claim_is_not_taken_for_another() -> None:
    table = Table()
    table.give({3}, 10)

    assert table.leases.end_of(CONSUMER, 4) is None

    assert [delivery.offset for delivery in table.leases.held.values()] == [3]


@pytest.mark.parametrize("asked", [False, True])
def test_claims_that_were_settled_take_no_room(asked: bool) -> None:
    """Claims end in no order here, so their ends are noted apart from them; one of them is always held."""
    leases = Leases()
    made = [Delivery(GROUP, CONSUMER, offset, MESSAGE, 1, False) for offset in range(4)]
    leases.give(made[:1], 1_000_000)
    tracemalloc.start()
    try:
        for number in range(3000):
            leases.give(made[1:], 900_000 - number)
            if asked:
                leases.next_end_us()
                assert len(leases.take_ended(900_000 - number, 1000)) == 3
            else:
                for delivery in made[1:]:
                    leases.end_of(CONSUMER, delivery.offset)
        grown_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert grown_bytes < 50_000
    assert leases.next_end_us() == 1_000_000
