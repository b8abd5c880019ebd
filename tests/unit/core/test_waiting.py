"""Messages that wait apart from the log's order agree with a plain list of them."""

import random
import tracemalloc
from collections import Counter

import pytest

from headrace.core.queue.backlog import NONE, Waiting
from headrace.core.queue.queue import DueTimes


class Listed:
    """The same as lists. An offset has one place that counts, and any number of others that were picked."""

    def __init__(self, levels: int) -> None:
        self.waiting = Waiting(levels)
        self.levels = levels
        self.ready: list[int] = []
        self.delayed: list[tuple[int, int]] = []
        self.kept: dict[int, int] = {}
        self.retried: set[int] = set()
        self.picked: Counter[int] = Counter()

    def level(self, offset: int) -> int:
        return offset % self.levels

    @property
    def live(self) -> set[int]:
        places = Counter([*self.ready, *[offset for _, offset in self.delayed], *self.kept])
        return {offset for offset, count in places.items() if count > self.picked[offset]}

    def step(self, chance: random.Random, now_us: int) -> None:
        free = sorted(set(range(14)) - self.live)
        offset = chance.choice(free) if free else NONE
        due_us = now_us + chance.randint(1, 6)
        kind = chance.choice(
            ["add", "add_all", "delay", "retry", "keep", "keep", "pop", "pop", "pick", "offer", "some"]
        )
        if kind == "pop":
            self.pop(chance.randint(1, 4))
        elif kind == "pick" and self.live:
            self.pick(chance.choice(sorted(self.live)))
        elif kind == "offer" and self.kept:
            self.offer(chance.choice(sorted(self.kept)))
        elif kind == "some":
            most = chance.randint(1, 3)
            assert self.waiting.offer_some(most) == bool(self.kept)
            for each in list(self.kept)[:most]:
                del self.kept[each]
                self.ready.append(each)
        elif offset != NONE:
            self.put(kind, offset, due_us, free)

    def put(self, kind: str, offset: int, due_us: int, free: list[int]) -> None:
        if kind == "add":
            self.waiting.add(offset, self.level(offset))
            self.ready.append(offset)
        elif kind == "add_all":
            level = self.level(offset)
            more = [each for each in free if self.level(each) == level and each >= offset][:4]
            self.waiting.add_all(more, level)
            self.ready += more
        elif kind in ("delay", "retry"):
            self.waiting.delay(offset, due_us, self.level(offset), is_retried=kind == "retry")
            self.delayed.append((due_us, offset))
            self.retried |= {offset} if kind == "retry" else set()
        elif kind == "keep":
            self.waiting.keep(offset, due_us, self.level(offset))
            self.kept[offset] = due_us

    def offer(self, offset: int) -> None:
        self.waiting.offer(offset)
        del self.kept[offset]
        self.ready.append(offset)

    def pick(self, offset: int) -> None:
        self.waiting.pick(offset)
        if offset in self.kept:
            del self.kept[offset]
        else:
            self.picked[offset] += 1
            self.retried.discard(offset)

    def pop(self, most: int) -> None:
        run = self.waiting.pop_run(most)
        if not self.ready:
            assert not run
            return
        level = max(self.level(offset) for offset in self.ready)
        urgent = sorted([offset for offset in self.ready if self.level(offset) == level])
        expected = [urgent.pop(0)]
        while urgent and urgent[0] == expected[-1] + 1 and len(expected) < most:
            expected.append(urgent.pop(0))
        assert list(run) == expected
        for offset in run:
            self.ready.remove(offset)
            assert self.waiting.use_up_pick(offset) == (self.picked[offset] > 0)
            self.picked[offset] -= self.picked[offset] > 0

    def end_delays(self, now_us: int) -> None:
        self.waiting.end_delays(now_us)
        for due_us, offset in [each for each in self.delayed if each[0] <= now_us]:
            self.delayed.remove((due_us, offset))
            self.retried.discard(offset)
            self.ready.append(offset)
        for offset in [offset for offset, until_us in self.kept.items() if until_us <= now_us]:
            del self.kept[offset]
            self.ready.append(offset)

    def compare(self) -> None:
        waiting, live = self.waiting, self.live
        dues = [due_us for due_us, _ in self.delayed] + list(self.kept.values())
        assert (waiting.count > 0) == bool(self.ready or self.delayed or self.kept)
        assert waiting.has_ready == bool(self.ready)
        assert (waiting.has_kept, waiting.kept_count) == (bool(self.kept), len(self.kept))
        assert [waiting.is_kept(offset) for offset in range(14)] == [offset in self.kept for offset in range(14)]
        assert waiting.retried == len(self.retried)
        assert waiting.next_due_us() == min(dues, default=0)
        assert waiting.lowest(live.__contains__) == min(live, default=NONE)


@pytest.mark.parametrize("levels", [1, 3])
@pytest.mark.parametrize("seed", [1, 2])
def test_what_waits_is_as_in_a_list(levels: int, seed: int) -> None:
    chance = random.Random(seed)
    listed, now_us = Listed(levels), 100
    for number in range(1500):
        listed.step(chance, now_us)
        if chance.random() < 0.3:
            now_us += chance.randint(0, 2)
            listed.end_delays(now_us)
        listed.compare()
        if number % 300 == 150:
            listed.end_delays(now_us := now_us + 10)
            while listed.ready:
                listed.pop(4)
            listed.compare()
        if number % 300 == 299:
            listed.waiting.clear()
            listed = emptied(listed)
            listed.compare()


def emptied(listed: Listed) -> Listed:
    """The same one with nothing listed."""
    again = Listed(listed.levels)
    again.waiting = listed.waiting
    return again


def test_places_that_were_passed_over_are_forgotten() -> None:
    waiting = Waiting(1)
    waiting.add_all([3, 4])
    waiting.pick(3)
    assert list(waiting.pop_run(1)) == [3]
    waiting.pass_over(3, 4)
    waiting.add(3)

    assert list(waiting.pop_run(2)) == [3, 4]
    assert not waiting.use_up_pick(3)


@pytest.mark.parametrize("kind", ["ready", "kept"])
def test_what_waited_once_takes_no_room(kind: str) -> None:
    waiting = Waiting(1)
    waiting.delay(0, 2_000_000)
    waiting.keep(1, 1_000_001)
    waiting.keep(2, 1_000_000)
    tracemalloc.start()
    try:
        for number in range(3000):
            if kind == "ready":
                waiting.add(number + 10)
                waiting.pop_run(1)
            else:
                waiting.keep(number + 10, 900_000)
                waiting.pick(number + 10)
        grown_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert grown_bytes < 40_000
    assert waiting.lowest({0, 1}.__contains__) == 0
    assert waiting.next_due_us() == 1_000_000


def test_times_of_what_is_for_later_are_as_in_a_list() -> None:
    chance = random.Random(5)
    later, times, now_us = DueTimes(), list[int](), 100
    for _ in range(1500):
        kind = chance.choice(["add", "add", "remove", "end"])
        if kind == "add":
            due_us = now_us + chance.randint(1, 6)
            later.add(due_us)
            times.append(due_us)
        elif kind == "remove":
            due_us = now_us + chance.randint(1, 6)
            later.remove(due_us)
            times = sorted(times)
            if due_us in times:
                times.remove(due_us)
        else:
            now_us += chance.randint(0, 4)
            later.end(now_us)
            times = [each for each in times if each > now_us]
        assert later.count == len(times)
        if times:
            assert 0 < later.next_us <= min(times)
    later.end(now_us + 10)
    assert (later.count, later.next_us) == (0, 0)
