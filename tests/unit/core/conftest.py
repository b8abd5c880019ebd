"""Brokers for the tests of core: over memory, over files, and over an engine that refuses on purpose."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.clock import ManualClock
from headrace.storage.api import Engine
from headrace.storage.local.engine import LocalEngine
from headrace.storage.memory import MemoryEngine
from tests.house import House
from tests.refusing_engine import RefusingEngine


class World:
    """A house that can be left and entered again: what is stored is there, what was only remembered is not."""

    def __init__(self, open_engine: Callable[[], Engine], keeps_engine: bool) -> None:
        self._open_engine = open_engine
        self._keeps_engine = keeps_engine
        self.clock = ManualClock()
        self.engine = open_engine()
        self.house = House(self.engine, self.clock)

    def restart(self) -> House:
        """Stop everything and start again over what is stored."""
        self.house.run()
        if not self._keeps_engine:
            self.engine.close()
            self.engine = self._open_engine()
        self.house = House(self.engine, self.clock)
        self.house.broker.tick()
        self.house.run()
        return self.house

    def close(self) -> None:
        self.engine.close()


@pytest.fixture(params=["memory", "local"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A broker over each engine."""
    if request.param == "memory":
        engine = MemoryEngine()
        world = World(lambda: engine, keeps_engine=True)
    else:
        world = World(lambda: LocalEngine(tmp_path / "data"), keeps_engine=False)
    yield world
    world.close()


@pytest.fixture
def house() -> House:
    """A broker over memory."""
    return House()


@pytest.fixture
def refusing() -> RefusingEngine:
    return RefusingEngine()


@pytest.fixture
def refused(refusing: RefusingEngine) -> House:
    """A broker over an engine that refuses when told to."""
    return House(refusing)
