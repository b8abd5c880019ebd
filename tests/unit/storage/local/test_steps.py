"""A checkpoint of many logs goes in steps, and is as of one commit all the same."""

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.errors import HeadraceError
from headrace.storage.api import RETAINED, Commit
from headrace.storage.group_state import WORK
from headrace.storage.local.checkpoint import Checkpoint, checkpoint_path, decode_checkpoint
from headrace.storage.local.engine import LocalEngine, LocalSettings
from tests.workbench import many, payloads

NAMES = [f"queue-{number:03}" for number in range(120)]
SMALL = LocalSettings(journal_file_bytes=64 << 10, checkpoint_bytes=48 << 10, own_files=8, step=10)


def _filled(root: Path, settings: LocalSettings = SMALL) -> LocalEngine:
    """An engine with many logs and groups, and a message in each that is acknowledged and one that is not."""
    engine = LocalEngine(root, settings=replace(settings, checkpoint_bytes=16 << 20))
    for name in NAMES:
        commit = Commit()
        commit.create_group(name, "workers", WORK)
        commit.append(name, many(2, name))
        commit.put(RETAINED, name.encode(), b"value")
        _store(engine, commit)
    for name in NAMES:
        commit = Commit()
        commit.ack(name, "workers", 0, 1)
        _store(engine, commit)
    return engine


def _store(engine: LocalEngine, commit: Commit) -> None:
    engine.commit(commit, lambda error: None)
    engine.sync()


def _begin(engine: LocalEngine) -> None:
    """Take the first step of a checkpoint."""
    engine._upkeep.checkpoint_wanted = True
    engine.poll()


def _finish(engine: LocalEngine) -> int:
    """Poll until the checkpoint is written; returns in how many turns it was collected."""
    turns = 1
    while engine._upkeep.flushing:
        turns += engine._upkeep.is_collecting
        engine.poll()
    return turns


def _written(root: Path) -> Checkpoint:
    path = checkpoint_path(root)
    return decode_checkpoint(path.read_bytes(), path)


def _opened(root: Path, target: Path) -> LocalEngine:
    """What a kill would leave now."""
    shutil.copytree(root, target)
    return LocalEngine(target)


@pytest.mark.parametrize("own_files", [8, 1000])
def test_each_turn_takes_a_few_logs(tmp_path: Path, own_files: int) -> None:
    engine = _filled(tmp_path, replace(SMALL, own_files=own_files))

    _begin(engine)
    turns = _finish(engine)

    assert turns > len(NAMES) * 4 / SMALL.step
    assert [log.next for log in _written(tmp_path).logs] == [2] * len(NAMES)
    engine.close()


def test_a_checkpoint_of_few_logs_takes_one_turn(tmp_path: Path) -> None:
    engine = _filled(tmp_path, replace(SMALL, step=LocalSettings().step))

    _begin(engine)

    assert not engine._upkeep.is_collecting
    engine.close()


def test_commits_made_meanwhile_wait_and_are_not_in_the_checkpoint(tmp_path: Path) -> None:
    engine = _filled(tmp_path / "live")
    before = _written(tmp_path / "live").position.seq
    told: list[HeadraceError | None] = []

    _begin(engine)
    for number, name in enumerate(NAMES[:60]):
        commit = Commit()
        commit.append(name, many(1, "meanwhile "))
        commit.ack(name, "workers", 1, 2)
        commit.put(RETAINED, name.encode(), b"other")
        if number % 10 == 0:
            commit.drop(NAMES[-1 - number])
        engine.commit(commit, told.append)
        engine.poll()
        if engine._upkeep.is_collecting:
            assert (told, engine.log(NAMES[0]).next_offset) == ([], 2)
    _finish(engine)
    seq = _written(tmp_path / "live").position.seq

    engine.sync()
    assert told == [None] * 60
    assert before < seq
    found = _opened(tmp_path / "live", tmp_path / "killed")
    for name in NAMES:
        assert payloads(found.log(name).read(found.log(name).first_offset, 9)) == payloads(
            engine.log(name).read(engine.log(name).first_offset, 9)
        )
        assert {key: group.committed for key, group in found.log(name).groups.items()} == {
            key: group.committed for key, group in engine.log(name).groups.items()
        }
    assert dict(found.items(RETAINED)) == dict(engine.items(RETAINED))
    found.close()
    engine.close()


def test_a_kill_within_a_checkpoint_leaves_everything(tmp_path: Path) -> None:
    engine = _filled(tmp_path / "live")

    _begin(engine)
    for number in range(3):
        for _ in range(5):
            engine.poll()
        assert engine._upkeep.is_collecting
        found = _opened(tmp_path / "live", tmp_path / f"killed-{number}")
        assert [found.log(name).next_offset for name in NAMES] == [2] * len(NAMES)
        assert {name: found.log(name).groups["workers"].committed for name in NAMES} == dict.fromkeys(NAMES, 1)
        found.close()
    engine.close()


@pytest.mark.parametrize("own_files", [8, 1000])
def test_readers_may_let_messages_go_between_two_steps(tmp_path: Path, own_files: int) -> None:
    engine = _filled(tmp_path / "live", replace(SMALL, own_files=own_files))

    _begin(engine)
    for number, name in enumerate(NAMES):
        engine.log(name).let_go(1 + number % 2)
        engine.poll()
    _finish(engine)

    found = _opened(tmp_path / "live", tmp_path / "killed")
    for number, name in enumerate(NAMES):
        log = found.log(name)
        assert (log.first_offset <= 1 + number % 2, log.next_offset) == (True, 2)
        log.read(log.first_offset, 9)
    found.close()
    engine.close()


def test_an_engine_that_is_closed_within_a_checkpoint_finishes_it(tmp_path: Path) -> None:
    engine = _filled(tmp_path)
    _begin(engine)
    engine.commit(_one("last"), lambda error: None)

    engine.close()

    assert [log.next for log in _written(tmp_path).logs if log.name == "last"] == [1]


def _one(name: str) -> Commit:
    commit = Commit()
    commit.append(name, many(1))
    return commit


def test_large_tails_of_many_logs_are_flushed_a_few_at_a_time(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path, settings=LocalSettings(tail_bytes=64 << 10, step=80))
    commit = Commit()
    for name in NAMES:
        commit.append(name, many(4, size=300))
    engine.commit(commit, lambda error: None)

    flushed = [0]
    while flushed[-1] < len(NAMES) // 2:
        engine.sync()
        while engine._upkeep.flushing:
            engine.poll()
        flushed.append(len(list(tmp_path.glob("queues/*/segments/*.seg"))))

    assert max(after - before for before, after in pairwise(flushed)) <= 10
    engine.close()
