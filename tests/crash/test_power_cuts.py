"""Power cuts at any moment of a busy broker: whatever any client was told is so afterwards.

A hundred states by default. `HEADRACE_POWER_CUTS=1000` has that many, over ten recordings of other workloads.
"""

import os
import random
import shutil
from pathlib import Path

import pytest

from headrace.errors import Corrupt
from headrace.storage.local.engine import LocalEngine
from tests.crash.crowd import Crowd
from tests.crash.ledger import Ledger, Left
from tests.crash.page_cache import Entry, build_recorder, cuts, read_recording
from tests.crash.small_server import SMALL
from tests.servers import Server

_STATES = int(os.environ.get("HEADRACE_POWER_CUTS", "100"))
_STATES_EACH = 100
_STARTS = 3
_SECONDS = 6.0
_LEAST = 5
_SYNC_US = 1500


@pytest.mark.parametrize("seed", range(max(1, _STATES // _STATES_EACH)))
def test_whatever_a_client_was_told_holds_after_a_power_cut(tmp_path: Path, seed: int) -> None:
    ledger, entries = _record(tmp_path, seed)
    chance = random.Random(seed)
    problems: list[str] = []
    unsynced = 0
    for number, (cut_ns, disk) in enumerate(cuts(entries, tmp_path / "data", min(_STATES, _STATES_EACH), chance)):
        state = tmp_path / "state"
        disk.cut(state, chance)
        unsynced += disk.unsynced()
        problems += [f"state {number}: {problem}" for problem in _check(state, cut_ns, ledger)]
        shutil.rmtree(state)

    assert not problems, "\n".join(problems[:40])
    assert unsynced > 1000, "the cuts had something to lose"


def _record(home: Path, seed: int) -> tuple[Ledger, list[Entry]]:
    """Let a crowd of clients use a broker for a while; what they were told, and what the broker did to its files."""
    (home / "data").mkdir()
    recorded = {
        "LD_PRELOAD": str(build_recorder(home)),
        "RECORD_ROOT": str(home / "data"),
        "RECORD_LOG": str(home / "recording"),
        "RECORD_SYNC": str(_SYNC_US),
    }
    server = Server(home, environment=recorded, program="tests.crash.small_server")
    ledger = Ledger()
    for number in range(_STARTS):  # killed in between, so that what a start does to the files is recorded too
        server.start()
        try:
            Crowd(server, ledger, seed * _STARTS + number).run(_SECONDS / _STARTS, _LEAST)
        finally:
            server.kill()
    return ledger, read_recording(home / "recording")


def _check(state: Path, cut_ns: int, ledger: Ledger) -> list[str]:
    try:
        engine = LocalEngine(state, settings=SMALL)
    except Corrupt as error:
        return [f"refused: {error}"]
    try:
        return ledger.problems(cut_ns, Left(engine))
    except Corrupt as error:
        return [f"a queue is refused: {error}"]
    finally:
        engine.close()
