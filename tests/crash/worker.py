"""A process with a broker that publishes, settles, buries and moves as fast as it can, until it is killed.

    python -m tests.crash.worker DIRECTORY FIRST_NUMBER

Every message is a number. What happens is said on standard output, a line each:

    jobs 7      the number was confirmed in the queue `jobs`; the same for `inbox`, and for `fan` (two queues at once)
    acking 7    the number is about to be acknowledged in `jobs`
    acked 7     it was, and something published later is confirmed

In `jobs`, numbers that three divides are rejected, so they are dead letters; those that seven divides fail at first.
From `inbox`, every number is moved to `left` and `right` in one transaction.
"""

import random
import sys
from collections.abc import Callable
from pathlib import Path

from headrace.clock import SystemClock
from headrace.core.batch import Confirm
from headrace.core.broker import Broker
from headrace.core.queue.definition import QueueDefinition
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.core.queue.group import ACK, NACK, REJECT
from headrace.core.transaction import Publish
from headrace.errors import HeadraceError
from headrace.model import Message, Source
from headrace.storage.local.engine import LocalEngine
from tests.crash.writer import SMALL

GRAVE = "$dlq/jobs"
FAN = ("copy-1", "copy-2")
QUEUES = (
    QueueDefinition("jobs", dead_letter_queue=GRAVE, delivery_limit=50),
    QueueDefinition("inbox"),
    QueueDefinition("left"),
    QueueDefinition("right"),
    *(QueueDefinition(name, topics=("$queue/fan/#",)) for name in FAN),
)
SOURCES = {name: Source(name) for name in ("jobs", "inbox", "left", "right")} | {"fan": Source("$queue/fan/x")}


class Worker:
    """One broker, its consumers, and the loop that keeps them busy."""

    def __init__(self, directory: Path, number: int) -> None:
        self.number = number
        self.chance = random.Random(number)
        self.clock = SystemClock()
        self.engine = LocalEngine(directory, settings=SMALL)
        self.soon: list[Callable[[], None]] = []
        self.broker = Broker(self.engine, self.clock, self.soon.append)
        for queue in QUEUES:
            self.broker.declare(queue)
        self.jobs: list[Delivery] = []
        self.inbox: list[Delivery] = []
        self.broker.consume("jobs", Consumer("worker", self.jobs.extend, credit=40))
        self.broker.consume("inbox", Consumer("mover", self.inbox.extend, credit=40))

    def run(self) -> None:
        while True:
            self.move()
            self.publish(self.work())
            calls, self.soon[:] = list(self.soon), []
            for call in calls:
                call()
            if self.chance.random() < 0.4:  # commits are written each by itself or several together
                self.engine.sync()
            else:
                self.engine.poll()
            self.broker.tick()

    def publish(self, acked: list[int]) -> None:
        """A few messages to each queue; the confirm of the last also vouches for what was settled before."""
        for _ in range(1 + self.number % 4):
            for name in ("jobs", "inbox", "fan"):
                said = f"{name} {self.number}\n"
                if name == "fan":
                    said += "".join([f"acked {number}\n" for number in acked])
                    acked = []
                self.broker.publish(self.message(name, self.number), saying(said))
            self.number += 1

    def work(self) -> list[int]:
        acked: list[int] = []
        for delivery in self.jobs:
            number = int(delivery.message.payload)
            if number % 7 == 0 and delivery.attempts == 1:
                self.broker.settle(delivery, NACK)
            elif number % 3 == 0:
                self.broker.settle(delivery, REJECT)
            else:
                say(f"acking {number}\n")
                self.broker.settle(delivery, ACK)
                acked.append(number)
        self.jobs.clear()
        return acked

    def move(self) -> None:
        for delivery in self.inbox:
            number = int(delivery.message.payload)
            self.broker.transaction(
                [Publish(self.message("left", number)), Publish(self.message("right", number))], [(delivery, ACK)]
            )
        self.inbox.clear()

    def message(self, name: str, number: int) -> Message:
        return Message(SOURCES[name], b"%d" % number, self.clock.now_us())


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def saying(text: str) -> Confirm:
    def confirm(error: HeadraceError | None) -> None:
        if error is not None:
            raise error
        say(text)

    return confirm


if __name__ == "__main__":
    Worker(Path(sys.argv[1]), int(sys.argv[2])).run()
