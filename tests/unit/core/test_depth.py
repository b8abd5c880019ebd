"""Depth of a queue with limits: equal to that of a list of waiting messages, whatever happened before."""

import random

import pytest

from headrace.core.ledger import ONCE
from headrace.core.publishing import TO_QUEUE
from headrace.core.queue.definition import DROP_HEAD, REJECT_PUBLISH, QueueDefinition
from headrace.core.queue.group import ACK, NACK, REJECT, RELEASE
from headrace.errors import HeadraceError, Refused
from tests.house import House, Inbox
from tests.refusing_engine import RefusingEngine
from tests.unit.core.test_bulk import rows

LENGTH = 6
BYTES = 12


class Ledger:
    """A queue with limits, and what is in it by offset, with the offsets that each group is done with."""

    def __init__(self, seed: int, overflow: str, limits: dict[str, int], groups: int) -> None:
        self.chance = random.Random(seed)
        self.overflow = overflow
        self.max_length = limits.get("max_length", 1 << 60)
        self.max_bytes = limits.get("max_length_bytes", 1 << 60)
        self.house = House()
        self.house.broker.declare(QueueDefinition("q", overflow=overflow, delivery_limit=-1, **limits))  # type: ignore[arg-type]
        self.names = [f"group {number}" for number in range(groups)]
        self.sizes: list[int] = []
        self.done: dict[str, set[int]] = {name: set() for name in self.names}
        self.inboxes: dict[str, Inbox] = {}
        for name in self.names:
            self.join(name)

    def join(self, name: str) -> None:
        self.inboxes[name] = self.house.consume("q", name, credit=self.chance.randint(1, 3), group=name)

    def held(self, name: str) -> set[int]:
        inbox = self.inboxes.get(name)
        return set() if inbox is None else set(inbox.consumer.held())

    def waiting(self, name: str) -> list[int]:
        gone = self.done[name] | self.held(name)
        return [offset for offset in range(len(self.sizes)) if offset not in gone]

    def bytes(self) -> int:
        """Payloads that count: with several groups, all from the first that some group has not finished."""
        if len(self.names) == 1:
            return sum(self.sizes[offset] for offset in self.waiting(self.names[0]))
        first = min([min(set(range(len(self.sizes) + 1)) - done) for done in self.done.values()])
        held = [sum(self.sizes[offset] for offset in self.held(name)) for name in self.names]
        return sum(self.sizes[first:]) - min(held)

    def room(self) -> int:
        return min([max(0, self.inboxes[name].consumer.room) if name in self.inboxes else 0 for name in self.names])

    def length(self) -> int:
        return max([len(self.waiting(name)) for name in self.names])

    # -- steps -------------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        sizes = [self.chance.randint(1, 5) for _ in range(self.chance.randint(1, 4))]
        told: list[HeadraceError | None] = []
        length, size, room = self.length(), self.bytes(), self.room()
        expected: list[bool] = []
        for each in sizes:
            is_taken = length - room < self.max_length and size + each <= self.max_bytes
            is_taken = is_taken or self.overflow == DROP_HEAD
            expected.append(is_taken)
            length, size = length + is_taken, size + each * is_taken
            self.house.broker.publish(self.house.message("x" * each, "q"), told.append)
        self.house.run()
        assert [error is None for error in told] == expected
        self.sizes += [each for each, is_taken in zip(sizes, expected, strict=True) if is_taken]
        self.drop()

    def publish_many(self) -> None:
        sizes = [self.chance.randint(1, 4) for _ in range(self.chance.randint(1, 3))]
        bulk = self.house.broker.bulk()
        is_full = self.length() + len(sizes) - self.room() > self.max_length
        is_full = is_full or self.bytes() + sum(sizes) > self.max_bytes
        made = rows(self.house, *["x" * each for each in sizes])
        if is_full and self.overflow != DROP_HEAD:
            with pytest.raises(Refused):
                bulk.add(TO_QUEUE, "q", made)
            return
        bulk.add(TO_QUEUE, "q", made)
        if self.chance.random() < 0.3:
            bulk.undo()
        else:
            bulk.commit(str(self.chance.random()), ONCE, lambda error: None)
            self.sizes += sizes
            self.house.run()
            self.drop()

    def drop(self) -> None:
        """Have the oldest go that wait, as long as there are too many."""
        (name,) = self.names if self.overflow == DROP_HEAD else [""]
        while name and (self.length() > self.max_length or self.bytes() > self.max_bytes):
            self.done[name].add(self.waiting(name)[0])

    def settle(self) -> None:
        name = self.chance.choice(self.names)
        inbox = self.inboxes.get(name)
        got = [each for each in inbox.take() if each.is_held] if inbox is not None else []
        if self.chance.random() < 0.3:
            self.house.broker.acknowledge(got)
            self.done[name] |= {each.offset for each in got}
        else:
            for each in self.chance.sample(got, len(got)):
                outcome = self.chance.choice([ACK, ACK, REJECT, NACK, RELEASE])
                self.house.broker.settle(each, outcome)
                if outcome in (ACK, REJECT):
                    self.done[name].add(each.offset)
        self.house.run()

    def purge(self) -> None:
        for name in self.names:
            self.done[name] |= set(self.waiting(name))
        self.house.broker.purge("q")
        self.house.run()

    def step(self) -> None:
        kind = self.chance.choice(
            ["publish", "publish", "many", "settle", "settle", "settle", "come", "purge", "again"]
        )
        name = self.chance.choice(self.names)
        if kind == "publish":
            self.publish()
        elif kind == "many":
            self.publish_many()
        elif kind == "settle":
            self.settle()
        elif kind == "come":
            if name in self.inboxes:
                self.house.broker.cancel(self.inboxes.pop(name).consumer)
                self.house.run()
            else:
                self.join(name)
        elif self.chance.random() < 0.2:
            self.purge()
        elif kind == "again" and self.overflow != DROP_HEAD:
            self.house = House(self.house.engine, self.house.clock)
            self.inboxes.clear()

    def compare(self) -> None:
        queue = self.house.broker.queue("q")
        assert queue.messages == self.length()
        assert queue.unsettled == sum(len(self.held(name)) for name in self.names)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("limits", [{"max_length": LENGTH}, {"max_length_bytes": BYTES}])
@pytest.mark.parametrize(("overflow", "groups"), [(REJECT_PUBLISH, 1), (REJECT_PUBLISH, 2), (DROP_HEAD, 1)])
def test_a_queue_takes_as_much_as_its_limits_leave_room_for(
    overflow: str, groups: int, limits: dict[str, int], seed: int
) -> None:
    ledger = Ledger(seed, overflow, limits, groups)
    for _ in range(100):
        ledger.step()
        ledger.compare()


def test_a_purge_makes_room_for_as_many_bytes_as_the_limit_says_and_no_more_with_two_groups() -> None:
    house = House()
    house.broker.declare(QueueDefinition("q", max_length_bytes=10, overflow=REJECT_PUBLISH))
    for name in ("one", "other"):
        house.broker.cancel(house.consume("q", group=name).consumer)
    house.publish("q", *["xx"] * 5)

    house.broker.purge("q")
    house.run()

    assert [error is None for error in house.publish("q", *["xx"] * 7)] == [True] * 5 + [False] * 2


def test_a_limit_counts_what_is_on_its_way_in_a_later_turn(refusing: RefusingEngine, refused: House) -> None:
    refused.broker.declare(QueueDefinition("length", max_length=4, overflow=REJECT_PUBLISH))
    refused.broker.declare(QueueDefinition("bytes", max_length_bytes=4, overflow=REJECT_PUBLISH))
    refused.run()
    refusing.is_closed_door = True
    for name in ("length", "bytes"):
        told: list[HeadraceError | None] = []
        for _ in range(2):
            for _ in range(2):
                refused.broker.publish(refused.message("x", name), told.append)
            refused.turn()
        refusing.let_one_in()
        refused.engine.poll()
        refused.turn()
        refused.broker.publish(refused.message("x", name), told.append)
        refusing.open_door()
        refused.run()
        assert [error is None for error in told] == [True] * 4 + [False]
        refusing.is_closed_door = True


def test_room_counts_in_the_group_in_which_it_is_least(house: House) -> None:
    house.broker.declare(QueueDefinition("q", max_length=2, overflow=REJECT_PUBLISH))
    house.broker.cancel(house.consume("q", group="idle").consumer)
    house.consume("q", group="busy", credit=100)

    assert [error is None for error in house.publish("q", *"abc")] == [True, True, False]


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("limit", [{"max_length": 2}, {"max_length_bytes": 2}])
def test_a_queue_with_limits_takes_one_message_after_the_other(
    house: House, durable: bool, limit: dict[str, int]
) -> None:
    house.broker.declare(QueueDefinition("q", durable=durable, overflow=REJECT_PUBLISH, **limit))  # type: ignore[arg-type]
    inbox = house.consume("q", credit=1)

    for _ in range(6):
        assert house.publish("q", "x") == [None]
        house.broker.acknowledge(inbox.take())
        house.run()


def test_what_new_limits_cost_is_counted_over_any_number_of_messages(house: House) -> None:
    house.broker.declare(QueueDefinition("q"))
    house.broker.publish_all([house.message("xx", "q") for _ in range(9000)])
    house.run()

    loss = house.broker.administration.loss(QueueDefinition("q", max_length_bytes=1000))

    assert loss == 8500


def test_a_message_that_a_consumer_holds_is_not_lost_to_new_limits(house: House) -> None:
    house.broker.declare(QueueDefinition("q"))
    house.consume("q", credit=1)
    house.publish("q", *["xx"] * 5)

    assert house.broker.administration.loss(QueueDefinition("q", max_length_bytes=0)) == 4


def test_a_message_that_a_limit_pushed_out_has_not_ended_for_a_group_whose_consumer_holds_it(house: House) -> None:
    house.broker.declare(QueueDefinition("q", max_length=2, overflow=DROP_HEAD, history_ms=60_000))
    busy = house.consume("q", group="busy", credit=1)
    house.broker.cancel(house.consume("q", group="idle").consumer)
    house.publish("q", *"abcd")
    ends = [(entry["group"], entry["offset"], entry["outcome"]) for _, entry in house.broker.history("q")]
    assert ends == [("idle", 0, "maxlen"), ("busy", 1, "maxlen"), ("idle", 1, "maxlen")]

    house.settle(ACK, busy.got[0])

    ends = [(entry["group"], entry["offset"], entry["outcome"]) for _, entry in house.broker.history("q")]
    assert ends[3:] == [("busy", 0, "done")]


def test_messages_that_were_on_their_way_while_the_limits_changed_take_no_room_for_ever(
    refusing: RefusingEngine, refused: House
) -> None:
    limited = QueueDefinition("q", max_length=2, overflow=REJECT_PUBLISH)
    refused.broker.declare(limited)
    refused.run()
    refusing.is_closed_door = True
    refused.publish("q", "a", "b")
    refused.broker.administration.alter(QueueDefinition("q", overflow=REJECT_PUBLISH))
    refusing.open_door()
    refused.run()
    assert refused.broker.purge("q") == 2

    refused.broker.administration.alter(limited)
    refused.run()

    assert [error is None for error in refused.publish("q", *"cde")] == [True, True, False]
