"""Power cuts at any moment of a busy broker: whatever any client was told is so afterwards.

A hundred states by default. `HEADRACE_POWER_CUTS=1000` has that many, over ten recordings of other workloads. An engine
opens each state. Over one of twenty a broker starts, and clients read it; its start is recorded and cut as well.
"""

import contextlib
import os
import pickle
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import Corrupt
from headrace.storage.local.engine import LocalEngine
from tests.crash.crowd import Crowd
from tests.crash.ledger import Ledger
from tests.crash.left import ClientLeft, EngineLeft
from tests.crash.page_cache import Disk, build_recorder, cuts, read_recording
from tests.crash.small_server import SMALL
from tests.servers import Server

_STATES = int(os.environ.get("HEADRACE_POWER_CUTS", "100"))
_STATES_EACH = 100
_EMBEDDED_STATES = max(10, _STATES // 10)
_SERVED_EVERY = 20
_RECOVERY_CUTS = 3
_STARTS = 2
_SECONDS = 3.0
_EMBEDDED_SECONDS = 1.0
_LEAST = 5
_SYNC_US = 1500
_OPTIONS = ("--coap", "0", "--stomp", "0", "--stream", "0")


class Recorder:
    """Records what a process does to the files of a directory."""

    def __init__(self, home: Path, library: Path) -> None:
        self.data = home / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        self.disk = Disk(self.data)
        self.path = home / "recording"
        self.environment = {
            "LD_PRELOAD": str(library),
            "RECORD_ROOT": str(self.data),
            "RECORD_LOG": str(self.path),
            "RECORD_SYNC": str(_SYNC_US),
        }


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_recorder(tmp_path_factory.mktemp("recorder"))


@pytest.mark.parametrize("seed", range(max(1, _STATES // _STATES_EACH)))
def test_whatever_a_client_was_told_holds_after_a_power_cut(tmp_path: Path, library: Path, seed: int) -> None:
    recorder = Recorder(tmp_path, library)
    ledger = _let_clients_work(tmp_path, recorder, seed)
    entries, chance = read_recording(recorder.path), random.Random(seed)
    problems: list[str] = []
    unsynced = 0
    count = min(_STATES, _STATES_EACH)
    for number, cut_ns in enumerate(cuts(recorder.disk, entries, count, chance)):
        home = tmp_path / "state"
        home.mkdir()
        recorder.disk.cut(home / "data", chance)
        unsynced += recorder.disk.unsynced()
        if number % _SERVED_EVERY == seed % _SERVED_EVERY:
            shutil.copytree(home, tmp_path / "served")
            found = _serve(tmp_path / "served", library, cut_ns, ledger, chance)
            shutil.rmtree(tmp_path / "served")
        else:
            found = []
        found += _check(home / "data", cut_ns, ledger)
        problems += [f"state {number}: {problem}" for problem in found]
        shutil.rmtree(home)

    assert not problems, "\n".join(problems[:40])
    assert unsynced > 1000, "the cuts had something to lose"


@pytest.mark.timeout(120 + _STATES)
def test_whatever_a_program_was_told_by_its_own_broker_holds_after_a_power_cut(tmp_path: Path, library: Path) -> None:
    recorder = Recorder(tmp_path, library)
    told = tmp_path / "ledger"
    command = [
        sys.executable,
        "-m",
        "tests.crash.embedded_crowd",
        str(recorder.data),
        str(told),
        str(_EMBEDDED_SECONDS),
    ]
    subprocess.run(command, env={**os.environ, **recorder.environment}, check=True)
    ledger: Ledger = pickle.loads(told.read_bytes())
    entries, chance = read_recording(recorder.path), random.Random(0)
    problems: list[str] = []
    for number, cut_ns in enumerate(cuts(recorder.disk, entries, _EMBEDDED_STATES, chance)):
        state = tmp_path / "state"
        recorder.disk.cut(state, chance)
        problems += [f"state {number}: {problem}" for problem in _check(state, cut_ns, ledger)]
        shutil.rmtree(state)

    assert not problems, "\n".join(problems[:400])
    assert ledger.answers > 50


def _let_clients_work(home: Path, recorder: Recorder, seed: int) -> Ledger:
    """Let a crowd of clients use a broker for a while; returns what they were told."""
    server = _server(home, recorder)
    ledger = Ledger()
    for number in range(_STARTS):  # killed in between, so that what a start does to the files is recorded too
        server.start()
        try:
            Crowd(server, ledger, seed * _STARTS + number).run(_SECONDS / _STARTS, _LEAST)
        finally:
            server.kill()
    return ledger


def _server(home: Path, recorder: Recorder) -> Server:
    return Server(home, options=_OPTIONS, environment=recorder.environment, program="tests.crash.small_server")


def _serve(home: Path, library: Path, cut_ns: int, ledger: Ledger, chance: random.Random) -> list[str]:
    """What clients of a broker over a state find wrong, and what is wrong if power is cut while it starts."""
    recorder = Recorder(home, library)
    server = _server(home, recorder)
    server.start()
    try:
        started_bytes = recorder.path.stat().st_size
        with contextlib.closing(ClientLeft(server)) as left:
            found = [f"read by clients: {problem}" for problem in ledger.problems(cut_ns, left)]
    finally:
        server.kill()
    entries = read_recording(recorder.path, started_bytes)
    for _ in cuts(recorder.disk, entries, _RECOVERY_CUTS, chance):
        state = home / "again"
        recorder.disk.cut(state, chance)
        found += [f"cut while it started: {problem}" for problem in _check(state, cut_ns, ledger)]
        shutil.rmtree(state)
    return found


def _check(state: Path, cut_ns: int, ledger: Ledger) -> list[str]:
    try:
        engine = LocalEngine(state, settings=SMALL)
    except Corrupt as error:
        return [f"refused: {error}"]
    try:
        return ledger.problems(cut_ns, EngineLeft(engine))
    except Corrupt as error:
        return [f"a queue is refused: {error}"]
    finally:
        engine.close()
