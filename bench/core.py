"""Cost of the core: CPU time per message in one process, from publish to ack, and how it grows. No network.

python -m bench.core                     everything
python -m bench.core cycle routing       some of it
"""

import argparse
import gc
import shutil
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from headrace.clock import Clock, ManualClock, SystemClock
from headrace.core.broker import Broker
from headrace.core.queue.definition import QueueDefinition, Retry, declared
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.core.queue.group import ACK, NACK
from headrace.core.routing.exchange import Binding, Exchange
from headrace.model import Message, Source
from headrace.storage.api import Engine
from headrace.storage.local.engine import LocalEngine, LocalSettings
from headrace.storage.memory import MemoryEngine

BATCH = 100


class Host:
    """A broker whose turns are run by hand."""

    def __init__(self, engine: Engine, clock: Clock | None = None) -> None:
        self.engine = engine
        self.clock = clock or SystemClock()
        self._soon: list[Callable[[], None]] = []
        self.broker = Broker(engine, self.clock, self._soon.append)

    def run(self) -> None:
        while self._soon:
            soon, self._soon[:] = list(self._soon), []
            for call in soon:
                call()
            self.engine.sync()


def show(name: str, figure: float, unit: str, goal: str = "", detail: str = "") -> None:
    print(f"{name:<62} {figure:>9.2f} {unit:<6} {'goal ' + goal if goal else '':<14} {detail}", flush=True)


def cpu(run: Callable[[], None]) -> float:
    gc.collect()
    start = time.process_time()
    run()
    return time.process_time() - start


def cycle_cost(host: Host, exchange: str, key: str, queue: str, count: int = 20_000) -> float:
    """CPU microseconds to publish, deliver and ack one message, in batches."""
    inbox: list[Delivery] = []
    consumer = Consumer("bench", inbox.extend, credit=BATCH * 2)
    host.broker.consume(queue, consumer)
    host.run()
    source = Source(key, exchange, "bench", "bench")
    payload = b"x" * 100
    confirmed = 0

    def confirm(error: object) -> None:
        nonlocal confirmed
        confirmed += 1

    def run() -> None:
        for _ in range(count // BATCH):
            now_us = host.clock.now_us()
            for _ in range(BATCH):
                host.broker.publish(Message(source, payload, now_us), confirm)
            host.run()
            deliveries = inbox[:]
            inbox.clear()
            for delivery in deliveries:
                host.broker.settle(delivery, ACK)
            host.run()

    run()
    cost = min(cpu(run) for _ in range(3)) / count * 1e6
    assert confirmed == count * 4
    host.broker.cancel(consumer)
    host.run()
    return cost


def bench_cycle(root: Path) -> None:
    """Publish to one durable classic queue, deliver, ack."""
    for name, engine in (("local", LocalEngine(root / "cycle")), ("memory", MemoryEngine())):
        host = Host(engine)
        host.broker.declare(declared("orders", durable=True))
        host.run()
        cost = cycle_cost(host, "", "orders", "orders")
        show(
            f"publish, deliver, ack, batches of {BATCH} ({name} engine)", cost, "us", "<= 12" if name == "local" else ""
        )
        engine.close()


def bench_routing(root: Path) -> None:
    """The same with 10 and with 10,000 queues and bindings of a topic exchange."""
    costs: list[float] = []
    for count in (10, 10_000):
        host = Host(MemoryEngine())
        host.broker.declare_exchange(Exchange("events", "topic", durable=True))
        for number in range(count):
            host.broker.declare(declared(f"queue-{number}", durable=True))
            host.broker.bind(Binding("events", f"queue-{number}", f"orders.{number}.*"))
        host.run()
        costs.append(statistics.median(cycle_cost(host, "events", "orders.7.created", "queue-7") for _ in range(3)))
    show(
        "publish with 10,000 queues and bindings, ratio to 10", costs[1] / costs[0], "", "<= 1.3", f"{costs[1]:.2f} us"
    )


def bench_pending(root: Path) -> None:
    """A million messages handed back with a backoff, and a million that are to be delivered later."""
    for count in (10_000, 1_000_000):
        clock = ManualClock()
        host = Host(MemoryEngine(), clock)
        host.broker.declare(QueueDefinition("jobs", retry=Retry(100, 3_600_000, 3_600_000)))
        inbox: list[Delivery] = []
        consumer = Consumer("bench", inbox.extend, credit=1000)
        host.broker.consume("jobs", consumer)
        source = Source("jobs")
        later = clock.now_us() + 3_600_000_000
        for start in range(0, count, 1000):
            for _ in range(500):
                host.broker.publish(Message(source, b"x", clock.now_us()))
                host.broker.publish(Message(source, b"x", clock.now_us(), not_before_us=later + start))
            host.run()
            for delivery in inbox:
                host.broker.settle(delivery, NACK)
            inbox.clear()
            host.run()

        def step(
            host: Host = host, inbox: list[Delivery] = inbox, clock: ManualClock = clock, source: Source = source
        ) -> None:
            for _ in range(20):
                for _ in range(50):
                    host.broker.publish(Message(source, b"x", clock.now_us()))
                host.run()
                for delivery in inbox:
                    host.broker.settle(delivery, NACK)
                inbox.clear()
                host.run()
                clock.advance(0.001)
                host.broker.tick()

        cost = min(cpu(step) for _ in range(5)) / 1000 * 1e6
        show(f"publish, deliver, nack with {count:,} waiting to be retried or due", cost, "us")


def bench_backlog(root: Path) -> None:
    """Memory that a group holds over a backlog of 5 million messages, beside one over ten thousand."""
    grown: list[int] = []
    for count in (10_000, 5_000_000):
        path = root / str(count)
        for step in (fill, consume):
            with ProcessPoolExecutor(1) as other:
                result = other.submit(step, path, count).result()
        grown.append(result)
    difference = (grown[1] - grown[0]) / (1 << 20)
    show(
        "memory of a group over 5 M, more than over 10 k",
        difference,
        "MiB",
        "< 1",
        f"{grown[1] / (1 << 20):.2f} in all",
    )


def fill(path: Path, count: int) -> int:
    engine = LocalEngine(path)
    host = Host(engine)
    host.broker.declare(declared("orders", durable=True))
    source = Source("orders")
    for _ in range(count // 1000):
        now_us = host.clock.now_us()
        for _ in range(1000):
            host.broker.publish(Message(source, b"x" * 100, now_us))
        host.run()
    engine.close()
    return 0


def consume(path: Path, count: int) -> int:
    """Memory that it takes to open the queue's group and take 20,000 messages, or half of them all."""
    engine = LocalEngine(path, settings=LocalSettings(cache_bytes=0))  # one block is kept, the rest is the cache's
    host = Host(engine)
    gc.collect()
    tracemalloc.start()
    inbox: list[Delivery] = []
    consumer = Consumer("bench", inbox.extend, credit=100)
    host.broker.consume("orders", consumer)
    host.run()
    for _ in range(min(200, count // 200)):
        deliveries, inbox[:] = list(inbox), []
        for delivery in deliveries[::2] + deliveries[1::2]:
            host.broker.settle(delivery, ACK)
        host.run()
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    engine.close()
    return held


BENCHES: dict[str, Callable[[Path], None]] = {
    "cycle": bench_cycle,
    "routing": bench_routing,
    "pending": bench_pending,
    "backlog": bench_backlog,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help=f"some of: {' '.join(BENCHES)}")
    parser.add_argument("--dir", type=Path, help="where to write; a temporary folder beside this one by default")
    options = parser.parse_args()
    for name in options.what or list(BENCHES):
        if name not in BENCHES:
            sys.exit(f"no bench {name!r}; choose from: {' '.join(BENCHES)}")
        root = Path(tempfile.mkdtemp(prefix="headrace-bench-", dir=options.dir or Path.cwd()))
        try:
            BENCHES[name](root)
        finally:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
