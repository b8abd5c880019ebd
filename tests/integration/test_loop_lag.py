"""No call holds up everybody else. `bench/loop_lag.py` has more calls, more queues, and the time that clients wait.

Here it is processor time, as the machine has other things to do: how much of it the broker uses for others between a
ping and its answer, and which part of a checkpoint's its longest turn is.
"""

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench.loop_lag import Bench, definitions, names

from headrace.storage.api import RETAINED, Commit
from headrace.storage.group_state import WORK
from headrace.storage.local.engine import LocalEngine
from tests.workbench import many, store

QUEUES = 6000
MOST_MS = 100.0
"""With half of these queues each call took more in one piece; in steps it takes 5 to 20, and 40 on a busy machine."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(str(tmp_path_factory.mktemp("broker")))
    try:
        bench.queues = QUEUES
        bench.http("/api/definitions", "POST", definitions("/", QUEUES))
        yield bench
    finally:
        bench.close()


def _list(bench: Bench) -> None:
    bench.http("/api/queues")


def _define_and_delete(bench: Bench) -> None:
    bench.http("/api/definitions", "POST", definitions("other", QUEUES // 2))
    bench.http("/api/vhosts/other", "DELETE")


def _leave(bench: Bench) -> None:
    """End a connection with many exclusive queues and consumers."""
    client = bench.amqp()
    found = names(0, QUEUES // 2)
    client.declare(found, 4)
    client.consume(found)
    client.settle()
    bench.longest()
    client.socket.close()
    time.sleep(0.5)


@pytest.mark.parametrize("call", [_list, _define_and_delete, _leave])
def test_a_call_leaves_others_their_turn(broker: Bench, call: Callable[[Bench], None]) -> None:
    broker.longest()

    call(broker)
    _, most_ms = broker.longest()

    assert most_ms < MOST_MS


def test_a_checkpoint_leaves_others_their_turn(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path)
    commit = Commit()
    for number in range(QUEUES):
        name = f"queue-{number}"
        commit.create_group(name, "workers", WORK)
        commit.append(name, many(1, name))
        commit.put(RETAINED, name.encode(), b"value")
    store(engine, lambda made: _take(made, commit))

    gc.collect()
    gc.disable()
    engine._upkeep.checkpoint_wanted = True
    turns: list[int] = []
    while not turns or engine._upkeep.flushing:
        before = time.thread_time_ns()
        engine.poll()
        turns.append(time.thread_time_ns() - before)
        if not engine._upkeep.is_under_way:
            time.sleep(0.001)
    gc.enable()
    engine.close()

    assert max(turns) < sum(turns) / 4


def _take(made: Commit, commit: Commit) -> None:
    made.steps, made.appends, made.puts = commit.steps, commit.appends, commit.puts
