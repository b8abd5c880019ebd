"""A real process under load, killed at random moments: what was confirmed is there, in order, and nothing by half."""

import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from headrace.model import Message
from headrace.storage.api import RETAINED, Engine
from tests.crash.writer import LOGS, open_engine

ROUNDS = 50
STORE_ROUNDS = 15


def test_every_confirmed_commit_survives_fifty_kills_whole_and_in_order(tmp_path: Path) -> None:
    chance = random.Random(20)
    number = 0

    for _ in range(ROUNDS):
        confirmed = run_and_kill(str(tmp_path / "data"), number, chance.randint(1, 400))
        # Look at a copy: the next round goes on from what the kill left, not from a clean stop.
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        number = check(str(tmp_path / "copy"), max(confirmed, number - 1))
        shutil.rmtree(tmp_path / "copy")


def test_every_confirmed_commit_to_a_store_survives_kills_whole_and_in_order(tmp_path: Path) -> None:
    chance = random.Random(21)
    store = f"file://{tmp_path}/store"
    number = 0

    for _ in range(STORE_ROUNDS):
        confirmed = run_and_kill(store, number, chance.randint(1, 300))
        number = check(store, max(confirmed, number - 1))


def run_and_kill(place: str, number: int, after: int) -> int:
    """Let the writer confirm this many commits, kill it, and return the last number it confirmed."""
    command = [sys.executable, "-m", "tests.crash.writer", place, str(number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        confirmed = number - 1
        for _ in range(after):
            confirmed = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        for line in writer.stdout.read().splitlines(keepends=True):
            if line.endswith("\n"):
                confirmed = int(line)
    return confirmed


def check(place: str, confirmed: int) -> int:
    """Open what is left: commits 0 to n - 1 are there entirely, all others not at all. Returns n."""
    engine = open_engine(place)
    try:
        number = engine.log("all").next_offset
        assert number > confirmed, "a confirmed commit is missing"
        everything = engine.log("all").read(0, number)
        assert [message.payload for message in everything] == [b"%d" % at for at in range(number)]

        expected: dict[str, list[bytes]] = {f"log-{at}": [] for at in range(LOGS)}
        first = dict.fromkeys(expected, 0)
        for at in range(number):
            name = f"log-{at % LOGS}"
            expected[name] += [b"%d/%d" % (at, row) for row in range(at % 7)]
            if at % 50 == 0:
                first[name] = max(first[name], min(at // 10, len(expected[name])))
        for name, payloads in expected.items():
            log = engine.log(name)
            assert (log.first_offset, log.next_offset) == (first[name], len(payloads))
            assert [m.payload for m in read_all(engine, name)] == payloads[first[name] :]

        state = engine.log("all").groups["workers"]
        assert state.cursor == number
        assert sorted(state.pending) == list(range(0, number, 3))
        assert engine.get(RETAINED, b"last") == b"%d" % (number - 1)
        return number
    finally:
        engine.close()


def read_all(engine: Engine, name: str) -> list[Message]:
    log = engine.log(name)
    return log.read(log.first_offset, log.next_offset)
