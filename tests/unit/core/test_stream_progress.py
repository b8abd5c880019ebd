"""Progress of a stream's readers: up to the first message that one of them holds or has yet to get."""

import random

import pytest

from headrace.core.queue.definition import STREAM, QueueDefinition, Retention
from headrace.core.queue.group import ACK, NACK, REJECT
from headrace.errors import Refused
from headrace.selector import parse
from headrace.storage.group_state import WORK
from tests.house import House, Inbox
from tests.unit.core.test_stream import filled, group_of, progress, restarted


class Reading:
    """Readers that come, settle in any order, and go, with a list of what they are done with."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.house = filled(0)
        self.inboxes: list[Inbox] = []
        self.done: set[int] = set()
        self.published = 0

    def step(self) -> None:
        kind = self.chance.choice(["publish", "join", "leave", "settle", "settle", "settle", "many"])
        if kind == "publish":
            count = self.chance.randint(1, 6)
            self.house.publish("events", *["x"] * count)
            self.published += count
        elif kind == "join" and len(self.inboxes) < 3:
            name = f"reader {self.chance.random()}"
            self.inboxes.append(self.house.consume("events", name, credit=self.chance.randint(1, 5), group="readers"))
        elif kind == "leave" and self.inboxes:
            self.house.broker.cancel(self.inboxes.pop(self.chance.randrange(len(self.inboxes))).consumer)
        elif kind == "settle":
            held = self.held()
            for offset in self.chance.sample(sorted(held), min(len(held), self.chance.randint(1, 3))):
                inbox, at = held[offset]
                self.house.broker.settle(inbox.got[at], self.chance.choice([ACK, NACK, REJECT]))
                self.done.add(offset)
        elif kind == "many" and self.inboxes:
            inbox = self.chance.choice(self.inboxes)
            some = [each for each in inbox.got if each.offset not in self.done and self.chance.random() < 0.6]
            self.house.broker.acknowledge(some)
            self.done |= {each.offset for each in some}
        self.house.run()
        self.house.advance(10)

    def held(self) -> dict[int, tuple[Inbox, int]]:
        return {
            each.offset: (inbox, at)
            for inbox in self.inboxes
            for at, each in enumerate(inbox.got)
            if each.offset not in self.done
        }

    def compare(self) -> None:
        got = [each.offset for inbox in self.inboxes for each in inbox.got]
        assert len(got) == len(set(got)), "a reader got what another one has, or is done with"
        group = group_of(self.house)
        expected = min([offset for offset in range(self.published + 1) if offset not in self.done])
        assert group.state.committed == expected
        assert group.unsettled == len(self.held()) == sum(inbox.consumer.holding for inbox in self.inboxes)
        assert group.ready + group.unsettled == group.lag
        if self.inboxes:
            assert group.lag == self.published - len(self.done)
        else:
            self.done = set(range(expected))  # the others are read again


@pytest.mark.parametrize("seed", range(6))
def test_what_is_committed_is_the_oldest_that_nobody_is_done_with(seed: int) -> None:
    reading = Reading(seed)
    reading.inboxes.append(reading.house.consume("events", "first", credit=2, group="readers"))
    for _ in range(120):
        reading.step()
        reading.compare()


# -- committed by the readers ------------------------------------------------------------------------------------------


def committing(count: int, *limits: int) -> tuple[House, list[Inbox]]:
    """Readers of a group that says itself how far it is."""
    house = filled(count)
    inboxes = [
        house.consume("events", f"reader {at}", credit=credit, group="readers", auto_commit=False)
        for at, credit in enumerate(limits)
    ]
    return house, inboxes


def test_what_is_committed_by_readers_takes_no_room_also_if_it_was_delivered_again() -> None:
    house, (first, second) = committing(8, 4, 2)
    house.broker.cancel(first.consumer)
    house.broker.set_credit(second.consumer, 6)
    house.run()
    assert sorted([each.offset for each in second.take()]) == [0, 1, 2, 3, 4, 5]

    house.broker.groups.commit("events", "readers", 3)
    house.run()
    assert (second.consumer.holding, [each.offset for each in second.take()]) == (5, [6, 7])
    house.broker.groups.commit("events", "readers", 8)
    house.run()

    assert (second.consumer.holding, group_of(house).lag, progress(house)) == (0, 0, (8, 8))


def test_what_readers_have_not_committed_is_what_is_left_however_much_they_read() -> None:
    house, (inbox,) = committing(5, 4)
    house.settle(ACK, *inbox.take())
    house.advance(60)
    assert (progress(house), group_of(house).lag) == ((5, 0), 5)

    house.broker.groups.commit("events", "readers", 2)
    house.broker.groups.commit("events", "readers", 1)  # it is behind that already
    house.run()
    assert (progress(house), group_of(house).lag) == ((5, 2), 3)
    with pytest.raises(Refused):
        house.broker.groups.commit("events", "readers", 6)
    assert restarted(house).consume("events", group="readers", auto_commit=False).payloads == ["2", "3", "4"]


def test_what_was_dropped_is_not_left_to_be_read() -> None:
    house = filled(5, retention=Retention(max_messages=3))
    house.consume("events", credit=1, group="readers", auto_commit=False)
    house.publish("events", "5", "6")

    assert house.broker.queue("events").first_offset == 4
    assert group_of(house).lag == 3


# -- seeking -----------------------------------------------------------------------------------------------------------


def test_after_a_seek_nothing_of_what_was_held_before_counts() -> None:
    house = filled(8)
    first = house.consume("events", "first", credit=2, group="readers")
    second = house.consume("events", "second", credit=2, group="readers")
    house.broker.cancel(first.consumer)
    house.run()
    before = second.take()

    house.broker.groups.seek("events", "readers", 5)
    house.run()
    assert (second.texts(), progress(house)) == (["5", "6"], (7, 5))
    assert (group_of(house).unsettled, second.consumer.holding, group_of(house).lag) == (2, 2, 3)
    house.settle(ACK, *before)
    house.advance(10)
    assert progress(house) == (7, 5)

    house.broker.groups.seek("events", "readers", 0)
    house.run()
    assert second.texts() == ["0", "1"]
    house.advance(10)
    assert progress(house)[0] == 2


def test_an_offset_that_was_read_may_be_settled_by_anybody_and_no_other() -> None:
    house = filled(5, retention=Retention(max_messages=4))
    inbox = house.consume("events", credit=2, group="readers")
    house.broker.allow(inbox.consumer, 0)
    house.settle(ACK, *inbox.take())
    assert (house.broker.queue("events").first_offset, progress(house)) == (1, (3, 3))

    for offset in (1, 2):
        house.broker.groups.settle("events", "readers", offset, ACK)
    for offset in (0, 3):
        with pytest.raises(Refused):
            house.broker.groups.settle("events", "readers", offset, ACK)


# -- a stream that goes ------------------------------------------------------------------------------------------------


def test_readers_of_a_stream_that_goes_hold_nothing() -> None:
    house = House()
    house.broker.declare(QueueDefinition("events", STREAM))
    inbox = house.consume("events", group="readers")
    house.publish("events", "a", "b")
    assert inbox.consumer.holding == 2

    house.broker.delete("events")
    house.run()

    assert (inbox.consumer.holding, inbox.consumer.group, inbox.is_cancelled) == (0, None, True)


# -- readers that want some of it --------------------------------------------------------------------------------------


def test_readers_that_want_few_of_many_get_them_with_little_room() -> None:
    house = House()
    house.broker.declare(QueueDefinition("events", STREAM))
    for number in range(40):
        house.publish("events", str(number), headers={"n": number})
    inbox = Inbox(house, "reader", 1, False, 0, None)
    inbox.consumer.selector = parse("n = 7 OR n = 30 OR n = 31")
    house.broker.consume("events", inbox.consumer, group="readers")
    house.run()

    got: list[str] = []
    while deliveries := inbox.take():
        got += [each.message.payload.decode() for each in deliveries]
        assert [(each.attempts, each.redelivered) for each in deliveries] == [(1, False)]
        house.settle(ACK, *deliveries)

    assert got == ["7", "30", "31"]
    house.advance(10)
    assert progress(house) == (40, 40)


def test_what_the_workers_are_done_with_is_said_of_each_message_of_a_stream() -> None:
    house = House()
    house.broker.declare(QueueDefinition("events", STREAM, primary_group="workers"))
    house.publish("events", *"abc")
    house.consume("events", "reader", group="readers")
    assert group_of(house).work_headers(0) == {}
    house.consume("events", "other", group="others", mode=WORK)
    worker = house.consume("events", "worker", group="workers", mode=WORK, credit=2)
    house.settle(ACK, *worker.take()[:1])

    headers = [group_of(house).work_headers(offset) for offset in (0, 1)]

    assert [each["x-work-acked"] for each in headers] == [True, False]
    assert [each["x-primary-group-processed"] for each in headers] == [True, False]
    assert [(each["x-work-group"], each["x-work-committed-offset"]) for each in headers] == [("workers", 1)] * 2
