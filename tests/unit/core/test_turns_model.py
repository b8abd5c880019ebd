"""Turns of the members of a group against a list that is gone through for every question."""

import random
from collections import Counter

import pytest

from headrace.core.queue.dispatch import Consumer, Credit, RoundRobin
from headrace.selector import parse


class Table:
    """Members that come, take, settle, fall silent and leave."""

    def __init__(self, seed: int, single: bool) -> None:
        self.chance = random.Random(seed)
        self.most = 2 + seed % 4
        self.single = single
        self.changes = 0
        self.turns = RoundRobin(single, self._change)
        self.members: list[Consumer] = []
        """In the order in which they came."""
        self.channel = Credit(4)
        self.offset = 0

    def _change(self) -> None:
        self.changes += 1

    def step(self) -> None:
        kind = self.chance.choice(["join", "leave", "take", "take", "release", "release", "doubt", "trust", "limit"])
        if kind == "join" and len(self.members) < self.most:
            self.join()
        elif self.members:
            getattr(self, f"do_{kind}", self.do_take)(self.chance.choice(self.members))

    def join(self) -> None:
        shared = self.channel if self.chance.random() < 0.3 else None
        consumer = Consumer(
            "c", print, self.chance.randint(1, 3), priority=self.chance.choice([0, 0, 5]), shared=shared
        )
        consumer.exposes_offsets = self.chance.random() < 0.5
        if not self.single and self.chance.random() < 0.2:
            consumer.selector = parse("a = 1")
        self.turns.join(consumer)
        self.members.append(consumer)

    def do_leave(self, consumer: Consumer) -> None:
        self.turns.leave(consumer)
        self.members.remove(consumer)
        for offset in consumer.held():
            consumer.release(offset)
        self.turns.doubt(consumer)
        assert not consumer.is_silent, "whoever left is none of ours"

    def do_take(self, consumer: Consumer) -> None:
        taker = self.turns.next()[0] if self.single else consumer
        if taker is not None and taker.room > 0:
            self.offset += 1
            taker.take([self.offset])

    def do_release(self, consumer: Consumer) -> None:
        if consumer.held():
            consumer.release(self.chance.choice(consumer.held()))

    def do_doubt(self, consumer: Consumer) -> None:
        self.turns.doubt(consumer)
        assert consumer.is_silent

    def do_trust(self, consumer: Consumer) -> None:
        self.turns.trust(consumer)
        assert not consumer.is_silent

    def do_limit(self, consumer: Consumer) -> None:
        consumer.change_limit(self.chance.randint(1, 4))
        consumer.wake()

    # -- the same by going through all of them -----------------------------------------------------------------------

    def room_of(self, consumer: Consumer) -> int:
        if consumer.is_silent and not all([member.is_silent for member in self.members]):
            return min(consumer.room, 1 - consumer.holding)
        return consumer.room

    def candidates(self, failed: list[Consumer]) -> list[Consumer]:
        """The members of which one is next: the most urgent that are not silent, else the silent ones."""
        able = [
            member
            for member in self.members
            if member.selector is None and member not in failed and self.room_of(member) > 0
        ]
        heard = [member for member in able if not member.is_silent]
        return [each for each in heard if each.priority == max([one.priority for one in heard])] if heard else able

    def compare(self) -> None:
        turns = self.turns
        assert len(turns) == len(self.members)
        assert set(turns) == set(self.members)
        assert turns.tellers == sum([member.exposes_offsets for member in self.members])
        assert turns.selective == [member for member in self.members if member.selector is not None]
        single = self.members[0] if len(self.members) == 1 and self.members[0].selector is None else None
        assert turns.only is single
        assert all([turns.room_of(member) == self.room_of(member) for member in self.members])
        if self.single:
            self.compare_single()
            return
        assert turns.members == sorted(self.members, key=lambda member: -member.priority)
        failed = self.chance.sample(self.members, self.chance.randint(0, len(self.members)))
        assert turns.has_other(failed) == (len(failed) < len(self.members))
        assert turns.has_room_but(failed) == bool(self.candidates(failed))
        other = turns.next_but(failed)
        assert other in self.candidates(failed) or (other is None and not self.candidates(failed))
        self.compare_next()

    def compare_next(self) -> None:
        candidates, most = self.candidates([]), self.chance.randint(1, 9)
        room = self.turns.room(most)
        assert 0 <= room <= most
        assert (room > 0) == bool(candidates)
        seen: Counter[Consumer] = Counter()
        for _ in range(2 * len(candidates)):
            consumer, share = self.turns.next()
            assert consumer in candidates
            assert share == 1 or (len(candidates) == 1 and share == self.room_of(consumer))
            seen[consumer] += 1
        assert all([count == 2 for count in seen.values()]), "all have their turn"
        if not candidates:
            assert self.turns.next() == (None, 0)

    def compare_single(self) -> None:
        consumer, share = self.turns.next()
        assert (self.turns.active is None) == (not self.members)
        if consumer is None:
            assert share == 0
            assert any([member.room <= 0 or member.holding for member in self.members]) or not self.members
            return
        assert consumer is self.turns.active
        if not consumer.holding:
            assert not [o for o in self.members if o.priority > consumer.priority and not o.is_silent]
        assert 0 < share <= consumer.room
        if consumer.is_silent:
            assert all([member.is_silent for member in self.members])
        assert not [other for other in self.members if other is not consumer and other.holding]


@pytest.mark.parametrize("seed", range(6))
def test_turns_go_round_among_the_most_urgent_members_with_room_and_to_silent_ones_last(seed: int) -> None:
    table = Table(seed, single=False)
    for _ in range(300):
        table.step()
        table.compare()
    assert table.changes > 0


@pytest.mark.parametrize("seed", range(6))
def test_where_one_at_a_time_is_active_a_silent_one_is_replaced(seed: int) -> None:
    table = Table(seed, single=True)
    for _ in range(300):
        table.step()
        table.compare()
