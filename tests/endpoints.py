"""Virtual hosts and users for tests that build a server themselves; nothing there waits for threads."""

from collections.abc import Callable
from pathlib import Path

from headrace.clock import Clock, SystemClock
from headrace.core.access.access import Access
from headrace.core.access.logins import Background, Result
from headrace.core.broker import Broker
from headrace.core.hosts import Hosts
from headrace.errors import HeadraceError
from headrace.storage.api import Engine
from headrace.storage.local.engine import LocalEngine
from headrace.storage.memory import MemoryEngine


class AtOnce(Background):
    """Does all work at once; what is for later is kept for the test to look at and to call."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, Callable[[], None]]] = []
        self.runs = 0

    def run(self, work: Callable[[], Result], done: Callable[[Result], None]) -> None:
        self.runs += 1
        done(work())

    def later(self, delay_us: int, call: Callable[[], None]) -> None:
        self.waiting.append((delay_us, call))

    def pass_time(self) -> None:
        """Let the time of everything come that waits for it."""
        waiting, self.waiting = self.waiting, []
        for _, call in waiting:
            call()


def access_to(broker: Broker, engine: Engine | None = None, clock: Clock | None = None) -> tuple[Hosts, Access]:
    """The one virtual host of this broker, and who may enter it."""
    engine = engine or MemoryEngine()
    hosts = Hosts(engine, lambda name, _: broker)
    return hosts, Access(engine, clock or SystemClock(), AtOnce(), hosts)


def prepare(directory: Path, change: Callable[[Hosts, Access], None]) -> None:
    """Have virtual hosts and users in a data directory before a server opens it."""
    engine = LocalEngine(directory)
    clock = SystemClock()
    hosts = Hosts(engine, lambda name, _: Broker(engine, clock, lambda call: None, name))
    access = Access(engine, clock, AtOnce(), hosts)
    change(hosts, access)
    engine.sync()
    engine.close()


def must(error: HeadraceError | None) -> None:
    """The `done` of changes that have to succeed."""
    assert error is None, error
