"""A work group against a simple model, through joins, leaves, settlements, timeouts and restarts, over two engines.

The model is a row per message: where it is and how often it was delivered. Laws: no message is lost, none is with
two members at once, `committed` never passes an unsettled message, counts add up, and what is delivered is the oldest
that may be.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.clock import ManualClock
from headrace.core.queue.definition import QueueDefinition, Retry
from headrace.core.queue.dispatch import Consumer, Credit, Delivery
from headrace.core.queue.group import ACK, NACK, REJECT, RELEASE
from headrace.core.queue.work import WorkGroup
from headrace.model import Message, Source
from headrace.storage.api import Engine
from headrace.storage.local.engine import LocalEngine, LocalSettings
from headrace.storage.memory import MemoryEngine
from tests.house import House

SMALL = LocalSettings(
    journal_file_bytes=16 << 10,
    checkpoint_bytes=48 << 10,
    tail_bytes=12 << 10,
    segment_bytes=16 << 10,
    cache_bytes=8192,
)
MAX_RETRIES = 3
LEASE_S = 30
BACKOFF_S = 5
GRAVE = "$dlq/jobs"
READY, HELD, DELAYED, GONE, DEAD = "ready", "held", "delayed", "gone", "dead"

numbers = st.integers(0, 1 << 16)


class Row:
    """State of one message in the model."""

    def __init__(self, wanted: bool, not_before_us: int) -> None:
        self.wanted = wanted
        self.place = DELAYED if not_before_us else READY
        self.was_delayed = not_before_us > 0
        self.until_us = not_before_us
        self.holder: Member | None = None
        self.failed: set[Member] = set()
        """The members that let it time out or gave it back."""
        self.attempts = 0
        self.seen = False


class Member:
    """A consumer that checks every delivery against the model."""

    def __init__(self, machine: "Groups", name: str, credit: int, shared: Credit | None) -> None:
        self.machine = machine
        self.deliveries: dict[int, Delivery] = {}
        self.fresh: list[int] = []
        self.is_silent = False
        """True if a lease of it ran out and it settled nothing since."""
        self.consumer = Consumer(name, self.deliver, credit, shared=shared)

    def deliver(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            if not delivery.redelivered and not delivery.message.not_before_us:
                self.fresh.append(delivery.offset)
            self.machine.delivered(self, delivery)
            self.deliveries[delivery.offset] = delivery


class Groups(RuleBasedStateMachine):
    """One queue, one group with or without a filter; every call is made to the broker and to the model."""

    engine: Engine

    def open(self) -> Engine:
        raise NotImplementedError

    @initialize(filtered=st.booleans(), priorities=st.sampled_from([0, 0, 3]))
    def begin(self, filtered: bool, priorities: int) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="headrace-"))
        self.clock = ManualClock()
        self.engine = self.open()
        self.house = House(self.engine, self.clock)
        self.filter = "wanted/#" if filtered else ""
        self.name = "workers@wanted/#" if filtered else "workers"
        self.house.broker.declare(
            QueueDefinition(
                "jobs",
                max_priority=priorities,
                lease_ms=LEASE_S * 1000,
                retry=Retry(MAX_RETRIES, BACKOFF_S * 1000, 20_000),
                dead_letter_queue=GRAVE,
            )
        )
        self.ordered = not priorities
        self.rows: list[Row] = []
        self.members: list[Member] = []
        self.shared = Credit(5)
        self.count = 0
        self.join(0, False)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.close()
            shutil.rmtree(self.home)

    # -- the model -----------------------------------------------------------------------------------------------------

    def delivered(self, member: Member, delivery: Delivery) -> None:
        row = self.rows[delivery.offset]
        assert row.wanted, "a message that the filter keeps out was delivered"
        assert row.place == READY, f"offset {delivery.offset} was delivered while it was {row.place}"
        assert row.until_us <= self.clock.now_us(), "delivered before its time"
        assert delivery.message.payload == b"%d" % delivery.offset
        assert delivery.attempts == row.attempts + 1
        assert delivery.redelivered == row.seen
        row.attempts += 1
        row.seen = True
        row.place = HELD
        row.holder = member
        row.until_us = self.clock.now_us() + LEASE_S * 1_000_000

    def came_back(self, row: Row, wait_us: int) -> None:
        if row.holder is not None:
            row.failed.add(row.holder)
        row.holder = None
        if row.attempts > MAX_RETRIES:
            row.place = DEAD
        else:
            row.until_us = self.clock.now_us() + wait_us
            row.place = DELAYED if wait_us else READY

    def time_passes(self) -> None:
        """Messages that are due by now in the model."""
        now_us = self.clock.now_us()
        for offset, row in enumerate(self.rows):
            if row.place == HELD and row.until_us <= now_us:
                assert row.holder is not None
                row.holder.is_silent = True
                del row.holder.deliveries[offset]
                self.came_back(row, 0)
            elif row.place == DELAYED and row.until_us <= now_us:
                row.place = READY

    # -- what happens --------------------------------------------------------------------------------------------------

    @rule(
        count=st.integers(1, 12), wanted=st.integers(0, 255), wait_s=st.sampled_from([0, 0, 0, 7]), urgent=st.booleans()
    )
    def publish(self, count: int, wanted: int, wait_s: int, urgent: bool) -> None:
        for number in range(count):
            matches = bool(wanted >> number % 8 & 1) or not self.filter
            not_before_us = self.clock.now_us() + wait_s * 1_000_000 if wait_s else 0
            source = Source("$queue/jobs/wanted/x" if matches else "$queue/jobs/other")
            payload = b"%d" % len(self.rows)
            message = Message(source, payload, self.clock.now_us(), b"", 2 * urgent, 0, not_before_us)
            self.rows.append(Row(matches, not_before_us))
            assert self.house.broker.publish_topic(message) == 1
        self.house.run()

    @rule(credit=st.integers(0, 6), share=st.booleans())
    def join(self, credit: int, share: bool) -> None:
        if len(self.members) < 4:
            self.count += 1
            member = Member(self, f"c{self.count}", credit, self.shared if share else None)
            self.members.append(member)
            self.house.broker.consume("jobs", member.consumer, "workers", self.filter)
            self.house.run()

    @precondition(lambda self: self.members)
    @rule(number=numbers)
    def leave(self, number: int) -> None:
        member = self.members.pop(number % len(self.members))
        for offset in member.deliveries:
            self.came_back(self.rows[offset], 0)
        self.house.broker.cancel(member.consumer)
        self.house.run()

    @precondition(lambda self: self.members)
    @rule(number=numbers, credit=st.integers(0, 6))
    def change_credit(self, number: int, credit: int) -> None:
        self.house.broker.set_credit(self.members[number % len(self.members)].consumer, credit)
        self.house.run()

    @precondition(lambda self: any(member.deliveries for member in self.members))
    @rule(picks=st.lists(numbers, min_size=1, max_size=8), outcome=st.sampled_from([ACK, ACK, NACK, REJECT, RELEASE]))
    def settle(self, picks: list[int], outcome: int) -> None:
        for pick in picks:
            held = [(member, offset) for member in self.members for offset in sorted(member.deliveries)]
            if not held:
                break
            member, offset = held[pick % len(held)]
            member.is_silent = False
            row = self.rows[offset]
            if outcome == NACK:
                self.came_back(row, min(BACKOFF_S * 2 ** (row.attempts - 1), 20) * 1_000_000)
            elif outcome == RELEASE:
                row.attempts -= 1
                row.failed.add(member)
                row.place, row.holder, row.until_us = READY, None, 0
            else:
                row.place, row.holder = (GONE if outcome == ACK else DEAD), None
            self.house.broker.settle(member.deliveries.pop(offset), outcome)
        self.house.run()

    @precondition(lambda self: any(member.deliveries for member in self.members))
    @rule(picks=st.lists(numbers, min_size=1, max_size=12), is_repeated=st.booleans())
    def acknowledge(self, picks: list[int], is_repeated: bool) -> None:
        held = [(member, offset) for member in self.members for offset in sorted(member.deliveries)]
        chosen = dict.fromkeys([held[pick % len(held)] for pick in picks])
        ended = [member.deliveries.pop(offset) for member, offset in chosen]
        for member, offset in chosen:
            member.is_silent = False
            self.rows[offset].place, self.rows[offset].holder = GONE, None
        self.house.broker.acknowledge([*ended, *ended] if is_repeated else ended)
        self.house.run()

    @precondition(lambda self: any(member.deliveries for member in self.members))
    @rule(pick=numbers, lease_s=st.integers(1, 60))
    def renew(self, pick: int, lease_s: int) -> None:
        held = [(member, offset) for member in self.members for offset in sorted(member.deliveries)]
        member, offset = held[pick % len(held)]
        member.is_silent = False
        self.house.broker.renew(member.deliveries[offset], lease_s * 1000)
        self.rows[offset].until_us = self.clock.now_us() + lease_s * 1_000_000
        self.house.run()

    @rule(seconds=st.sampled_from([1, 5, 10, 31]))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.time_passes()
        self.house.broker.tick()
        self.house.run()

    @rule()
    def purge(self) -> None:
        self.house.broker.purge("jobs")
        for row in self.rows:
            if row.place in (READY, DELAYED):
                row.place = GONE
        self.house.run()

    @rule()
    def restart(self) -> None:
        self.reopen()
        self.house = House(self.engine, self.clock)
        self.members.clear()
        self.shared = Credit(5)
        for row in self.rows:
            if row.place == HELD:
                row.holder = None
                row.place, row.until_us = READY, 0
        for offset, entry in self.engine.log("jobs").groups[self.name].pending.items():
            # Releases are not stored: what was not counted before is counted now.
            assert entry.attempts >= self.rows[offset].attempts
            self.rows[offset].attempts = entry.attempts
        self.join(0, False)

    def reopen(self) -> None:
        return

    # -- laws ----------------------------------------------------------------------------------------------------------

    @invariant()
    def the_group_is_where_the_model_is(self) -> None:
        if not hasattr(self, "house"):
            return
        group = self.house.broker.queue("jobs").groups[self.name]
        assert isinstance(group, WorkGroup)
        self.see_what_was_given_up()
        held = {offset for offset, row in enumerate(self.rows) if row.place == HELD}
        waiting = {offset for offset, row in enumerate(self.rows) if row.place in (READY, DELAYED)}
        unmatched = {offset for offset, row in enumerate(self.rows) if not row.wanted}

        assert {entry.offset for entry in group.pending() if entry.consumer} == held
        assert group.unsettled == len(held)
        # What the filter keeps out counts as ready until the group has come by.
        assert len(waiting - unmatched) <= group.ready <= len(waiting)
        lowest = min(held | waiting, default=len(self.rows))
        lowest_wanted = min(held | (waiting - unmatched), default=len(self.rows))
        assert lowest <= group.state.committed <= lowest_wanted
        if waiting - unmatched:
            assert group.head() <= min(waiting - unmatched)

    @invariant()
    def nothing_waits_that_somebody_could_have(self) -> None:
        if not hasattr(self, "house"):
            return
        for row in self.rows:
            if row.place == READY and row.wanted:
                assert not [member for member in self.members if self.could_have(member, row)]

    def could_have(self, member: Member, row: Row) -> bool:
        """True if a member has room for a message and neither failed it nor is silent while others are not."""
        if member.consumer.room <= 0:
            return False
        if len(self.members) == 1:
            return True
        is_last = member.is_silent and member.deliveries and not all(other.is_silent for other in self.members)
        return member not in row.failed and not is_last

    @invariant()
    def what_never_came_back_is_delivered_in_order(self) -> None:
        if hasattr(self, "house") and self.ordered:
            rows = [(offset, row) for offset, row in enumerate(self.rows) if row.wanted and not row.was_delayed]
            highest = max([offset for offset, row in rows if row.seen], default=-1)
            assert not [offset for offset, row in rows if offset < highest and row.place == READY and not row.seen]
        for member in getattr(self, "members", []):
            assert not self.ordered or member.fresh == sorted(member.fresh)

    @invariant()
    def every_member_is_within_its_credit(self) -> None:
        for member in getattr(self, "members", []):
            consumer = member.consumer
            assert consumer.held() == sorted(member.deliveries)
            assert consumer.holding == len(member.deliveries)

    @invariant()
    def every_dead_letter_is_in_the_grave_once(self) -> None:
        if not hasattr(self, "house"):
            return
        self.see_what_was_given_up()
        dead = sorted(b"%d" % offset for offset, row in enumerate(self.rows) if row.place == DEAD)
        assert sorted(self.buried()) == dead

    def buried(self) -> list[bytes]:
        if GRAVE not in self.house.broker.topology.queues:
            return []
        log = self.house.broker.queue(GRAVE).log
        return [message.payload for message in log.read(0, 1 << 20)]

    def see_what_was_given_up(self) -> None:
        """After a restart, what had used up its attempts goes to the grave when its turn comes."""
        for row, payload in ((self.rows[int(payload)], payload) for payload in self.buried()):
            if row.place == READY and row.attempts > MAX_RETRIES:
                row.place = DEAD
            assert row.place == DEAD, f"{payload!r} is dead and {row.place}"


class GroupsInMemory(Groups):
    def open(self) -> Engine:
        return MemoryEngine()


class GroupsOnDisk(Groups):
    def open(self) -> Engine:
        return LocalEngine(self.home, settings=SMALL)

    def reopen(self) -> None:
        self.engine.close()
        self.engine = self.open()


def _settings(examples: int) -> Any:
    return settings(
        max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )


TestGroupsInMemory = GroupsInMemory.TestCase
TestGroupsInMemory.settings = _settings(3 * settings().max_examples)
TestGroupsOnDisk = GroupsOnDisk.TestCase
TestGroupsOnDisk.settings = _settings(settings().max_examples * 3 // 5)
