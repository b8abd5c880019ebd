"""Costs that many logs must not have: memory for settled messages, a later checkpoint, a file lost in one."""

import random
from pathlib import Path

import pytest

from headrace.model import Message, Source
from headrace.storage.api import Commit
from headrace.storage.group_state import WORK
from headrace.storage.local.checkpoint import checkpoint_path, decode_checkpoint
from headrace.storage.local.engine import LocalEngine, LocalSettings
from tests.disks import LosingDisk

LOGS = [f"queue-{number:03}" for number in range(150)]
SOURCE = Source("orders")
SMALL = LocalSettings(journal_file_bytes=64 << 10, checkpoint_bytes=128 << 10)


def stored(engine: LocalEngine, commit: Commit) -> None:
    said: list[object] = []
    engine.commit(commit, said.append)
    engine.sync()
    assert said == [None]


def with_groups(engine: LocalEngine, logs: list[str]) -> None:
    commit = Commit()
    for name in logs:
        commit.create_group(name, "workers", WORK)
    stored(engine, commit)


def one_for_each(engine: LocalEngine, logs: list[str], number: int, payload: bytes) -> None:
    """A message for each log, and the one before it acknowledged."""
    commit = Commit()
    for name in logs:
        commit.append(name, [Message(SOURCE, payload, number)])
        if number:
            commit.claim(name, "workers", number - 1, number, "worker", 5)
            commit.ack(name, "workers", number - 1, number)
            commit.truncate(name, number)
    stored(engine, commit)


def finish(engine: LocalEngine) -> None:
    """Wait until the flusher has done what it was given."""
    while engine._upkeep.flushing:
        engine.poll()


def checkpointed_seq(root: Path) -> int:
    path = checkpoint_path(root)
    return decode_checkpoint(path.read_bytes(), path).position.seq


def test_what_is_settled_leaves_memory_while_newer_messages_wait(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path)
    log = engine.log("orders")
    sizes: list[int] = []

    for number in range(200):
        commit = Commit()
        commit.append("orders", [Message(SOURCE, b"%d" % number, number)])
        commit.truncate("orders", max(0, number - 4))
        stored(engine, commit)
        sizes.append(log.size_bytes)

    assert max(sizes) < 5 * sizes[4]
    assert [message.payload for message in log.read(195, 10)] == [b"%d" % number for number in range(195, 200)]
    engine.close()
    engine = LocalEngine(tmp_path)
    assert [message.payload for message in engine.log("orders").read(195, 10)] == [
        b"195",
        b"196",
        b"197",
        b"198",
        b"199",
    ]
    engine.close()


@pytest.mark.parametrize("logs", [LOGS[:10], LOGS])
def test_a_checkpoint_comes_with_as_much_journal_however_many_logs_changed(tmp_path: Path, logs: list[str]) -> None:
    engine = LocalEngine(tmp_path, settings=SMALL)
    with_groups(engine, logs)
    first = checkpointed_seq(tmp_path)

    for number in range((SMALL.checkpoint_bytes + (32 << 10)) // (len(logs) * 600) + 1):
        one_for_each(engine, logs, number, b"x" * 500)
    finish(engine)

    assert checkpointed_seq(tmp_path) > first
    engine.close()


def test_a_power_loss_around_a_checkpoint_of_many_groups_loses_nothing(tmp_path: Path) -> None:
    disk = LosingDisk()
    chance = random.Random(7)
    engine = LocalEngine(tmp_path / "live", settings=SMALL, disk=disk)
    with_groups(engine, LOGS)
    lost = 0

    for number in range(12):
        one_for_each(engine, LOGS, number, b"x" * 300)
        if number % 3 == 2 or engine._upkeep.flushing:
            lost += 1
            left = tmp_path / f"left-{number}"
            disk.lose_power(tmp_path / "live", left, chance)
            found = LocalEngine(left, settings=SMALL)
            for name in LOGS:
                log = found.log(name)
                assert (log.first_offset, log.next_offset) == (number, number + 1)
                assert [message.timestamp_us for message in log.read(number, 1)] == [number]
                state = log.groups["workers"]
                assert (state.committed, dict(state.pending)) == (number, {})
            found.close()
    assert lost >= 4
    assert checkpointed_seq(tmp_path / "live") > 0
    engine.close()
