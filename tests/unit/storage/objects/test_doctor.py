"""Findings in a store that an engine has open: none where all is well, otherwise the missing parts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import HeadraceError, Unavailable
from headrace.model import Message, Source
from headrace.storage.api import Commit
from headrace.storage.group_row import GroupRow
from headrace.storage.group_state import WORK
from headrace.storage.objects import keys
from headrace.storage.objects.doctor import LogRow, examine_store
from headrace.storage.objects.engine import ObjectEngine, ObjectSettings


class Ward:
    """A store with an engine."""

    def __init__(self, directory: Path) -> None:
        self.url = f"file://{directory}/store"
        self.engine = ObjectEngine(self.url, settings=ObjectSettings(flush_interval_ms=1))

    def commit(self, commit: Commit) -> None:
        told: list[HeadraceError | None] = []
        self.engine.commit(commit, told.append)
        self.engine.sync()
        assert told == [None]

    def fill(self) -> None:
        commit = Commit()
        commit.append("orders", [Message(Source("orders"), b"%d" % number, number + 1) for number in range(50)])
        commit.append("empty", [Message(Source("empty"), b"x", 1)])
        commit.create_group("orders", "workers", WORK)
        commit.claim("orders", "workers", 0, 20, "worker", 1)
        commit.ack("orders", "workers", 0, 5)
        commit.truncate("orders", 5)
        commit.truncate("empty", 1)
        self.commit(commit)

    def remove(self, key: bytes) -> None:
        self.engine._database.store([(key, None)])


@pytest.fixture
def ward(tmp_path: Path) -> Iterator[Ward]:
    ward = Ward(tmp_path)
    ward.fill()
    yield ward
    ward.engine.close()


def test_a_sound_store_has_no_problems(ward: Ward) -> None:
    told: list[tuple[int, int]] = []

    report = examine_store(ward.url, progress=lambda done, total: told.append((done, total)))

    assert report.problems == []
    assert report.logs == [
        LogRow("empty", 1, 1, 0),
        LogRow("orders", 5, 50, report.logs[1].size_bytes, [GroupRow("workers", "work", 5, 20, 15)]),
    ]
    assert told[-1] == (45, 45)
    assert report.as_dict()["clean"] is True


def test_a_payload_that_is_missing_is_found_with_its_offset(ward: Ward) -> None:
    (fifth,) = ward.engine.log("orders").staged_ids(5, 6)  # type: ignore[attr-defined]
    ward.remove(keys.payloads_key(fifth - 5))

    report = examine_store(ward.url)

    (problem,) = report.problems
    assert problem.startswith("orders: offset 5: ")
    assert "the payload is missing" in problem


def test_an_entry_that_is_missing_is_found(ward: Ward) -> None:
    log = ward.engine.log("orders")
    ward.remove(keys.entry_key(log.prefix, 0))  # type: ignore[attr-defined]

    (problem,) = examine_store(ward.url).problems

    assert "no entry of the metadata log has offset 5" in problem


def test_a_group_without_its_log_is_a_problem_of_the_store(ward: Ward) -> None:
    log = ward.engine.log("orders")
    ward.remove(keys.LOG + keys.u64(log.id))

    report = examine_store(ward.url)

    assert "has no log or no specification" in report.problem
    assert report.problems == [report.problem]


def test_what_is_no_store_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="there is no directory"):
        examine_store(f"file://{tmp_path}/none")
    with pytest.raises(Unavailable, match="there is no store at"):
        examine_store(f"file://{tmp_path}")


def test_groups_of_a_store_are_examined_each_by_itself_and_one_that_is_not_there_is_said(ward: Ward) -> None:
    hot = ObjectEngine(ward.url, group="hot", settings=ObjectSettings(flush_interval_ms=1))
    commit = Commit()
    commit.append("clicks", [Message(Source("clicks"), b"x", 1)])
    hot.commit(commit, lambda error: None)
    hot.sync()

    report = examine_store(ward.url, group="hot")

    hot.close()
    assert ([row.name for row in report.logs], report.problems) == (["clicks"], [])
    assert [row.name for row in examine_store(ward.url).logs] == ["empty", "orders"]
    with pytest.raises(Unavailable, match="has no replication group 'cold'; there are: hot, main"):
        examine_store(ward.url, group="cold")
