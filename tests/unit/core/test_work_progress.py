"""Work groups against a list of what each is done with: nothing comes twice or is lost, now and after a restart."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.core.queue.definition import QueueDefinition, Retry
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.core.queue.group import ACK, NACK, REJECT, RELEASE
from headrace.core.queue.work import WorkGroup
from headrace.storage.api import Engine
from headrace.storage.local.engine import LocalEngine
from tests.house import House, Inbox
from tests.refusing_engine import RefusingEngine

LEASE_S = 1000


class Team:
    """One group: who is in it, and what became of each offset."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inboxes: list[Inbox] = []
        self.noted: dict[Inbox, int] = {}
        """Number of deliveries that are counted."""
        self.done: set[int] = set()
        self.attempts: dict[int, int] = {}
        self.seen: set[int] = set()
        self.acknowledged = 0
        self.delivered = 0
        self.redelivered = 0


class Shop:
    """A queue whose groups work in any order, and leave, and are stopped."""

    def __init__(self, seed: int, groups: int, open_engine: Callable[[], Engine], **options: object) -> None:
        self._open_engine = open_engine
        engine = open_engine()
        self.chance = random.Random(seed)
        self.outcomes = [ACK, ACK, REJECT, NACK, RELEASE]
        self.is_durable = options.get("durable", True) is True
        self.house = House(engine)
        retry = Retry(initial_backoff_ms=0)
        self.house.broker.declare(
            QueueDefinition("q", lease_ms=LEASE_S * 1000, retry=retry, delivery_limit=-1, **options)  # type: ignore[arg-type]
        )
        self.house.run()
        self.teams = [Team(f"team {number}") for number in range(groups)]
        self.published = 0
        for team in self.teams:
            self.join(team)

    def group(self, team: Team) -> WorkGroup:
        group = self.house.broker.queue("q").groups[team.name]
        assert isinstance(group, WorkGroup)
        return group

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        team = self.chance.choice(self.teams)
        kinds = ["publish", "join", "leave", "one", "one", "many", "many", "settle", "settle", "get", "late", "purge"]
        kind = self.chance.choice([*kinds, "restart"] if self.is_durable else kinds)
        held = self.held(team)
        if kind == "publish":
            count = self.chance.randint(1, 5)
            self.house.publish("q", *["x" * self.chance.randint(1, 9) for _ in range(count)])
            self.published += count
        elif kind == "join" and len(team.inboxes) < 2:
            self.join(team)
        elif kind == "leave" and team.inboxes:
            self.house.broker.cancel(team.inboxes.pop().consumer)
        elif kind == "one" and held:
            self.acknowledge(team, [self.chance.choice(held)])
        elif kind == "many" and held:
            self.acknowledge(team, self.chance.sample(held, self.chance.randint(1, len(held))))
        elif kind == "settle" and held:
            for delivery in self.chance.sample(held, self.chance.randint(1, min(3, len(held)))):
                self.settle(team, delivery)
        elif kind == "get":
            self.get(team)
        elif kind == "late" and len(team.inboxes) == 1:
            self.house.advance(LEASE_S)
        elif kind == "purge" and self.chance.random() < 0.2:
            self.house.broker.purge("q")
            for each in self.teams:
                each.done |= set(range(self.published)) - {delivery.offset for delivery in self.held(each)}
        elif kind == "restart":
            self.restart()
        self.house.run()
        for _ in range(2):
            self.house.advance(2)
        self.note()

    def join(self, team: Team) -> None:
        name = f"{team.name} {self.chance.random()}"
        team.inboxes.append(self.house.consume("q", name, credit=self.chance.randint(1, 6), group=team.name))

    def held(self, team: Team) -> list[Delivery]:
        return [delivery for inbox in team.inboxes for delivery in inbox.got if delivery.is_held]

    def acknowledge(self, team: Team, deliveries: list[Delivery]) -> None:
        self.house.broker.acknowledge(deliveries)
        team.done |= {delivery.offset for delivery in deliveries}
        team.acknowledged += len(deliveries)

    def settle(self, team: Team, delivery: Delivery) -> None:
        outcome = self.chance.choice(self.outcomes)
        self.house.broker.settle(delivery, outcome)
        if outcome in (ACK, REJECT):
            team.done.add(delivery.offset)
        team.acknowledged += outcome == ACK
        if outcome == RELEASE:
            team.attempts[delivery.offset] -= 1

    def get(self, team: Team) -> None:
        if team.inboxes or not self.chance.random() < 0.5:
            return
        got = self.house.broker.get("q", Consumer("getter", print, auto_ack=True), group=team.name)
        self.house.run()
        waiting = set(range(self.published)) - team.done
        if got is None:
            assert not waiting
            return
        assert got.offset in waiting
        self.count(team, got)
        team.done.add(got.offset)
        team.acknowledged += 1

    def restart(self) -> None:
        if isinstance(self.house.engine, LocalEngine):
            self.house.engine.close()
        self.house = House(self._open_engine(), self.house.clock)
        self.house.broker.tick()
        self.house.run()
        for team in self.teams:
            team.inboxes = []
            team.acknowledged = team.delivered = team.redelivered = 0

    # -- what came ---------------------------------------------------------------------------------------------------

    def note(self) -> None:
        for team in self.teams:
            for inbox in team.inboxes:
                for delivery in inbox.got[team.noted.get(inbox, 0) :]:
                    self.count(team, delivery)
                team.noted[inbox] = len(inbox.got)

    def count(self, team: Team, delivery: Delivery) -> None:
        offset = delivery.offset
        team.attempts[offset] = team.attempts.get(offset, 0) + 1
        assert delivery.attempts == team.attempts[offset]
        assert delivery.redelivered == (offset in team.seen)
        team.delivered += 1
        team.redelivered += offset in team.seen
        team.seen.add(offset)

    def compare(self) -> None:
        for team in self.teams:
            group, held = self.group(team), self.held(team)
            offsets = {delivery.offset for delivery in held}
            unfinished = set(range(self.published)) - team.done
            assert len(offsets) == len(held), "two have the same"
            assert offsets <= unfinished, "what is done came again"
            assert (group.lag, group.unsettled, group.ready) == (len(unfinished), len(held), len(unfinished - offsets))
            assert {entry.offset for entry in group.pending() if entry.consumer} == offsets
            assert group.acknowledged == team.acknowledged
            assert (group.delivered, group.redelivered) == (team.delivered, team.redelivered)
            if any(inbox.consumer.room > 0 for inbox in team.inboxes):
                assert offsets == unfinished, "something waits though somebody has room"
        queue = self.house.broker.queue("q")
        assert queue.log.first_offset == min(
            [min(set(range(self.published + 1)) - team.done) for team in self.teams]
        ), "what all are done with is gone, and nothing else"


KINDS: dict[str, dict[str, object]] = {
    "plain": {},
    "limited": {"max_length_bytes": 1 << 30},
    "history": {"history_ms": 3_600_000},
    "memory": {"durable": False},
    "priorities": {"max_priority": 3},
}


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize(("groups", "seed"), [(1, 1), (2, 3)])
def test_groups_get_each_message_done_once_and_know_how_far_they_are(kind: str, groups: int, seed: int) -> None:
    engine = RefusingEngine()
    shop = Shop(seed, groups, lambda: engine, **KINDS[kind])
    for _ in range(100):
        shop.step()
        shop.compare()


@pytest.mark.parametrize(("kind", "groups", "seed"), [("plain", 1, 5), ("limited", 2, 6)])
def test_what_is_stored_of_groups_is_how_far_they_are(tmp_path: Path, kind: str, groups: int, seed: int) -> None:
    shop = Shop(seed, groups, lambda: LocalEngine(tmp_path / "data"), **KINDS[kind])
    shop.outcomes.remove(RELEASE)  # storage counts that as an attempt, memory does not
    for number in range(30):
        shop.step()
        shop.compare()
        if number % 6 == 5:
            shop.restart()
            shop.compare()
    shop.house.engine.close()


def test_an_engine_that_keeps_claims_knows_the_same() -> None:
    engine = RefusingEngine()
    engine.keeps_claims = True
    shop = Shop(4, 1, lambda: engine)
    for _ in range(100):
        shop.step()
        shop.compare()
