"""Work groups against a model that asks every message every time: no index, no cursor, no heap.

The steps are drawn by chance: publishing with priorities, delays, lifetimes and keys; members with and without
selectors that come, settle, fail, fall silent and leave; messages taken on request; purges and restarts.
"""

import random

import pytest

from headrace.core.queue.definition import QueueDefinition, Retry
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.core.queue.group import ACK, NACK, REJECT, RELEASE
from headrace.core.queue.work import WorkGroup
from headrace.model import Message
from headrace.selector import parse
from headrace.storage.memory import MemoryEngine
from tests.house import House, Inbox

LEASE_S = 1000
BACKOFF_S = 3
STEPS = (
    *("publish", "publish", "many", "many", "settle", "settle", "settle", "wait", "wait"),
    *("join", "leave", "credit", "get", "claim", "finish", "late", "purge", "restart"),
)
COLOURS = ("red", "blue", "green")


class Member:
    """A consumer and the colour that it wants; "" for any."""

    def __init__(self, inbox: Inbox, colour: str) -> None:
        self.inbox = inbox
        self.colour = colour
        self.noted = 0

    def wants(self, message: Message) -> bool:
        return self.colour in ("", message.payload.decode())


class Team:
    """State of a group, message by message."""

    def __init__(self, name: str, colour: str) -> None:
        self.name = name
        self.colour = colour
        """The only key that it takes; "" for all."""
        self.members: list[Member] = []
        self.claimed: list[Delivery] = []
        """Messages claimed by name, as Spark does."""
        self.done: set[int] = set()
        self.attempts: dict[int, int] = {}
        self.due_us: dict[int, int] = {}
        """The end of the backoff of messages that failed."""
        self.failed_by: dict[int, set[str]] = {}
        """Members that failed a message while there were others."""
        self.untried: dict[int, int] = {}
        """Number of times that a message was given back untried: storage counts that as an attempt, memory does not."""
        self.counts_spent = False
        """True if the last try of a message was cut short: the group counts it until its turn comes."""
        self.acknowledged = self.delivered = self.redelivered = 0


class Workshop:
    """One queue, its teams, and all messages that were ever published to it."""

    def __init__(self, seed: int, teams: dict[str, str], limit: int = -1, **options: object) -> None:
        self.chance = random.Random(seed)
        self.limit = limit
        self.house = House(MemoryEngine())
        self.levels = int(str(options.get("max_priority", 0))) + 1
        self.traits: set[str] = set()
        retry = Retry(initial_backoff_ms=BACKOFF_S * 1000, multiplier=1.0)
        self.house.broker.declare(
            QueueDefinition("q", lease_ms=LEASE_S * 1000, retry=retry, delivery_limit=limit, **options)  # type: ignore[arg-type]
        )
        self.house.run()
        self.messages: list[Message] = []
        self.teams = [Team(name, colour) for name, colour in teams.items()]
        for team in self.teams:
            self.join(team, "")

    @property
    def now_us(self) -> int:
        return self.house.clock.now_us()

    def group(self, team: Team) -> WorkGroup:
        name = f"{team.name}@{team.colour}" if team.colour else team.name
        group = self.house.broker.queue("q").groups[name]
        assert isinstance(group, WorkGroup)
        return group

    # -- the model ---------------------------------------------------------------------------------------------------

    def is_expired(self, message: Message) -> bool:
        return 0 < message.expires_us <= self.now_us

    def held(self, team: Team) -> dict[int, Delivery]:
        got = [*team.claimed, *[delivery for member in team.members for delivery in member.inbox.got]]
        held = [delivery for delivery in got if delivery.is_held]
        offsets = {delivery.offset: delivery for delivery in held}
        assert len(offsets) == len(held), "two have the same message"
        return offsets

    def unfinished(self, team: Team) -> list[int]:
        """The offsets that the group must still get done."""
        return [
            offset
            for offset, message in enumerate(self.messages)
            if offset not in team.done and team.colour in ("", message.payload.decode())
        ]

    def is_due(self, team: Team, offset: int) -> bool:
        return max(self.messages[offset].not_before_us, team.due_us.get(offset, 0)) <= self.now_us

    def available(self, team: Team) -> list[int]:
        """The offsets that somebody may have now."""
        held = self.held(team)
        return [
            offset
            for offset in self.unfinished(team)
            if offset not in held and self.is_due(team, offset) and not self.is_expired(self.messages[offset])
        ]

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        team = self.chance.choice(self.teams)
        held = list(self.held(team).values())
        kind = self.chance.choice(STEPS)
        if kind == "publish":
            for _ in range(self.chance.randint(1, 5)):
                self.publish()
        elif kind == "join" and len(team.members) < 3:
            self.join(team, self.chance.choice(["", "", *COLOURS]))
        elif kind == "leave" and team.members:
            self.leave(team, self.chance.choice(team.members))
        elif kind == "many" and held:
            self.acknowledge(team, self.chance.sample(held, self.chance.randint(1, len(held))))
        elif kind == "settle" and held:
            for delivery in self.chance.sample(held, self.chance.randint(1, min(3, len(held)))):
                self.settle(team, delivery)
        elif kind == "get":
            self.get(team)
        elif kind == "wait":
            self.house.advance(self.chance.randint(1, 4))
        elif kind == "late" and self.chance.random() < 0.3:
            self.let_leases_end()
        elif kind == "purge" and self.chance.random() < 0.2:
            self.purge()
        elif kind == "restart" and self.chance.random() < 0.4:
            self.restart()
        elif kind == "credit" and team.members:
            consumer = self.chance.choice(team.members).inbox.consumer
            self.house.broker.set_credit(consumer, self.chance.randint(1, 6))
        elif kind == "claim" and not team.colour:
            self.claim(team)
        elif kind == "finish" and not team.colour and self.chance.random() < 0.5:
            self.finish(team)
        self.house.run()
        self.note()

    def publish(self) -> None:
        colour = self.chance.choice(COLOURS)
        fields: dict[str, object] = {"priority": self.chance.randint(0, self.levels), "headers": {"colour": colour}}
        if "delays" in self.traits and self.chance.random() < 0.3:
            fields["not_before_us"] = self.now_us + self.chance.randint(1, 6) * 1_000_000
        if "lifetimes" in self.traits and self.chance.random() < 0.3:
            fields["expires_us"] = self.now_us + self.chance.randint(1, 9) * 1_000_000
        message = self.house.message(colour, f"$queue/q/{colour}", exchange="", **fields)
        self.house.broker.publish(message)
        self.messages.append(message)

    def join(self, team: Team, colour: str, credit: int = 0) -> None:
        name, credit = f"{team.name} {self.chance.random()}", credit or self.chance.randint(1, 6)
        inbox = Inbox(self.house, name, credit, False, self.chance.choice([0, 0, 1]), None)
        inbox.consumer.selector = parse(f"colour = '{colour}'") if colour else None
        self.house.broker.consume("q", inbox.consumer, group=team.name, key_filter=team.colour)
        self.house.run()
        team.members.append(Member(inbox, colour))

    def leave(self, team: Team, member: Member) -> None:
        team.members.remove(member)
        for delivery in member.inbox.got:
            if delivery.is_held and self.is_dead(team, delivery.offset):
                team.done.add(delivery.offset)
        self.house.broker.cancel(member.inbox.consumer)
        self.house.run()

    def is_dead(self, team: Team, offset: int) -> bool:
        return 0 <= self.limit < team.attempts[offset]

    def acknowledge(self, team: Team, deliveries: list[Delivery]) -> None:
        self.house.broker.acknowledge(deliveries)
        team.done |= {delivery.offset for delivery in deliveries}
        team.acknowledged += len(deliveries)

    def settle(self, team: Team, delivery: Delivery) -> None:
        outcome, offset = self.chance.choice([ACK, REJECT, NACK, NACK, RELEASE]), delivery.offset
        self.house.broker.settle(delivery, outcome)
        if outcome in (ACK, REJECT) or (outcome == NACK and self.is_dead(team, offset)):
            team.done.add(offset)
        team.acknowledged += outcome == ACK
        if outcome == NACK:
            team.due_us[offset] = self.now_us + BACKOFF_S * 1_000_000
        if outcome == RELEASE:
            team.attempts[offset] -= 1
            team.untried[offset] = team.untried.get(offset, 0) + 1
        self.fail(team, delivery)

    def fail(self, team: Team, delivery: Delivery) -> None:
        if len(team.members) > 1:
            team.failed_by.setdefault(delivery.offset, set()).add(delivery.consumer.name)

    def get(self, team: Team) -> None:
        if team.members or team.colour:
            return
        available = self.available(team)
        got = self.house.broker.get("q", Consumer("getter", print, auto_ack=True), group=team.name)
        self.house.run()
        if got is None:
            assert not available
            return
        assert got.offset in available
        self.count(team, got)
        team.done.add(got.offset)
        team.acknowledged += 1

    def claim(self, team: Team) -> None:
        before = self.chance.randint(0, len(self.messages) + 1)
        available = [offset for offset in self.available(team) if offset < before]
        beyond = [offset for offset in self.available(team) if offset >= before]
        taken = self.house.broker.claims.take("q", team.name, "job", 3, before, LEASE_S * 1000)
        assert {delivery.offset for delivery in taken} <= set(available)
        assert taken or not available or beyond or team.failed_by
        for delivery in taken:
            self.count(team, delivery)
        team.claimed += taken

    def finish(self, team: Team) -> None:
        """Finish a range: of that, only messages that the claim holds are settled."""
        start = self.chance.randint(0, len(self.messages))
        mine = [each.offset for each in team.claimed if each.is_held]
        tried = range(start, min(start + 2, len(self.messages)))
        finished = [offset for offset in tried if offset in mine]
        count = sum([self.house.broker.claims.finish("q", team.name, "job", [(each, each + 1)]) for each in tried])
        assert count == len(finished)
        team.done |= set(finished)
        team.acknowledged += count

    def let_leases_end(self) -> None:
        for team in self.teams:
            for offset, delivery in self.held(team).items():
                if self.is_dead(team, offset):
                    team.done.add(offset)
                self.fail(team, delivery)
        self.house.advance(LEASE_S)

    def purge(self) -> None:
        self.house.broker.purge("q")
        for team in self.teams:
            team.done |= set(range(len(self.messages))) - set(self.held(team))

    def restart(self) -> None:
        for _ in range(2):
            self.house.advance(2)  # claims are stored after a while
        self.note()
        for team in self.teams:
            for offset, count in team.untried.items():
                team.attempts[offset] += count
            team.untried.clear()
        self.house = House(self.house.engine, self.house.clock)
        self.house.broker.tick()
        self.house.run()
        for team in self.teams:
            spent = {offset for offset in team.attempts if self.is_dead(team, offset)} - team.done
            team.done |= spent
            team.counts_spent |= len(spent) > 0
            team.members, team.claimed = [], []
            team.failed_by = {}
            team.acknowledged = team.delivered = team.redelivered = 0

    # -- what came ---------------------------------------------------------------------------------------------------

    def note(self) -> None:
        for team in self.teams:
            for member in team.members:
                for delivery in member.inbox.got[member.noted :]:
                    message = self.messages[delivery.offset]
                    assert member.wants(message), "nobody wanted this one"
                    assert team.colour in ("", message.payload.decode()), "the group does not take this one"
                    self.count(team, delivery)
                member.noted = len(member.inbox.got)

    def count(self, team: Team, delivery: Delivery) -> None:
        offset, message = delivery.offset, self.messages[delivery.offset]
        assert delivery.message.payload == message.payload
        assert offset not in team.done, "a settled message came again"
        assert self.is_due(team, offset), "a message came before its time"
        assert delivery.redelivered == (offset in team.attempts)
        team.attempts[offset] = team.attempts.get(offset, 0) + 1
        assert delivery.attempts == team.attempts[offset]
        team.delivered += 1
        team.redelivered += delivery.redelivered

    # -- laws --------------------------------------------------------------------------------------------------------

    def compare(self) -> None:
        for team in self.teams:
            group, held = self.group(team), self.held(team)
            assert set(held).isdisjoint(team.done)
            assert {entry.offset for entry in group.pending() if entry.consumer} == set(held)
            assert group.unsettled == len(held)
            assert group.acknowledged == team.acknowledged
            assert (group.delivered, group.redelivered) == (team.delivered, team.redelivered)
            self.compare_members(team, held)
            for member in team.members:
                self.compare_room(team, member)
            if not (team.colour or team.counts_spent or "lifetimes" in self.traits):
                self.compare_figures(team, group, held)

        if not (any([team.colour or team.counts_spent for team in self.teams]) or "lifetimes" in self.traits):
            self.compare_queue()

    def compare_queue(self) -> None:
        """Totals of the queue over all its groups, and the messages that a browser sees."""
        queue = self.house.broker.queue("q")
        unfinished = [self.unfinished(team) for team in self.teams]
        waiting = [len(open_) - len(self.held(team)) for open_, team in zip(unfinished, self.teams, strict=True)]
        assert (queue.messages, queue.total) == (max(waiting), max([len(each) for each in unfinished]))
        assert queue.unsettled == sum([len(self.held(team)) for team in self.teams])
        shown = sorted({offset for each in unfinished for offset in each})
        start, limit = self.chance.randint(0, len(self.messages)), self.chance.randint(1, 6)
        found = queue.browse(start, limit)
        assert [offset for offset, _ in found] == [offset for offset in shown if offset >= start][:limit]
        assert [message.payload for _, message in found] == [self.messages[offset].payload for offset, _ in found]

    def compare_members(self, team: Team, held: dict[int, Delivery]) -> None:
        for member in team.members:
            mine = sorted([offset for offset, each in held.items() if each.consumer is member.inbox.consumer])
            assert member.inbox.consumer.held() == mine
            assert member.inbox.consumer.holding == len(mine)

    def compare_room(self, team: Team, member: Member) -> None:
        consumer = member.inbox.consumer
        if consumer.is_silent or consumer.room <= 0:
            return
        for offset in self.available(team):
            if member.wants(self.messages[offset]) and not team.failed_by.get(offset):
                raise AssertionError(f"{offset} waits though {consumer.name} has room for it")

    def compare_figures(self, team: Team, group: WorkGroup, held: dict[int, Delivery]) -> None:
        unfinished = self.unfinished(team)
        assert (group.lag, group.ready) == (len(unfinished), len(unfinished) - len(held))
        waiting = [offset for offset in unfinished if offset not in held]
        assert {entry.offset: entry.attempts for entry in group.pending() if not entry.consumer} == {
            offset: team.attempts[offset] for offset in waiting if offset in team.attempts
        }
        assert group.head() == min(waiting, default=len(self.messages))
        backing_off = [offset for offset in waiting if team.due_us.get(offset, 0) > self.now_us]
        later = [message for message in self.messages if message.not_before_us > self.now_us]
        if not later:
            assert group.delayed == len(backing_off)
        if len(self.teams) == 1:
            queue = self.house.broker.queue("q")
            assert queue.log.first_offset == min(unfinished, default=len(self.messages))

    # -- the end -----------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Whatever is left comes to a single member, one by one, and nothing else; then the log is empty."""
        self.let_leases_end()
        self.note()
        for team in self.teams:
            for member in list(team.members):
                self.leave(team, member)
                self.note()
        self.house.advance(2 * LEASE_S)
        for team in self.teams:
            expected = self.available(team)
            self.join(team, "", credit=1)
            seen = []
            for _ in range(len(self.messages) + 1):
                self.note()
                held = self.held(team)
                seen += list(held)
                self.acknowledge(team, list(held.values()))
                self.house.run()
            assert sorted(seen) == expected
            if self.levels > 1:
                ranks = [(-min(self.messages[each].priority, self.levels - 1), each) for each in seen]
                assert ranks == sorted(ranks), "urgent messages come first, then old ones"
        self.house.advance(2 * LEASE_S)
        queue = self.house.broker.queue("q")
        assert queue.log.first_offset == queue.log.next_offset == len(self.messages)
        assert [group.lag for group in queue.groups.values()] == [0] * len(self.teams)


KINDS: dict[str, dict[str, object]] = {
    "plain": {},
    "priorities": {"max_priority": 2},
    "two priorities": {"max_priority": 1},
    "history": {"history_ms": 3_600_000},
    "limited": {"max_length": 100_000, "max_length_bytes": 1 << 30},
    "mortal": {"limit": 2},
}
TEAMS: dict[str, dict[str, str]] = {
    "one": {"team": ""},
    "two": {"team": "", "others": ""},
    "filtered": {"team": "red", "others": ""},
}


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("teams", list(TEAMS))
@pytest.mark.parametrize("traits", ["", "delays", "lifetimes"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_group_gets_done_what_the_model_says(kind: str, teams: str, traits: str, seed: int) -> None:
    workshop = Workshop(100 * seed + len(kind + teams + traits), TEAMS[teams], **KINDS[kind])  # type: ignore[arg-type]
    workshop.traits = set(traits.split())
    for _ in range(120):
        workshop.step()
        workshop.compare()
    workshop.drain()
