"""A reload: all of it or nothing, and the event loop serves others meanwhile."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.clock import ManualClock
from headrace.config.configuration import Configuration, load
from headrace.core.access.access import Access
from headrace.core.broker import Broker
from headrace.core.hosts import Hosts
from headrace.core.pipeline import AT_ONCE
from headrace.core.queue.configured import FILE_QUEUE, Plan
from headrace.core.queue.definition import STREAM, QueueDefinition
from headrace.errors import Refused
from headrace.reloading import Reloading
from headrace.storage.memory import MemoryEngine
from tests.endpoints import AtOnce

COUNT = 5 * AT_ONCE + 7


class Reloaded:
    """A broker whose turns are those of the event loop, and the configuration that it reads."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "headrace.yaml"
        self.write("{}")
        self.engine = MemoryEngine()
        self._calls: list[Callable[[], None]] = []
        clock = ManualClock()
        self.hosts = Hosts(self.engine, lambda name, _: Broker(self.engine, clock, self._soon, name))
        access = Access(self.engine, clock, AtOnce(), self.hosts)
        self.readers: list[str] = []
        self.reloading = Reloading(self._read(), self._read, self.hosts, access, None)
        self.turns = 0

    def write(self, text: str) -> None:
        self.file.write_text(text)

    def queues(self, depth: int) -> None:
        """Have COUNT queues in the file."""
        entries = [f"- {{name: q{number}, limits: {{max_depth: {depth}}}}}" for number in range(COUNT)]
        self.write("\n".join(["queues:", *entries]))

    def _read(self) -> Configuration:
        self.readers = [*getattr(self, "readers", []), threading.current_thread().name]
        return load(FILE_QUEUE, self.file, {}, {})

    def _soon(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def run(self, *works: Awaitable[Any]) -> list[Any]:
        """Run these at the same time; storage stores in each turn."""

        async def all_of_it() -> list[Any]:
            ending = asyncio.gather(*works, return_exceptions=True)
            while not ending.done():
                self.turns += 1
                calls, self._calls = self._calls, []
                for call in calls:
                    call()
                self.engine.sync()
                await asyncio.sleep(0)
            return list(ending.result())

        return asyncio.run(all_of_it())

    def broker(self, host: str = "/") -> Broker:
        found = self.hosts.find(host)
        assert found is not None
        return found


@pytest.fixture
def reloaded(tmp_path: Path) -> Reloaded:
    return Reloaded(tmp_path)


def test_queues_are_made_and_altered_a_few_in_each_turn_of_the_loop(
    reloaded: Reloaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: dict[int, int] = {}
    compared = Plan._compared

    def counted(plan: Plan, each: Any) -> Any:
        done[reloaded.turns] = done.get(reloaded.turns, 0) + 1
        return compared(plan, each)

    monkeypatch.setattr(Plan, "_compared", counted)
    reloaded.queues(10)
    [made] = reloaded.run(reloaded.reloading.reload())
    reloaded.queues(20)
    [altered] = reloaded.run(reloaded.reloading.reload())

    assert (len(made.created), len(made.altered), len(altered.created), len(altered.altered)) == (COUNT, 0, 0, COUNT)
    assert {queue.definition.max_length for queue in reloaded.broker().topology.queues.values()} == {20}
    assert max(done.values()) < 2 * AT_ONCE


def test_the_file_is_read_in_another_thread(reloaded: Reloaded) -> None:
    reloaded.run(reloaded.reloading.reload())

    first, second = reloaded.readers
    assert first == threading.main_thread().name != second


def test_a_refused_reload_changes_nothing(reloaded: Reloaded) -> None:
    reloaded.broker().declare(QueueDefinition("q3", STREAM))
    reloaded.queues(10)
    reloaded.write(reloaded.file.read_text() + "\n- {name: new, vhost: other}")

    [refusal] = reloaded.run(reloaded.reloading.reload())

    assert isinstance(refusal, Refused)
    assert "headrace.yaml:5" in str(refusal)
    assert "give the new queue another name" in str(refusal)
    assert list(reloaded.broker().topology.queues) == ["q3"]
    assert reloaded.hosts.names() == ["/"]


def test_two_reloads_at_once_come_one_after_the_other(reloaded: Reloaded) -> None:
    reloaded.queues(10)

    first, second = reloaded.run(reloaded.reloading.reload(), reloaded.reloading.reload())

    assert len(first.created) == COUNT
    assert (second.created, second.altered) == ([], [])


@pytest.mark.parametrize("is_first", [True, False])
def test_a_queue_that_a_client_makes_during_a_reload_becomes_as_configured_or_stays(
    reloaded: Reloaded, is_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    reloaded.queues(10)
    name = f"q{COUNT - 1}"

    async def declare() -> None:
        while "q0" not in reloaded.broker().topology.queues:
            await asyncio.sleep(0)
        assert name not in reloaded.broker().topology.queues
        reloaded.broker().declare(QueueDefinition(name, max_length=7) if is_first else QueueDefinition(name, STREAM))

    [result, _] = reloaded.run(reloaded.reloading.reload(), declare())

    assert len(result.created) == COUNT
    queues = reloaded.broker().topology.queues
    assert len(queues) == COUNT
    assert (queues[name].definition.max_length == 10) is is_first
    assert ("changed while the configuration was read" in caplog.text) is not is_first


def test_a_new_virtual_host_gets_its_queues(reloaded: Reloaded) -> None:
    reloaded.write("queues:\n- {name: a, vhost: other}\n- {name: b}")

    [result] = reloaded.run(reloaded.reloading.reload())

    assert sorted(result.created) == ["a", "b"]
    assert list(reloaded.broker("other").topology.queues) == ["a"]
