"""One point of `bench.compare --scale`, without sockets: growth.py counts it. Argument: the name of the scenario.

The publisher's and the consumer's connection, the broker and its engine are as they are when served, with checkpoints
and with garbage collection.
"""

import shutil
import sys
import tempfile
from itertools import cycle, islice
from pathlib import Path

from pamqp import commands

from bench.compare.load import Load, Scenario
from bench.compare.scaling import points
from bench.guard.client import Client, House, ack_frame, publish_frames
from bench.guard.scenarios import PAYLOAD, mark
from headrace.clock import SystemClock
from headrace.process import settle_memory
from headrace.storage.local.engine import LocalEngine

MESSAGES = 400_000
"""So many are counted: enough to be worth a checkpoint."""

COMMIT = 1000
"""So many are fed at once, where the load's window allows for it."""

EXCHANGE = "x"


def prepare(house: House, load: Load, backlog: int) -> None:
    """Queues, exchange and bindings, and so many messages in the first queue."""
    client = Client(house, load.prefetch)
    queues = load.queue_names()
    client.call_all([commands.Queue.Declare(queue=queue, durable=True) for queue in queues])
    if load.exchange:
        client.call(commands.Exchange.Declare(exchange=EXCHANGE, exchange_type=load.exchange, durable=True))
    keys = load.binding_keys()
    client.call_all([commands.Queue.Bind(queue=queues[0], exchange=EXCHANGE, routing_key=key) for key in keys])
    for _ in range(backlog // COMMIT):
        client.feed(publish_frames(queues[0], PAYLOAD) * COMMIT)
        client.take()


class Flow:
    """Messages from a publisher to a consumer, who acknowledges as many as were published."""

    def __init__(self, house: House, load: Load) -> None:
        self._load = load
        self._idle = [Client(house, load.prefetch) for _ in range(load.idle)]
        self._publisher = Client(house, load.prefetch)
        self._consumer = Client(house, load.prefetch)
        self._tag = 0
        queues = load.queue_names()
        self._frames = [publish_frames(queue, PAYLOAD) for queue in queues]
        if load.exchange:
            self._frames = [publish_frames(key, PAYLOAD, EXCHANGE) for key in load.routing_keys()]
        self._consumer.call_all([commands.Basic.Consume(queue=queue, consumer_tag=queue) for queue in queues])
        self._consumer.take()

    def run(self, messages: int, in_row: int) -> float:
        """Returns how many bytes the consumer got for each message."""
        at_once = min(COMMIT, self._load.window)
        received = 0
        frames = cycle(frame for frame in self._frames for _ in range(in_row))
        for _ in range(messages // at_once):
            self._publisher.feed(b"".join(islice(frames, at_once)))
            self._publisher.take()
            self._acknowledge(at_once)
            received += len(self._consumer.take())
        return received / (messages // at_once * at_once)

    def _acknowledge(self, messages: int) -> None:
        every = self._load.ack_every
        before, self._tag = self._tag, self._tag + messages
        tags = [*range(before + every, self._tag, every), self._tag]
        self._consumer.feed(b"".join([ack_frame(tag, True) for tag in tags]))


def run(scenario: Scenario, directory: Path) -> None:
    load = scenario.loads[0]
    engine = LocalEngine(directory)
    prepare(House(engine), load, scenario.point if scenario.axis == "backlog" else 0)
    engine.close()
    engine = LocalEngine(directory)  # with all that is stored once stored, and a new journal
    flow = Flow(House(engine), load)
    settle_memory(SystemClock())
    expected = flow.run(max(20_000, 2 * load.queues), 1)
    mark()
    received = flow.run(MESSAGES, load.in_row)
    mark()
    assert abs(received - expected) < 1 < expected - len(PAYLOAD), f"{received} bytes a message, not {expected}"
    engine.close()


def main() -> None:
    scenario = next(point for point in points() if point.name == sys.argv[1])
    folder = Path(tempfile.mkdtemp())
    try:
        run(scenario, folder / "data")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
