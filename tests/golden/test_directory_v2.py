"""A whole data directory in which many queues share files: it opens, and everything in it is still there.

The directory was left by a process that was killed. Its checkpoint has the format 2: the tails of twelve queues are in
one file and their groups in a table; two queues have segments, and the group of one has files. Its last commits are in
the journal only. Never make it anew: when a format changes, add another directory beside it.
"""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headrace.model import Message, Source
from headrace.storage.group_state import WORK, Pending
from headrace.storage.local.doctor import examine
from headrace.storage.local.engine import LocalEngine
from headrace.storage.local.follower import Follower
from tests.golden.samples import HERE
from tests.workbench import SMALL, all_values, store

START_US = 1_700_000_000_000_000
LARGE = "queue-00"
QUIET = "queue-01"
SMALL_ONES = [f"queue-{number:02}" for number in range(2, 14)]
GONE = "queue-13"


def message(log: str, number: int) -> Message:
    return Message(Source(f"topic/{log}"), f"{log} {number}".encode(), START_US + number)


def messages(log: str, start: int, stop: int) -> list[Message]:
    return [message(log, number) for number in range(start, stop)]


def bounds(log: str) -> tuple[int, int]:
    if log == LARGE:
        return 0, 300
    if log == QUIET:
        return 0, 2
    return 2, 6


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return shutil.copytree(HERE / "directory-v2", tmp_path / "data")


@pytest.fixture
def engine(root: Path) -> Iterator[LocalEngine]:
    with closing(LocalEngine(root, settings=SMALL)) as engine:
        yield engine


LOGS = [LARGE, QUIET, *SMALL_ONES[:-1]]


def test_every_log_exists_and_no_other(engine: LocalEngine) -> None:
    assert sorted(engine.logs()) == LOGS


@pytest.mark.parametrize("name", LOGS)
def test_every_message_is_there(engine: LocalEngine, name: str) -> None:
    log = engine.log(name)

    assert (log.first_offset, log.next_offset) == bounds(name)
    assert all_values(log.read(log.first_offset, 1000)) == all_values(messages(name, *bounds(name)))


@pytest.mark.parametrize("name", SMALL_ONES[:-1])
def test_a_group_has_its_progress_and_what_is_pending(engine: LocalEngine, name: str) -> None:
    state = engine.log(name).groups["workers"]

    assert (state.mode, state.filter, state.cursor, state.committed) == (WORK, "topic/#", 5, 2)
    assert list(state.settled) == [(4, 5)]
    assert state.pending == {2: Pending(1, START_US + 9, "ann"), 3: Pending(1, START_US, "")}


def test_a_group_that_has_files_has_its_progress(engine: LocalEngine) -> None:
    state = engine.log(QUIET).groups["workers"]

    assert (state.mode, state.filter, state.cursor, state.committed, state.pending) == (WORK, "topic/#", 1, 1, {})


def test_it_is_sound_and_seen_from_outside(root: Path) -> None:
    assert examine(root).is_clean
    follower = Follower(root)
    assert {name: follower.bounds(name) for name in follower.names()} == {name: bounds(name) for name in LOGS}
    follower.close()


def test_it_goes_on_where_it_ended(root: Path) -> None:
    with closing(LocalEngine(root, settings=SMALL)) as engine:
        store(engine, lambda commit: commit.append("queue-02", [message("queue-02", 6)]))

    with closing(LocalEngine(root, settings=SMALL)) as engine:
        assert all_values(engine.log("queue-02").read(2, 10)) == all_values(messages("queue-02", 2, 7))
