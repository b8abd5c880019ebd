"""kill -9 at any moment under the clients of all protocols at once: every answer that a client got is true afterwards.

A few rounds here. The long form has as many as `HEADRACE_KILL_ROUNDS` says and takes about ten seconds for each:

    HEADRACE_KILL_ROUNDS=200 .venv/bin/python -m pytest tests/crash/test_kill_rounds.py -k directory -s

A round lets all clients work for a while, kills the broker, sometimes kills it again while it starts, starts it, and
reads everything with clients again: `tests/crash/kills` has a file for each protocol. Every few rounds a program with
a broker of its own has the directory instead. The clients are pika, aio-pika, paho-mqtt, python-qpid-proton and httpx.

A run prints its seed. `HEADRACE_KILL_SEED` with it makes the same choices again: loads, moments of kills, ways of
starting. What clients do between two kills depends on the machine, too.
"""

import os
import random
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.kills.amqp091 import Amqp091
from tests.crash.kills.amqp10 import Amqp10
from tests.crash.kills.book import Commits
from tests.crash.kills.coap import Coap
from tests.crash.kills.embedded import Embedded
from tests.crash.kills.http import Http
from tests.crash.kills.message import Load
from tests.crash.kills.mqtt import Mqtt
from tests.crash.kills.part import there
from tests.crash.kills.stomp import Stomp
from tests.crash.kills.streams import Streams
from tests.servers import Server
from tests.stores import S3, moto
from tests.waiting import eventually

# Clients whose broker is killed leave sockets and tasks behind.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

_ASKED = int(os.environ.get("HEADRACE_KILL_ROUNDS", "0"))
_ROUNDS = _ASKED or 3
_STORE_ROUNDS = max(2, _ASKED // 10)
_SEED = os.environ.get("HEADRACE_KILL_SEED", "")
_OPTIONS = ("--stomp", "0", "--stream", "0", "--coap", "0")
_EMBEDDED_EVERY = 4
_HEAVY = 0.3
_FRESH = 0.1
"""The share of brokers that read their modules themselves. Others have them, and begin to recover at once."""
_SLOW = 0.15
"""The share of brokers on a slow disk: an answer that does not wait for the disk is surely ahead of it there."""
_SMALL_FILES = {
    "HEADRACE_STORAGE_CHECKPOINT_BYTES": "16MiB",
    "HEADRACE_STORAGE_SEGMENT_BYTES": "1MiB",
    "HEADRACE_STORAGE_TAIL_BYTES": "1MiB",
}


class Rounds:
    """A broker with clients of every protocol, killed again and again."""

    def __init__(self, server: Server, data: Path | None) -> None:
        self._server = server
        self._data = data
        seed = int(_SEED) if _SEED else random.getrandbits(32)
        print(f"HEADRACE_KILL_SEED={seed}", flush=True)
        self._chance = random.Random(seed)
        self.mqtt = Mqtt(server)
        self.parts = [
            Amqp091(server),
            self.mqtt,
            Amqp10(server),
            Stomp(server),
            Http(server),
            Streams(server),
            Coap(server),
        ]
        self.embedded = Embedded(server, data) if data is not None else None
        self.problems: list[str] = []
        self.kinds: dict[str, int] = {}

    def run(self, count: int) -> None:
        self._server.start()
        for part in self.parts:
            part.set_up()
        for number in range(count):
            if self.embedded is not None and number % _EMBEDDED_EVERY == 1:
                self._embedded_round(self.embedded, number)
            else:
                self._round(number)
            if _ASKED:
                print(f"round {number} of {count}, {len(self.problems)} problems, {self.kinds}", flush=True)
        for part in self.parts:
            part.close()
        self._server.close_connections()
        assert self._server.stop() == 0, self._server.log()
        self.problems += [line for line in self._server.log().splitlines() if "Traceback" in line]

    def _round(self, number: int) -> None:
        Load.large = _HEAVY if self._chance.random() < 0.3 else 0.02
        for part in self.parts:
            part.begin(number)
        self._wait(number)
        self.mqtt.shut()
        for part in self.parts:
            part.over.set()
        killed_at = time.monotonic()
        self._server.kill()
        problems = [problem for part in self.parts for problem in part.end()]
        self._start_again()
        self.mqtt.open()
        for part in self.parts:
            problems += self._checked(part.check, killed_at)
        self._note(number, problems + self._check_facts())

    def _checked(self, check: Callable[[float], list[str]], killed_at: float) -> list[str]:
        """What a check finds, which may also be that a client cannot do it."""
        try:
            return check(killed_at)
        except Exception:
            if not _ASKED:
                raise
            return [f"a check failed: {traceback.format_exc()}"]

    def _embedded_round(self, embedded: Embedded, number: int) -> None:
        self.mqtt.shut()
        self._server.close_connections()
        Commits.killed_at = time.monotonic()
        self._server.kill()
        killed_at = embedded.run(number, self._chance.choice((0.1, 0.7, 2.5)) * self._chance.random() + 0.05)
        self._count("embedded")
        self._start_again()
        self.mqtt.open()
        self._note(number, self._checked(embedded.check, killed_at) + self._check_facts())

    def _check_facts(self) -> list[str]:
        self._server.close_connections()
        found = there(self._server)
        facts = [part.facts for part in self.parts] + ([self.embedded.facts] if self.embedded else [])
        return [problem for fact in facts for problem in fact.check(found)]

    def _note(self, number: int, problems: list[str]) -> None:
        for problem in problems:
            print(f"round {number}: {problem}", flush=True)
        self.problems += [f"round {number}: {problem}" for problem in problems]

    def _wait(self, number: int) -> None:
        """Wait until the kill: any moment, or a checkpoint under way; at first, until all clients did something."""
        if number == 0:
            eventually(lambda: not self.idle())
        if self._data is not None and Load.large == _HEAVY and self._wait_for_checkpoint():
            self._count("checkpoint")
            return
        time.sleep(self._chance.choice((0.3, 1.5, 3.5)) * self._chance.random())
        self._count("any moment")

    def _wait_for_checkpoint(self) -> bool:
        assert self._data is not None
        draft = self._data / "journal" / "checkpoint.json.tmp"
        final = self._data / "journal" / "checkpoint.json"
        before = final.stat().st_mtime_ns if final.exists() else 0
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            if draft.exists() or (final.exists() and final.stat().st_mtime_ns != before):
                return True
            time.sleep(0.0005)
        return False

    def _start_again(self) -> None:
        """Start it where it was; sometimes it is killed first while it starts, once or twice."""
        ports = (self._server.mqtt_port, self._server.http_port, self._server.port)
        self._server.is_fresh = self._chance.random() < _FRESH
        if self._data is not None:
            self._server.program = "tests.crash.slow_server" if self._chance.random() < _SLOW else "headrace"
        self._server.environment = {
            **self._server.environment,
            **self._chance.choice((_SMALL_FILES, dict.fromkeys(_SMALL_FILES, "32MiB"))),
        }
        for _ in range(self._chance.choice((0, 0, 0, 1, 2))):
            self._server.launch(*ports)
            time.sleep(self._chance.choice((0.1, 0.5)) * self._chance.random())
            self._server.kill()
            self._count("start-up")
        self._server.start(*ports)

    def _count(self, kind: str) -> None:
        self.kinds[kind] = self.kinds.get(kind, 0) + 1

    def idle(self) -> list[str]:
        """What nobody did or heard: a load that does nothing proves nothing."""
        counts = [part.counts() for part in self.parts]
        if self.embedded is not None and "embedded" in self.kinds:
            counts.append(self.embedded.counts())
        return [name for each in counts for name, count in each.items() if not count]


def _prove(rounds: Rounds, count: int, server: Server) -> None:
    try:
        rounds.run(count)
    finally:
        server.kill()
        server.close_connections()
    assert rounds.problems == []


@pytest.mark.timeout(300 + 60 * _ROUNDS)
def test_every_answer_is_true_after_kills_over_a_directory(tmp_path: Path) -> None:
    server = Server(tmp_path, options=_OPTIONS, is_fresh=True)
    _prove(Rounds(server, tmp_path / "data"), _ROUNDS, server)


@pytest.mark.timeout(300 + 60 * _STORE_ROUNDS)
def test_every_answer_is_true_after_kills_over_an_object_store(tmp_path: Path) -> None:
    with moto() as port:
        store = S3(port)
        server = Server(tmp_path, options=_OPTIONS, store=store.url, environment=store.environment, is_fresh=True)
        _prove(Rounds(server, None), _STORE_ROUNDS, server)
        store.close()
