"""A real broker under load, killed at random moments: promises to publishers and consumers hold, moves are whole."""

import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.storage.local.engine import LocalEngine
from tests.crash.worker import FAN, GRAVE
from tests.crash.writer import SMALL

ROUNDS = 20
MOST_LINES = 1500

Said = dict[str, set[int]]


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> list["Round"]:
    """A broker killed twenty times over the same directory; after each kill, what was said and what was left."""
    home = tmp_path_factory.mktemp("kills")
    chance = random.Random(31)
    said: Said = {word: set() for word in ("jobs", "inbox", "fan", "acking", "acked")}
    found: list[Round] = []
    for number in range(ROUNDS):
        for word, value in run_and_kill(home / "data", number * 1_000_000, chance.randint(1, MOST_LINES)):
            said[word].add(value)
        # Look at a copy: the next round goes on from what the kill left, not from a clean stop.
        shutil.copytree(home / "data", home / "copy")
        found.append(Round({word: set(values) for word, values in said.items()}, home / "copy"))
        shutil.rmtree(home / "copy")
    return found


def run_and_kill(directory: Path, number: int, lines: int) -> Iterator[tuple[str, int]]:
    """Let the worker say this much, kill it, and give what it said, to the last whole line."""
    command = [sys.executable, "-m", "tests.crash.worker", str(directory), str(number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        said = [worker.stdout.readline() for _ in range(lines)]
        worker.send_signal(signal.SIGKILL)
        said += worker.stdout.read().splitlines(keepends=True)
    for line in said:
        assert line, "the worker stopped by itself"
        if line.endswith("\n"):
            word, value = line.split()
            yield word, int(value)


class Round:
    """What had been said before a kill, and what a new process finds after it."""

    def __init__(self, said: Said, directory: Path) -> None:
        self.said = said
        engine = LocalEngine(directory, settings=SMALL)
        self.queues = {name: unsettled(engine, name) for name in ("jobs", "inbox", "left", "right", GRAVE, *FAN)}
        engine.close()


def unsettled(engine: LocalEngine, name: str) -> list[int]:
    """The numbers in a queue that its group is not done with; all, where there is no group."""
    log = engine.log(name)
    state = log.groups.get("default")
    found: list[int] = []
    for offset, message in enumerate(log.read(log.first_offset, 1 << 30), log.first_offset):
        if state is None or (offset >= state.committed and offset not in state.settled):
            found.append(int(message.payload))
    return found


def test_every_confirmed_publish_is_in_every_queue_that_it_matched(rounds: list[Round]) -> None:
    for found in rounds:
        for name in FAN:
            assert found.said["fan"] <= set(found.queues[name])


def test_a_publish_is_in_all_queues_that_it_matched_or_in_none(rounds: list[Round]) -> None:
    for found in rounds:
        assert found.queues[FAN[0]] == found.queues[FAN[1]]


def test_what_was_confirmed_and_not_acknowledged_is_still_there(rounds: list[Round]) -> None:
    for found in rounds:
        left = {number for number in found.said["jobs"] if number % 3} - found.said["acking"]
        assert left <= set(found.queues["jobs"])


def test_what_was_settled_before_a_confirmed_publish_is_not_redelivered(rounds: list[Round]) -> None:
    for found in rounds:
        assert found.said["acked"].isdisjoint(found.queues["jobs"])


def test_a_dead_letter_is_never_in_both_queues_and_never_in_none(rounds: list[Round]) -> None:
    for found in rounds:
        jobs = [number for number in found.queues["jobs"] if number % 3 == 0]
        there = sorted(jobs + found.queues[GRAVE])
        assert there == sorted(set(there)), "a number is there twice"
        assert {number for number in found.said["jobs"] if number % 3 == 0} <= set(there)


def test_a_transaction_happened_entirely_or_not_at_all(rounds: list[Round]) -> None:
    for found in rounds:
        moved = found.queues["left"]
        assert found.queues["right"] == moved
        there = sorted(found.queues["inbox"] + moved)
        assert there == sorted(set(there)), "a number is there twice"
        assert found.said["inbox"] <= set(there)


def test_the_kills_came_while_all_of_it_was_going_on(rounds: list[Round]) -> None:
    assert all(rounds[-1].said.values())
    assert rounds[-1].queues[GRAVE]
    assert rounds[-1].queues["left"]
    assert any(found.queues["jobs"] for found in rounds)
    assert any(found.queues["inbox"] for found in rounds)
