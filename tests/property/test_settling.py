"""Settlements in many queues, which are stored late, through kills, power losses and checkpoints.

Laws: what was confirmed and is not settled comes back, in order; what is settled and stored does not; nothing is
damaged by messages that left memory before it was stored that they may.
"""

import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from headrace.clock import ManualClock
from headrace.core.queue.definition import declared
from headrace.core.queue.dispatch import Delivery
from headrace.core.queue.leases import STORED_AFTER_US
from headrace.errors import HeadraceError
from headrace.storage.local.engine import LocalEngine, LocalSettings
from tests.disks import LosingDisk
from tests.house import House, Inbox

SMALL = LocalSettings(
    journal_file_bytes=32 << 10,
    checkpoint_bytes=96 << 10,
    tail_bytes=48 << 10,
    segment_bytes=16 << 10,
    cache_bytes=8 << 10,
)
SHARING = replace(SMALL, own_files=0)
QUEUES = 270
"""More than have their settlements stored at once."""

queues = st.integers(0, QUEUES - 1)


class Settling(RuleBasedStateMachine):
    """A consumer for each queue, and for each queue what was published, what is settled and what may come back."""

    @initialize()
    def begin(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="headrace-"))
        self.generation = 0
        self.clock = ManualClock()
        self.number = 0
        self.waiting: list[list[str]] = [[] for _ in range(QUEUES)]
        """Messages that are confirmed and not settled, in order."""
        self.settled: list[list[str]] = [[] for _ in range(QUEUES)]
        """Messages that are settled, perhaps not durably."""
        self.open()
        for queue in range(QUEUES):
            self.house.broker.declare(declared(f"q{queue}", durable=True))
        self.house.run()
        self.consume()

    def open(self) -> None:
        self.disk = LosingDisk()
        sizes = SHARING if self.generation % 2 else SMALL
        self.engine = LocalEngine(self.home / str(self.generation), settings=sizes, disk=self.disk)
        self.house = House(self.engine, self.clock)

    def consume(self) -> None:
        self.inboxes: list[Inbox] = []
        for queue in range(QUEUES):
            inbox = Inbox(self.house, "consumer", 0, False, 0, None)
            self.house.broker.consume(f"q{queue}", inbox.consumer)
            self.inboxes.append(inbox)
        self.house.turn()

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.close()
            shutil.rmtree(self.home)

    def publish(self, targets: list[int], size: int) -> None:
        told: list[HeadraceError | None] = []
        for queue in targets:
            self.number += 1
            text = f"{self.number}.".ljust(size, "x")
            self.waiting[queue].append(text)
            self.house.broker.publish(self.house.message(text, f"q{queue}"), told.append)
        self.house.turn()
        assert told == [None] * len(targets)

    def acknowledge(self, deliveries: list[tuple[int, Delivery]]) -> None:
        for queue, delivery in deliveries:
            text = delivery.message.payload.decode()
            self.inboxes[queue].got.remove(delivery)
            self.waiting[queue].remove(text)
            self.settled[queue].append(text)
        self.house.broker.acknowledge([delivery for _, delivery in deliveries])
        self.house.turn()

    # -- what happens --------------------------------------------------------------------------------------------------

    @rule(first=queues, count=st.integers(1, QUEUES), size=st.integers(0, 60))
    def publish_to_neighbours(self, first: int, count: int, size: int) -> None:
        self.publish([(first + number) % QUEUES for number in range(count)], size)

    @rule(queue=queues, count=st.integers(1, 300))
    def publish_to_one(self, queue: int, count: int) -> None:
        self.publish([queue] * count, 10)

    @rule(rounds=st.integers(1, 10))
    def serve_all(self, rounds: int) -> None:
        """A message to each at a time, which is settled at once."""
        for _ in range(rounds):
            self.publish(list(range(QUEUES)), 0)
            self.acknowledge([(queue, inbox.got[-1]) for queue, inbox in enumerate(self.inboxes)])

    @rule(seed=st.integers(0, 1 << 30), share=st.sampled_from([0.1, 0.5, 1.0]), is_in_order=st.booleans())
    def settle_some(self, seed: int, share: float, is_in_order: bool) -> None:
        chance = random.Random(seed)
        held = [(queue, delivery) for queue, inbox in enumerate(self.inboxes) for delivery in inbox.got]
        chosen = [pair for pair in held if chance.random() < share]
        if not is_in_order:
            chance.shuffle(chosen)
        self.acknowledge(chosen)

    @rule(seconds=st.sampled_from([0.01, STORED_AFTER_US / 1_000_000, 1.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.house.broker.tick()
        self.house.turn()

    @rule(queue=queues)
    def delete_and_declare(self, queue: int) -> None:
        self.house.broker.delete(f"q{queue}")
        self.house.broker.declare(declared(f"q{queue}", durable=True))
        self.waiting[queue].clear()
        self.settled[queue].clear()
        self.inboxes[queue] = Inbox(self.house, "consumer", 0, False, 0, None)
        self.house.broker.consume(f"q{queue}", self.inboxes[queue].consumer)
        self.house.turn()

    @rule()
    def become_safe(self) -> None:
        """From here on nothing of what is settled comes back."""
        told: list[HeadraceError | None] = []
        self.house.broker.when_safe(told.append)
        self.house.turn()
        assert told == [None]
        for settled in self.settled:
            settled.clear()

    @rule()
    def reopen(self) -> None:
        self.house.run()
        self.engine.close()
        for settled in self.settled:
            settled.clear()
        self.go_on()

    @rule()
    def kill(self) -> None:
        self.come_back(self.disk.snapshot)

    @rule(seed=st.integers(0, 1 << 30))
    def lose_power(self, seed: int) -> None:
        self.come_back(lambda root, target: self.disk.lose_power(root, target, random.Random(seed)))

    def come_back(self, take: Callable[[Path, Path], None]) -> None:
        root = self.home / str(self.generation)
        with self.disk.lock:
            take(root, self.home / str(self.generation + 1))
        self.engine.close()
        shutil.rmtree(root)
        self.generation += 1
        self.go_on()

    def go_on(self) -> None:
        """All waiting messages come, in order, and besides them at most those whose settlement may be lost."""
        self.open()
        self.consume()
        for queue, inbox in enumerate(self.inboxes):
            again = set(self.settled[queue])
            assert [text for text in inbox.payloads if text not in again] == self.waiting[queue]
            assert inbox.payloads == sorted(inbox.payloads, key=lambda text: int(text.partition(".")[0]))
            self.waiting[queue] = inbox.payloads
            self.settled[queue].clear()


TestSettling = Settling.TestCase
TestSettling.settings = settings(
    max_examples=settings().max_examples // 10,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
